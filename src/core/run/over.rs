//! The attempts of a node that are over, as far as the ledger was told.
//!
//! A service can forget what it has acknowledged. Then it has a run in flight again whose end it had, and only the node
//! that ran it can tell: the run must neither be taken for one that was never started, nor stay in flight. So the newest
//! of these attempts are remembered, and of those before them that they may have been.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Outcome, Reason, RunEnd, RunId, RunRecord};

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

/// The newest attempts that are over, at most [`REMEMBERED`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OverAttempts {
    /// Oldest first.
    attempts: VecDeque<OverAttempt>,
    /// An attempt that began until then may be missing.
    forgotten_until: Option<Timestamp>,
}

impl OverAttempts {
    pub fn remember(&mut self, over: OverAttempt) {
        self.attempts.push_back(over);
        if self.attempts.len() > REMEMBERED
            && let Some(oldest) = self.attempts.pop_front()
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
        let id = run.id();
        self.attempts.iter().any(|over| over.run == id && over.attempt >= run.attempt)
            || self.forgotten_until.is_some_and(|until| run.begun_at <= until)
    }

    /// True if an attempt of the run is remembered.
    pub fn mentions(&self, run: &RunId) -> bool {
        self.attempts.iter().any(|over| over.run == *run)
    }

    /// The end that the attempt gave its run, without its output.
    pub fn end_of(&self, run: &RunRecord) -> Option<RunEnd> {
        let id = run.id();
        let same = self.attempts.iter().rev().find(|over| over.run == id && over.attempt == run.attempt);
        same?.end.clone().map(|facts| facts.end_of(run))
    }

    pub fn iter(&self) -> impl Iterator<Item = &OverAttempt> {
        self.attempts.iter()
    }

    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
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
