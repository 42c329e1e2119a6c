//! cronkeeper: cron that survives the loss of a host.
//!
//! From the top down, a module may use those above it, never those below. The upper part is pure: no clock, no I/O, no waiting.

#![deny(unsafe_code)]

// Pure: words and decisions.
pub mod suggest;
pub mod duration;
pub mod clock;
pub mod schedule;
pub mod job;
pub mod term;
pub mod lease;
pub mod run;
// The ports, and the messages to the warden.
pub mod ledger;
pub mod election;
pub mod coordination;
mod memory_file;
pub mod warden;
// What to do now.
pub mod engine;
// The edge.
pub mod status;
pub mod systemd;
pub mod telemetry;
pub mod accounts;
pub mod safe_path;
pub mod config;
pub mod state_dir;
pub mod zookeeper;
pub mod solo;
pub mod api;
pub mod daemon;
pub mod crontab;
pub mod cli;
// What others wrote, as nobody means it.
#[cfg(test)]
mod fuzz;
