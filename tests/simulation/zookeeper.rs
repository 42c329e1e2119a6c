//! An in-memory model below `zookeeper::client`: an ensemble of three servers and the client crate.
//!
//! It keeps the properties that matter: writes in one total order on a quorum's disks, reads and watches from the
//! connected server's own state, sessions tracked by the ensemble's leader with a delay of half a tick, and the
//! client's own timers. It leaves out authentication, quotas, and the votes of an election.

mod client;
mod ensemble;
#[cfg(test)]
mod facts_of_design;
mod following;
mod leading;
mod port;
mod server;
mod states;
mod tracker;
mod tree;
pub mod wire;

use crate::ledger::txn;
pub use crate::ledger::txn::{Change, STRANGER};
pub use client::{Answered, ClientId, Clients};
pub use ensemble::{Ensemble, SERVERS};
pub use port::Connector;
pub use server::{Health as ServerHealth, Input, Server};
pub use states::States;
pub use tree::{CLOSED, Tree};
