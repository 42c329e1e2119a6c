//! A job's history records, the newest end first, without reading all of them.
//!
//! A record's name tells when its run was due, not when it ended: a run that took a day ended after hundreds of runs
//! with later names. But a record is written after its run has ended, and the metadata of a record tells when it was
//! written. So the metadata of all records is read, which is a tenth of their size, and then records are read in the
//! order of their writes, until none that is left can have ended late enough.

use std::vec::IntoIter;

use super::context::{self, Reads, SessionError};
use crate::paths;
use crate::tree::{Session, Stat};
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::HistoryRecord;

/// Most records of a job to consider: as many as trimming leaves at most.
const MOST_RECORDS: usize = 2_100;
/// How far a node's clock, which says when a run ended, may be ahead of the servers', in microseconds. With more, a node
/// begins nothing.
const AHEAD: i64 = 60_000_000;

/// The records of a job that were not read yet, those written last first.
pub(super) struct NewestRecords {
    parent: String,
    rest: IntoIter<(String, Stat)>,
    /// Records so far that cannot be read.
    pub unreadable: usize,
}

impl NewestRecords {
    pub async fn of<C: Session>(client: &C, job: &JobName) -> Result<Self, SessionError> {
        let parent = paths::job_history(job);
        let names = context::or_none(context::newest_history(client, job, MOST_RECORDS).await)?;
        let mut found = context::stats(client, &parent, names).await?;
        found.sort_by(|(a, one), (b, other)| {
            (other.changed_at, other.changed, b).cmp(&(one.changed_at, one.changed, a))
        });
        Ok(Self { parent, rest: found.into_iter(), unreadable: 0 })
    }

    /// When the record at this place was last written, in milliseconds by the servers' clock; the newest is at 0.
    pub fn written_at(&self, place: usize) -> Option<i64> {
        self.rest.as_slice().get(place).map(|(_, stat)| stat.changed_at.as_millisecond())
    }

    /// The next records, at most `most`, those written last first, each with its size in bytes. `None` if `is_too_old` says that
    /// no record of that time, in microseconds, or an older one is wanted, and no newer one is left.
    ///
    /// Leaves out records that cannot be read, and counts them.
    pub async fn next<C: Session>(
        &mut self,
        client: &C,
        most: usize,
        is_too_old: impl Fn(i64) -> bool,
    ) -> Result<Option<Vec<(HistoryRecord, usize)>>, SessionError> {
        let latest_end = |stat: &Stat| stat.changed_at.as_microsecond().saturating_add(AHEAD);
        let next = self.rest.as_slice().iter().take(most).take_while(|(_, stat)| !is_too_old(latest_end(stat)));
        let next: Vec<(String, Stat)> = next.cloned().collect();
        let Some(last) = next.len().checked_sub(1) else { return Ok(None) };
        self.rest.nth(last);
        let Reads { found, unread } = context::get_known_history(client, &self.parent, next).await?;
        let listed = found.len() + unread.len();
        let read = |(_, data, _): context::Found| Some((serde_json::from_slice(&data).ok()?, data.len()));
        let records: Vec<_> = found.into_iter().filter_map(read).collect();
        self.unreadable += listed - records.len();
        Ok(Some(records))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures_util::FutureExt as _;
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::tests_support::Server;
    use crate::test_records::{record, success};
    use cronkeeper_core::ledger::{Filter, Gathering, Window};
    use cronkeeper_core::run::RunEnd;

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn a_page_is_that_of_a_look_at_all_records(
            runs in prop::collection::btree_map(0_i64..5_000, (0_i64..5_000, -60_i64..600), 0..90),
            limit in 1_usize..30, until in prop::option::of(0_i64..5_000),
        ) {
            let server = Server::default();
            let mut ends = Vec::new();
            for (due, (took, late)) in runs {
                let ended_at = Timestamp::from_second(due + took).unwrap();
                let end = RunEnd { ended_at, ..success(record("backup", due, "0x1")) };
                let mut tree = server.tree();
                tree.time_ms = ended_at.as_millisecond() + late * 1_000;
                tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())));
                ends.push(end);
            }
            let filter = Filter { until: until.map(|second| Timestamp::from_second(second).unwrap()), ..Filter::default() };
            let mut gathering = Gathering::new(Window::of(limit));
            let mut records = NewestRecords::of(&server, &JobName::parse("backup").unwrap()).now_or_never().unwrap().unwrap();
            while let Some(more) = records
                .next(&server, 7, |at| gathering.is_complete_before(at))
                .now_or_never().unwrap().unwrap()
            {
                gathering.extend(more.into_iter().filter(|(record, _)| filter.matches(record)));
            }
            let mut wanted = Gathering::new(Window::of(limit));
            let ends = ends.into_iter().map(|end| (HistoryRecord::Run(end), 1));
            wanted.extend(ends.filter(|(record, _)| filter.matches(record)));
            let ids = |gathering: Gathering| gathering.newest().records.iter().map(HistoryRecord::id).collect::<BTreeSet<_>>();
            prop_assert_eq!(ids(gathering), ids(wanted));
        }
    }
}
