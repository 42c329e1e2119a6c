//! `on_recovery` follows the first success after a failure: how did the run end that ended before this one?
//!
//! The ledger's history says so, whoever led then. A leader that has seen every end of a job since it was elected knows it
//! by itself; else the ledger is asked, one run after the other, so that a new leader with many jobs floods nobody.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::{Cause, HookCall, drop_call};
use crate::engine::flight::RunOwner;
use crate::engine::{Engine, Turn};
use crate::job::{Hook, Job, JobName};
use crate::ledger::Request;
use crate::run::{Outcome, RunEnd, RunId};

/// What is known, and what is asked.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// How the newest run of a job ended, where this leader is sure.
    last: BTreeMap<JobName, Outcome>,
    /// Successes that may be recoveries; the first is asked about.
    asked: VecDeque<HookCall>,
}

impl Recovery {
    pub fn forget(&mut self, job: &JobName) {
        self.last.remove(job);
    }

    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn close(&mut self) -> VecDeque<HookCall> {
        std::mem::take(&mut self.asked)
    }
}

impl Engine {
    /// A run of the job ended so, and this node has written it.
    pub(super) fn look_for_recovery(&mut self, t: &mut Turn, job: &Arc<Job>, end: Arc<RunEnd>) {
        let before = self.hooks.recovery.last.remove(&job.name);
        if !job.hooks.contains_key(&Hook::Recovery) {
            return;
        }
        let sees_all = self.sees_all_runs_of(&job.name);
        if sees_all {
            self.hooks.recovery.last.insert(job.name.clone(), end.outcome);
        }
        if end.outcome != Outcome::Success {
            return;
        }
        match before.filter(|_| sees_all) {
            Some(before) => self.recover(t, job, end, Some(before)),
            None => self.ask_what_was_before(
                t,
                HookCall { hook: Hook::Recovery, job: Arc::clone(job), cause: Cause::Ended(end) },
            ),
        }
    }

    /// What a run of another node comes to is known to that node first.
    fn sees_all_runs_of(&self, job: &JobName) -> bool {
        self.leading.is_some()
            && !self.flights_of(job).any(|flight| matches!(flight.holder, RunOwner::Other | RunOwner::CutOff))
    }

    fn recover(&mut self, t: &mut Turn, job: &Arc<Job>, end: Arc<RunEnd>, before: Option<Outcome>) {
        if before.is_some_and(|before| before != Outcome::Success) {
            self.call(t, Hook::Recovery, job, Cause::Ended(end));
        }
    }

    fn ask_what_was_before(&mut self, t: &mut Turn, call: HookCall) {
        if !self.hooks.has_room() {
            return drop_call(t, &call);
        }
        self.hooks.recovery.asked.push_back(call);
        if self.hooks.recovery.len() == 1 {
            self.ask_again(t);
        }
    }

    /// Asks about the first; again under a new session, for what was asked under another may never be answered.
    pub(in crate::engine) fn ask_again(&mut self, t: &mut Turn) {
        if let (Some(call), true) = (self.hooks.recovery.asked.front(), self.session.is_some()) {
            t.ledger(Request::ReadBefore(call.run()));
        }
    }

    /// How the run ended that ended before this one; absent: none did.
    pub(in crate::engine) fn on_before_read(&mut self, t: &mut Turn, run: &RunId, before: Option<Outcome>) {
        let asked = &mut self.hooks.recovery.asked;
        if asked.front().is_none_or(|call| call.run() != *run) {
            return;
        }
        if let Some(HookCall { job, cause: Cause::Ended(end), .. }) = asked.pop_front() {
            self.recover(t, &job, end, before);
        }
        self.ask_again(t);
    }

    /// Other leaders have ended runs, or will: nothing is known by itself any more.
    pub(in crate::engine) fn forget_last_outcomes(&mut self) {
        self.hooks.recovery.last.clear();
    }
}
