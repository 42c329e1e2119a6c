//! What operators ask for: runs now, pauses and their end; and what became of a run.
//!
//! A request is written into the ledger with the caller's name, and logged. The leader, wherever it is, does it. Only the Unix
//! socket takes requests: there the kernel says who asks.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::info;
use uuid::Uuid;

use super::caller::{self, Caller};
use super::network::Visibility;
use super::show::no_such_job;
use super::{Refusal, Shared};
use crate::clock::system;
use crate::election::TransferError;
use crate::job::JobName;
use crate::ledger::{Followed, OperatorFuture};
use crate::run::{KillRequest, Pause, Reason, Resume, RunId, RunState, TriggerRecord};
use crate::status::{HistoryEntry, Status};
use crate::telemetry::TARGET;
use crate::term::NodeName;

/// Most bytes of a request.
pub(super) const MOST_BYTES: usize = 16 << 10;
/// Most characters of a reason.
const MOST_REASON: usize = 1_000;
/// How long a request may take to be written, and how long an end is waited for in one go: less than a client's timeout.
const TIMEOUT: Duration = Duration::from_secs(8);

/// The body of `POST /v1/jobs/{job}/trigger`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerBody {
    /// Drawn by whoever asks: asking again with the same one is harmless.
    pub uuid: Uuid,
}

/// The answer to it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Triggered {
    /// The run that it leads to.
    pub run: RunId,
}

/// The body of `POST /v1/jobs/{job}/pause`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseBody {
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to it: who is said to have paused the job.
#[derive(Debug, Serialize, Deserialize)]
pub struct Paused {
    /// As status shows it.
    pub paused: Pause,
}

/// The body of `POST /v1/jobs/{job}/resume`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {}

/// The answer to it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resumed {
    /// False where there was nothing to resume.
    pub was_paused: bool,
}

/// The body of `POST /v1/handover`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoverBody {
    /// Who is to lead; absent: the next in line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeName>,
}

/// The answer to it: leadership is given up.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedOver {
    /// By this node.
    pub node: NodeName,
}

/// A handover, on its way to the daemon's loop.
#[derive(Debug)]
pub struct Handover {
    /// Who is to lead; absent: the next in line.
    pub to: Option<NodeName>,
    /// Who waits to hear how it went.
    pub answer: oneshot::Sender<Result<(), TransferError>>,
}

/// The body of `POST /v1/runs/{run}/kill`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KillBody {
    /// A run that is cut off ends too.
    #[serde(default)]
    pub force: bool,
}

/// The answer to it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Killing {
    /// Where the run stood.
    pub state: RunState,
}

/// The answer to `GET /v1/runs/{run}`, which waits some seconds for the run's end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Fate {
    /// It waits, or is in flight: ask again.
    Pending,
    /// It ended, or was skipped.
    Ended {
        /// How.
        record: HistoryEntry,
    },
    /// Nothing is known of it.
    Gone,
}

type Named = Result<Path<String>, PathRejection>;
type Body = Result<Bytes, BytesRejection>;

/// `POST /v1/jobs/{job}/trigger`.
pub(super) async fn trigger(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    job: Named,
    body: Body,
) -> Result<Json<Triggered>, Refusal> {
    let by = shared.by(caller).await?;
    let (job, TriggerBody { uuid }) = (shared.known_job(job)?, request(body)?);
    let at = whole_second(system::now().wall);
    let record = TriggerRecord { v: 1, uuid, job: job.clone(), by: by.clone(), at };
    let run = written(shared.sources.operator.trigger(record)).await?;
    info!(target: TARGET, %job, %run, "{by} wants a run of the job now");
    Ok(Json(Triggered { run }))
}

/// `POST /v1/jobs/{job}/pause`.
pub(super) async fn pause(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    job: Named,
    body: Body,
) -> Result<Json<Paused>, Refusal> {
    let by = shared.by(caller).await?;
    let (job, PauseBody { reason }) = (shared.known_job(job)?, request(body)?);
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MOST_REASON) {
        let error = format!("the reason has more than {MOST_REASON} characters");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, error));
    }
    let paused = Pause { by, at: whole_second(system::now().wall), reason };
    written(shared.sources.operator.pause(job.clone(), Uuid::new_v4(), paused.clone())).await?;
    info!(target: TARGET, %job, reason = paused.reason, "{} paused the job", paused.by);
    Ok(Json(Paused { paused }))
}

/// `POST /v1/jobs/{job}/resume`. A job that is no longer defined can be resumed too.
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    job: Named,
    body: Body,
) -> Result<Json<Resumed>, Refusal> {
    let by = shared.by(caller).await?;
    let (job, ResumeBody {}) = (job_name(job)?, request(body)?);
    let operator = &shared.sources.operator;
    let resume = Resume { by: by.clone(), at: whole_second(system::now().wall) };
    let Some(pause) = written(operator.request_resume(job.clone(), resume)).await? else {
        shared.must_know(&job)?;
        return Ok(Json(Resumed { was_paused: false }));
    };
    info!(target: TARGET, %job, "{by} wants the job resumed");
    match timeout(TIMEOUT, operator.resumed(job.clone(), pause)).await {
        Ok(done) => done.map_err(away).map(|()| Json(Resumed { was_paused: true })),
        Err(_) => {
            let error = format!(
                "no leader has resumed job `{job}` within {} s; one will, once there is one",
                TIMEOUT.as_secs()
            );
            Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, error))
        }
    }
}

/// `POST /v1/handover`. Only the leader has leadership to give.
pub(super) async fn handover(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json<HandedOver>, Refusal> {
    let by = shared.by(caller).await?;
    let HandoverBody { to } = request(body)?;
    let status: Arc<Status> = Arc::clone(&shared.sources.status.borrow());
    info!(target: TARGET, to = to.as_ref().map(NodeName::as_str), "{by} wants leadership handed over");
    let (answer, answered) = oneshot::channel();
    // Where nobody takes it, nobody answers either.
    let _ = shared.sources.handovers.send(Handover { to, answer });
    match timeout(TIMEOUT, answered).await {
        Ok(Ok(Ok(()))) => Ok(Json(HandedOver { node: status.node.clone() })),
        Ok(Ok(Err(why))) => Err(Refusal::new(StatusCode::CONFLICT, not_handed_over(&why, &status))),
        Ok(Err(_)) => Err(away("the node ends, and gives leadership up with that")),
        Err(_) => {
            let error = format!("leadership was not given up within {} s; it will be", TIMEOUT.as_secs());
            Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, error))
        }
    }
}

fn not_handed_over(why: &TransferError, status: &Status) -> String {
    match (why, &status.role.leader_node) {
        (TransferError::NotLeading, Some(leader)) if *leader != status.node => {
            format!("{} does not lead: {leader} does, ask there", status.node)
        }
        _ => format!("leadership stays: {why}"),
    }
}

/// `POST /v1/runs/{run}/kill`.
pub(super) async fn kill(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    run: Named,
    body: Body,
) -> Result<Json<Killing>, Refusal> {
    let by = shared.by(caller).await?;
    let (run, KillBody { force }) = (run_id(run)?, request(body)?);
    let kill = KillRequest { reason: Reason::Operator, by: by.clone(), at: system::now().wall, force };
    let Some(state) = written(shared.sources.operator.kill(run.clone(), kill)).await? else {
        return Err(Refusal::new(StatusCode::NOT_FOUND, format!("run `{run}` is not in flight")));
    };
    info!(target: TARGET, job = %run.job(), %run, force, "{by} wants the run to end");
    Ok(Json(Killing { state }))
}

/// `GET /v1/runs/{run}`.
pub(super) async fn run(
    State(shared): State<Arc<Shared>>,
    sight: Visibility,
    run: Named,
) -> Result<Json<Fate>, Refusal> {
    let run = run_id(run)?;
    let fate = match timeout(TIMEOUT, shared.sources.operator.followed(run)).await {
        Err(_) => Fate::Pending,
        Ok(followed) => match followed.map_err(away)? {
            Followed::Ended(record) => Fate::Ended { record: sight.of_record((*record).into()) },
            Followed::Gone => Fate::Gone,
        },
    };
    Ok(Json(fate))
}

impl Shared {
    /// The caller, where it may ask for anything.
    async fn by(&self, caller: Caller) -> Result<String, Refusal> {
        let node = self.sources.status.borrow().node.clone();
        match caller {
            Caller::Local { uid } => Ok(caller::told(uid, &node).await),
            Caller::Remote(_) | Caller::Unknown => {
                Err(Refusal::new(StatusCode::FORBIDDEN, "over TCP this can only be read: ask on the Unix socket"))
            }
        }
    }

    fn known_job(&self, job: Named) -> Result<JobName, Refusal> {
        let job = job_name(job)?;
        self.must_know(&job)?;
        Ok(job)
    }

    fn must_know(&self, job: &JobName) -> Result<(), Refusal> {
        let status: Arc<Status> = Arc::clone(&self.sources.status.borrow());
        if status.jobs.iter().any(|known| known.name == *job) {
            return Ok(());
        }
        Err(Refusal::new(StatusCode::NOT_FOUND, no_such_job(job, &status)))
    }
}

fn run_id(run: Named) -> Result<RunId, Refusal> {
    let Path(run) = run.map_err(|bad| Refusal::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    RunId::parse(&run).map_err(|bad| Refusal::new(StatusCode::NOT_FOUND, bad.to_string()))
}

fn job_name(job: Named) -> Result<JobName, Refusal> {
    let Path(job) = job.map_err(|bad| Refusal::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    JobName::parse(&job).map_err(|bad| Refusal::new(StatusCode::NOT_FOUND, bad.to_string()))
}

/// An empty body requests nothing in particular.
fn request<T: DeserializeOwned>(body: Body) -> Result<T, Refusal> {
    let body = body.map_err(|bad| Refusal::new(bad.status(), bad.body_text()))?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, format!("the body: {error}")))
}

/// Dropped late, a request may yet be written: it says the same when it is sent again.
async fn written<T>(asking: OperatorFuture<'_, T>) -> Result<T, Refusal> {
    match timeout(TIMEOUT, asking).await {
        Ok(done) => done.map_err(away),
        Err(_) => {
            let error = format!("the ledger gave no answer within {} s", TIMEOUT.as_secs());
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error))
        }
    }
}

fn away(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

fn whole_second(at: Timestamp) -> Timestamp {
    at - jiff::SignedDuration::new(0, at.subsec_nanosecond())
}
