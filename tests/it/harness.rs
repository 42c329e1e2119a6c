//! Tests of the test harness, on real servers: a broken helper would make all other tests worthless.

mod lines;
mod nodes;
mod queue;
mod servers;
mod witnesses;
