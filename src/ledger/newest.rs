//! The newest records of a history, within bounds of number and of bytes. Pure.

use jiff::Timestamp;

use crate::run::{HistoryRecord, Outcome, RunEnd, RunId};

/// How much of a history is wanted: what is read is held in memory, and a record may be of a few bytes or of many thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Most records.
    pub records: usize,
    /// Most bytes of them, as they are kept.
    pub bytes: usize,
}

impl Window {
    /// So many records, whatever their bytes.
    pub fn of(records: usize) -> Self {
        Self { records, bytes: usize::MAX }
    }
}

/// Records of a history, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Newest {
    /// The records.
    pub records: Vec<HistoryRecord>,
    /// True where older ones were left out because of their bytes.
    pub is_cut: bool,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastEnd {
    /// The run.
    pub run: RunId,
    /// Its outcome.
    pub outcome: Outcome,
    /// When it ended.
    pub at: Timestamp,
}

impl From<&RunEnd> for LastEnd {
    fn from(end: &RunEnd) -> Self {
        Self { run: end.run.id(), outcome: end.outcome, at: end.ended_at }
    }
}

/// Puts the newest records together, whatever the order in which they are read: no more are held than are wanted.
#[derive(Debug)]
pub struct Gathering {
    window: Window,
    /// Newest first, each with its bytes.
    kept: Vec<(HistoryRecord, usize)>,
    /// The newest that had no room: what is older has none either.
    cut: Option<Timestamp>,
}

impl Gathering {
    /// None yet.
    pub fn new(window: Window) -> Self {
        Self { window, kept: Vec::new(), cut: None }
    }

    /// Takes more of them, each with its bytes.
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

    /// True when nothing older than what is there has room.
    pub fn is_full(&self) -> bool {
        self.cut.is_some() || self.kept.len() >= self.window.records
    }

    /// The newest of those taken.
    pub fn newest(self) -> Newest {
        // Where newer ones have filled the number since, nothing is missing.
        let is_cut = self.cut.is_some() && self.kept.len() < self.window.records;
        Newest { records: self.kept.into_iter().map(|(record, _)| record).collect(), is_cut }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::tests_support::skip;

    /// A record at this second, of so many bytes.
    fn record(second: i64, bytes: usize) -> (HistoryRecord, usize) {
        (HistoryRecord::Skip(skip("j", second)), bytes)
    }

    fn seconds(newest: &Newest) -> Vec<i64> {
        newest.records.iter().map(|record| record.at().as_second()).collect()
    }

    #[test]
    fn what_has_no_room_is_left_out_from_the_oldest_on() {
        let mut gathering = Gathering::new(Window { records: 10, bytes: 250 });
        gathering.extend([record(1, 100), record(2, 100), record(3, 100)]);
        gathering.extend([record(4, 100)]);
        let newest = gathering.newest();
        assert_eq!((seconds(&newest), newest.is_cut), (vec![4, 3], true));
    }

    #[test]
    fn nothing_is_missing_where_as_many_are_there_as_are_wanted() {
        let mut gathering = Gathering::new(Window { records: 2, bytes: 250 });
        gathering.extend([record(1, 200), record(2, 200)]);
        assert!(gathering.is_full());
        gathering.extend([record(3, 100), record(4, 100)]);
        let newest = gathering.newest();
        assert_eq!((seconds(&newest), newest.is_cut), (vec![4, 3], false));
    }

    proptest! {
        #[test]
        fn in_parts_they_are_those_that_would_have_been_had_in_one_go(
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
