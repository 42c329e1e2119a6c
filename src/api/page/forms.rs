//! What the buttons of the page do: the same requests as those under `/v1`, as forms, so that they work without script.
//!
//! Each form carries a key that only a page of this node contains, because a browser sends a session's cookie with
//! requests of other pages too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Form, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::html;
use serde::Deserialize;
use uuid::Uuid;

use super::history::encoded;
use super::layout::Standing;
use super::times::Zone;
use super::visitor::{Visitor, zone_cookie};
use super::{Page, RefusedPage};
use crate::api::authorize::Actor;
use crate::api::control::{MOST_REASON, PathParam, TriggerBody, run_id, unread_body};
use crate::api::show::job_name;
use crate::api::{ApiState, RefusedRequest};
use cronkeeper_core::term::NodeName;

/// The fields of the forms behind the buttons.
#[derive(Deserialize)]
pub(super) struct Action {
    form_key: String,
    /// Made with the page, so that pressing a button twice requests one run.
    #[serde(default = "Uuid::new_v4")]
    uuid: Uuid,
    #[serde(default)]
    reason: String,
    /// The node that is meant; empty, of a handover: the next in line.
    #[serde(default)]
    to: String,
    /// Among other fields the parameters of a run, `parameter.NAME`.
    #[serde(flatten)]
    others: BTreeMap<String, String>,
}

impl Action {
    /// The reason, if one is given, as far as it may be kept.
    fn reason(&self) -> Option<String> {
        let reason: String = self.reason.trim().chars().take(MOST_REASON).collect();
        Some(reason).filter(|reason| !reason.is_empty())
    }

    fn node(&self) -> Result<NodeName, RefusedRequest> {
        NodeName::parse(&self.to).map_err(|_| RefusedRequest::new(StatusCode::BAD_REQUEST, "this is not a node name"))
    }

    /// The parameters that are set. An empty field sets none.
    fn parameters(&self) -> BTreeMap<String, String> {
        let set = self.others.iter().filter(|(_, value)| !value.is_empty());
        set.filter_map(|(name, value)| Some((name.strip_prefix("parameter.")?.to_owned(), value.clone()))).collect()
    }
}

type ActionForm = Result<Form<Action>, FormRejection>;

impl From<FormRejection> for RefusedPage {
    fn from(bad: FormRejection) -> Self {
        Self(unread_body(bad.status(), bad.body_text()))
    }
}

fn done(path: String) -> Page {
    Ok(Redirect::to(&path).into_response())
}

/// The visitor who sends this form, and the form, if its key is that of the visitor's page.
fn permitted(state: &ApiState, visitor: &Visitor, form: ActionForm) -> Result<(Actor, Action), RefusedPage> {
    let Form(form) = form?;
    let actor = visitor.operator(state, &form.form_key)?;
    Ok((actor, form))
}

/// `POST /jobs/{job}/trigger`.
pub(super) async fn trigger(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    job: PathParam,
    form: ActionForm,
) -> Page {
    let (actor, form) = permitted(&state, &visitor, form)?;
    let body = TriggerBody { uuid: Some(form.uuid), environment: form.parameters(), ..TriggerBody::default() };
    let run = state.trigger(actor, state.known_job(job)?, body).await?.run;
    done(format!("/runs/{run}?done=triggered"))
}

/// `POST /jobs/{job}/pause`.
pub(super) async fn pause(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    job: PathParam,
    form: ActionForm,
) -> Page {
    let (actor, form) = permitted(&state, &visitor, form)?;
    let job = state.known_job(job)?;
    state.pause(actor, job.clone(), form.reason(), None).await?;
    done(format!("/jobs/{job}?done=paused"))
}

/// `POST /jobs/{job}/resume`.
pub(super) async fn resume(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    job: PathParam,
    form: ActionForm,
) -> Page {
    let (actor, _) = permitted(&state, &visitor, form)?;
    let job = job_name(job)?;
    state.resume(actor, job.clone()).await?;
    done(format!("/jobs/{job}?done=resumed"))
}

/// `POST /runs/{run}/kill`.
pub(super) async fn kill(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    run: PathParam,
    form: ActionForm,
) -> Page {
    let (actor, _) = permitted(&state, &visitor, form)?;
    let run = run_id(run)?;
    state.kill(actor, run.clone(), false).await?;
    done(format!("/runs/{run}?done=killing"))
}

/// `POST /handover`.
pub(super) async fn hand_over(State(state): State<Arc<ApiState>>, visitor: Visitor, form: ActionForm) -> Page {
    let (actor, form) = permitted(&state, &visitor, form)?;
    let to = (!form.to.is_empty()).then(|| form.node()).transpose()?;
    state.hand_over(actor, to).await?;
    done("/?done=handed-over".to_owned())
}

/// `POST /drain`.
pub(super) async fn drain(State(state): State<Arc<ApiState>>, visitor: Visitor, form: ActionForm) -> Page {
    let (actor, form) = permitted(&state, &visitor, form)?;
    state.drain(actor, form.node()?, form.reason()).await?;
    done("/?done=drained".to_owned())
}

/// `POST /undrain`.
pub(super) async fn undrain(State(state): State<Arc<ApiState>>, visitor: Visitor, form: ActionForm) -> Page {
    let (actor, form) = permitted(&state, &visitor, form)?;
    state.undrain(actor, form.node()?).await?;
    done("/?done=undrained".to_owned())
}

/// The fields of the form to sign in.
#[derive(Deserialize)]
pub(super) struct SignIn {
    token: String,
}

/// `GET /session`: the form to sign in.
pub(super) async fn sign_in_page(State(state): State<Arc<ApiState>>, visitor: Visitor) -> Response {
    sign_in_form(&state, &visitor, None)
}

/// The form to sign in, and why the last try failed.
fn sign_in_form(state: &ApiState, visitor: &Visitor, error: Option<&str>) -> Response {
    let status = Arc::clone(&state.sources.status.borrow());
    let is_in_clear = visitor.network.as_ref().is_some_and(|network| network.is_token_sent_in_clear());
    let main = html! {
        div.card.narrow {
            h1 { "Sign in" }
            @if let Standing::Known { role, .. } = &visitor.standing {
                p { "You have the role " strong { (role) } " already. " a href="/" { "To the overview" } }
            } @else {
                p { "With a token of this node you see everything, and may do what its role says." }
                @if is_in_clear {
                    p.warning { "Others on the network can read the token: this address has no certificate." }
                }
                form method="post" action="/session" {
                    @if let Some(error) = error { p #wrong.error role="alert" { (error) } }
                    p { label { "Token " input #token type="password" name="token" required autofocus
                        autocomplete="current-password" aria-invalid=[error.map(|_| "true")]
                        aria-describedby=[error.map(|_| "wrong")]; } }
                    p { button.main type="submit" { "Sign in" } }
                }
            }
        }
    };
    state.framed("Sign in", &status, &main, None, visitor)
}

/// `POST /session`.
pub(super) async fn sign_in(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    form: Result<Form<SignIn>, FormRejection>,
) -> Page {
    let Form(form) = form?;
    let Some(network) = &visitor.network else { return done("/".to_owned()) };
    match network.sign_in(visitor.caller(), visitor.connection(), form.token.trim().as_bytes()).await {
        Ok(cookie) => with_cookie(cookie),
        Err(wrong) => {
            let error = match wrong.retry_after {
                None => NO_TOKEN.to_owned(),
                Some(seconds) => format!("{NO_TOKEN} Many wrong ones came from your address: wait {seconds} s."),
            };
            let mut answer = sign_in_form(&state, &visitor, Some(&error));
            *answer.status_mut() = wrong.code();
            wrong.mark(&mut answer);
            Ok(answer)
        }
    }
}

const NO_TOKEN: &str = "This is not a token of this node. The file that CRONKEEPER_API_TOKEN_FILE names has them; \
                        `cronkeeper token` makes new ones.";

/// The zone that a visitor chooses.
#[derive(Deserialize)]
pub(super) struct ZoneChoice {
    #[serde(default)]
    name: String,
}

/// `GET /zone`: the form to choose a time zone; with `name`, the choice. It changes only what this browser shows, so it
/// needs no key.
pub(super) async fn zone(
    State(state): State<Arc<ApiState>>,
    visitor: Visitor,
    choice: Result<Query<ZoneChoice>, QueryRejection>,
) -> Page {
    let Query(ZoneChoice { name }) = choice?;
    if let Some(zone) = Zone::parse(name.trim()) {
        return with_cookie(zone_cookie(&zone));
    }
    let status = Arc::clone(&state.sources.status.borrow());
    let of_jobs = status.jobs.iter().map(|job| job.timezone.as_str()).filter(|zone| *zone != "UTC");
    let of_jobs: BTreeSet<&str> = of_jobs.collect();
    let main = html! {
        div.card.narrow {
            h1 { "Time zone" }
            p { "Times on this page are in " strong { (visitor.zone.name()) } "." }
            form method="get" action="/zone" {
                @if !name.trim().is_empty() {
                    p #wrong.error role="alert" { "There is no time zone with this name. `Europe/Berlin` is one." }
                }
                p { label { "Another one " input #zone name="name" value=(name) maxlength="40" required
                    placeholder="Europe/Berlin" data-zone="" autocapitalize="off" spellcheck="false"; } }
                p { button.main type="submit" { "Use it" } }
            }
            p {
                @for zone in std::iter::once("UTC").chain(of_jobs.into_iter().take(20)) {
                    a.chip href={ "/zone?name=" (encoded(zone)) } { (zone) } " "
                }
            }
        }
    };
    Ok(state.framed("Time zone", &status, &main, None, &visitor))
}

/// `POST /session/end`.
pub(super) async fn sign_out(State(state): State<Arc<ApiState>>, visitor: Visitor, form: ActionForm) -> Page {
    let Form(form) = form?;
    visitor.check_key(&state, &form.form_key)?;
    match (&visitor.network, visitor.session()) {
        (Some(network), Some(session)) => with_cookie(network.sign_out(session)),
        _ => done("/".to_owned()),
    }
}

fn with_cookie(cookie: String) -> Page {
    let mut answer = Redirect::to("/").into_response();
    let bad = |_| RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, "the cookie cannot be sent");
    answer.headers_mut().insert(header::SET_COOKIE, HeaderValue::try_from(cookie).map_err(bad)?);
    Ok(answer)
}
