//! What makes several nodes one cluster: the backends of the ports `election`, `ledger` and `run_lock`, the locks of
//! scripts on the same services, and the files that a node keeps for them.
//!
//! Where to begin: [`recipes`] for a cluster of hosts, which [`zookeeper`] serves, or [`observed`] on a [`store`];
//! [`solo`] for one host. Knows nothing of jobs files, processes, commands and pages.
//!
//! A module uses those declared above it, never those below; `tests/it/borders.rs` holds it to that. The blank lines
//! between the modules keep rustfmt from sorting them.

#![deny(unsafe_code)]

// The simulation's znodes, which the unit tests of `zookeeper` include, name this crate as other crates do.
#[cfg(test)]
extern crate self as cronkeeper_cluster;

/// Paths that no other user can change.
pub mod safe_path;

/// The port to a coordination service: sessions, and records below folders.
pub mod tree;

/// The paths of a cluster's records.
pub mod paths;

/// The order of a queue by the names of its entries.
pub mod queue;

/// The port to a store of records that are compared and written.
pub mod store;

/// The state directory: its lock, its owner, and what it remembers.
pub mod state_dir;

/// A store in memory, the model for others.
pub mod memory;

/// A store in a file of SQLite.
pub mod sqlite;

/// TLS to stores, and to those who hear of jobs.
pub mod tls;

/// Settings of stores that are URLs.
mod url;

/// Connections to stores.
mod line;

/// A store in etcd.
pub mod etcd;

/// A store in a database of PostgreSQL.
pub mod postgres;

/// A store in Redis or Valkey.
pub mod redis;

/// The port on any store: sessions by observation, order of arrival, watches.
pub mod observed;

/// The port on ZooKeeper.
pub mod zookeeper;

/// The recipes of a cluster: election, ledger, requests of operators, locks.
pub mod recipes;

/// The backend on one host: file locks and SQLite.
pub mod solo;

/// Random inputs for the parsers, in tests.
#[cfg(test)]
#[path = "../../tests/support/fuzz/mod.rs"]
mod fuzz;

/// Sample jobs and records, in tests.
#[cfg(test)]
#[path = "../../tests/support/records.rs"]
mod test_records;

/// Tests that this machine cannot run.
#[cfg(test)]
#[path = "../../tests/support/skips.rs"]
mod skips;
