//! The archive: this node's own copy of the history, kept for longer than the ledger keeps it.
//!
//! The ledger has the newest records of all nodes, a few of each job. The archive has what the ledger accepted from
//! this node: the ends of its runs, those that it settled as leader, and the skips that it decided. So each record is
//! in one node's archive. It is a copy, and treated as one: nothing waits for it, no decision depends on it, and what
//! cannot be written is dropped, counted and logged. What it may lack is copied from the ledger ([`copy`]). A file that
//! SQLite finds damaged is moved aside, and a new one is begun. On one host all replicas share the file, as they share
//! the ledger.
//!
//! ```text
//! daemon ──put──▶ queue of 4,096 ─▶ thread: one transaction per quarter second ─▶ archive.db
//!                      └ full: dropped and counted                                   ▲
//! API ─ merge: what the ledger has, and below it what the archive has ───────────────┘ read only, at most 2 s
//! ```
//!
//! Bounds: the queue by records, the file by [`MOST_BYTES`] and by time ([`HistoryRetention`]), the disk by what must stay
//! free ([`RESERVE`](writer::RESERVE)), a read by time and by the window of its caller.

mod copy;
mod merge;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::{info, warn};

use self::copy::Doubt;
pub use self::merge::Merged;
pub(crate) use self::merge::json_size;
use self::writer::Writer;
use cronkeeper_core::clock::system;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::term::NodeName;

/// The file's name in the state directory.
const NAME: &str = "archive.db";
/// Most records that wait to be written: two seconds of two thousand ends a second.
const QUEUE: usize = 4_096;
/// Size of the file above which the oldest records are deleted, in bytes.
const MOST_BYTES: u64 = 1 << 30;
/// Least time between two log lines about dropped records.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// How long [`Archive::close`] waits for the last records.
const CLOSE: Duration = Duration::from_secs(2);
/// Stack of the thread: SQLite needs little.
const STACK: usize = 512 << 10;

/// How long records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryRetention {
    /// There is no archive.
    None,
    For(Duration),
    /// Only the size of the file limits it.
    Unlimited,
}

/// A node's archive. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Archive(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    items: SyncSender<Item>,
    doubt: Arc<Doubt>,
    losses: Mutex<Losses>,
}

/// Records dropped because the queue was full.
#[derive(Debug, Default)]
struct Losses {
    count: u64,
    logged_at: Option<Instant>,
}

/// A message to the thread.
#[derive(Debug)]
enum Item {
    Record(Box<HistoryRecord>),
    /// Write those that are missing, and answer with their number. No answer if that failed.
    Copy {
        records: Vec<HistoryRecord>,
        copied: oneshot::Sender<usize>,
    },
    /// Write what came before, then answer.
    Flush(oneshot::Sender<()>),
    /// A reader has found the file damaged.
    Damaged,
    /// Write what came before, answer, and end.
    Close(Closing),
}

/// How the thread ends.
#[derive(Debug)]
struct Closing {
    /// Nothing is missing.
    is_complete: bool,
    closed: SyncSender<()>,
}

/// What is deleted.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Age at which records are deleted.
    after: Option<Duration>,
    most_bytes: u64,
}

impl Archive {
    /// An archive that keeps nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Starts the archive in the state directory of this node. Without an archive, one that is there from before is
    /// removed.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(state_dir: &Path, node: NodeName, retention: HistoryRetention) -> io::Result<Self> {
        Self::start_with(state_dir, node, retention, MOST_BYTES)
    }

    fn start_with(state_dir: &Path, node: NodeName, retention: HistoryRetention, most_bytes: u64) -> io::Result<Self> {
        let path = state_dir.join(NAME);
        let after = match retention {
            HistoryRetention::None => {
                remove(&path);
                return Ok(Self::off());
            }
            HistoryRetention::For(after) => Some(after),
            HistoryRetention::Unlimited => None,
        };
        let (items, received) = mpsc::sync_channel(QUEUE);
        let doubt = Arc::new(Doubt::default());
        let writer = Writer::new(path.clone(), node, Arc::clone(&doubt), Limits { after, most_bytes });
        let thread = thread::Builder::new().name("archive".to_owned()).stack_size(STACK);
        thread.spawn(move || writer.run(&received))?;
        Ok(Self::sending(path, items, doubt))
    }

    fn sending(path: PathBuf, items: SyncSender<Item>, doubt: Arc<Doubt>) -> Self {
        Self(Some(Arc::new(Shared { path, items, doubt, losses: Mutex::default() })))
    }

    /// False if it keeps nothing.
    pub fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Hands a record over to be written. Never waits: if too many are waiting, this one is dropped.
    pub fn put(&self, record: HistoryRecord) {
        let Some(shared) = &self.0 else { return };
        if let Err(TrySendError::Full(_)) = shared.items.try_send(Item::Record(Box::new(record))) {
            shared.note_loss();
            shared.doubt.raise(system::now().wall);
        }
    }

    /// Writes what is waiting, and ends the thread. Blocks for at most two seconds: a disk that hangs must not keep the
    /// process alive. `has_left` says that the ledger has answered everything that this node had for it.
    pub fn close(&self, has_left: bool) {
        let Some(shared) = &self.0 else { return };
        let (closed, is_closed) = mpsc::sync_channel(1);
        let until = Instant::now() + CLOSE;
        let mut item = Item::Close(Closing { is_complete: has_left && shared.doubt.is_none(), closed });
        while let Err(TrySendError::Full(back)) = shared.items.try_send(item) {
            if Instant::now() >= until {
                return;
            }
            item = back;
            thread::sleep(Duration::from_millis(10));
        }
        // An error means that the thread is gone, or takes too long: either way nobody waits for it.
        let _ = is_closed.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Removes an archive that is no longer wanted: it contains output of jobs.
fn remove(path: &Path) {
    let shown = path.display();
    match store::remove(path) {
        Ok(true) => info!(target: TARGET, "the archive of the history, {shown}, was removed: none is to be kept"),
        Ok(false) => {}
        Err(error) => warn!(target: TARGET, "the archive of the history, {shown}, cannot be removed: {error}"),
    }
}

impl Shared {
    fn note_loss(&self) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.count += 1;
        if losses.logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_EVERY) {
            losses.logged_at = Some(Instant::now());
            let dropped = losses.count;
            let what = "the archive of the history is too slow; the ledger still has the newest records";
            warn!(target: TARGET, dropped, "{what}");
        }
    }
}
