//! A leader's agenda of unowned and cut-off runs: due instants and pending changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::Uptime;
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
    /// The same for runs that are placed: they need no room here.
    pub changed_placed: Changed,
    pub quiet: Quiet,
    /// Runs whose owners were found to be gone meanwhile.
    pub gone: BTreeSet<RunId>,
    /// The nodes that are alive, as last read.
    pub members: BTreeSet<NodeName>,
}

/// While nothing is begun again, skipped or settled: the service may have lost something, and the nodes write what they
/// have. Their time begins once the leader has read what is in flight: a service that does not answer the leader may not
/// answer them either.
///
/// ```text
///   over ─ the connection is back ─► looking ─ what is in flight has been read ─► until ─ that time has come ─► over
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Quiet {
    #[default]
    Over,
    Looking,
    Until(Uptime),
}

impl Quiet {
    /// When it is over, once that is known.
    pub fn ends_at(self) -> Option<Uptime> {
        if let Self::Until(at) = self { Some(at) } else { None }
    }
}

impl Agenda {
    pub fn is_quiet(&self) -> bool {
        self.quiet != Quiet::Over
    }

    /// The next run that is begun again, and when; `None` while it is quiet.
    pub fn next_retry(&self) -> Option<&(Timestamp, RunId)> {
        self.retries.first().filter(|_| !self.is_quiet())
    }

    /// The next cut-off run that is given up, and when; `None` while it is quiet.
    pub fn next_keep(&self) -> Option<&(Timestamp, RunId)> {
        self.keeps.first().filter(|_| !self.is_quiet())
    }

    /// True if the node is alive, as far as was read.
    pub fn is_alive(&self, node: &NodeName) -> bool {
        self.members.contains(node)
    }
}

/// When something is to be done about runs: each at one time, whatever was set before.
#[derive(Debug, Default)]
pub(super) struct Times {
    by_time: BTreeSet<(Uptime, RunId)>,
    by_run: BTreeMap<RunId, Uptime>,
}

impl Times {
    pub fn set(&mut self, run: &RunId, at: Uptime) {
        if let Some(before) = self.by_run.insert(run.clone(), at) {
            self.by_time.remove(&(before, run.clone()));
        }
        self.by_time.insert((at, run.clone()));
    }

    pub fn first(&self) -> Option<&(Uptime, RunId)> {
        self.by_time.first()
    }

    pub fn pop_due(&mut self, now: Uptime) -> Option<RunId> {
        let run = pop_due(&mut self.by_time, now)?;
        self.by_run.remove(&run);
        Some(run)
    }
}

/// Changes that queued runs may have waited for.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// Any run may have waited for the change.
    pub all: bool,
    /// Jobs with a run that ended or started to wait.
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
