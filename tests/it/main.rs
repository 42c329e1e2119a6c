//! What runs against real processes and servers: one binary, so that one link serves all.

mod warden;
