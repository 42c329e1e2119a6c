//! What the backend asks of the state directory.

use std::sync::Arc;

use super::{owner_of, session_id};
use crate::run::RunEnd;
use crate::run::journal::{Noted, Recovered};
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

    /// The cluster that this state directory is used with, where that is known.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// Writes down a session, by the id that the stat of its entries shows, before its first entry is made.
    ///
    /// # Errors
    /// When it cannot be written: then nothing is made.
    fn record(&mut self, owner: i64) -> Result<(), StoreError>;

    /// Sessions of earlier processes whose entries may be removed at once: the directory's lock was free, the boot is this
    /// one, and their processes were seen dead. Empty where any of this is not known.
    fn removable(&self) -> Vec<i64>;

    /// Forgets sessions whose entries are gone. To remember one longer does no harm, so nothing is said where that fails.
    fn forget(&mut self, _owners: &[i64]) {}

    /// Ends that earlier processes of this node may not have written. Which of them count is for the ledger to say: the directory may
    /// be a copy, and the run alive elsewhere under a session that is none of the [`removable`](Self::removable).
    fn open_ends(&self) -> Vec<RunEnd> {
        Vec::new()
    }

    /// What earlier processes of this node handed to their wardens; absent where that is not known. What is not among it was never
    /// started, as far as it is of a [`removable`](Self::removable) session.
    fn noted(&self) -> Option<Noted> {
        None
    }
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
pub struct KeptSessions {
    state: Arc<StateDir>,
    open_ends: Vec<RunEnd>,
    noted: Option<Noted>,
}

impl KeptSessions {
    /// To be made only when the processes of earlier sessions were seen dead. `recovered` is what they left open.
    pub fn new(state: Arc<StateDir>, recovered: &Recovered) -> Self {
        Self { state, open_ends: recovered.ends(), noted: recovered.noted() }
    }
}

impl SessionStore for KeptSessions {
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError> {
        self.state.claim_cluster(cluster).map_err(|error| match error {
            StateDirError::OtherCluster { ours, .. } => ClaimError::OtherCluster { ours },
            other => StoreError(in_words(&other)).into(),
        })
    }

    fn cluster(&self) -> Option<String> {
        self.state.cluster()
    }

    fn record(&mut self, owner: i64) -> Result<(), StoreError> {
        self.state.record_session(&session_id(owner)).map_err(|error| StoreError(in_words(&error)))
    }

    fn removable(&self) -> Vec<i64> {
        self.state.earlier_sessions().iter().filter_map(owner_of).collect()
    }

    fn forget(&mut self, owners: &[i64]) {
        let ids: Vec<_> = owners.iter().copied().map(session_id).collect();
        if let Err(error) = self.state.forget_sessions(&ids) {
            tracing::debug!(error = in_words(&error), "sessions that are gone stay recorded");
        }
    }

    fn open_ends(&self) -> Vec<RunEnd> {
        self.open_ends.clone()
    }

    fn noted(&self) -> Option<Noted> {
        self.noted.clone()
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
