//! Runs that were begun and never had a process: they go back to be started, and only their misfire window ends that.
//!
//! ```text
//!   begun ─ no lease, too late, drain, no means ─► unstarted ─ whoever leads ─► attempt + 1
//!                                                      └─ its window is over ─► skip record `missed`
//! ```
//!
//! That no process was started is known to the node that begun it, or proven by its next process: what is noted in no journal was
//! handed to no warden. Where nobody can prove it the run counts as interrupted, by the rule of its job. An attempt that never had a
//! process is no failure, no interruption and no retry; a run of which an earlier attempt had one is begun again without a limit.

use std::time::Duration;

use jiff::Timestamp;

use super::flight::{Flight, RunOwner};
use super::leading::is_too_old;
use super::misfire::{DEFAULT_WINDOW, LATE, is_in_window};
use super::{Engine, Pending, Told, Turn};
use crate::clock::{earlier, later};
use crate::job::{Job, JobName, Misfire};
use crate::ledger::{Change, Commit, CommitId};
use crate::run::{Answer, Link, RunId, RunRecord, Skip, SkipReason};

/// A change is answered within a session, or the session ends. A begin that was accepted longer after its decision was refused
/// meanwhile and asked for again, for hours where an operator has to mend what refuses it.
const PROMPT: Duration = Duration::from_secs(60);

/// Whether a run that never had a process may still be started.
pub(super) enum Window {
    /// It may.
    Open,
    /// It is too late.
    Over,
    /// Not here: its job is not defined in this node's file. It may be in another's; so long it waits for that.
    UndefinedUntil(Timestamp),
}

impl Engine {
    pub(super) fn window_of(&self, t: &Turn, run: &RunRecord) -> Window {
        let Some(job) = self.jobs.jobs.get(&run.job) else {
            let until = later(run.ready(), DEFAULT_WINDOW);
            return if until <= t.due { Window::Over } else { Window::UndefinedUntil(until) };
        };
        let root = self.jobs.root_of(job).unwrap_or(job);
        let is_over = if run.trigger.is_some() || job.upstreams().is_some() {
            is_too_old(job, root, run.ready(), t.due)
        } else {
            is_occurrence_over(t, job, run)
        };
        if is_over { Window::Over } else { Window::Open }
    }

    /// True where the ledger accepted its begin so long after the decision that its misfire window is over.
    pub(super) fn is_accepted_too_late(&self, t: &Turn, run: &RunRecord) -> bool {
        let is_prompt = run.begun_at >= earlier(t.now.wall, PROMPT);
        !is_prompt && !run.has_past() && matches!(self.window_of(t, run), Window::Over)
    }

    /// Writes off the runs of a job that never had a process and may not be started any more: none is in the way of the job's next.
    pub(super) fn miss_overdue(&mut self, t: &mut Turn, job: &JobName) {
        let is_over = |flight: &Flight| {
            let waits = flight.is_nobodys() && flight.never_started();
            waits && matches!(self.window_of(t, &flight.record), Window::Over)
        };
        let overdue: Vec<RunId> =
            self.flights.of_job(job).filter(|(_, flight)| is_over(flight)).map(|(run, _)| run.clone()).collect();
        overdue.iter().for_each(|run| self.begin_again(t, run));
    }

    /// It waits until a node leads that knows its job.
    pub(super) fn wait_for_definition(&mut self, run: &RunId, until: Timestamp) {
        if let Some(leading) = &mut self.leading {
            leading.retries.insert((until, run.clone()));
        }
    }

    /// Records a run that nobody has as missed.
    pub(super) fn miss(&mut self, t: &mut Turn, run: &RunId) {
        let Some(token) = self.term().map(|term| term.token) else { return };
        let node = self.node.clone();
        let Some(flight) = self.flights.get_mut(run).filter(|flight| flight.commit.is_none()) else { return };
        let record = &flight.record;
        let skip = Skip {
            v: 1,
            job: record.job.clone(),
            reason: SkipReason::Missed,
            first: record.scheduled_at,
            last: record.scheduled_at,
            count: 1,
            trigger: record.trigger.clone(),
            token,
            node,
            decided_at: t.now.wall,
        };
        let is_in_chain = self.jobs.jobs.get(run.job()).is_some_and(|job| job.upstreams().is_some());
        let answer = if is_in_chain { Answer::Skipped } else { Answer::NotBegun };
        let links = Link::of_skip(&skip, skip.first, 1, answer, &record.dependents);
        let change = Change::Miss { at: flight.version, run: run.clone(), skip: skip.clone(), links };
        flight.holder = RunOwner::Settling;
        let told = Told { first: skip.first, count: 1, skip };
        let id = self.commit(t, change, Pending::Miss { run: run.clone(), told });
        self.note_settling(run, id);
    }

    pub(super) fn on_miss_answer(&mut self, t: &mut Turn, run: &RunId, id: CommitId, told: Told, answer: Commit) {
        if self.answered_flight(run, id).is_none() {
            return;
        }
        match answer {
            Commit::Accepted => {
                self.close(run);
                self.on_skip_answer(t, answer, Some(told));
            }
            Commit::Superseded | Commit::Unknown => self.settled_by_another(t, run),
            Commit::Fenced => drop(self.forget(run)),
        }
    }
}

/// As for an occurrence that nobody has decided on yet. One that waited for other runs counts from when it could start.
fn is_occurrence_over(t: &Turn, job: &Job, run: &RunRecord) -> bool {
    let now = if run.ready_at.is_some() { t.due } else { t.due_for(job) };
    let is_late = run.ready() < earlier(now, LATE);
    is_late && (job.misfire == Misfire::Skip || !is_in_window(job, run.ready(), now))
}
