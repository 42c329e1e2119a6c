//! The connection of a session, and what the daemon knows of it.

use super::SessionEnd;

/// The link to the servers.
pub(super) struct Link<C> {
    pub client: C,
    pub is_connected: bool,
    pub reported: Reported,
    /// The session is to end so.
    pub ended: Option<SessionEnd>,
}

/// What the daemon knows of the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Nothing,
    /// The session, with a member.
    Session,
    /// That its connection is lost.
    Suspended,
}

impl<C> Link<C> {
    /// The connection is lost. True where the daemon is to be told.
    pub fn suspend(&mut self) -> bool {
        self.is_connected = false;
        let is_news = self.reported == Reported::Session;
        if is_news {
            self.reported = Reported::Suspended;
        }
        is_news
    }

    /// The own entries are verified. True where the daemon is to be told.
    pub fn resume(&mut self) -> bool {
        let is_news = self.reported == Reported::Suspended;
        if is_news {
            self.reported = Reported::Session;
        }
        is_news
    }
}
