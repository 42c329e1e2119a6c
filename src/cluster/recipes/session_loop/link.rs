//! The connection of a session, and what was reported about it.

use super::ending::SessionEnd;
use crate::tree::{Session, State};

/// The connection to the servers.
pub(super) struct Link<C> {
    client: C,
    /// The last state that the loop has handled.
    state: State,
    reported: Reported,
    /// Set once the loop must end, with the reason.
    ended: Option<SessionEnd>,
}

/// The last thing reported to the daemon about the session.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    /// The session exists and has a member.
    Session,
    /// The connection is lost, for this reason.
    Suspended(Option<String>),
}

impl<C: Session> Link<C> {
    pub fn new(client: C) -> Self {
        Self { state: client.state(), client, reported: Reported::Nothing, ended: None }
    }

    pub fn client(&self) -> &C {
        &self.client
    }

    /// The next state of the connection. Cancellation safe: the states are coalesced, none is lost.
    pub async fn changed(&mut self) -> State {
        self.client.state_changed().await
    }

    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Records that the connection is there again.
    pub fn connect(&mut self) {
        self.state = State::Connected;
    }

    /// Records that the connection is lost, for this reason. Returns true if the daemon must be notified.
    pub fn suspend(&mut self, failure: &Option<String>) -> bool {
        self.state = State::Disconnected;
        let is_news = match &self.reported {
            Reported::Nothing => false,
            Reported::Session => true,
            Reported::Suspended(known) => failure.is_some() && known != failure,
        };
        if is_news {
            self.reported = Reported::Suspended(failure.clone());
        }
        is_news
    }

    /// The session has a member. A suspension that was reported stays so until it is resumed.
    pub fn on_member(&mut self) {
        if self.reported == Reported::Nothing {
            self.reported = Reported::Session;
        }
    }

    /// Records that the node's own entries are verified. Returns true if the daemon must be notified.
    pub fn resume(&mut self) -> bool {
        let is_news = self.is_suspended();
        if is_news {
            self.reported = Reported::Session;
        }
        is_news
    }

    /// True while the daemon believes that the connection is lost.
    pub fn is_suspended(&self) -> bool {
        matches!(self.reported, Reported::Suspended(_))
    }

    /// True once the daemon knows of the session.
    pub fn is_reported(&self) -> bool {
        self.reported != Reported::Nothing
    }

    /// Ends the loop, for this reason if there are several.
    pub fn end(&mut self, ended: SessionEnd) {
        self.ended = Some(ended);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The session is over: nothing is sent any more.
    pub fn close(&mut self) {
        self.state = State::Expired;
    }

    pub fn take_end(&mut self) -> Option<SessionEnd> {
        self.ended.take()
    }
}
