//! Queue of changes that wait to be sent, in the order requested.
//!
//! A job is held while another change of it is in flight or refused. Its changes are then passed over until the job is
//! free: so a job that waits costs nothing, however many changes it has.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::group::{Group, PendingCommit};
use crate::tree::Limits;
use cronkeeper_core::job::JobName;

/// In boxes, because they are large, and most jobs have one: the node of a map has room for eleven.
type ByNumber = BTreeMap<u64, Box<PendingCommit>>;

#[derive(Default)]
pub struct CommitQueue {
    by_job: BTreeMap<JobName, ByNumber>,
    /// The first change of each job that is not held.
    first: BTreeMap<u64, JobName>,
    /// Number of changes of each job that the own candidate guards.
    fenced: BTreeMap<JobName, usize>,
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
        let job = pending.change.job().clone();
        self.unlist(&job);
        self.count(&pending, 1);
        self.by_job.entry(job.clone()).or_default().insert(pending.number, Box::new(pending));
        self.list(job);
    }

    /// Keeps changes of this job from being sent until it is freed as often as it was held.
    pub fn hold(&mut self, job: &JobName) {
        self.unlist(job);
        *self.held.entry(job.clone()).or_default() += 1;
    }

    /// Takes back one hold.
    pub fn free(&mut self, job: &JobName) {
        let Entry::Occupied(mut count) = self.held.entry(job.clone()) else { return };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
            self.list(job.clone());
        }
    }

    fn count(&mut self, pending: &PendingCommit, change: isize) {
        if pending.is_fenced() {
            let job = pending.change.job();
            let count = self.fenced.get(job).copied().unwrap_or_default().saturating_add_signed(change);
            if count > 0 {
                self.fenced.insert(job.clone(), count)
            } else {
                self.fenced.remove(job)
            };
        }
    }

    /// True if the own candidate guards a change of a job for which `counts` is true.
    pub fn has_fenced(&self, counts: impl Fn(&JobName) -> bool) -> bool {
        self.fenced.keys().any(counts)
    }

    /// The number of the job's first change; `None` if it has none, or is held.
    fn first_of(&self, job: &JobName) -> Option<u64> {
        let first = self.by_job.get(job)?.first_key_value().map(|(number, _)| *number);
        first.filter(|_| !self.held.contains_key(job))
    }

    fn list(&mut self, job: JobName) {
        if let Some(number) = self.first_of(&job) {
            self.first.insert(number, job);
        }
    }

    fn unlist(&mut self, job: &JobName) {
        if let Some(number) = self.first_of(job) {
            self.first.remove(&number);
        }
    }

    /// Number of changes that wait until this job is free.
    pub fn behind(&self, job: &JobName) -> usize {
        if self.held.contains_key(job) { self.by_job.get(job).map_or(0, ByNumber::len) } else { 0 }
    }

    /// The next changes that fit into one multi.
    pub fn next_group(&mut self, limits: Limits) -> Option<Group> {
        let mut group = Group::default();
        while let Some((_, job)) = self.first.first_key_value() {
            let job = job.clone();
            let Some(changes) = self.by_job.get_mut(&job) else { break };
            let Some(next) = changes.first_entry().filter(|next| group.fits(next.get(), limits)) else { break };
            let (number, next) = next.remove_entry();
            if changes.is_empty() {
                self.by_job.remove(&job);
            }
            self.count(&next, -1);
            group.add(*next);
            self.first.remove(&number);
            self.list(job);
        }
        (!group.members.is_empty()).then_some(group)
    }

    /// All changes, including those of jobs that are held.
    pub fn iter(&self) -> impl Iterator<Item = &PendingCommit> {
        self.by_job.values().flat_map(ByNumber::values).map(Box::as_ref)
    }

    /// Removes the changes that match and returns them in order.
    pub fn take(&mut self, which: impl Fn(&PendingCommit) -> bool) -> Vec<PendingCommit> {
        let mut taken = ByNumber::new();
        for changes in self.by_job.values_mut() {
            taken.extend(changes.extract_if(.., |_, pending| which(pending)));
        }
        self.by_job.retain(|_, changes| !changes.is_empty());
        taken.values().for_each(|pending| self.count(pending, -1));
        self.first.clear();
        let jobs: Vec<JobName> = self.by_job.keys().cloned().collect();
        jobs.into_iter().for_each(|job| self.list(job));
        taken.into_values().map(|pending| *pending).collect()
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
    fn changes_of_a_held_job_keep_their_position() {
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
