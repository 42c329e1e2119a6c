//! Answers that take long to compute: off the runtime's thread, one at a time, also per caller, and within a time
//! limit.
//!
//! The socket's runtime thread is also the one that keeps the lease. So who asks for a lot, or often, waits for others
//! who do, and for nothing else.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::RefusedRequest;
use super::admission::Permit;
use cronkeeper_core::clock::{Uptime, system};

/// Longest time that a request waits for its turn.
const TURN: Duration = Duration::from_secs(5);
/// Longest time that is spent on one answer.
pub(super) const LONGEST: Duration = Duration::from_secs(2);

/// The turn to compute an answer.
#[derive(Debug)]
pub(super) struct SlowAnswers(Arc<Semaphore>);

impl Default for SlowAnswers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum NoTurn {
    /// The answers to others take all the time.
    Busy,
    /// The work has panicked.
    Failed,
}

impl SlowAnswers {
    /// Does the work once it is its turn, and before that the turn of the request among those of its `caller`, so that
    /// a caller with many requests is not in the way of others. The work gets the time until when, and has to keep to
    /// that itself: nothing can end it.
    pub async fn compute<T: Send + 'static>(
        &self,
        caller: impl Future<Output = Permit>,
        work: impl FnOnce(Uptime) -> T + Send + 'static,
    ) -> Result<T, NoTurn> {
        let turn = async { (caller.await, Arc::clone(&self.0).acquire_owned().await) };
        let Ok((own, Ok(shared))) = timeout(TURN, turn).await else {
            return Err(NoTurn::Busy);
        };
        // The work keeps the permits, because it continues even if the client does not wait for it.
        let computed = tokio::task::spawn_blocking(move || (work(system::uptime() + LONGEST), own, shared)).await;
        computed.map(|(answer, ..)| answer).map_err(|_| NoTurn::Failed)
    }
}

impl NoTurn {
    pub fn into_response(self) -> Response {
        match self {
            Self::Busy => {
                let error = "other answers are being computed; try again later";
                let mut answer = RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
                answer
            }
            Self::Failed => {
                let error = "internal error; see the daemon's log";
                RefusedRequest::new(StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// The turn of a caller with one request.
    async fn alone() -> Permit {
        None
    }

    /// The test has one thread, so it would wait in vain if that thread did the work.
    #[tokio::test]
    async fn work_does_not_hold_up_the_thread_of_the_runtime() {
        let (go, gate) = mpsc::channel();
        let answers = SlowAnswers::default();
        let work = answers.compute(alone(), move |_| gate.recv_timeout(Duration::from_secs(60)));
        let (computed, sent) = tokio::join!(work, async { go.send(7) });
        assert_eq!((computed.unwrap(), sent), (Ok(7), Ok(())));
    }

    #[tokio::test]
    async fn work_goes_on_alone_even_if_nobody_waits_for_it() {
        let (go, gate) = mpsc::channel();
        let answers = SlowAnswers::default();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let work = answers.compute(alone(), move |_| (begun.send(()), gate.recv_timeout(Duration::from_secs(60))));
        tokio::select! {
            biased;
            _ = work => panic!("it waits"),
            begun = has_begun => begun.unwrap(),
        }
        assert_eq!(answers.0.available_permits(), 0);
        go.send(()).unwrap();
        assert_eq!(answers.compute(alone(), |_| 8).await.unwrap(), 8);
    }
    #[tokio::test]
    async fn a_caller_with_many_requests_is_not_in_the_way_of_another() {
        let (go, gate) = mpsc::channel();
        let (answers, many) = (SlowAnswers::default(), Arc::new(Semaphore::new(1)));
        let turn = async || Arc::clone(&many).acquire_owned().await.ok();
        let computed = std::sync::Mutex::new(Vec::new());
        let done = |name: &'static str| computed.lock().unwrap().push(name);
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let first = async {
            let work = move |_| (begun.send(()), gate.recv_timeout(Duration::from_secs(60)));
            answers.compute(turn(), work).await.map(drop).map(|()| done("first of many"))
        };
        let second = async { answers.compute(turn(), |_| ()).await.map(|()| done("second of many")) };
        let third = async { answers.compute(turn(), |_| ()).await.map(|()| done("third of many")) };
        let other = async {
            has_begun.await.unwrap();
            let (computed, sent) = tokio::join!(answers.compute(alone(), |_| ()), async { go.send(()) });
            sent.unwrap();
            computed.map(|()| done("another's"))
        };
        let all = tokio::join!(first, second, third, other);
        assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok());
        assert_eq!(*computed.lock().unwrap(), ["first of many", "another's", "second of many", "third of many"]);
    }
}
