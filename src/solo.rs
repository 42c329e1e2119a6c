//! Both ports on one host: an exclusive lock on a file in the state directory, and the ledger in SQLite beside it.
//!
//! ```text
//! leader.lock                        who holds it leads
//! queue/<sequence>@<node>            a candidate: a file locked by its process
//! queue.door                         held for a moment by who joins; its text is the newest sequence
//! members/<node>@<session>.lock      a member: a file locked by its process until it ends, also while it drains
//!                         .json      what it says of itself
//!                         .journal   what it did about its runs
//! ledger.db                          the ledger, and the newest token
//! ```
//!
//! The kernel drops the locks of a process that dies, however it dies, and wakes who waits for them. Each follower waits for
//! the lock of its direct predecessor, so the queue is served in the order of joining; `leader.lock` is what keeps two from
//! leading, and the token, checked inside each transaction, is what keeps out a leader whose lock file was removed by hand.
//!
//! Before it leads, a new holder sees the processes dead that dead members recorded, and commits the ends they could not. So a run
//! whose owner is gone is never one that goes on elsewhere, and there is no lease: it holds as long as the process lives. A killed
//! leader's locks go one by one, in no promised order: while its member's lock stands it counts as one that drains, its runs are in
//! flight, and they are settled by the new leader as soon as that lock is gone and their processes are seen dead.
//!
//! [`start`] blocks on the disk; after it, one thread owns the SQLite connection and both ports, short-lived threads do what waits,
//! and nothing here runs on the daemon's loop.

mod backend;
mod reap;
mod commit;
mod contender;
mod errand;
mod forget;
mod members;
mod operator;
mod queue;
mod read;
mod reader;
mod store;
#[cfg(test)]
mod tests;
mod watch;
mod requests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use store::StoreError;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch::channel as watch_channel;

use crate::coordination::{Coordination, channels};
use crate::election::Failure;
use crate::ledger::ReadError;
use crate::run::journal::RecoveredRun;
use crate::safe_path;
use crate::state_dir::journal::FileJournal;
use crate::state_dir::{StateDir, StateDirError};
use crate::term::NodeName;

/// Makes sure that what dead processes left of these runs is dead. It may block, for as long as it takes to be sure.
pub type Leftovers = Arc<dyn Fn(&[RecoveredRun]) -> Result<(), StillAlive> + Send + Sync>;

/// Processes of a dead node that do not die.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("processes of a dead node still live: {0}")]
pub struct StillAlive(pub String);

/// What a session on one host expires after: its locks end with the process and not by any time. Long enough to mean never,
/// short enough to be added to any clock.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A node that takes part.
pub struct Solo {
    /// Both ports.
    pub coordination: Coordination,
    /// Where the node notes what it does about its runs. What earlier processes noted is settled by whoever leads next.
    pub journal: FileJournal,
}

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum SoloError {
    /// The name is taken.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The journal cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The ledger cannot be used.
    #[error("the ledger `{path}` cannot be opened")]
    Ledger {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// See [`StillAlive`].
    #[error(transparent)]
    StillAlive(#[from] StillAlive),
    /// The ledger cannot be read.
    #[error("the ledger `{path}` cannot be read")]
    Unread {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The lock files cannot be used, or no thread can be had.
    #[error("node `{node}` cannot take part")]
    System {
        /// The node.
        node: NodeName,
        /// Why.
        source: io::Error,
    },
}

/// Makes this process a member, and serves both ports until the daemon leaves or drops its end. Dropped without
/// [`Leave`](crate::election::Request::Leave) it is as if the process had died.
///
/// What is kept of a job that is gone from all members' files for `forget_after` is removed; absent: never.
///
/// # Errors
/// When the name is taken by a living node, or the state directory cannot be used.
pub fn start(
    state_dir: &StateDir,
    node: &NodeName,
    leftovers: Leftovers,
    forget_after: Option<Duration>,
) -> Result<Solo, SoloError> {
    let system = |source| SoloError::System { node: node.clone(), source };
    let folders = Folders::make(state_dir)?;
    let leader_lock = state_dir.path().join("leader.lock");
    // It is needed when this node comes to lead, which may be much later; the others are opened now.
    safe_path::check_own(&leader_lock).map_err(system)?;
    let ledger = state_dir.path().join(LEDGER);
    let store = store::Store::open(&ledger).map_err(|source| SoloError::Ledger { path: ledger.clone(), source })?;
    let queue = queue::Queue::new(folders.queue, state_dir.path().join("queue.door"));
    let members = members::Members::new(folders.members);
    let member = queue.at_the_door(|| members.join(node)).map_err(system)?.map_err(SoloError::Refused)?;
    let (journal, _) = FileJournal::open(&members.journal(member.name()))?;
    let notices = unbounded_channel();
    let written = watch_channel(0);
    let operator = reader::Signals { notices: notices.0.clone(), written: written.1 };
    let reader = Arc::new(reader::SoloReader::new(ledger.clone(), members.clone(), queue.clone(), operator));
    let (coordination, service) = channels(reader);
    let contender = contender::Contender::new(node.clone(), queue, leader_lock);
    backend::spawn(backend::Parts {
        service,
        store,
        ledger,
        members,
        member,
        contender,
        leftovers,
        forget_after,
        notices,
        written: written.0,
    })
    .map_err(system)?;
    Ok(Solo { coordination, journal })
}

/// Sees the processes dead that dead members left here. All else of theirs is the next leader's: their locks went with them.
///
/// # Errors
/// When a process does not die, or the state directory cannot be used.
pub fn release(state_dir: &StateDir, node: &NodeName, leftovers: &Leftovers) -> Result<(), SoloError> {
    let members = members::Members::new(Folders::make(state_dir)?.members);
    let path = state_dir.path().join(LEDGER);
    match reap::all(&members, &path, leftovers) {
        Ok(_) => Ok(()),
        Err(reap::ReapError::StillAlive(alive)) => Err(alive.into()),
        Err(reap::ReapError::Files(source)) => Err(SoloError::System { node: node.clone(), source }),
        Err(reap::ReapError::Ledger(source)) => Err(SoloError::Unread { path, source }),
    }
}

/// The ledger's file in the state directory.
const LEDGER: &str = "ledger.db";

struct Folders {
    queue: PathBuf,
    members: PathBuf,
}

impl Folders {
    fn make(state_dir: &StateDir) -> Result<Self, StateDirError> {
        let folders = Self { queue: state_dir.path().join("queue"), members: state_dir.path().join("members") };
        crate::state_dir::make_folder(&folders.queue)?;
        crate::state_dir::make_folder(&folders.members)?;
        Ok(folders)
    }
}
