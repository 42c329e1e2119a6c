//! cronkeeper: cron that survives the loss of a host.
//!
//! A module uses those declared above it, never those below; `tests/it/borders.rs` holds it to that. The domain decides
//! on values: where it touches the system, it does so in a file of its own (`clock::system`, `schedule::tzdata`). The
//! engine decides what to do. What is below does it. Where to begin: [`engine`] for what the daemon does and why,
//! [`coordination`] for what a backend has to do, [`daemon`] for the loop that connects both.

#![deny(unsafe_code)]

// The simulation's znodes, which the unit tests of `zookeeper` include, name this crate as other crates do.
#[cfg(test)]
extern crate self as cronkeeper;

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
/// Jobs and their policies.
pub mod job;
/// Nodes, sessions, candidates, terms and fencing tokens.
pub mod term;
/// How long a node may act without a quorum write.
pub mod lease;
/// Runs: ids, records, ends, skips, links, and the journal of those on this host.
pub mod run;

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

// The edge.
/// Paths that no other user can change.
pub mod safe_path;
/// The files that a job is given at its start.
mod job_files;
/// Files in memory, for what a process reads from its standard input.
mod memory_file;
/// The process that starts the jobs' processes and lets none escape.
pub mod warden;
/// The status of a node, as the API shows it.
pub mod status;
/// The metrics: what the daemon counts, and their text for Prometheus.
pub mod metrics;
/// Notifications to systemd.
pub mod systemd;
/// The log: events, formats, and the thread that writes them.
pub mod telemetry;
/// The host's users and groups.
pub mod accounts;
/// The jobs file, and the node's own settings.
pub mod config;
/// The state directory: its lock, its owner, and what it remembers.
pub mod state_dir;
/// The output of runs, kept in the state directory.
pub mod output;
/// The node's own copy of the history, in SQLite.
pub mod archive;
/// The backend on ZooKeeper.
pub mod zookeeper;
/// The backend on one host: file locks and SQLite.
pub mod solo;
/// HTTP on the Unix socket and on TCP, and its client.
pub mod api;
/// The daemon's loop: it gathers events, asks the engine, and performs the commands.
pub mod daemon;
/// Crontabs, to be imported.
pub mod crontab;
/// The commands.
pub mod cli;

/// Random inputs for the parsers, in tests.
#[cfg(test)]
mod fuzz;
