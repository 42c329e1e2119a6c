//! What a leader has to do about runs that no node has: when, and for which something has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use crate::job::JobName;
use crate::run::RunId;

/// A leader's agenda of unowned and cut-off runs.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    /// When cut-off runs are given up.
    pub keeps: BTreeSet<(Timestamp, RunId)>,
    /// When unowned runs are begun again.
    pub retries: BTreeSet<(Timestamp, RunId)>,
    pub changed: Changed,
}

/// What changed that queued runs may have waited for.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Everything.
    pub all: bool,
    /// A run of these jobs ended, or one of them came to wait.
    pub jobs: BTreeSet<JobName>,
    /// A place in these groups may be free.
    pub groups: BTreeSet<Arc<str>>,
}

impl Changed {
    pub fn is_none(&self) -> bool {
        !self.all && self.jobs.is_empty() && self.groups.is_empty()
    }
}

/// Takes the first entry if its instant has come.
pub(super) fn pop_due<T: Ord>(queue: &mut BTreeSet<(Timestamp, T)>, now: Timestamp) -> Option<T> {
    queue.first().filter(|(at, _)| *at <= now)?;
    queue.pop_first().map(|(_, item)| item)
}
