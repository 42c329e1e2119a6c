//! Tests on real servers, on real processes and in a simulated world; one binary, so that one link serves all.

mod harness;
mod simulation;
mod support;
mod zookeeper;
