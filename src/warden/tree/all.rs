//! All trees by tree id, with indexes of what to do next.
//!
//! Because of the indexes, a turn of the warden costs in proportion to what happens in it, not to the number of trees.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::process::{Deadline, EndedBy, Exit, TreeId};

/// All fields of a tree that the indexes depend on are changed only by methods of this type.
#[derive(Debug, Default)]
pub(in crate::warden) struct Trees {
    all: BTreeMap<TreeId, Tree>,
    /// The pids of main processes that are not reaped yet.
    mains: BTreeSet<i32>,
    /// Live trees that are not being killed. For each kind of deadline only the earliest entry matters.
    by_deadline: BTreeSet<(Deadline, TreeId)>,
    /// Live trees that are not being killed, by the time when the grace period of a stop ends, or else the time limit.
    by_limit: BTreeSet<(Uptime, TreeId)>,
    /// Trees that are being killed and may still have processes.
    killing: BTreeSet<TreeId>,
    /// Trees whose main process has ended and that may still have processes.
    exited: BTreeSet<TreeId>,
    /// Trees without any process whose end was not reported to the daemon yet.
    cleared: BTreeSet<TreeId>,
}

impl Trees {
    pub fn insert(&mut self, tree_id: TreeId, tree: Tree) {
        self.mains.insert(tree.pid());
        self.all.insert(tree_id, tree);
        self.add_to_indexes(tree_id);
    }

    pub fn remove(&mut self, tree_id: TreeId) -> Option<Tree> {
        self.remove_from_indexes(tree_id);
        let tree = self.all.remove(&tree_id)?;
        self.mains.remove(&tree.pid());
        self.exited.remove(&tree_id);
        self.cleared.remove(&tree_id);
        Some(tree)
    }

    pub fn get(&self, tree_id: TreeId) -> Option<&Tree> {
        self.all.get(&tree_id)
    }

    pub fn get_mut(&mut self, tree_id: TreeId) -> Option<&mut Tree> {
        self.all.get_mut(&tree_id)
    }

    /// The tree, if its main process has not ended.
    pub fn live(&mut self, tree_id: TreeId) -> Option<&mut Tree> {
        self.all.get_mut(&tree_id).filter(|tree| tree.is_live())
    }

    pub fn contains(&self, tree_id: TreeId) -> bool {
        self.all.contains_key(&tree_id)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn all(&self) -> &BTreeMap<TreeId, Tree> {
        &self.all
    }

    /// True if `pid` is a main process that is not reaped yet.
    pub fn has_main(&self, pid: i32) -> bool {
        self.mains.contains(&pid)
    }

    pub fn set_deadline(&mut self, tree_id: TreeId, deadline: Deadline) {
        self.change(tree_id, |tree| tree.deadline = deadline);
    }

    /// Records that the tree is asked to end and is killed at `at`, or earlier if an earlier stop said so.
    pub fn stop(&mut self, tree_id: TreeId, at: Uptime) {
        self.change(tree_id, |tree| {
            tree.got_sigterm |= !tree.is_killing;
            tree.kill_at = Some(tree.kill_at.map_or(at, |earlier| earlier.min(at)));
        });
    }

    /// Records when the program began: the time limit counts from then.
    pub fn began(&mut self, tree_id: TreeId, at: Uptime) {
        self.change(tree_id, |tree| tree.limit_at = tree.time_limit.map(|limit| at + limit));
    }

    /// Marks the tree for killing with all its processes.
    pub fn set_killing(&mut self, tree_id: TreeId) {
        self.change(tree_id, |tree| tree.is_killing = true);
    }

    pub fn set_all_killing(&mut self) {
        for tree_id in self.all.keys().copied().collect::<Vec<_>>() {
            self.set_killing(tree_id);
        }
    }

    pub fn exited(&mut self, tree_id: TreeId, exit: Exit, at: Uptime) {
        self.change(tree_id, |tree| tree.exit = Some((exit, at)));
        if self.all.contains_key(&tree_id) {
            self.exited.insert(tree_id);
        }
    }

    /// Records that no process of the tree is left and that its main process is reaped.
    pub fn clear(&mut self, tree_id: TreeId) {
        self.change(tree_id, |tree| tree.is_cleared = true);
        if let Some(tree) = self.all.get(&tree_id) {
            self.mains.remove(&tree.pid());
            self.exited.remove(&tree_id);
            self.cleared.insert(tree_id);
        }
    }

    /// The next tree to kill, when, and why, if the lease ends at `lease_until`.
    pub fn next_due(&self, lease_until: Uptime) -> Option<(Uptime, TreeId, EndedBy)> {
        let kinds = [
            Deadline::Lease,
            Deadline::LeaseAnd(Uptime::ZERO),
            Deadline::LeaseOr(Uptime::ZERO),
            Deadline::At(Uptime::ZERO),
        ];
        let firsts = kinds.into_iter().filter_map(|kind| self.by_deadline.range((kind, TreeId(0))..).next());
        let firsts = firsts.map(|&(deadline, tree_id)| (deadline.due(lease_until), tree_id, EndedBy::Deadline));
        // If this is the end of a grace period, the order to stop counts, because it came first.
        let limit = self.by_limit.first().map(|&(at, tree_id)| (at, tree_id, EndedBy::TimeLimit));
        firsts.chain(limit).min_by_key(|&(at, tree_id, _)| (at, tree_id))
    }

    /// Trees that are being killed and may still have processes.
    pub fn killing(&self) -> impl Iterator<Item = (TreeId, &Tree)> {
        self.killing.iter().filter_map(|tree_id| Some((*tree_id, self.all.get(tree_id)?)))
    }

    /// Trees whose main process has ended and that may still have processes.
    pub fn ended(&self) -> Vec<TreeId> {
        self.exited.iter().copied().collect()
    }

    /// Trees without any process whose end was not reported yet.
    pub fn cleared(&self) -> Vec<TreeId> {
        self.cleared.iter().copied().collect()
    }

    /// Trees whose main process is alive, as far as is known.
    pub fn living(&self) -> Vec<TreeId> {
        self.all.iter().filter(|(_, tree)| tree.is_live()).map(|(tree_id, _)| *tree_id).collect()
    }

    fn change(&mut self, tree_id: TreeId, change: impl FnOnce(&mut Tree)) {
        self.remove_from_indexes(tree_id);
        if let Some(tree) = self.all.get_mut(&tree_id) {
            change(tree);
            self.add_to_indexes(tree_id);
        }
    }

    fn add_to_indexes(&mut self, tree_id: TreeId) {
        let Some(tree) = self.all.get(&tree_id) else { return };
        if tree.is_killing && !tree.is_cleared {
            self.killing.insert(tree_id);
        }
        if tree.is_killing || !tree.is_live() {
            return;
        }
        if tree.deadline != Deadline::None {
            self.by_deadline.insert((tree.deadline, tree_id));
        }
        self.by_limit.extend(tree.limit().map(|at| (at, tree_id)));
    }

    fn remove_from_indexes(&mut self, tree_id: TreeId) {
        let Some(tree) = self.all.get(&tree_id) else { return };
        self.killing.remove(&tree_id);
        self.by_deadline.remove(&(tree.deadline, tree_id));
        if let Some(at) = tree.limit() {
            self.by_limit.remove(&(at, tree_id));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::tree;
    use super::*;

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + Duration::from_secs(seconds)
    }

    fn of(deadlines: &[Deadline]) -> Trees {
        let mut trees = Trees::default();
        for (tree_id, deadline) in (0..).zip(deadlines) {
            trees.insert(TreeId(tree_id), tree(10 + tree_id as i32, "a", 5));
            trees.set_deadline(TreeId(tree_id), *deadline);
        }
        trees
    }

    fn due(trees: &Trees, lease_until: Uptime) -> Option<(Uptime, TreeId)> {
        trees.next_due(lease_until).map(|(at, tree_id, _)| (at, tree_id))
    }

    #[test]
    fn the_next_tree_to_kill_is_the_earliest_of_all_kinds() {
        let mut trees =
            of(&[Deadline::LeaseAnd(at(50)), Deadline::Lease, Deadline::At(at(30)), Deadline::None, Deadline::None]);
        assert_eq!(due(&trees, at(20)), Some((at(20), TreeId(1))));
        assert_eq!(due(&trees, at(40)), Some((at(30), TreeId(2))));
        trees.stop(TreeId(3), at(10));
        trees.stop(TreeId(3), at(15));
        assert_eq!(due(&trees, at(40)), Some((at(10), TreeId(3))));
        for tree_id in [3, 2, 1] {
            trees.set_killing(TreeId(tree_id));
        }
        assert_eq!(due(&trees, at(40)), Some((at(50), TreeId(0))), "a tree that is being killed is not due again");
        trees.set_deadline(TreeId(0), Deadline::None);
        assert_eq!(due(&trees, at(40)), None);
        assert_eq!(trees.killing().map(|(tree_id, _)| tree_id.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn a_time_limit_counts_from_the_begin_and_not_once_the_tree_is_asked_to_end() {
        let limit = Some(Duration::from_secs(20));
        let mut trees = Trees::default();
        for (tree_id, forked_at) in [(0, 5), (1, 6)] {
            let limit_at = Some(at(forked_at + 30));
            trees.insert(
                TreeId(tree_id),
                Tree { time_limit: limit, limit_at, ..tree(10 + tree_id as i32, "a", forked_at) },
            );
        }
        assert_eq!(trees.next_due(at(90)), Some((at(35), TreeId(0), EndedBy::TimeLimit)), "it has not begun");
        trees.began(TreeId(1), at(8));
        assert_eq!(trees.next_due(at(90)), Some((at(28), TreeId(1), EndedBy::TimeLimit)));
        trees.stop(TreeId(1), at(70));
        trees.set_killing(TreeId(0));
        assert_eq!(due(&trees, at(90)), Some((at(70), TreeId(1))));
    }

    #[test]
    fn a_tree_with_an_instant_and_the_lease_is_due_at_the_earlier_of_the_two() {
        let trees = of(&[Deadline::LeaseOr(at(50)), Deadline::LeaseOr(at(30)), Deadline::LeaseAnd(at(40))]);
        assert_eq!(due(&trees, at(20)).map(|(at, _)| at), Some(at(20)));
        assert_eq!(due(&trees, at(90)), Some((at(30), TreeId(1))));
    }

    #[test]
    fn an_ended_tree_is_not_due_and_leaves_all_indexes() {
        let mut trees = of(&[Deadline::Lease, Deadline::Lease]);
        trees.exited(TreeId(0), Exit::Code(0), at(1));
        assert_eq!(due(&trees, at(20)), Some((at(20), TreeId(1))));
        trees.set_killing(TreeId(0));
        assert_eq!((trees.killing().count(), trees.ended()), (1, vec![TreeId(0)]));
        trees.clear(TreeId(0));
        assert_eq!((trees.killing().count(), trees.cleared()), (0, vec![TreeId(0)]));
        assert!(!trees.has_main(10) && trees.has_main(11));
        trees.remove(TreeId(0));
        trees.remove(TreeId(1));
        assert!(trees.is_empty() && due(&trees, at(20)).is_none() && trees.cleared().is_empty());
        assert!(trees.mains.is_empty() && trees.exited.is_empty());
    }

    #[test]
    fn the_exit_of_a_tree_that_was_discarded_leaves_nothing() {
        let mut trees = of(&[Deadline::Lease]);
        trees.remove(TreeId(0));
        trees.exited(TreeId(0), Exit::Code(127), at(1));
        assert!(trees.ended().is_empty());
    }

    #[test]
    fn a_stop_after_a_kill_sends_no_sigterm() {
        let mut trees = of(&[Deadline::None, Deadline::None]);
        trees.set_killing(TreeId(0));
        for tree_id in [0, 1] {
            trees.stop(TreeId(tree_id), at(5));
        }
        assert_eq!([0, 1].map(|tree_id| trees.get(TreeId(tree_id)).unwrap().got_sigterm), [false, true]);
    }
}
