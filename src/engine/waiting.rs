//! Occurrences beside a run of their job, as `overlap` wants it: skipped, begun beside it, or waiting for its end. And runs
//! that wait because their group is full.
//!
//! ```text
//!   due ─ mark + running/<run> queued ─► waits ─ whoever leads, once nothing is in its way ─► attempt 1
//! ```
//!
//! What waits stands in the ledger from the write that moved the mark, so it is neither lost nor begun twice by a change
//! of leader. It begins when the runs before it are gone from the ledger, the oldest first. `replace` is to wait and to ask
//! those before to end; it asks again under every leader, so a wish that was lost with one is made by the next.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::flight::{Flight, Holder};
use super::misfire::Missed;
use super::{Engine, Turn};
use crate::job::{Job, Overlap};
use crate::ledger::{Commit, Request};
use crate::run::{KillRequest, Reason, RunId, SkipReason};

impl Engine {
    /// How much longer than its own end a cut-off run stands in the way of one that waits for it: a warden elsewhere ends it by its
    /// own clock.
    pub(super) fn margin(&self, run: &RunId) -> Duration {
        let waits =
            |job: &Job| matches!(job.overlap, Overlap::Queue | Overlap::Replace) || job.concurrency_group.is_some();
        let is_awaited = self.jobs.jobs.get(run.job()).is_some_and(|job| waits(job));
        if is_awaited { Duration::from_secs(1) } else { Duration::ZERO }
    }

    /// Something changed that a run may have waited for.
    pub(super) fn stir(&mut self) {
        if let Some(leading) = &mut self.leading {
            leading.stir();
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
            Overlap::Allow | Overlap::Replace => false,
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
        self.obey(t, run);
        if self.flights.get(run).is_some_and(|flight| matches!(flight.holder, Holder::Nobody)) {
            t.ledger(Request::Watch(run.clone()));
        }
    }

    pub(super) fn queue_again(&mut self, run: &RunId) {
        if let (Some(flight), Some(leading)) = (self.flights.get_mut(run), &mut self.leading) {
            flight.holder = Holder::Nobody;
            leading.queued.insert((run.scheduled_at(), run.clone()));
            leading.is_stirred = true;
        }
    }

    /// Begins what waits and has nothing in its way any more, in the order of the occurrences.
    pub(super) fn begin_waiting(&mut self, t: &mut Turn) {
        let may = self.may_decide(t.now);
        let Some(leading) = self.leading.as_mut().filter(|leading| may && leading.is_stirred) else { return };
        leading.is_stirred = false;
        let waiting: Vec<RunId> = leading.queued.iter().map(|(_, run)| run.clone()).collect();
        for run in waiting {
            let waits = |flight: &Flight| matches!(flight.holder, Holder::Nobody) && flight.is_queued();
            let is_done = !self.flights.get(&run).is_some_and(waits) || self.begin_if_free(t, &run);
            if let (true, Some(leading)) = (is_done, &mut self.leading) {
                leading.queued.remove(&(run.scheduled_at(), run));
            }
        }
    }

    /// True if it waits no more.
    fn begin_if_free(&mut self, t: &mut Turn, run: &RunId) -> bool {
        if let Some(job) = self.jobs.jobs.get(run.job()).cloned() {
            let before = self.runs_before(run);
            if job.overlap == Overlap::Replace {
                before.iter().for_each(|other| self.replace(t, other));
            }
            let has_rivals = job.overlap != Overlap::Allow && !before.is_empty();
            if has_rivals || self.is_group_full(&job) {
                return false;
            }
        }
        self.begin_again(t, run);
        true
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
        self.wish_to_end(t, run, kill);
    }
}
