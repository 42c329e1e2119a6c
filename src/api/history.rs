//! `GET /v1/history` and `GET /v1/jobs/{job}/history`: runs and skips, newest first, of the ledger and of the archives
//! of all nodes.
//!
//! ```text
//!  ledger and own archive ─┐
//!  archive of a node ──────┼─▶ merge: newest first, each once ─▶ a page, and what it lacks
//!  archive of a node ──────┘
//! ```
//!
//! Both take the same parameters. One that is not known is refused: ignored, it would show records that were not
//! wanted. With `local=true` a node answers from its own archive alone, which is how other nodes ask. A page continues
//! behind a record, whose place in the history is the same on every node; so any node can give the next one. Other
//! nodes are asked only for callers who may see everything.

mod answer;
mod elsewhere;
mod query;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use tokio::time::Instant;

pub use self::answer::{History, MissingNode, gap_in_words};
use self::answer::{Merge, Page};
use self::elsewhere::Elsewhere;
pub(super) use self::elsewhere::{ElsewhereCache, Others};
pub use self::query::path;
use super::admission::Admitted;
use super::network::Visibility;
use super::{ApiState, RefusedRequest, show};
use crate::archive::Merged;
use crate::status::HistoryEntry;
use crate::status::outline::WITHHELD;
use cronkeeper_core::clock::system;
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::election::Defined;
use cronkeeper_core::escape;
use cronkeeper_core::job::{HISTORY_LIMIT, JobName};
use cronkeeper_core::ledger::filter::{Ending, JobPattern, Position, instant};
use cronkeeper_core::ledger::{Filter, Window};
use cronkeeper_core::run::RunId;
use cronkeeper_core::suggest::{did_you_mean, nearest};
use cronkeeper_core::term::NodeName;

/// Most records in one answer.
const MOST_RECORDS: usize = 1_000;
/// Records in an answer if the request does not say how many.
const RECORDS: usize = 20;
/// Most parameters of a request.
const MOST_PARAMETERS: usize = 100;
const PARAMETERS: [&str; 10] =
    ["limit", "job", "outcome", "failed", "node", "since", "until", "before", "local", "run"];
/// Time for a whole answer, so that the client still waits for it.
const WHOLE: Duration = Duration::from_secs(9);

/// What a request asks for.
#[derive(Debug, PartialEq)]
struct HistoryRequest {
    filter: Filter,
    limit: usize,
    /// Only what the asked node's own archive has.
    local: bool,
    /// The record of this run.
    run: Option<RunId>,
}

/// A question to the whole history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question<'a> {
    filter: &'a Filter,
    window: Window,
    /// What the caller may see. Other nodes are asked only if the caller may see everything.
    visibility: Visibility,
    /// When the answer is sent, whatever is still missing.
    until: Instant,
    /// The answer is for the page, which may show what other nodes have answered a little earlier.
    is_for_page: bool,
}

impl<'a> Question<'a> {
    pub fn new(filter: &'a Filter, window: Window, visibility: Visibility) -> Self {
        Self { filter, window, visibility, until: Instant::now() + WHOLE, is_for_page: false }
    }

    #[must_use]
    pub fn for_page(self) -> Self {
        Self { is_for_page: true, ..self }
    }

    /// Since when the ledger alone has everything that is wanted, if there was more before.
    fn complete_since(&self, local: &Merged) -> Option<Timestamp> {
        local.complete_since.filter(|at| self.filter.since.is_none_or(|since| since < *at))
    }

    /// True if the archives of other nodes cannot add anything to what is shown, except of jobs that the ledger has
    /// forgotten.
    fn is_answered_by(&self, local: &Merged) -> bool {
        if local.ledger_error.is_some() {
            return false;
        }
        let oldest = match local.records.len() > self.window.records {
            true => self.window.records.checked_sub(1).and_then(|last| local.records.get(last)),
            false => local.records.last().filter(|_| local.is_cut),
        };
        match (local.complete_since, self.complete_since(local)) {
            (_, Some(since)) => oldest.is_some_and(|oldest| oldest.at() >= since),
            (Some(_), None) => true,
            // Nothing was trimmed. If the ledger has records of the only job that is wanted, it has not forgotten it.
            (None, None) => {
                let is_known = self.filter.only_job().is_some() && !local.records.is_empty() && !local.has_archived;
                oldest.is_some() || is_known
            }
        }
    }
}

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

impl HistoryRequest {
    fn of(job: Option<JobName>, parameters: Parameters) -> Result<Self, RefusedRequest> {
        let bad = |why: String| RefusedRequest::new(StatusCode::BAD_REQUEST, why);
        let Query(parameters) = parameters.map_err(|rejected| bad(rejected.body_text()))?;
        if parameters.len() > MOST_PARAMETERS {
            return Err(bad(format!("more than {MOST_PARAMETERS} parameters")));
        }
        let is_of_job = job.is_some();
        let filter = Filter { job, ..Filter::default() };
        let mut request = Self { filter, limit: RECORDS, local: false, run: None };
        let now = system::now().wall;
        parameters.iter().try_for_each(|(name, value)| request.add(name, value, now)).map_err(bad)?;
        let is_alone = !is_of_job && parameters.iter().all(|(name, _)| matches!(&**name, "run" | "local"));
        match &request.run {
            Some(_) if !is_alone => Err(bad("`run` names one record, so only `local` may go with it".to_owned())),
            _ => Ok(request),
        }
    }

    fn add(&mut self, name: &str, value: &str, now: Timestamp) -> Result<(), String> {
        let filter = &mut self.filter;
        match name {
            "limit" => self.limit = limit(value)?,
            "job" => filter.jobs.push(JobPattern::parse(value).map_err(|bad| bad.to_string())?),
            "outcome" => filter.endings.push(Ending::parse(value)?),
            "failed" => {
                if flag(name, value)? {
                    filter.endings.extend(Ending::failed());
                }
            }
            "node" => filter.node = Some(NodeName::parse(value).map_err(|bad| bad.to_string())?),
            "since" => filter.since = Some(instant(value, now)?),
            "until" => filter.until = Some(instant(value, now)?),
            "before" => filter.before = Some(Position::parse(value)?),
            "local" => self.local = flag(name, value)?,
            "run" => self.run = Some(RunId::parse(value).map_err(|bad| bad.to_string())?),
            unknown => return Err(unknown_parameter(unknown)),
        }
        Ok(())
    }
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| format!("`{name}` must be true or false"))
}

fn limit(value: &str) -> Result<usize, String> {
    let limit = value.parse().ok().filter(|limit| (1..=MOST_RECORDS).contains(limit));
    limit.ok_or_else(|| format!("`limit` must be 1 to {MOST_RECORDS}, not {}", escape::short(value, 20)))
}

fn unknown_parameter(name: &str) -> String {
    let meant = did_you_mean(nearest(name, PARAMETERS));
    format!("there is no parameter `{}`{meant}", escape::short(name, 40))
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
    // Another node may know a job that this one does not.
    let is_any_fine = request.filter.is_restricted() || request.local;
    let history = state.history(requester, request).await?;
    // A job that was removed from the jobs file keeps its history, so it is unknown only if that is empty.
    let status = Arc::clone(&state.sources.status.borrow());
    let is_known = is_any_fine || status.jobs.iter().any(|known| known.name == job);
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

fn unread(error: ReadError) -> RefusedRequest {
    RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

impl ApiState {
    async fn history(&self, requester: Requester, request: HistoryRequest) -> Result<History, RefusedRequest> {
        let (Extension(admitted), visibility) = requester;
        let HistoryRequest { filter, limit, local, run } = request;
        if let Some(run) = run {
            return self.history_of_run(&admitted, visibility, &run, local).await;
        }
        let question = Question::new(&filter, Window { records: limit, bytes: admitted.history_limit() }, visibility);
        let archive = &self.sources.archive;
        if !local {
            let found = self.local_history(&admitted, question).await.map_err(unread)?;
            return Ok(self.whole_history(found, question).await);
        }
        let read = self.reads.archived(&admitted, archive, filter.clone(), limit + 1).await;
        let merged = read.map_err(|ReadError(why)| unreadable_archive(&why))?;
        let (mut history, _) = merged_history(merged, Elsewhere::default(), question);
        if !archive.is_kept() {
            history.archive_error = Some(self.no_archive());
        }
        Ok(history)
    }

    /// What the ledger and this node's archive have, with one record more than is wanted, which shows whether there are
    /// more.
    pub(super) async fn local_history(&self, admitted: &Admitted, question: Question<'_>) -> Result<Merged, ReadError> {
        let defined = Arc::new(Defined::of(&Arc::clone(&self.sources.jobs.borrow())));
        let (filter, records) = (question.filter.clone(), question.window.records.saturating_add(1));
        self.reads.history(admitted, &self.sources.archive, filter, records, defined).await
    }

    /// Adds what the archives of other nodes have, unless they can add nothing, and says what is missing.
    pub(super) async fn whole_history(&self, local: Merged, question: Question<'_>) -> History {
        let is_shared = self.sources.output.is_shared;
        // Nothing can have been trimmed while the ledger has no more than one job may have, and nothing else is known to
        // be lost.
        let is_of_ledger = !local.has_archived && local.ledger_error.is_none() && local.complete_since.is_none();
        let is_short = is_of_ledger && local.records.len() < usize::from(HISTORY_LIMIT);
        if question.visibility == Visibility::Outline {
            let (mut history, _) = merged_history(local, Elsewhere::default(), question);
            let is_all = is_shared || (is_short && !question.filter.is_restricted());
            history.older_elsewhere = history.next.is_none() && !is_all;
            return history;
        }
        if is_shared || question.is_answered_by(&local) {
            return merged_history(local, Elsewhere::default(), question).0;
        }
        let mut elsewhere = match question.is_for_page {
            true => self.recent_elsewhere(question).await,
            false => self.elsewhere(question).await,
        };
        let mut missing = std::mem::take(&mut elsewhere.missing);
        let known = std::mem::take(&mut elsewhere.known);
        let (mut history, complete_since) = merged_history(local, elsewhere, question);
        missing.extend(self.without_own_archive(&mut history));
        // Nodes that ran something and that nobody knows any more.
        let gone: BTreeSet<_> = history.records.iter().map(HistoryEntry::node).collect();
        missing.extend(gone.into_iter().filter(|node| !known.contains(*node)).map(MissingNode::away));
        let is_forgotten = || {
            let job = question.filter.only_job();
            let status = self.sources.status.borrow();
            job.is_some_and(|job| !status.jobs.iter().any(|known| known.name.as_str() == job))
        };
        history.incomplete_before = match (&history.ledger_error, missing.is_empty()) {
            (None, true) => None,
            (None, false) if complete_since.is_some() || !is_forgotten() => complete_since,
            // It is not known of any record that the ledger has it.
            _ => Some(system::now().wall),
        };
        if history.incomplete_before.is_some() {
            history.name_missing(missing);
        }
        history.older_elsewhere = history.next.is_none() && history.incomplete_before.is_some();
        history.nodes.sort();
        history
    }

    /// The record of one run, from wherever it is.
    async fn history_of_run(
        &self,
        admitted: &Admitted,
        visibility: Visibility,
        run: &RunId,
        local: bool,
    ) -> Result<History, RefusedRequest> {
        let archive = &self.sources.archive;
        let read = match local {
            true => self.reads.archived_record(admitted, archive, run).await,
            false => self.reads.record(admitted, archive, run).await,
        };
        let mut history = History::default();
        let found = match read {
            Ok(found) => found.map(|record| visibility.of_record(record.into())),
            Err(ReadError(why)) if local => return Err(unreadable_archive(&why)),
            Err(error) if visibility == Visibility::Outline => return Err(unread(error)),
            Err(ReadError(why)) => {
                history.ledger_error = Some(why);
                None
            }
        };
        let (elsewhere, missing) = match (&found, visibility) {
            (None, Visibility::All) if !local => self.record_elsewhere(run).await,
            _ => (None, Vec::new()),
        };
        history.records.extend(found.or(elsewhere));
        if history.records.is_empty() {
            history.name_missing(missing);
        }
        Ok(history)
    }

    /// Names this node, either among those whose archive is in the answer, or among those whose archive is missing.
    fn without_own_archive(&self, history: &mut History) -> Option<MissingNode> {
        let node = self.sources.status.borrow().node.clone();
        let why = match &history.archive_error {
            Some(why) => format!("its archive cannot be read: {why}"),
            None if !self.sources.archive.is_kept() => self.no_archive(),
            None => {
                history.nodes.push(node);
                return None;
            }
        };
        Some(MissingNode { node, why })
    }

    fn no_archive(&self) -> String {
        let node = self.sources.status.borrow().node.clone();
        format!("{node} keeps no archive of the history: see `--history-retention`")
    }
}

/// The answer without what is missing in it, and since when the ledger alone has everything, if there was more before.
fn merged_history(local: Merged, elsewhere: Elsewhere, question: Question<'_>) -> (History, Option<Timestamp>) {
    let complete_since = question.complete_since(&local);
    let Merged { records, is_cut, searched_to, error, ledger_error, unreadable, .. } = local;
    let covered_to = if is_cut { records.last().map(Position::of) } else { searched_to };
    let mut merge = Merge::new(question.window);
    merge.add(question.visibility.of_records(records), covered_to);
    if is_cut {
        merge.cut();
    }
    merge.add(elsewhere.records, elsewhere.covered_to);
    let Page { records, next, is_cut } = merge.page();
    let shown = |error: String| match question.visibility {
        Visibility::All => error,
        Visibility::Outline => WITHHELD.to_owned(),
    };
    let history = History {
        records,
        next: next.map(|next| next.to_string()),
        nodes: elsewhere.nodes,
        archive_error: error.map(|error| shown(error.to_string())),
        ledger_error: ledger_error.map(|ReadError(why)| shown(why)),
        unreadable,
        cut: is_cut,
        ..History::default()
    };
    (history, complete_since)
}

fn unreadable_archive(why: &str) -> RefusedRequest {
    RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, format!("the archive of the history cannot be read: {why}"))
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
        let all = HistoryRequest { filter: Filter::default(), limit: 20, local: false, run: None };
        assert_eq!(asked("").unwrap(), all);
        let run = RunId::parse("load.20261120T024000Z").unwrap();
        assert_eq!(
            asked("run=load.20261120T024000Z&local=true").unwrap(),
            HistoryRequest { local: true, run: Some(run), ..all }
        );
        assert_eq!(asked("failed=true").unwrap().filter.endings.len(), 5);
    }

    #[test]
    fn a_parameter_that_is_wrong_or_unknown_is_refused() {
        for (text, why) in [
            ("limit=0", "`limit` must be 1 to 1000, not 0"),
            ("limit=x%1b", "`limit` must be 1 to 1000, not x\\u{1b}"),
            ("outcom=failure", "there is no parameter `outcom`, did you mean `outcome`?"),
            ("failed=yes", "`failed` must be true or false"),
            ("local=", "`local` must be true or false"),
            ("run=load.20261120T024000Z&job=load", "`run` names one record, so only `local` may go with it"),
        ] {
            assert_eq!(asked(text).unwrap_err(), why, "{text}");
        }
        for text in ["outcome=bad", "job=a%20b", "node=", "since=x", "until=", "before=7", "run=", "run=load"] {
            assert!(asked(text).is_err(), "{text}");
        }
        assert!(asked(&"failed=true&".repeat(101)).unwrap_err().contains("more than 100"));
    }
}
