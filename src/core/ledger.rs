//! The interface to the ledger, the durable record of decisions and runs.
//!
//! Every [`Change`] is guarded. Where only a leader may decide, the leader's own candidate must still exist. Where
//! another node may have written, the record must still have the version that was read. A version counts from 0 and
//! grows by one with every write. How a backend implements that is up to the backend: this module names none.

pub mod filter;
pub mod forgetting;
mod last;
mod last_shares;
mod newest;
mod operator;
mod outbox;
mod pipeline;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use operator::{
    ControlEntry, Each, Followed, ForgetNode, Operator, OperatorError, OperatorFuture, OperatorRequests, TriggerEntry,
};

pub use self::filter::Filter;
pub use self::last::{Last, LastEnd, WrittenEnd};
pub use self::last_shares::LastShares;
pub use self::newest::{Gathering, Newest, Window};
pub use self::outbox::{ChannelEntry, Outbox};
pub use self::pipeline::Pipelines;
pub use self::write::{Bell, Existing, Write};
use crate::job::JobName;
use crate::run::{
    HistoryRecord, JobRecord, Link, Notice, Outcome, RunEnd, RunId, RunRecord, RunState, Skip, TriggerSeq, Version,
};
use crate::term::{FencingToken, NodeName};

/// More bytes than a notification takes besides a run's output.
const SMALL_NOTICE: usize = 2 << 10;

/// Identifies one of the commits in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// A request from the daemon to the ledger.
#[expect(clippy::large_enum_variant, reason = "nearly all requests are commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Write a change. Answered exactly once, by [`Event::Answered`], unless the backend fails or leaves before. Commits
    /// of one job take effect in the order requested.
    Commit {
        /// Repeated in the answer.
        id: CommitId,
        change: Change,
    },
    /// Read `jobs/<job>` and then `control/<job>`. Answered by [`Event::Job`].
    ReadJob(JobName),
    /// Read `running/<run>`. Answered by [`Event::Run`].
    ReadRun(RunId),
    /// Read which runs are in flight, once nothing that this node has written can be missing, and what is noted of losses.
    /// Answered by
    /// [`Event::InFlight`].
    ReadInFlight,
    /// Read what there is of a run, after everything that was answered before. Answered by [`Event::Again`].
    ReadAgain(RunId),
    /// Read when the last run of each of these jobs that succeeded ended. Answered by [`Event::LastSuccesses`].
    ReadLastSuccesses(BTreeSet<JobName>),
    /// Read which attempts that were placed on this node it has not accepted yet. Answered by [`Event::OpenOffers`].
    ReadOpenOffers(NodeName),
    /// Watch a run and its owner for the leader. [`Event::Run`] reports every change and the removal of
    /// `running/<run>`; [`Event::OwnerGone`] reports that the owner's member is gone. Both also report what happened
    /// before the request. The watch ends when the run is removed or the term ends.
    Watch(RunId),
    /// Follow a run that the leader has placed, until it is removed or the term ends: the same as [`Request::Watch`], but
    /// the run is read for the first time a second later, and watched if it is still in flight then.
    Follow(RunId),
    /// Watch the record of one of the node's own runs. [`Event::Run`] reports every change, also one made before the
    /// request. The watch ends when the run is removed, when a term ends, or with the session.
    WatchOwn(RunId),
    /// The service has shown that it has lost commits: leave the record of it that the next leader reads, and whoever
    /// reads the history. Not answered.
    NoteLoss,
}

/// One guarded write; it takes effect completely or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Move a job's mark without beginning a run. Only the leader.
    Advance {
        job: JobName,
        /// Version of the job's record as last read or written; `None` if there is no record yet.
        at: Option<Version>,
        record: JobRecord,
        /// The occurrences that the mark passes without a run.
        skip: Option<SkipWrite>,
    },
    /// Move a job's mark and begin a run. Only the leader.
    Begin {
        /// Version of the job's record as last read or written.
        at: Version,
        record: JobRecord,
        /// The new run; the ledger must not have it yet.
        run: RunRecord,
    },
    /// Begin the run that a trigger requests and remove the trigger. The mark does not move. Only the leader.
    BeginTriggered {
        /// The new run; the ledger must not have it yet. Its record names the trigger.
        run: RunRecord,
    },
    /// Remove a trigger that leads to no run. Only the leader.
    DropTrigger {
        job: JobName,
        seq: TriggerSeq,
        /// Why there is no run; `None` if an earlier trigger with the same uuid was already decided.
        skip: Option<Skip>,
        /// Links to write for the jobs that run after this one.
        links: Vec<Link>,
    },
    /// Begin a run whose upstreams' results meet its conditions, and remove their links. Only the leader.
    BeginDownstream {
        /// Version of the job's record as last read or written, and the new record. `None` in a chain that a trigger
        /// began: there the mark does not move.
        mark: Option<(Version, JobRecord)>,
        /// The new run; the ledger must not have it yet.
        run: RunRecord,
        /// The upstreams' links to remove.
        links: Vec<TriggerSeq>,
    },
    /// Remove links that lead to no run. The mark does not move. Only the leader.
    DropLinks {
        /// The downstream job that the links are addressed to.
        job: JobName,
        /// The upstreams' links to remove.
        links: Vec<TriggerSeq>,
        /// Why there is no run. An existing history record stays as it is. `None` if the history gets no record.
        skip: Option<Skip>,
        /// Links to write for the jobs that run after this one.
        dependents: Vec<Link>,
    },
    /// End a job's pause. Only the leader.
    Resume {
        job: JobName,
        /// Version of the pause's record as last read.
        control: Version,
        /// Version of the job's record as last read or written (`None` if there is no record yet), and the new record.
        /// Absent for a job that has no occurrences on this node.
        mark: Option<(Option<Version>, JobRecord)>,
        /// The occurrences that the mark passes without a run.
        skip: Option<SkipWrite>,
    },
    /// Begin or place another attempt of a run, take it back, or mark it cut off. Only the leader.
    UpdateRun {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunRecord,
        /// The node on which the attempt before was placed, and which has not accepted it.
        taken_from: Option<NodeName>,
    },
    /// Write a run once more as it is known, because the service has lost that; what is placed is offered again. Only the
    /// leader, also of an earlier leader's attempt.
    RewriteRun {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunRecord,
        /// The node that has an offer of it by the record that is there, and is to have none.
        taken_from: Option<NodeName>,
    },
    /// Accept an attempt that was placed on this node, which need not lead. Its member guards the write.
    Accept {
        /// Version of the run's record as last read.
        at: Version,
        /// The run, under the node's session.
        run: RunRecord,
    },
    /// Refuse an attempt that was placed on this node, which need not lead. Its member guards the write.
    Refuse {
        /// Version of the run's record as last read.
        at: Version,
        /// The run, `unstarted`, under the node's session, with the reason.
        run: RunRecord,
    },
    /// Replace a run that never had a process by a skip record, because its misfire window is over or another client
    /// holds a lock of its job. Only the leader.
    SkipRun {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunId,
        /// The record that replaces the run.
        skip: Skip,
        /// Links to write for the jobs that run after this one.
        links: Vec<Link>,
        /// The node on which it was placed, and which has not accepted it.
        taken_from: Option<NodeName>,
    },
    /// Replace a run on every node by the shares of some of its nodes. Only the leader.
    ShareOut {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunId,
        /// What remains of it, for the nodes that have no share yet; `None`: all have theirs.
        rest: Option<Box<RunRecord>>,
        /// The shares; the ledger must not have them yet.
        shares: Vec<RunRecord>,
        /// The shares that are not run.
        skips: Vec<SkipWrite>,
    },
    /// Move an own run to the node's new session, or release it (`retrying`, `unstarted`). Only the owner; it need not
    /// lead.
    ChangeOwner {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunRecord,
    },
    /// Write an own run again that the service has lost. Only the owner; it need not lead.
    Restore {
        /// The run, under the node's session; the ledger must not have it.
        run: RunRecord,
        /// Version of the job's record as read, and the record with a mark that is not before the run. Absent if the mark
        /// need not move, or if the leader restores it.
        mark: Option<(Version, JobRecord)>,
    },
    /// Request that a run's owner end it. Only the leader.
    Kill {
        /// Version of the run's record as last read or written.
        at: Version,
        run: RunRecord,
    },
    /// End a run. Either the owner, which need not lead, or the leader if the owner is gone (`as_leader`).
    End {
        /// Version of the run's record as last read or written.
        at: Version,
        end: RunEnd,
        /// True if the writer's own candidate guards the write too.
        as_leader: bool,
    },
    /// Another change, with notifications that are left in the same atomic write. Those of an end are in its run.
    Noticed { change: Box<Change>, notices: Vec<Notice> },
}

/// Bytes of a text as JSON.
fn length_in_json(text: &str) -> usize {
    let length = |byte: u8| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..=0x1f => 6,
        _ => 1,
    };
    text.bytes().map(length).sum()
}

impl Change {
    /// The change with these notifications.
    #[must_use]
    pub fn with_notices(self, notices: Vec<Notice>) -> Self {
        if notices.is_empty() { self } else { Self::Noticed { change: Box::new(self), notices } }
    }

    /// The notifications that this change leaves, in the same atomic write. `before`: of an end, the outcome that it is
    /// compared with.
    pub fn notices(&self, before: Option<Outcome>) -> Vec<Notice> {
        match self {
            Self::Noticed { change, notices } => notices.iter().cloned().chain(change.notices(before)).collect(),
            Self::End { end, .. } => Notice::of_end(end, before),
            _ => Vec::new(),
        }
    }

    /// Most bytes of its notifications, and how many there are at most.
    pub fn most_notices(&self) -> (usize, usize) {
        match self {
            Self::Noticed { notices, .. } => (notices.len() * SMALL_NOTICE, notices.len()),
            Self::End { end, .. } => {
                // Of a success, as if it were a recovery.
                let most = Notice::kinds_of_end(end, Some(Outcome::Failure)).count();
                (most * (SMALL_NOTICE + length_in_json(&end.tail)), most)
            }
            _ => (0, 0),
        }
    }

    pub fn job(&self) -> &JobName {
        match self {
            Self::Noticed { change, .. } => change.job(),
            Self::Advance { job, .. }
            | Self::DropTrigger { job, .. }
            | Self::DropLinks { job, .. }
            | Self::Resume { job, .. } => job,
            Self::BeginTriggered { run }
            | Self::BeginDownstream { run, .. }
            | Self::Begin { run, .. }
            | Self::UpdateRun { run, .. }
            | Self::RewriteRun { run, .. }
            | Self::Accept { run, .. }
            | Self::Refuse { run, .. }
            | Self::ChangeOwner { run, .. }
            | Self::Restore { run, .. }
            | Self::Kill { run, .. } => &run.job,
            Self::SkipRun { run, .. } | Self::ShareOut { run, .. } => run.job(),
            Self::End { end, .. } => &end.run.job,
        }
    }

    /// True if only the leader may write it, guarded by its candidate.
    pub fn is_fenced(&self) -> bool {
        match self {
            Self::Advance { .. }
            | Self::Begin { .. }
            | Self::BeginTriggered { .. }
            | Self::DropTrigger { .. }
            | Self::BeginDownstream { .. }
            | Self::DropLinks { .. }
            | Self::Resume { .. }
            | Self::UpdateRun { .. }
            | Self::RewriteRun { .. }
            | Self::SkipRun { .. }
            | Self::ShareOut { .. }
            | Self::Kill { .. } => true,
            Self::ChangeOwner { .. } | Self::Restore { .. } | Self::Accept { .. } | Self::Refuse { .. } => false,
            Self::End { as_leader, .. } => *as_leader,
            Self::Noticed { change, .. } => change.is_fenced(),
        }
    }

    /// True if the token in the change's record shows that it was decided in a term other than that of `token`.
    pub fn is_of_another_term(&self, token: FencingToken) -> bool {
        match self {
            Self::Begin { run, .. } | Self::BeginTriggered { run } | Self::BeginDownstream { run, .. } => {
                run.token != token
            }
            Self::UpdateRun { run, .. } => {
                matches!(run.state, RunState::Running | RunState::Placed) && run.token != token
            }
            Self::ShareOut { shares, .. } => shares.iter().any(|run| run.token != token),
            Self::Noticed { change, .. } => change.is_of_another_term(token),
            Self::Advance { .. }
            | Self::DropTrigger { .. }
            | Self::DropLinks { .. }
            | Self::Resume { .. }
            | Self::SkipRun { .. }
            | Self::RewriteRun { .. }
            | Self::Accept { .. }
            | Self::Refuse { .. }
            | Self::ChangeOwner { .. }
            | Self::Restore { .. }
            | Self::Kill { .. }
            | Self::End { .. } => false,
        }
    }

    /// The links that this change writes for downstream jobs, in the same atomic write.
    pub fn links(&self) -> Vec<Link> {
        match self {
            Self::Advance { skip: Some(write), .. } | Self::Resume { skip: Some(write), .. } => write.links.clone(),
            Self::DropTrigger { links, .. }
            | Self::DropLinks { dependents: links, .. }
            | Self::SkipRun { links, .. } => links.clone(),
            Self::ShareOut { skips, .. } => skips.iter().flat_map(|write| write.links.clone()).collect(),
            Self::End { end, .. } => Link::of_end(end).collect(),
            Self::Noticed { change, .. } => change.links(),
            Self::Advance { skip: None, .. }
            | Self::Resume { skip: None, .. }
            | Self::Begin { .. }
            | Self::BeginTriggered { .. }
            | Self::BeginDownstream { .. }
            | Self::UpdateRun { .. }
            | Self::RewriteRun { .. }
            | Self::Accept { .. }
            | Self::Refuse { .. }
            | Self::ChangeOwner { .. }
            | Self::Restore { .. }
            | Self::Kill { .. } => Vec::new(),
        }
    }
}

/// A skip record to write: a new one, or one extended by a neighbouring occurrence.
#[derive(Clone, Debug, PartialEq)]
pub struct SkipWrite {
    /// Version of the record as last written; `None` if the record is new.
    pub at: Option<Version>,
    pub skip: Skip,
    /// Links to write for the jobs that run after this one.
    pub links: Vec<Link>,
}

/// The result of a guarded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Accepted,
    /// The writer's own candidate is gone. Nothing was written, and the term is over.
    Fenced,
    /// Another writer changed a record that the write depends on. Nothing was written.
    Superseded,
    /// The write may or may not have taken effect. Either the session ended before the answer arrived, or the answer
    /// was lost and, before it could be determined again, others (usually a later term) had overwritten every trace of
    /// the write.
    Unknown,
}

/// When a job last succeeded, as far as the ledger says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastSuccess {
    /// The end of the last run that succeeded.
    At(Timestamp),
    /// No success is on record.
    Never,
    /// The record may not be read.
    Unreadable,
}

impl From<Option<Timestamp>> for LastSuccess {
    fn from(at: Option<Timestamp>) -> Self {
        at.map_or(Self::Never, Self::At)
    }
}

/// An event from the ledger to the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A commit has a result.
    Answered {
        id: CommitId,
        answer: Commit,
        /// Of an end that was accepted: the outcome of the job's run whose end was written before it. `None` if there was
        /// none or it is unknown.
        before: Option<Outcome>,
        /// Of an acceptance that was accepted: its place among all writes, which is the attempt's fencing token. `None` if it
        /// is not known.
        token: Option<FencingToken>,
    },
    /// The attempts that are placed on this node and not accepted yet. Sent at the begin of a session, and when one was
    /// added. It may lag behind the ledger.
    Offers {
        /// All of them.
        listed: BTreeSet<RunId>,
        /// The records of those that are new, or that were read some time ago.
        found: Vec<(RunRecord, Version)>,
    },
    /// These runs have changed, and the backend does not watch them: the client that changed them notified the leader.
    /// Anything may be among them.
    Rung(BTreeSet<RunId>),
    /// The attempts that a node has not accepted yet.
    OpenOffers(NodeName, BTreeSet<RunId>),
    /// The service refused a commit for a reason that [`Commit`] does not cover. Nothing was written; the backend
    /// retries and answers when it can. Sent once for each commit.
    Deferred(CommitId),
    /// A job's current record and its pause, read in this order; `None` if there is none.
    Job(JobName, Option<JobEntry>, Option<ControlEntry>),
    /// All open operator requests and links, sent to the leader when something changed. They may lag behind the ledger.
    OperatorRequests(OperatorRequests),
    /// A run's current record; `None` if the run is not in flight.
    Run(RunId, Option<(RunRecord, Version)>),
    /// What there is of a run, read after everything that was answered before it was requested.
    Again(RunId, RunLookup),
    /// The runs that are in flight, on any node, and until when commits may have begun something that the service has
    /// lost.
    InFlight(Vec<RunId>, Option<Timestamp>),
    /// The run of a dead process of this host ended. The backend wrote the end itself, before the process's entries
    /// were removed.
    Ended {
        end: Box<RunEnd>,
        /// The version of the run's record before it was removed.
        at: Version,
        /// As in [`Event::Answered`].
        before: Option<Outcome>,
    },
    /// When each of the jobs asked for last succeeded.
    LastSuccesses(BTreeMap<JobName, LastSuccess>),
    /// The job is gone from every node's files, and all its records have been removed.
    Forgotten {
        job: JobName,
        /// Number of records that its history had.
        records: usize,
    },
    /// The node has been away too long to be a place to run jobs.
    ForgottenNode(NodeName),
    /// The owner of a watched run is gone. Carries what is known of its processes and the run's record, read after
    /// that.
    OwnerGone(RunId, OwnerState, Option<(RunRecord, Version)>),
}

/// What the ledger has of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum RunLookup {
    /// It is in flight.
    InFlight(Box<RunRecord>, Version),
    /// It has ended, or may have ended so long ago that its record is gone from the history.
    Ended,
    /// It is neither in flight nor has it ended. Its job's record, if there is one.
    Absent(Option<Box<JobEntry>>),
}

impl RunLookup {
    /// What is true of a run that is not in flight, by the records that its job's history has.
    ///
    /// A history is trimmed: what is not in it may have been, if it has as many later ones as it keeps.
    ///
    /// `kept`: that number, by this node's file. A number that is too high has a trimmed record written again. One that
    /// is too low has a lost run taken for one that has ended, and then it is on no record at all.
    pub fn not_in_flight(run: &RunId, recorded: &[RunId], kept: usize, job: Option<JobEntry>) -> Self {
        // Each node's shares are trimmed by themselves.
        let is_later = |other: &&RunId| other.node() == run.node() && other.scheduled_at() > run.scheduled_at();
        let later = recorded.iter().filter(is_later);
        let has_ended = recorded.contains(run) || later.count() >= kept;
        if has_ended { Self::Ended } else { Self::Absent(job.map(Box::new)) }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobEntry {
    /// `None` if the record is unreadable.
    pub record: Option<JobRecord>,
    pub version: Version,
}

/// A run in flight that a new leader takes over.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    pub record: RunRecord,
    pub version: Version,
    /// State of its owner, determined after the record was read.
    pub owner: OwnerState,
}

/// Whether the owner of a run and its processes are alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// Its member exists under the session that the run names.
    Alive,
    /// Its member is gone; its processes may still be running, cut off.
    Gone,
    /// Its member is gone, and its processes are known to be dead.
    Dead,
}

/// Everything that a new leader reads before it decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub jobs: BTreeMap<JobName, JobEntry>,
    pub running: Vec<Running>,
    /// Open operator requests and links, read after the jobs' records.
    pub requests: OperatorRequests,
    /// Of jobs whose records are unreadable: the newest occurrence that a run or the history shows as decided.
    pub decided: BTreeMap<JobName, Timestamp>,
    /// The store has lost commits. What was to begin until then may have begun by one of them.
    pub lost_until: Option<Timestamp>,
    /// Unreadable records and the reason for each, for display.
    pub damaged: Vec<String>,
}

/// The record that is left for whoever leads next, if a store has lost commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostCommits {
    pub v: u32,
    /// What was to begin until then may have begun by one of them.
    pub until: Timestamp,
}

/// Most jobs with unreadable records whose history is looked up for a takeover, which waits for it.
pub const MOST_LOOKED_UP: usize = 100;
/// How many of a job's newest records are looked up then: they are ordered by their ends, occurrences by their times.
pub const RECORDS_LOOKED_UP: usize = 8;

/// The jobs whose records are unreadable.
pub fn unreadable(jobs: &BTreeMap<JobName, JobEntry>) -> impl Iterator<Item = &JobName> {
    jobs.iter().filter(|(_, entry)| entry.record.is_none()).map(|(job, _)| job)
}

impl Snapshot {
    /// Notes what the newest records of such a job say.
    pub fn note_decided(&mut self, job: &JobName, records: impl IntoIterator<Item = HistoryRecord>) {
        let scheduled = |record: HistoryRecord| match record {
            HistoryRecord::Run(end) => end.run.trigger.is_none().then_some(end.run.scheduled_at),
            HistoryRecord::Skip(skip) => skip.trigger.is_none().then_some(skip.last),
        };
        let running = self.running.iter().map(|running| &running.record);
        let running = running.filter(|record| record.job == *job && record.trigger.is_none());
        let newest = records.into_iter().filter_map(scheduled).chain(running.map(|record| record.scheduled_at)).max();
        self.decided.extend(newest.map(|newest| (job.clone(), newest)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain that was held up is younger than runs that triggers began in the meantime.
    #[test]
    fn a_run_may_have_been_trimmed_only_if_the_history_has_as_many_later_ones_as_it_keeps() {
        let id = |second: usize| -> RunId { format!("a.20261120T1000{second:02}Z").try_into().unwrap() };
        let has_ended = |later: usize, kept: usize| {
            let recorded: Vec<RunId> = (1..=later).map(id).collect();
            RunLookup::not_in_flight(&id(0), &recorded, kept, None) == RunLookup::Ended
        };
        for kept in [5, 20] {
            assert!(!has_ended(kept - 1, kept) && has_ended(kept, kept), "{kept}");
        }
    }
}
