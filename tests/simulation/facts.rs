//! The facts that the invariants check, in the order in which they happen; each part of the world emits its own.

use std::sync::Arc;

use cronkeeper_cluster::tree::Revision;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::ledger::Commit;
use cronkeeper_core::term::{FencingToken, SessionId};
use jiff::SignedDuration;

use super::ledger::txn::Txn;
use super::warden::Process;

#[derive(Clone)]
pub enum Fact {
    /// The process of a node is gone.
    Died { node: usize },
    /// A node's process died with its host. Its disk proves nothing to a later process, because it may be a copy.
    HostDied { node: usize },
    /// The ensemble has committed a transaction and accepted it. `touched`: the znodes that it created, changed or
    /// removed.
    Committed { txn: Arc<Txn>, touched: Vec<String> },
    /// The ensemble has lost transactions that it had committed, oldest first.
    Lost { txns: Vec<Arc<Txn>> },
    /// A session of a node, which remembers that, was shown the store as it was after this commit.
    Shown { node: usize, revision: Revision },
    /// A node received the result of a write. `nonce`: a text that only the data of that write contains.
    Answered { node: usize, nonce: String, answer: Commit },
    /// A node reports that it leads from now on.
    Elected { node: usize, token: FencingToken, lease_until: Uptime },
    /// A node reports that it may act until then.
    Lease { node: usize, until: Uptime },
    /// A node reports that its term is over.
    Over { node: usize, token: FencingToken },
    /// A backend breaks a rule of the contract on the order of events.
    Misordered { node: usize, rule: &'static str },
    /// A node reports that it is connected, after it was not, or that it is not any more.
    InTouch { node: usize, is: bool },
    /// A session of a node is open.
    Connected { node: usize, session: i64, id: SessionId },
    /// The loop of a node's daemon stalls, while the rest of the daemon continues.
    LoopStalled { node: usize },
    /// The loop continues.
    LoopResumed { node: usize },
    /// A node's host freezes, including its jobs.
    Frozen { node: usize },
    /// The host continues.
    Thawed { node: usize },
    /// The time of day of a node was set, by so much.
    ClockSet { node: usize, by: SignedDuration },
    /// A hook is started. `run`: the run that it is about; empty if it is about none.
    Hooked { node: usize, hook: String, job: String, run: String },
    /// From now on a process of a run is alive.
    Spawned(Process),
    /// A process of a run is gone.
    Gone(Process),
}
