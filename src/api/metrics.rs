//! `GET /metrics`, for Prometheus.
//!
//! A scrape shows what the node knows, and reads little, from the caches that all requests share: the queue, and on the
//! leader how each job's runs ended last. It does not read the ledger's runs: there may be thousands.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::reads::Known;
use super::{ApiState, RefusedRequest, show};
use crate::metrics::{Format, Scrape};
use crate::status::{NodeState, RecordedEnds};

/// How old that may be which other nodes have written: with thousands of jobs, to read it is work.
const OF_OTHERS: Duration = Duration::from_secs(60);

/// `GET /metrics`: OpenMetrics for those who ask for it, else the older text format.
pub(super) async fn metrics(State(state): State<Arc<ApiState>>, headers: HeaderMap) -> Response {
    let (queue, lasts) = futures_util::join!(state.reads.known_queue(), state.leaders_lasts());
    // No await from here on, so at most one handler at a time holds an answer that is not yet counted against limits.
    let mut status = state.sources.status_now();
    status.unread = show::put_queue(&mut status, queue).map(|old| old.error.0);
    status.mark_ended();
    let is_turning = state.standstill(&status).is_none();
    let counts = state.sources.metrics.counts();
    let lasts = lasts.value.filter(|_| status.role.token.is_some());
    let successes = lasts.map(|(lasts, _)| lasts.successes.clone()).unwrap_or_default();
    let wrong_tokens = state.sources.wrong_tokens.total();
    let channels = state.sources.metrics.channels().channels();
    let is_ready = status.ready && is_turning;
    let scrape = Scrape { is_ready, is_turning, status, counts, successes, wrong_tokens, channels };
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    match scrape.write(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl ApiState {
    /// How each job's runs ended last: what the node has seen itself, it has counted. Nothing on a node that does not lead, or takes over, when the servers have other
    /// things to do.
    async fn leaders_lasts(&self) -> Known<RecordedEnds> {
        let state = self.sources.status.borrow().state;
        match state {
            NodeState::Leading => self.reads.lasts_within(OF_OTHERS).await,
            _ => Known::NOT_ASKED,
        }
    }
}
