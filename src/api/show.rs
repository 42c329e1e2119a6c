//! The documents under `/v1`.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::guests::Guest;
use super::network::Visibility;
use super::reads::Elsewhere;
use super::{Refusal, Shared};
use crate::clock::system;
use crate::job::JobName;
use crate::ledger::ReadError;
use crate::status::{self, HistoryEntry, JobStatus, Status};
use crate::suggest::nearest;

/// Most records of one answer.
const MOST_RECORDS: usize = 1_000;

/// `GET /v1/status`.
pub(super) async fn status(State(shared): State<Arc<Shared>>, sight: Visibility) -> Json<Status> {
    Json(shared.gathered(sight).await)
}

/// The body of `GET /v1/jobs`.
#[derive(Serialize)]
pub(super) struct Jobs {
    jobs: Vec<JobStatus>,
}

/// `GET /v1/jobs`.
pub(super) async fn jobs(State(shared): State<Arc<Shared>>, sight: Visibility) -> Json<Jobs> {
    Json(Jobs { jobs: shared.gathered(sight).await.jobs })
}

impl Shared {
    /// The daemon's word, completed from the ledger. What cannot be read is left as the daemon has it: status must
    /// be had above all when the coordination service is away.
    async fn gathered(&self, sight: Visibility) -> Status {
        let state = self.sources.status.borrow().state;
        let (queue, runs, lasts) =
            futures_util::join!(self.reads.queue(), self.runs_elsewhere(state), self.reads.lasts());
        // From here on nothing is waited for: however many ask, one of them at a time holds a document that is not weighed.
        let mut status = Status::clone(&self.sources.status.borrow());
        let mut unread = |error: ReadError| status.unread = Some(error.0);
        let queue = queue.map_err(&mut unread).ok();
        let runs = runs.map_err(&mut unread).ok().flatten();
        let lasts = lasts.map_err(&mut unread).ok();
        if let Some(queue) = queue {
            status.put_queue(&queue);
        }
        if let Some(elsewhere) = runs {
            status.put_runs(&elsewhere.runs);
            status.put_paused(&elsewhere.paused);
            status.put_links(elsewhere.links.iter());
        }
        for job in status.jobs.iter_mut().filter(|job| job.last.is_none()) {
            job.last = lasts.as_ref().and_then(|lasts| lasts.get(&job.name).cloned());
        }
        let status = status.at(system::now());
        match sight {
            Visibility::All => status,
            Visibility::Outline => status.outlined(),
        }
    }

    /// The leader knows what is in flight and paused; any other node knows its own runs.
    async fn runs_elsewhere(&self, state: status::State) -> Result<Option<Arc<Elsewhere>>, ReadError> {
        match state {
            status::State::Leading => Ok(None),
            _ => self.reads.runs().await.map(Some),
        }
    }
}

/// The query of a history.
#[derive(Deserialize)]
pub(super) struct Window {
    /// Most records.
    limit: Option<usize>,
}

impl Window {
    fn limit(query: Result<Query<Self>, QueryRejection>) -> Result<usize, Refusal> {
        let Query(window) = query.map_err(|bad| Refusal::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
        match window.limit.unwrap_or(20) {
            limit @ 1..=MOST_RECORDS => Ok(limit),
            limit => {
                let error = format!("`limit` is {limit}, not 1 to {MOST_RECORDS}");
                Err(Refusal::new(StatusCode::BAD_REQUEST, error))
            }
        }
    }
}

/// The body of a history.
#[derive(Serialize)]
pub(super) struct History {
    records: Vec<HistoryEntry>,
    /// Older ones were wanted, and left out because of their bytes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// `GET /v1/jobs/{job}/history`.
pub(super) async fn history_of_job(
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    job: Result<Path<String>, PathRejection>,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Json<History>, Refusal> {
    let Path(job) = job.map_err(|bad| Refusal::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    let job = JobName::parse(&job).map_err(|bad| Refusal::new(StatusCode::NOT_FOUND, bad.to_string()))?;
    let history = shared.history(visit, Some(job.clone()), Window::limit(window)?).await?;
    // A job that was taken out of the file keeps its history.
    let status = Arc::clone(&shared.sources.status.borrow());
    if history.records.is_empty() && !status.jobs.iter().any(|known| known.name == job) {
        return Err(Refusal::new(StatusCode::NOT_FOUND, no_such_job(&job, &status)));
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
    State(shared): State<Arc<Shared>>,
    visit: Visit,
    window: Result<Query<Window>, QueryRejection>,
) -> Result<Json<History>, Refusal> {
    shared.history(visit, None, Window::limit(window)?).await.map(Json)
}

/// Who asks, and what he may see.
type Visit = (Extension<Arc<Guest>>, Visibility);

impl Shared {
    async fn history(&self, visit: Visit, job: Option<JobName>, limit: usize) -> Result<History, Refusal> {
        let unread = |error: ReadError| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let (Extension(guest), sight) = visit;
        let newest = self.reads.history(&guest, job, limit).await.map_err(unread)?;
        let shown = newest.records.into_iter().map(|record| sight.of_record(record.into()));
        Ok(History { records: shown.collect(), cut: newest.is_cut })
    }
}

impl Visibility {
    /// What of a record may be seen.
    pub(super) fn of_record(self, record: HistoryEntry) -> HistoryEntry {
        match self {
            Self::All => record,
            Self::Outline => record.outlined(),
        }
    }
}
