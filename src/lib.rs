//! cronkeeper: cron that survives the loss of a host.
//!
//! Three crates, each of which uses those above it:
//!
//! - [`cronkeeper_core`], `src/core`: the domain, the ports, and the engine, which decides what to do.
//! - [`cronkeeper_cluster`], `src/cluster`: the backends on ZooKeeper and on one host.
//! - this one: all that people see. It does what the engine decides.
//!
//! Where to begin: [`daemon`] for the loop that connects engine and backend, [`cli`] for what people type.
//!
//! A module uses those declared above it, never those below; `tests/it/borders.rs` holds it to that. The blank lines
//! between the modules keep rustfmt from sorting them.

#![deny(unsafe_code)]

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

/// The output of runs, kept in the state directory.
pub mod output;

/// The node's own copy of the history, in SQLite.
pub mod archive;

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
#[path = "../tests/support/fuzz/mod.rs"]
mod fuzz;

/// Sample jobs and records, in tests.
#[cfg(test)]
#[path = "../tests/support/records.rs"]
mod test_records;
