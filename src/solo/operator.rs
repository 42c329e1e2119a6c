//! What operators want, each wish on a connection and a thread of its own: people ask seldom.
//!
//! The process that serves the API socket leads, so its backend is told of each wish at once. Were another to lead by then, it
//! finds the wish at its takeover, or at one of its regular looks.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use super::errand::Notice;
use super::reader::SoloReader;
use super::store::BUSY;
use super::wishes;
use crate::job::JobName;
use crate::ledger::{Asking, Followed, Operator, OperatorError};
use crate::run::{KillRequest, Pause, Resume, RunId, RunState, TriggerRecord};

/// Another process's writes have no sign: how often to look without one.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Operator for SoloReader {
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> Asking<'_, ()> {
        self.write(move |tx| wishes::pause(tx, &job, id, pause))
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> Asking<'_, Option<Uuid>> {
        self.write(move |tx| wishes::request_resume(tx, &job, resume))
    }

    fn resumed(&self, job: JobName, pause: Uuid) -> Asking<'_, ()> {
        self.until(move |db| {
            let stands = wishes::control(db, &job)?.is_some_and(|entry| entry.record.id == pause);
            Ok((!stands).then_some(()))
        })
    }

    fn trigger(&self, wish: TriggerRecord) -> Asking<'_, RunId> {
        self.write(move |tx| wishes::trigger(tx, &wish))
    }

    fn kill(&self, run: RunId, wish: KillRequest) -> Asking<'_, Option<RunState>> {
        self.write(move |tx| wishes::kill(tx, &run, wish))
    }

    fn followed(&self, run: RunId) -> Asking<'_, Followed> {
        self.until(move |db| {
            // Looked for in this order: an end written between the two is found.
            let is_open = wishes::is_open(db, &run)?;
            let ended = wishes::ended(db, &run)?.map(|record| Followed::Ended(Box::new(record)));
            Ok(ended.or_else(|| (!is_open).then_some(Followed::Gone)))
        })
    }
}

impl SoloReader {
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Asking<'_, T> {
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
    ) -> Asking<'_, T> {
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
    // As the backend's own: a wish that was written outlives the host's power.
    db.pragma_update(None, "synchronous", "FULL")?;
    Ok(db)
}
