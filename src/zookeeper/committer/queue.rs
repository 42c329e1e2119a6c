//! Changes that wait to be sent, in the order in which they were requested.
//!
//! Those whose job is held, for another change of it is under way or is refused, stand aside: each is looked at again when its
//! job is free, and not before, however many wait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::group::{Group, Pending};
use crate::job::JobName;

type InOrder = BTreeMap<u64, Pending>;

/// See the module.
#[derive(Default)]
pub struct Queue {
    waiting: InOrder,
    /// Of jobs that are held.
    aside: BTreeMap<JobName, InOrder>,
    /// How often each job is held.
    held: BTreeMap<JobName, usize>,
    requested: u64,
}

impl Queue {
    /// The place of the next change that is requested.
    pub fn next_number(&mut self) -> u64 {
        self.requested += 1;
        self.requested
    }

    /// Puts a change into its place.
    pub fn put(&mut self, pending: Pending) {
        let job = pending.change.job();
        let place =
            if self.held.contains_key(job) { self.aside.entry(job.clone()).or_default() } else { &mut self.waiting };
        place.insert(pending.number, pending);
    }

    /// No further change of this job is to be sent until it is free.
    pub fn hold(&mut self, job: &JobName) {
        *self.held.entry(job.clone()).or_default() += 1;
    }

    /// Takes one hold back.
    pub fn free(&mut self, job: &JobName) {
        let Entry::Occupied(mut count) = self.held.entry(job.clone()) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.waiting.append(&mut self.aside.remove(job).unwrap_or_default());
        }
    }

    /// How many stand aside until this job is free.
    pub fn behind(&self, job: &JobName) -> usize {
        self.aside.get(job).map_or(0, InOrder::len)
    }

    /// As many as share a multi, of those that may be sent.
    pub fn next_group(&mut self) -> Option<Group> {
        let mut group = Group::default();
        while let Some(first) = self.waiting.first_entry() {
            let job = first.get().change.job();
            if self.held.contains_key(job) {
                let aside = self.aside.entry(job.clone()).or_default();
                aside.insert(*first.key(), first.remove());
            } else if group.fits(first.get()) {
                group.add(first.remove());
            } else {
                break;
            }
        }
        (!group.members.is_empty()).then_some(group)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.waiting.values().chain(self.aside.values().flat_map(InOrder::values))
    }

    /// Takes some of them out, in order.
    pub fn take(&mut self, which: impl Fn(&Pending) -> bool) -> Vec<Pending> {
        let mut taken = InOrder::new();
        for place in std::iter::once(&mut self.waiting).chain(self.aside.values_mut()) {
            let (some, others): (InOrder, InOrder) =
                std::mem::take(place).into_iter().partition(|(_, pending)| which(pending));
            *place = others;
            taken.extend(some);
        }
        taken.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::CommitId;
    use crate::zookeeper::lower::tests::{begin, name};

    fn put(queue: &mut Queue, job: &str) {
        let number = queue.next_number();
        queue.put(Pending::new(CommitId(number), number, begin(job, 0, 60, "7-1"), None));
    }

    fn group(queue: &mut Queue) -> Vec<u64> {
        queue.next_group().into_iter().flat_map(|group| group.members).map(|pending| pending.number).collect()
    }

    #[test]
    fn what_stood_aside_comes_back_to_its_place() {
        let mut queue = Queue::default();
        ["a", "b", "a"].iter().for_each(|job| put(&mut queue, job));
        queue.hold(&name("a"));
        put(&mut queue, "a");
        assert_eq!(group(&mut queue), [2]);
        assert_eq!((queue.behind(&name("a")), group(&mut queue).len()), (3, 0));
        put(&mut queue, "b");
        queue.hold(&name("a"));
        queue.free(&name("a"));
        assert_eq!(queue.behind(&name("a")), 3, "it was held twice");
        queue.free(&name("a"));
        assert_eq!(group(&mut queue), [1, 3, 4, 5]);
    }

    #[test]
    fn what_is_taken_out_is_in_order_wherever_it_stood() {
        let mut queue = Queue::default();
        queue.hold(&name("a"));
        ["b", "a", "b"].iter().for_each(|job| put(&mut queue, job));
        let taken = queue.take(|pending| pending.number != 3);
        assert_eq!(taken.iter().map(|pending| pending.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(queue.iter().count(), 1);
    }
}
