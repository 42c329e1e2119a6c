//! The solo backend: election by file locks on one host, and the ledger in SQLite.
//!
//! All files are in the state directory:
//!
//! ```text
//! leader.lock                        the process that holds this lock leads
//! queue/<sequence>@<node>            a candidate: a file locked by its process
//! queue.door                         locked briefly while a process joins; contains the newest sequence number
//! members/<node>@<session>.lock      a member: a file locked by its process until it ends, also while it drains
//!                         .json      the member's description of itself
//!                         .journal   the member's record of its runs
//! ledger.db                          the ledger, and the newest token
//! locks/<path>                       the locks of jobs, and of scripts on a host without ZooKeeper
//! ```
//!
//! When a process dies, the kernel releases its locks and wakes the processes that wait for them. Each follower waits
//! for the lock of its direct predecessor, so nodes lead in the order of joining. `leader.lock` prevents two leaders at
//! once. If somebody removes that file by hand, the token still keeps the former leader out: every transaction checks
//! it.
//!
//! Before a new leader leads, it makes sure that all processes recorded by dead members are dead, and commits the ends
//! that those members could not commit. So a run whose owner is gone never continues elsewhere, and the lease needs no
//! renewal: it lasts as long as the process is alive. The locks of a killed leader are released one by one, in no
//! particular order. While its member's lock is still held, it counts as a draining member whose runs are in flight.
//! The new leader settles them once that lock is free and their processes are dead.
//!
//! [`start`] blocks on the disk. After it, one thread owns the SQLite connection and serves both ports, short-lived
//! threads do what has to wait, and nothing here runs on the daemon's loop.

mod backend;
mod background;
mod commit;
mod contender;
pub mod file_lock;
mod forget;
mod job_locks;
mod last;
pub mod lock_files;
mod members;
mod operator;
mod outbox;
mod queue;
mod read;
mod reader;
mod reap;
mod recount;
mod requests;
mod store;
#[cfg(test)]
mod tests;
mod wanted;
mod watch;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use job_locks::HeldLocks;
pub use store::StoreError;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::watch::channel as watch_channel;

use crate::safe_path;
use crate::state_dir::journal::FileJournal;
use crate::state_dir::{StateDir, StateDirError};
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::coordination::{Coordination, channels};
use cronkeeper_core::election::Failure;
use cronkeeper_core::process::Custody;
use cronkeeper_core::run::BeginNote;
use cronkeeper_core::run::journal::RecoveredRun;
use cronkeeper_core::term::NodeName;

/// Makes sure that no process of these runs is alive, killing those that are. May block until that is certain. Returns
/// the notes of those programs that are known not to have begun.
pub type Leftovers = Arc<dyn Fn(&[RecoveredRun]) -> Result<BTreeSet<BeginNote>, StillAlive> + Send + Sync>;

/// Processes of a dead node that cannot be killed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("processes of a dead node are still running: {0}")]
pub struct StillAlive(pub String);

/// Session timeout of the solo backend, in effect never.
///
/// A session ends with its process, when the kernel releases the locks, and not after any time. The value is small
/// enough to be added to any clock.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Who holds the locks of jobs.
#[derive(Clone, Debug)]
pub struct LocksOfJobs {
    /// The user that others see as the holder.
    pub user: String,
    /// Holds them too, until the processes are dead; where there are no processes, there need not be one.
    pub custody: Option<Arc<dyn Custody>>,
}

/// A node that takes part.
pub struct Solo {
    pub coordination: Coordination,
    /// Where the node records its runs. The next leader settles the journals of earlier processes.
    pub journal: FileJournal,
    /// Keep it until no process of a run is left: see [`HeldLocks`].
    pub locks: HeldLocks,
}

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum SoloError {
    /// Another live node has the same name.
    #[error(transparent)]
    Refused(#[from] Failure),
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error("cannot open the ledger `{path}`")]
    Ledger { path: PathBuf, source: StoreError },
    #[error(transparent)]
    StillAlive(#[from] StillAlive),
    #[error("cannot read the ledger `{path}`")]
    Unread { path: PathBuf, source: ReadError },
    /// The lock files cannot be used, or a thread cannot be started.
    #[error("node `{node}` cannot take part")]
    System { node: NodeName, source: io::Error },
}

/// Makes this process a member, and serves both ports until the daemon leaves or drops its end.
///
/// Dropping the daemon's end without [`Leave`] has the same effect as the death of the process. The records of a job that
/// no member's files have defined for `forget_after` are removed; without it they are kept.
///
/// [`Leave`]: cronkeeper_core::election::Request::Leave
///
/// # Errors
/// When a live node has the same name, or the state directory cannot be used.
pub fn start(
    state_dir: &StateDir,
    node: &NodeName,
    leftovers: Leftovers,
    forget_after: Option<Duration>,
    locks: LocksOfJobs,
) -> Result<Solo, SoloError> {
    let system = |source| SoloError::System { node: node.clone(), source };
    let directories = Directories::make(state_dir)?;
    let leader_lock = state_dir.path().join("leader.lock");
    // The other files are opened now. This one is opened when the node is about to lead, which may be much later, so
    // check now that it is safe.
    safe_path::check_own(&leader_lock).map_err(system)?;
    let ledger = state_dir.path().join(LEDGER);
    let store = store::Store::open(&ledger).map_err(|source| SoloError::Ledger { path: ledger.clone(), source })?;
    let queue = queue::Queue::new(directories.queue, state_dir.path().join("queue.door"));
    let members = members::Members::new(directories.members);
    let member = queue.with_lock(|| members.join(node)).map_err(system)?.map_err(SoloError::Refused)?;
    let (journal, _) = FileJournal::open(&members.journal(member.name()))?;
    let notices = unbounded_channel();
    let written = watch_channel(0);
    let operator = reader::OperatorLink { notices: notices.0.clone(), written: written.1 };
    let reader = Arc::new(reader::SoloReader::new(ledger.clone(), members.clone(), queue.clone(), operator));
    let (coordination, service) = channels(reader);
    let contender = contender::Contender::new(node.clone(), queue, leader_lock);
    let job_locks = job_locks::JobLocks::new(state_dir.path(), locks);
    let locks = job_locks.held();
    backend::spawn(backend::BackendParts {
        service,
        store,
        ledger,
        members,
        member,
        contender,
        job_locks,
        leftovers,
        forget_after,
        notices,
        written: written.0,
    })
    .map_err(system)?;
    Ok(Solo { coordination, journal, locks })
}

/// Kills the processes that dead members left behind on this host.
///
/// Nothing else has to be released, because the kernel has released their locks. The next leader settles their runs.
///
/// # Errors
/// When a process survives, or the state directory cannot be used.
pub fn release(state_dir: &StateDir, node: &NodeName, leftovers: &Leftovers) -> Result<(), SoloError> {
    let members = members::Members::new(Directories::make(state_dir)?.members);
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

struct Directories {
    queue: PathBuf,
    members: PathBuf,
}

impl Directories {
    fn make(state_dir: &StateDir) -> Result<Self, StateDirError> {
        let directories = Self { queue: state_dir.path().join("queue"), members: state_dir.path().join("members") };
        crate::state_dir::make_folder(&directories.queue)?;
        crate::state_dir::make_folder(&directories.members)?;
        Ok(directories)
    }
}
