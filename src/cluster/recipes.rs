//! The recipes of a cluster, written once for every coordination service: the queue under `/leader` and the ledger
//! under `/cronkeeper`.
//!
//! ```text
//!  daemon ⇄ node ─ one session after another ─ session_loop ┬ place       member, candidate, queue, opening of a term
//!                                                           ├ committer   group commit, four answers
//!                                                           ├ watcher     runs of other nodes
//!                                                           └ trim        old history
//! ```
//!
//! All is generic over the port [`tree`](crate::tree) and the clock, spawns nothing, and draws no random number but the
//! uuid it is given. So the same code runs against real servers and in the simulation, where the future that [`serve`]
//! returns is a node's whole backend.

mod bounded;
mod cluster_id;
mod committer;
mod context;
mod damage;
mod entry;
mod forget;
#[cfg(test)]
mod fuzz;
mod give_up;
mod lasts;
pub mod lock;
mod losses;
mod newest_records;
mod node;
mod operator;
mod outbox;
mod place;
mod reader;
mod requests;
mod session_loop;
mod snapshot;
mod store;
mod strays;
mod supervisor;
#[cfg(test)]
mod tests_support;
mod time;
mod transaction;
mod transfer;
mod trim;
mod wanted;
mod watcher;

use crate::tree::Connect;
use cronkeeper_core::clock::Clock;
use cronkeeper_core::coordination::Service;

pub use context::SessionError;
pub use give_up::{ReleaseError, ReleaseTarget, release};
pub use node::{NodeIdentity, Options};
pub use reader::LedgerReader;
pub use store::{ClaimError, KeptSessions, SessionStore, StoreError};

/// Runs a node's whole backend.
///
/// Returns when the daemon is done ([`Request::Leave`], or its channel is closed) or when an operator must act
/// ([`Event::Failed`]). Dropping the future has the effect of a crash: the session's entries stay until the service
/// ends the session.
///
/// [`Request::Leave`]: cronkeeper_core::election::Request::Leave
/// [`Event::Failed`]: cronkeeper_core::election::Event::Failed
pub async fn serve<C: Connect, K: Clock>(
    connect: C,
    clock: K,
    identity: NodeIdentity,
    store: Box<dyn SessionStore>,
    service: Service,
    options: Options,
) {
    let node = node::Node::new(identity, store, service, options);
    supervisor::Supervisor::new(connect, clock, node).serve().await;
}
