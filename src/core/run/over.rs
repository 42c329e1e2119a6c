//! The attempts of a node that are over, as far as the ledger knows.
//!
//! A service can forget what it has acknowledged. Then it has a run in flight again whose end it had, and only the node
//! that ran it can tell: the run must neither be taken for one that was never started, nor stay in flight. So the newest
//! of these attempts are remembered, and of those before them that they may have been.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Outcome, Reason, RunEnd, RunId, RunRecord};
use crate::job::JobName;

/// Most attempts that are remembered.
pub const REMEMBERED: usize = 1_024;

/// An attempt that is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverAttempt {
    run: RunId,
    attempt: u32,
    begun_at: Timestamp,
    /// Absent if the attempt did not end the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<EndFacts>,
}

/// What a run's end says besides its record and its output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EndFacts {
    outcome: Outcome,
    reason: Option<Reason>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    ended_at: Timestamp,
    duration_ms: Option<u64>,
    leftovers: u32,
    detail: Option<String>,
}

impl OverAttempt {
    /// The attempt of this record; `end`: that of the run, if the attempt ended it.
    pub fn of(run: &RunRecord, end: Option<&RunEnd>) -> Self {
        Self { run: run.id(), attempt: run.attempt, begun_at: run.begun_at, end: end.map(EndFacts::of) }
    }
}

impl EndFacts {
    fn of(end: &RunEnd) -> Self {
        let RunEnd { outcome, reason, exit_code, signal, ended_at, duration_ms, leftovers, detail, .. } = end.clone();
        Self { outcome, reason, exit_code, signal, ended_at, duration_ms, leftovers, detail }
    }

    fn end_of(self, run: &RunRecord) -> RunEnd {
        let Self { outcome, reason, exit_code, signal, ended_at, duration_ms, leftovers, detail } = self;
        let unseen = RunEnd::unseen(run, outcome, reason, ended_at);
        RunEnd { exit_code, signal, duration_ms, leftovers, detail, ..unseen }
    }
}

/// The newest attempt that is over of each run, of at most [`REMEMBERED`] runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverAttempts {
    newest: BTreeMap<RunId, OverAttempt>,
    /// The runs, oldest first.
    order: VecDeque<RunId>,
    /// An attempt that began until then may be missing.
    forgotten_until: Option<Timestamp>,
}

impl OverAttempts {
    pub fn remember(&mut self, over: OverAttempt) {
        match self.newest.get_mut(&over.run) {
            Some(known) if known.attempt > over.attempt => {}
            Some(known) => *known = over,
            None => {
                self.order.push_back(over.run.clone());
                self.newest.insert(over.run.clone(), over);
            }
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front().and_then(|run| self.newest.remove(&run))
        {
            self.forget_until(oldest.begun_at);
        }
    }

    /// Attempts that began until then may be missing.
    pub fn forget_until(&mut self, begun_until: Timestamp) {
        self.forgotten_until = self.forgotten_until.max(Some(begun_until));
    }

    pub fn forgotten_until(&self) -> Option<Timestamp> {
        self.forgotten_until
    }

    /// True unless the attempt is certainly not over.
    pub fn may_include(&self, run: &RunRecord) -> bool {
        self.reaches(run) || self.forgotten_until.is_some_and(|until| run.begun_at <= until)
    }

    /// True if exactly this attempt is remembered, of whichever process of the node it was.
    pub fn has(&self, run: &RunRecord) -> bool {
        let is_it = |over: &OverAttempt| over.attempt == run.attempt && over.begun_at == run.begun_at;
        self.newest.get(&run.id()).is_some_and(is_it)
    }

    /// True if this attempt of the run is remembered, or a later one.
    pub fn reaches(&self, run: &RunRecord) -> bool {
        self.newest.get(&run.id()).is_some_and(|over| over.attempt >= run.attempt)
    }

    /// True if a later attempt of the run than this one is remembered.
    pub fn has_later(&self, run: &RunRecord) -> bool {
        self.newest.get(&run.id()).is_some_and(|over| over.attempt > run.attempt)
    }

    /// The runs of the job that are remembered.
    pub fn runs_of(&self, job: &JobName) -> impl Iterator<Item = &RunId> {
        self.newest.range(RunId::all_of(job)).map(|(run, _)| run)
    }

    /// True if an attempt of the run is remembered.
    pub fn mentions(&self, run: &RunId) -> bool {
        self.newest.contains_key(run)
    }

    /// The record of the run's newest attempt that is remembered, if that is newer than this one.
    pub fn newest_of(&self, run: RunRecord) -> RunRecord {
        match self.newest.get(&run.id()) {
            Some(over) if over.attempt > run.attempt => {
                RunRecord { attempt: over.attempt, begun_at: over.begun_at, ..run }
            }
            _ => run,
        }
    }

    /// The end that the attempt gave its run, without its output.
    pub fn end_of(&self, run: &RunRecord) -> Option<RunEnd> {
        self.newest
            .get(&run.id())
            .filter(|over| over.attempt == run.attempt)?
            .end
            .clone()
            .map(|facts| facts.end_of(run))
    }

    /// The attempts, those of the oldest runs first.
    pub fn iter(&self) -> impl Iterator<Item = &OverAttempt> {
        self.order.iter().filter_map(|run| self.newest.get(run))
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};

    #[test]
    fn what_is_forgotten_may_have_been() {
        let run = |second| record("a", second, "s");
        let many = REMEMBERED as i64 + 2;
        let mut over = OverAttempts::default();
        (0..many).for_each(|second| over.remember(OverAttempt::of(&run(second), Some(&success(run(second))))));
        assert_eq!(over.len(), REMEMBERED);
        let not_over = (0..=many).filter(|&second| !over.may_include(&run(second)));
        assert_eq!(not_over.collect::<Vec<_>>(), [many], "only what began after all of them");
        assert!(over.end_of(&run(1)).is_none() && over.end_of(&run(2)).is_some());
    }

    #[test]
    fn an_earlier_attempt_is_over_too_and_a_later_one_is_not() {
        let run = |attempt| RunRecord { attempt, ..record("a", 0, "s") };
        let mut over = OverAttempts::default();
        over.remember(OverAttempt::of(&run(2), None));
        assert_eq!([1, 2, 3].map(|attempt| over.may_include(&run(attempt))), [true, true, false]);
        assert_eq!(over.end_of(&run(2)), None, "it did not end the run");
    }
}
