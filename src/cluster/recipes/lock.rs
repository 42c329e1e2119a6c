//! Locks, on ZooKeeper in one queue with the clients of Curator and kazoo.
//!
//! ```text
//!  session ┬ contender ┬ attempt   mutexes and read-write locks, on any number of paths
//!          │           ├ permits   semaphores
//!          │           ├ local     hand-offs between contenders of one session
//!          │           └ obstacles persistent entries in the way
//!          └ upkeep      renews the lease
//!  entry_watches         notice lost entries and requests to release
//! ```
//!
//! An entry is appended, and ends with its session. Each client waits for one other entry, and each release wakes one client. All
//! entries of a client on several paths are created in one transaction. So of two clients, the same one is first on
//! every path that both want, and no circle of clients can wait for each other: the order of transactions is total.
//!
//! A client is safe to act while its lease holds, as a node is: see [`lease`](cronkeeper_core::lease).

mod attempt;
pub mod barrier;
mod contender;
mod entries;
mod entry_watches;
pub mod latch;
pub mod listing;
mod local;
mod obstacles;
mod permits;
mod queue;
mod session;
mod size;
#[cfg(test)]
mod tests;
mod upkeep;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::context::{SessionError, json};
use crate::tree::Session;
use cronkeeper_core::lock::{LockKey, LockKind, LockPath};
use cronkeeper_core::term::FencingToken;

pub use contender::Contender;
pub use entries::Recipe;
pub use entry_watches::{EntryNews, EntryWatches};
pub use obstacles::{Known as KnownObstacles, STAYS};
pub use queue::AT_ONCE;
pub use session::LockSession;
pub use upkeep::LockEvent;

/// How long to wait before another attempt if a request failed although the session is connected.
const PAUSE: Duration = Duration::from_millis(100);
/// A waiting client reads the queue again after this time even if its watch has not fired.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// The data by which Curator's `Revoker` asks a holder to release its lock.
pub const REVOKE: &[u8] = b"__REVOKE__";

/// What a client wants to hold.
#[derive(Clone, Debug)]
pub struct LockRequest {
    /// Without duplicates. All or none are held.
    pub paths: Vec<LockPath>,
    pub kind: LockKind,
    pub recipe: Recipe,
    /// In the names of all its entries: [`LockKey::uuid`]. No other session has it, because entries are found by it.
    pub uuid: Uuid,
    /// The data of its entries: who it is.
    pub data: Vec<u8>,
    /// False: fail if any of the paths is not free now.
    pub waits: bool,
}

/// The data of an entry: who made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockClient {
    pub host: String,
    pub pid: u32,
    pub user: String,
    /// The name of the command's program, without its arguments, which may be secret.
    pub program: String,
    /// When the holder noticed a request to release, in milliseconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at_ms: Option<i64>,
}

/// The data of a client's entries.
pub fn data(client: &LockClient) -> Vec<u8> {
    json(client)
}

/// A lock that is held at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    pub path: LockPath,
    /// The paths of the client's entries: several permits have several.
    pub entries: Vec<String>,
    /// The transaction that created the first entry. Every later holder of the path has a larger one.
    pub token: FencingToken,
}

/// Why a lock is not held.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another client holds it, and the request does not wait.
    #[error("`{path}` is held by another client")]
    Busy { path: LockPath },
    /// The users of a semaphore name different numbers of permits.
    #[error("the semaphore `{path}` has {permits} permits, according to its data")]
    OtherPermits { path: LockPath, permits: u32 },
    /// The client's entry was deleted by somebody else.
    #[error("somebody deleted `{entry}`")]
    EntryGone { entry: String },
    /// The servers close the connection over the request.
    #[error(
        "the request for {entries} entries has {bytes} bytes, and the servers close the connection over it: they take \
         `jute.maxbuffer` bytes at once, by default 1048575"
    )]
    TooLarge { entries: usize, bytes: usize },
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl LockError {
    /// True if the same request may succeed under the same session once the connection is back.
    fn is_passing(&self) -> bool {
        matches!(self, Self::Session(SessionError::Again(_)) | Self::EntryGone { .. })
    }
}

/// The lock at `path` that a holder of one of these keys has: its kind and token. `None` if none of them holds it now.
///
/// # Errors
/// If the queue cannot be read.
pub async fn held_by_key<C: Session>(
    client: &C,
    path: &LockPath,
    keys: &[LockKey],
) -> Result<Option<(LockKind, FencingToken)>, LockError> {
    let ordered = queue::ordered(client, path.as_str()).await?;
    for uuid in keys.iter().map(LockKey::uuid) {
        let Some(own) = ordered.iter().find(|name| entries::is_of(name, uuid)) else { continue };
        let kind = if entries::is_shared(own) { LockKind::Shared } else { LockKind::Exclusive };
        if entries::turn(&ordered, own) != entries::Turn::Held {
            continue;
        }
        if let Some(stat) = queue::stat(client, &path.child(own)).await? {
            return Ok(Some((kind, stat.created.token())));
        }
    }
    Ok(None)
}
