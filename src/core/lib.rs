//! What cronkeeper is about, and what it decides: the domain, the ports, the engine, and the loop.
//!
//! The domain decides on values: where it touches the system, it does so in a file of its own (`clock::system`,
//! `schedule::tzdata`). The engine decides what to do, and the loop does it through the ports. Where to begin: [`engine`]
//! for what the daemon does and why, [`event_loop`] for how, [`coordination`] for what a backend has to do.
//!
//! A module uses those declared above it, never those below; `tests/it/borders.rs` holds it to that. The blank lines
//! between the modules keep rustfmt from sorting them.

#![deny(unsafe_code)]

// The files that all crates' tests share name this crate as other crates do.
#[cfg(test)]
extern crate self as cronkeeper_core;

// The domain.
/// Escaping of text from outside.
pub mod escape;

/// "Did you mean", and counts with their nouns.
pub mod suggest;

/// Durations as people write them.
pub mod duration;

/// Instants, timers, and the clocks of this host and of the coordination service.
pub mod clock;

/// Cron expressions, time zones, and the occurrences they name.
pub mod schedule;

/// Locks that scripts and jobs take: paths, kinds and keys.
pub mod lock;

/// Files with environment variables.
pub mod environment_file;

/// Nodes, sessions, candidates, terms and fencing tokens.
pub mod term;

/// Jobs and their policies.
pub mod job;

/// How long a node may act without a quorum write.
pub mod lease;

/// Runs: ids, records, ends, skips, links, and the journal of those on this host.
pub mod run;

/// Log events: names, levels, fields and sentences.
pub mod log_event;

// The ports.
/// What the daemon asks the warden to do with processes, and what the warden reports.
pub mod process;

/// What a failed start failed over.
pub mod start_problem;

/// The durable record of decisions and runs.
pub mod ledger;

/// The election of a leader.
pub mod election;

/// The locks of runs.
pub mod run_lock;

/// The channels between the daemon and a backend.
pub mod coordination;

/// Decides what to do now.
pub mod engine;

/// Gathers events, and performs what the engine decides.
pub mod event_loop;

/// Random inputs for the parsers, in tests.
#[cfg(test)]
#[path = "../../tests/support/fuzz/mod.rs"]
mod fuzz;

/// Sample jobs and records, in tests.
#[cfg(test)]
#[path = "../../tests/support/records.rs"]
mod test_records;
