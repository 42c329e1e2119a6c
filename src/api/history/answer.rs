//! The answer: a page of the history, merged from what several places have, and where it may have gaps.

use std::collections::HashSet;
use std::fmt::Display;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::is_default;
use crate::archive::json_size;
use crate::status::HistoryEntry;
use cronkeeper_core::ledger::Window;
use cronkeeper_core::ledger::filter::Position;
use cronkeeper_core::term::NodeName;

/// Most nodes that an answer names as missing; of the others it gives the number.
const MOST_NAMED: usize = 100;

/// The body of a history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct History {
    /// Newest first, each once.
    pub records: Vec<HistoryEntry>,
    /// There may be older records that the request wants: with this as `before`, the next answer continues. It is the same
    /// place on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Other nodes may have older records in their archives, which are not in this answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub older_elsewhere: bool,
    /// The nodes whose archives are in this answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeName>,
    /// The nodes whose archives are not in it, though they may have records that the request wants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingNode>,
    /// How many more nodes are missing than are named.
    #[serde(default, skip_serializing_if = "is_default")]
    pub missing_more: usize,
    /// The archives of the missing nodes may have records from before this that no other place has. Absent: nothing
    /// that the request wants is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete_before: Option<Timestamp>,
    /// Why this node's archive could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive_error: Option<String>,
    /// Why the ledger could not be read; the records are then those of the archives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger_error: Option<String>,
    /// Records of the ledger that cannot be read, and are not in this answer unless an archive has them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unreadable: usize,
    /// Older records are missing, because the answer would have been too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// A node whose part of the history is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissingNode {
    pub node: NodeName,
    /// The reason, with what to do about it.
    pub why: String,
}

impl History {
    /// Up to when the records that are shown may have gaps, if they may: all of them may be newer.
    pub fn gap(&self) -> Option<Timestamp> {
        let is_newer = |before: &Timestamp| {
            self.next.is_some() && self.records.last().is_some_and(|oldest| oldest.at() >= *before)
        };
        self.incomplete_before.filter(|before| !is_newer(before))
    }

    /// Names the nodes that are missing, sorted, as far as there is room.
    pub(super) fn name_missing(&mut self, mut missing: Vec<MissingNode>) {
        missing.sort();
        missing.dedup_by(|a, b| a.node == b.node);
        self.missing_more = missing.len().saturating_sub(MOST_NAMED);
        missing.truncate(MOST_NAMED);
        self.missing = missing;
    }
}

/// What is shown of the time in which other nodes may have ended runs too: `before 2026-11-20 03:12:20 only what host-a
/// ran itself`.
pub fn gap_in_words(before: impl Display, nodes: &[NodeName]) -> String {
    let shown = match nodes {
        [] => "a part of the history".to_owned(),
        [node] => format!("what {node} ran itself"),
        [first @ .., last] if nodes.len() <= 4 => {
            let first = first.iter().map(NodeName::to_string).collect::<Vec<_>>().join(", ");
            format!("what {first} and {last} ran themselves")
        }
        _ => format!("what {} nodes ran themselves", nodes.len()),
    };
    format!("before {before} only {shown}")
}

/// Merges the answers of several places to one question, and never holds much more than the window allows.
#[derive(Debug)]
pub(super) struct Merge {
    window: Window,
    /// Newest first, each with its size in bytes.
    kept: Vec<(Position, usize, HistoryEntry)>,
    /// Some place may have more that is older than this: what is older belongs to a later page.
    floor: Option<Position>,
    is_cut: bool,
}

/// What a merge has come to.
#[derive(Debug)]
pub(super) struct Page {
    /// Newest first, each once.
    pub records: Vec<HistoryEntry>,
    /// All records up to here are in the page; there may be older ones.
    pub next: Option<Position>,
    /// The page is shorter than was wanted, because it would have been too long in bytes.
    pub is_cut: bool,
}

impl Merge {
    pub fn new(window: Window) -> Self {
        Self { window, kept: Vec::new(), floor: None, is_cut: false }
    }

    /// Adds the newest records of a place. `covered_to`: it may have more that is older than this.
    ///
    /// Where two places have the same record, that of the first stays. Of a skip record that has grown, the newest stays.
    pub fn add(&mut self, records: Vec<HistoryEntry>, covered_to: Option<Position>) {
        self.kept.extend(records.into_iter().map(|record| (record.position(), json_size(&record), record)));
        self.kept.sort_by(|(a, ..), (b, ..)| b.cmp(a));
        let mut seen = HashSet::new();
        self.kept.retain(|(position, ..)| seen.insert((position.run.clone(), position.kind)));
        self.raise_floor(covered_to);
        let sizes = self.kept.iter().scan(0_usize, |sum, (_, bytes, _)| {
            *sum = sum.saturating_add(*bytes);
            Some(*sum)
        });
        // The first one always fits: a page without records would never end.
        let fit = sizes.take_while(|sum| *sum <= self.window.bytes).count().max(1);
        self.is_cut |= fit < self.kept.len().min(self.window.records);
        let most = fit.min(self.window.records);
        if most < self.kept.len() {
            self.kept.truncate(most);
            self.raise_floor(self.kept.last().map(|(oldest, ..)| oldest.clone()));
        }
    }

    fn raise_floor(&mut self, to: Option<Position>) {
        self.floor = self.floor.take().max(to);
        if let Some(floor) = &self.floor {
            self.kept.retain(|(position, ..)| position >= floor);
        }
    }

    /// Notes that a place has left out records because they were too long.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    pub fn page(self) -> Page {
        // If newer records have reached the wanted number since then, none was left out.
        let is_cut = self.is_cut && self.kept.len() < self.window.records;
        Page { records: self.kept.into_iter().map(|(.., record)| record).collect(), next: self.floor, is_cut }
    }
}

#[cfg(test)]
mod tests {
    use cronkeeper_core::clock::stamp;

    use std::cmp::Reverse;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::test_records::{record, skip, success};
    use cronkeeper_core::run::{HistoryRecord, RunEnd, Skip};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(due: i64, ended: i64) -> HistoryEntry {
        HistoryRecord::Run(RunEnd { ended_at: at(ended), ..success(record("load", due, "s")) }).into()
    }

    fn missed(first: i64, count: u64, decided: i64) -> HistoryEntry {
        HistoryRecord::Skip(Skip { count, decided_at: at(decided), ..skip("load", first) }).into()
    }

    fn positions(records: &[HistoryEntry]) -> Vec<i64> {
        records.iter().map(|record| record.at().as_second()).collect()
    }

    #[test]
    fn below_what_one_place_has_told_nothing_is_shown_yet() {
        let mut merge = Merge::new(Window { records: 10, bytes: usize::MAX });
        let newer = vec![run(1, 40), run(2, 30)];
        let covered_to = newer.last().map(HistoryEntry::position);
        merge.add(newer, covered_to.clone());
        merge.add(vec![run(3, 50), run(4, 20)], None);
        let page = merge.page();
        assert_eq!((positions(&page.records), page.next, page.is_cut), (vec![50, 40, 30], covered_to, false));
    }

    #[test]
    fn of_a_skip_record_that_has_grown_the_newest_is_shown() {
        let mut merge = Merge::new(Window { records: 10, bytes: usize::MAX });
        merge.add(vec![missed(100, 2, 110)], None);
        merge.add(vec![missed(100, 5, 130), run(7, 120)], None);
        assert_eq!(merge.page().records, [missed(100, 5, 130), run(7, 120)]);
    }

    #[test]
    fn what_is_too_long_for_an_answer_comes_with_the_next_one() {
        let bytes = json_size(&run(1, 10));
        let mut merge = Merge::new(Window { records: 10, bytes: 2 * bytes + bytes / 2 });
        merge.add((0..5).map(|due| run(due, 90 - due)).collect(), None);
        let page = merge.page();
        assert_eq!((positions(&page.records), page.is_cut), (vec![90, 89], true));
        assert_eq!(page.next, page.records.last().map(HistoryEntry::position));
        let mut tiny = Merge::new(Window { records: 10, bytes: 1 });
        tiny.add(vec![run(1, 10), run(2, 9)], None);
        assert_eq!(positions(&tiny.page().records), [10], "one is always shown, or pages would never end");
    }

    #[test]
    fn the_gap_is_in_words_and_only_where_records_are_shown() {
        let nodes = |count: usize| (1..=count).map(|number| NodeName::new(format!("host{number}"))).collect::<Vec<_>>();
        let words = |count| gap_in_words(stamp(at(3_600)), &nodes(count));
        assert_eq!(words(0), "before 1970-01-01 01:00:00 only a part of the history");
        assert_eq!(words(1), "before 1970-01-01 01:00:00 only what host1 ran itself");
        assert_eq!(words(3), "before 1970-01-01 01:00:00 only what host1, host2 and host3 ran themselves");
        assert_eq!(words(5), "before 1970-01-01 01:00:00 only what 5 nodes ran themselves");
        let history = History { records: vec![run(1, 50)], incomplete_before: Some(at(40)), ..History::default() };
        assert_eq!(history.gap(), Some(at(40)), "nothing older is shown, and there may have been something");
        let more = History { next: Some("x".to_owned()), ..history };
        assert_eq!(more.gap(), None, "older records come with the next page");
        let older = History { records: vec![run(1, 30)], ..more };
        assert_eq!(older.gap(), Some(at(40)));
    }

    #[test]
    fn of_many_missing_nodes_the_first_are_named_and_the_rest_are_counted() {
        let mut history = History::default();
        history.name_missing(
            (0..300).rev().map(|number| MissingNode::away(&NodeName::new(format!("n{number:03}")))).collect(),
        );
        assert_eq!((history.missing.len(), history.missing_more), (MOST_NAMED, 200));
        assert_eq!(history.missing[0].node.as_str(), "n000");
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        /// Each place answers as an archive does: the newest that it has, and how far they reach.
        #[test]
        fn page_by_page_every_record_of_every_place_is_shown_once_and_in_order(
            placed in prop::collection::vec((0_i64..200, 0_i64..60, 0_usize..4, any::<bool>()), 0..60),
            limit in 1_usize..9, own_limit in 1_usize..9,
        ) {
            let mut all = BTreeMap::new();
            let mut places = vec![Vec::new(); 4];
            for (due, ended, place, is_twice) in placed {
                let entry = all.entry(due).or_insert_with(|| run(due, ended)).clone();
                for place in [Some(place), is_twice.then_some((place + 1) % 4)].into_iter().flatten() {
                    if !places[place].contains(&entry) {
                        places[place].push(entry.clone());
                    }
                }
            }
            let mut wanted: Vec<_> = all.into_values().collect();
            wanted.retain(|entry| places.iter().any(|place| place.contains(entry)));
            wanted.sort_by_key(|entry| Reverse(entry.position()));
            let (mut shown, mut before) = (Vec::new(), None::<Position>);
            loop {
                let mut merge = Merge::new(Window { records: limit, bytes: usize::MAX });
                for place in &places {
                    let mut newest: Vec<_> = place.clone();
                    newest.retain(|entry| before.as_ref().is_none_or(|before| entry.position() < *before));
                    newest.sort_by_key(|entry| Reverse(entry.position()));
                    let has_more = newest.len() > own_limit;
                    newest.truncate(own_limit);
                    let covered_to = newest.last().map(HistoryEntry::position).filter(|_| has_more);
                    merge.add(newest, covered_to);
                }
                let page = merge.page();
                prop_assert!(page.records.len() <= limit);
                shown.extend(page.records);
                match page.next {
                    Some(next) => {
                        prop_assert!(before.as_ref().is_none_or(|before| next < *before));
                        before = Some(next);
                    }
                    None => break,
                }
            }
            prop_assert_eq!(shown, wanted);
        }
    }
}
