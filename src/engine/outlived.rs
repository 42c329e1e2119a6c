//! The second line behind the warden: trees that must be dead, and of which it has not said so in time.
//!
//! The warden kills what must not outlive the lease, and it can hang. What another node may start again, or what an order was to
//! kill, is then killed by the daemon, [`Lease::patience`] later: still before another may act. The warden is told too, so that it
//! knows what the end was if it goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::flight::{Flight, StopCause};
use super::{Command, Engine, Turn};
use crate::clock::Uptime;
use crate::lease::Lease;
use crate::run::RunId;
use crate::warden::wire::{Deadline, Slot};

/// The trees that something is to kill, and when.
#[derive(Debug)]
pub(super) struct Outlived {
    patience: Duration,
    /// When the lease ends, or ended.
    lease_ends: Uptime,
    /// The earliest of each kind of deadline is what counts.
    by_deadline: BTreeSet<(Deadline, Slot)>,
    by_slot: BTreeMap<Slot, Deadline>,
    /// Those that were ordered to be killed.
    doomed: BTreeSet<Slot>,
}

impl Default for Outlived {
    fn default() -> Self {
        let (by_deadline, by_slot, doomed) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
        Self { patience: Duration::ZERO, lease_ends: Uptime::ZERO, by_deadline, by_slot, doomed }
    }
}

impl Outlived {
    pub fn under(&mut self, session_timeout: Duration) {
        self.patience = Lease::patience(session_timeout);
    }

    /// A lease that was taken away ended just now, if it had not ended before.
    pub fn lease(&mut self, until: Uptime, now: Uptime) {
        self.lease_ends = if until > now { until } else { self.lease_ends.min(now) };
    }

    pub fn watch(&mut self, slot: Slot, deadline: Deadline) {
        self.forget(slot);
        if deadline != Deadline::None {
            self.by_deadline.insert((deadline, slot));
            self.by_slot.insert(slot, deadline);
        }
    }

    /// By what it is to be killed.
    pub fn deadline(&self, slot: Slot) -> Option<Deadline> {
        self.by_slot.get(&slot).copied()
    }

    /// True once it was ordered to be killed.
    pub fn is_doomed(&self, slot: Slot) -> bool {
        self.doomed.contains(&slot)
    }

    /// It was ordered to be killed, unless that was to be done before.
    pub fn ordered(&mut self, slot: Slot, now: Uptime) {
        if !self.is_doomed(slot) {
            let due = self.deadline(slot).map_or(now, |deadline| deadline.due(self.lease_ends).min(now));
            self.watch(slot, Deadline::At(due));
            self.doomed.insert(slot);
        }
    }

    pub fn forget(&mut self, slot: Slot) {
        self.doomed.remove(&slot);
        if let Some(deadline) = self.by_slot.remove(&slot) {
            self.by_deadline.remove(&(deadline, slot));
        }
    }

    /// When the next is overdue.
    pub fn next_at(&self) -> Option<Uptime> {
        self.first().map(|(at, _)| at)
    }

    fn first(&self) -> Option<(Uptime, Slot)> {
        let kinds = [Deadline::Lease, Deadline::LeaseAnd(Uptime::ZERO), Deadline::At(Uptime::ZERO)];
        let firsts = kinds.into_iter().filter_map(|kind| self.by_deadline.range((kind, Slot(0))..).next());
        firsts.map(|&(deadline, slot)| (deadline.due(self.lease_ends) + self.patience, slot)).min()
    }

    fn pop_due(&mut self, now: Uptime) -> Option<Slot> {
        let (_, slot) = self.first().filter(|&(at, _)| at <= now)?;
        self.forget(slot);
        Some(slot)
    }
}

impl Engine {
    /// Has those killed that the warden should have.
    pub(super) fn end_outlived(&mut self, t: &mut Turn) {
        let mut overdue = Vec::new();
        while let Some(slot) = self.outlived.pop_due(t.now.up) {
            let Some(run) = self.slots.get(&slot).cloned() else { continue };
            self.note_outlived(t, &run);
            self.outlived.forget(slot);
            overdue.push(slot);
        }
        if !overdue.is_empty() {
            t.commands.push(Command::EndTrees(overdue));
        }
    }

    /// The order stands before the next lease in the warden's socket.
    fn note_outlived(&mut self, t: &mut Turn, run: &RunId) {
        let Some(alive) = self.flights.get_mut(run).and_then(Flight::alive_mut) else { return };
        alive.is_ended_here = true;
        self.kill_run(t, run, StopCause::Lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(20);

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + Duration::from_secs(seconds)
    }

    /// When what was due then is overdue.
    fn late(seconds: u64) -> Uptime {
        at(seconds) + Lease::patience(T)
    }

    fn outlived() -> Outlived {
        let mut outlived = Outlived::default();
        outlived.under(T);
        outlived.lease(at(100), at(90));
        outlived
    }

    fn due(outlived: &mut Outlived, now: Uptime) -> Vec<u64> {
        std::iter::from_fn(|| outlived.pop_due(now)).map(|slot| slot.0).collect()
    }

    #[test]
    fn each_tree_is_overdue_by_its_own_deadline() {
        let mut outlived = outlived();
        let deadlines =
            [Deadline::LeaseAnd(at(120)), Deadline::Lease, Deadline::None, Deadline::LeaseAnd(at(95)), Deadline::Lease];
        for (slot, deadline) in (0..).zip(deadlines) {
            outlived.watch(Slot(slot), deadline);
        }
        outlived.ordered(Slot(4), at(91));
        outlived.ordered(Slot(4), at(95));
        assert_eq!((outlived.next_at(), due(&mut outlived, at(91))), (Some(late(91)), vec![]));
        assert_eq!(due(&mut outlived, at(92)), [4]);
        assert_eq!((outlived.next_at(), due(&mut outlived, at(101))), (Some(late(100)), vec![1, 3]));
        assert_eq!((outlived.next_at(), due(&mut outlived, at(121))), (Some(late(120)), vec![0]));
        assert_eq!(outlived.next_at(), None);
    }

    #[test]
    fn the_lease_moves_it_and_a_lease_taken_away_ends_now() {
        let mut outlived = outlived();
        outlived.watch(Slot(1), Deadline::Lease);
        outlived.lease(at(110), at(99));
        assert_eq!(outlived.next_at(), Some(late(110)));
        outlived.lease(Uptime::ZERO, at(104));
        assert_eq!(outlived.next_at(), Some(late(104)));
    }

    #[test]
    fn what_is_overdue_is_not_put_off_by_news_that_come_late() {
        let mut outlived = outlived();
        outlived.watch(Slot(1), Deadline::Lease);
        outlived.lease(Uptime::ZERO, at(104));
        assert_eq!(outlived.next_at(), Some(late(100)));
        outlived.ordered(Slot(1), at(105));
        assert_eq!(outlived.next_at(), Some(late(100)));
    }

    #[test]
    fn what_has_ended_is_forgotten() {
        let mut outlived = outlived();
        outlived.watch(Slot(1), Deadline::Lease);
        outlived.forget(Slot(1));
        assert_eq!((outlived.next_at(), outlived.by_deadline.len()), (None, 0));
    }
}
