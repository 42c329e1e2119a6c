//! What the daemon asks of a backend about the locks of its runs, and the events in return.
//!
//! The backend keeps this order, and the daemon relies on it:
//! - A request is answered by one `Held` or one `Busy`; a request that waits by `Held` only. `Refused` may come before.
//! - `Busy` ends the request. `Lost` comes once for each path that is no longer held, or before `Held` if the backend has
//!   given the request up; the other locks are held until `Release`.
//! - When the daemon's loop is stalled until other nodes settle this node's runs, the backend releases all locks by
//!   itself: what held them is dead by then.
//! - When `Release` arrives, events of the request may be on their way.
//! - The end of the session ends all requests, without events: no lock is held from the session's `Expired` on. A
//!   request that arrives while there is no session gets no answer.

use crate::lock::{LockKey, LockPath};
use crate::run::RunId;
use crate::term::FencingToken;

/// Identifies a request, within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequestId(pub u64);

/// A request from the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Hold these locks, all or none, for a run of this node.
    Acquire {
        id: LockRequestId,
        run: RunId,
        /// Without duplicates; at least one.
        paths: Vec<LockPath>,
        /// Wait until all are free. False: fail if any is not free now.
        waits: bool,
    },
    /// Release the locks, or give the request up.
    Release { id: LockRequestId },
}

/// An event from the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All locks of the request are held.
    Held { id: LockRequestId, grant: LockGrant },
    /// A lock is held by another client, and the request does not wait.
    Busy { id: LockRequestId, path: LockPath },
    /// Somebody else has ended a held lock: this node no longer holds it.
    Lost { id: LockRequestId, path: LockPath },
    /// Somebody asks to release the lock.
    RevokeRequested { id: LockRequestId, path: LockPath },
    /// The service refuses the request; the backend tries again later. Comes once for each request.
    Refused { id: LockRequestId, why: String },
}

/// Locks that are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockGrant {
    /// The secret by which the command of the run is recognized as holding the locks.
    pub key: LockKey,
    /// The paths in the order of the request, each with a number that is larger than that of every earlier holder.
    pub held: Vec<(LockPath, FencingToken)>,
}
