//! Decides whether a caller may send a request, by its [role](super::roles), and sees to it that the log names everyone
//! who has tried to change something.
//!
//! ```text
//!  reads ── needs a role? ─▶ handler
//!  changes ─▶ who is it? ─▶ may it? ─┬─ no ──────────────────────────▶ `operator.refused`
//!                                    └─ handler ─┬─ done ────────────▶ `operator.requested`, by the handler itself
//!                                                ├─ an error ────────▶ `operator.refused`
//!                                                └─ caller gone away ▶ `operator.refused`
//! ```
//!
//! Changes that a caller's role does not allow have a line each, but only [`SINGLE`] of them in a minute, and the rest one
//! line together: anybody can send them. Of a change that fails and is asked for again, as clients do, the first failure
//! has a line. Whoever may make changes can fill the log anyway.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::caller::{self, Caller, Grant};
use super::minutes::{LoggedMinutes, Minutes, Sender};
use super::network::{Network, Visibility};
use super::roles::{Need, Role, need, role_of};
use super::{ApiState, RefusedRequest};
use axum::extract::{FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::escape::short;
use cronkeeper_core::log;

/// Changes of a caller in a minute, refused for its role, that have a line of their own.
const SINGLE: u64 = 10;
/// A change that fails again within this time is not logged again.
const QUIET: Duration = Duration::from_secs(60);
/// Most changes of which that is known; beyond, each failure is logged.
const MOST_FAILURES: usize = 256;
/// Most characters of a name in a request that are logged.
const SHOWN: usize = 200;

/// Who asks for a change.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    /// For records and log: `alice from 192.0.2.7 on host-a`, `uid 0 (root) on host-a`.
    pub by: String,
    pub role: Role,
    /// Where the request is from: `192.0.2.7`, `uid 0`.
    pub peer: String,
    /// It has signed in on the page, and sends a cookie.
    is_session: bool,
}

/// Logs that what an [`Actor`] has asked for is done, with these fields.
macro_rules! log_requested {
    ($actor:expr, $($field:tt)+) => {{
        let $crate::api::authorize::Actor { by, role, peer, .. } = &$actor;
        cronkeeper_core::log!(OPERATOR_REQUESTED, by, role = role.as_str(), peer, $($field)+);
    }};
}
pub(super) use log_requested;

impl Actor {
    /// Refuses an actor with a lower role.
    pub fn require(&self, least: Role) -> Result<(), RefusedRequest> {
        if self.role >= least {
            return Ok(());
        }
        let Self { by, role, .. } = self;
        let error = format!("this needs the role `{least}`, and {by} has the role `{role}`");
        Err(RefusedRequest::new(StatusCode::FORBIDDEN, error))
    }
}

/// The actor of a request below `/v1`. Over TCP, a session is not enough: a browser sends its cookie with requests of
/// other pages too.
pub(super) struct ApiActor(pub Actor);

impl<S: Send + Sync> FromRequestParts<S> for ApiActor {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, RefusedRequest> {
        let actor = parts.extensions.get::<Actor>().filter(|actor| !actor.is_session).cloned();
        actor.map(Self).ok_or_else(|| {
            let error = "over TCP a request needs a token, as `Authorization: Bearer TOKEN`: a session is for the page";
            RefusedRequest::new(StatusCode::FORBIDDEN, error)
        })
    }
}

/// Lets a request pass if its caller has the role that it needs.
pub(super) async fn authorize(State(state): State<Arc<ApiState>>, request: Request, next: Next) -> Response {
    let Some(route) = request.extensions().get::<MatchedPath>().cloned() else {
        return match may_ask(&request) {
            true => next.run(request).await,
            false => nobody(&request, Role::Admin).into_response(),
        };
    };
    match need(request.method(), route.as_str()) {
        Need::Nothing => next.run(request).await,
        Need::Role(Role::Read) => match may_see(&request) {
            true => next.run(request).await,
            false => nobody(&request, Role::Read).into_response(),
        },
        Need::Role(least) => change(&state, Change::of(request, &route).await, least, next).await,
    }
}

/// True if a request that has no route is told so. What a stranger sends for a change is not waited for.
fn may_ask(request: &Request) -> bool {
    let known = request.extensions();
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    is_reading || role_of(known.get().copied().unwrap_or(Caller::Unknown), known.get()).is_some()
}

fn may_see(request: &Request) -> bool {
    request.extensions().get() == Some(&Visibility::All)
}

/// The refusal of a caller without a role.
fn nobody(request: &Request, least: Role) -> RefusedRequest {
    let network = request.extensions().get::<Arc<Network>>();
    let error = match network.is_some_and(|network| network.has_token()) {
        true => format!("over TCP this needs a token with the role `{least}`, as `Authorization: Bearer TOKEN`"),
        false if least == Role::Read => "this is shown only on the Unix socket, or with a token".to_owned(),
        false => "the API is read-only over TCP: use the Unix socket".to_owned(),
    };
    RefusedRequest::new(StatusCode::FORBIDDEN, error)
}

/// A request to change something.
struct Change {
    request: Request,
    asked: Asked,
}

/// What is logged of a change that is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    /// `kill`.
    what: String,
    job: Option<String>,
    run: Option<String>,
    to: Option<String>,
    caller: Caller,
    by: Option<String>,
    role: Option<Role>,
}

impl Change {
    async fn of(request: Request, route: &MatchedPath) -> Self {
        let (mut parts, body) = request.into_parts();
        let parameters = RawPathParams::from_request_parts(&mut parts, &()).await.ok();
        let parameter = |wanted: &str| {
            let mut found = parameters.iter().flatten().filter(|(name, _)| *name == wanted);
            found.next().map(|(_, value)| short(value, SHOWN))
        };
        let asked = Asked {
            what: word(&parts.method, route.as_str()),
            job: parameter("job"),
            run: parameter("run"),
            to: parameter("node"),
            caller: parts.extensions.get().copied().unwrap_or(Caller::Unknown),
            by: None,
            role: None,
        };
        Self { request: Request::from_parts(parts, body), asked }
    }
}

/// The last word of a route, or the whole request if nothing is there for its method.
fn word(method: &Method, route: &str) -> String {
    match *method {
        Method::POST => route.rsplit('/').next().unwrap_or(route).to_owned(),
        _ => short(&format!("{method} {route}"), SHOWN),
    }
}

async fn change(state: &Arc<ApiState>, change: Change, least: Role, next: Next) -> Response {
    let Change { mut request, mut asked } = change;
    let actor = state.actor(request.extensions()).await;
    (asked.by, asked.role) = (actor.as_ref().map(|actor| actor.by.clone()), actor.as_ref().map(|actor| actor.role));
    let pending = Pending { state: Arc::clone(state), asked: Some(asked) };
    let permitted = actor.ok_or_else(|| nobody(&request, least)).and_then(|actor| actor.require(least).map(|()| actor));
    let answer = match permitted {
        Ok(actor) => {
            request.extensions_mut().insert(actor);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    };
    pending.answered(&answer);
    answer
}

impl ApiState {
    /// Who sends the request of which this is known, if anybody may be.
    async fn actor(&self, known: &Extensions) -> Option<Actor> {
        let caller = known.get().copied().unwrap_or(Caller::Unknown);
        let grant = known.get::<Grant>();
        let role = role_of(caller, grant)?;
        let node = self.sources.status.borrow().node.clone();
        let by = match (caller, grant) {
            (Caller::Local { uid }, _) => caller::describe_user(uid, &node).await,
            (_, Some(Grant::Token(identity) | Grant::Session { identity, .. })) => {
                caller::describe_token(&identity.name, caller, &node)
            }
            (_, Some(Grant::Peer) | None) => return None,
        };
        Some(Actor { by, role, peer: caller.to_string(), is_session: matches!(grant, Some(Grant::Session { .. })) })
    }
}

/// A change whose end is not known yet. If the caller goes away before its answer, the handler ends wherever it is: the
/// change may be made.
struct Pending {
    state: Arc<ApiState>,
    asked: Option<Asked>,
}

impl Pending {
    fn answered(mut self, answer: &Response) {
        let Some(asked) = self.asked.take() else { return };
        if !(answer.status().is_client_error() || answer.status().is_server_error()) {
            return;
        }
        let reason = answer.extensions().get::<Reason>().map_or("see the answer's code", |reason| &reason.0);
        self.state.refusals.note(&asked, Some(answer.status()), reason);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(asked) = self.asked.take() {
            let reason = "the caller went away before the answer; it may be done all the same";
            self.state.refusals.note(&asked, None, reason);
        }
    }
}

/// The text of an error answer, for the log.
#[derive(Clone)]
pub(super) struct Reason(pub String);

/// Changes that were not made.
pub(super) struct Refusals {
    /// Those that were refused for the caller's role, by caller.
    of_role: Arc<LoggedMinutes>,
    failed: Mutex<Failures>,
}

impl Default for Refusals {
    fn default() -> Self {
        let of_role = LoggedMinutes::new(Minutes::new(SINGLE, SINGLE), log_refused);
        Self { of_role, failed: Mutex::default() }
    }
}

/// The changes that have failed lately, and when each did last: clients ask again until it works.
#[derive(Debug, Default)]
struct Failures(Vec<(Asked, Uptime)>);

impl Failures {
    /// Notes that a change has failed. Returns true if it had not failed just before.
    fn note(&mut self, asked: &Asked, now: Uptime) -> bool {
        self.0.retain(|(_, at)| now.since(*at) < QUIET);
        if let Some((_, at)) = self.0.iter_mut().find(|(known, _)| known == asked) {
            *at = now;
            return false;
        }
        if self.0.len() < MOST_FAILURES {
            self.0.push((asked.clone(), now));
        }
        true
    }
}

impl Refusals {
    /// Logs a change that is not made, unless its caller was refused many, which are counted, or the same change has just
    /// failed. `code` is absent if there was no answer: then, as after any other error, the change may be made.
    fn note(&self, asked: &Asked, code: Option<StatusCode>, reason: &str) {
        let is_logged = match code {
            Some(StatusCode::FORBIDDEN) => self.of_role.count(asked.caller).is_logged,
            Some(code) if code.is_server_error() => {
                self.failed.lock().unwrap_or_else(PoisonError::into_inner).note(asked, system::uptime())
            }
            // A change without an answer may be made, each time.
            _ => true,
        };
        if is_logged {
            asked.log(code, reason);
        }
    }
}

fn log_refused(sender: &Sender, count: u64) {
    log!(WARN OPERATOR_REFUSED, peer = %sender, count, "{count} more requests from {sender} were refused in a minute");
}

impl Asked {
    fn log(&self, code: Option<StatusCode>, reason: &str) {
        let Self { what, job, run, to, caller, by, role } = self;
        let (job, run, to, by) = (job.as_deref(), run.as_deref(), to.as_deref(), by.as_deref());
        let role = role.map(Role::as_str);
        let who = by.map_or_else(|| format!("somebody at {caller}"), str::to_owned);
        let is_refused = code.is_some_and(|code| code.is_client_error());
        // The sentence begins with the job.
        let of = run.or(to).map(|it| format!(" of {it}")).unwrap_or_default();
        let text = format!("{what}{of} by {who} {}: {reason}", if is_refused { "refused" } else { "failed" });
        let code = code.map(|code| code.as_u16());
        match code {
            Some(403) => {
                log!(WARN OPERATOR_REFUSED, request = what, job, run, to, by, role, peer = %caller, code, reason, "{text}");
            }
            _ => {
                log!(INFO OPERATOR_REFUSED, request = what, job, run, to, by, role, peer = %caller, code, reason, "{text}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_fails_again_and_again_is_logged_once() {
        let asked = |what: &str| Asked {
            what: what.to_owned(),
            job: Some("load".to_owned()),
            run: None,
            to: None,
            caller: Caller::Unknown,
            by: None,
            role: None,
        };
        let (mut failures, at) = (Failures::default(), |seconds| Uptime::ZERO + Duration::from_secs(seconds));
        assert!(failures.note(&asked("trigger"), at(0)));
        assert!(!failures.note(&asked("trigger"), at(5)));
        assert!(failures.note(&asked("pause"), at(6)), "another change");
        assert!(!failures.note(&asked("trigger"), at(64)), "it has failed all the time");
        assert!(failures.note(&asked("trigger"), at(124)));
    }
}
