//! Holding a job's locks: requested before an attempt begins, released once its processes are dead.

use std::sync::Arc;

use super::Runs;
use super::active_run::{ActiveRun, ActiveRunState, LocalRun, Phase, StopCause};
use super::locks::LockStatus;
use crate::engine::context::Context;
use crate::engine::report::Report;
use crate::job::{Job, JobName, Overlap};
use crate::run::{RefusalReason, RunId, SkipReason};
use crate::run_lock::{Event, LockRequestId, Request};

impl Runs {
    /// True if the run may begin: it holds its job's locks, or there are none. Else requests them; with `overlap: skip`,
    /// a first attempt that cannot have them is skipped.
    pub(super) fn has_locks(&mut self, cx: &mut Context, run: &RunId, job: &Job) -> bool {
        let is_first = self.active.get(run).is_some_and(|active| active.is_queued() || is_first_offer(active));
        let waits = job.overlap != Overlap::Skip || !is_first;
        if self.locks.is_outdated(run, &job.lock, waits) {
            self.release_locks(cx, run);
        }
        if job.lock.is_empty() {
            return true;
        }
        match self.locks.request(cx, run, &job.lock, waits) {
            LockStatus::Held => return true,
            LockStatus::Requested => {}
            LockStatus::NoSlot if waits => {}
            LockStatus::NoSlot => self.on_locked(cx, run),
        }
        false
    }

    pub fn on_lock(&mut self, cx: &mut Context, event: Event) {
        match event {
            Event::Held { id, grant } => match self.locks.granted(id, grant) {
                Some(run) => self.check_again(cx, &run),
                // Given up meanwhile, or requested under an earlier session.
                None => cx.request_lock(Request::Release { id }),
            },
            Event::Busy { id, .. } => {
                let Some(run) = self.end_request(cx, id) else { return };
                self.on_locked(cx, &run);
            }
            Event::Lost { id, path } => {
                let Some(run) = self.locks.run(id).cloned() else { return };
                if self.locks.lose(&run) {
                    cx.report(Report::LockLost { run: run.clone(), path });
                }
                self.kill(cx, &run, StopCause::LockLost);
                self.check_again(cx, &run);
            }
            Event::RevokeRequested { id, path } => {
                if let Some(run) = self.locks.run(id).cloned() {
                    cx.report(Report::LockRevokeRequested { run, path });
                }
            }
            Event::Refused { id, why } => {
                if let Some(run) = self.locks.run(id).cloned() {
                    cx.report(Report::LockRefused { run, why });
                }
            }
        }
    }

    /// Handles that a first attempt cannot have its locks, and must not wait for them.
    fn on_locked(&mut self, cx: &mut Context, run: &RunId) {
        match self.active.get(run) {
            Some(active) if active.is_waiting() => self.skip(cx, run, SkipReason::Locked),
            Some(active) if is_first_offer(active) => self.refuse(cx, run, RefusalReason::Locked),
            _ => {}
        }
    }

    /// Forgets all locks: they ended with the session.
    pub fn lose_locks(&mut self) {
        self.locks.clear();
    }

    /// Releases the locks of a run that has no attempt and waits for none here.
    pub(super) fn release_unneeded_locks(&mut self, cx: &mut Context, run: &RunId) {
        if !self.locks.is_empty() && !self.needs_locks(cx, run) {
            self.release_locks(cx, run);
        }
    }

    /// The same for all runs: the term has begun or ended.
    pub(super) fn release_all_unneeded_locks(&mut self, cx: &mut Context) {
        for run in self.locks.all() {
            self.release_unneeded_locks(cx, &run);
        }
    }

    /// Releases the locks of a group's runs that wait for a position in it: those who have the positions may need them.
    pub(super) fn release_locks_in_group(&mut self, cx: &mut Context, group: &Arc<str>) {
        for run in self.locks.requested() {
            let waits = self.active.get(&run).is_some_and(ActiveRun::is_queued);
            if waits && self.group_of(run.job()).is_some_and(|other| other == *group) {
                self.release_locks(cx, &run);
            }
        }
    }

    /// Releases the locks of a job's attempts whose begin the service refuses, which can take hours.
    pub(super) fn release_locks_of_beginning(&mut self, cx: &mut Context, job: &JobName) {
        let is_beginning = |active: &ActiveRun| matches!(active.phase(), Some(Phase::Beginning));
        let runs = self.active.of_job(job).filter(|(_, active)| is_beginning(active));
        let runs: Vec<RunId> = runs.map(|(run, _)| run.clone()).collect();
        runs.iter().for_each(|run| self.release_locks(cx, run));
    }

    /// True while the run has an attempt that is not over, or waits here for one.
    fn needs_locks(&self, cx: &Context, run: &RunId) -> bool {
        self.active.get(run).is_some_and(|active| match active.state() {
            ActiveRunState::Local(LocalRun { phase, .. }) => {
                matches!(
                    phase,
                    Phase::Offered(_) | Phase::Accepting(_) | Phase::Beginning | Phase::Unconfirmed | Phase::Alive(_)
                )
            }
            ActiveRunState::Unowned => cx.leads(),
            ActiveRunState::Placed | ActiveRunState::Remote | ActiveRunState::CutOff | ActiveRunState::Settling => {
                false
            }
        })
    }

    pub(super) fn release_locks(&mut self, cx: &mut Context, run: &RunId) {
        for next in self.locks.release(cx, run) {
            self.check_again(cx, &next);
        }
    }

    /// Forgets a request that the backend has ended. Returns its run.
    fn end_request(&mut self, cx: &mut Context, id: LockRequestId) -> Option<RunId> {
        let run = self.locks.run(id).cloned();
        for next in self.locks.end(id) {
            self.check_again(cx, &next);
        }
        run
    }

    /// Has a run checked that waits to begin, because its locks may be free.
    fn check_again(&mut self, cx: &mut Context, run: &RunId) {
        if self.active.get(run).is_some_and(ActiveRun::is_offered) {
            return self.consider(cx, run);
        }
        let Some(active) = self.active.get(run).filter(|active| active.is_unowned() && cx.leads()) else { return };
        if active.is_queued() {
            self.changed(cx, run.job());
        } else {
            self.check_now(cx, [run.clone()]);
        }
    }
}

/// True for an attempt that was placed on this node, of a run that has had no process.
fn is_first_offer(active: &ActiveRun) -> bool {
    active.is_offered() && !active.record.has_past()
}
