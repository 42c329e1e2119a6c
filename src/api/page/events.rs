//! `GET /v1/events`: an event whenever the overview has changed, as server-sent events.
//!
//! An event carries no more than a summary: who needs more asks for it. A client that reads slowly misses events in
//! between and keeps no memory busy, because each event is made when the connection can take it. Each stream ends after
//! some minutes, and browsers then open another.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::times::Zone;
use super::view::Sight;
use super::visitor::Connection;
use crate::api::{ApiState, RefusedRequest};
use crate::status::Status;
use cronkeeper_core::clock::{Uptime, system};

/// Shortest time between two events.
const PACE: Duration = Duration::from_millis(250);
/// The ledger is asked this often for what this node does not learn by itself.
const TICK: Duration = Duration::from_secs(1);
/// Sent after this long without anything else, so that both ends notice a broken connection, and an open page that the
/// node has stopped. The script relies on it: `QUIET` in page.js is longer.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// What is sent then: an event of its own, because a script does not see comments.
const BEAT: &[u8] = b"event: alive\ndata: {}\n\n";
/// How long a stream lasts.
const LIFETIME: Duration = Duration::from_secs(240);
/// Sent first: when to reconnect after the end, in milliseconds.
const PREAMBLE: &[u8] = b"retry: 1000\n\n";

/// `GET /v1/events`.
pub(in crate::api) async fn events(
    State(state): State<Arc<ApiState>>,
    connection: Connection,
    sight: Sight,
) -> Response {
    if !connection.become_stream() {
        let error = "too many streams of events are open; ask for the status instead, or try again later";
        let mut answer = RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
        return answer;
    }
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    let follower = Follower::new(state, sight);
    let parts = stream::unfold(follower, |mut follower| async {
        let part = follower.next().await?;
        Some((Ok::<_, Infallible>(part), follower))
    });
    (headers, Body::from_stream(parts)).into_response()
}

/// One open stream.
struct Follower {
    published: watch::Receiver<Arc<Status>>,
    state: Arc<ApiState>,
    sight: Sight,
    /// The tag of the last event; absent before the first one.
    sent: Option<String>,
    has_begun: bool,
    end: Uptime,
    quiet_since: Uptime,
}

impl Follower {
    fn new(state: Arc<ApiState>, sight: Sight) -> Self {
        let (now, published) = (system::uptime(), state.sources.status.clone());
        Self { published, state, sight, sent: None, has_begun: false, end: now + LIFETIME, quiet_since: now }
    }

    /// What to send next; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Bytes::from_static(PREAMBLE));
        }
        loop {
            let now = system::uptime();
            if now >= self.end {
                return None;
            }
            self.published.borrow_and_update();
            let view = self.state.view(self.sight, &Zone::utc()).await;
            if self.sent.as_ref() != Some(&view.tag) {
                self.sent = Some(view.tag.clone());
                self.quiet_since = now;
                return Some(format!("event: status\ndata: {}\n\n", view.summary).into());
            }
            if now.since(self.quiet_since) >= HEARTBEAT {
                self.quiet_since = now;
                return Some(Bytes::from_static(BEAT));
            }
            sleep(PACE).await;
            // Dropping the wait loses nothing: a change stays marked until it is seen.
            if let Ok(Err(_)) = timeout(TICK - PACE, self.published.changed()).await {
                return None;
            }
        }
    }
}
