//! The web page: the cluster, its jobs and its history, for people.
//!
//! Everything is rendered here from the same documents that `/v1` shows, so the page is complete without a script. The
//! script only keeps an open page up to date. Pure functions turn documents into markup; `maud` escapes every text, and
//! the headers forbid the browser everything that is not needed: no text of a job can become part of the page's code.
//! Characters that hide or reorder text are escaped in the finished page, wherever they are from.

mod ansi;
mod assets;
mod attention;
mod bar_cache;
mod bars;
mod cluster;
mod durations;
mod events;
mod forms;
mod headline;
mod history;
mod job;
mod jobs;
mod layout;
mod output;
mod run;
mod running;
#[cfg(test)]
mod tests;
mod timeline;
mod times;
mod view;
mod visitor;
mod words;

use std::borrow::Cow;
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use maud::{Markup, html};

use self::bar_cache::BarCache;
pub(super) use self::events::events;
use self::history::Filter;
use self::job::JobPage;
use self::jobs::Selection;
use self::layout::Frame;
use self::run::{InFlight, Known, RunPage};
use self::times::Clock;
use self::view::Views;
use self::visitor::{Connection, FormKeys, Visitor};
use super::authorize::Reason;
use super::control::run_id;
use super::history::{ElsewhereCache, Question};
use super::network::{SIGN_IN, Visibility};
use super::show::{job_name, no_such_job};
use super::{ApiState, RefusedRequest};
use crate::status::{HistoryEntry, LedgerPart, Status};
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::escape;
use cronkeeper_core::ledger::{Filter as Records, Window};
use cronkeeper_core::run::RunId;

/// Most records on the page of a job, and on that of the history.
const OF_JOB: usize = 40;
const OF_ALL: usize = 200;

/// Most bytes of records on a page, which are also kept between requests.
const MOST_BYTES: usize = 1 << 20;

/// What the page keeps between requests.
#[derive(Default)]
pub(super) struct PageState {
    bars: BarCache,
    views: Views,
    keys: FormKeys,
    elsewhere: ElsewhereCache,
}

impl PageState {
    /// What other nodes have answered last.
    pub(super) fn elsewhere(&self) -> &ElsewhereCache {
        &self.elsewhere
    }
}

/// The routes of the page.
pub(super) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/", get(overview))
        .route("/jobs/{job}", get(one_job))
        .route("/runs/{run}", get(one_run))
        .route("/history", get(all_history))
        .route("/static/{file}", get(assets::file))
        .route("/jobs/{job}/trigger", post(forms::trigger))
        .route("/jobs/{job}/pause", post(forms::pause))
        .route("/jobs/{job}/resume", post(forms::resume))
        .route("/runs/{run}/kill", post(forms::kill))
        .route("/handover", post(forms::hand_over))
        .route("/drain", post(forms::drain))
        .route("/undrain", post(forms::undrain))
        .route(SIGN_IN, get(forms::sign_in_page).post(forms::sign_in))
        .route("/session/end", post(forms::sign_out))
        .route("/zone", get(forms::zone))
        .layer(middleware::from_fn(harden))
}

/// What the browser may do with the page: show it, and talk to this node.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

async fn harden(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // Not `no-referrer`: with it a browser hides the origin of forms, which is checked.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Output and names must not stay in a browser's cache.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// A refusal, as a page.
struct RefusedPage(RefusedRequest);

impl From<RefusedRequest> for RefusedPage {
    fn from(refusal: RefusedRequest) -> Self {
        Self(refusal)
    }
}

impl From<QueryRejection> for RefusedPage {
    fn from(bad: QueryRejection) -> Self {
        Self(RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))
    }
}

impl IntoResponse for RefusedPage {
    fn into_response(self) -> Response {
        let RefusedRequest { code, error } = self.0;
        let reason = Extension(Reason(error.clone()));
        let text = html! {
            (maud::DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { "cronkeeper: " (code) }
                    link rel="stylesheet" href=(assets::STYLE.path());
                }
                body { main { div.card.narrow {
                    h1 { (code) } p.error { (error) } p { a.button href="/" { "To the overview" } }
                } } }
            }
        };
        (code, reason, html_answer(text)).into_response()
    }
}

fn html_answer(page: Markup) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], harmless(page)).into_response()
}

/// The text of a page. Its own markup has no character that is escaped here.
fn harmless(page: Markup) -> String {
    let page = page.into_string();
    match escape::lines(&page) {
        Cow::Borrowed(_) => page,
        Cow::Owned(escaped) => escaped,
    }
}

type Page = Result<Response, RefusedPage>;

/// `GET /`.
async fn overview(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    selection: Result<Query<Selection>, QueryRejection>,
) -> Page {
    let Query(selection) = selection?;
    let view = match selection.is_default() {
        true => state.view(visitor.sight(), &visitor.zone).await,
        false => Arc::new(state.render(visitor.sight(), &visitor.zone, &selection).await),
    };
    let status = Arc::clone(&state.sources.status.borrow());
    Ok(state.framed(&view.title, &status, &view.main, Some(&view.tag), &visitor))
}

/// `GET /jobs/{job}`.
async fn one_job(
    State(state): State<Arc<ApiState>>,
    connection: Connection,
    visitor: Visitor,
    job: Result<Path<String>, PathRejection>,
) -> Page {
    let name = job_name(job)?;
    let wanted = Records::of_job(name.clone());
    let question = Question::new(&wanted, window(OF_JOB), visitor.visibility).for_page();
    let newest = state.local_history(&connection, question).await.map_err(|error| unread(&error))?;
    let bars = bars::of(&newest.records);
    let history = state.whole_history(newest, question).await;
    let status = state.full_status(visitor.visibility).await;
    let Some(job) = status.jobs.iter().find(|job| job.name == name) else {
        return Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_job(&name, &status)).into());
    };
    let set = Arc::clone(&state.sources.jobs.borrow());
    let defined = set.jobs.get(&name).map(Arc::as_ref);
    let sight = visitor.sight();
    let clock = Clock::new(status.at, visitor.zone.clone());
    let page = JobPage { status: &status, job, defined, bars: &bars, history: &history, sight, clock: &clock };
    Ok(state.framed(&page.title(), &status, &page.markup(), None, &visitor))
}

/// `GET /runs/{run}`.
async fn one_run(
    State(state): State<Arc<ApiState>>,
    connection: Connection,
    visitor: Visitor,
    run: Result<Path<String>, PathRejection>,
) -> Page {
    let run = run_id(run)?;
    let clock = visitor.clock();
    // The status before the history: a run that ends in between is then found in both rather than in neither.
    let (in_flight, note, is_read) = {
        let status = state.full_status(visitor.visibility).await;
        let (note, is_read) = (cluster::unread_note(&status, &clock), status.knows(LedgerPart::Runs));
        (in_flight(&run, &status, &clock), note, is_read)
    };
    let read = state.reads.record(&connection, &state.sources.archive, &run).await;
    let failure = read.as_ref().err().map(unread);
    let mut record = read.ok().flatten().map(|record| visitor.visibility.of_record(record.into()));
    if record.is_none() && in_flight.is_none() && visitor.visibility == Visibility::All {
        record = state.recent_record_elsewhere(&run).await;
    }
    if let (None, None, Some(failure)) = (&record, &in_flight, failure) {
        return Err(failure.into());
    }
    let status = Arc::clone(&state.sources.status.borrow());
    let ended = record.and_then(|record| match record {
        HistoryEntry::Run(ended) => Some(ended),
        HistoryEntry::Skip(_) => None,
    });
    let newest = match visitor.visibility {
        Visibility::All => state.newest_output(&run).await,
        Visibility::Outline => None,
    };
    let shares = newest.as_ref().map(|newest| &newest.shares).filter(|shares| !shares.is_empty());
    let known = match (&ended, &in_flight, shares) {
        (Some(ended), ..) => Known::Ended(ended),
        (None, Some(in_flight), _) => Known::InFlight(in_flight),
        (None, None, Some(shares)) => Known::Shared(shares),
        (None, None, None) if is_read => Known::Not,
        (None, None, None) => Known::Unread,
    };
    let set = Arc::clone(&state.sources.jobs.borrow());
    let may_act = visitor.may_act();
    let defined = set.jobs.get(run.job()).map(Arc::as_ref).filter(|_| visitor.visibility == Visibility::All);
    let may_see = visitor.visibility == Visibility::All;
    let page = RunPage { run: &run, known, newest: newest.as_ref(), defined, note, may_see, may_act, clock: &clock };
    Ok(state.framed(&page.title(), &status, &page.markup(), None, &visitor))
}

/// The run as the status shows it in flight.
fn in_flight(run: &RunId, status: &Status, clock: &Clock) -> Option<InFlight> {
    let found = status.runs.iter().find(|in_flight| in_flight.run == *run)?;
    let others = status.runs.iter().filter(|other| other.run != *run && other.run.job() == run.job());
    let others = others.filter(|other| other.ended.is_none()).map(|other| other.run.clone()).collect();
    let state = running::state(found, status, clock);
    Some(InFlight { run: found.clone(), state, is_old: status.is_old(found), others })
}

/// `GET /history`.
async fn all_history(
    State(state): State<Arc<ApiState>>,
    connection: Connection,
    visitor: Visitor,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Page {
    let Query(filter) = filter?;
    let clock = visitor.clock();
    let wanted = filter.records(&clock)?;
    let question = Question::new(&wanted, window(OF_ALL), visitor.visibility).for_page();
    let newest = state.local_history(&connection, question).await.map_err(|error| unread(&error))?;
    let found = state.whole_history(newest, question).await;
    let status = Arc::clone(&state.sources.status.borrow());
    let main = history::page(&filter, &found, &status, &clock);
    Ok(state.framed("History", &status, &main, None, &visitor))
}

fn window(records: usize) -> Window {
    Window { records, bytes: MOST_BYTES }
}

fn unread(error: &ReadError) -> RefusedRequest {
    RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

impl ApiState {
    /// The page around this content; or only that the browser has it already.
    fn framed(&self, title: &str, status: &Status, main: &Markup, tag: Option<&str>, visitor: &Visitor) -> Response {
        let tag = format!("\"{}\"", tag.map_or_else(|| view::tag(main), str::to_owned));
        let mut answer = match visitor.known_tag.as_ref() == Some(&tag) {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => {
                let (clock, done) = (visitor.clock(), visitor.done);
                let frame = Frame { title, node: &status.node, standing: &visitor.standing, clock: &clock, done };
                html_answer(frame.markup(main))
            }
        };
        if let Ok(tag) = HeaderValue::try_from(tag) {
            answer.headers_mut().insert(header::ETAG, tag);
        }
        answer
    }
}
