//! Reads of the archive: what it has is merged with what the ledger has, for API clients.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Row, params};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::{ArchiveError, Store};
use super::{Archive, Item, Shared};
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::ledger::filter::{Kind, Position};
use cronkeeper_core::ledger::{Filter, Gathering, Newest, Window};
use cronkeeper_core::run::{HistoryRecord, RunId};

/// How long a read waits for records on their way into the archive.
const FLUSH: Duration = Duration::from_millis(if cfg!(test) { NO_HURRY } else { 500 });
/// How long a read searches. Then it says how far it has come.
const SEARCH: Duration = Duration::from_millis(if cfg!(test) { NO_HURRY } else { 2_000 });
/// In milliseconds: on a loaded machine, a test is not to end with a part of what is there.
const NO_HURRY: u64 = 60_000;
/// How much earlier than it was due a run may have ended by its node's clock, in microseconds.
const AHEAD: i64 = 60_000_000;

/// Records of the ledger and of the archive, newest first, each once.
#[derive(Debug, Default)]
pub struct Merged {
    pub records: Vec<HistoryRecord>,
    /// Older records were left out, because there were too many bytes.
    pub is_cut: bool,
    /// Records of the ledger that cannot be read.
    pub unreadable: usize,
    /// Some of the records are in the archive only.
    pub has_archived: bool,
    /// The search of the archive took too long. Everything from here on is complete; for what is older, ask again.
    pub searched_to: Option<Position>,
    /// Why the archive could not be read. The records are then those of the ledger.
    pub error: Option<ArchiveError>,
    /// Why the ledger could not be read. The records are then those of the archive.
    pub ledger_error: Option<ReadError>,
    /// Since when the ledger still has every record that was wanted; `None` if it has all there ever were, or could not be
    /// read.
    pub complete_since: Option<Timestamp>,
}

impl Archive {
    /// Adds what the archive has to the ledger's answer to the same question.
    ///
    /// A search continues after this future was dropped; `turn` is kept until it has ended, so that a caller who goes
    /// away and comes back does not start one more beside it.
    pub async fn merge<T: Send + 'static>(&self, ledger: Newest, filter: Filter, window: Window, turn: T) -> Merged {
        let Some(shared) = &self.0 else {
            return Merged { records: ledger.records, is_cut: ledger.is_cut, ..Merged::default() };
        };
        shared.flush().await;
        let path = shared.path.clone();
        let merging = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Merging::new(ledger, window).read(&path, &filter)
        });
        let merged = merging.await.unwrap_or_else(|_| Merged { error: Some(ArchiveError::Lost), ..Merged::default() });
        merged.error.iter().for_each(|error| shared.report(error));
        merged
    }

    /// The record of a run that this node ended; `None` if the archive does not have it. Keeps `turn` as
    /// [`merge`](Self::merge) does.
    ///
    /// # Errors
    /// If the archive cannot be read.
    pub async fn record<T: Send + 'static>(&self, run: RunId, turn: T) -> Result<Option<HistoryRecord>, ArchiveError> {
        let Some(shared) = &self.0 else { return Ok(None) };
        shared.flush().await;
        let path = shared.path.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            Store::open_to_read(&path)?.map_or(Ok(None), |store| record(&store, &run))
        });
        let found = reading.await.unwrap_or(Err(ArchiveError::Lost));
        found.as_ref().err().into_iter().for_each(|error| shared.report(error));
        found
    }
}

impl Shared {
    /// Waits until the thread has written what it has received.
    async fn flush(&self) {
        let (flushed, is_flushed) = oneshot::channel();
        if self.items.try_send(Item::Flush(flushed)).is_ok() {
            // A slow disk delays the newest records only, and the ledger has those.
            let _ = timeout(FLUSH, is_flushed).await;
        }
    }

    /// Has the thread repair what a reader has found damaged.
    fn report(&self, error: &ArchiveError) {
        if error.is_damage() {
            // If the queue is full, a later read will report it.
            let _ = self.items.try_send(Item::Damaged);
        }
    }
}

/// Searches forward from the time when the run was due, because most runs end soon after.
fn record(store: &Store, run: &RunId) -> Result<Option<HistoryRecord>, ArchiveError> {
    let begun = Instant::now();
    let sql = "SELECT run, kind, record FROM records INDEXED BY by_job WHERE job = ?1 AND at >= ?2 ORDER BY at";
    let mut statement = store.db.prepare(sql)?;
    // Clocks may disagree by this much.
    let earliest = run.scheduled_at().as_microsecond().saturating_sub(AHEAD);
    let mut rows = statement.query(params![run.job().as_str(), earliest])?;
    let wanted = run.to_string();
    while let Some(row) = rows.next()? {
        let is =
            |column, text: &str| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str().is_ok_and(|it| it == text));
        if is(0, &wanted)? && is(1, Kind::Run.as_str())? {
            return Ok(serde_json::from_str(row.get_ref(2)?.as_str().unwrap_or_default()).ok());
        }
        if begun.elapsed() >= SEARCH {
            break;
        }
    }
    Ok(None)
}

struct Merging {
    gathering: Gathering,
    known: HashSet<(String, Kind)>,
    /// The oldest record of the ledger, if it had more: what is older belongs to a later answer.
    floor: Option<i64>,
    is_cut: bool,
    has_archived: bool,
}

impl Merging {
    fn new(ledger: Newest, window: Window) -> Self {
        let is_cut = ledger.is_cut;
        let floor = ledger.records.last().filter(|_| is_cut).map(|oldest| Position::of(oldest).at);
        let identity = |record| {
            let Position { run, kind, .. } = Position::of(record);
            (run, kind)
        };
        let known = ledger.records.iter().map(identity).collect();
        let mut gathering = Gathering::new(window);
        let sized = ledger.records.into_iter().map(|record| {
            let bytes = json_size(&record);
            (record, bytes)
        });
        gathering.extend(sized);
        Self { gathering, known, floor, is_cut, has_archived: false }
    }

    fn read(mut self, path: &Path, filter: &Filter) -> Merged {
        let searched = match Store::open_to_read(path) {
            Ok(Some(store)) => self.search(&store, filter),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        let (searched_to, error) = match searched {
            Ok(to) => (to, None),
            Err(error) => (None, Some(error)),
        };
        let Newest { mut records, is_cut, .. } = self.gathering.newest();
        if let Some(to) = &searched_to {
            records.retain(|record| Position::of(record) >= *to);
        }
        let (is_cut, has_archived) = (is_cut || self.is_cut, self.has_archived);
        Merged { records, is_cut, has_archived, searched_to, error, ..Merged::default() }
    }

    /// Adds the archive's records, newest first. Returns how far it came if that took too long.
    fn search(&mut self, store: &Store, filter: &Filter) -> Result<Option<Position>, ArchiveError> {
        let begun = Instant::now();
        let (since, until) = filter.times();
        let since = since.max(self.floor.unwrap_or(i64::MIN));
        // The indexes are named, because SQLite could otherwise sort a million records.
        let mut statement = store.db.prepare(match filter.only_job() {
            Some(_) => {
                "SELECT id, at, job, outcome, node FROM records INDEXED BY by_job
                 WHERE job = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at DESC"
            }
            None => {
                "SELECT id, at, job, outcome, node FROM records INDEXED BY by_time
                 WHERE ?1 IS NULL AND at BETWEEN ?2 AND ?3 ORDER BY at DESC"
            }
        })?;
        let mut rows = statement.query(params![filter.only_job(), since, until])?;
        while let Some(row) = rows.next()? {
            let at = row.get(1)?;
            if self.gathering.is_complete_before(at) {
                break;
            }
            if begun.elapsed() >= SEARCH {
                let behind = Position { at: at.saturating_add(1), run: String::new(), kind: Kind::Run };
                return Ok(Some(behind));
            }
            if is_candidate(row, filter)? {
                self.add(store, row.get(0)?, filter)?;
            }
        }
        Ok(None)
    }

    fn add(&mut self, store: &Store, id: i64, filter: &Filter) -> Result<(), ArchiveError> {
        let mut statement = store.db.prepare_cached("SELECT record FROM records WHERE id = ?1")?;
        let text: String = statement.query_row([id], |row| row.get(0))?;
        // A record that cannot be read harms no other: somebody else has written it.
        let Ok(record) = serde_json::from_str::<HistoryRecord>(&text) else { return Ok(()) };
        let Position { run, kind, .. } = Position::of(&record);
        if filter.matches(&record) && self.known.insert((run, kind)) {
            self.has_archived = true;
            self.gathering.extend([(record, text.len())]);
        }
        Ok(())
    }
}

/// True if a row of an index may belong to a wanted record.
fn is_candidate(row: &Row<'_>, filter: &Filter) -> Result<bool, ArchiveError> {
    let text = |column| Ok::<_, rusqlite::Error>(row.get_ref(column)?.as_str().unwrap_or_default());
    Ok(filter.wants_job(text(2)?) && filter.wants_ending(text(3)?) && filter.wants_node(text(4)?))
}

/// The bytes of a record as stored and sent.
pub(crate) fn json_size(record: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Writing to a counter cannot fail, and a record always has a JSON form.
    let _ = serde_json::to_writer(&mut count, record);
    count.0
}
