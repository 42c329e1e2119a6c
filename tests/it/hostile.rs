//! What somebody without the right to it does to stop a node, to read it or to steer it: it must not work.

mod local;
