//! Queue of changes that wait to be sent, in the order requested.
//!
//! A job is held while another change of it is in flight or refused. Its changes are then set aside, and come back only
//! when the job is free: so a job that waits costs nothing, however many changes it has.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::group::{Group, PendingCommit};
use crate::tree::Limits;
use cronkeeper_core::job::JobName;

type ByNumber = BTreeMap<u64, PendingCommit>;

#[derive(Default)]
pub struct CommitQueue {
    waiting: ByNumber,
    /// Changes whose job is held.
    aside: BTreeMap<JobName, ByNumber>,
    /// Number of holds on each job.
    held: BTreeMap<JobName, usize>,
    requested: u64,
}

impl CommitQueue {
    /// The position of the next change.
    pub fn next_number(&mut self) -> u64 {
        self.requested += 1;
        self.requested
    }

    /// Inserts a change at its position.
    pub fn put(&mut self, pending: PendingCommit) {
        let job = pending.change.job();
        let queue =
            if self.held.contains_key(job) { self.aside.entry(job.clone()).or_default() } else { &mut self.waiting };
        queue.insert(pending.number, pending);
    }

    /// Keeps changes of this job from being sent until it is freed as often as it was held.
    pub fn hold(&mut self, job: &JobName) {
        *self.held.entry(job.clone()).or_default() += 1;
    }

    /// Takes back one hold.
    pub fn free(&mut self, job: &JobName) {
        let Entry::Occupied(mut count) = self.held.entry(job.clone()) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.waiting.append(&mut self.aside.remove(job).unwrap_or_default());
        }
    }

    /// Number of changes set aside until this job is free.
    pub fn behind(&self, job: &JobName) -> usize {
        self.aside.get(job).map_or(0, ByNumber::len)
    }

    /// The next changes that fit into one multi.
    pub fn next_group(&mut self, limits: Limits) -> Option<Group> {
        let mut group = Group::default();
        while let Some(first) = self.waiting.first_entry() {
            let job = first.get().change.job();
            if self.held.contains_key(job) {
                let aside = self.aside.entry(job.clone()).or_default();
                aside.insert(*first.key(), first.remove());
            } else if group.fits(first.get(), limits) {
                group.add(first.remove());
            } else {
                break;
            }
        }
        (!group.members.is_empty()).then_some(group)
    }

    /// All changes, including those set aside.
    pub fn iter(&self) -> impl Iterator<Item = &PendingCommit> {
        self.waiting.values().chain(self.aside.values().flat_map(ByNumber::values))
    }

    /// Removes the changes that match and returns them in order.
    pub fn take(&mut self, which: impl Fn(&PendingCommit) -> bool) -> Vec<PendingCommit> {
        let mut taken = ByNumber::new();
        for queue in std::iter::once(&mut self.waiting).chain(self.aside.values_mut()) {
            let (some, others): (ByNumber, ByNumber) =
                std::mem::take(queue).into_iter().partition(|(_, pending)| which(pending));
            *queue = others;
            taken.extend(some);
        }
        taken.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::transaction::tests::{begin, name};
    use cronkeeper_core::ledger::CommitId;

    fn put(queue: &mut CommitQueue, job: &str) {
        let number = queue.next_number();
        queue.put(PendingCommit::new(CommitId(number), number, begin(job, 0, 60, "7-1"), None));
    }

    fn group(queue: &mut CommitQueue) -> Vec<u64> {
        let limits = Limits::OF_TESTS;
        queue.next_group(limits).into_iter().flat_map(|group| group.members).map(|pending| pending.number).collect()
    }

    #[test]
    fn changes_set_aside_return_to_their_position() {
        let mut queue = CommitQueue::default();
        ["a", "b", "a"].iter().for_each(|job| put(&mut queue, job));
        queue.hold(&name("a"));
        put(&mut queue, "a");
        assert_eq!(group(&mut queue), [2]);
        assert_eq!((queue.behind(&name("a")), group(&mut queue).len()), (3, 0));
        put(&mut queue, "b");
        queue.hold(&name("a"));
        queue.free(&name("a"));
        assert_eq!(queue.behind(&name("a")), 3, "the job was held twice");
        queue.free(&name("a"));
        assert_eq!(group(&mut queue), [1, 3, 4, 5]);
    }

    #[test]
    fn changes_taken_out_are_in_order() {
        let mut queue = CommitQueue::default();
        queue.hold(&name("a"));
        ["b", "a", "b"].iter().for_each(|job| put(&mut queue, job));
        let taken = queue.take(|pending| pending.number != 3);
        assert_eq!(taken.iter().map(|pending| pending.number).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(queue.iter().count(), 1);
    }
}
