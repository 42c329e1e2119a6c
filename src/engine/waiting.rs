//! Occurrences beside a run of their job, as `overlap` wants it: skipped, begun beside it, or waiting for its end. And runs
//! that wait because their group is full.
//!
//! ```text
//!   due ─ mark + running/<run> queued ─► waits ─ whoever leads, once nothing is in its way ─► attempt 1
//! ```
//!
//! What waits stands in the ledger from the write that moved the mark, so it is neither lost nor begun twice by a change
//! of leader. It begins when the runs before it are gone from the ledger, the oldest first. `replace` is to wait and to ask
//! those before to end; it asks again under every leader, so a request that was lost with one is made by the next.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::flight::{Flight, RunOwner};
use super::flights::Place;
use super::leading::Changed;
use super::misfire::Missed;
use super::{Engine, Turn};
use crate::job::{Job, JobName, Overlap};
use crate::ledger::{Commit, Request};
use crate::run::{KillRequest, Reason, RunId, SkipReason};

/// Most runs of one job that wait for others; the next occurrence is skipped then.
const MOST_WAITING: usize = 100;

impl Engine {
    /// How much longer than its own end a cut-off run stands in the way of one that waits for it: a warden elsewhere ends it by its
    /// own clock.
    pub(super) fn margin(&self, run: &RunId) -> Duration {
        let waits =
            |job: &Job| matches!(job.overlap, Overlap::Queue | Overlap::Replace) || job.concurrency_group.is_some();
        let is_awaited = self.jobs.jobs.get(run.job()).is_some_and(|job| waits(job));
        if is_awaited { Duration::from_secs(1) } else { Duration::ZERO }
    }

    /// Everything may have changed that runs waited for.
    pub(super) fn mark_all_changed(&mut self) {
        if let Some(leading) = &mut self.leading {
            leading.mark_all_changed();
        }
    }

    /// A run of this job ended or came to wait: what that concerns is looked at, and nothing else.
    pub(super) fn mark_job_changed(&mut self, job: &JobName) {
        if let Some(leading) = &mut self.leading {
            leading.mark_job_changed(job, self.flights.group_of(job), &self.jobs);
        }
    }

    /// Decides on one occurrence by itself.
    pub(super) fn decide_one(&mut self, t: &mut Turn, job: &Arc<Job>, at: Timestamp) {
        if self.overlaps(job) {
            let one = Missed { first: at, last: at, count: 1 };
            self.advance(t, &job.name, at, Some((SkipReason::Overlap, one)));
        } else {
            self.begin(t, job, at);
        }
    }

    /// True where another run of the job is neither begun nor may it wait.
    pub(super) fn overlaps(&self, job: &Job) -> bool {
        match job.overlap {
            Overlap::Skip => self.is_in_flight(&job.name),
            Overlap::Queue => self.flights_of(&job.name).any(Flight::is_queued),
            // Where the job's runs come faster than its group lets them begin.
            Overlap::Allow | Overlap::Replace => {
                self.flights_of(&job.name).filter(|flight| flight.is_queued()).nth(MOST_WAITING - 1).is_some()
            }
        }
    }

    /// True where a run of the job that begins now has to wait for others.
    pub(super) fn must_wait(&self, job: &Job) -> bool {
        let has_rivals = match job.overlap {
            Overlap::Queue => self.is_in_flight(&job.name),
            // Also for an end that is not in the ledger yet.
            Overlap::Replace => self.flights_of(&job.name).next().is_some(),
            Overlap::Skip | Overlap::Allow => false,
        };
        has_rivals || self.is_group_full(job)
    }

    /// What the ledger says to a run that is to wait.
    pub(super) fn on_queued_answer(&mut self, t: &mut Turn, run: &RunId, answer: Commit) {
        match answer {
            Commit::Accepted => self.await_others(t, run),
            Commit::Superseded | Commit::Fenced => drop(self.forget(run)),
            Commit::Unknown => {
                self.forget(run);
                // A leader takes note of whatever it finds.
                if self.session.is_some() && self.leading.is_some() {
                    t.ledger(Request::ReadRun(run.clone()));
                }
            }
        }
    }

    /// A run that this leader has just come to know waits for others.
    pub(super) fn await_others(&mut self, t: &mut Turn, run: &RunId) {
        self.queue_again(run);
        self.apply_kill(t, run);
        if self.flights.get(run).is_some_and(|flight| matches!(flight.holder, RunOwner::Nobody)) {
            t.ledger(Request::Watch(run.clone()));
        }
    }

    pub(super) fn queue_again(&mut self, run: &RunId) {
        if let Some(flight) = self.flights.get_mut(run) {
            flight.holder = RunOwner::Nobody;
            self.mark_job_changed(run.job());
        }
    }

    /// Begins what waits and has nothing in its way any more, in the order of the occurrences. Only what something changed for is looked
    /// at: the waiting runs of a job, and those of a group as far as it has room.
    pub(super) fn begin_waiting(&mut self, t: &mut Turn) {
        if self.leading.as_ref().is_none_or(|leading| leading.changed.is_none()) || !self.may_begin(t.now) {
            return;
        }
        let Some(Changed { all, jobs, mut groups }) = self.leading.as_mut().map(|l| std::mem::take(&mut l.changed))
        else {
            return;
        };
        let waits = |(run, flight): (&RunId, &Flight)| flight.is_waiting().then(|| (run.scheduled_at(), run.clone()));
        let mut runs: Vec<Place> = match all {
            true => self.flights.iter().filter_map(waits).collect(),
            false => jobs.iter().flat_map(|job| self.flights.of_job(job)).filter_map(waits).collect(),
        };
        runs.sort_unstable();
        let mut left = runs.into_iter();
        for (_, run) in left.by_ref() {
            // Those of a group that has room come in the order of their occurrences, with all others of the group.
            if let Some(group) = self.flights.group_of(run.job()).cloned() {
                self.ask_rivals(t, &run);
                groups.insert(group);
            } else {
                self.begin_if_free(t, &run);
            }
            if !self.may_begin(t.now) {
                break;
            }
        }
        for (_, run) in left {
            self.mark_job_changed(run.job());
        }
        for group in groups {
            self.begin_in_group(t, &group);
        }
    }

    /// Fills a group from those that wait for a place in it.
    fn begin_in_group(&mut self, t: &mut Turn, group: &Arc<str>) {
        let mut last: Option<Place> = None;
        while let Some(place) = self.flights.next_waiting(group, last.as_ref()) {
            if self.jobs.jobs.get(place.1.job()).is_some_and(|job| self.is_group_full(job)) {
                return;
            }
            if !self.may_begin(t.now) {
                if let Some(leading) = &mut self.leading {
                    leading.changed.groups.insert(Arc::clone(group));
                }
                return;
            }
            self.begin_if_free(t, &place.1);
            last = Some(place);
        }
    }

    /// Asks the runs whose place a waiting run is to take to end; those that are in its way.
    fn ask_rivals(&mut self, t: &mut Turn, run: &RunId) -> Vec<RunId> {
        let Some(job) = self.jobs.jobs.get(run.job()).cloned() else { return Vec::new() };
        let before = self.runs_before(run);
        if job.overlap == Overlap::Replace {
            before.iter().for_each(|other| self.replace(t, other));
        }
        if job.overlap == Overlap::Allow { Vec::new() } else { before }
    }

    /// Begins a waiting run, unless something is in its way.
    fn begin_if_free(&mut self, t: &mut Turn, run: &RunId) {
        if self.flights.is_refused(run.job()) {
            return;
        }
        let has_rivals = !self.ask_rivals(t, run).is_empty();
        let is_full = self.jobs.jobs.get(run.job()).is_some_and(|job| self.is_group_full(job));
        if !has_rivals && !is_full {
            self.begin_again(t, run);
        }
    }

    /// The runs of the same job that are in a waiting run's way: all that do not wait, and those that do for longer.
    fn runs_before(&self, run: &RunId) -> Vec<RunId> {
        let place = |run: &RunId| (run.scheduled_at(), run.trigger());
        let is_before = |other: &RunId, flight: &Flight| !flight.is_queued() || place(other) < place(run);
        let others = self.flights_of(run.job()).map(|flight| (flight.record.id(), flight));
        others.filter(|(other, flight)| other != run && is_before(other, flight)).map(|(other, _)| other).collect()
    }

    fn replace(&mut self, t: &mut Turn, run: &RunId) {
        let by = format!("the next run, on {}", self.node);
        let kill = KillRequest { reason: Reason::Replaced, by, at: t.now.wall, force: false };
        self.request_to_end(t, run, kill);
    }
}
