//! The newest records of a history, limited in number and bytes.

use super::filter::Position;
use crate::run::HistoryRecord;

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
    /// Records that were looked at and cannot be read.
    pub unreadable: usize,
}

/// Collects the newest records, in whatever order they are read, and never holds more than the window allows.
#[derive(Debug)]
pub struct Gathering {
    window: Window,
    /// Newest first, each with its size in bytes.
    kept: Vec<(Position, HistoryRecord, usize)>,
    /// The newest record that did not fit. Older records are left out too.
    cut: Option<Position>,
    unreadable: usize,
}

impl Gathering {
    pub fn new(window: Window) -> Self {
        Self { window, kept: Vec::new(), cut: None, unreadable: 0 }
    }

    /// Counts records that cannot be read.
    pub fn note_unreadable(&mut self, records: usize) {
        self.unreadable += records;
    }

    /// Adds records, each with its size in bytes.
    pub fn extend(&mut self, more: impl IntoIterator<Item = (HistoryRecord, usize)>) {
        let cut = self.cut.as_ref();
        let more = more.into_iter().map(|(record, bytes)| (Position::of(&record), record, bytes));
        self.kept.extend(more.filter(|(position, ..)| cut.is_none_or(|cut| cut < position)));
        self.kept.sort_by(|(a, ..), (b, ..)| b.cmp(a));
        self.kept.truncate(self.window.records);
        let sizes = self.kept.iter().scan(0_usize, |sum, (.., bytes)| {
            *sum = sum.saturating_add(*bytes);
            Some(*sum)
        });
        let fit = sizes.take_while(|sum| *sum <= self.window.bytes).count();
        if let Some((position, ..)) = self.kept.get(fit) {
            self.cut = Some(position.clone());
        }
        self.kept.truncate(fit);
    }

    /// True if no older record can be added.
    pub fn is_full(&self) -> bool {
        self.cut.is_some() || self.kept.len() >= self.window.records
    }

    /// True if every record of this time, in microseconds, or an older one would be left out.
    pub fn is_complete_before(&self, at: i64) -> bool {
        self.is_full() && self.kept.last().is_none_or(|(oldest, ..)| at < oldest.at)
    }

    pub fn newest(self) -> Newest {
        // If newer records have reached the maximum number since then, the byte limit left nothing out.
        let is_cut = self.cut.is_some() && self.kept.len() < self.window.records;
        let records = self.kept.into_iter().map(|(_, record, _)| record).collect();
        Newest { records, is_cut, unreadable: self.unreadable }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_records::skip;

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
