//! Starts before their time: begun in the ledger and prepared by the warden, their programs held until they are due.
//!
//! ```text
//!   begin accepted, its time is to come ─► held ─┬─ its time has come ─► running
//!                                                └─ cancelled ─► unstarted, until its time
//! ```
//!
//! A held start is cancelled when what was decided may no longer hold: the clock was set, its job was paused, changed
//! or removed, the term or the session is lost, or the node is about to end. The lease cancels it too (`not_after`, and
//! the tree's deadline). A cancelled start is known to have had no process, and its run is decided on again at its
//! time: by its job as it is then, on whichever node leads then.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Runs;
use super::active_run::ActiveRun;
use crate::clock::{Now, Uptime, later};
use crate::engine::context::Context;
use crate::job::{Job, JobName};
use crate::process::{Order, TreeId};
use crate::run::{RunId, RunRecord};

/// Most starts that are held or under way when another is begun ahead. Each is a process.
const MOST: usize = 512;
/// A wall clock that moves by more than this between two turns was set. A clock that is slewed moves by less in the
/// time that a start is held, and two readings of both clocks may be a millisecond apart.
const STEP: SignedDuration = SignedDuration::from_millis(5);

impl Runs {
    /// How long before its time the first of `count` occurrences is begun that are due at once; zero: not before.
    ///
    /// `due`: the time of day by which occurrences are due. While another host's clock limits it, no time is known
    /// ahead.
    pub fn lead(&self, cx: &Context, (now, due): (Now, Timestamp), count: usize) -> Duration {
        let starting = self.active.starting();
        let horizon = self.horizon.of(count.saturating_add(starting));
        let is_full = !self.has_hands();
        // Half of the lease is left then, so that no program begins just when the lease ends.
        let is_covered = horizon * 2 < cx.lease_until.since(now.up);
        if is_full || !is_covered || due != now.wall { Duration::ZERO } else { horizon }
    }

    /// True if one more start may be held or under way.
    pub(super) fn has_hands(&self) -> bool {
        self.active.starting() + self.active.held() < MOST
    }

    /// When the program of an attempt may begin, if its time is to come.
    pub(super) fn not_before(&self, cx: &Context, run: &RunId) -> Option<Uptime> {
        if self.active.get(run).is_some_and(|active| active.offer().is_some()) {
            return self.begins_at(cx, run);
        }
        let at = self.time_to_come(cx, run)?;
        Some(cx.now.up + at.duration_since(cx.due).unsigned_abs())
    }

    /// When a run is due, with its splay, that was begun ahead of its time; `None` for any other.
    ///
    /// A run that was begun when it was due by the clock of then is due, whatever the clock is set to later.
    fn its_time(&self, cx: &Context, run: &RunId) -> Option<Timestamp> {
        let active = self.active.get(run)?;
        let RunRecord { attempt, ref ready_at, ref trigger, begun_at, .. } = active.record;
        // No other begin is ahead: a run that waited for others, and another attempt, are begun when nothing holds them
        // up any more, even by a node whose clock is behind that of the one that decided on the occurrence.
        // What is shared out ahead, and what waits there for its node, has its time all the same.
        let is_of_shares = attempt == 0 && (active.is_to_share() || active.record.on.is_some());
        let is_first = attempt == 1 || is_of_shares;
        let is_ahead = active.record.placement.as_ref().map_or(is_first, |placement| placement.ahead_ms > 0);
        let is_decision = is_ahead && ready_at.is_none() && trigger.is_none();
        let job = active.job().or(cx.job(run.job())).filter(|job| is_decision && job.schedule().is_some())?;
        Some(later(run.scheduled_at(), job.splay.delay())).filter(|&at| begun_at < at)
    }

    /// The time of a run that was begun ahead of it, if it is to come.
    pub(super) fn time_to_come(&self, cx: &Context, run: &RunId) -> Option<Timestamp> {
        self.its_time(cx, run).filter(|&at| at > cx.due)
    }

    /// True if a run was begun ahead, never had a process and waits to be begun again, and its time has come.
    pub fn is_due_again(&self, cx: &Context, run: &RunId) -> bool {
        let waits = |active: &ActiveRun| active.is_idle() && active.never_started() && active.record.kill.is_none();
        self.active.get(run).is_some_and(waits) && self.its_time(cx, run).is_some_and(|at| at <= cx.due)
    }

    /// True if the job is no longer as it was when the attempt began.
    pub(super) fn is_redefined(cx: &Context, run: &RunId, job: &Job) -> bool {
        cx.job(run.job()).is_none_or(|now| !std::ptr::eq(&**now, job) && **now != *job)
    }

    /// Handles a process that is prepared and held.
    pub fn on_held(&mut self, cx: &Context, run: &RunId) {
        let Some(process) = self.active.get_mut(run).and_then(ActiveRun::process_mut) else { return };
        process.is_held = true;
        let (ordered, before) = (process.ordered, process.starts_before);
        self.note_start_time(cx, ordered, before);
    }

    /// Notes how long a start has taken that was ordered at `ordered`, with `before` others ahead of it.
    pub(super) fn note_start_time(&mut self, cx: &Context, ordered: Uptime, before: usize) {
        self.horizon.prepared(cx.now.up.since(ordered), before);
        self.trees.admission.started(ordered, cx.now.up, self.active.starting());
    }

    /// Cancels all held starts if the wall clock was set since the last turn: their time is another one now.
    pub fn follow_clock(&mut self, cx: &mut Context) {
        if cx.clock_step.abs() > STEP {
            self.cancel_all_held(cx);
        }
    }

    /// Cancels every held start.
    pub fn cancel_all_held(&mut self, cx: &mut Context) {
        self.cancel_held(cx, |_, _| true);
    }

    /// Cancels the held starts of this job.
    pub fn cancel_held_of(&mut self, cx: &mut Context, job: &JobName) {
        self.cancel_held(cx, |_, run| run.job() == job);
    }

    /// Cancels the held starts of jobs that are no longer as they were.
    pub fn cancel_held_of_redefined(&mut self, cx: &mut Context) {
        self.cancel_held(cx, |(runs, cx), run| {
            let job = runs.active.get(run).and_then(ActiveRun::job);
            job.is_some_and(|job| Self::is_redefined(cx, run, job))
        });
    }

    fn cancel_held(&mut self, cx: &mut Context, concerns: impl Fn((&Self, &Context), &RunId) -> bool) {
        let held = self.trees.held().filter(|(_, run)| concerns((self, cx), run));
        let held: Vec<(TreeId, RunId)> = held.map(|(tree_id, run)| (tree_id, run.clone())).collect();
        for (tree_id, run) in held {
            let process = self.active.get_mut(&run).and_then(ActiveRun::process_mut);
            if let Some(process) = process.filter(|process| !process.is_cancelled) {
                process.is_cancelled = true;
                cx.order(Order::Cancel { tree_id });
            }
        }
    }
}
