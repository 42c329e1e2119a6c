//! The node's own member, the watches on the node's own entries, and the leader's watch on the other members.
//!
//! ```text
//!   Unprepared ─ Prepare ─► Absent ─ Enter ─► Present ─ Leave ─► Leaving
//!                             ▲                 │ ▲                 │ │
//!                             └────── Lose ─────┘ └───── Stay ──────┘ │
//!                             └──────────────── Lose ─────────────────┘
//!   Close: whatever is there excludes this node, and Enter recreates it.
//! ```

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use super::futures::{BoxFuture, under_way};
use cronkeeper_core::clock::Uptime;

/// State of the node's own member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnMember {
    /// The folders have not been checked yet.
    Unprepared,
    Absent,
    /// It exists, but its access list excludes this node: it must be recreated.
    Closed,
    Present,
    /// It exists, and its removal by this node has no answer yet.
    Leaving,
}

/// What happens to the node's own member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberStep {
    /// The folders exist.
    Prepare,
    /// It was created, or is there from before.
    Enter,
    /// Its access list excludes this node.
    Close,
    /// It is gone.
    Lose,
    /// Its removal was sent.
    Leave,
    /// The request that may have removed it is done.
    Stay,
}

impl OwnMember {
    /// The state after a step. Total: a step that does not apply changes nothing.
    fn after(self, step: MemberStep) -> Self {
        match (self, step) {
            (Self::Unprepared, MemberStep::Prepare) => Self::Absent,
            (Self::Unprepared, _) => self,
            (_, MemberStep::Enter) => Self::Present,
            // A renewal that was sent before the member was lost may still be answered.
            (_, MemberStep::Close) => Self::Closed,
            (Self::Present | Self::Leaving, MemberStep::Lose) => Self::Absent,
            (Self::Present, MemberStep::Leave) => Self::Leaving,
            (Self::Leaving, MemberStep::Stay) => Self::Present,
            (_, MemberStep::Prepare | MemberStep::Lose | MemberStep::Leave | MemberStep::Stay) => self,
        }
    }
}

/// The node's own member.
pub(super) struct Membership {
    state: OwnMember,
    /// Deadline for waiting until another session gives up the node's name.
    name_wanted_until: Option<Uptime>,
    watches: FuturesUnordered<BoxFuture<()>>,
    /// The node's own entries are watched: it leads or has runs in flight.
    is_watched: bool,
    /// On the leader, resolves when a member has come or gone. One node alone is woken, so this is no herd.
    of_others: Option<BoxFuture<()>>,
    /// On the leader, resolves when a node has changed what it is as a place to run jobs.
    of_places: Option<BoxFuture<()>>,
}

/// A watch that has fired.
pub(super) enum MemberEvent {
    /// One of the node's own entries may be gone.
    Own,
    /// A member has come or gone.
    Others,
    /// A node's record as a place to run jobs has changed.
    Places,
}

impl Membership {
    pub fn new() -> Self {
        Self {
            state: OwnMember::Unprepared,
            name_wanted_until: None,
            watches: FuturesUnordered::new(),
            is_watched: false,
            of_others: None,
            of_places: None,
        }
    }

    /// Takes a step.
    pub fn step(&mut self, step: MemberStep) {
        self.state = self.state.after(step);
    }

    /// True once the folders exist.
    pub fn is_prepared(&self) -> bool {
        self.state != OwnMember::Unprepared
    }

    pub fn is_present(&self) -> bool {
        matches!(self.state, OwnMember::Present | OwnMember::Leaving)
    }

    /// True while it is there and stays: other nodes go by it.
    pub fn is_kept(&self) -> bool {
        self.state == OwnMember::Present
    }

    /// True if it must be recreated.
    pub fn is_closed(&self) -> bool {
        self.state == OwnMember::Closed
    }

    /// How long to wait for another session to give up the node's name: until `until`, unless a wait has begun before.
    pub fn wait_for_name(&mut self, until: Uptime) -> Uptime {
        *self.name_wanted_until.get_or_insert(until)
    }

    /// The name is this node's, or the wait for it begins again.
    pub fn stop_waiting_for_name(&mut self) {
        self.name_wanted_until = None;
    }

    /// True if the node's own entries are watched although they need not be, or the other way round.
    pub fn needs_other_watch(&self, wants_watch: bool) -> bool {
        self.is_watched != wants_watch
    }

    /// The node's own entries are about to be verified, and watched if that is wanted.
    pub fn will_be_watched(&mut self, wants_watch: bool) {
        self.is_watched = wants_watch;
    }

    /// Replaces the watches on the node's own entries.
    pub fn watch(&mut self, watches: impl IntoIterator<Item = BoxFuture<()>>) {
        self.watches = watches.into_iter().collect();
    }

    /// Drops the watches on the node's own entries.
    pub fn unwatch(&mut self) {
        self.watches.clear();
        self.is_watched = false;
    }

    pub fn watches_others(&self) -> bool {
        self.of_others.is_some()
    }

    pub fn watch_others(&mut self, watch: BoxFuture<()>) {
        self.of_others = Some(watch);
    }

    pub fn unwatch_others(&mut self) {
        self.of_others = None;
    }

    pub fn watches_places(&self) -> bool {
        self.of_places.is_some()
    }

    pub fn watch_places(&mut self, watch: BoxFuture<()>) {
        self.of_places = Some(watch);
    }

    pub fn unwatch_places(&mut self) {
        self.of_places = None;
    }

    /// Waits until a watch fires, or forever if there is none. Cancellation safe: the watches are kept.
    pub async fn next(&mut self) -> MemberEvent {
        // Cancellation safe: see above.
        tokio::select! {
            biased;
            Some(()) = self.watches.next() => MemberEvent::Own,
            () = under_way(self.of_others.as_mut()) => MemberEvent::Others,
            () = under_way(self.of_places.as_mut()) => MemberEvent::Places,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::session_loop::table::assert_table;

    const STATES: [OwnMember; 5] =
        [OwnMember::Unprepared, OwnMember::Absent, OwnMember::Closed, OwnMember::Present, OwnMember::Leaving];
    const STEPS: [MemberStep; 6] = [
        MemberStep::Prepare,
        MemberStep::Enter,
        MemberStep::Close,
        MemberStep::Lose,
        MemberStep::Leave,
        MemberStep::Stay,
    ];

    /// A row for each state, a column for each step, in the order above; `-` changes nothing.
    const TABLE: &str = "
        state       Prepare  Enter    Close   Lose    Leave    Stay
        Unprepared  Absent   -        -       -       -        -
        Absent      -        Present  Closed  -       -        -
        Closed      -        Present  -       -       -        -
        Present     -        -        Closed  Absent  Leaving  -
        Leaving     -        Present  Closed  Absent  -        Present
    ";

    #[test]
    fn every_state_takes_the_steps_of_the_table_and_no_other() {
        let after = |row: usize, column: usize| {
            let (state, after) = (STATES[row], STATES[row].after(STEPS[column]));
            (after != state).then(|| format!("{after:?}"))
        };
        assert_table(TABLE, |row| format!("{:?}", STATES[row]), after);
    }

    #[test]
    fn a_member_that_is_being_removed_is_there_but_not_kept() {
        let mut membership = Membership::new();
        membership.step(MemberStep::Prepare);
        membership.step(MemberStep::Enter);
        assert!(membership.is_present() && membership.is_kept());
        membership.step(MemberStep::Leave);
        assert!(membership.is_present() && !membership.is_kept());
        membership.step(MemberStep::Stay);
        assert!(membership.is_kept());
    }
}
