//! A session besides the node's own: opened on demand, closed when idle.
//!
//! Requests from people, or over the network, may be many and slow. They must neither delay the answers that renew the
//! lease nor count as such answers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{ConnectionSettings, Connector, Session};
use crate::zookeeper::client::{Client as _, Connect as _, ConnectError, Lend, State};

/// Longest time to open a session, or to wait for its connection: shorter than any caller's own limit.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Pause after a failure. Calls during the pause return the same error.
const PAUSE: Duration = Duration::from_secs(1);
/// An unused session is closed after this time. Calls that wait on it for a run's end wait for less.
const IDLE: Duration = Duration::from_secs(15);

/// Lends one session to all callers.
pub struct Aside(Arc<Kept>);

struct Kept {
    connector: Connector,
    held: Mutex<Held>,
}

struct Held {
    session: Option<Session>,
    /// When it was last requested.
    used: Instant,
    /// The last failure, and when it happened.
    failed: Option<(Instant, ConnectError)>,
}

impl Aside {
    /// Prepares to connect to these servers; opens nothing yet.
    ///
    /// # Errors
    /// As for [`Connector::new`].
    pub fn new(settings: ConnectionSettings) -> Result<Self, String> {
        let held = Mutex::new(Held { session: None, used: Instant::now(), failed: None });
        Ok(Self(Arc::new(Kept { connector: Connector::closing(settings)?, held })))
    }
}

impl Lend for Aside {
    type Client = Session;

    /// The first caller opens the session; the others wait for it. If it has lost its connection, waits a moment for
    /// another: a server that restarts, or an election among the servers, must not fail a request.
    async fn session(&self) -> Result<Session, ConnectError> {
        let until = Instant::now() + TIMEOUT;
        loop {
            let mut session = self.opened(until).await?;
            let regained = async {
                while session.state() == State::Disconnected {
                    session.state_changed().await;
                }
            };
            let is_late = timeout_at(until, regained).await.is_err();
            // One that has ended meanwhile is replaced; one that is still disconnected is of no use to the caller.
            if is_late || session.state() == State::Connected {
                return Ok(session);
            }
        }
    }
}

impl Aside {
    async fn opened(&self, until: Instant) -> Result<Session, ConnectError> {
        let mut held = self.0.held.lock().await;
        held.used = Instant::now();
        held.session.take_if(|session| matches!(session.state(), State::Expired | State::AuthFailed));
        if let Some(session) = &held.session {
            return Ok(session.clone());
        }
        if let Some((at, error)) = &held.failed
            && at.elapsed() < PAUSE
        {
            return Err(error.clone());
        }
        let late = || ConnectError::Unreachable(format!("no session within {} s", TIMEOUT.as_secs()));
        match timeout_at(until, self.0.connector.connect()).await.unwrap_or_else(|_| Err(late())) {
            Ok(session) => {
                held.failed = None;
                held.session = Some(session.clone());
                tokio::spawn(close_when_idle(session.owner_id(), Arc::downgrade(&self.0)));
                Ok(session)
            }
            Err(error) => {
                held.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

/// Closes the session when it is idle. Ends early if that session was replaced or its lender dropped.
async fn close_when_idle(owner: i64, kept: Weak<Kept>) {
    let mut until = Instant::now() + IDLE;
    loop {
        sleep_until(until).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut held = kept.held.lock().await;
        if held.session.as_ref().is_none_or(|session| session.owner_id() != owner) {
            return;
        }
        until = held.used + IDLE;
        if until <= Instant::now() {
            held.session = None;
            return;
        }
    }
}
