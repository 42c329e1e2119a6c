//! Pipelines: the writes to one job's mark that are sent before the earlier ones are answered.
//!
//! Each write of a pipeline expects the version that the previous one will produce. When one is rejected, all later
//! ones must be rejected too, until the leader has read the job again.
//!
//! The version alone is not enough, because it does not say *who* wrote it. An operator who pauses the job between two
//! writes also increments the version. If the first write is rejected, the second then finds the version it expects.
//! The occurrences that the first write would have skipped would vanish, and a run would begin under a pause that the
//! leader does not know about.

use std::collections::BTreeSet;

use super::{Change, Commit};
use crate::job::JobName;

/// The broken pipelines of one term.
#[derive(Clone, Debug, Default)]
pub struct Pipelines {
    broken: BTreeSet<JobName>,
}

impl Pipelines {
    /// True if an earlier write of the pipeline was rejected. The change is then [`Commit::Superseded`] without being
    /// sent.
    pub fn is_broken(&self, change: &Change) -> bool {
        change.moves_mark() && self.broken.contains(change.job())
    }

    /// Records a commit's result, before or after it is reported.
    pub fn answered(&mut self, change: &Change, answer: Commit) {
        if change.moves_mark() && answer != Commit::Accepted {
            self.broken.insert(change.job().clone());
        }
    }

    /// Records that the leader reads the job again, which starts a new pipeline.
    pub fn read(&mut self, job: &JobName) {
        self.broken.remove(job);
    }
}

impl Change {
    /// True if it moves the job's mark and so belongs to the job's pipeline.
    pub fn moves_mark(&self) -> bool {
        match self {
            Self::Advance { .. } | Self::Begin { .. } => true,
            Self::Resume { mark, .. } => mark.is_some(),
            Self::BeginDownstream { mark, .. } => mark.is_some(),
            Self::Noticed { change, .. } => change.moves_mark(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{JobRecord, Version};
    use crate::test_records::{record, success};

    fn begin(job: &str, at: i32, second: i64) -> Change {
        let run = record(job, second, "0x1");
        let (last_scheduled, nonce) = (run.scheduled_at, run.nonce.clone());
        let record = JobRecord::new(last_scheduled, nonce);
        Change::Begin { at: Version(at), record, run }
    }

    #[test]
    fn writes_after_a_rejected_one_are_rejected_until_the_job_is_read() {
        let mut pipelines = Pipelines::default();
        let (first, next, other) = (begin("a", 2, 60), begin("a", 3, 120), begin("b", 0, 60));
        assert!(!pipelines.is_broken(&first));
        pipelines.answered(&other, Commit::Accepted);
        pipelines.answered(&first, Commit::Superseded);
        assert!(pipelines.is_broken(&next));
        assert!(!pipelines.is_broken(&other), "pipelines of different jobs are independent");
        let end = Change::End { at: Version::FIRST, end: success(record("a", 60, "0x1")), as_leader: false };
        assert!(!pipelines.is_broken(&end), "an end depends only on its run");
        pipelines.read(next.job());
        assert!(!pipelines.is_broken(&next));
    }
}
