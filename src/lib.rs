//! cronkeeper: cron that survives the loss of a host.
//!
//! Three crates; each uses those above it:
//!
//! - [`cronkeeper_core`], `src/core`: the domain, the ports, the engine, which decides what to do, and the loop, which
//!   does it.
//! - [`cronkeeper_cluster`], `src/cluster`: the backends on ZooKeeper and on one host.
//! - this one: all that people see.
//!
//! Where to begin: [`cronkeeper_core::event_loop`] for what connects engine and backend, [`daemon`] for what people see
//! of it, [`cli`] for what they type.
//!
//! A module uses those declared above it, never those below; `tests/it/borders.rs` holds it to that. The blank lines
//! between the modules keep rustfmt from sorting them.

#![deny(unsafe_code)]

/// The files that a job is given at its start.
mod job_files;

/// Files in memory, for what a process reads from its standard input.
mod memory_file;

/// Files that options name.
pub mod option_file;

/// Certificates and keys, as people have them in files.
pub mod pem;

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

/// The output of runs, kept in the state directory.
pub mod output;

/// The node's own copy of the history, in SQLite.
pub mod archive;

/// Notifications: sends what the ledger's outbox has to the channels of the jobs file.
pub mod notices;

/// HTTP on the Unix socket and on TCP, and its client.
pub mod api;

/// The event loop with the real ports, and what people see of it.
pub mod daemon;

/// Crontabs, to be imported.
pub mod crontab;

/// The commands.
pub mod cli;

/// Random inputs for the parsers, in tests.
#[cfg(test)]
#[path = "../tests/support/fuzz/mod.rs"]
mod fuzz;

/// Sample jobs and records, in tests.
#[cfg(test)]
#[path = "../tests/support/records.rs"]
mod test_records;

/// Tests that this machine cannot run.
#[cfg(test)]
#[path = "../tests/support/skips.rs"]
mod skips;
