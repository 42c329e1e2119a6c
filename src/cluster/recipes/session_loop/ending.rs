//! The end of a session, and its causes.

use std::time::Duration;

use crate::recipes::context::SessionError;
use crate::recipes::node::Options;
use cronkeeper_core::election::Failure;

/// A node that ends waits at most this long for its entries to be removed.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The reason why a session ended.
pub enum SessionEnd {
    /// The session is gone; the node continues under the next.
    Expired,
    /// The daemon is done.
    Done,
    /// The node cannot continue until an operator acts.
    Failed(Failure),
}

impl SessionEnd {
    /// The end that follows from a failed request; `None`: the session continues.
    pub(super) fn of(error: SessionError, options: &Options) -> Option<Self> {
        let (root, service) = (options.root.clone(), options.service.clone());
        match error {
            SessionError::Again(_) | SessionError::NoAuth(_) => None,
            // The server reports it; the client may not know yet.
            SessionError::SessionOver => Some(Self::Expired),
            SessionError::NoRoot => Some(Self::Failed(Failure::NoRoot { root, service })),
            SessionError::RootInCluster { cluster } => {
                Some(Self::Failed(Failure::RootInCluster { root, cluster, service }))
            }
        }
    }

    /// The servers do not accept this node's credentials.
    pub(super) fn refused(detail: String, options: &Options) -> Self {
        Self::Failed(Failure::Refused { service: options.service.clone(), detail })
    }
}
