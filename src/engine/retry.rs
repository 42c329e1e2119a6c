//! Another attempt of a run: after a failure at its time (`retries`), after an interruption at once (`interrupted: rerun`).
//!
//! ```text
//!   an attempt ends ─ its owner ─► retrying, retry_at ─ whoever leads then ─► attempt + 1
//! ```
//!
//! What is awaited stands in the ledger, so it does not matter who leads at `retry_at`. `limit` counts attempts that
//! failed or took too long; an interrupted one takes none away. Of a job that was changed meanwhile the present
//! definition counts; a job that is no more gets no other attempt, and the run ends as its last one did.
//! The first attempt of a run that waited for others is begun here too.
//! Where the owner dies before the ledger has `retrying`, the run counts as interrupted.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::flight::{Flight, LetGo, Own, Phase, RunOwner};
use super::unstarted::Window;
use super::{Engine, Report, Turn};
use crate::clock::later;
use crate::job::Retries;
use crate::ledger::Request;
use crate::run::{OnLoss, Outcome, Owner, Reason, RunEnd, RunId, RunRecord, RunState};
use crate::term::NodeName;

/// How much a delay is spread, so that jobs that failed together do not come back together.
const JITTER: f64 = 0.1;

/// How long after its `failures`th failure a run is tried again: `delay`, times `backoff` for each failure before, a tenth
/// more or less, at most `max_delay`. The same on every node, for it is drawn from the run's id and the count.
pub(super) fn delay(retries: &Retries, run: &RunId, failures: u32) -> Duration {
    let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let longest = retries.max_delay.as_secs_f64();
    // A product beyond all numbers is longer than the longest, too.
    let base = (retries.delay.as_secs_f64() * retries.backoff.powi(exponent)).min(longest);
    Duration::try_from_secs_f64((base * (1.0 + JITTER * spread(run, failures))).min(longest))
        .unwrap_or(retries.max_delay)
}

/// From -1 to 1.
fn spread(run: &RunId, failures: u32) -> f64 {
    let hash = Sha256::digest(format!("{run} {failures}"));
    let drawn = hash.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    f64::from(drawn) / f64::from(u32::MAX) * 2.0 - 1.0
}

impl Engine {
    /// An own attempt is over: another follows where `retries` leave one, else the run ends.
    pub(super) fn end_attempt(&mut self, t: &mut Turn, run: &RunId, end: RunEnd) {
        match self.delay_after(run, &end) {
            Some(delay) => self.try_again(t, run, &end, delay),
            None => self.end_run(t, run, end),
        }
    }

    fn delay_after(&self, run: &RunId, end: &RunEnd) -> Option<Duration> {
        let retries = &self.jobs.jobs.get(run.job())?.retries;
        let failures = end.run.past.failures;
        let may = end.outcome.is_failed() && end.run.kill.is_none();
        (may && failures < retries.limit).then(|| delay(retries, run, failures + 1))
    }

    /// Lets an own run go, for whoever leads to begin another attempt.
    pub(super) fn try_again(&mut self, t: &mut Turn, run: &RunId, end: &RunEnd, delay: Duration) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        flight.record.past.note(end);
        flight.record.retry_at = (!delay.is_zero()).then(|| later(end.ended_at.min(t.due), delay));
        if let Some(own) = flight.own_mut() {
            own.phase = Phase::LettingGo(LetGo::retrying(Report::Retrying { end: Box::new(end.clone()), delay }));
        }
        self.commit_next(t, run);
    }

    /// A run that this leader has just come to know waits for another attempt.
    pub(super) fn await_retry(&mut self, t: &mut Turn, run: &RunId) {
        self.retry_at_its_time(t, run);
        if self.flights.get(run).is_some_and(|flight| matches!(flight.holder, RunOwner::Nobody)) {
            t.ledger(Request::Watch(run.clone()));
        }
    }

    /// A run that nobody has is begun again at its time, by a leader whose lease holds: whatever it begins without one is not started.
    pub(super) fn retry_at_its_time(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get_mut(run) else { return };
        flight.holder = RunOwner::Nobody;
        let at = retry_at(&flight.record, &self.node).unwrap_or_else(|| run.scheduled_at().min(t.due));
        if let Some(leading) = &mut self.leading {
            leading.retries.insert((at, run.clone()));
        }
    }

    /// The time of a run that nobody has has come, unless something else became of it meanwhile.
    pub(super) fn retry(&mut self, t: &mut Turn, run: &RunId) {
        let is_defined = self.jobs.jobs.contains_key(run.job());
        let waits = |flight: &Flight| {
            let is_due = retry_at(&flight.record, &self.node).is_none_or(|at| at <= t.due);
            // One that waits for others waits for its job, too, where that is not defined here.
            flight.is_nobodys() && is_due && (!flight.is_queued() || !is_defined)
        };
        if self.flights.get(run).is_some_and(waits) && !self.flights.is_refused(run.job()) {
            self.begin_again(t, run);
        }
    }

    /// Another attempt of a run that nobody has. Without its job it cannot be made: the run ends.
    pub(super) fn begin_again(&mut self, t: &mut Turn, run: &RunId) {
        let Some(flight) = self.flights.get(run) else { return };
        if flight.record.kill.is_some() {
            return self.apply_kill(t, run);
        }
        let is_defined = self.jobs.jobs.contains_key(run.job());
        if flight.never_started() || (flight.is_queued() && !is_defined) {
            match self.window_of(t, &flight.record) {
                Window::Over => return self.miss(t, run),
                Window::UndefinedUntil(at) => return self.wait_for_definition(run, at),
                Window::Open => {}
            }
        }
        let Some((term, session)) = self.leading.as_ref().map(|l| l.term.clone()).zip(self.session.clone()) else {
            return;
        };
        let Some(job) = self.jobs.jobs.get(run.job()).cloned() else { return self.end_without_job(t, run) };
        let nonce = self.nonce();
        let Some(flight) = self.flights.get_mut(run) else { return };
        let mut past = flight.record.past.clone();
        // An attempt that had no process leaves nothing to tell of.
        if flight.record.state != RunState::Unstarted {
            past.note(&lost(&flight.record, t));
        }
        let ready_at = if flight.is_queued() { Some(t.now.wall) } else { flight.record.ready_at };
        let record = RunRecord {
            state: RunState::Running,
            owner: Owner { node: self.node.clone(), session },
            token: term.token,
            attempt: flight.record.attempt.saturating_add(1),
            begun_at: t.now.wall,
            on_loss: OnLoss::of(&job),
            keep_until: Self::keep_until(&job, self.jobs.root_of(&job).unwrap_or(&job), run.scheduled_at(), t.due),
            ready_at,
            retry_at: None,
            past,
            dependents: self.jobs.dependents_of(&job.name).to_vec(),
            nonce,
            ..flight.record.clone()
        };
        flight.holder = RunOwner::Own(Own::beginning(job));
        self.settle(t, run, record);
    }

    /// The last attempt's outcome becomes the run's.
    fn end_without_job(&mut self, t: &mut Turn, run: &RunId) {
        let Some(record) = self.flights.get(run).map(|flight| &flight.record) else { return };
        let mut end = lost(record, t);
        if let Some(last) = record.past.end_of(record) {
            (end.outcome, end.reason) = (last.outcome, last.reason);
            (end.exit_code, end.signal) = (last.exit_code, last.signal);
            (end.ended_at, end.duration_ms) = (last.ended_at, last.duration_ms);
        }
        self.settle_as(t, run, end);
    }
}

/// When a run is to be begun again by this node, where that is not at once. A node's pause for what it lacks
/// binds no other node.
fn retry_at(record: &RunRecord, node: &NodeName) -> Option<Timestamp> {
    let is_of_another = record.state == RunState::Unstarted && record.owner.node != *node;
    record.retry_at.filter(|_| !is_of_another)
}

/// The end of an attempt whose node is gone. A run that only waited has lost no node.
fn lost(record: &RunRecord, t: &Turn) -> RunEnd {
    let reason = (record.state != RunState::Queued).then_some(Reason::NodeDied);
    RunEnd::unseen(record, Outcome::Interrupted, reason, t.now.wall)
}
