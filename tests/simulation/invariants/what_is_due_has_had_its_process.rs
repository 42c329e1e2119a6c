//! Invariant: in peace, due occurrences are decided and begun runs have a process within a bound.
//!
//! At all times, the reason of each skip is true.

use std::collections::BTreeMap;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{JobName, Misfire, Overlap};
use cronkeeper_core::run::{JobRecord, NodeControl, RunId, RunRecord, RunState, Skip, SkipReason};
use jiff::Timestamp;

use super::super::facts::Fact;
use super::super::jobs;
use super::{Invariant, below, ops, skip, written};
use crate::ledger::txn::Txn;

/// The longest time, without faults, until a due occurrence is decided and until a begun run is started.
const SOON: Duration = Duration::from_secs(6);

/// The longest delay until a node that acts on a reason learns of it: longer than any session.
const NEWS: Duration = Duration::from_secs(20);

pub struct WhatIsDueHasHadItsProcess {
    marks: BTreeMap<String, JobRecord>,
    in_flight: BTreeMap<String, RunInFlight>,
    /// When runs ended.
    ended: BTreeMap<String, Uptime>,
    /// The nodes that are drained, and those that were, until when.
    drained: BTreeMap<String, Option<Uptime>>,
    /// The jobs that are paused, and those that were, until when.
    paused: BTreeMap<String, Option<Uptime>>,
    now: Uptime,
    wall: Timestamp,
}

struct RunInFlight {
    since: Uptime,
    state: RunState,
    has_had_a_process: bool,
}

impl WhatIsDueHasHadItsProcess {
    pub fn new() -> Self {
        Self {
            marks: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            ended: BTreeMap::new(),
            drained: BTreeMap::new(),
            paused: BTreeMap::new(),
            now: Uptime::ZERO,
            wall: Timestamp::UNIX_EPOCH,
        }
    }

    fn write(&mut self, txn: &Txn) -> Result<(), String> {
        self.wall = Timestamp::from_millisecond(txn.time_ms).unwrap_or(self.wall);
        let changed = self.changed(txn);
        for op in ops(txn) {
            self.note(op);
        }
        for skip in ops(txn).iter().filter_map(skip) {
            let is_of_change = changed.iter().any(|job| job == skip.job.as_str());
            if skip.trigger.is_none() && !is_of_change {
                self.judge(&skip)?;
            }
        }
        Ok(())
    }

    /// The jobs that this write counts by another schedule than before, so that the occurrences in between are missed.
    fn changed(&mut self, txn: &Txn) -> Vec<String> {
        let records = ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/jobs"));
        let mut changed = Vec::new();
        for (job, data) in records {
            let Ok(record) = serde_json::from_slice::<JobRecord>(data) else { continue };
            let schedule = record.schedule.clone();
            if self.marks.insert(job.to_owned(), record).is_some_and(|before| before.schedule != schedule) {
                changed.push(job.to_owned());
            }
        }
        changed
    }

    fn note(&mut self, op: &Op) {
        if let Some((run, data)) = written(op, "/cronkeeper/running")
            && let Ok(record) = serde_json::from_slice::<RunRecord>(data)
        {
            let new = RunInFlight { since: self.now, state: record.state, has_had_a_process: false };
            let run = self.in_flight.entry(run.to_owned()).or_insert(new);
            // What it has waited for is over.
            if waits(run.state) {
                run.since = self.now;
            }
            run.state = record.state;
        }
        if let Some((node, data)) = written(op, "/cronkeeper/wanted") {
            let is_drained = serde_json::from_slice::<NodeControl>(data).is_ok_and(|control| control.drained.is_some());
            match is_drained {
                true => drop(self.drained.insert(node.to_owned(), None)),
                false => drop(self.drained.get_mut(node).map(|until| until.get_or_insert(self.now))),
            }
        }
        match op {
            Op::Create { path, .. } => {
                if let Some(job) = below(path, "/cronkeeper/control") {
                    self.paused.insert(job.to_owned(), None);
                }
            }
            Op::Delete { path, .. } => {
                if let Some(job) = below(path, "/cronkeeper/control") {
                    self.paused.insert(job.to_owned(), Some(self.now));
                }
                if let Some(run) = below(path, "/cronkeeper/running") {
                    self.in_flight.remove(run);
                    self.ended.insert(run.to_owned(), self.now);
                }
            }
            Op::Check { .. } | Op::Set { .. } => {}
        }
    }

    fn judge(&self, skip: &Skip) -> Result<(), String> {
        let job = skip.job.as_str();
        let is_recent = |at: &Uptime| self.now < *at + NEWS;
        let is_true = match skip.reason {
            SkipReason::Overlap => {
                let skipped = skip.id();
                let is_rival = |run: &str| RunId::parse(run).is_ok_and(|run| jobs::share_a_place(&skipped, &run));
                let ended = self.ended.iter().any(|(run, at)| is_recent(at) && is_rival(run));
                ended || self.in_flight.keys().any(|run| is_rival(run))
            }
            SkipReason::Locked => {
                let shares = |run: &str| run != skip.id().to_string() && job_of(run).starts_with(jobs::LOCKED);
                let ended = self.ended.iter().any(|(run, at)| run.starts_with(jobs::LOCKED) && is_recent(at));
                job.starts_with(jobs::LOCKED) && (self.in_flight.keys().any(|run| shares(run)) || ended)
            }
            SkipReason::Paused => self.paused.get(job).is_some_and(|until| until.as_ref().is_none_or(is_recent)),
            SkipReason::Missed if has_occurrences(&skip.job) && !jobs::is_in_doubt(&skip.job) => {
                jobs::may_be_missed(&skip.job, false, skip.last, skip.decided_at)
            }
            SkipReason::NotDefined | SkipReason::Parameters => skip.trigger.is_some(),
            // Follows from the ends of other runs: see `chains_go_on`.
            SkipReason::Missed | SkipReason::Upstream => true,
            // When that is true of a share: see `no_attempt_ends_without_a_process`.
            SkipReason::NoNode => job.starts_with("any") || job.starts_with("every"),
            SkipReason::Drained => {
                let drained = skip.on.as_ref().and_then(|node| self.drained.get(node.as_str()));
                drained.is_some_and(|until| until.as_ref().is_none_or(is_recent))
            }
            // Nothing is lost here.
            SkipReason::Rewound => false,
        };
        if is_true { Ok(()) } else { Err(format!("that is not why it was skipped: {skip:?}")) }
    }

    /// The oldest occurrence of a job that is undecided although nothing prevents a decision.
    fn undecided(&self, name: &str, mark: &JobRecord) -> Option<Timestamp> {
        let schedule = jobs::schedules().get(&(name.to_owned(), mark.schedule.clone()?))?;
        let at = schedule.next_after(mark.last_scheduled).filter(|at| *at + SOON < self.wall)?;
        let is_paused = self.paused.get(name).is_some_and(Option::is_none);
        (!is_paused && !self.makes_up(name) && !is_in_doubt(name)).then_some(at)
    }

    /// True if the job makes up its missed occurrences one after the other.
    fn makes_up(&self, name: &str) -> bool {
        let Ok(name) = JobName::parse(name) else { return false };
        let definitions = jobs::sets().into_iter().filter_map(|set| set.jobs.get(&name));
        let mut one_by_one = definitions.map(|job| job.misfire == Misfire::RunAll && job.overlap != Overlap::Allow);
        one_by_one.any(|it_is| it_is) && self.in_flight.keys().any(|run| job_of(run) == name.as_str())
    }
}

/// True for runs that wait for others, or may have a process elsewhere: they are judged by their record.
fn waits(state: RunState) -> bool {
    matches!(state, RunState::Queued | RunState::CutOff)
}

fn is_in_doubt(name: &str) -> bool {
    JobName::parse(name).is_ok_and(|name| jobs::is_in_doubt(&name))
}

fn has_occurrences(name: &JobName) -> bool {
    jobs::sets().iter().any(|set| set.jobs.get(name).is_some_and(|job| job.schedule().is_some()))
}

fn job_of(run: &str) -> &str {
    // The parts after a job's name have no dots.
    RunId::parse(run).map_or(run, |id| &run[..id.job().as_str().len()])
}

impl Invariant for WhatIsDueHasHadItsProcess {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        self.now = self.now.max(at);
        match fact {
            Fact::Committed { txn, .. } => return self.write(txn),
            Fact::Spawned(process) => {
                if let Some(run) = self.in_flight.get_mut(&process.run) {
                    run.has_had_a_process = true;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn conclude(&mut self) -> Result<(), String> {
        for (job, mark) in &self.marks {
            if let Some(at) = self.undecided(job, mark) {
                return Err(format!("in peace nobody has decided on `{job}`, which was due at {at}"));
            }
        }
        // Begun ahead of its time, and then the clock was set back.
        let is_to_come = |run: &str| RunId::parse(run).is_ok_and(|run| run.scheduled_at() + SOON > self.wall);
        let is_forgotten = |(id, run): &(&String, &RunInFlight)| {
            !run.has_had_a_process && !waits(run.state) && !is_to_come(id) && run.since + SOON < self.now
        };
        match self.in_flight.iter().find(is_forgotten) {
            Some((id, run)) => Err(format!("in peace `{id}` is in flight since {:?} without a process", run.since)),
            None => Ok(()),
        }
    }
}
