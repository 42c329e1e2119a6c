//! Reads something whenever it may have changed: a watch first, then the read.

use std::time::Duration;

use super::futures::BoxFuture;
use crate::recipes::context::SessionError;
use cronkeeper_core::clock::Uptime;

/// Time before a read that failed is repeated.
const PAUSE: Duration = Duration::from_millis(500);

/// What was read, and a future that resolves when it may have changed.
pub(super) type Heard<T> = (T, BoxFuture<()>);

/// The current phase of the cycle.
enum Phase<T> {
    /// The next read starts at this instant.
    From(Uptime),
    /// A read is in flight.
    Reading(BoxFuture<Result<Heard<T>, SessionError>>),
    /// Waits for a change.
    Waiting(BoxFuture<()>),
}

/// The end of a phase.
pub(super) enum ListenerEvent<T> {
    Read(Result<Heard<T>, SessionError>),
    /// It may have changed.
    Changed,
}

/// Reads again whenever a watch fires. A watch carries no data.
pub(super) struct Listener<T>(Phase<T>);

impl<T> Listener<T> {
    pub fn new() -> Self {
        Self(Phase::From(Uptime::ZERO))
    }

    /// Waits for the end of the current phase, forever before a read. Cancellation safe: the awaited future is kept.
    pub async fn next(&mut self) -> ListenerEvent<T> {
        match &mut self.0 {
            Phase::From(_) => std::future::pending().await,
            Phase::Reading(read) => ListenerEvent::Read(read.await),
            Phase::Waiting(changed) => {
                changed.await;
                ListenerEvent::Changed
            }
        }
    }

    /// When the next read is due.
    pub fn at(&self) -> Option<Uptime> {
        match self.0 {
            Phase::From(at) => Some(at),
            Phase::Reading(_) | Phase::Waiting(_) => None,
        }
    }

    /// True if a read is due.
    pub fn is_due(&self, now: Uptime) -> bool {
        self.at().is_some_and(|at| at <= now)
    }

    /// A read is on its way.
    pub fn reading(&mut self, read: BoxFuture<Result<Heard<T>, SessionError>>) {
        self.0 = Phase::Reading(read);
    }

    /// Reads at this instant, whatever the phase.
    pub fn read_from(&mut self, at: Uptime) {
        self.0 = Phase::From(at);
    }

    /// Reads again unless a read is in flight.
    pub fn read_again(&mut self, now: Uptime) {
        if !matches!(self.0, Phase::Reading(_)) {
            self.read_from(now);
        }
    }

    /// Takes what was read, and waits for a change; or reads again after a pause.
    ///
    /// # Errors
    /// If the read failed.
    pub fn take(&mut self, read: Result<Heard<T>, SessionError>, now: Uptime) -> Result<T, SessionError> {
        match read {
            Ok((found, changed)) => {
                self.0 = Phase::Waiting(changed);
                Ok(found)
            }
            Err(error) => {
                self.read_from(now + PAUSE);
                Err(error)
            }
        }
    }
}
