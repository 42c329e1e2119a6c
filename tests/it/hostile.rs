//! What those do who mean harm: none of it may stop a node, steer it, or learn what is not theirs to know.

mod net;
