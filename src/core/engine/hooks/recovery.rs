//! Decides if `on_recovery` follows a success: only if the job's run before it failed.
//!
//! The ledger's history has that run's outcome, whoever led then. A leader that has seen every end of a job since it
//! was elected knows the outcome itself. Otherwise the ledger is read, for one run at a time, so that a new leader with
//! many jobs does not flood it.

use std::collections::{BTreeMap, VecDeque};

use super::call::JobHookCall;
use super::queue::Load;
use crate::job::JobName;
use crate::run::{Outcome, RunId};

/// Outcomes of jobs' last runs, and the successes for which the ledger must be read.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The outcome of a job's newest run, if this leader is sure of it.
    last: BTreeMap<JobName, Outcome>,
    /// For each job, how many ends of this node the ledger may have taken before another node's end that came to light
    /// while they were unanswered: the outcome that they wrote may not be the last.
    overtaken: BTreeMap<JobName, usize>,
    /// Successes that may be recoveries. A read is in flight for the first.
    unresolved: VecDeque<JobHookCall>,
    /// What they take.
    load: Load,
}

impl Recovery {
    pub fn take_last(&mut self, job: &JobName) -> Option<Outcome> {
        self.last.remove(job)
    }

    pub fn note_last(&mut self, job: &JobName, outcome: Outcome) {
        self.last.insert(job.clone(), outcome);
    }

    /// Another node has ended a run of the job, while `unanswered` ends of this node were being written.
    pub fn overtake(&mut self, job: &JobName, unanswered: usize) {
        self.last.remove(job);
        if unanswered > 0 {
            self.overtaken.insert(job.clone(), unanswered);
        }
    }

    /// True if the end that was just accepted may have been written before another node's.
    pub fn was_overtaken(&mut self, job: &JobName) -> bool {
        let Some(left) = self.overtaken.get_mut(job) else { return false };
        *left -= 1;
        if *left == 0 {
            self.overtaken.remove(job);
        }
        true
    }

    pub fn forget_all(&mut self) {
        self.last.clear();
        self.overtaken.clear();
    }

    /// What the successes take that may be recoveries.
    pub fn load(&self) -> Load {
        self.load
    }

    pub fn is_idle(&self) -> bool {
        self.unresolved.is_empty()
    }

    /// Queues a success. Returns true if it is the first.
    pub fn push(&mut self, call: JobHookCall) -> bool {
        self.load += Load::of(call.bytes());
        self.unresolved.push_back(call);
        self.unresolved.len() == 1
    }

    /// The run for which the ledger is being read.
    pub fn requested_run(&self) -> Option<RunId> {
        self.unresolved.front().and_then(JobHookCall::run)
    }

    /// Takes the success that the read was for; `None` if no read was requested for that run.
    pub fn answered(&mut self, run: &RunId) -> Option<JobHookCall> {
        self.unresolved.front().filter(|call| call.run().as_ref() == Some(run))?;
        let call = self.unresolved.pop_front()?;
        self.load -= Load::of(call.bytes());
        Some(call)
    }

    pub fn close(&mut self) -> VecDeque<JobHookCall> {
        self.load = Load::default();
        std::mem::take(&mut self.unresolved)
    }
}
