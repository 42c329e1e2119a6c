//! Tests on real servers and real processes; one binary, so that one link serves all.

mod harness;
mod support;
mod zookeeper;
