//! `GET /v1/runs/{run}/output`: the output of a run, in pages, whichever nodes keep it.
//!
//! ```text
//!  ledger ── which attempts, on which nodes ──▶ plan ──▶ each attempt in turn: own files, or peers ──▶ page
//! ```
//!
//! A client asks with `from`, where the page before ended, until the answer's state is `end`. With `wait` an answer
//! that would be empty waits for output. So a client can follow a run for as long as it takes, through restarts of daemons
//! and changes of the leader, and no connection lives long. With `local=true` a node answers from its own files alone,
//! which is how other nodes ask; so no request is passed on twice.

mod gather;
mod page;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use self::gather::Gatherer;
pub use self::page::{Cursor, Missing, OutputPage, OutputState};
use super::control::{PathParam, run_id};
use super::{ApiState, RefusedRequest};
use crate::output::Wanted;
use cronkeeper_core::clock::{earlier, system};
use cronkeeper_core::duration;
use cronkeeper_core::run::RunId;

/// Longest wait for output in one request. With the time to ask another node, it is below the client's timeout.
const LONGEST_WAIT: Duration = Duration::from_secs(6);

/// The query parameters.
#[derive(Debug, Deserialize)]
pub(super) struct OutputQuery {
    /// Where to begin: `next` of the previous page.
    from: Option<String>,
    /// How long to wait for output, in seconds.
    #[serde(default)]
    wait: u64,
    /// Only lines since this instant, or not older than this duration.
    since: Option<String>,
    /// Leave out all but about this many bytes at the end of each attempt.
    last: Option<u64>,
    /// Only what this node keeps: of this attempt, or only the list of attempts.
    #[serde(default)]
    local: bool,
    attempt: Option<u32>,
}

/// `GET /v1/runs/{run}/output`.
pub(super) async fn output(
    State(state): State<Arc<ApiState>>,
    run: PathParam,
    query: Result<Query<OutputQuery>, QueryRejection>,
) -> Result<Json<OutputPage>, RefusedRequest> {
    let run = run_id(run)?;
    let Query(query) = query.map_err(|bad| bad_request(bad.body_text()))?;
    let from = query.from.map_or(Ok(Cursor::START), |text| Cursor::parse(&text)).map_err(bad_request)?;
    let since = query.since.map(|text| instant(&text)).transpose()?;
    let until = Instant::now() + Duration::from_secs(query.wait).min(LONGEST_WAIT);
    let gatherer = Gatherer { state: &state, run, wanted: Wanted { since, last: query.last }, until };
    let page = match (query.local, query.attempt) {
        (true, None) => gatherer.local_attempts().await?,
        (true, Some(attempt)) => gatherer.local(Cursor { attempt, ..from }).await?,
        (false, _) => gatherer.page(from).await?,
    };
    Ok(Json(page))
}

/// A page of the last lines of each attempt, for whoever may see everything. Does not wait for more.
pub(super) async fn last_page_of(
    state: &ApiState,
    run: RunId,
    from: Cursor,
    last: u64,
) -> Result<OutputPage, RefusedRequest> {
    let wanted = Wanted { since: None, last: Some(last) };
    Gatherer { state, run, wanted, until: Instant::now() }.page(from).await
}

fn bad_request(error: String) -> RefusedRequest {
    RefusedRequest::new(StatusCode::BAD_REQUEST, error)
}

/// Parses an instant, or a duration before now.
fn instant(text: &str) -> Result<Timestamp, RefusedRequest> {
    if let Ok(ago) = duration::parse(text) {
        return Ok(earlier(system::now().wall, ago));
    }
    let error = "`since` must be an instant such as `2026-11-20T02:30:00Z`, or a duration such as `10m`";
    text.parse().map_err(|_| bad_request(error.to_owned()))
}
