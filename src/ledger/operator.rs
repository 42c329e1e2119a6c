//! What operators ask of the ledger: to pause and resume a job, and to run one now.
//!
//! Whoever is asked, on whatever node, writes the request down; the leader sees to it. Every request may be repeated: a pause says
//! the same again, a trigger is known by its uuid. Nothing here decides anything.

use std::collections::BTreeMap;
use std::pin::Pin;

use uuid::Uuid;

use crate::job::JobName;
use crate::run::{
    ControlRecord, HistoryRecord, KillRequest, Link, Pause, Resume, RunId, RunState, TriggerRecord, TriggerSeq, Version,
};

/// All that operators want, or jobs that run after others wait for, and the leader has not seen to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorRequests {
    /// The paused jobs.
    pub control: BTreeMap<JobName, ControlEntry>,
    /// The triggers, by number.
    pub triggers: BTreeMap<TriggerSeq, TriggerEntry>,
    /// The links that upstreams left, numbered likewise.
    pub links: BTreeMap<TriggerSeq, Link>,
}

/// A pause with its version.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlEntry {
    /// Its record.
    pub record: ControlRecord,
    /// Its version.
    pub version: Version,
}

/// A trigger nobody has decided on.
#[derive(Clone, Debug, PartialEq)]
pub struct TriggerEntry {
    /// Its record.
    pub record: TriggerRecord,
    /// A record of the job's history answers the same uuid.
    pub is_in_history: bool,
}

/// What became of a trigger, or of any run.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// It ended, or led to no run.
    Ended(Box<HistoryRecord>),
    /// Nothing of it is known: its trigger was one of several with one uuid, or its record was trimmed.
    Gone,
}

/// The future of a request. Dropped, the request may be written or not.
pub type OperatorFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, OperatorError>> + Send + 'a>>;

/// Writes down what operators want. Whoever asks bounds the wait.
pub trait Operator: Send + Sync {
    /// Pauses a job, by the id drawn for it; of one that is paused already, says who, when and why anew. Once it is done, no
    /// occurrence begins that the leader had not begun before.
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> OperatorFuture<'_, ()>;
    /// Asks the leader to end a job's pause, whose id is given back; absent: the job is not paused.
    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>>;
    /// Returns once the leader has ended that pause.
    fn resumed(&self, job: JobName, pause: Uuid) -> OperatorFuture<'_, ()>;
    /// Wants a run now; under which id it will run. The same for the same uuid, as long as the ledger knows of it.
    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId>;
    /// Wants a run in flight to end, whoever has it: its record says so from then on. Where it stands; absent: it is not in flight.
    /// The first request counts; one that is to be met by force stands over one that is not.
    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>>;
    /// Returns once a run has ended, or is not known any more.
    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed>;
}

/// Why a request could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be asked: {0}")]
pub struct OperatorError(pub String);
