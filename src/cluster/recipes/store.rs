//! State directory interface: sessions, cluster and run journal, as far as this backend needs them.

use std::sync::Arc;

use crate::state_dir::{StateDir, StateDirError};
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::RunEnd;
use cronkeeper_core::run::journal::{Noted, Recovered};
use cronkeeper_core::term::SessionId;

/// Persists sessions and the cluster beyond the process.
///
/// Writes are small, and on disk when the method returns. The backend calls it between requests, never while a term
/// waits for an answer.
pub trait SessionStore: Send {
    /// Binds this state directory to `cluster`.
    ///
    /// # Errors
    /// If it belongs to another cluster, or cannot be written.
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError>;

    /// The cluster that this state directory belongs to, if it is known.
    fn cluster(&self) -> Option<String> {
        None
    }

    /// Records a session before its first entry is created.
    ///
    /// # Errors
    /// If it cannot be written; the backend then creates nothing.
    fn record(&mut self, session: &SessionId) -> Result<(), StoreError>;

    /// Sessions of earlier processes whose entries may be removed at once.
    ///
    /// Their processes are known to be dead: the directory's lock was free, and they ran on this boot. Empty if any of
    /// this is unknown.
    fn removable(&self) -> Vec<SessionId>;

    /// The last sessions of earlier processes whose entries are gone, unless the servers lose that. The conditions of
    /// [`removable`](Self::removable) apply.
    fn left(&self) -> Vec<SessionId> {
        Vec::new()
    }

    /// Records that the entries of these sessions are gone. Nothing depends on it, so a failure is not reported.
    fn note_left(&mut self, _sessions: &[SessionId]) {}

    /// Ends of runs that earlier processes of this node may not have written to the ledger.
    ///
    /// The ledger decides which of them count: the directory may be a copy, and the run alive on another host under a
    /// session that is not [`removable`](Self::removable).
    fn open_ends(&self) -> Vec<RunEnd> {
        Vec::new()
    }

    /// The runs that earlier processes of this node handed to their wardens; `None` if unknown.
    ///
    /// A run of a [`removable`](Self::removable) session that is not among them was never started.
    fn noted(&self) -> Option<Noted> {
        None
    }
}

/// A failed write to the state directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// Failure to bind the state directory to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("it belongs to cluster {ours}")]
    OtherCluster { ours: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The [`SessionStore`] in the state directory.
pub struct KeptSessions {
    state: Arc<StateDir>,
    open_ends: Vec<RunEnd>,
    noted: Option<Noted>,
}

impl KeptSessions {
    /// `recovered` is what earlier processes left open. The caller must know that those processes are dead.
    pub fn new(state: Arc<StateDir>, recovered: &Recovered) -> Self {
        Self { state, open_ends: recovered.ends(), noted: recovered.noted() }
    }
}

impl SessionStore for KeptSessions {
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError> {
        self.state.claim_cluster(cluster).map_err(|error| match error {
            StateDirError::OtherCluster { ours, .. } => ClaimError::OtherCluster { ours },
            other => StoreError(describe(&other)).into(),
        })
    }

    fn cluster(&self) -> Option<String> {
        self.state.cluster()
    }

    fn record(&mut self, session: &SessionId) -> Result<(), StoreError> {
        self.state.record_session(session).map_err(|error| StoreError(describe(&error)))
    }

    fn removable(&self) -> Vec<SessionId> {
        self.state.earlier_sessions().to_vec()
    }

    fn left(&self) -> Vec<SessionId> {
        self.state.left_sessions().to_vec()
    }

    fn note_left(&mut self, sessions: &[SessionId]) {
        if let Err(error) = self.state.note_left(sessions) {
            tracing::debug!(target: TARGET, error = describe(&error), "cannot record which sessions have no entries any more");
        }
    }

    fn open_ends(&self) -> Vec<RunEnd> {
        self.open_ends.clone()
    }

    fn noted(&self) -> Option<Noted> {
        self.noted.clone()
    }
}

fn describe(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
