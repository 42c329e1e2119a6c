//! What operators want, each request on a connection and a thread of its own: people ask seldom.
//!
//! The process that serves the API socket leads, so its backend is told of each request at once. Were another to lead by then, it
//! finds the request at its takeover, or at one of its regular looks.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use super::errand::Notice;
use super::reader::SoloReader;
use super::requests;
use super::store::BUSY;
use crate::job::JobName;
use crate::ledger::{Followed, Operator, OperatorError, OperatorFuture};
use crate::run::{KillRequest, Pause, Resume, RunId, RunState, TriggerRecord};

/// Another process's writes have no sign: how often to look without one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Operator for SoloReader {
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> OperatorFuture<'_, ()> {
        self.write(move |tx| requests::pause(tx, &job, id, pause))
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>> {
        self.write(move |tx| requests::request_resume(tx, &job, resume))
    }

    fn resumed(&self, job: JobName, pause: Uuid) -> OperatorFuture<'_, ()> {
        self.until(move |db| {
            let stands = requests::control(db, &job)?.is_some_and(|entry| entry.record.id == pause);
            Ok((!stands).then_some(()))
        })
    }

    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId> {
        self.write(move |tx| requests::trigger(tx, &request))
    }

    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>> {
        self.write(move |tx| requests::kill(tx, &run, request))
    }

    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed> {
        self.until(move |db| {
            // Looked for in this order: an end written between the two is found.
            let is_open = requests::is_open(db, &run)?;
            let ended = requests::ended(db, &run)?.map(|record| Followed::Ended(Box::new(record)));
            Ok(ended.or_else(|| (!is_open).then_some(Followed::Gone)))
        })
    }
}

impl SoloReader {
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> OperatorFuture<'_, T> {
        let (ledger, notices) = (self.ledger.clone(), self.notices.clone());
        Box::pin(off_the_loop(move || {
            let mut db = open(&ledger)?;
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let written = change(&tx)?;
            tx.commit()?;
            drop(notices.send(Notice::Wished)); // nobody there: the backend has ended, and whoever leads next finds it
            Ok(written)
        }))
    }

    /// Looks whenever this process has written, until there is an answer.
    fn until<T: Send + 'static>(
        &self,
        look: impl Fn(&Connection) -> rusqlite::Result<Option<T>> + Clone + Send + Sync + 'static,
    ) -> OperatorFuture<'_, T> {
        let (ledger, mut written) = (self.ledger.clone(), self.written.clone());
        Box::pin(async move {
            loop {
                written.mark_unchanged();
                let (ledger, look) = (ledger.clone(), look.clone());
                if let Some(found) = off_the_loop(move || look(&open(&ledger)?)).await? {
                    return Ok(found);
                }
                changed(&mut written).await;
            }
        })
    }
}

/// Returns when something was written here, or it is time to look for what others wrote.
async fn changed(written: &mut watch::Receiver<u64>) {
    if let Ok(Err(_)) = timeout(LOOK_EVERY, written.changed()).await {
        tokio::time::sleep(LOOK_EVERY).await; // the backend has ended: only others write
    }
}

async fn off_the_loop<T: Send + 'static>(
    work: impl FnOnce() -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, OperatorError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| OperatorError(error.to_string()))?;
    done.map_err(|error| OperatorError(error.to_string()))
}

fn open(ledger: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY)?;
    // As the backend's own: a request that was written outlives the host's power.
    db.pragma_update(None, "synchronous", "FULL")?;
    Ok(db)
}
