//! What the election decides, and the session loop does.

use super::task::Task;
use crate::recipes::damage::{Damage, Source};
use crate::recipes::trim::Roster;
use cronkeeper_core::election::{Event, Member};
use cronkeeper_core::ledger;

/// Something to do. Acts are done in the order in which they are decided.
pub(super) enum Act {
    /// Emits an event to the daemon.
    Emit(Event),
    EmitLedger(Box<ledger::Event>),
    /// A task has succeeded, so it no longer fails.
    Succeeded(Task),
    /// A task has failed for this reason and will be retried.
    Failed(Task, String),
    /// Forgets all failures.
    ForgetFailures,
    /// Replaces the damaged paths that the source has found.
    Found(Source, Vec<Damage>),
    /// Adds a damaged path.
    Damaged(Source, Damage),
    /// A path is no longer damaged.
    Mended(Source, String),
    /// A term begins.
    StartTerm,
    /// The position in the queue is given up.
    LeaveQueue {
        /// The path of the candidate that must be removed. Nothing that it guards is sent until it is.
        held: Option<String>,
    },
    /// A term is over, and with it the watches on runs: the engine watches its own runs again when it is notified.
    StopWatching,
    /// Reports that a term is over, if one is, after the answers to its last commits.
    ReportTermOver,
    /// The candidate is removed, so what it guarded gets its answers.
    ReleaseCommits,
    /// Other nodes may have written ends, or the service may have lost some.
    ReadLastsAgain,
    /// The service has shown that it has lost commits.
    NoteLoss,
    /// The connection is back, perhaps to servers that have lost something: reads and releases again.
    Resume,
    /// A survey was done: retries what the servers refused before.
    RetryRefused,
    /// The living members as just read, and those that cannot be read.
    Members(Vec<Member>, Vec<Damage>),
    /// The nodes that the cluster knows.
    Roster(Roster),
    /// Checks soon whether paths are open to others.
    CheckAccess,
    /// Sets the access lists soon.
    UpdateAccess,
    /// Warns if what this node creates is open to everybody.
    WarnIfOpen,
    /// Restarting the sequence numbers of the triggers is done, or there still is a trigger.
    Renumbered(bool),
    /// The servers do not let this node restart the sequence numbers of the triggers.
    RenumberRefused,
    /// The node's own entries are removed.
    Leave,
}
