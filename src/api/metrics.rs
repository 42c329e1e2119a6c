//! `GET /metrics`, for Prometheus.
//!
//! A scrape shows what the node knows, and reads little: the queue, from the cache that all requests share, and on the
//! leader, once a term, when each job last succeeded. It does not read the ledger's runs, of which there may be
//! thousands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::time::timeout;

use super::{ApiState, RefusedRequest, show};
use crate::metrics::{Format, Scrape};
use crate::status::Status;
use cronkeeper_core::clock::system;
use cronkeeper_core::coordination::ReadError;

/// Most time of one scrape to read last successes. The next scrape goes on where this one stopped.
const READING_TIME: Duration = Duration::from_secs(1);
/// Jobs per read: what a scrape loses at most when its time is up.
const BATCH: usize = 100;

/// `GET /metrics`: OpenMetrics for those who ask for it, else the older text format.
pub(super) async fn metrics(State(state): State<Arc<ApiState>>, headers: HeaderMap) -> Response {
    let published = Arc::clone(&state.sources.status.borrow());
    let (queue, ()) = futures_util::join!(state.reads.known_queue(), state.read_successes(&published));
    drop(published);
    // No await from here on, so at most one handler at a time holds an answer that is not yet counted against limits.
    let mut status = state.sources.status_now();
    status.unread = show::put_queue(&mut status, queue).map(|old| old.error.0);
    let is_turning = state.standstill(&status).is_none();
    let metrics = &state.sources.metrics;
    let (counts, successes) = (metrics.counts(), metrics.successes().known());
    let successes = if status.role.token.is_some() { successes } else { BTreeMap::new() };
    let wrong_tokens = state.sources.wrong_tokens.total();
    let scrape = Scrape { is_ready: status.ready && is_turning, is_turning, status, counts, successes, wrong_tokens };
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(accept);
    match scrape.write(format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl ApiState {
    /// Reads when jobs last succeeded, as far as that is not known yet. A failure is left to the next scrape.
    ///
    /// If this future is dropped, what was read so far stays known.
    async fn read_successes(&self, status: &Status) {
        let metrics = &self.sources.metrics;
        let Some(_turn) = metrics.reading_turn() else { return };
        let unread = metrics.successes().unread(status);
        let reading = async {
            for batch in unread.chunks(BATCH) {
                let found = self.sources.reader.last_successes(batch.to_vec(), system::now().wall).await?;
                metrics.successes().learn(status, batch, &found);
            }
            Ok::<(), ReadError>(())
        };
        // Late or failed, the rest stays unread.
        let _ = timeout(READING_TIME, reading).await;
    }
}
