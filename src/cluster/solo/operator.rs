//! Operators' requests, written to the ledger.
//!
//! Requests are rare, so each uses a connection and a thread of its own. The leader serves the API socket, so its
//! backend is notified at once. If another process leads by then, that one finds the request at its takeover or at its
//! next poll.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::watch;
use tokio::time::timeout;
use uuid::Uuid;

use super::background::BackendNotice;
use super::reader::SoloReader;
use super::recount;
use super::requests;
use super::store::BUSY_TIMEOUT;
use super::wanted;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{ControlEntry, Each, Followed, ForgetNode, Operator, OperatorError, OperatorFuture};
use cronkeeper_core::run::{
    Drain, HandoverRequest, KillRequest, NodeControl, NotRecounted, Pause, RecountRequest, Recounted, Resume, RunId,
    RunState, TriggerRecord,
};
use cronkeeper_core::term::NodeName;

/// Interval of checks for writes by other processes, which cannot notify this one.
const POLL_EVERY: Duration = Duration::from_secs(1);

impl Operator for SoloReader {
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> OperatorFuture<'_, Option<Pause>> {
        self.write(move |tx| requests::pause(tx, &job, id, pause))
    }

    fn pause_all(&self, jobs: Vec<(JobName, Uuid)>, pause: Pause) -> OperatorFuture<'_, Each<Option<Pause>>> {
        self.write(move |tx| {
            let done =
                jobs.into_iter().map(|(job, id)| Ok((job.clone(), requests::pause(tx, &job, id, pause.clone())?)));
            Ok(Each { done: done.collect::<rusqlite::Result<_>>()?, ..Each::default() })
        })
    }

    fn pauses(&self) -> OperatorFuture<'_, BTreeMap<JobName, ControlEntry>> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || requests::pauses(&open(&ledger)?, &mut Vec::new())))
    }

    fn request_resumes(&self, jobs: Vec<JobName>, resume: Resume) -> OperatorFuture<'_, Each<Option<Uuid>>> {
        self.write(move |tx| {
            let asked = |job: JobName| Ok((job.clone(), requests::request_resume(tx, &job, resume.clone())?));
            let done = jobs.into_iter().map(asked).collect::<rusqlite::Result<_>>()?;
            Ok(Each { done, ..Each::default() })
        })
    }

    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>> {
        self.write(move |tx| requests::request_resume(tx, &job, resume))
    }

    fn resumed(&self, job: JobName, pause: Uuid) -> OperatorFuture<'_, ()> {
        self.poll_until(move |db| {
            let is_paused = requests::control(db, &job)?.is_some_and(|entry| entry.record.id == pause);
            Ok((!is_paused).then_some(()))
        })
    }

    fn recount(&self, job: JobName, request: RecountRequest) -> OperatorFuture<'_, Result<Recounted, NotRecounted>> {
        self.write(move |tx| recount::recount(tx, &job, &request))
    }

    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId> {
        self.write(move |tx| requests::trigger(tx, &request))
    }

    fn triggered(&self, job: JobName, uuid: Uuid) -> OperatorFuture<'_, Option<RunId>> {
        let ledger = self.ledger.clone();
        Box::pin(on_blocking_thread(move || requests::known(&open(&ledger)?, &job, uuid)))
    }

    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>> {
        self.write(move |tx| requests::kill(tx, &run, request))
    }

    fn drain(&self, node: NodeName, drain: Drain) -> OperatorFuture<'_, Option<Drain>> {
        self.write(move |tx| {
            let was = wanted::change(tx, &node, |control| NodeControl { drained: Some(drain), ..control })?;
            Ok(was.drained)
        })
    }

    fn undrain(&self, node: NodeName) -> OperatorFuture<'_, Option<Drain>> {
        // A handover that was requested earlier is no longer wanted either.
        self.write(move |tx| Ok(wanted::change(tx, &node, |_| NodeControl::default())?.drained))
    }

    fn forget_node(&self, node: NodeName) -> OperatorFuture<'_, ForgetNode> {
        // The only place is this host. What was wanted of another node is of a name that it had before.
        self.write(move |tx| {
            let was = wanted::change(tx, &node, |_| NodeControl::default())?;
            Ok(if was == NodeControl::default() { ForgetNode::Unknown } else { ForgetNode::Forgotten })
        })
    }

    fn request_handover(&self, node: NodeName, request: HandoverRequest) -> OperatorFuture<'_, ()> {
        self.write(move |tx| {
            wanted::change(tx, &node, |control| NodeControl { handover: Some(request), ..control }).map(drop)
        })
    }

    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed> {
        self.poll_until(move |db| {
            // In this order, so that an end that is written between the two reads is found.
            let is_open = requests::is_open(db, &run)?;
            let ended = requests::history_record(db, &run)?.map(|record| Followed::Ended(Box::new(record)));
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
        Box::pin(on_blocking_thread(move || {
            let written = write(&ledger, change)?;
            // Without a receiver the backend has ended, and the next leader finds the request.
            drop(notices.send(BackendNotice::OperatorRequest));
            Ok(written)
        }))
    }

    /// Calls `check` until it returns a value: after each write of this process, and at regular intervals.
    fn poll_until<T: Send + 'static>(
        &self,
        check: impl Fn(&Connection) -> rusqlite::Result<Option<T>> + Clone + Send + Sync + 'static,
    ) -> OperatorFuture<'_, T> {
        let (ledger, mut written) = (self.ledger.clone(), self.written.clone());
        Box::pin(async move {
            loop {
                written.mark_unchanged();
                let (ledger, check) = (ledger.clone(), check.clone());
                if let Some(found) = on_blocking_thread(move || check(&open(&ledger)?)).await? {
                    return Ok(found);
                }
                changed(&mut written).await;
            }
        })
    }
}

/// Waits for a write of this process, at most [`POLL_EVERY`].
async fn changed(written: &mut watch::Receiver<u64>) {
    if let Ok(Err(_)) = timeout(POLL_EVERY, written.changed()).await {
        tokio::time::sleep(POLL_EVERY).await; // the backend has ended: only others write
    }
}

/// Makes a change in one transaction.
pub(super) fn write<T>(
    ledger: &Path,
    change: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let mut db = open(ledger)?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let written = change(&tx)?;
    tx.commit()?;
    Ok(written)
}

pub(super) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, OperatorError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| OperatorError::Unclear(error.to_string()))?;
    done.map_err(|error| OperatorError::Unwritten(error.to_string()))
}

pub(super) fn open(ledger: &Path) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(ledger, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    // Like the backend's connection: a request that was written must survive a power loss.
    db.pragma_update(None, "synchronous", "FULL")?;
    Ok(db)
}
