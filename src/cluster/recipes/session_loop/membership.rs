//! The node's own member, and the watches on the node's own entries.

use futures_util::stream::FuturesUnordered;

use super::BoxFuture;
use cronkeeper_core::clock::Uptime;

/// State of the node's own member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnMemberState {
    /// The folders have not been checked yet.
    Unprepared,
    Absent,
    /// It exists, but its access list excludes this node: it must be recreated.
    Closed,
    Present,
}

/// The node's own member.
pub(super) struct Membership {
    pub state: OwnMemberState,
    /// Deadline for waiting until another session gives up the node's name.
    pub name_wanted_until: Option<Uptime>,
    /// The node's own entries may be gone: they are read before anything else.
    pub must_verify: bool,
    /// The member's data is older than what the daemon wants published.
    pub must_publish: bool,
    pub watches: FuturesUnordered<BoxFuture<()>>,
    /// The node's own entries are watched: it leads or has runs in flight.
    pub is_watched: bool,
    /// On the leader, resolves when a member has come or gone. One node alone is woken, so this is no herd.
    pub of_others: Option<BoxFuture<()>>,
    /// The folder of the members is not writable for this node.
    pub is_parent_closed: bool,
}

impl Membership {
    pub fn new() -> Self {
        Self {
            state: OwnMemberState::Unprepared,
            name_wanted_until: None,
            must_verify: false,
            must_publish: false,
            watches: FuturesUnordered::new(),
            is_watched: false,
            of_others: None,
            is_parent_closed: false,
        }
    }

    pub fn is_present(&self) -> bool {
        self.state == OwnMemberState::Present
    }

    /// Records that the folders exist.
    pub fn prepared(&mut self) {
        if self.state == OwnMemberState::Unprepared {
            self.state = OwnMemberState::Absent;
        }
    }

    /// Records that the member is gone.
    pub fn lose(&mut self) {
        if self.state == OwnMemberState::Present {
            self.state = OwnMemberState::Absent;
        }
    }
}
