//! The runs in flight, with an index for counts over all of them.
//!
//! The index answers how many runs are this node's, how full a group is, and which runs wait, each by one lookup,
//! however many runs there are. A run that is borrowed for changes is counted by its state at the time of the query.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::active_run::{ActiveRun, Phase, Process};
use super::places::Load;
use crate::job::{JobName, JobSet};
use crate::ledger::CommitId;
use crate::run::{RunId, TriggerSeq};
use crate::term::NodeName;

/// A run's position among the waiting ones: the oldest occurrence first.
pub(in crate::engine) type WaitingPosition = (Timestamp, RunId);

/// All runs in flight that this node knows of.
#[derive(Debug, Default)]
pub(in crate::engine) struct ActiveRuns {
    by_run: BTreeMap<RunId, ActiveRun>,
    index: Index,
    /// The run that is borrowed for changes, and so is not in the index.
    borrowed: Option<RunId>,
    of_jobs: OfJobs,
}

/// Properties of jobs that decide how their runs are counted.
#[derive(Debug, Default)]
struct OfJobs {
    /// The `concurrency_group` of each job that has one.
    groups: BTreeMap<JobName, Arc<str>>,
    /// Jobs about which the service refuses a write, with the newest such write. Beginning runs of these jobs do not
    /// count as starting.
    refused: BTreeMap<JobName, CommitId>,
}

#[derive(Debug, Default)]
struct Index {
    own: usize,
    trees: usize,
    starting: usize,
    held: usize,
    in_group: BTreeMap<Arc<str>, usize>,
    waiting: BTreeMap<Arc<str>, BTreeSet<WaitingPosition>>,
    /// The waiting runs of each job.
    waiting_of: BTreeMap<JobName, BTreeSet<RunId>>,
    /// How many runs each trigger has.
    triggers: BTreeMap<Uuid, BTreeMap<TriggerSeq, usize>>,
    /// What other nodes have of what was placed.
    loads: BTreeMap<NodeName, Load>,
    offered: usize,
    open_here: usize,
}

/// The counts that a run contributes to.
#[derive(Debug, Default)]
struct Facts {
    is_own: bool,
    has_tree: bool,
    is_starting: bool,
    is_held: bool,
    /// The group in which it occupies a position.
    in_group: Option<Arc<str>>,
    /// The group in which it waits for a position.
    waiting: Option<(Arc<str>, WaitingPosition)>,
    /// The run, if it waits.
    waits: Option<RunId>,
    trigger: Option<(Uuid, TriggerSeq)>,
    /// The other node on which it is placed, and whether that has not accepted it.
    placed: Option<(NodeName, bool)>,
    is_offered: bool,
    /// It is placed on this node, and not known to be accepted.
    is_open_here: bool,
}

impl Facts {
    fn of(run: &RunId, active: &ActiveRun, of_jobs: &OfJobs) -> Self {
        let is_beginning = matches!(active.phase(), Some(Phase::Beginning | Phase::Accepting(_)));
        let is_open = active.is_placed();
        let is_elsewhere = active.record.placement.is_some() && (is_open || active.is_remote());
        let is_refused = is_beginning && of_jobs.refused.contains_key(run.job());
        let group = of_jobs.groups.get(run.job()).filter(|_| !is_refused).cloned();
        let (in_group, waiting) = if active.is_queued() { (None, group) } else { (group, None) };
        // What is to be shared out takes no position: its shares do.
        let waiting = waiting
            .filter(|_| active.is_waiting() && !active.is_to_share())
            .map(|group| (group, (run.scheduled_at(), run.clone())));
        let process = active.process();
        Self {
            is_own: active.is_local(),
            has_tree: process.is_some(),
            is_starting: (is_beginning && !is_refused) || process.is_some_and(Process::is_starting),
            is_held: process.is_some_and(Process::is_waiting),
            in_group,
            waiting,
            waits: active.is_waiting().then(|| run.clone()),
            trigger: active.record.trigger.as_ref().map(|trigger| (trigger.uuid, trigger.seq)),
            placed: is_elsewhere.then(|| (active.record.owner.node.clone(), is_open)),
            is_offered: active.is_offered(),
            is_open_here: active.offer().is_some(),
        }
    }
}

impl Index {
    fn add(&mut self, facts: Facts) {
        self.own += usize::from(facts.is_own);
        self.trees += usize::from(facts.has_tree);
        self.starting += usize::from(facts.is_starting);
        self.held += usize::from(facts.is_held);
        self.offered += usize::from(facts.is_offered);
        self.open_here += usize::from(facts.is_open_here);
        if let Some((node, is_open)) = facts.placed {
            let load = self.loads.entry(node).or_default();
            load.runs += 1;
            load.open += usize::from(is_open);
        }
        if let Some(group) = facts.in_group {
            *self.in_group.entry(group).or_default() += 1;
        }
        if let Some((group, position)) = facts.waiting {
            self.waiting.entry(group).or_default().insert(position);
        }
        if let Some(run) = facts.waits {
            self.waiting_of.entry(run.job().clone()).or_default().insert(run);
        }
        if let Some((uuid, seq)) = facts.trigger {
            *self.triggers.entry(uuid).or_default().entry(seq).or_default() += 1;
        }
    }

    fn remove(&mut self, facts: &Facts) {
        self.own -= usize::from(facts.is_own);
        self.trees -= usize::from(facts.has_tree);
        self.starting -= usize::from(facts.is_starting);
        self.held -= usize::from(facts.is_held);
        self.offered -= usize::from(facts.is_offered);
        self.open_here -= usize::from(facts.is_open_here);
        if let Some((node, is_open)) = &facts.placed
            && let Some(load) = self.loads.get_mut(node)
        {
            load.runs -= 1;
            load.open -= usize::from(*is_open);
            if load.runs == 0 {
                self.loads.remove(node);
            }
        }
        if let Some(group) = &facts.in_group
            && let Some(count) = self.in_group.get_mut(group)
        {
            *count -= 1;
            if *count == 0 {
                self.in_group.remove(group);
            }
        }
        if let Some((group, position)) = &facts.waiting
            && let Some(positions) = self.waiting.get_mut(group)
        {
            positions.remove(position);
            if positions.is_empty() {
                self.waiting.remove(group);
            }
        }
        if let Some(run) = &facts.waits
            && let Some(runs) = self.waiting_of.get_mut(run.job())
        {
            runs.remove(run);
            if runs.is_empty() {
                self.waiting_of.remove(run.job());
            }
        }
        if let Some((uuid, seq)) = &facts.trigger
            && let Some(seqs) = self.triggers.get_mut(uuid)
        {
            if let Some(count) = seqs.get_mut(seq) {
                *count -= 1;
            }
            seqs.retain(|_, count| *count > 0);
            if seqs.is_empty() {
                self.triggers.remove(uuid);
            }
        }
    }
}

impl ActiveRuns {
    /// Takes the jobs' groups from a new set of jobs.
    pub fn define(&mut self, jobs: &JobSet) {
        let group = |job: &crate::job::Job| job.concurrency_group.as_ref().map(|group| Arc::from(group.name.as_str()));
        self.of_jobs.groups = jobs.jobs.iter().filter_map(|(name, job)| Some((name.clone(), group(job)?))).collect();
        self.count_all();
    }

    /// True while the service refuses a write about this job.
    pub fn is_refused(&self, job: &JobName) -> bool {
        self.of_jobs.refused.contains_key(job)
    }

    /// Records a write about the job that the service refuses, so that beginning runs of the job occupy no positions.
    /// Returns false if a write about the job was refused already.
    pub fn refuse(&mut self, job: &JobName, id: CommitId) -> bool {
        if let Some(newest) = self.of_jobs.refused.get_mut(job) {
            *newest = id;
            return false;
        }
        self.count_anew(job, |refused| {
            refused.insert(job.clone(), id);
        });
        true
    }

    /// Records an answered write. Returns true if it was the refused one.
    pub fn answer(&mut self, job: &JobName, id: CommitId) -> bool {
        let was_refused = self.of_jobs.refused.get(job) == Some(&id);
        if was_refused {
            self.count_anew(job, |refused| {
                refused.remove(job);
            });
        }
        was_refused
    }

    /// Changes which jobs are refused, and counts this job's runs again.
    fn count_anew(&mut self, job: &JobName, change: impl FnOnce(&mut BTreeMap<JobName, CommitId>)) {
        self.take_back();
        for (run, active) in self.by_run.range(RunId::all_of(job)) {
            self.index.remove(&Facts::of(run, active, &self.of_jobs));
        }
        change(&mut self.of_jobs.refused);
        for (run, active) in self.by_run.range(RunId::all_of(job)) {
            self.index.add(Facts::of(run, active, &self.of_jobs));
        }
    }

    fn count_all(&mut self) {
        self.borrowed = None;
        self.index = Index::default();
        for (run, active) in &self.by_run {
            self.index.add(Facts::of(run, active, &self.of_jobs));
        }
    }

    /// Puts the borrowed run back into the index, as it is now.
    fn take_back(&mut self) {
        let Some(run) = self.borrowed.take() else { return };
        if let Some(active) = self.by_run.get(&run) {
            self.index.add(Facts::of(&run, active, &self.of_jobs));
        }
    }

    /// The counts of the borrowed run.
    fn uncounted(&self) -> Option<Facts> {
        let run = self.borrowed.as_ref()?;
        Some(Facts::of(run, self.by_run.get(run)?, &self.of_jobs))
    }

    pub fn get(&self, run: &RunId) -> Option<&ActiveRun> {
        self.by_run.get(run)
    }

    pub fn get_mut(&mut self, run: &RunId) -> Option<&mut ActiveRun> {
        self.take_back();
        let active = self.by_run.get_mut(run)?;
        self.index.remove(&Facts::of(run, active, &self.of_jobs));
        self.borrowed = Some(run.clone());
        Some(active)
    }

    pub fn contains_key(&self, run: &RunId) -> bool {
        self.by_run.contains_key(run)
    }

    pub fn insert(&mut self, run: RunId, active: ActiveRun) {
        self.remove(&run);
        self.index.add(Facts::of(&run, &active, &self.of_jobs));
        self.by_run.insert(run, active);
    }

    pub fn remove(&mut self, run: &RunId) -> Option<ActiveRun> {
        self.take_back();
        let active = self.by_run.remove(run)?;
        self.index.remove(&Facts::of(run, &active, &self.of_jobs));
        Some(active)
    }

    /// Keeps the runs for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&ActiveRun) -> bool) {
        self.by_run.retain(|_, active| keep(active));
        self.count_all();
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RunId, &ActiveRun)> {
        self.by_run.iter()
    }

    pub fn values(&self) -> impl Iterator<Item = &ActiveRun> {
        self.by_run.values()
    }

    /// The runs of one job, by their occurrences.
    pub fn of_job(&self, job: &JobName) -> impl Iterator<Item = (&RunId, &ActiveRun)> {
        self.by_run.range(RunId::all_of(job))
    }

    /// Number of runs that this node has.
    pub fn own(&self) -> usize {
        self.index.own + usize::from(self.uncounted().is_some_and(|facts| facts.is_own))
    }

    /// Number of runs that have a process here, or are about to.
    pub fn trees(&self) -> usize {
        self.index.trees + usize::from(self.uncounted().is_some_and(|facts| facts.has_tree))
    }

    /// Number of this node's runs that are begun or being begun, and not known to have started.
    pub fn starting(&self) -> usize {
        self.index.starting + usize::from(self.uncounted().is_some_and(|facts| facts.is_starting))
    }

    /// Number of this node's runs whose processes are held until their time.
    pub fn held(&self) -> usize {
        self.index.held + usize::from(self.uncounted().is_some_and(|facts| facts.is_held))
    }

    /// Number of attempts that were placed on this node, and that it has not answered.
    pub fn offered(&self) -> usize {
        self.index.offered + usize::from(self.uncounted().is_some_and(|facts| facts.is_offered))
    }

    /// What this node has, `own`, or another one, as far as is known here.
    pub fn load_of(&self, node: &NodeName, own: &NodeName) -> Load {
        let mut load = self.index.loads.get(node).copied().unwrap_or_default();
        if let Some((_, is_open)) = self.uncounted().and_then(|facts| facts.placed).filter(|(other, _)| other == node) {
            load.runs += 1;
            load.open += usize::from(is_open);
        }
        if node == own {
            load.runs += self.own();
            load.open += self.index.open_here + usize::from(self.uncounted().is_some_and(|facts| facts.is_open_here));
        }
        load
    }

    /// Number of runs that occupy a position in a group.
    pub fn in_group(&self, group: &str) -> usize {
        let is_of = |facts: Facts| facts.in_group.as_deref() == Some(group);
        self.index.in_group.get(group).copied().unwrap_or_default() + usize::from(self.uncounted().is_some_and(is_of))
    }

    /// The job's `concurrency_group`.
    pub fn group_of(&self, job: &JobName) -> Option<&Arc<str>> {
        self.of_jobs.groups.get(job)
    }

    /// The runs of the job that wait, by their occurrences.
    pub fn waiting_of(&mut self, job: &JobName) -> impl Iterator<Item = &RunId> + use<'_> {
        self.take_back();
        self.index.waiting_of.get(job).into_iter().flatten()
    }

    /// The next run that waits for a position in a group, after `after`.
    pub fn next_waiting(&mut self, group: &str, after: Option<&WaitingPosition>) -> Option<WaitingPosition> {
        self.take_back();
        let positions = self.index.waiting.get(group)?;
        match after {
            Some(after) => positions.range((Bound::Excluded(after), Bound::Unbounded)).next().cloned(),
            None => positions.first().cloned(),
        }
    }

    /// True if a run of another trigger with this uuid is in flight.
    pub fn has_trigger(&self, uuid: Uuid, seq: TriggerSeq) -> bool {
        let is_other = |facts: Facts| facts.trigger.is_some_and(|(same, other)| same == uuid && other != seq);
        self.index.triggers.get(&uuid).is_some_and(|seqs| seqs.keys().any(|&other| other != seq))
            || self.uncounted().is_some_and(is_other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Uptime;
    use crate::engine::runs::active_run::{ActiveRunState, Offer};
    use crate::engine::tests::fixture::{at, job, set};
    use crate::job::Group;
    use crate::ledger::OwnerState;
    use crate::process::TreeId;
    use crate::run::{Placement, RunState, Version};

    fn jobs() -> JobSet {
        let grouped = |name: &str, group: &str| {
            let group = Group { name: group.into(), limit: 2 };
            crate::job::Job { concurrency_group: Some(group), ..job(name, "* * * * * *") }
        };
        set([grouped("a", "x"), grouped("b", "x"), grouped("c", "y"), job("d", "* * * * * *")])
    }

    /// A run of one of four jobs at one of four seconds.
    fn active(number: usize) -> (RunId, ActiveRun) {
        let name = ["a", "b", "c", "d"][number % 4];
        let second = at(&format!("10:00:0{}", number / 4 % 4));
        let found = crate::engine::tests::fixture::running(&job(name, "* * * * * *"), second, OwnerState::Alive);
        (found.record.id(), ActiveRun::new(found.record, Version::FIRST, ActiveRunState::Remote))
    }

    fn change(active: &mut ActiveRun, how: u8) {
        let (mut record, mut commit) = (active.record.clone(), active.commit);
        let state = match how {
            0 => ActiveRunState::recovered(Phase::Beginning),
            1 | 2 | 10 => {
                let mut process = Process::new(TreeId(1), Uptime::ZERO, None);
                process.started = (how == 2).then_some(Uptime::ZERO);
                process.is_held = how == 10;
                ActiveRunState::recovered(Phase::Alive(process))
            }
            3 => {
                (record.state, commit) = (RunState::Queued, None);
                ActiveRunState::Unowned
            }
            4 => {
                commit = Some(CommitId(7));
                active.state().clone()
            }
            11..=13 => {
                record.placement = Some(Box::new(Placement::new(crate::job::Digest::default())));
                match how {
                    11 => ActiveRunState::Placed,
                    12 => ActiveRunState::Remote,
                    _ => ActiveRunState::recovered(Phase::Accepting(Offer::new(Uptime::ZERO, Uptime::ZERO))),
                }
            }
            _ => {
                record.state = RunState::Running;
                ActiveRunState::Remote
            }
        };
        *active = ActiveRun::new(record, Version::FIRST, state);
        active.commit = commit;
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn what_is_counted_is_what_a_look_at_all_would_count(
            steps in prop::collection::vec((0usize..16, 0u8..14), 1..80),
        ) {
            let mut runs = ActiveRuns::default();
            runs.define(&jobs());
            for (number, how) in steps {
                let (run, active) = active(number);
                match how {
                    6 => runs.insert(run, active),
                    7 => drop(runs.remove(&run)),
                    8 => { runs.refuse(run.job(), CommitId(7)); }
                    9 => { runs.answer(run.job(), CommitId(7)); }
                    how => if let Some(active) = runs.get_mut(&run) { change(active, how) },
                }
                let count = |of: &dyn Fn(&ActiveRun) -> bool| runs.values().filter(|&active| of(active)).count();
                prop_assert_eq!(runs.own(), count(&|active| active.is_local()));
                prop_assert_eq!(runs.trees(), count(&|active| active.process().is_some()));
                let is_refused = |active: &ActiveRun| {
                    let is_beginning = matches!(active.phase(), Some(Phase::Beginning | Phase::Accepting(_)));
                    is_beginning && runs.is_refused(&active.record.job)
                };
                let in_x = count(&|active| {
                    !active.is_queued() && !is_refused(active) && ["a", "b"].contains(&active.record.job.as_str())
                });
                let is_starting = |active: &ActiveRun| match active.phase() {
                    Some(Phase::Beginning | Phase::Accepting(_)) => !is_refused(active),
                    Some(Phase::Alive(process)) => process.started.is_none() && !process.is_held,
                    _ => false,
                };
                let is_held = |active: &ActiveRun| active.process().is_some_and(|process| process.is_held);
                prop_assert_eq!(runs.held(), count(&is_held));
                prop_assert_eq!(runs.starting(), count(&is_starting));
                prop_assert_eq!(runs.in_group("x"), in_x);
                let is_open = ActiveRun::is_placed;
                let has = |active: &ActiveRun| active.record.placement.is_some() && (is_open(active) || active.is_remote());
                let load = Load { runs: count(&has), open: count(&|active| has(active) && is_open(active)) };
                prop_assert_eq!(runs.load_of(&NodeName::new("host-b"), &NodeName::new("host-a")), load);
                let expected: Vec<WaitingPosition> = {
                    let waiting = runs.iter().filter(|(run, active)| active.is_waiting() && run.job().as_str() < "c");
                    let mut positions: Vec<WaitingPosition> = waiting.map(|(run, _)| (run.scheduled_at(), run.clone())).collect();
                    positions.sort();
                    positions
                };
                let (mut found, mut last) = (Vec::new(), None);
                while let Some(position) = runs.next_waiting("x", last.as_ref()) {
                    found.push(position.clone());
                    last = Some(position);
                }
                prop_assert_eq!(found, expected);
            }
        }
    }
}
