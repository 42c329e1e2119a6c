//! Requests of operators about runs: trigger and kill, and the result of a run.
//!
//! A request is logged and written into the ledger with the caller's name; the leader, on whichever node, carries it
//! out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use uuid::Uuid;

use super::admission::Admitted;
use super::authorize::{Actor, ApiActor, log_requested};
use super::network::Visibility;
use super::roles::KILL_BY_FORCE;
use super::show::{job_name, no_such_job};
use super::{ApiState, RefusedRequest};
use crate::status::{HistoryEntry, Status};
use cronkeeper_core::clock::system;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Followed, OperatorError, OperatorFuture};
use cronkeeper_core::run::{KillRequest, Parameters, Reason, RunId, RunState, TriggerRecord};
use cronkeeper_core::term::NodeName;

/// Ends that are older than this are in every answer.
const LATELY: SignedDuration = SignedDuration::from_secs(5);
/// Most bytes of a request's body: the largest parameters fit, even if JSON escapes every character.
pub(super) const MOST_BYTES: usize = 64 << 10;
/// Most characters of the reason for a pause or a drain.
pub(super) const MOST_REASON: usize = 1_000;
/// Longest wait for what a request asks for, such as the end of a run. Below the client's timeout.
pub(super) const TIMEOUT: Duration = Duration::from_secs(8);
/// Longest wait for a read of the ledger, and for a write to it. Below the client's timeout together.
pub(super) const READ: Duration = Duration::from_secs(3);
const WRITE: Duration = Duration::from_secs(5);

/// The body of `POST /v1/jobs/{job}/trigger`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TriggerBody {
    /// Chosen by the client. Requests with the same uuid are one request, so repeating one is harmless. Without one,
    /// each request is another.
    #[serde(default)]
    pub uuid: Option<Uuid>,
    /// Variables of the run, which the job must list under `parameters`: at most 16, each value of at most 1 KiB, 8 KiB
    /// in all as JSON. They are in the ledger and in the history, so they are not for secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// The time that the run finds as CRONKEEPER_SCHEDULED_AT, instead of the time of the request: in whole seconds,
    /// neither in the future nor before 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
    /// The nodes that are to run it, each a share of its own. Only for jobs with `run_on: any` or `every`, and for nodes
    /// that have the labels of `run_where`. Empty: where the job says.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub on: BTreeSet<NodeName>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Triggered {
    pub run: RunId,
    /// What keeps nodes that the trigger names from their shares for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The body of `POST /v1/runs/{run}/kill`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct KillBody {
    /// Also end a run that is cut off.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Killing {
    /// The run's state when the request was recorded.
    pub state: RunState,
}

/// The answer to `GET /v1/runs/{run}`, which waits up to eight seconds for the run's end.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RunAnswer {
    /// The run waits, or is in flight; the client should send the request again.
    Pending,
    /// The run ended, or was skipped.
    Ended { record: Box<HistoryEntry> },
    /// Each node has its own share of the run: these, in flight or ended. Each can be asked for by its id.
    Shared { shares: BTreeSet<RunId> },
}

pub(super) type PathParam = Result<Path<String>, PathRejection>;
pub(super) type RequestBody = Result<Bytes, BytesRejection>;

/// `POST /v1/jobs/{job}/trigger`.
pub(super) async fn trigger(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    job: PathParam,
    body: RequestBody,
) -> Result<Json<Triggered>, RefusedRequest> {
    let (job, body) = (state.known_job(job)?, parse_body(body)?);
    state.trigger(actor, job, body).await.map(Json)
}

/// `POST /v1/runs/{run}/kill`.
pub(super) async fn kill(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    run: PathParam,
    body: RequestBody,
) -> Result<Json<Killing>, RefusedRequest> {
    let (run, KillBody { force }) = (run_id(run)?, parse_body(body)?);
    state.kill(actor, run, force).await.map(Json)
}

/// `GET /v1/runs/{run}`. 404 if the ledger has no record of the run.
pub(super) async fn run(
    State(state): State<Arc<ApiState>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    visibility: Visibility,
    run: PathParam,
) -> Result<Json<RunAnswer>, RefusedRequest> {
    let run = run_id(run)?;
    admitted.wait();
    let answer = match timeout(TIMEOUT, state.sources.operator.followed(run.clone())).await {
        Err(_) => RunAnswer::Pending,
        Ok(followed) => match followed.map_err(unavailable)? {
            Followed::Ended(record) => {
                // What this answer tells, later ones must not contradict. What ended long ago they show anyway.
                if system::now().wall.duration_since(record.at()) < LATELY {
                    state.reads.changed();
                }
                RunAnswer::Ended { record: Box::new(visibility.of_record((*record).into())) }
            }
            Followed::Shared(shares) => RunAnswer::Shared { shares },
            Followed::Gone => {
                let error = format!("the ledger has no record of run `{run}`");
                return Err(RefusedRequest::new(StatusCode::NOT_FOUND, error));
            }
        },
    };
    Ok(Json(answer))
}

/// The requests themselves, for the API and for the forms of the page.
impl ApiState {
    pub(super) async fn trigger(
        &self,
        actor: Actor,
        job: JobName,
        body: TriggerBody,
    ) -> Result<Triggered, RefusedRequest> {
        let uuid = body.uuid;
        let (record, notes) = match self.request(&actor.by, &job, body).await {
            Ok(request) => request,
            // The first request may count, although its answer was lost and the jobs file has changed since.
            Err(refused) => {
                let known = self.known_run(&job, uuid).await?;
                return known.map(|run| Triggered { run, notes: Vec::new() }).ok_or(refused);
            }
        };
        let names = Some(record.parameters.names()).filter(|names| !names.is_empty());
        let on = Some(listed(&record.on)).filter(|on| !on.is_empty());
        let run = self.recorded(self.sources.operator.trigger(record)).await?;
        // Without the values: the log may go to others than the ledger.
        log_requested!(actor, request = "trigger", %job, %run, to = on, parameters = names);
        Ok(Triggered { run, notes })
    }

    /// The record of a trigger that this node does not refuse, and what there is to say of the nodes that it names.
    async fn request(
        &self,
        by: &str,
        job: &JobName,
        body: TriggerBody,
    ) -> Result<(TriggerRecord, Vec<String>), RefusedRequest> {
        let TriggerBody { uuid, environment, scheduled_at, on } = body;
        let at = whole_second(system::now().wall);
        let parameters = self.parameters(job, environment)?;
        let scheduled_at = scheduled_at.map(|wanted| made_for(wanted, at)).transpose()?;
        let uuid = uuid.unwrap_or_else(Uuid::new_v4);
        let (on, notes) = self.named_nodes(job, on).await?;
        let record = TriggerRecord::new(uuid, job.clone(), by.to_owned(), at).with(parameters, scheduled_at).on(on);
        Ok((record, notes))
    }

    /// The run of an earlier request with this uuid.
    async fn known_run(&self, job: &JobName, uuid: Option<Uuid>) -> Result<Option<RunId>, RefusedRequest> {
        let Some(uuid) = uuid else { return Ok(None) };
        self.found(self.sources.operator.triggered(job.clone(), uuid)).await
    }

    /// Checks the variables of a trigger by this node's jobs file. The leader checks them by its own.
    fn parameters(&self, job: &JobName, variables: BTreeMap<String, String>) -> Result<Parameters, RefusedRequest> {
        let status: Arc<Status> = Arc::clone(&self.sources.status.borrow());
        let known = status.jobs.iter().find(|known| known.name == *job);
        let allowed = known.map(|known| known.parameters.iter().cloned().collect()).unwrap_or_default();
        Parameters::check(job.as_str(), &allowed, variables)
            .map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.to_string()))
    }

    pub(super) async fn kill(&self, actor: Actor, run: RunId, force: bool) -> Result<Killing, RefusedRequest> {
        if force {
            actor.require(KILL_BY_FORCE)?;
        }
        let kill = KillRequest { reason: Reason::Operator, by: actor.by.clone(), at: system::now().wall, force };
        let Some(state) = self.recorded(self.sources.operator.kill(run.clone(), kill)).await? else {
            return Err(RefusedRequest::new(StatusCode::NOT_FOUND, format!("run `{run}` is not in flight")));
        };
        log_requested!(actor, request = "kill", job = %run.job(), %run, force);
        Ok(Killing { state })
    }
}

impl ApiState {
    /// The time by the ledger's clock, as far as this node knows that one.
    pub(super) fn ledger_time(&self) -> Timestamp {
        let ahead = SignedDuration::from_millis(self.sources.status.borrow().clock_skew_ms.unwrap_or_default());
        let now = system::now().wall;
        now.checked_sub(ahead).unwrap_or(now)
    }

    /// Waits for a write to the ledger, with a timeout. After that the request may have been written, or may be later.
    pub(super) async fn recorded<T>(&self, writing: OperatorFuture<'_, T>) -> Result<T, RefusedRequest> {
        let written = timeout(WRITE, writing).await;
        self.reads.changed();
        match written {
            Ok(done) => done.map_err(unavailable),
            Err(_) => {
                let late = format!("no answer within {} s", WRITE.as_secs());
                Err(unavailable(OperatorError::Unclear(late)))
            }
        }
    }

    /// Waits for a read of the ledger, with a timeout.
    pub(super) async fn found<T>(&self, reading: OperatorFuture<'_, T>) -> Result<T, RefusedRequest> {
        let late = |_| unavailable(OperatorError::Unread(format!("no answer within {} s", READ.as_secs())));
        timeout(READ, reading).await.map_err(late)?.map_err(unavailable)
    }

    pub(super) fn known_job(&self, job: PathParam) -> Result<JobName, RefusedRequest> {
        let job = job_name(job)?;
        self.require_job(&job)?;
        Ok(job)
    }

    pub(super) fn require_job(&self, job: &JobName) -> Result<(), RefusedRequest> {
        let status: Arc<Status> = Arc::clone(&self.sources.status.borrow());
        if status.jobs.iter().any(|known| known.name == *job) {
            return Ok(());
        }
        Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_job(job, &status)))
    }
}

pub(super) fn run_id(run: PathParam) -> Result<RunId, RefusedRequest> {
    let Path(run) = run.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    RunId::parse(&run).map_err(|bad| RefusedRequest::new(StatusCode::NOT_FOUND, bad.to_string()))
}

/// Refuses a reason that is too long.
pub(super) fn limited_reason(reason: Option<String>) -> Result<Option<String>, RefusedRequest> {
    if reason.as_ref().is_some_and(|reason| reason.chars().count() > MOST_REASON) {
        let error = format!("the reason has more than {MOST_REASON} characters");
        return Err(RefusedRequest::new(StatusCode::BAD_REQUEST, error));
    }
    Ok(reason)
}

/// The answer to a request whose body was not read, given the one that the extractor would give.
pub(super) fn unread_body(code: StatusCode, error: String) -> RefusedRequest {
    match code {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let error = format!("the request is longer than {} KiB", MOST_BYTES >> 10);
            RefusedRequest::new(code, error)
        }
        _ => RefusedRequest::new(code, error),
    }
}

/// Parses a request's body. An empty one means `{}`.
pub(super) fn parse_body<T: DeserializeOwned>(body: RequestBody) -> Result<T, RefusedRequest> {
    let body = body.map_err(|bad| unread_body(bad.status(), bad.body_text()))?;
    let text: &[u8] = if body.is_empty() { b"{}" } else { &body };
    serde_json::from_slice(text)
        .map_err(|error| RefusedRequest::new(StatusCode::BAD_REQUEST, format!("invalid body: {error}")))
}

pub(super) fn unavailable(error: impl std::fmt::Display) -> RefusedRequest {
    RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// The time for which a run is to be made, in whole seconds as those of occurrences: what a caller writes is never
/// changed, because the job may compare it.
fn made_for(wanted: Timestamp, now: Timestamp) -> Result<Timestamp, RefusedRequest> {
    let why = match wanted {
        at if whole_second(at) > now => "is in the future",
        at if at < Timestamp::UNIX_EPOCH => "is before 1970",
        at if at != whole_second(at) => "has a fraction of a second, which no occurrence has",
        at => return Ok(at),
    };
    Err(RefusedRequest::new(StatusCode::BAD_REQUEST, format!("`scheduled_at`: {wanted} {why}")))
}

/// Names in one text, for the log.
fn listed(nodes: &BTreeSet<NodeName>) -> String {
    nodes.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    at - jiff::SignedDuration::new(0, at.subsec_nanosecond())
}
