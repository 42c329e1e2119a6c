//! Runs a node under one session after another, from its first to its last.
//!
//! Connects again forever, with growing pauses. What is needed beyond one session is kept in [`Node`].

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::session_loop::{SessionEnd, SessionLoop};
use crate::tree::{Connect, ConnectError, Session, State};
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::election::{self, Failure};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Short, because nobody leads after an outage until the nodes are back: a refused connection costs little, another
/// half second without cron costs more.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A failure is reported again after growing pauses, at most this long.
const LONGEST_SILENCE: Duration = Duration::from_secs(60);

/// Runs a node's sessions.
pub struct Supervisor<C: Connect, K> {
    connect: Arc<C>,
    clock: K,
    node: Node,
}

/// Backoff of a failing operation, and of the reports about it.
struct Backoff {
    retry: Duration,
    reports: ReportPauses,
    /// The error before.
    error: String,
}

impl Backoff {
    fn new() -> Self {
        Self { retry: FIRST_PAUSE, reports: ReportPauses::default(), error: String::new() }
    }
}

/// When a continuing failure is reported again: after growing pauses.
#[derive(Debug)]
pub(super) struct ReportPauses {
    from: Uptime,
    silence: Duration,
}

impl Default for ReportPauses {
    fn default() -> Self {
        Self { from: Uptime::ZERO, silence: FIRST_PAUSE }
    }
}

impl ReportPauses {
    /// True if the failure is to be reported now.
    pub fn is_over(&mut self, now: Uptime) -> bool {
        let is_over = now >= self.from;
        if is_over {
            (self.from, self.silence) = (now + self.silence, (self.silence * 2).min(LONGEST_SILENCE));
        }
        is_over
    }
}

impl<C: Connect, K: Clock> Supervisor<C, K> {
    pub fn new(connect: C, clock: K, node: Node) -> Self {
        Self { connect: Arc::new(connect), clock, node }
    }

    /// Runs sessions until the daemon is done, or an operator must act.
    pub async fn serve(mut self) {
        while let Some((client, requested)) = self.connect().await {
            let id = client.id();
            match self.record(&client).await {
                Some(true) => {}
                Some(false) => continue,
                None => return,
            }
            match SessionLoop::new(&mut self.node, self.clock.clone(), client, requested).run().await {
                SessionEnd::Expired => self.node.earlier.push(id),
                SessionEnd::Done => return,
                SessionEnd::Failed(failure) => return self.node.emit(election::Event::Failed(failure)),
            }
        }
    }

    /// Establishes a session. Returns it with the instant at which it was requested; `None` if the daemon is done or an
    /// operator must act.
    async fn connect(&mut self) -> Option<(C::Session, Uptime)> {
        let mut backoff = Backoff::new();
        loop {
            let connect = Arc::clone(&self.connect);
            let requested = self.clock.now().up;
            let error = match self.serve_until(Box::pin(async move { connect.connect().await })).await? {
                Ok(client) => return Some((client, requested)),
                // What was changed since may be changed back, or the refusal is temporary: the runs in flight continue
                // meanwhile.
                Err(ConnectError::AuthFailed(detail)) if self.node.has_joined => {
                    format!("authentication was refused: {detail}")
                }
                Err(ConnectError::Refused(detail)) if self.node.has_joined => detail,
                Err(ConnectError::AuthFailed(detail)) => {
                    return self.fail(|service| Failure::Refused { service, detail });
                }
                Err(ConnectError::Refused(detail)) => {
                    return self.fail(|service| Failure::Unusable { service, detail });
                }
                Err(ConnectError::Unreachable(error)) => error,
            };
            self.pause(&mut backoff, error).await?;
        }
    }

    /// An operator must act.
    fn fail<T>(&self, failure: impl FnOnce(String) -> Failure) -> Option<T> {
        self.node.emit(election::Event::Failed(failure(self.node.options.service.clone())));
        None
    }

    /// Records the session in the state directory, before anything is created under it.
    ///
    /// A full disk may have room again later. Until then this session is kept, so that no others pile up. Returns false
    /// if the session is over, `None` if the daemon is done.
    async fn record(&mut self, client: &C::Session) -> Option<bool> {
        let mut backoff = Backoff::new();
        while matches!(client.state(), State::Connected | State::Disconnected) {
            let Err(error) = self.node.store.record(&client.id()) else { return Some(true) };
            self.pause(&mut backoff, error.to_string()).await?;
        }
        Some(false)
    }

    /// Waits for the next try, and reports the error if it is another one, or was not reported recently. Returns `None`
    /// if the daemon is done.
    async fn pause(&mut self, backoff: &mut Backoff, error: String) -> Option<()> {
        let (now, retry) = (self.clock.now().up, backoff.retry);
        let clock = self.clock.clone();
        let is_new = backoff.error != error;
        if backoff.reports.is_over(now) || is_new {
            backoff.error.clone_from(&error);
            let (explaining, ending) = (self.connect.explain(error.clone()), clock.clone());
            let explained = async move {
                // Cancellation safe: the diagnosis is only for people, and the next try does not wait for it.
                tokio::select! {
                    biased;
                    explained = explaining => explained,
                    () = sleep(&ending, now + retry) => error,
                }
            };
            let error = self.serve_until(Box::pin(explained)).await?;
            self.node.emit(election::Event::Unreachable { retry, error });
        }
        self.serve_until(Box::pin(async move { sleep(&clock, now + retry).await })).await?;
        backoff.retry = (retry * 2).min(LONGEST_PAUSE);
        Some(())
    }

    /// Awaits a future while there is no session, and handles requests meanwhile. Returns `None` if the daemon is done.
    async fn serve_until<T>(&mut self, mut awaited: Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
        loop {
            // Cancellation safe: the awaited future is kept, and a request not received stays in the channel.
            let request = tokio::select! {
                biased;
                done = &mut awaited => return Some(done),
                request = self.node.service.requests.recv() => request?,
            };
            if self.node.handle_without_session(request) {
                return None;
            }
        }
    }
}

async fn sleep<K: Clock>(clock: &K, until: Uptime) {
    while clock.now().up < until {
        pin!(clock.sleep_until(Wake { wall: None, up: Some(until) })).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_goes_on_is_reported_after_growing_pauses_of_at_most_a_minute() {
        let mut pauses = ReportPauses::default();
        let start = Uptime::ZERO + Duration::from_secs(100);
        let reported: Vec<u64> =
            (0..300).filter(|second| pauses.is_over(start + Duration::from_secs(*second))).collect();
        assert_eq!(reported, [0, 1, 2, 3, 5, 9, 17, 33, 65, 125, 185, 245]);
    }
}
