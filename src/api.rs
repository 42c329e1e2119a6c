//! The HTTP API on the Unix socket and, with `--listen`, on TCP.
//!
//! It shows the published [`Status`] and what it reads from the ledger, and it writes operators' requests into the
//! ledger. It never acts itself, and no part of the daemon waits for it. Requests are limited in size, number and time
//! ([`serve`]), answers in bytes ([`admission`]). A panic in a handler fails only its own request. On TCP, [`network`]
//! decides who may see what; who may do what is decided in [`authorize`], by [`roles`].
//!
//! ```text
//! daemon ──watch──▶ Status, last turn ─┐
//! ledger ──Reader─▶ queue, history  ───┼─▶ router ─▶ serve: api.sock
//! archive ─────────▶ older history  ───┤                   network: --listen
//! ledger ◀Operator─ pauses, triggers ──┘
//! ```
//!
//! A handler reads everything it needs first, and then builds its answer without awaiting. A runtime of one thread
//! therefore holds only one answer that is not yet counted against the limits. If it exceeds them, it is dropped at
//! once. Answers that take long are computed on another thread ([`slow_answers`]), one at a time too.

mod admission;
mod authorize;
mod browser;
mod caller;
pub mod client;
pub mod control;
pub mod definitions;
mod health;
pub mod history;
mod index;
mod keep_known;
mod metrics;
mod minutes;
mod named_nodes;
pub mod network;
pub mod next;
pub mod nodes;
#[cfg(test)]
mod openapi;
pub mod output;
mod page;
pub mod pauses;
pub mod peers;
mod reads;
pub mod recount;
pub mod roles;
pub mod serve;
mod show;
mod slow_answers;
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
use axum::{Extension, Json, Router};
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::admission::{Admitted, NoMemory};
use self::authorize::{Reason, Refusals};
pub use self::keep_known::keep_known;
use self::nodes::Handover;
pub use self::reads::LastReads;
use self::slow_answers::SlowAnswers;
use crate::archive::Archive;
use crate::metrics::Metrics;
use crate::status::Status;
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::coordination::Reader;
use cronkeeper_core::job::JobSet;
use cronkeeper_core::ledger::Operator;

/// What the API reads and writes.
#[derive(Clone)]
pub struct Sources {
    /// The status that the daemon publishes.
    pub status: watch::Receiver<Arc<Status>>,
    /// The last status that it published while it led, if it ever did.
    pub led: watch::Receiver<Option<Arc<Status>>>,
    /// When the lease ends; absent while the node keeps none.
    pub lease: watch::Receiver<Option<Uptime>>,
    /// Time of the daemon loop's last turn. Even when idle, it turns at least three times per `stall`.
    pub turns: watch::Receiver<Uptime>,
    /// The jobs as last loaded.
    pub jobs: watch::Receiver<Arc<JobSet>>,
    /// The loop counts as stuck after this long without a turn.
    pub stall: Duration,
    pub reader: Arc<dyn Reader>,
    /// What was read last, by whichever reader.
    pub last_reads: LastReads,
    pub operator: Arc<dyn Operator>,
    /// Older history of this node.
    pub archive: Archive,
    /// Handover requests to the daemon's loop.
    pub handovers: mpsc::UnboundedSender<Handover>,
    /// What the daemon counts.
    pub metrics: Metrics,
    /// What the TCP address counts; shared by all listeners, so that each shows it.
    pub wrong_tokens: Arc<network::WrongTokens>,
    pub output: OutputSources,
}

impl Sources {
    /// The published status, with the time-dependent fields as of now.
    fn status_now(&self) -> Status {
        // The published status is not held while it is copied: the daemon would wait for that.
        let published = Arc::clone(&self.status.borrow());
        let failing_channels = self.metrics.channels().failing();
        Status { failing_channels, ..Status::clone(&published) }.at(system::now(), *self.lease.borrow())
    }
}

/// Where the output of runs comes from.
#[derive(Clone, Default)]
pub struct OutputSources {
    /// What this node keeps; absent if it keeps nothing.
    pub kept: Option<crate::output::Reader>,
    /// The other nodes' addresses; absent on a node that does not listen itself.
    pub peers: Option<Arc<peers::Peers>>,
    /// All nodes keep their output in the same directory.
    pub is_shared: bool,
}

/// All routes of the API.
pub fn router(sources: Sources) -> Router {
    let reads = reads::Reads::new(Arc::clone(&sources.reader), sources.last_reads.clone());
    let state = Arc::new(ApiState {
        reads,
        page: page::PageState::default(),
        slow_answers: SlowAnswers::default(),
        refusals: Refusals::default(),
        sources,
    });
    Router::new()
        .merge(page::routes())
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/v1", get(index::index))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/status", get(show::status))
        .route("/v1/jobs", get(show::jobs))
        .route("/v1/nodes", get(show::nodes))
        .route("/v1/jobs/{job}", get(show::job))
        .route("/v1/next", get(next::next))
        .route("/v1/definitions", get(definitions::definitions))
        .route("/v1/jobs/{job}/history", get(history::of_job))
        .route("/v1/history", get(history::of_all))
        .route("/v1/jobs/{job}/trigger", post(control::trigger))
        .route("/v1/jobs/{job}/pause", post(pauses::pause))
        .route("/v1/jobs/{job}/resume", post(pauses::resume))
        .route("/v1/jobs/{job}/recount", post(recount::recount))
        .route("/v1/events", get(page::events))
        .route("/v1/pause", post(pauses::pause_many))
        .route("/v1/resume", post(pauses::resume_many))
        .route("/v1/handover", post(nodes::handover))
        .route("/v1/nodes/{node}/drain", post(nodes::drain))
        .route("/v1/nodes/{node}/undrain", post(nodes::undrain))
        .route("/v1/nodes/{node}/forget", post(nodes::forget))
        .route("/v1/runs/{run}", get(control::run))
        .route("/v1/runs/{run}/output", get(output::output))
        .route("/v1/runs/{run}/kill", post(control::kill))
        .fallback(async || RefusedRequest::new(StatusCode::NOT_FOUND, "not found"))
        .method_not_allowed_fallback(async || RefusedRequest::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"))
        .layer(middleware::from_fn(browser::refuse_foreign_pages))
        .layer(DefaultBodyLimit::max(control::MOST_BYTES))
        .layer(middleware::from_fn(catch_panic))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), authorize::authorize))
        .layer(middleware::from_fn(limit_answer))
        .with_state(state)
}

struct ApiState {
    sources: Sources,
    reads: reads::Reads,
    page: page::PageState,
    slow_answers: SlowAnswers,
    refusals: Refusals,
}

impl ApiState {
    /// What asks other nodes, or why this node cannot.
    fn peers(&self) -> Result<&peers::Peers, String> {
        self.sources.output.peers.as_deref().ok_or_else(|| {
            let own = &self.sources.status.borrow().node;
            format!("{own} has no token for other nodes: set `--listen` and `--api-token-file`")
        })
    }
}

/// Turns a panic in a handler into an answer 500.
async fn catch_panic(request: Request, next: Next) -> Response {
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answer.unwrap_or_else(|_| {
        RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; see the daemon's log").into_response()
    })
}

/// Answers up to this many bytes are not counted.
const SMALL: u64 = 4 << 10;

/// Counts an answer against the caller's limits, because it is kept in memory until the client has read it.
async fn limit_answer(request: Request, next: Next) -> Response {
    let admitted = request.extensions().get::<Arc<Admitted>>().cloned();
    let answer = next.run(request).await;
    let Some(admitted) = admitted else { return answer };
    let bytes = answer.body().size_hint().lower();
    // Health checks must work even while other answers use all the memory. There are no more small answers than
    // connections, so their memory is bounded too.
    if bytes <= SMALL {
        return answer;
    }
    match admitted.reserve(usize::try_from(bytes).unwrap_or(usize::MAX)) {
        Ok(()) => answer,
        Err(NoMemory::TooLarge { limit }) => {
            let error = format!("the answer has {bytes} bytes, more than the {limit} bytes that one caller may have");
            RefusedRequest::new(StatusCode::PAYLOAD_TOO_LARGE, error).into_response()
        }
        Err(NoMemory::Busy) => {
            let error = "too many answers have not been read yet; try again later";
            let mut answer = RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            answer
        }
    }
}

/// True for a value that an answer leaves out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// An error answer.
#[derive(Debug)]
struct RefusedRequest {
    code: StatusCode,
    error: String,
}

/// The body of an error answer.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ErrorBody {
    error: String,
}

impl RefusedRequest {
    fn new(code: StatusCode, error: impl Into<String>) -> Self {
        Self { code, error: error.into() }
    }
}

impl IntoResponse for RefusedRequest {
    fn into_response(self) -> Response {
        let reason = Extension(Reason(self.error.clone()));
        (self.code, reason, Json(ErrorBody { error: self.error })).into_response()
    }
}
