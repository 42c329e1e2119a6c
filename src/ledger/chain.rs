//! Decisions on a job's mark rest on one another: each names the version that the one before will have made.
//!
//! A version alone does not say *who* made it. An operator who pauses a job makes one more too, between two decisions, and the second
//! would then find the version it names although the first was refused: what the first was to skip would vanish, and a run
//! would begin under a pause that the leader has not heard of. So with the first that is refused its whole chain is, until the leader
//! has read the job anew.

use std::collections::BTreeSet;

use super::{Change, Commit};
use crate::job::JobName;

/// The chains of one term.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    broken: BTreeSet<JobName>,
}

impl Chains {
    /// True where an earlier decision that this one rests on was refused: it is [`Commit::Superseded`], unseen.
    pub fn is_broken(&self, change: &Change) -> bool {
        change.moves_mark() && self.broken.contains(change.job())
    }

    /// Takes note of an answer that was, or is about to be, given.
    pub fn answered(&mut self, change: &Change, answer: Commit) {
        if change.moves_mark() && answer != Commit::Accepted {
            self.broken.insert(change.job().clone());
        }
    }

    /// The leader asks how the job stands: what it decides from now on rests on that.
    pub fn read(&mut self, job: &JobName) {
        self.broken.remove(job);
    }
}

impl Change {
    /// True where it moves a job's mark, and so is a step of the job's chain.
    pub fn moves_mark(&self) -> bool {
        match self {
            Self::Advance { .. } | Self::Begin { .. } => true,
            Self::Resume { mark, .. } => mark.is_some(),
            Self::BeginDownstream { mark, .. } => mark.is_some(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests_support::{record, success};
    use crate::run::{JobRecord, Version};

    fn begin(job: &str, at: i32, second: i64) -> Change {
        let run = record(job, second, "0x1");
        let (last_scheduled, nonce) = (run.scheduled_at, run.nonce.clone());
        let record = JobRecord { v: 1, last_scheduled, counted: None, schedule: None, nonce };
        Change::Begin { at: Version(at), record, run }
    }

    #[test]
    fn what_rests_on_a_refused_decision_is_refused_until_the_job_is_read() {
        let mut chains = Chains::default();
        let (first, next, other) = (begin("a", 2, 60), begin("a", 3, 120), begin("b", 0, 60));
        assert!(!chains.is_broken(&first));
        chains.answered(&other, Commit::Accepted);
        chains.answered(&first, Commit::Superseded);
        assert!(chains.is_broken(&next));
        assert!(!chains.is_broken(&other), "another job's chain is its own");
        let end = Change::End { at: Version::FIRST, end: success(record("a", 60, "0x1")), as_leader: false };
        assert!(!chains.is_broken(&end), "an end rests on its run alone");
        chains.read(next.job());
        assert!(!chains.is_broken(&next));
    }
}
