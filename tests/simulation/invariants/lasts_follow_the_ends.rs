//! Invariant: `last/<job>` is written with every end of a run of the job, and says how its runs ended last.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::ledger::Last;
use cronkeeper_core::run::{HistoryRecord, RunEnd};
use jiff::Timestamp;

use super::super::facts::Fact;
use super::{Invariant, below, ops, written};
use crate::ledger::txn::Txn;

const LAST: &str = "/cronkeeper/last";

/// The records as they were written last.
#[derive(Default)]
pub struct LastsFollowTheEnds(BTreeMap<String, Last>);

impl LastsFollowTheEnds {
    fn committed(&mut self, txn: &Txn) -> Result<(), String> {
        let mut ends: BTreeMap<String, Vec<RunEnd>> = BTreeMap::new();
        for op in ops(txn) {
            if let Op::Create { path, data, .. } = op
                && path.starts_with("/cronkeeper/history/")
                && let Ok(HistoryRecord::Run(end)) = serde_json::from_slice(data)
            {
                ends.entry(end.run.job.to_string()).or_default().push(end);
            }
        }
        for op in ops(txn) {
            if let Op::Delete { path, .. } = op
                && let Some(job) = below(path, LAST)
            {
                self.0.remove(job);
            }
            let Some((job, data)) = written(op, LAST) else { continue };
            let last: Last = serde_json::from_slice(data).map_err(|error| format!("`{LAST}/{job}`: {error}"))?;
            let Some(ends) = ends.remove(job) else {
                return Err(format!("`{LAST}/{job}` is written without an end: {last:?}"));
            };
            let before = self.0.insert(job.to_owned(), last.clone());
            let possible = after(before, &ends);
            if !possible.contains(&last) {
                return Err(format!("`{LAST}/{job}` is {last:?}, expected {possible:?}"));
            }
        }
        match ends.first_key_value() {
            Some((job, _)) => Err(format!("a run of `{job}` has ended, and `{LAST}/{job}` is not written")),
            None => Ok(()),
        }
    }
}

/// What the record may be after these ends: a clock may have been ahead of the writer's when the one before was written.
fn after(before: Option<Last>, ends: &[RunEnd]) -> Vec<Last> {
    ends.iter()
        .fold(vec![before], |possible, end| {
            let with = |before: &Option<Last>| {
                [Timestamp::MAX, end.ended_at].map(|now| Some(Last::after(before.as_ref(), end, now)))
            };
            possible.iter().flat_map(with).collect()
        })
        .into_iter()
        .flatten()
        .collect()
}

impl Invariant for LastsFollowTheEnds {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => self.committed(txn),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cronkeeper_cluster::zookeeper::client::Mode;
    use cronkeeper_core::run::Outcome;

    use super::*;
    use crate::port::test_records::{record, success};
    use crate::zookeeper::Change;

    fn end(second: i64, outcome: Outcome) -> RunEnd {
        RunEnd { outcome, ..success(record("a", second, "0x1")) }
    }

    fn create(path: String, data: &impl serde::Serialize) -> Op {
        Op::Create { path, data: serde_json::to_vec(data).unwrap(), mode: Mode::Persistent }
    }

    /// The end and the record, each if there is one, in one write.
    fn written(end: Option<&RunEnd>, last: Option<&Last>) -> Fact {
        let end =
            end.map(|end| create(format!("/cronkeeper/history/a/{}", end.run.id()), &HistoryRecord::Run(end.clone())));
        let last = last.map(|last| create("/cronkeeper/last/a".into(), last));
        let change = Change::Ops(end.into_iter().chain(last).collect());
        Fact::Committed { txn: Arc::new(Txn { zxid: 1, time_ms: 0, session: 1, change }), touched: Vec::new() }
    }

    fn verdict(facts: &[Fact]) -> Result<(), String> {
        let mut invariant = LastsFollowTheEnds::default();
        facts.iter().try_for_each(|fact| invariant.observe(Uptime::ZERO, fact))
    }

    #[test]
    fn a_record_that_does_not_follow_the_ends_is_seen() {
        let (first, second) = (end(60, Outcome::Failure), end(120, Outcome::Success));
        let after_first = Last::after(None, &first, Timestamp::MAX);
        let after_both = Last::after(Some(&after_first), &second, Timestamp::MAX);
        let began = || written(Some(&first), Some(&after_first));
        assert_eq!(verdict(&[began(), written(Some(&second), Some(&after_both))]), Ok(()));
        let broken = |facts: &[Fact]| verdict(facts).expect_err("it is broken");
        assert!(broken(&[written(Some(&first), None)]).contains("is not written"));
        assert!(broken(&[written(None, Some(&after_first))]).contains("without an end"));
        assert!(broken(&[written(Some(&second), Some(&after_both))]).contains("expected"), "nothing was before it");
        let forgotten = Last::after(None, &second, Timestamp::MAX);
        assert!(broken(&[began(), written(Some(&second), Some(&forgotten))]).contains("expected"));
    }
}
