//! The second line of defence behind the warden: trees that it should have killed.
//!
//! The warden kills what must not outlive the lease, but the warden can hang. If it has not reported in time that a
//! tree is dead, the daemon kills the tree itself, [`lease::kill_timeout`] after the deadline: still before another node may
//! act. This covers trees that another node may start again, and trees that a kill order was sent for. The warden
//! receives the order too, so that it knows the cause of the end if it resumes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Uptime;
use crate::lease;
use crate::process::{Deadline, TreeId};

/// Trees with a deadline, and the instants at which the daemon must kill them.
#[derive(Debug)]
pub(super) struct OverdueKills {
    timeout: Duration,
    /// When the lease ends or has ended.
    lease_ends: Uptime,
    /// Sorted by kind of deadline, then by instant: only the first of each kind matters.
    by_deadline: BTreeSet<(Deadline, TreeId)>,
    by_tree_id: BTreeMap<TreeId, Deadline>,
    /// Trees for which a kill order was sent.
    kill_sent: BTreeSet<TreeId>,
}

impl Default for OverdueKills {
    fn default() -> Self {
        let (by_deadline, by_tree_id, kill_sent) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        Self { timeout: Duration::ZERO, lease_ends: Uptime::ZERO, by_deadline, by_tree_id, kill_sent }
    }
}

impl OverdueKills {
    pub fn under(&mut self, session_timeout: Duration) {
        self.timeout = lease::kill_timeout(session_timeout);
    }

    /// Takes the end of the lease. A revoked lease ends now, unless it had ended before.
    pub fn lease(&mut self, until: Uptime, now: Uptime) {
        self.lease_ends = if until > now { until } else { self.lease_ends.min(now) };
    }

    pub fn watch(&mut self, tree_id: TreeId, deadline: Deadline) {
        self.forget(tree_id);
        if deadline != Deadline::None {
            self.by_deadline.insert((deadline, tree_id));
            self.by_tree_id.insert(tree_id, deadline);
        }
    }

    /// The tree's deadline.
    pub fn deadline(&self, tree_id: TreeId) -> Option<Deadline> {
        self.by_tree_id.get(&tree_id).copied()
    }

    /// True once a kill order was sent.
    pub fn is_kill_sent(&self, tree_id: TreeId) -> bool {
        self.kill_sent.contains(&tree_id)
    }

    /// Records a kill order. An earlier deadline of the tree stays.
    pub fn ordered(&mut self, tree_id: TreeId, now: Uptime) {
        if !self.is_kill_sent(tree_id) {
            let due = self.deadline(tree_id).map_or(now, |deadline| deadline.due(self.lease_ends).min(now));
            self.watch(tree_id, Deadline::At(due));
            self.kill_sent.insert(tree_id);
        }
    }

    pub fn forget(&mut self, tree_id: TreeId) {
        self.kill_sent.remove(&tree_id);
        if let Some(deadline) = self.by_tree_id.remove(&tree_id) {
            self.by_deadline.remove(&(deadline, tree_id));
        }
    }

    /// When the next tree is overdue.
    pub fn next_at(&self) -> Option<Uptime> {
        self.first().map(|(at, _)| at)
    }

    fn first(&self) -> Option<(Uptime, TreeId)> {
        let kinds = [
            Deadline::Lease,
            Deadline::LeaseAnd(Uptime::ZERO),
            Deadline::LeaseOr(Uptime::ZERO),
            Deadline::At(Uptime::ZERO),
        ];
        let firsts = kinds.into_iter().filter_map(|kind| self.by_deadline.range((kind, TreeId(0))..).next());
        firsts.map(|&(deadline, tree_id)| (deadline.due(self.lease_ends) + self.timeout, tree_id)).min()
    }

    /// Takes the next overdue tree.
    pub fn pop_due(&mut self, now: Uptime) -> Option<TreeId> {
        let (_, tree_id) = self.first().filter(|&(at, _)| at <= now)?;
        self.forget(tree_id);
        Some(tree_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + Duration::from_secs(seconds)
    }

    /// The instant at which a deadline at `seconds` is overdue.
    fn late(seconds: u64) -> Uptime {
        at(seconds) + lease::kill_timeout(T)
    }

    fn overdue() -> OverdueKills {
        let mut overdue = OverdueKills::default();
        overdue.under(T);
        overdue.lease(at(100), at(90));
        overdue
    }

    fn due(overdue: &mut OverdueKills, now: Uptime) -> Vec<u64> {
        std::iter::from_fn(|| overdue.pop_due(now)).map(|tree_id| tree_id.0).collect()
    }

    #[test]
    fn each_tree_is_overdue_by_its_own_deadline() {
        let mut overdue = overdue();
        let deadlines =
            [Deadline::LeaseAnd(at(120)), Deadline::Lease, Deadline::None, Deadline::LeaseAnd(at(95)), Deadline::Lease];
        for (tree_id, deadline) in (0..).zip(deadlines) {
            overdue.watch(TreeId(tree_id), deadline);
        }
        overdue.ordered(TreeId(4), at(91));
        overdue.ordered(TreeId(4), at(95));
        assert_eq!((overdue.next_at(), due(&mut overdue, at(91))), (Some(late(91)), vec![]));
        assert_eq!(due(&mut overdue, at(92)), [4]);
        assert_eq!((overdue.next_at(), due(&mut overdue, at(101))), (Some(late(100)), vec![1, 3]));
        assert_eq!((overdue.next_at(), due(&mut overdue, at(121))), (Some(late(120)), vec![0]));
        assert_eq!(overdue.next_at(), None);
    }

    #[test]
    fn the_lease_moves_it_and_a_lease_taken_away_ends_now() {
        let mut overdue = overdue();
        overdue.watch(TreeId(1), Deadline::Lease);
        overdue.lease(at(110), at(99));
        assert_eq!(overdue.next_at(), Some(late(110)));
        overdue.lease(Uptime::ZERO, at(104));
        assert_eq!(overdue.next_at(), Some(late(104)));
    }

    #[test]
    fn what_is_overdue_is_not_put_off_by_news_that_come_late() {
        let mut overdue = overdue();
        overdue.watch(TreeId(1), Deadline::Lease);
        overdue.lease(Uptime::ZERO, at(104));
        assert_eq!(overdue.next_at(), Some(late(100)));
        overdue.ordered(TreeId(1), at(105));
        assert_eq!(overdue.next_at(), Some(late(100)));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut overdue = overdue();
        overdue.watch(TreeId(1), Deadline::Lease);
        overdue.forget(TreeId(1));
        assert_eq!((overdue.next_at(), overdue.by_deadline.len()), (None, 0));
    }
}
