//! The earlier attempts of a run.
//!
//! The run's record keeps them while the run is in flight, so that its end can list them.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Outcome, Reason, RunEnd, RunRecord};
use crate::term::NodeName;

/// Maximum number of earlier attempts to keep. The record must stay small however often the job fails.
const LISTED: usize = 10;

/// The end of an attempt that was not the run's last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The node that owned it.
    pub node: NodeName,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Exit code of the main process, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When it ended, or when the leader settled it.
    pub ended_at: Timestamp,
    /// How long it ran, in milliseconds; `None` if no process was started or nobody observed its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// A run's attempts before the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// Number of attempts that failed or timed out, which `retries` limits. Interrupted attempts do not count.
    pub failures: u32,
    /// The newest attempts, oldest first. If an older one may have begun its program and none of them, it is kept too.
    pub attempts: Vec<Attempt>,
}

impl Attempt {
    pub fn of(end: &RunEnd) -> Self {
        Self {
            attempt: end.run.attempt,
            node: end.run.owner.node.clone(),
            outcome: end.outcome,
            reason: end.reason,
            exit_code: end.exit_code,
            signal: end.signal,
            ended_at: end.ended_at,
            duration_ms: end.duration_ms,
        }
    }

    /// False if its program is known not to have begun.
    ///
    /// A failure that nobody saw the end of is one before there was a program.
    fn may_have_begun(&self) -> bool {
        self.outcome != Outcome::Failure || self.exit_code.is_some() || self.signal.is_some()
    }
}

impl Past {
    pub fn is_empty(&self) -> bool {
        self.failures == 0 && self.attempts.is_empty()
    }

    /// Records the end of an attempt that another one follows. Does nothing if the end is already recorded, or if the
    /// run is still waiting for its first attempt.
    pub fn note(&mut self, end: &RunEnd) {
        if end.run.attempt == 0 || self.end_of(&end.run).is_some() {
            return;
        }
        self.failures = self.failures.saturating_add(u32::from(end.outcome.is_failed()));
        self.attempts.push(Attempt::of(end));
        while self.attempts.len() > LISTED {
            self.drop_one();
        }
    }

    /// True if the program of one of these attempts may have begun.
    pub fn may_have_begun(&self) -> bool {
        self.attempts.iter().any(Attempt::may_have_begun)
    }

    /// Drops the oldest attempt, unless it alone shows that the run's program may have begun: then the next one.
    fn drop_one(&mut self) {
        let is_needed = self.may_have_begun() && !self.attempts.iter().skip(1).any(Attempt::may_have_begun);
        self.attempts.remove(usize::from(is_needed));
    }

    /// The recorded end of `run`'s current attempt, if any.
    pub fn end_of(&self, run: &RunRecord) -> Option<&Attempt> {
        self.attempts.last().filter(|last| last.attempt >= run.attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{record, success};

    fn failed(attempt: u32, outcome: Outcome) -> RunEnd {
        RunEnd { outcome, ..success(RunRecord { attempt, ..record("a", 0, "s") }) }
    }

    #[test]
    fn only_failures_and_timeouts_count() {
        let mut past = Past::default();
        for (attempt, outcome) in [(1, Outcome::Failure), (2, Outcome::Interrupted), (3, Outcome::Timeout)] {
            past.note(&failed(attempt, outcome));
        }
        assert_eq!((past.failures, past.attempts.len()), (2, 3));
    }

    #[test]
    fn a_maximal_count_does_not_wrap_around() {
        let mut past = Past { failures: u32::MAX, attempts: Vec::new() };
        past.note(&failed(1, Outcome::Failure));
        assert_eq!(past.failures, u32::MAX);
    }

    #[test]
    fn an_attempt_is_recorded_once() {
        let mut past = Past::default();
        past.note(&failed(1, Outcome::Failure));
        past.note(&failed(1, Outcome::Interrupted));
        assert_eq!((past.failures, past.attempts.len()), (1, 1));
    }

    #[test]
    fn however_many_attempts_follow_it_is_known_that_a_program_may_have_begun() {
        let not_started = |attempt| RunEnd { exit_code: None, ..failed(attempt, Outcome::Failure) };
        let mut past = Past::default();
        (1..=20).for_each(|attempt| past.note(&not_started(attempt)));
        assert!(!past.may_have_begun());
        past.note(&failed(21, Outcome::Interrupted));
        (22..=50).for_each(|attempt| past.note(&not_started(attempt)));
        let numbers: Vec<u32> = past.attempts.iter().map(|attempt| attempt.attempt).collect();
        assert_eq!((past.may_have_begun(), numbers.first(), numbers.get(1)), (true, Some(&21), Some(&42)));
        past.note(&failed(51, Outcome::Timeout));
        assert_eq!((past.attempts.len(), past.attempts.first().map(|first| first.attempt)), (LISTED, Some(42)));
        assert!(Attempt::of(&failed(1, Outcome::Failure)).may_have_begun());
    }

    #[test]
    fn a_run_that_fails_for_ever_keeps_a_small_record() {
        let mut past = Past::default();
        (1..=1000).for_each(|attempt| past.note(&failed(attempt, Outcome::Failure)));
        assert_eq!((past.failures, past.attempts.len()), (1000, LISTED));
        assert_eq!(past.attempts.last().map(|last| last.attempt), Some(1000));
    }
}
