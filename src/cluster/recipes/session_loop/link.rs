//! The connection of a session, and what was reported about it.

use super::SessionEnd;

/// The connection to the servers.
pub(super) struct Link<C> {
    pub client: C,
    pub is_connected: bool,
    pub reported: ReportedLink,
    /// Set once the loop must end, with the reason.
    pub ended: Option<SessionEnd>,
}

/// The last thing reported to the daemon about the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportedLink {
    Nothing,
    /// The session exists and has a member.
    Session,
    /// The connection is lost.
    Suspended,
}

impl<C> Link<C> {
    /// The session has a member. A suspension that was reported stays so until it is resumed.
    pub fn on_member(&mut self) {
        if self.reported == ReportedLink::Nothing {
            self.reported = ReportedLink::Session;
        }
    }

    /// Records that the connection is lost. Returns true if the daemon must be notified.
    pub fn suspend(&mut self) -> bool {
        self.is_connected = false;
        let is_news = self.reported == ReportedLink::Session;
        if is_news {
            self.reported = ReportedLink::Suspended;
        }
        is_news
    }

    /// Records that the node's own entries are verified. Returns true if the daemon must be notified.
    pub fn resume(&mut self) -> bool {
        let is_news = self.reported == ReportedLink::Suspended;
        if is_news {
            self.reported = ReportedLink::Session;
        }
        is_news
    }
}
