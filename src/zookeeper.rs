//! Both ports on ZooKeeper: the queue under `/leader`, the ledger under `/cronkeeper`.
//!
//! ```text
//!  daemon ⇄ node ─ one session after another ─ life ┬ contender   member, candidate, place, opening of a term
//!                                                   ├ committer   group commit, four answers
//!                                                   ├ watcher     runs of other nodes
//!                                                   └ trim        old history
//! ```
//!
//! Everything here but [`session`] is generic over [`client`] and the clock, spawns nothing and draws no random number
//! but the uuid it is given: the same code runs against real servers and in the simulation, where a node's
//! whole backend is the one future that [`serve`] returns.
//!
//! What the daemon can rely on in the order of events:
//! - `Session` comes before the first `Joined`, `Joined` before `Elected`; another session only after the old one's `Expired`. The
//!   same one is told again when the member had gone and was made anew: another may have settled this node's runs meanwhile.
//! - The answers to commits requested in a term come before its `Over`, with three exceptions: at lease end, where the
//!   daemon's loop stands still, and when the connection is lost too, `Over` does not wait. A late answer tells what is written; `Accepted` after `Over` is a
//!   run on record that must not be started, but ended.
//! - On the loss of a session: answers (`Unknown` where none came), `Lease` zero, `Over`, `Expired`.
//! - `Lease` zero is said when an own entry went under a living session and when the session is gone. A lease that just
//!   runs out passes without a word, but for the term's `Over`.
//! - Where the daemon's loop stands still, a term is `Over` as well, and a longer standstill is told as an own entry that went.
//! - After `Failed` nothing comes any more.

mod transfer;
pub mod client;
mod committer;
mod damage;
mod context;
mod entry;
mod forget;
#[cfg(test)]
mod fuzz;
mod give_up;
mod session_loop;
mod lower;
mod supervisor;
mod operator;
pub mod paths;
mod place;
pub mod queue;
mod reader;
mod rights;
pub mod session;
mod snapshot;
mod store;
#[cfg(test)]
mod tests_support;
mod time;
mod trim;
mod watcher;
mod requests;

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::Clock;
use crate::coordination::Service;
use crate::term::{NodeName, SessionId};

pub use give_up::{Estate, ReleaseError, release};
pub use reader::LedgerReader;
pub use store::{ClaimError, KeptSessions, SessionStore, StoreError};

/// What a node says of itself in its member and its candidate.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// Its name.
    pub node: NodeName,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Of its program.
    pub version: String,
    /// When its process started.
    pub started_at: Timestamp,
}

/// What else the backend needs.
pub struct Options {
    /// The connect string, for messages.
    pub service: String,
    /// Its chroot, for messages; `/` where there is none.
    pub chroot: String,
    /// Draws the uuid of a session's candidates, and of a new cluster.
    pub uuid: Box<dyn FnMut() -> Uuid + Send>,
    /// How long a job must be gone from every node's files before what is kept of it is removed; absent: it never is.
    pub forget_after: Option<Duration>,
}

/// The whole backend. Returns when the daemon is done ([`Request::Leave`](crate::election::Request::Leave), or its channel closed) or
/// an operator must act ([`Event::Failed`](crate::election::Event::Failed)).
///
/// Dropping the future is what a crash is: the session's entries stay until the server lets it expire.
pub async fn serve<C: client::Connect, K: Clock>(
    connect: C,
    clock: K,
    identity: NodeIdentity,
    store: Box<dyn SessionStore>,
    service: Service,
    options: Options,
) {
    supervisor::Supervisor::new(connect, clock, identity, store, service, options).serve().await;
}

/// A session's name, from the id that the stat of its entries shows.
pub fn session_id(owner: i64) -> SessionId {
    SessionId(format!("{owner:#x}"))
}

/// What [`session_id`] was made from; `None` if it was not made by it.
pub fn owner_of(session: &SessionId) -> Option<i64> {
    u64::from_str_radix(session.0.strip_prefix("0x")?, 16).ok().map(u64::cast_signed)
}
