//! In-flight commits: what each is about, and the takeover that waits for some of them.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::job::JobName;
use crate::ledger::{Commit, CommitId};
use crate::run::{RunEnd, RunId, Skip, SkipReason};
use crate::term::FencingToken;

/// What a commit is about.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    /// A job's mark. The skip is reported once it is accepted.
    Advance { job: JobName, mark: Timestamp, skip: Option<UnreportedSkip> },
    /// A run's beginning.
    Begin { run: RunId },
    /// A trigger's run.
    BeginTriggered { run: RunId, by: String },
    /// A trigger that leads to no run.
    DropTrigger { skip: Option<UnreportedSkip> },
    /// A run after its upstreams' runs.
    BeginDownstream { run: RunId },
    /// A run after others that is given up.
    DropLinks { run: RunId, skip: Option<UnreportedSkip> },
    /// The end of a pause, with the mark that it moves.
    Resume { job: JobName, mark: Option<Timestamp>, skip: Option<UnreportedSkip>, by: String },
    /// Another attempt of a run, or its mark as cut off.
    UpdateRun { run: RunId },
    /// A run that never had a process is recorded as missed.
    Miss { run: RunId, skip: UnreportedSkip },
    /// A request to end a run of another node.
    Kill { run: RunId },
    /// An own run under the new session, or released.
    ChangeOwner { run: RunId },
    /// A run's end. `settled`: of another node's run, written and reported by the leader.
    End { run: RunId, settled: Option<Box<RunEnd>> },
}

/// A commit without an answer.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    /// The term it was requested in.
    pub token: Option<FencingToken>,
    pub job: JobName,
    pub pending: Pending,
}

/// A skip that is reported once it is written: this decision, not all neighbours in its record.
#[derive(Clone, Debug)]
pub(super) struct UnreportedSkip {
    pub skip: Skip,
    pub first: Timestamp,
    pub count: u64,
}

impl UnreportedSkip {
    /// All that the record says.
    pub fn of(skip: Skip) -> Self {
        Self { first: skip.first, count: skip.count, skip }
    }
}

/// A takeover under way: it is done when all its commits are answered.
#[derive(Debug)]
pub(super) struct Takeover {
    pub since: Uptime,
    /// Commits that settle what was found.
    pub open: BTreeSet<CommitId>,
    /// Runs settled so far.
    pub settled: u64,
    /// Occurrences recorded as missed so far.
    pub missed: u64,
}

impl Takeover {
    pub fn new(since: Uptime) -> Self {
        Self { since, open: BTreeSet::new(), settled: 0, missed: 0 }
    }

    pub fn answered(&mut self, id: CommitId, pending: &Pending, answer: Commit) {
        if !self.open.remove(&id) || answer != Commit::Accepted {
            return;
        }
        match pending {
            Pending::UpdateRun { .. } | Pending::End { .. } | Pending::Miss { .. } => self.settled += 1,
            Pending::Advance { skip: Some(written), .. } if written.skip.reason == SkipReason::Missed => {
                self.missed += written.count;
            }
            Pending::Advance { .. }
            | Pending::Begin { .. }
            | Pending::BeginTriggered { .. }
            | Pending::DropTrigger { .. }
            | Pending::BeginDownstream { .. }
            | Pending::DropLinks { .. }
            | Pending::Resume { .. }
            | Pending::ChangeOwner { .. }
            | Pending::Kill { .. } => {}
        }
    }
}
