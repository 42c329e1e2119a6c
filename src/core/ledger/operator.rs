//! Operator requests in the ledger: pause, resume, recount, trigger, kill, drain, undrain and handover.
//!
//! The node that the operator talks to, which need not lead, only writes the request to the ledger; the leader carries
//! it out. Every request may be repeated safely: a pause overwrites itself, and a trigger is identified by its uuid.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use uuid::Uuid;

use crate::job::JobName;
use crate::run::{
    ControlRecord, Drain, HandoverRequest, HistoryRecord, KillRequest, Link, NotRecounted, Pause, RecountRequest,
    Recounted, Resume, RunId, RunState, TriggerRecord, TriggerSeq, Version,
};
use crate::term::NodeName;

/// Open requests of operators, and links of upstreams, that the leader has not handled yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperatorRequests {
    pub control: BTreeMap<JobName, ControlEntry>,
    pub triggers: BTreeMap<TriggerSeq, TriggerEntry>,
    /// Links from upstreams. They share the numbers of the triggers.
    pub links: BTreeMap<TriggerSeq, Link>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ControlEntry {
    pub record: ControlRecord,
    pub version: Version,
}

/// A trigger that the leader has not decided yet.
#[derive(Clone, Debug, PartialEq)]
pub struct TriggerEntry {
    pub record: TriggerRecord,
    /// The job's history already has a record with this uuid.
    pub is_in_history: bool,
}

/// The result of following a run, whether triggered or scheduled.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// The run ended, or was skipped.
    Ended(Box<HistoryRecord>),
    /// Nodes have been given their shares of it: these, as far as they are in flight or their records are kept. Never
    /// empty. A share that was skipped like that of the occurrence before has no record of its own.
    Shared(BTreeSet<RunId>),
    /// Nothing is known of it: its trigger was a duplicate with the same uuid, or its record was trimmed.
    Gone,
}

/// What became of a request to forget a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetNode {
    Forgotten,
    /// It is alive, and would come back at once.
    Alive,
    /// The cluster does not know it.
    Unknown,
}

/// What became of a request about many jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Each<T> {
    pub done: BTreeMap<JobName, T>,
    /// The jobs about which nothing could be written, each with the reason.
    pub failed: BTreeMap<JobName, String>,
}

impl<T> Default for Each<T> {
    fn default() -> Self {
        Self { done: BTreeMap::new(), failed: BTreeMap::new() }
    }
}

/// The future of a request. If it is dropped, the request may or may not be written.
pub type OperatorFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, OperatorError>> + Send + 'a>>;

/// Writes the requests of operators to the ledger. The caller limits how long to wait.
pub trait Operator: Send + Sync {
    /// Pauses a job. `id` is a new random id for the pause. If the job is already paused, replaces who, when and why, and
    /// returns what was replaced. After this returns, the leader begins no further occurrence.
    fn pause(&self, job: JobName, id: Uuid, pause: Pause) -> OperatorFuture<'_, Option<Pause>>;
    /// Pauses many jobs, each as [`Operator::pause`] does. A job that cannot be paused does not prevent the others.
    fn pause_all(&self, jobs: Vec<(JobName, Uuid)>, pause: Pause) -> OperatorFuture<'_, Each<Option<Pause>>>;
    /// The jobs that are paused.
    fn pauses(&self) -> OperatorFuture<'_, BTreeMap<JobName, ControlEntry>>;
    /// Requests that the leader end a job's pause. Returns the pause's id; `None` if the job is not paused.
    fn request_resume(&self, job: JobName, resume: Resume) -> OperatorFuture<'_, Option<Uuid>>;
    /// Requests the end of many jobs' pauses, each as [`Operator::request_resume`] does.
    fn request_resumes(&self, jobs: Vec<JobName>, resume: Resume) -> OperatorFuture<'_, Each<Option<Uuid>>>;
    fn resumed(&self, job: JobName, pause: Uuid) -> OperatorFuture<'_, ()>;
    /// Counts a job from now on again, if that decides on no occurrence a second time, and notifies the leader. Writes
    /// nothing if not.
    fn recount(&self, job: JobName, request: RecountRequest) -> OperatorFuture<'_, Result<Recounted, NotRecounted>>;
    /// Requests a run now and returns the id it will have. A repeated uuid returns the same id while the ledger still
    /// knows it.
    fn trigger(&self, request: TriggerRecord) -> OperatorFuture<'_, RunId>;
    /// The run of an earlier request for the job with this uuid, while the ledger still knows it.
    fn triggered(&self, job: JobName, uuid: Uuid) -> OperatorFuture<'_, Option<RunId>>;
    /// Requests that a run in flight end, by writing the request to its record. Returns the run's state; `None` if it
    /// is not in flight. The first request counts, except that one with `force` replaces one without.
    fn kill(&self, run: RunId, request: KillRequest) -> OperatorFuture<'_, Option<RunState>>;
    /// Drains a node, which need not be alive. If it is drained already, replaces who, when and why, and returns what
    /// was replaced.
    fn drain(&self, node: NodeName, drain: Drain) -> OperatorFuture<'_, Option<Drain>>;
    /// Ends a node's drain. Returns it; `None` if the node is not drained.
    fn undrain(&self, node: NodeName) -> OperatorFuture<'_, Option<Drain>>;
    /// Removes a node that is not alive as a place to run jobs, and what was wanted of it. The leader then ends what waits
    /// for it.
    fn forget_node(&self, node: NodeName) -> OperatorFuture<'_, ForgetNode>;
    /// Requests that the leader `node` hand leadership over. A request replaces the one before.
    fn request_handover(&self, node: NodeName, request: HandoverRequest) -> OperatorFuture<'_, ()>;
    /// Returns once a run has ended, has been shared out or is no longer known.
    fn followed(&self, run: RunId) -> OperatorFuture<'_, Followed>;
}

/// Failure of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperatorError {
    /// The request only reads.
    #[error("the ledger cannot be read: {0}")]
    Unread(String),
    /// Nothing was written.
    #[error("the request cannot be written to the ledger: {0}")]
    Unwritten(String),
    /// A write was sent and not answered, so it may have been carried out, or may be later; or some jobs' writes were.
    #[error("the request may or may not have been written to the ledger: {0}")]
    Unclear(String),
}
