//! Read-only documents under `/v1`: status, jobs and histories.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::admission::Admitted;
use super::network::Visibility;
use super::reads::LeaderState;
use super::{ApiState, RefusedRequest};
use crate::clock::system;
use crate::coordination::ReadError;
use crate::job::JobName;
use crate::status::{self, HistoryEntry, JobStatus, Status};
use crate::suggest::nearest;

/// Most records in one answer.
const MOST_RECORDS: usize = 1_000;

/// `GET /v1/status`.
pub(super) async fn status(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Status> {
    Json(state.full_status(visibility).await)
}

/// The body of `GET /v1/jobs`.
#[derive(Serialize)]
pub(super) struct Jobs {
    jobs: Vec<JobStatus>,
}

/// `GET /v1/jobs`.
pub(super) async fn jobs(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Jobs> {
    Json(Jobs { jobs: state.full_status(visibility).await.jobs })
}

impl ApiState {
    /// The daemon's status, completed from the ledger.
    ///
    /// If a read fails, that part stays as the daemon published it: the status matters most when ZooKeeper is
    /// unreachable.
    async fn full_status(&self, visibility: Visibility) -> Status {
        let state = self.sources.status.borrow().state;
        let (queue, runs, lasts) =
            futures_util::join!(self.reads.queue(), self.leader_state(state), self.reads.lasts());
        // No await from here on, so at most one handler at a time holds an answer that is not yet counted against
        // limits.
        let mut status = Status::clone(&self.sources.status.borrow());
        let mut unread = |error: ReadError| status.unread = Some(error.0);
        let queue = queue.map_err(&mut unread).ok();
        let runs = runs.map_err(&mut unread).ok().flatten();
        let lasts = lasts.map_err(&mut unread).ok();
        if let Some(queue) = queue {
            status.put_queue(&queue);
        }
        if let Some(leader_state) = runs {
            status.put_runs(&leader_state.runs);
            status.put_paused(&leader_state.paused);
            status.put_links(leader_state.links.iter());
        }
        for job in status.jobs.iter_mut().filter(|job| job.last.is_none()) {
            job.last = lasts.as_ref().and_then(|lasts| lasts.get(&job.name).cloned());
        }
        let status = status.at(system::now());
        match visibility {
            Visibility::All => status,
            Visibility::Outline => status.outlined(),
        }
    }

    /// Reads the leader's state from the ledger. `None` on the leader, whose published status has it already.
    async fn leader_state(&self, state: status::NodeState) -> Result<Option<Arc<LeaderState>>, ReadError> {
        match state {
            status::NodeState::Leading => Ok(None),
            _ => self.reads.runs().await.map(Some),
        }
    }
}

/// The query parameters of a history.
#[derive(Deserialize)]
pub(super) struct HistoryQuery {
    /// Most records; 20 if absent.
    limit: Option<usize>,
}

impl HistoryQuery {
    fn limit(query: Result<Query<Self>, QueryRejection>) -> Result<usize, RefusedRequest> {
        let Query(parameters) = query.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
        match parameters.limit.unwrap_or(20) {
            limit @ 1..=MOST_RECORDS => Ok(limit),
            limit => {
                let error = format!("`limit` must be 1 to {MOST_RECORDS}, not {limit}");
                Err(RefusedRequest::new(StatusCode::BAD_REQUEST, error))
            }
        }
    }
}

/// The body of a history.
#[derive(Serialize)]
pub(super) struct History {
    records: Vec<HistoryEntry>,
    /// Older records are missing, because the answer would have been too long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// `GET /v1/jobs/{job}/history`.
pub(super) async fn history_of_job(
    State(state): State<Arc<ApiState>>,
    requester: Requester,
    job: Result<Path<String>, PathRejection>,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<History>, RefusedRequest> {
    let Path(job) = job.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    let job = JobName::parse(&job).map_err(|bad| RefusedRequest::new(StatusCode::NOT_FOUND, bad.to_string()))?;
    let history = state.history(requester, Some(job.clone()), HistoryQuery::limit(query)?).await?;
    // A job that was removed from the jobs file keeps its history, so it is unknown only if that is empty.
    let status = Arc::clone(&state.sources.status.borrow());
    if history.records.is_empty() && !status.jobs.iter().any(|known| known.name == job) {
        return Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_job(&job, &status)));
    }
    Ok(Json(history))
}

pub(super) fn no_such_job(job: &JobName, status: &Status) -> String {
    let near = nearest(job.as_str(), status.jobs.iter().map(|known| known.name.as_str()));
    let meant = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
    format!("there is no job `{job}`{meant}")
}

/// `GET /v1/history`.
pub(super) async fn history_of_all(
    State(state): State<Arc<ApiState>>,
    requester: Requester,
    query: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<History>, RefusedRequest> {
    state.history(requester, None, HistoryQuery::limit(query)?).await.map(Json)
}

/// The connection of a request, and what it may see.
type Requester = (Extension<Arc<Admitted>>, Visibility);

impl ApiState {
    async fn history(
        &self,
        requester: Requester,
        job: Option<JobName>,
        limit: usize,
    ) -> Result<History, RefusedRequest> {
        let unread = |error: ReadError| RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let (Extension(admitted), visibility) = requester;
        let newest = self.reads.history(&admitted, job, limit).await.map_err(unread)?;
        let shown = newest.records.into_iter().map(|record| visibility.of_record(record.into()));
        Ok(History { records: shown.collect(), cut: newest.is_cut })
    }
}

impl Visibility {
    /// Removes from a record what the caller may not see.
    pub(super) fn of_record(self, record: HistoryEntry) -> HistoryEntry {
        match self {
            Self::All => record,
            Self::Outline => record.outlined(),
        }
    }
}
