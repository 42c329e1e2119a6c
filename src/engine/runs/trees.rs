//! The process trees of own runs: which run each belongs to, and what is due about them at which instant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::active_run::Process;
use super::admission::Admission;
use super::overdue::OverdueKills;
use crate::clock::Uptime;
use crate::process::{Deadline, TreeId};
use crate::run::RunId;

/// How long an attempt lasts before its record is watched for requests to end it: a short one is not worth the read.
const WATCH_AFTER: Duration = Duration::from_secs(1);

/// The trees of own runs.
#[derive(Debug, Default)]
pub(super) struct Trees {
    by_id: BTreeMap<TreeId, RunId>,
    /// When attempts have taken their `timeout`.
    timeouts: BTreeSet<(Uptime, TreeId)>,
    /// When attempts are watched for requests to end them.
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

    /// The warden is asked to start this tree.
    pub fn ordered(&mut self, run: &RunId, process: &Process, deadline: Deadline) {
        self.by_id.insert(process.tree_id, run.clone());
        self.timeouts.extend(process.timeout_at.map(|at| (at, process.tree_id)));
        self.overdue.watch(process.tree_id, deadline);
    }

    /// The warden has started it, so its `timeout` counts from now on.
    pub fn started(&mut self, tree_id: TreeId, at: Uptime, old_timeout: Option<Uptime>, timeout_at: Option<Uptime>) {
        // A timeout that has passed was acted on.
        if old_timeout.is_some_and(|before| self.timeouts.remove(&(before, tree_id))) {
            self.timeouts.extend(timeout_at.map(|at| (at, tree_id)));
        }
        self.watches.insert((at + WATCH_AFTER, tree_id));
    }

    /// The tree is dead, or was never started. Which run it belonged to; absent: a hook.
    pub fn ended(&mut self, tree_id: TreeId) -> Option<RunId> {
        self.overdue.forget(tree_id);
        self.by_id.remove(&tree_id)
    }

    /// Nothing is due any more about a process that has ended.
    pub fn forget_times(&mut self, process: &Process) {
        process.timeout_at.map(|at| self.timeouts.remove(&(at, process.tree_id)));
        process.started.map(|at| self.watches.remove(&(at + WATCH_AFTER, process.tree_id)));
    }

    /// The next run whose attempt has taken its `timeout`.
    pub fn pop_timeout(&mut self, now: Uptime) -> Option<RunId> {
        let tree_id = pop_due(&mut self.timeouts, now)?;
        self.by_id.get(&tree_id).cloned()
    }

    /// The next run whose attempt has lasted long enough to be watched.
    pub fn pop_watch(&mut self, now: Uptime) -> Option<RunId> {
        let tree_id = pop_due(&mut self.watches, now)?;
        self.by_id.get(&tree_id).cloned()
    }

    /// The trees that are not watched yet.
    pub fn unwatched(&self) -> BTreeSet<TreeId> {
        self.watches.iter().map(|&(_, tree_id)| tree_id).collect()
    }

    /// When something is due next.
    pub fn next_at(&self) -> Option<Uptime> {
        let timers = [self.timeouts.first(), self.watches.first()].into_iter().flatten();
        timers.map(|&(at, _)| at).chain(self.overdue.next_at()).min()
    }
}

fn pop_due(timers: &mut BTreeSet<(Uptime, TreeId)>, now: Uptime) -> Option<TreeId> {
    timers.first().filter(|&&(at, _)| at <= now)?;
    timers.pop_first().map(|(_, tree_id)| tree_id)
}
