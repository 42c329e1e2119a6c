//! Health checks: `/healthz` for the process, `/readyz` for the node.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::network::Visibility;
use super::{ApiState, RefusedRequest};
use crate::status::Status;
use crate::status::outline::without_cause;
use cronkeeper_core::clock::system;
use cronkeeper_core::lease;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Healthy {
    /// Time since the last turn of the daemon's loop.
    last_turn_ms: u64,
}

/// 200 while the daemon's loop turns. If it is stuck, the API still answers, so an answer alone proves nothing.
pub(super) async fn healthz(State(state): State<Arc<ApiState>>) -> Result<Json<Healthy>, RefusedRequest> {
    let ago = system::uptime().since(*state.sources.turns.borrow());
    let last_turn_ms = cronkeeper_core::run::millis(ago);
    if ago > state.sources.stall {
        let error = format!("the daemon's loop is stuck: its last turn was {last_turn_ms} ms ago");
        return Err(RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error));
    }
    Ok(Json(Healthy { last_turn_ms }))
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Readiness {
    ready: bool,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    awaiting: Option<String>,
}

/// 200 while the node takes part in the cluster.
pub(super) async fn readyz(
    State(state): State<Arc<ApiState>>,
    visibility: Visibility,
) -> (StatusCode, Json<Readiness>) {
    let status = Arc::clone(&state.sources.status.borrow());
    let stalled = state.standstill(&status).map(awaits_turn);
    let ready = status.ready && stalled.is_none();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let awaiting = stalled.or_else(|| match visibility {
        Visibility::All => status.awaiting.clone(),
        Visibility::Outline => status.awaiting.as_deref().map(without_cause),
    });
    (code, Json(Readiness { ready, state: status.state.as_str(), awaiting }))
}

/// What a node waits for whose loop has stalled for this long.
pub(super) fn awaits_turn(idle: Duration) -> String {
    format!("the daemon's loop, whose last turn was {} ms ago", cronkeeper_core::run::millis(idle))
}

impl ApiState {
    /// How long the daemon's loop has stood still, if that is too long for the node to count as ready.
    pub(super) fn standstill(&self, status: &Status) -> Option<Duration> {
        let idle = system::uptime().since(*self.sources.turns.borrow());
        (idle > longest_standstill(status, self.sources.stall)).then_some(idle)
    }
}

/// The longest time without a turn during which the node counts as ready. With a session, it depends on its timeout.
fn longest_standstill(status: &Status, stall: Duration) -> Duration {
    let timeout = status.session.as_ref().map(|session| Duration::from_millis(session.timeout_ms));
    timeout.map_or(stall, |timeout| lease::longest_standstill(timeout).min(stall))
}
