//! What the backend asks of the state directory.

use std::sync::Arc;

use super::{owner_of, session_id};
use crate::state_dir::{StateDir, StateDirError};

/// Remembers sessions and the cluster beyond the process.
///
/// Its writes are small and on disk when it returns. Called between requests, never while a term's answer is awaited.
pub trait SessionStore: Send {
    /// Says that this state directory is used with `cluster` from now on.
    ///
    /// # Errors
    /// When it belongs to another, or cannot be written.
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError>;

    /// Writes down a session, by the id that the stat of its entries shows, before its first entry is made.
    ///
    /// # Errors
    /// When it cannot be written: then nothing is made.
    fn record(&mut self, owner: i64) -> Result<(), StoreError>;

    /// Forgets every session but this one: the node has come in under it, and whatever others left is not its own to remove
    /// any more. Where it cannot be written, they are remembered, which is no harm. A store that keeps nothing need not do it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn keep_only(&mut self, owner: i64) -> Result<(), StoreError> {
        let _ = owner;
        Ok(())
    }

    /// Sessions of earlier processes whose entries may be removed at once: the directory's lock was free, the boot is this
    /// one, and their processes were seen dead. Empty where any of this is not known.
    fn removable(&self) -> Vec<i64>;
}

/// The state directory cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// Why the state directory cannot be used with a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It belongs to another.
    #[error("it belongs to cluster {ours}")]
    OtherCluster {
        /// To which.
        ours: String,
    },
    /// It cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sessions kept in the state directory.
pub struct KeptSessions(Arc<StateDir>);

impl KeptSessions {
    /// To be made only when the processes of earlier sessions were seen dead.
    pub fn new(state: Arc<StateDir>) -> Self {
        Self(state)
    }
}

impl SessionStore for KeptSessions {
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError> {
        self.0.claim_cluster(cluster).map_err(|error| match error {
            StateDirError::OtherCluster { ours, .. } => ClaimError::OtherCluster { ours },
            other => StoreError(in_words(&other)).into(),
        })
    }

    fn record(&mut self, owner: i64) -> Result<(), StoreError> {
        self.0.record_session(&session_id(owner)).map_err(|error| StoreError(in_words(&error)))
    }

    fn keep_only(&mut self, owner: i64) -> Result<(), StoreError> {
        self.0.keep_session(&session_id(owner)).map_err(|error| StoreError(in_words(&error)))
    }

    fn removable(&self) -> Vec<i64> {
        let earlier = self.0.earlier_sessions();
        if !earlier.boot_id_matches {
            return Vec::new();
        }
        earlier.sessions.iter().filter_map(owner_of).collect()
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
