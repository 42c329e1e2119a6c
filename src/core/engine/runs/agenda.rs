//! A leader's agenda of unowned and cut-off runs: due instants and pending changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::job::JobName;
use crate::run::RunId;
use crate::term::NodeName;

/// Due instants of unowned and cut-off runs, and changes that waiting runs must be checked for.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// When cut-off runs are given up.
    pub keeps: BTreeSet<(Timestamp, RunId)>,
    /// When unowned runs are begun again.
    pub retries: BTreeSet<(Timestamp, RunId)>,
    pub changed: Changed,
    /// The nodes that are alive, as last read.
    pub members: BTreeSet<NodeName>,
}

impl Agenda {
    /// True if the node is alive, as far as was read.
    pub fn is_alive(&self, node: &NodeName) -> bool {
        self.members.contains(node)
    }
}

/// Changes that queued runs may have waited for.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Any run may have waited for the change.
    pub all: bool,
    /// Jobs of which a run ended or started to wait.
    pub jobs: BTreeSet<JobName>,
    /// Groups in which a position may be free.
    pub groups: BTreeSet<Arc<str>>,
}

impl Changed {
    pub fn is_none(&self) -> bool {
        !self.all && self.jobs.is_empty() && self.groups.is_empty()
    }
}

/// Takes the first entry if its instant has come, of either clock.
pub(super) fn pop_due<At: Ord, T: Ord>(queue: &mut BTreeSet<(At, T)>, now: At) -> Option<T> {
    queue.first().filter(|(at, _)| *at <= now)?;
    queue.pop_first().map(|(_, item)| item)
}
