//! `GET /v1/history` and `GET /v1/jobs/{job}/history`: runs and skips, newest first, of ledger and archive.
//!
//! Both take the same parameters. One that is not known is refused: ignored, it would show records that were not
//! wanted.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::admission::Admitted;
use super::network::Visibility;
use super::{ApiState, RefusedRequest, show};
use crate::archive::Merged;
use crate::status::outline::WITHHELD;
use crate::status::{HistoryEntry, Status};
use cronkeeper_core::clock::system;
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::escape;
use cronkeeper_core::job::{HISTORY_LIMIT, JobName};
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::{Ending, JobPattern, Position, instant};
use cronkeeper_core::suggest::nearest;
use cronkeeper_core::term::NodeName;

/// Most records in one answer.
const MOST_RECORDS: usize = 1_000;
/// Records in an answer if the request does not say how many.
const RECORDS: usize = 20;
/// Most parameters of a request.
const MOST_PARAMETERS: usize = 100;
const PARAMETERS: [&str; 8] = ["limit", "job", "outcome", "failed", "node", "since", "until", "before"];

/// The body of a history.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct History {
    records: Vec<HistoryEntry>,
    /// There may be older records that the request wants: with this as `before`, the next answer continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    /// Other nodes may have older records in their archives.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    older_elsewhere: bool,
    /// Why this node's archive could not be read; the records are then those of the ledger.
    #[serde(skip_serializing_if = "Option::is_none")]
    archive_error: Option<String>,
    /// Why the ledger could not be read; the records are then those of this node's archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    ledger_error: Option<String>,
    /// Older records are missing, because the answer would have been too long.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

/// What a request asks for.
#[derive(Debug, PartialEq)]
struct HistoryRequest {
    filter: Filter,
    limit: usize,
}

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

impl HistoryRequest {
    fn of(job: Option<JobName>, parameters: Parameters) -> Result<Self, RefusedRequest> {
        let bad = |why: String| RefusedRequest::new(StatusCode::BAD_REQUEST, why);
        let Query(parameters) = parameters.map_err(|rejected| bad(rejected.body_text()))?;
        if parameters.len() > MOST_PARAMETERS {
            return Err(bad(format!("more than {MOST_PARAMETERS} parameters")));
        }
        let mut request = Self { filter: Filter { job, ..Filter::default() }, limit: RECORDS };
        let now = system::now().wall;
        parameters.iter().try_for_each(|(name, value)| request.add(name, value, now)).map_err(bad)?;
        Ok(request)
    }

    fn add(&mut self, name: &str, value: &str, now: Timestamp) -> Result<(), String> {
        let filter = &mut self.filter;
        match name {
            "limit" => self.limit = limit(value)?,
            "job" => filter.jobs.push(JobPattern::parse(value).map_err(|bad| bad.to_string())?),
            "outcome" => filter.endings.push(Ending::parse(value)?),
            "failed" => match value {
                "true" => filter.endings.extend(Ending::failed()),
                "false" => {}
                _ => return Err("`failed` must be true or false".to_owned()),
            },
            "node" => filter.node = Some(NodeName::parse(value).map_err(|bad| bad.to_string())?),
            "since" => filter.since = Some(instant(value, now)?),
            "until" => filter.until = Some(instant(value, now)?),
            "before" => filter.before = Some(Position::parse(value)?),
            unknown => return Err(unknown_parameter(unknown)),
        }
        Ok(())
    }
}

fn limit(value: &str) -> Result<usize, String> {
    let limit = value.parse().ok().filter(|limit| (1..=MOST_RECORDS).contains(limit));
    limit.ok_or_else(|| format!("`limit` must be 1 to {MOST_RECORDS}, not {}", escape::short(value, 20)))
}

fn unknown_parameter(name: &str) -> String {
    let meant = nearest(name, PARAMETERS).map(|near| format!(", did you mean `{near}`?"));
    format!("there is no parameter `{}`{}", escape::short(name, 40), meant.unwrap_or_default())
}

/// `GET /v1/jobs/{job}/history`.
pub(super) async fn of_job(
    State(state): State<Arc<ApiState>>,
    requester: Requester,
    job: Result<Path<String>, PathRejection>,
    parameters: Parameters,
) -> Result<Json<History>, RefusedRequest> {
    let job = show::job_name(job)?;
    let request = HistoryRequest::of(Some(job.clone()), parameters)?;
    let is_restricted = request.filter.is_restricted();
    let history = state.history(requester, request).await?;
    // A job that was removed from the jobs file keeps its history, so it is unknown only if that is empty.
    let status = Arc::clone(&state.sources.status.borrow());
    let is_known = is_restricted || status.jobs.iter().any(|known| known.name == job);
    if history.records.is_empty() && !is_known {
        if let Some(why) = history.ledger_error {
            return Err(RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, ReadError(why).to_string()));
        }
        return Err(RefusedRequest::new(StatusCode::NOT_FOUND, show::no_such_job(&job, &status)));
    }
    Ok(Json(history))
}

/// `GET /v1/history`.
pub(super) async fn of_all(
    State(state): State<Arc<ApiState>>,
    requester: Requester,
    parameters: Parameters,
) -> Result<Json<History>, RefusedRequest> {
    state.history(requester, HistoryRequest::of(None, parameters)?).await.map(Json)
}

/// The connection of a request, and what it may see.
type Requester = (Extension<Arc<Admitted>>, Visibility);

impl ApiState {
    async fn history(&self, requester: Requester, request: HistoryRequest) -> Result<History, RefusedRequest> {
        let unread = |error: ReadError| RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string());
        let (Extension(admitted), visibility) = requester;
        let HistoryRequest { filter, limit } = request;
        let is_restricted = filter.is_restricted();
        // One more than wanted shows whether there are more.
        let read = self.reads.history(&admitted, &self.sources.archive, filter, limit + 1);
        let merged = read.await.map_err(unread)?;
        let status = Arc::clone(&self.sources.status.borrow());
        Ok(History::new(merged, limit, is_restricted, &status, visibility))
    }
}

impl History {
    fn new(merged: Merged, limit: usize, is_restricted: bool, status: &Status, visibility: Visibility) -> Self {
        let Merged { mut records, is_cut, has_archived, searched_to, error, ledger_error } = merged;
        let has_more = records.len() > limit;
        records.truncate(limit);
        let last = records.last().map(Position::of);
        let next = if has_more || is_cut { last } else { searched_to };
        // Nothing can have been trimmed while the ledger has no more than one job may have.
        let is_of_ledger = !has_archived && ledger_error.is_none();
        let is_short = !is_restricted && is_of_ledger && records.len() < usize::from(HISTORY_LIMIT);
        let shown = |error: String| match visibility {
            Visibility::All => error,
            Visibility::Outline => WITHHELD.to_owned(),
        };
        Self {
            // A full answer is not cut, even if one more record would not have fitted.
            cut: is_cut && records.len() < limit,
            older_elsewhere: next.is_none() && status.backend != "solo" && !is_short,
            next: next.map(|next| next.to_string()),
            records: visibility.of_records(records),
            archive_error: error.map(|error| shown(error.to_string())),
            ledger_error: ledger_error.map(|ReadError(why)| shown(why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::run::Outcome;

    fn asked(text: &str) -> Result<HistoryRequest, String> {
        let uri = format!("/v1/history?{text}").parse().unwrap();
        HistoryRequest::of(None, Query::try_from_uri(&uri)).map_err(|refused| refused.error)
    }

    #[test]
    fn parameters_may_repeat_and_are_decoded() {
        let request = asked("limit=7&job=load-%2A&job=b&outcome=failure&outcome=skipped&node=host-a").unwrap();
        assert_eq!(request.limit, 7);
        assert_eq!(request.filter.jobs.iter().map(JobPattern::as_str).collect::<Vec<_>>(), ["load-*", "b"]);
        assert_eq!(request.filter.endings, [Ending::Run(Outcome::Failure), Ending::Skipped]);
        assert_eq!(request.filter.node, Some(NodeName::new("host-a")));
        assert_eq!(asked("").unwrap(), HistoryRequest { filter: Filter::default(), limit: 20 });
        assert_eq!(asked("failed=true").unwrap().filter.endings.len(), 5);
    }

    #[test]
    fn a_parameter_that_is_wrong_or_unknown_is_refused() {
        for (text, why) in [
            ("limit=0", "`limit` must be 1 to 1000, not 0"),
            ("limit=x%1b", "`limit` must be 1 to 1000, not x\\u{1b}"),
            ("outcom=failure", "there is no parameter `outcom`, did you mean `outcome`?"),
            ("failed=yes", "`failed` must be true or false"),
        ] {
            assert_eq!(asked(text).unwrap_err(), why, "{text}");
        }
        for text in ["outcome=bad", "job=a%20b", "node=", "since=x", "until=", "before=7"] {
            assert!(asked(text).is_err(), "{text}");
        }
        assert!(asked(&"failed=true&".repeat(101)).unwrap_err().contains("more than 100"));
    }
}
