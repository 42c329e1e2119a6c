//! The newest records of a history, limited in number and bytes.

use jiff::Timestamp;

use crate::run::{HistoryRecord, Outcome, RunEnd, RunId};

/// Limits for a read of the history.
///
/// The result is held in memory, and a record may have a few bytes or many thousand, so both limits are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Maximum number of records.
    pub records: usize,
    /// Maximum of their total size in bytes, as stored in the ledger.
    pub bytes: usize,
}

impl Window {
    /// A limit on the number of records only.
    pub fn of(records: usize) -> Self {
        Self { records, bytes: usize::MAX }
    }
}

/// Records of a history, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Newest {
    pub records: Vec<HistoryRecord>,
    /// True if the byte limit left out older records.
    pub is_cut: bool,
}

/// The run of a job that ended last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    pub run: RunId,
    pub outcome: Outcome,
    pub at: Timestamp,
}

impl From<&RunEnd> for LastEnd {
    fn from(end: &RunEnd) -> Self {
        Self { run: end.run.id(), outcome: end.outcome, at: end.ended_at }
    }
}

/// Collects the newest records, in whatever order they are read, and never holds more than the window allows.
#[derive(Debug)]
pub struct Gathering {
    window: Window,
    /// Newest first, each with its size in bytes.
    kept: Vec<(HistoryRecord, usize)>,
    /// Time of the newest record that did not fit. Older records are left out too.
    cut: Option<Timestamp>,
}

impl Gathering {
    pub fn new(window: Window) -> Self {
        Self { window, kept: Vec::new(), cut: None }
    }

    /// Adds records, each with its size in bytes.
    pub fn extend(&mut self, more: impl IntoIterator<Item = (HistoryRecord, usize)>) {
        let cut = self.cut;
        self.kept.extend(more.into_iter().filter(|(record, _)| cut.is_none_or(|cut| cut < record.at())));
        self.kept.sort_by_key(|(record, _)| std::cmp::Reverse(record.at()));
        self.kept.truncate(self.window.records);
        let sizes = self.kept.iter().scan(0_usize, |sum, (_, bytes)| {
            *sum = sum.saturating_add(*bytes);
            Some(*sum)
        });
        let fit = sizes.take_while(|sum| *sum <= self.window.bytes).count();
        if let Some((record, _)) = self.kept.get(fit) {
            self.cut = Some(record.at());
        }
        self.kept.truncate(fit);
    }

    /// True if no older record can be added.
    pub fn is_full(&self) -> bool {
        self.cut.is_some() || self.kept.len() >= self.window.records
    }

    pub fn newest(self) -> Newest {
        // If newer records have reached the maximum number since then, the byte limit left nothing out.
        let is_cut = self.cut.is_some() && self.kept.len() < self.window.records;
        Newest { records: self.kept.into_iter().map(|(record, _)| record).collect(), is_cut }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::tests_support::skip;

    /// A record at this second, with this size in bytes.
    fn record(second: i64, bytes: usize) -> (HistoryRecord, usize) {
        (HistoryRecord::Skip(skip("j", second)), bytes)
    }

    fn seconds(newest: &Newest) -> Vec<i64> {
        newest.records.iter().map(|record| record.at().as_second()).collect()
    }

    #[test]
    fn the_byte_limit_leaves_out_the_oldest_records() {
        let mut gathering = Gathering::new(Window { records: 10, bytes: 250 });
        gathering.extend([record(1, 100), record(2, 100), record(3, 100)]);
        gathering.extend([record(4, 100)]);
        let newest = gathering.newest();
        assert_eq!((seconds(&newest), newest.is_cut), (vec![4, 3], true));
    }

    #[test]
    fn a_full_window_is_not_cut() {
        let mut gathering = Gathering::new(Window { records: 2, bytes: 250 });
        gathering.extend([record(1, 200), record(2, 200)]);
        assert!(gathering.is_full());
        gathering.extend([record(3, 100), record(4, 100)]);
        let newest = gathering.newest();
        assert_eq!((seconds(&newest), newest.is_cut), (vec![4, 3], false));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn reading_in_parts_and_in_one_go_gives_the_same_records(
            sizes in prop::collection::vec(1_usize..300, 0..40), parts in 1_usize..10, records in 1_usize..20, bytes in 1_usize..2_000
        ) {
            let window = Window { records, bytes };
            let all: Vec<_> = (0..).zip(&sizes).map(|(at, &size)| record(at * 7 % 41, size)).collect();
            let mut whole = Gathering::new(window);
            whole.extend(all.clone());
            let mut gathering = Gathering::new(window);
            all.chunks(parts).for_each(|part| gathering.extend(part.iter().cloned()));
            let (whole, newest) = (whole.newest(), gathering.newest());
            prop_assert_eq!(&whole, &newest);
        }
    }
}
