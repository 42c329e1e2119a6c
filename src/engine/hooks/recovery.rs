//! `on_recovery` follows the first success after a failure: how did the run end that ended before this one?
//!
//! The ledger's history says so, whoever led then. A leader that has seen every end of a job since it was elected knows it
//! by itself; else the ledger is asked, one run after the other, so that a new leader with many jobs floods nobody.

use std::collections::{BTreeMap, VecDeque};

use super::call::HookCall;
use crate::job::JobName;
use crate::run::{Outcome, RunId};

/// How jobs' last runs ended, and the successes of which the ledger is asked.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// How the newest run of a job ended, where this leader is sure.
    last: BTreeMap<JobName, Outcome>,
    /// Successes that may be recoveries; the first is asked about.
    asked: VecDeque<HookCall>,
}

impl Recovery {
    pub fn take_last(&mut self, job: &JobName) -> Option<Outcome> {
        self.last.remove(job)
    }

    pub fn note_last(&mut self, job: &JobName, outcome: Outcome) {
        self.last.insert(job.clone(), outcome);
    }

    pub fn forget_all(&mut self) {
        self.last.clear();
    }

    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Puts a success in line. True where it is the first.
    pub fn ask(&mut self, call: HookCall) -> bool {
        self.asked.push_back(call);
        self.asked.len() == 1
    }

    /// The run that is asked about.
    pub fn asked_about(&self) -> Option<RunId> {
        self.asked.front().map(HookCall::run)
    }

    /// What was asked about the run is answered; absent: it was not asked.
    pub fn answered(&mut self, run: &RunId) -> Option<HookCall> {
        self.asked.front().filter(|call| call.run() == *run)?;
        self.asked.pop_front()
    }

    pub fn close(&mut self) -> VecDeque<HookCall> {
        std::mem::take(&mut self.asked)
    }
}
