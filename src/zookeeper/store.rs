//! What the backend asks of the state directory.

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
