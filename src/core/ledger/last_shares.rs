//! How the newest share of each node ended, for a job on every node: part of the ledger's `last/<job>`.
//!
//! Without it the end that was written last would hide a failure on another node. Each occurrence replaces it, so a
//! node that is gone is not in it for long; what an operator triggers since then counts for the nodes that ran it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LastEnd;
use crate::clock::{AHEAD, later};
use crate::run::{Outcome, RunId};
use crate::term::NodeName;

/// Most ends that are kept with their details. With the names of as many nodes as a cluster has, the record stays small.
const MOST_FAILED: usize = 12;
/// Most names of other nodes.
const MOST_NAMED: usize = 128;
/// The most nodes for which the last trigger of their shares is remembered. Of others a late end of an older share may
/// count.
const MOST_TRIGGERED: usize = 16;

/// How the newest share of each node ended, since the newest occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastShares {
    /// The newest occurrence with a share that has ended.
    pub run: RunId,
    /// The nodes whose newest share succeeded.
    pub ok: BTreeSet<NodeName>,
    /// The ends of the newest shares that did not succeed, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<LastEnd>,
    /// Further nodes whose newest share did not succeed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub also_failed: BTreeSet<NodeName>,
    /// When the newest share of a node was due, if an operator has triggered it since that occurrence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub since: BTreeMap<NodeName, Timestamp>,
}

impl LastShares {
    /// What is known once this end is written too; nothing if it is not that of a share. `now` is the writer's time: an
    /// occurrence further in the future than clocks may differ is none.
    #[must_use]
    pub fn after(previous: Option<&Self>, end: &LastEnd, now: Timestamp) -> Option<Self> {
        let node = end.run.node()?;
        let run = end.run.clone().on(None);
        let is_past = |at: Timestamp| at <= later(now.max(end.at), AHEAD.unsigned_abs());
        let is_new = |known: &Self| run.trigger().is_none() && run.scheduled_at() > known.run.scheduled_at();
        let known = previous.filter(|known| is_past(known.run.scheduled_at()) && !is_new(known));
        let mut shares = known.cloned().unwrap_or_else(|| Self::of(run));
        if !shares.has_newer(node, end) {
            shares.put(node, end);
        }
        Some(shares)
    }

    /// How the node's newest share ended, if it is not that of this run.
    pub fn outcome_of(&self, node: &NodeName, run: &RunId) -> Option<Outcome> {
        let failed = self.failed.iter().find(|failed| failed.run.node() == Some(node));
        match failed {
            Some(failed) => (failed.run != *run).then_some(failed.outcome),
            None if self.also_failed.contains(node) => Some(Outcome::Failure),
            None => self.ok.contains(node).then_some(Outcome::Success),
        }
    }

    fn of(run: RunId) -> Self {
        Self { run, ok: BTreeSet::new(), failed: Vec::new(), also_failed: BTreeSet::new(), since: BTreeMap::new() }
    }

    /// True if this end is that of an older share of the node than the one that counts.
    fn has_newer(&self, node: &NodeName, end: &LastEnd) -> bool {
        let at = end.run.scheduled_at();
        let is_old = at < self.run.scheduled_at();
        let newer_failure = |failed: &LastEnd| failed.run.node() == Some(node) && failed.run.scheduled_at() > at;
        let is_newer = self.since.get(node).is_some_and(|&since| since > at);
        let has_ended = self.ok.contains(node) || self.also_failed.contains(node);
        is_newer || self.failed.iter().any(newer_failure) || is_old && has_ended
    }

    fn put(&mut self, node: &NodeName, end: &LastEnd) {
        self.failed.retain(|failed| failed.run.node() != Some(node));
        self.also_failed.remove(node);
        self.ok.remove(node);
        self.since.remove(node);
        if end.run.scheduled_at() > self.run.scheduled_at() && self.since.len() < MOST_TRIGGERED {
            self.since.insert(node.clone(), end.run.scheduled_at());
        }
        let has_room = self.ok.len() + self.also_failed.len() < MOST_NAMED;
        if end.outcome != Outcome::Success && self.failed.len() < MOST_FAILED {
            let place = self.failed.partition_point(|failed| failed.run.node() < Some(node));
            self.failed.insert(place, end.clone());
        } else if has_room {
            let names = if end.outcome == Outcome::Success { &mut self.ok } else { &mut self.also_failed };
            names.insert(node.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::TriggerSeq;
    use crate::test_records::{record, success};

    fn end(second: i64, trigger: Option<u64>, node: &str, outcome: Outcome) -> LastEnd {
        let end = LastEnd::from(&success(record("rotate", second, "0x1")));
        let run = match trigger {
            Some(seq) => RunId::manual(end.run.job().clone(), end.run.scheduled_at(), TriggerSeq(seq)),
            None => end.run.clone(),
        };
        LastEnd { run: run.on(Some(NodeName::new(node))), node: NodeName::new(node), outcome, ..end }
    }

    fn after(ends: &[LastEnd]) -> LastShares {
        let now = Timestamp::from_second(1_000).unwrap();
        ends.iter().fold(None, |shares, end| LastShares::after(shares.as_ref(), end, now)).expect("they are shares")
    }

    fn shown(shares: &LastShares) -> (Vec<&str>, Vec<&str>) {
        let failed = shares.failed.iter().map(|failed| failed.node.as_str());
        (shares.ok.iter().map(NodeName::as_str).collect(), failed.collect())
    }

    const OK: Outcome = Outcome::Success;
    const BAD: Outcome = Outcome::Failure;

    #[test]
    fn a_success_on_one_node_hides_no_failure_on_another() {
        let ends = [end(60, None, "c", BAD), end(60, None, "a", OK), end(60, None, "b", OK)];
        assert_eq!(shown(&after(&ends)), (vec!["a", "b"], vec!["c"]));
        assert_eq!(shown(&after(&[&ends[..], &ends[..]].concat())), (vec!["a", "b"], vec!["c"]), "each counts once");
    }

    #[test]
    fn the_next_occurrence_begins_anew_and_a_trigger_counts_for_its_nodes() {
        let first = [end(60, None, "c", BAD), end(60, None, "a", OK)];
        let elsewhere = [&first[..], &[end(70, Some(1), "a", OK)]].concat();
        assert_eq!(shown(&after(&elsewhere)), (vec!["a"], vec!["c"]), "what another node ran mends nothing");
        let mended = [&first[..], &[end(70, Some(1), "c", OK)]].concat();
        assert_eq!(shown(&after(&mended)), (vec!["a", "c"], vec![]));
        let next = [&first[..], &[end(120, None, "a", OK)]].concat();
        assert_eq!((shown(&after(&next)), after(&next).run.scheduled_at().as_second()), ((vec!["a"], vec![]), 120));
    }

    /// A share may end after the next occurrence has: its node may have had none since.
    #[test]
    fn an_older_share_counts_unless_its_node_has_ended_a_newer_one() {
        let late = [end(120, None, "a", OK), end(60, None, "c", BAD)];
        assert_eq!(shown(&after(&late)), (vec!["a"], vec!["c"]));
        let newer = [end(120, None, "c", OK), end(60, None, "c", BAD)];
        assert_eq!(shown(&after(&newer)), (vec!["c"], vec![]));
        let worse = [end(120, None, "c", BAD), end(60, None, "c", OK)];
        assert_eq!(shown(&after(&worse)), (vec![], vec!["c"]));
    }

    #[test]
    fn a_late_end_of_the_newest_occurrence_hides_nothing_that_was_triggered_since() {
        for (triggered, late) in [(OK, BAD), (BAD, OK)] {
            let ends = [end(120, None, "a", OK), end(130, Some(1), "c", triggered), end(120, None, "c", late)];
            let shares = after(&ends);
            assert_eq!(shown(&shares).0.contains(&"c"), triggered == OK, "{shares:?}");
            let next = [&ends[..], &[end(180, None, "c", late)]].concat();
            assert_eq!(shown(&after(&next)).0.contains(&"c"), late == OK, "the next occurrence counts");
        }
    }

    #[test]
    fn what_a_clock_wrote_that_was_ahead_gives_way() {
        let ahead = LastShares::after(None, &end(9_000, None, "c", BAD), Timestamp::from_second(9_000).unwrap());
        let now = Timestamp::from_second(120).unwrap();
        let right = LastShares::after(ahead.as_ref(), &end(120, None, "a", OK), now).unwrap();
        assert_eq!(shown(&right), (vec!["a"], vec![]));
    }

    #[test]
    fn a_run_that_is_no_share_leaves_nothing() {
        let share = after(&[end(60, None, "c", BAD)]);
        let whole = LastEnd { run: share.run.clone(), ..end(60, None, "c", OK) };
        assert_eq!(LastShares::after(Some(&share), &whole, Timestamp::MAX), None);
    }

    /// It is read as one of many small records.
    #[test]
    fn however_many_nodes_there_are_the_record_stays_small() {
        let name = |n: usize| format!("{n:064}");
        let ends = (0..500).map(|n| end(60, None, &name(n), if n % 2 == 0 { OK } else { BAD }));
        let triggered = (0..500).map(|n| end(70, Some(1), &name(n), if n % 2 == 0 { OK } else { BAD }));
        let shares = after(&ends.chain(triggered).collect::<Vec<_>>());
        assert_eq!((shares.failed.len(), shares.also_failed.len(), shares.ok.len()), (12, 58, 70));
        let bytes = serde_json::to_vec(&shares).unwrap().len();
        // The limit of SMALL in the backends' `bounded` is 16 KiB.
        assert!(bytes < 15 << 10, "{bytes}");
    }
}
