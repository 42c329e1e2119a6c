//! The ledger's `last/<job>`: how the runs of a job ended last, so that nobody has to search the history for it.
//!
//! Every end also moves this record, in the same atomic write and at the version that was read. So ends have an order
//! even if several nodes write them, and whoever writes one knows which outcome came before.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LastShares;
use crate::clock::{AHEAD, later};
use crate::run::{Outcome, Reason, RunEnd, RunId};
use crate::term::NodeName;

/// How the runs of a job ended last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    /// Format version of the record.
    pub v: u32,
    /// The run that ended last, by the clocks of the nodes.
    pub end: LastEnd,
    /// When the last run that succeeded ended; absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success: Option<Timestamp>,
    /// The end that was written last. A node may write an end late, so this can be another run than that of `end`.
    pub written: WrittenEnd,
    /// How the newest share of each node ended; absent unless the job runs on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Box<LastShares>>,
}

/// The end of a run, without what takes much memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastEnd {
    pub run: RunId,
    /// The node that owned the run.
    pub node: NodeName,
    /// The number of the last attempt, from 1.
    pub attempt: u32,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub at: Timestamp,
}

/// What the order of the writes says of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenEnd {
    pub run: RunId,
    pub outcome: Outcome,
    /// The outcome of the end that was written before it; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Outcome>,
}

impl Last {
    /// The record once this end is written too. `now` is the writer's time.
    ///
    /// A time further in the future than clocks may differ was written by one that was ahead, so whatever is written now
    /// is newer.
    #[must_use]
    pub fn after(previous: Option<&Self>, end: &RunEnd, now: Timestamp) -> Self {
        let is_past = |at: Timestamp| at <= later(now.max(end.ended_at), AHEAD.unsigned_abs());
        let newer = previous.map(|last| &last.end).filter(|last| is_past(last.at) && last.at > end.ended_at);
        let before = previous.and_then(|last| last.success).filter(|&at| is_past(at));
        let own = (end.outcome == Outcome::Success).then_some(end.ended_at);
        Self {
            v: 1,
            end: newer.cloned().unwrap_or_else(|| LastEnd::from(end)),
            success: before.max(own),
            written: WrittenEnd {
                run: end.run.id(),
                outcome: end.outcome,
                before: Self::outcome_before(previous, &end.run.id()),
            },
            shares: LastShares::after(previous.and_then(|last| last.shares.as_deref()), &end.into(), now).map(Box::new),
        }
    }

    /// The outcome of the end that was written before that of this run, if the record was read before the run's end was
    /// written, or just after.
    pub fn outcome_before(read: Option<&Self>, run: &RunId) -> Option<Outcome> {
        let written = &read?.written;
        if written.run == *run { written.before } else { Some(written.outcome) }
    }

    /// The outcome that says whether this end is a recovery, by the record as it was before: that of the end written
    /// before it, and of a share that of the same node's share before it.
    pub fn compared_with(read: Option<&Self>, end: &RunEnd) -> Option<Outcome> {
        match &end.run.on {
            None => Self::outcome_before(read, &end.run.id()),
            Some(node) => read?.shares.as_ref()?.outcome_of(node, &end.run.id()),
        }
    }
}

impl From<&RunEnd> for LastEnd {
    fn from(end: &RunEnd) -> Self {
        let RunEnd { outcome, reason, exit_code, signal, ended_at: at, .. } = *end;
        let (node, attempt) = (end.run.owner.node.clone(), end.run.attempt);
        Self { run: end.run.id(), node, attempt, outcome, reason, exit_code, signal, at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_records::{record, success};

    fn end(second: i64, outcome: Outcome) -> RunEnd {
        RunEnd { outcome, ended_at: at(second), ..success(record("backup", second, "0x1")) }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The record after these ends, written in this order by a clock that was never ahead.
    fn written(ends: &[RunEnd]) -> Option<Last> {
        ends.iter().fold(None, |last, end| Some(Last::after(last.as_ref(), end, Timestamp::MAX)))
    }

    #[test]
    fn an_end_that_is_written_late_counts_for_the_order_of_the_writes_alone() {
        let ends = [end(10, Outcome::Success), end(5, Outcome::Failure), end(20, Outcome::Success)];
        let late = written(&ends[..2]).unwrap();
        assert_eq!((late.end.at, late.success), (at(10), Some(at(10))));
        assert_eq!((late.written.outcome, late.written.before), (Outcome::Failure, Some(Outcome::Success)));
        let last = written(&ends).unwrap();
        assert_eq!((last.end.at, last.success, last.written.before), (at(20), Some(at(20)), Some(Outcome::Failure)));
    }

    #[test]
    fn what_a_clock_wrote_that_was_ahead_gives_way() {
        let ahead = written(&[end(900, Outcome::Success)]).unwrap();
        let right = Last::after(Some(&ahead), &end(20, Outcome::Success), at(21));
        assert_eq!((right.end.at, right.success), (at(20), Some(at(20))));
        let failed = Last::after(Some(&ahead), &end(20, Outcome::Failure), at(21));
        assert_eq!((failed.end.at, failed.success), (at(20), None), "a success in the future is none");
        let a_little = Last::after(Some(&ahead), &end(870, Outcome::Failure), at(871));
        assert_eq!((a_little.end.at, a_little.success), (at(900), Some(at(900))), "as clocks may differ");
    }

    #[test]
    fn an_end_that_is_on_record_is_not_its_own_predecessor() {
        let (first, second) = (end(10, Outcome::Failure), end(20, Outcome::Success));
        let last = written(&[first, second.clone()]).unwrap();
        assert_eq!(Last::outcome_before(Some(&last), &second.run.id()), Some(Outcome::Failure));
        assert_eq!(Last::after(Some(&last), &second, at(30)), last, "it is written once");
        assert_eq!(Last::outcome_before(None, &second.run.id()), None);
    }

    #[test]
    fn the_record_is_what_the_contract_says() {
        let last = written(&[end(10, Outcome::Failure), end(20, Outcome::Success)]).unwrap();
        let json = serde_json::to_value(&last).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "v": 1,
                "end": {
                    "run": "backup.19700101T000020Z", "node": "n", "attempt": 1, "outcome": "success",
                    "exit_code": 0, "at": "1970-01-01T00:00:20Z",
                },
                "success": "1970-01-01T00:00:20Z",
                "written": {"run": "backup.19700101T000020Z", "outcome": "success", "before": "failure"},
            })
        );
        assert_eq!(serde_json::from_value::<Last>(json).unwrap(), last);
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn it_says_what_a_search_of_all_ends_finds(
            ends in prop::collection::vec((0_i64..100, any::<bool>()), 1..20),
        ) {
            let outcome = |is_success| if is_success { Outcome::Success } else { Outcome::Failure };
            let ends: Vec<RunEnd> = ends.into_iter().map(|(second, ok)| end(second, outcome(ok))).collect();
            let last = written(&ends).unwrap();
            prop_assert_eq!(Some(last.end.at), ends.iter().map(|end| end.ended_at).max());
            let successes = ends.iter().filter(|end| end.outcome == Outcome::Success);
            prop_assert_eq!(last.success, successes.map(|end| end.ended_at).max());
            prop_assert_eq!(last.written.outcome, ends.last().unwrap().outcome);
        }
    }
}
