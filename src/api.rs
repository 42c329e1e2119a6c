//! HTTP on the Unix socket and, when asked for, on TCP: what the daemon shows, and what operators ask for.
//!
//! It reads a published [`Status`] and the ledger's reader, and writes requests into the ledger; it never acts, and nothing of the
//! daemon waits for it.
//! Requests are bounded in size, number and time ([`serve`]), answers in bytes ([`guests`]), and a panic in a handler is one
//! request's affair. On TCP there are rules of who sees what ([`network`]).
//!
//! ```text
//! daemon ──watch──▶ Status, last turn ─┐
//! ledger ──Reader─▶ queue, history  ───┼─▶ router ─▶ serve: api.sock
//! ledger ◀Operator─ pauses, triggers ──┘                   network: --listen
//! ```
//!
//! What is asked for is put together without a wait in between, so that a runtime of one thread holds one unfinished answer at a time;
//! what there is no room for then is dropped at once.
//!
//! Deliberately absent: metrics, events, the page.

mod caller;
pub mod client;
pub mod control;
mod guests;
mod health;
pub mod network;
mod reads;
pub mod serve;
mod show;
pub mod socket;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::control::Handover;
use self::guests::{Guest, NoRoom};
use crate::clock::Uptime;
use crate::ledger::{Operator, Reader};
use crate::status::Status;

/// What the API shows.
#[derive(Clone)]
pub struct Sources {
    /// What the daemon says of itself.
    pub status: watch::Receiver<Arc<Status>>,
    /// When the daemon's loop turned last. It turns at least every third of `stall`, also when nothing happens.
    pub turns: watch::Receiver<Uptime>,
    /// How long without a turn means that the loop is stuck.
    pub stall: Duration,
    /// The ledger, for the operator's eyes.
    pub reader: Arc<dyn Reader>,
    /// The ledger, for the operator's requests.
    pub operator: Arc<dyn Operator>,
    /// The daemon's loop, for handovers.
    pub handovers: mpsc::UnboundedSender<Handover>,
}

/// All that is served.
pub fn router(sources: Sources) -> Router {
    let shared = Arc::new(Shared { reads: reads::Reads::new(Arc::clone(&sources.reader)), sources });
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/v1/status", get(show::status))
        .route("/v1/jobs", get(show::jobs))
        .route("/v1/jobs/{job}/history", get(show::history_of_job))
        .route("/v1/history", get(show::history_of_all))
        .route("/v1/jobs/{job}/trigger", post(control::trigger))
        .route("/v1/jobs/{job}/pause", post(control::pause))
        .route("/v1/jobs/{job}/resume", post(control::resume))
        .route("/v1/handover", post(control::handover))
        .route("/v1/runs/{run}", get(control::run))
        .route("/v1/runs/{run}/kill", post(control::kill))
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "there is nothing here"))
        .method_not_allowed_fallback(async || Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "not by this method"))
        .layer(DefaultBodyLimit::max(control::MOST_BYTES))
        .layer(middleware::from_fn(survive))
        .layer(middleware::from_fn(weigh))
        .with_state(shared)
}

struct Shared {
    sources: Sources,
    reads: reads::Reads,
}

/// A panic is our bug, but not the end of anything.
async fn survive(request: Request, next: Next) -> Response {
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "a fault in cronkeeper; its log says more").into_response()
    })
}

/// So many bytes are not counted.
const SMALL: u64 = 4 << 10;

/// An answer is held until it was read, and there is only so much room.
async fn weigh(request: Request, next: Next) -> Response {
    let guest = request.extensions().get::<Arc<Guest>>().cloned();
    let answer = next.run(request).await;
    let Some(guest) = guest else { return answer };
    let bytes = answer.body().size_hint().lower();
    // Whether a node is well can be asked also while others hold all the room; of these there are no more than connections.
    if bytes <= SMALL {
        return answer;
    }
    match guest.take(usize::try_from(bytes).unwrap_or(usize::MAX)) {
        Ok(()) => answer,
        Err(NoRoom::ForAny { most }) => {
            let error = format!("the answer has {bytes} bytes, and {most} is all that one caller may have");
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error).into_response()
        }
        Err(NoRoom::Now) => {
            let error = "too many answers are on their way and were not read yet";
            let mut answer = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            answer
        }
    }
}

/// Why a request was not answered as asked.
#[derive(Debug)]
struct Refusal {
    code: StatusCode,
    error: String,
}

/// The body of a refusal.
#[derive(Debug, Serialize, Deserialize)]
struct ErrorBody {
    error: String,
}

impl Refusal {
    fn new(code: StatusCode, error: impl Into<String>) -> Self {
        Self { code, error: error.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.code, Json(ErrorBody { error: self.error })).into_response()
    }
}
