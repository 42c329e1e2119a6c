//! Read-only documents under `/v1`: status and jobs.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::network::Visibility;
use super::reads::{Known, LeaderState};
use super::{ApiState, RefusedRequest};
use crate::status::{self, HistoryEntry, JobStatus, Status};
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::suggest::nearest;

/// `GET /v1/status`.
pub(super) async fn status(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Status> {
    Json(state.full_status(visibility).await)
}

/// The body of `GET /v1/jobs`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Jobs {
    jobs: Vec<JobStatus>,
}

/// `GET /v1/jobs`.
pub(super) async fn jobs(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Jobs> {
    Json(Jobs { jobs: state.full_status(visibility).await.jobs })
}

/// Coming occurrences in the document of one job.
const COMING: usize = 10;

/// The body of `GET /v1/jobs/{job}`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OneJob {
    #[serde(flatten)]
    job: JobStatus,
    /// The next occurrences; empty while the job is disabled.
    coming: Vec<Timestamp>,
}

/// `GET /v1/jobs/{job}`.
pub(super) async fn job(
    State(state): State<Arc<ApiState>>,
    visibility: Visibility,
    job: Result<Path<String>, PathRejection>,
) -> Result<Json<OneJob>, RefusedRequest> {
    let name = job_name(job)?;
    let status = state.full_status(visibility).await;
    // Not the guard: while somebody holds it, a reload waits.
    let set = Arc::clone(&state.sources.jobs.borrow());
    let coming = match set.jobs.get(&name) {
        Some(job) if job.enabled => {
            std::iter::successors(job.next_after(status.at), |at| job.next_after(*at)).take(COMING).collect()
        }
        _ => Vec::new(),
    };
    match status.jobs.iter().find(|job| job.name == name) {
        Some(job) => Ok(Json(OneJob { job: job.clone(), coming })),
        None => Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_job(&name, &status))),
    }
}

/// The job's name in a path.
pub(super) fn job_name(job: Result<Path<String>, PathRejection>) -> Result<JobName, RefusedRequest> {
    let Path(job) = job.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    JobName::parse(&job).map_err(|bad| RefusedRequest::new(StatusCode::NOT_FOUND, bad.to_string()))
}

impl ApiState {
    /// The daemon's status, completed from the ledger.
    ///
    /// If a read fails, that part is what was read last, or else stays as the daemon published it: the status matters
    /// most when ZooKeeper is unreachable.
    pub(super) async fn full_status(&self, visibility: Visibility) -> Status {
        let state = self.sources.status.borrow().state;
        let (queue, runs, lasts) =
            futures_util::join!(self.reads.known_queue(), self.leader_state(state), self.reads.known_lasts());
        // No await from here on, so at most one handler at a time holds an answer that is not yet counted against
        // limits.
        let mut status = self.sources.status_now();
        let errors = [queue.error, runs.error, lasts.error];
        status.unread = errors.into_iter().flatten().last().map(|ReadError(why)| why).or(status.unread);
        if let Some(queue) = queue.value {
            status.put_queue(&queue);
        }
        if let Some(leader_state) = runs.value {
            status.put_runs(&leader_state.runs);
            status.put_paused(&leader_state.paused);
            status.put_alarms(&leader_state.alarms);
            status.put_links(leader_state.links.iter());
        }
        if let Some(lasts) = lasts.value {
            status.put_lasts(&lasts);
        }
        status.mark_ended();
        let set = Arc::clone(&self.sources.jobs.borrow());
        status.put_next(&set);
        if state == status::NodeState::Leading {
            self.reads.led_with(LeaderState::of(&status), status.at);
        }
        match visibility {
            Visibility::All => status,
            Visibility::Outline => status.outlined(),
        }
    }

    /// Reads the leader's state from the ledger. Nothing on the leader, whose published status has it already, unless that
    /// may be older than what this node has just written.
    async fn leader_state(&self, state: status::NodeState) -> Known<LeaderState> {
        match state {
            status::NodeState::Leading if !self.reads.has_just_changed() => Known { value: None, error: None },
            _ => self.reads.known_runs().await,
        }
    }
}

/// Says that this node's jobs file lacks the job, and if that of another node differs, which may have it.
pub(super) fn no_such_job(job: &JobName, status: &Status) -> String {
    let near = nearest(job.as_str(), status.jobs.iter().map(|known| known.name.as_str()));
    let meant = near.map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
    let differs = status.members.iter().any(|member| member.published.digest != status.jobs_file.digest);
    let elsewhere = if differs { "; the nodes' jobs files differ, see `cronkeeper status`" } else { "" };
    format!("there is no job `{job}`{meant}{elsewhere}")
}

impl Visibility {
    /// The records without what the caller may not see.
    pub(super) fn of_records(self, records: Vec<HistoryRecord>) -> Vec<HistoryEntry> {
        records.into_iter().map(|record| self.of_record(record.into())).collect()
    }

    /// Removes from a record what the caller may not see.
    pub(super) fn of_record(self, record: HistoryEntry) -> HistoryEntry {
        match self {
            Self::All => record,
            Self::Outline => record.outlined(),
        }
    }
}
