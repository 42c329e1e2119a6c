//! The process trees of own runs, with their timeouts, watches and deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::active_run::Process;
use super::admission::Admission;
use super::agenda::pop_due;
use super::overdue::OverdueKills;
use crate::clock::Uptime;
use crate::process::{Deadline, TreeId};
use crate::run::RunId;

/// An attempt's record is watched for kill requests only after this time: shorter attempts are not worth the read.
const WATCH_AFTER: Duration = Duration::from_secs(1);

/// The process trees of own runs.
#[derive(Debug, Default)]
pub(super) struct Trees {
    by_id: BTreeMap<TreeId, RunId>,
    /// When attempts time out.
    timeouts: BTreeSet<(Uptime, TreeId)>,
    /// Trees that are held until their time, or will be once the warden has prepared them.
    held: BTreeSet<TreeId>,
    /// When the records of attempts must be watched for kill requests.
    watches: BTreeSet<(Uptime, TreeId)>,
    pub overdue: OverdueKills,
    pub admission: Admission,
}

impl Trees {
    /// Takes the negotiated timeout of a new session.
    pub fn under(&mut self, session_timeout: Duration) {
        self.overdue.under(session_timeout);
        self.admission.under(session_timeout);
    }

    /// The run that a tree belongs to.
    pub fn run(&self, tree_id: TreeId) -> Option<&RunId> {
        self.by_id.get(&tree_id)
    }

    /// Adds a tree that the warden is ordered to start.
    pub fn ordered(&mut self, run: &RunId, process: &Process, deadline: Deadline) {
        if let Some(at) = process.not_before {
            self.held.insert(process.tree_id);
            // Its user may have stopped it, so that it never begins.
            self.watches.insert((at + WATCH_AFTER, process.tree_id));
        }
        self.by_id.insert(process.tree_id, run.clone());
        self.timeouts.extend(process.timeout_at.map(|at| (at, process.tree_id)));
        self.overdue.watch(process.tree_id, deadline);
    }

    /// Records a start; the `timeout` counts from it.
    pub fn started(&mut self, process: &Process, at: Uptime, old_timeout: Option<Uptime>) {
        let (tree_id, timeout_at) = (process.tree_id, process.timeout_at);
        // If the old timeout has passed, the stop was ordered already.
        if old_timeout.is_some_and(|before| self.timeouts.remove(&(before, tree_id))) {
            self.timeouts.extend(timeout_at.map(|at| (at, tree_id)));
        }
        process.not_before.map(|at| self.watches.remove(&(at + WATCH_AFTER, tree_id)));
        self.watches.insert((at + WATCH_AFTER, tree_id));
        self.held.remove(&tree_id);
    }

    /// The trees whose time is to come, with their runs.
    pub fn held(&self) -> impl Iterator<Item = (TreeId, &RunId)> {
        self.held.iter().filter_map(|tree_id| Some((*tree_id, self.by_id.get(tree_id)?)))
    }

    /// Removes a tree that is dead or was never started. Returns its run; `None` for a hook's.
    pub fn ended(&mut self, tree_id: TreeId) -> Option<RunId> {
        self.overdue.forget(tree_id);
        self.held.remove(&tree_id);
        self.by_id.remove(&tree_id)
    }

    /// Removes the timers of a process that has ended.
    pub fn forget_times(&mut self, process: &Process) {
        process.timeout_at.map(|at| self.timeouts.remove(&(at, process.tree_id)));
        for at in process.started.into_iter().chain(process.not_before) {
            self.watches.remove(&(at + WATCH_AFTER, process.tree_id));
        }
    }

    /// Takes the next run whose attempt has timed out.
    pub fn pop_timeout(&mut self, now: Uptime) -> Option<RunId> {
        std::iter::from_fn(|| pop_due(&mut self.timeouts, now)).find_map(|tree_id| self.by_id.get(&tree_id).cloned())
    }

    /// Takes the next run whose attempt has lasted long enough to be watched.
    pub fn pop_watch(&mut self, now: Uptime) -> Option<RunId> {
        std::iter::from_fn(|| pop_due(&mut self.watches, now)).find_map(|tree_id| self.by_id.get(&tree_id).cloned())
    }

    /// The trees whose records are not watched yet.
    pub fn unwatched(&self) -> BTreeSet<TreeId> {
        self.watches.iter().map(|&(_, tree_id)| tree_id).collect()
    }

    /// When the next timer is due.
    pub fn next_at(&self) -> Option<Uptime> {
        let timers = [self.timeouts.first(), self.watches.first()].into_iter().flatten();
        timers.map(|&(at, _)| at).chain(self.overdue.next_at()).min()
    }
}
