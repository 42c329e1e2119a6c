//! Reads for operators. They are rare, so each uses a connection and a thread of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use super::background::BackendNotice;
use super::members::Members;
use super::queue::{Queue, QueueEntry};
use super::{last, read, requests, wanted};
use cronkeeper_core::coordination::{ReadError, ReadFuture, Reader};
use cronkeeper_core::election;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Filter, Last, Newest, Snapshot, Window};
use cronkeeper_core::run::{HistoryRecord, RunId, RunRecord, Version};

/// How long a read of the history may take: its caller waits no longer, and cannot stop it.
const HISTORY: Duration = Duration::from_secs(3);

pub(super) struct SoloReader {
    pub(super) ledger: PathBuf,
    members: Members,
    queue: Queue,
    pub(super) notices: UnboundedSender<BackendNotice>,
    pub(super) written: watch::Receiver<u64>,
}

/// Connects the writer of operators' requests to the backend of this process.
pub(super) struct OperatorLink {
    /// Notifies the backend of new requests.
    pub(super) notices: UnboundedSender<BackendNotice>,
    /// Counts the backend's writes.
    pub(super) written: watch::Receiver<u64>,
}

impl SoloReader {
    pub(super) fn new(ledger: PathBuf, members: Members, queue: Queue, link: OperatorLink) -> Self {
        let OperatorLink { notices, written } = link;
        Self { ledger, members, queue, notices, written }
    }
}

impl Reader for SoloReader {
    fn queue(&self) -> ReadFuture<'_, election::Queue> {
        let (queue, members, ledger) = (self.queue.clone(), self.members.clone(), self.ledger.clone());
        on_blocking_thread(move || {
            let candidates: Vec<_> = queue.alive().map_err(read_error)?.iter().map(QueueEntry::candidate).collect();
            // It is alive, and leads as soon as the processes of the last leader are dead.
            let leader = candidates.first().and_then(|first| first.node.clone());
            let drained = wanted::drained(&open(&ledger)?).map_err(read_error)?;
            let members = members.alive().map_err(read_error)?;
            // All jobs run on the leader.
            let places = Default::default();
            Ok(election::Queue { candidates, leader, members, drained, places })
        })
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        let (ledger, members) = (self.ledger.clone(), self.members.clone());
        on_blocking_thread(move || Ok(read::rows(&open(&ledger)?).map_err(read_error)?.with_owners(&members)))
    }

    fn run(&self, run: RunId) -> ReadFuture<'_, Option<RunRecord>> {
        let ledger = self.ledger.clone();
        let read = move || Ok(read::run(&open(&ledger)?, &run).map_err(read_error)?.map(|(record, _)| record));
        on_blocking_thread(read)
    }

    fn record(&self, run: RunId) -> ReadFuture<'_, Option<HistoryRecord>> {
        let ledger = self.ledger.clone();
        on_blocking_thread(move || requests::history_record(&open(&ledger)?, &run).map_err(read_error))
    }

    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest> {
        let ledger = self.ledger.clone();
        on_blocking_thread(move || read::history_within(&open(&ledger)?, &filter, window, HISTORY).map_err(read_error))
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>> {
        let ledger = self.ledger.clone();
        on_blocking_thread(move || last::all(&open(&ledger)?).map_err(read_error))
    }
}

/// The runs in flight, without unreadable ones.
pub(super) fn running(ledger: &Path) -> Result<Vec<(RunRecord, Version)>, ReadError> {
    Ok(read::rows(&open(ledger)?).map_err(read_error)?.running())
}

/// Runs a read on a thread for blocking work. Dropping the future does not stop the read; its result is discarded.
fn on_blocking_thread<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, ReadError> + Send + 'static,
) -> ReadFuture<'static, T> {
    Box::pin(async { tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(read_error(error))) })
}

fn open(ledger: &Path) -> Result<Connection, ReadError> {
    let db = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX);
    db.map_err(read_error)
}

fn read_error(error: impl std::fmt::Display) -> ReadError {
    ReadError(error.to_string())
}
