//! All trees by slot, and in order what is to be done next about each: so that a turn of the warden costs what happens in it, and
//! not what lives.

use std::collections::{BTreeMap, BTreeSet};

use super::Tree;
use crate::clock::Uptime;
use crate::warden::wire::{Deadline, Exit, Slot};

/// See the module. What the orders below depend on is changed only here.
#[derive(Debug, Default)]
pub(in crate::warden) struct Trees {
    all: BTreeMap<Slot, Tree>,
    /// The main processes that are not reaped.
    mains: BTreeSet<i32>,
    /// Of trees that live and are not being killed: of each kind of deadline the earliest is what counts.
    by_deadline: BTreeSet<(Deadline, Slot)>,
    /// Of trees that live and are not being killed: when the grace of a stop ends.
    by_grace: BTreeSet<(Uptime, Slot)>,
    /// All of it is to die, and something may be left.
    killing: BTreeSet<Slot>,
    /// The main process has ended, and something may be left.
    exited: BTreeSet<Slot>,
    /// Nothing is left, and the daemon was not told yet.
    cleared: BTreeSet<Slot>,
}

impl Trees {
    pub fn insert(&mut self, slot: Slot, tree: Tree) {
        self.mains.insert(tree.pid());
        self.all.insert(slot, tree);
        self.order(slot);
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Tree> {
        self.disorder(slot);
        let tree = self.all.remove(&slot)?;
        self.mains.remove(&tree.pid());
        self.exited.remove(&slot);
        self.cleared.remove(&slot);
        Some(tree)
    }

    pub fn get(&self, slot: Slot) -> Option<&Tree> {
        self.all.get(&slot)
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut Tree> {
        self.all.get_mut(&slot)
    }

    /// One whose main process has not ended.
    pub fn live(&mut self, slot: Slot) -> Option<&mut Tree> {
        self.all.get_mut(&slot).filter(|tree| tree.is_live())
    }

    pub fn contains(&self, slot: Slot) -> bool {
        self.all.contains_key(&slot)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them by slot.
    pub fn all(&self) -> &BTreeMap<Slot, Tree> {
        &self.all
    }

    /// True for a main process that is not reaped.
    pub fn has_main(&self, pid: i32) -> bool {
        self.mains.contains(&pid)
    }

    pub fn set_deadline(&mut self, slot: Slot, deadline: Deadline) {
        self.change(slot, |tree| tree.deadline = deadline);
    }

    /// It was asked to end, and is killed at `at`. An earlier instant stands.
    pub fn stop(&mut self, slot: Slot, at: Uptime) {
        self.change(slot, |tree| {
            tree.was_asked |= !tree.is_killing;
            tree.kill_at = Some(tree.kill_at.map_or(at, |earlier| earlier.min(at)));
        });
    }

    /// All of it is to die.
    pub fn condemn(&mut self, slot: Slot) {
        self.change(slot, |tree| tree.is_killing = true);
    }

    pub fn condemn_all(&mut self) {
        for slot in self.all.keys().copied().collect::<Vec<_>>() {
            self.condemn(slot);
        }
    }

    pub fn exited(&mut self, slot: Slot, exit: Exit, at: Uptime) {
        self.change(slot, |tree| tree.exit = Some((exit, at)));
        self.exited.insert(slot);
    }

    /// Nothing of it is left, and its main process is reaped.
    pub fn clear(&mut self, slot: Slot) {
        self.change(slot, |tree| tree.is_cleared = true);
        if let Some(tree) = self.all.get(&slot) {
            self.mains.remove(&tree.pid());
            self.exited.remove(&slot);
            self.cleared.insert(slot);
        }
    }

    /// The next that is to be killed, and when, if the lease ends at `lease_until`.
    pub fn next_due(&self, lease_until: Uptime) -> Option<(Uptime, Slot)> {
        let kinds = [Deadline::Lease, Deadline::LeaseAnd(Uptime::ZERO), Deadline::At(Uptime::ZERO)];
        let firsts = kinds.into_iter().filter_map(|kind| self.by_deadline.range((kind, Slot(0))..).next());
        let firsts = firsts.map(|&(deadline, slot)| (deadline.due(lease_until), slot));
        firsts.chain(self.by_grace.first().copied()).min()
    }

    /// Those that are to die, and of which something may be left.
    pub fn killing(&self) -> impl Iterator<Item = (Slot, &Tree)> {
        self.killing.iter().filter_map(|slot| Some((*slot, self.all.get(slot)?)))
    }

    /// Those whose main process has ended, and of which something may be left.
    pub fn ended(&self) -> Vec<Slot> {
        self.exited.iter().copied().collect()
    }

    /// The first that is cleared.
    pub fn first_cleared(&self) -> Option<Slot> {
        self.cleared.first().copied()
    }

    /// Those whose main process lives, as far as is known.
    pub fn living(&self) -> Vec<Slot> {
        self.all.iter().filter(|(_, tree)| tree.is_live()).map(|(slot, _)| *slot).collect()
    }

    fn change(&mut self, slot: Slot, change: impl FnOnce(&mut Tree)) {
        self.disorder(slot);
        if let Some(tree) = self.all.get_mut(&slot) {
            change(tree);
            self.order(slot);
        }
    }

    fn order(&mut self, slot: Slot) {
        let Some(tree) = self.all.get(&slot) else { return };
        if tree.is_killing && !tree.is_cleared {
            self.killing.insert(slot);
        }
        if tree.is_killing || !tree.is_live() {
            return;
        }
        if tree.deadline != Deadline::None {
            self.by_deadline.insert((tree.deadline, slot));
        }
        self.by_grace.extend(tree.kill_at.map(|at| (at, slot)));
    }

    fn disorder(&mut self, slot: Slot) {
        let Some(tree) = self.all.get(&slot) else { return };
        self.killing.remove(&slot);
        self.by_deadline.remove(&(tree.deadline, slot));
        if let Some(at) = tree.kill_at {
            self.by_grace.remove(&(at, slot));
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
        for (slot, deadline) in (0..).zip(deadlines) {
            trees.insert(Slot(slot), tree(10 + slot as i32, "a", 5));
            trees.set_deadline(Slot(slot), *deadline);
        }
        trees
    }

    #[test]
    fn the_next_to_be_killed_is_the_earliest_of_all_kinds() {
        let mut trees =
            of(&[Deadline::LeaseAnd(at(50)), Deadline::Lease, Deadline::At(at(30)), Deadline::None, Deadline::None]);
        assert_eq!(trees.next_due(at(20)), Some((at(20), Slot(1))));
        assert_eq!(trees.next_due(at(40)), Some((at(30), Slot(2))));
        trees.stop(Slot(3), at(10));
        trees.stop(Slot(3), at(15));
        assert_eq!(trees.next_due(at(40)), Some((at(10), Slot(3))));
        for slot in [3, 2, 1] {
            trees.condemn(Slot(slot));
        }
        assert_eq!(trees.next_due(at(40)), Some((at(50), Slot(0))), "what is being killed is not due again");
        trees.set_deadline(Slot(0), Deadline::None);
        assert_eq!(trees.next_due(at(40)), None);
        assert_eq!(trees.killing().map(|(slot, _)| slot.0).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn what_has_ended_is_not_due_and_is_forgotten_whole() {
        let mut trees = of(&[Deadline::Lease, Deadline::Lease]);
        trees.exited(Slot(0), Exit::Code(0), at(1));
        assert_eq!(trees.next_due(at(20)), Some((at(20), Slot(1))));
        trees.condemn(Slot(0));
        assert_eq!((trees.killing().count(), trees.ended()), (1, vec![Slot(0)]));
        trees.clear(Slot(0));
        assert_eq!((trees.killing().count(), trees.first_cleared()), (0, Some(Slot(0))));
        assert!(!trees.has_main(10) && trees.has_main(11));
        trees.remove(Slot(0));
        trees.remove(Slot(1));
        assert!(trees.is_empty() && trees.next_due(at(20)).is_none() && trees.first_cleared().is_none());
        assert!(trees.mains.is_empty() && trees.exited.is_empty());
    }

    #[test]
    fn a_stop_after_the_kill_asks_nobody() {
        let mut trees = of(&[Deadline::None, Deadline::None]);
        trees.condemn(Slot(0));
        for slot in [0, 1] {
            trees.stop(Slot(slot), at(5));
        }
        assert_eq!([0, 1].map(|slot| trees.get(Slot(slot)).unwrap().was_asked), [false, true]);
    }
}
