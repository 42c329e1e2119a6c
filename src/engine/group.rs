//! `concurrency_group`: at most so many runs of all jobs that name a group are in flight at once; the others wait.
//!
//! A run counts from its first attempt until its end is in the ledger, also while it waits for another attempt or is cut off.
//! What waits is begun by [`waiting`](super::waiting), in the order of the occurrences.

use super::Engine;
use crate::job::{Group, Job};

impl Engine {
    /// True where no other run of the job's group may begin.
    pub(super) fn is_group_full(&self, job: &Job) -> bool {
        let Some(Group { name, limit }) = &job.concurrency_group else { return false };
        self.flights.in_group(name) >= *limit
    }
}
