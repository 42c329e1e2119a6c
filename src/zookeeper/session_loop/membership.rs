//! The node's own member and its watches on its own entries.

use futures_util::stream::FuturesUnordered;

use super::Pending;
use crate::clock::Uptime;

/// Whether the own member exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    /// It is not known yet whether the paths exist that it needs.
    Unprepared,
    Absent,
    /// It exists, but its access list excludes this node: it is to be recreated.
    Closed,
    Present,
}

/// The own member.
pub(super) struct Membership {
    pub state: MemberState,
    /// Until when a name that another session holds is waited for.
    pub name_wanted_until: Option<Uptime>,
    /// The own entries may have gone: they are read before anything else.
    pub must_verify: bool,
    /// The member does not say what the daemon wants the others to know.
    pub must_publish: bool,
    pub watches: FuturesUnordered<Pending<()>>,
    /// The own entries are watched, as for a node that leads or has runs.
    pub is_watched: bool,
    /// The parent of the members cannot be written to.
    pub is_parent_closed: bool,
}

impl Membership {
    pub fn new() -> Self {
        Self {
            state: MemberState::Unprepared,
            name_wanted_until: None,
            must_verify: false,
            must_publish: false,
            watches: FuturesUnordered::new(),
            is_watched: false,
            is_parent_closed: false,
        }
    }

    pub fn is_present(&self) -> bool {
        self.state == MemberState::Present
    }

    /// The paths exist.
    pub fn prepared(&mut self) {
        if self.state == MemberState::Unprepared {
            self.state = MemberState::Absent;
        }
    }

    /// The member is gone.
    pub fn lose(&mut self) {
        if self.state == MemberState::Present {
            self.state = MemberState::Absent;
        }
    }
}
