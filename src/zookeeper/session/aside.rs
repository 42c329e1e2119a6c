//! A session aside from the node's own: opened when somebody needs one, closed when nobody did for a while.
//!
//! What is asked for by people, or over the network, may be much and slow. It must neither delay the answers that renew the
//! lease nor pass for one of them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Connector, Session, Settings};
use crate::zookeeper::client::{Client as _, Connect as _, ConnectError, Lend, State};

/// How long a new one may take: less than whoever asks is ready to wait.
const TIMEOUT: Duration = Duration::from_secs(2);
/// For so long nobody tries again after that failed.
const AGAIN: Duration = Duration::from_secs(1);
/// Unused for so long, it is closed. What waits on it for a run's end waits less.
const IDLE: Duration = Duration::from_secs(15);

/// Lends one session to all who ask.
pub struct Aside(Arc<Kept>);

struct Kept {
    connector: Connector,
    held: Mutex<Held>,
}

struct Held {
    session: Option<Session>,
    /// When somebody asked for it last.
    used: Instant,
    /// Why there is none, and since when.
    failed: Option<(Instant, ConnectError)>,
}

impl Aside {
    /// To these servers. Nothing is opened yet.
    ///
    /// # Errors
    /// When a certificate or key cannot be read, in words.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let held = Mutex::new(Held { session: None, used: Instant::now(), failed: None });
        Ok(Self(Arc::new(Kept { connector: Connector::closing(settings)?, held })))
    }
}

impl Lend for Aside {
    type Client = Session;

    /// One opens it, the others wait for that.
    async fn session(&self) -> Result<Session, ConnectError> {
        let mut held = self.0.held.lock().await;
        held.used = Instant::now();
        held.session.take_if(|session| matches!(session.state(), State::Expired | State::AuthFailed));
        if let Some(session) = &held.session {
            return Ok(session.clone());
        }
        if let Some((at, error)) = &held.failed
            && at.elapsed() < AGAIN
        {
            return Err(error.clone());
        }
        let late = || ConnectError::Unreachable(format!("no session within {} s", TIMEOUT.as_secs()));
        match timeout(TIMEOUT, self.0.connector.connect()).await.unwrap_or_else(|_| Err(late())) {
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

/// Ends with the session that it was begun for, or with whoever lends it.
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
