//! Reads for the operator's eyes, each on a connection and a thread of its own: people ask seldom.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::errand::Notice;
use super::members::Members;
use super::queue::{Entry, Queue};
use super::read;
use crate::election;
use crate::job::JobName;
use crate::ledger::{LastEnd, Newest, ReadError, ReadFuture, Reader, Snapshot, Window};
use crate::run::{RunRecord, Version};

pub(super) struct SoloReader {
    pub(super) ledger: PathBuf,
    members: Members,
    queue: Queue,
    pub(super) notices: UnboundedSender<Notice>,
    pub(super) written: watch::Receiver<u64>,
}

/// Between whoever writes requests and the backend of this process.
pub(super) struct Signals {
    /// Where the backend hears of requests.
    pub(super) notices: UnboundedSender<Notice>,
    /// Counts what the backend wrote.
    pub(super) written: watch::Receiver<u64>,
}

impl SoloReader {
    pub(super) fn new(ledger: PathBuf, members: Members, queue: Queue, signals: Signals) -> Self {
        let Signals { notices, written } = signals;
        Self { ledger, members, queue, notices, written }
    }
}

impl Reader for SoloReader {
    fn queue(&self) -> ReadFuture<'_, election::Queue> {
        let (queue, members) = (self.queue.clone(), self.members.clone());
        off_the_loop(move || {
            let candidates = queue.living().map_err(said)?.iter().map(Entry::candidate).collect();
            Ok(election::Queue { candidates, members: members.living().map_err(said)? })
        })
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        let (ledger, members) = (self.ledger.clone(), self.members.clone());
        off_the_loop(move || Ok(read::rows(&open(&ledger)?).map_err(said)?.with_owners(&members)))
    }

    fn history(&self, job: Option<JobName>, window: Window) -> ReadFuture<'_, Newest> {
        let ledger = self.ledger.clone();
        off_the_loop(move || read::history(&open(&ledger)?, job.as_ref(), window).map_err(said))
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, LastEnd>> {
        let ledger = self.ledger.clone();
        off_the_loop(move || read::lasts(&open(&ledger)?).map_err(said))
    }
}

/// The runs in flight. One that cannot be read is left out.
pub(super) fn running(ledger: &Path) -> Result<Vec<(RunRecord, Version)>, ReadError> {
    Ok(read::rows(&open(ledger)?).map_err(said)?.running())
}

/// Dropping the future does not stop the read, only its answer is lost.
fn off_the_loop<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> ReadFuture<'static, T> {
    Box::pin(async { tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(said(error))) })
}

fn open(ledger: &Path) -> Result<Connection, ReadError> {
    let db = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    db.map_err(said)
}

fn said(error: impl std::fmt::Display) -> ReadError {
    ReadError(error.to_string())
}
