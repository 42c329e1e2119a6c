//! The thread that writes the archive, and deletes what is too old or too much.
//!
//! It writes what arrives within [`GATHER`] in one transaction. Between transactions it deletes in batches. When
//! nothing arrives, it closes the file, which gives its memory back, and looks once an hour for what has become too old.
//! What it cannot write is lost to the archive, and logged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::warn;

use super::copy::Doubt;
use super::store::{self, ArchiveError, Store};
use super::{Closing, Item, Limits};
use cronkeeper_cluster::sqlite::FileIdentity;
use cronkeeper_core::clock::system;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::term::NodeName;

/// How long the first record waits for others to share its transaction.
const GATHER: Duration = Duration::from_millis(250);
/// Most records in one transaction.
const MOST_IN_BATCH: usize = 1_000;
/// Fewest records that are deleted at once; more if more were just written.
const LEAST_DELETED: usize = 1_000;
/// Pause between two deletions while nothing arrives.
const DELETE_EVERY: Duration = Duration::from_millis(50);
/// Interval at which the age of the oldest records is checked.
const CHECK_EVERY: Duration = Duration::from_secs(60);
/// How long the file stays open without a record.
const IDLE: Duration = Duration::from_secs(60);
/// How long the thread rests while the file is closed and no record arrives. Then it deletes what is too old.
const REST: Duration = Duration::from_secs(3_600);
/// How long nothing is written after a failure.
const PAUSE: Duration = Duration::from_secs(10);
/// Least time between two log lines about failures.
const LOG_EVERY: Duration = Duration::from_secs(600);
/// Free space of the disk that the archive leaves to others, in bytes: above all to the state directory, without which
/// no run starts.
pub(super) const RESERVE: u64 = 64 << 20;

pub(super) struct Writer {
    path: PathBuf,
    /// The node that writes.
    node: NodeName,
    /// The file has the node's note that it writes.
    has_entered: bool,
    doubt: Arc<Doubt>,
    /// Age at which records are deleted.
    after: Option<Duration>,
    most_bytes: u64,
    store: Option<Store>,
    /// There is more to delete.
    has_surplus: bool,
    checked: Option<Instant>,
    failure: Option<Failure>,
}

/// Since the first record that could not be written.
struct Failure {
    lost: usize,
    /// Nothing is tried before this time.
    until: Instant,
    logged_at: Instant,
}

/// What is written at once, and who waits for it.
#[derive(Default)]
struct Batch {
    records: Vec<HistoryRecord>,
    copies: Vec<(Vec<HistoryRecord>, oneshot::Sender<usize>)>,
    flushed: Vec<oneshot::Sender<()>>,
    is_damaged: bool,
    closed: Option<Closing>,
}

impl Batch {
    fn add(&mut self, item: Item) {
        match item {
            Item::Record(record) => self.records.push(*record),
            Item::Copy { records, copied } => self.copies.push((records, copied)),
            Item::Flush(done) => self.flushed.push(done),
            Item::Damaged => self.is_damaged = true,
            Item::Close(closing) => self.closed = Some(closing),
        }
    }

    /// True if somebody waits, or it is as large as it may become.
    fn is_due(&self) -> bool {
        let is_awaited = !self.copies.is_empty() || !self.flushed.is_empty() || self.closed.is_some();
        self.records.len() >= MOST_IN_BATCH || self.is_damaged || is_awaited
    }

    fn gather(first: Item, items: &Receiver<Item>) -> Self {
        let (mut batch, until) = (Self::default(), Instant::now() + GATHER);
        batch.add(first);
        while !batch.is_due()
            && let Ok(item) = items.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            batch.add(item);
        }
        batch
    }
}

impl Writer {
    pub fn new(path: PathBuf, node: NodeName, doubt: Arc<Doubt>, limits: Limits) -> Self {
        let Limits { after, most_bytes } = limits;
        let (store, has_entered, has_surplus) = (None, false, false);
        Self { path, node, has_entered, doubt, after, most_bytes, store, has_surplus, checked: None, failure: None }
    }

    /// Runs until the archive is closed, or nobody can put a record any more.
    pub fn run(mut self, items: &Receiver<Item>) {
        self.begin();
        loop {
            match items.recv_timeout(self.patience()) {
                Ok(first) => {
                    let batch = Batch::gather(first, items);
                    if let Some(Closing { is_complete, closed }) = self.take(batch) {
                        if is_complete && self.failure.is_none() {
                            // If this fails, the next start looks for what is missing, and finds nothing.
                            let node = self.node.clone();
                            let _ = self.open().and_then(|store| store.leave(&node));
                        }
                        // The file is closed first: then its log is gone, and the directory has a single file.
                        drop(self.store.take());
                        let _ = closed.send(());
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.has_surplus => {
                    self.delete(0);
                }
                Err(RecvTimeoutError::Timeout) if self.store.is_some() => self.store = None,
                Err(RecvTimeoutError::Timeout) => self.sweep(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Notes that this node writes, and deletes what became too old, or is too much, while it was down.
    fn begin(&mut self) {
        if store::identity(&self.path).is_some() {
            self.sweep();
        } else if let Err(error) = has_space(&self.path).and_then(|()| self.open().map(drop)) {
            self.failed(&error, 0);
        } else {
            self.store = None;
        }
    }

    /// How long to wait for a record before there is something else to do.
    fn patience(&self) -> Duration {
        match (&self.store, self.has_surplus) {
            (Some(_), true) => DELETE_EVERY,
            (Some(_), false) => IDLE,
            (None, _) => REST,
        }
    }

    /// Opens the file, if there is one, and deletes what is too old or too much.
    fn sweep(&mut self) {
        let Some(seen) = store::identity(&self.path) else { return };
        // Deleting writes too, and does not make the file smaller.
        if has_space(&self.path).is_err() {
            return;
        }
        let opened = match self.open().map(drop) {
            Err(error) if error.is_damage() => self.begin_anew(&error, Some(seen)),
            opened => opened,
        };
        match opened.and_then(|()| self.note_complete()) {
            Ok(()) => {
                self.delete(0);
            }
            Err(error) => self.failed(&error, 0),
        }
        if !self.has_surplus {
            self.store = None;
        }
    }

    /// Notes from when on a process that is killed may miss something: else it would read all of the ledger for that.
    fn note_complete(&mut self) -> Result<(), ArchiveError> {
        match (self.complete_at(), &mut self.store) {
            (Some(now), Some(store)) => store.note_complete(&self.node, now),
            _ => Ok(()),
        }
    }

    /// Now, in microseconds, if nothing is missing.
    fn complete_at(&self) -> Option<i64> {
        self.doubt.is_none().then(|| system::now().wall.as_microsecond())
    }

    /// Writes a batch. Returns how the thread is to end, if it is.
    fn take(&mut self, batch: Batch) -> Option<Closing> {
        if batch.is_damaged {
            self.check_damage();
        }
        if !batch.records.is_empty() {
            // What is only written, but no longer deleted, has not recovered.
            if self.keep(&batch.records).is_some() && self.delete(batch.records.len()) {
                self.recovered();
            }
        }
        for (records, copied) in batch.copies {
            if let Some(added) = self.keep_copies(&records) {
                let _ = copied.send(added);
            }
        }
        for done in batch.flushed {
            // Who no longer waits does not need the answer.
            let _ = done.send(());
        }
        // Readers who ask all the time must not keep what is too old: while they do, the pause for deleting never comes.
        if batch.records.is_empty() && self.has_surplus && batch.closed.is_none() {
            self.delete(0);
        }
        batch.closed
    }

    /// Returns how many of the records were new; `None` if they were not written.
    fn keep(&mut self, records: &[HistoryRecord]) -> Option<usize> {
        if let Some(failure) = self.failure.as_mut().filter(|failure| Instant::now() < failure.until) {
            failure.lost += records.len();
            return None;
        }
        let written = self.write(records);
        if let Err(error) = &written {
            self.failed(error, records.len());
        }
        written.ok()
    }

    /// As [`keep`](Self::keep), for records that the ledger has too.
    fn keep_copies(&mut self, records: &[HistoryRecord]) -> Option<usize> {
        if self.failure.as_ref().is_some_and(|failure| Instant::now() < failure.until) {
            return None;
        }
        let written = self.write(records);
        match &written {
            Ok(_) => self.recovered(),
            Err(error) => self.failed(error, 0),
        }
        written.ok()
    }

    fn write(&mut self, records: &[HistoryRecord]) -> Result<usize, ArchiveError> {
        has_space(&self.path)?;
        let seen = store::identity(&self.path);
        match self.write_to_open(records) {
            Err(error) if error.is_damage() => {
                self.begin_anew(&error, seen)?;
                self.write_to_open(records)
            }
            result => result,
        }
    }

    fn write_to_open(&mut self, records: &[HistoryRecord]) -> Result<usize, ArchiveError> {
        let (node, complete) = (self.node.clone(), self.complete_at());
        self.open()?.write(records, complete.map(|now| (&node, now)))
    }

    /// The open archive, opened now if it was closed or moved aside.
    fn open(&mut self) -> Result<&mut Store, ArchiveError> {
        match self.store.take().filter(Store::is_in_place) {
            Some(store) => Ok(self.store.insert(store)),
            None => {
                let mut store = Store::open(&self.path)?;
                let complete_until = store.enter(&self.node, system::now().wall.as_microsecond())?;
                if let (false, Some(complete_until)) = (self.has_entered, complete_until) {
                    self.doubt.after_death(complete_until);
                }
                self.has_entered = true;
                Ok(self.store.insert(store))
            }
        }
    }

    /// Moves the damaged file aside. `seen` is the file as it was before the damage was found: another one is left alone.
    pub(super) fn begin_anew(&mut self, error: &ArchiveError, seen: Option<FileIdentity>) -> Result<(), ArchiveError> {
        self.store = None;
        if let Some(aside) = store::set_aside(&self.path, seen)? {
            let (path, aside) = (self.path.display(), aside.display());
            let kept = format!("starts again; the old file is {aside}");
            warn!(target: TARGET, "the archive of the history, {path}, was damaged ({error}) and {kept}");
        }
        Ok(())
    }

    /// Checks what a reader has found. Damage that a writer does not meet is found by this only.
    fn check_damage(&mut self) {
        let seen = store::identity(&self.path);
        let found = self.open().and_then(|store| {
            let found: String = store.db.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            Ok(found)
        });
        let begun = match found {
            Ok(found) if found == "ok" => Ok(()),
            Ok(found) => self.begin_anew(&ArchiveError::File(std::io::Error::other(found)), seen),
            Err(error) if error.is_damage() => self.begin_anew(&error, seen),
            Err(error) => Err(error),
        };
        if let Err(error) = begun {
            self.failed(&error, 0);
        }
    }

    /// Deletes one batch of what is too old or too much. Returns false if that failed.
    fn delete(&mut self, written: usize) -> bool {
        let most = u32::try_from(LEAST_DELETED.max(2 * written)).unwrap_or(u32::MAX);
        let deleted = self.delete_old(most).and_then(|has_more| Ok(has_more || self.delete_surplus(most)?));
        self.has_surplus = matches!(deleted, Ok(true));
        if let Err(error) = &deleted {
            self.failed(error, 0);
        }
        deleted.is_ok()
    }

    /// Looks for old records once a minute, and again while there are more. Returns true if there may be more.
    fn delete_old(&mut self, most: u32) -> Result<bool, ArchiveError> {
        let is_time = self.has_surplus || self.checked.is_none_or(|checked| checked.elapsed() >= CHECK_EVERY);
        let (Some(store), Some(after), true) = (&mut self.store, self.after, is_time) else { return Ok(false) };
        self.checked = Some(Instant::now());
        let Ok(until) = system::now().wall.checked_sub(after) else { return Ok(false) };
        Ok(store.delete_before(until.as_microsecond(), most)? > 0)
    }

    /// Returns true if the file was too large, and may still be.
    fn delete_surplus(&mut self, most: u32) -> Result<bool, ArchiveError> {
        match &mut self.store {
            Some(store) if store.bytes()? > self.most_bytes => Ok(store.delete_oldest(most)? > 0),
            _ => Ok(false),
        }
    }

    fn failed(&mut self, error: &ArchiveError, lost: usize) {
        (self.store, self.has_surplus) = (None, false);
        let now = Instant::now();
        let known = self.failure.take();
        let is_logged = known.as_ref().is_some_and(|known| now.duration_since(known.logged_at) < LOG_EVERY);
        let lost = lost + known.as_ref().map_or(0, |known| known.lost);
        if !is_logged {
            let path = self.path.display();
            log!(ARCHIVE_FAILED, %path, %error, lost);
        }
        if lost > 0 {
            self.doubt.raise(system::now().wall);
        }
        let logged_at = known.filter(|_| is_logged).map_or(now, |known| known.logged_at);
        self.failure = Some(Failure { lost, until: now + PAUSE, logged_at });
    }

    fn recovered(&mut self) {
        if let Some(Failure { lost, .. }) = self.failure.take() {
            log!(ARCHIVE_RECOVERED, path = %self.path.display(), lost);
        }
    }
}

/// Fails if the disk is nearly full. If that is not known, writing will show it.
fn has_space(path: &Path) -> Result<(), ArchiveError> {
    let facts = path.parent().and_then(|folder| rustix::fs::statvfs(folder).ok());
    match facts.map(|facts| facts.f_bavail.saturating_mul(facts.f_frsize)) {
        Some(free) if free < RESERVE => Err(ArchiveError::NoSpace(RESERVE)),
        _ => Ok(()),
    }
}
