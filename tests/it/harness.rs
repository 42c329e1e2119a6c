//! The harness itself, on real servers: a helper that did not do what it says would make every other test worthless.

mod lines;
mod nodes;
mod queue;
mod servers;
mod witnesses;
