//! In-flight commits and how to handle their results; the takeover that waits for some of them.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::clock::Uptime;
use crate::engine::report::{AlarmChange, AlarmNews};
use crate::job::{JobName, JobSet, NoticeKind};
use crate::ledger::{Commit, CommitId};
use crate::run::{Notice, RunEnd, RunId, RunRecord, Skip, SkipReason, StandingAlarms, Version};
use crate::term::FencingToken;

/// The purpose of a commit.
#[derive(Clone, Debug)]
pub(super) enum Purpose {
    /// Moves a job's mark. The skip is reported once the commit is accepted.
    Advance { job: JobName, mark: Timestamp, skip: Option<UnreportedSkip> },
    /// Writes a job's alarms, with the mark as it is. What is new is reported once the commit is accepted.
    WriteAlarms { job: JobName, mark: Timestamp, alarms: StandingAlarms, news: Vec<AlarmNews> },
    /// Begins a run.
    Begin { run: RunId },
    /// Begins a trigger's run.
    BeginTriggered { run: RunId, by: String, parameters: String },
    /// Removes a trigger that leads to no run.
    DropTrigger { skip: Option<UnreportedSkip> },
    /// Begins a run after its upstreams' runs.
    BeginDownstream { run: RunId },
    /// Removes the links of a run that is given up.
    DropLinks { run: RunId, skip: Option<UnreportedSkip> },
    /// Ends a pause, and moves the job's mark.
    Resume { job: JobName, mark: Option<Timestamp>, skip: Option<UnreportedSkip>, by: String },
    /// Begins another attempt of a run, or records that the run is cut off.
    UpdateRun { run: RunId, is_cut_off: bool, in_doubt: bool },
    /// Records a run that never had a process as skipped.
    SkipRun { run: RunId, skip: UnreportedSkip },
    /// Gives nodes their shares of a run on every node.
    ShareOut { run: RunId, given: Box<Given> },
    /// Requests that another node end its run.
    Kill { run: RunId },
    /// Offers a placed attempt to its node once more.
    RewriteRun { run: RunId },
    /// Accepts an attempt that was placed on this node.
    Accept { run: RunId },
    /// Puts an own run under the new session, or releases it.
    ChangeOwner { run: RunId },
    /// Writes an own run again that the service has lost.
    Restore { run: RunId },
    /// Ends a run. `settled`: the end of a run that no live node has, written and reported by the leader.
    End { run: RunId, settled: Option<Box<RunEnd>> },
}

/// What a commit that shares a run out gives to nodes.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub shares: Vec<RunId>,
    pub skips: Vec<UnreportedSkip>,
    /// The record that remains; `None`: all nodes have their shares.
    pub rest: Option<Box<RunRecord>>,
}

impl Purpose {
    /// The notifications that the commit leaves. Those of a run's end follow from the run's record.
    pub fn notices(&self, jobs: &JobSet) -> Vec<Notice> {
        let skips = match self {
            Self::WriteAlarms { news, .. } => return news.iter().filter_map(|news| of_alarm(news, jobs)).collect(),
            Self::Advance { skip, .. }
            | Self::DropTrigger { skip }
            | Self::DropLinks { skip, .. }
            | Self::Resume { skip, .. } => skip.as_slice(),
            Self::SkipRun { skip, .. } => std::slice::from_ref(skip),
            Self::ShareOut { given, .. } => &given.skips,
            Self::Begin { .. }
            | Self::BeginTriggered { .. }
            | Self::BeginDownstream { .. }
            | Self::UpdateRun { .. }
            | Self::Kill { .. }
            | Self::RewriteRun { .. }
            | Self::Accept { .. }
            | Self::ChangeOwner { .. }
            | Self::Restore { .. }
            | Self::End { .. } => &[],
        };
        let wanted = skips.iter().filter(|unreported| jobs.is_wanted(NoticeKind::Missed, &unreported.skip.job));
        wanted.filter_map(|UnreportedSkip { skip, first, count }| Notice::of_skip(skip, *first, *count)).collect()
    }

    /// The run that is begun.
    pub fn begun(&self) -> Option<&RunId> {
        match self {
            Self::Begin { run } | Self::BeginTriggered { run, .. } | Self::BeginDownstream { run } => Some(run),
            _ => None,
        }
    }
}

fn of_alarm(news: &AlarmNews, jobs: &JobSet) -> Option<Notice> {
    let AlarmNews { job, alarm, raised, change } = news;
    let limits = jobs.jobs.get(job)?.alarms;
    let is_wanted = *change == AlarmChange::Raised && jobs.is_wanted((*alarm).into(), job);
    is_wanted.then(|| Notice::of_alarm(job, *alarm, raised, limits))
}

/// A commit that is not answered yet.
#[derive(Clone, Debug)]
pub(super) struct Requested {
    /// The fencing token of the term in which it was requested.
    pub token: Option<FencingToken>,
    pub job: JobName,
    pub purpose: Purpose,
}

/// A skip that is reported once it is in the ledger.
///
/// A skip record joins neighbouring occurrences; `first` and `count` cover only those of this decision.
#[derive(Clone, Debug)]
pub(super) struct UnreportedSkip {
    pub skip: Skip,
    pub first: Timestamp,
    pub count: u64,
}

impl UnreportedSkip {
    /// Reports all occurrences of the record.
    pub fn of(skip: Skip) -> Self {
        Self { first: skip.first, count: skip.count, skip }
    }

    /// Joins the record of the occurrences right before, if there is one. Returns its version.
    pub fn join(&mut self, before: Option<(Version, Skip)>) -> Option<Version> {
        let (version, before) = before?;
        self.skip.first = before.first;
        self.skip.count += before.count;
        Some(version)
    }
}

/// A takeover in progress: it is done when all of its commits are answered.
#[derive(Debug)]
pub(super) struct Takeover {
    pub since: Uptime,
    /// In-flight commits that settle the runs and jobs found.
    pub open: BTreeSet<CommitId>,
    /// Runs settled so far: begun again or ended.
    pub settled: u64,
    /// Runs marked as cut off so far.
    pub cut_off: u64,
    /// Occurrences recorded as missed so far.
    pub missed: u64,
}

impl Takeover {
    pub fn new(since: Uptime) -> Self {
        Self { since, open: BTreeSet::new(), settled: 0, cut_off: 0, missed: 0 }
    }

    pub fn answered(&mut self, id: CommitId, purpose: &Purpose, answer: Commit) {
        if !self.open.remove(&id) || answer != Commit::Accepted {
            return;
        }
        match purpose {
            Purpose::UpdateRun { is_cut_off: true, .. } => self.cut_off += 1,
            Purpose::UpdateRun { .. } | Purpose::End { .. } | Purpose::SkipRun { .. } => self.settled += 1,
            Purpose::Advance { skip: Some(written), .. }
                if matches!(written.skip.reason, SkipReason::Missed | SkipReason::Rewound) =>
            {
                self.missed += written.count;
            }
            Purpose::Advance { .. }
            | Purpose::WriteAlarms { .. }
            | Purpose::Begin { .. }
            | Purpose::BeginTriggered { .. }
            | Purpose::DropTrigger { .. }
            | Purpose::BeginDownstream { .. }
            | Purpose::DropLinks { .. }
            | Purpose::Resume { .. }
            | Purpose::RewriteRun { .. }
            | Purpose::Accept { .. }
            | Purpose::ChangeOwner { .. }
            | Purpose::Restore { .. }
            | Purpose::ShareOut { .. }
            | Purpose::Kill { .. } => {}
        }
    }
}
