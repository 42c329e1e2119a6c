//! Two questions of whoever watches over the process: does it live, does it take part.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::{Refusal, Shared};
use crate::clock::system;
use crate::lease;
use crate::status::Status;

#[derive(Serialize)]
pub(super) struct Healthy {
    /// How long ago the loop turned.
    last_turn_ms: u64,
}

/// 200 while the loop turns. A process that answers but no longer turns would otherwise look well.
pub(super) async fn healthz(State(shared): State<Arc<Shared>>) -> Result<Json<Healthy>, Refusal> {
    let ago = system::uptime().since(*shared.sources.turns.borrow());
    let last_turn_ms = crate::run::millis(ago);
    if ago > shared.sources.stall {
        let error = format!("the loop last turned {last_turn_ms} ms ago");
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error));
    }
    Ok(Json(Healthy { last_turn_ms }))
}

#[derive(Serialize)]
pub(super) struct Readiness {
    ready: bool,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    awaiting: Option<String>,
}

/// 200 while the node takes part.
pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> (StatusCode, Json<Readiness>) {
    let status = Arc::clone(&shared.sources.status.borrow());
    let stands = system::uptime().since(*shared.sources.turns.borrow());
    let stalled = (stands > longest_standstill(&status, shared.sources.stall))
        .then(|| format!("the daemon's loop, which last turned {} ms ago", crate::run::millis(stands)));
    let ready = status.ready && stalled.is_none();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let awaiting = stalled.or_else(|| status.awaiting.clone());
    (code, Json(Readiness { ready, state: status.state.as_str(), awaiting }))
}

fn longest_standstill(status: &Status, stall: Duration) -> Duration {
    let timeout = status.session.as_ref().map(|session| Duration::from_millis(session.timeout_ms));
    timeout.map_or(stall, |timeout| lease::longest_standstill(timeout).min(stall))
}
