//! What the invariants judge: facts, told by the part of the world in which they came true, in their order.

use std::sync::Arc;

use cronkeeper::clock::Uptime;
use cronkeeper::ledger::Commit;
use cronkeeper::term::FencingToken;

use super::warden::Process;
use super::zookeeper::wire::Entry;

#[derive(Clone)]
pub enum Fact {
    /// A node's process is gone.
    Died { node: usize },
    /// With its host: what its disk says is no proof to a later process, for it may be a copy.
    HostDied { node: usize },
    /// The ensemble has committed a transaction and it was accepted; with the nodes that it made, changed or removed.
    Committed { entry: Arc<Entry>, touched: Vec<String> },
    /// A node was told what became of a write, known by a text that only its data contains.
    Answered { node: usize, nonce: String, answer: Commit },
    /// A node leads from now on, by its own word.
    Elected { node: usize, token: FencingToken, lease_until: Uptime },
    /// A node may act until then, by its own word.
    Lease { node: usize, until: Uptime },
    /// A node's term is over, by its own word.
    Over { node: usize, token: FencingToken },
    /// A session of a node is open.
    Connected { node: usize, session: i64 },
    /// A node has noted in its state directory that an attempt was begun, and hands it over to its warden.
    Noted { run: String, attempt: u32 },
    /// The loop of a node's daemon stands still, and nothing else of it does.
    LoopStalled { node: usize },
    /// It goes on.
    LoopResumed { node: usize },
    /// A node's host stands still, its jobs too.
    Frozen { node: usize },
    /// It goes on.
    Thawed { node: usize },
    /// A hook is started: which, and the run it is about.
    Hooked { node: usize, hook: String, run: String },
    /// A process of a run is alive from now on.
    Spawned(Process),
    /// A process of a run is gone.
    Gone(Process),
}
