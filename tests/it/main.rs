//! What runs against real processes and real servers, and the simulation: one binary, so that one link serves all.

mod failover;
mod harness;
mod simulation;
mod support;
mod warden;
mod zookeeper;
