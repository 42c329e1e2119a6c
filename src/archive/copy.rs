//! Copies from the ledger what the archive may lack.
//!
//! The ledger accepts a record before the archive has it. A process that is killed in between, a session that ends
//! before the answer arrives, a full disk or a full queue leave records in the ledger that no archive has, and in time
//! the ledger trims them. So each of these raises a [`Doubt`], and while there is one, the newest records of the ledger
//! are read and those of this node are written, as far as they are missing.
//!
//! A note in the file says that a process of the node writes it, and until when it had everything, which it says anew
//! once an hour while nothing else happens. A process that ends in order removes its note, so a note that is found at the
//! start is that of a process that was killed.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{Archive, Item, Shared};
use cronkeeper_core::clock::system;
use cronkeeper_core::coordination::Reader;
use cronkeeper_core::election::Defined;
use cronkeeper_core::job::JobSet;
use cronkeeper_core::ledger::filter::Position;
use cronkeeper_core::ledger::{Filter, Window};
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::term::NodeName;

/// How much earlier than the doubt a record may have ended, in microseconds: an end waits for its answer, and clocks
/// differ.
const LOOK_BACK: i64 = 300_000_000;
/// Records read at once.
const WINDOW: Window = Window { records: 5_000, bytes: 8 << 20 };
/// Most reads for one doubt: more than a ledger of a thousand jobs keeps.
const MOST_READS: usize = 50;
/// Time for one read, and for writing what it found.
const STEP: Duration = Duration::from_secs(30);
/// Pauses after a failure: the first, and the longest.
const RETRY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Since when the archive may lack records that the ledger has accepted from this node.
#[derive(Debug, Default)]
pub(super) struct Doubt(watch::Sender<Option<Missing>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    /// In microseconds.
    since: i64,
    /// Until when a process that was killed had kept everything; absent if none was killed.
    kept_until: Option<i64>,
}

impl Doubt {
    /// From this time on records may be missing.
    pub fn raise(&self, since: Timestamp) {
        self.add(Missing { since: since.as_microsecond(), kept_until: None });
    }

    /// The process before was killed; until then it had kept everything, in microseconds.
    pub fn after_death(&self, kept_until: i64) {
        let now = system::now().wall.as_microsecond();
        self.add(Missing { since: kept_until.min(now), kept_until: Some(kept_until) });
    }

    pub fn is_none(&self) -> bool {
        self.0.borrow().is_none()
    }

    pub fn watch(&self) -> watch::Receiver<Option<Missing>> {
        self.0.subscribe()
    }

    fn add(&self, more: Missing) {
        self.0.send_modify(|known| *known = Some(known.map_or(more, |known| known.and(more))));
    }

    /// Ends a doubt, unless it has grown.
    fn dispel(&self, seen: Missing) {
        self.0.send_modify(|known| *known = known.filter(|known| *known != seen));
    }
}

impl Missing {
    fn and(self, other: Self) -> Self {
        let kept_until = match (self.kept_until, other.kept_until) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self { since: self.since.min(other.since), kept_until }
    }

    fn filter(self) -> Filter {
        let since = Timestamp::from_microsecond(self.since.saturating_sub(LOOK_BACK)).ok();
        Filter { since, ..Filter::default() }
    }
}

/// What the ledger had for the archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct Copied {
    /// Number of records that were missing.
    records: usize,
    /// Since when the ledger still has everything; absent if it has all there ever was.
    complete_since: Option<Timestamp>,
    /// What ended before this was not read, because it is too much.
    read_to: Option<Timestamp>,
}

impl Archive {
    /// Copies what the archive may lack, whenever there is a reason to look, until it is dropped.
    ///
    /// Dropping it loses nothing: what is not copied is looked for at the next start.
    pub async fn keep_complete(self, node: NodeName, reader: Arc<dyn Reader>, jobs: watch::Receiver<Arc<JobSet>>) {
        let Some(shared) = self.0 else { return };
        let (mut doubts, mut pause) = (shared.doubt.watch(), RETRY[0]);
        while let Ok(Some(missing)) = doubts.wait_for(Option::is_some).await.map(|found| *found) {
            let defined = Arc::new(Defined::of(&Arc::clone(&jobs.borrow())));
            match shared.copy(&node, &*reader, &defined, missing).await {
                Ok(copied) => {
                    copied.log(missing);
                    shared.doubt.dispel(missing);
                    pause = RETRY[0];
                }
                Err(why) => {
                    debug!(target: TARGET, "the ledger cannot be compared with the archive of the history: {why}");
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY[1]);
                }
            }
        }
    }

    /// From this time on the ledger may have accepted records whose answer was lost.
    pub fn doubt(&self, since: Timestamp) {
        self.0.iter().for_each(|shared| shared.doubt.raise(since));
    }
}

impl Shared {
    /// # Errors
    /// If the ledger cannot be read or the archive cannot be written; in words.
    async fn copy(
        &self,
        node: &NodeName,
        reader: &dyn Reader,
        defined: &Arc<Defined>,
        missing: Missing,
    ) -> Result<Copied, String> {
        // Else nothing that is read could be written.
        self.write_missing(Vec::new()).await?;
        let (mut filter, mut copied) = (missing.filter(), Copied::default());
        for read in 0..MOST_READS {
            let reading = reader.history_since(filter.clone(), WINDOW, Arc::clone(defined));
            let found = timeout(STEP, reading).await.map_err(|_| "no answer in time".to_owned())?;
            let (newest, complete_since) = found.map_err(|error| error.to_string())?;
            if read == 0 {
                copied.complete_since = complete_since;
            }
            let is_last = !newest.is_cut && newest.records.len() < WINDOW.records;
            filter.before = newest.records.last().map(Position::of);
            let own: Vec<_> = newest.records.into_iter().filter(|record| may_be_of(node, record)).collect();
            if !own.is_empty() {
                copied.records += self.write_missing(own).await?;
            }
            if is_last || filter.before.is_none() {
                return Ok(copied);
            }
        }
        copied.read_to = filter.before.and_then(|last| Timestamp::from_microsecond(last.at).ok());
        Ok(copied)
    }

    async fn write_missing(&self, records: Vec<HistoryRecord>) -> Result<usize, String> {
        let (copied, is_copied) = oneshot::channel();
        let item = Item::Copy { records, copied };
        self.items.try_send(item).map_err(|_| "the archive is busy".to_owned())?;
        let written = timeout(STEP, is_copied).await.ok().and_then(Result::ok);
        written.ok_or_else(|| "the archive was not written".to_owned())
    }
}

/// True for what this node ran or decided, and for ends that nobody saw: whoever led wrote those.
fn may_be_of(node: &NodeName, record: &HistoryRecord) -> bool {
    let is_unseen = matches!(record, HistoryRecord::Run(end) if end.duration_ms.is_none());
    record.node() == node || is_unseen
}

impl Copied {
    fn log(&self, missing: Missing) {
        if self.records > 0 {
            log!(ARCHIVE_COPIED, records = self.records);
        }
        if let Some((since, until)) = self.gap(missing) {
            log!(ARCHIVE_INCOMPLETE, %since, %until);
        }
    }

    /// The time in which records may have ended that nobody has, or that are not copied.
    fn gap(&self, missing: Missing) -> Option<(Timestamp, Timestamp)> {
        let trimmed = self.complete_since.filter(|_| missing.kept_until.is_some());
        let until = trimmed.max(self.read_to)?;
        let since = Timestamp::from_microsecond(missing.kept_until.unwrap_or(missing.since)).ok()?;
        (since < until).then_some((since, until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_what_ended_after_all_was_kept_and_before_the_oldest_of_the_ledger_may_be_lost() {
        let missing = |kept_until: Option<i64>| Missing { since: 0, kept_until: kept_until.map(|at| at * 1_000_000) };
        let gap = |kept_until, complete_since: Option<i64>| {
            Copied { complete_since: complete_since.map(at), ..Copied::default() }.gap(missing(kept_until))
        };
        assert_eq!(gap(Some(50), Some(60)), Some((at(50), at(60))));
        assert_eq!(gap(Some(50), Some(50)), None);
        assert_eq!(gap(Some(50), None), None, "the ledger has all there ever was");
        assert_eq!(gap(None, Some(60)), None, "no process was killed");
        let cut = Copied { read_to: Some(at(40)), ..Copied::default() };
        assert_eq!(cut.gap(missing(None)), Some((at(0), at(40))), "there was too much to read");
    }

    #[test]
    fn two_doubts_are_one_that_covers_both_and_a_new_one_is_not_dispelled_with_the_old() {
        let doubt = Doubt::default();
        doubt.raise(at(70));
        let seen = doubt.0.borrow().unwrap();
        doubt.after_death(60_000_000);
        let both = Missing { since: 60_000_000, kept_until: Some(60_000_000) };
        assert_eq!(*doubt.0.borrow(), Some(both));
        doubt.dispel(seen);
        assert!(!doubt.is_none());
        doubt.dispel(both);
        assert!(doubt.is_none());
    }
}
