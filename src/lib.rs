//! cronkeeper: cron that survives the loss of a host.
//!
//! From the top down, a module may use those above it, never those below.

#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
pub mod clock;
pub mod coordination;
pub mod election;
pub mod job;
pub mod lease;
pub mod ledger;
pub mod run;
pub mod schedule;
pub mod status;
pub mod systemd;
pub mod telemetry;
pub mod term;
pub mod warden;
pub mod zookeeper;
