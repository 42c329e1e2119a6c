//! All trees by tree id, and in order what is to be done next about each: so that a turn of the warden costs what happens in it, and
//! not what lives.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use crate::clock::Uptime;
use crate::warden::wire::{Deadline, Exit, TreeId};

/// See the module. What the orders below depend on is changed only here.
#[derive(Debug, Default)]
pub(in crate::warden) struct Trees {
    all: BTreeMap<TreeId, Tree>,
    /// The main processes that are not reaped.
    mains: BTreeSet<i32>,
    /// Of trees that live and are not being killed: of each kind of deadline the earliest is what counts.
    by_deadline: BTreeSet<(Deadline, TreeId)>,
    /// Of trees that live and are not being killed: when the grace of a stop ends.
    by_grace: BTreeSet<(Uptime, TreeId)>,
    /// All of it is to die, and something may be left.
    killing: BTreeSet<TreeId>,
    /// The main process has ended, and something may be left.
    exited: BTreeSet<TreeId>,
    /// Nothing is left, and the daemon was not told yet.
    cleared: BTreeSet<TreeId>,
}

impl Trees {
    pub fn insert(&mut self, tree_id: TreeId, tree: Tree) {
        self.mains.insert(tree.pid());
        self.all.insert(tree_id, tree);
        self.order(tree_id);
    }

    pub fn remove(&mut self, tree_id: TreeId) -> Option<Tree> {
        self.disorder(tree_id);
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

    /// One whose main process has not ended.
    pub fn live(&mut self, tree_id: TreeId) -> Option<&mut Tree> {
        self.all.get_mut(&tree_id).filter(|tree| tree.is_live())
    }

    pub fn contains(&self, tree_id: TreeId) -> bool {
        self.all.contains_key(&tree_id)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them by tree id.
    pub fn all(&self) -> &BTreeMap<TreeId, Tree> {
        &self.all
    }

    /// True for a main process that is not reaped.
    pub fn has_main(&self, pid: i32) -> bool {
        self.mains.contains(&pid)
    }

    pub fn set_deadline(&mut self, tree_id: TreeId, deadline: Deadline) {
        self.change(tree_id, |tree| tree.deadline = deadline);
    }

    /// It was asked to end, and is killed at `at`. An earlier instant stands.
    pub fn stop(&mut self, tree_id: TreeId, at: Uptime) {
        self.change(tree_id, |tree| {
            tree.was_asked |= !tree.is_killing;
            tree.kill_at = Some(tree.kill_at.map_or(at, |earlier| earlier.min(at)));
        });
    }

    /// All of it is to die.
    pub fn condemn(&mut self, tree_id: TreeId) {
        self.change(tree_id, |tree| tree.is_killing = true);
    }

    pub fn condemn_all(&mut self) {
        for tree_id in self.all.keys().copied().collect::<Vec<_>>() {
            self.condemn(tree_id);
        }
    }

    pub fn exited(&mut self, tree_id: TreeId, exit: Exit, at: Uptime) {
        self.change(tree_id, |tree| tree.exit = Some((exit, at)));
        self.exited.insert(tree_id);
    }

    /// Nothing of it is left, and its main process is reaped.
    pub fn clear(&mut self, tree_id: TreeId) {
        self.change(tree_id, |tree| tree.is_cleared = true);
        if let Some(tree) = self.all.get(&tree_id) {
            self.mains.remove(&tree.pid());
            self.exited.remove(&tree_id);
            self.cleared.insert(tree_id);
        }
    }

    /// The next that is to be killed, and when, if the lease ends at `lease_until`.
    pub fn next_due(&self, lease_until: Uptime) -> Option<(Uptime, TreeId)> {
        let kinds = [Deadline::Lease, Deadline::LeaseAnd(Uptime::ZERO), Deadline::At(Uptime::ZERO)];
        let firsts = kinds.into_iter().filter_map(|kind| self.by_deadline.range((kind, TreeId(0))..).next());
        let firsts = firsts.map(|&(deadline, tree_id)| (deadline.due(lease_until), tree_id));
        firsts.chain(self.by_grace.first().copied()).min()
    }

    /// Those that are to die, and of which something may be left.
    pub fn killing(&self) -> impl Iterator<Item = (TreeId, &Tree)> {
        self.killing.iter().filter_map(|tree_id| Some((*tree_id, self.all.get(tree_id)?)))
    }

    /// Those whose main process has ended, and of which something may be left.
    pub fn ended(&self) -> Vec<TreeId> {
        self.exited.iter().copied().collect()
    }

    /// The first that is cleared.
    pub fn first_cleared(&self) -> Option<TreeId> {
        self.cleared.first().copied()
    }

    /// Those whose main process lives, as far as is known.
    pub fn living(&self) -> Vec<TreeId> {
        self.all.iter().filter(|(_, tree)| tree.is_live()).map(|(tree_id, _)| *tree_id).collect()
    }

    fn change(&mut self, tree_id: TreeId, change: impl FnOnce(&mut Tree)) {
        self.disorder(tree_id);
        if let Some(tree) = self.all.get_mut(&tree_id) {
            change(tree);
            self.order(tree_id);
        }
    }

    fn order(&mut self, tree_id: TreeId) {
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
        self.by_grace.extend(tree.kill_at.map(|at| (at, tree_id)));
    }

    fn disorder(&mut self, tree_id: TreeId) {
        let Some(tree) = self.all.get(&tree_id) else { return };
        self.killing.remove(&tree_id);
        self.by_deadline.remove(&(tree.deadline, tree_id));
        if let Some(at) = tree.kill_at {
            self.by_grace.remove(&(at, tree_id));
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

    #[test]
    fn the_next_to_be_killed_is_the_earliest_of_all_kinds() {
        let mut trees =
            of(&[Deadline::LeaseAnd(at(50)), Deadline::Lease, Deadline::At(at(30)), Deadline::None, Deadline::None]);
        assert_eq!(trees.next_due(at(20)), Some((at(20), TreeId(1))));
        assert_eq!(trees.next_due(at(40)), Some((at(30), TreeId(2))));
        trees.stop(TreeId(3), at(10));
        trees.stop(TreeId(3), at(15));
        assert_eq!(trees.next_due(at(40)), Some((at(10), TreeId(3))));
        for tree_id in [3, 2, 1] {
            trees.condemn(TreeId(tree_id));
        }
        assert_eq!(trees.next_due(at(40)), Some((at(50), TreeId(0))), "what is being killed is not due again");
        trees.set_deadline(TreeId(0), Deadline::None);
        assert_eq!(trees.next_due(at(40)), None);
        assert_eq!(trees.killing().map(|(tree_id, _)| tree_id.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn what_has_ended_is_not_due_and_is_forgotten_whole() {
        let mut trees = of(&[Deadline::Lease, Deadline::Lease]);
        trees.exited(TreeId(0), Exit::Code(0), at(1));
        assert_eq!(trees.next_due(at(20)), Some((at(20), TreeId(1))));
        trees.condemn(TreeId(0));
        assert_eq!((trees.killing().count(), trees.ended()), (1, vec![TreeId(0)]));
        trees.clear(TreeId(0));
        assert_eq!((trees.killing().count(), trees.first_cleared()), (0, Some(TreeId(0))));
        assert!(!trees.has_main(10) && trees.has_main(11));
        trees.remove(TreeId(0));
        trees.remove(TreeId(1));
        assert!(trees.is_empty() && trees.next_due(at(20)).is_none() && trees.first_cleared().is_none());
        assert!(trees.mains.is_empty() && trees.exited.is_empty());
    }

    #[test]
    fn a_stop_after_the_kill_asks_nobody() {
        let mut trees = of(&[Deadline::None, Deadline::None]);
        trees.condemn(TreeId(0));
        for tree_id in [0, 1] {
            trees.stop(TreeId(tree_id), at(5));
        }
        assert_eq!([0, 1].map(|tree_id| trees.get(TreeId(tree_id)).unwrap().was_asked), [false, true]);
    }
}
