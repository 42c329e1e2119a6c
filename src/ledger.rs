//! The port to the durable record: what was decided, what runs, how it ended.
//!
//! Every [`Change`] is guarded: by the own candidate where only a leader may decide, and by the version of what
//! was read where another may have written. What a version is to a backend is its own affair; here it counts
//! from 0 and grows by one with every write (ZooKeeper's znode versions do). Nothing here names a backend.

mod chain;
pub mod forgetting;
mod newest;
mod operator;

use std::collections::BTreeMap;
use std::pin::Pin;

pub use operator::{ControlEntry, Followed, Operator, OperatorError, OperatorFuture, OperatorRequests, TriggerEntry};

pub use self::chain::Chains;
pub use self::newest::{Gathering, LastEnd, Newest, Window};
use crate::election::Queue;
use crate::job::JobName;
use crate::run::{JobRecord, Link, Outcome, RunEnd, RunId, RunRecord, Skip, TriggerSeq, Version};

/// Names a commit among those under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// What the daemon asks of the ledger.
#[expect(clippy::large_enum_variant, reason = "nearly all requests are commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Write a change. Answered once by [`Event::Answered`]; commits of one job take effect in the order requested.
    Commit {
        /// To know the answer by.
        id: CommitId,
        /// What to write.
        change: Change,
    },
    /// Read `jobs/<job>`, and after it `control/<job>`. Answered by [`Event::Job`].
    ReadJob(JobName),
    /// Read `running/<run>`. Answered by [`Event::Run`].
    ReadRun(RunId),
    /// Read how the run of the same job ended whose end was written before the end of this one. Answered by [`Event::Before`].
    ReadBefore(RunId),
    /// Tell, by [`Event::Run`], when `running/<run>` changes or goes, and, by [`Event::OwnerGone`], when its owner's member goes.
    /// Also when that happened before the request. Ends when the run goes, or with the term.
    Watch(RunId),
    /// Tell, by [`Event::Run`], when the record of an own run changes. Also when that happened before the request. Ends when the run
    /// goes, with a term, or with the session.
    WatchOwn(RunId),
}

/// One guarded write, whole or not at all.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Move a job's mark without a run. Only the leader.
    Advance {
        /// The job.
        job: JobName,
        /// The record as last read or written; absent: there is none.
        at: Option<Version>,
        /// The new record.
        record: JobRecord,
        /// The occurrences that the mark passed.
        skip: Option<SkipWrite>,
    },
    /// Move a job's mark and begin a run. Only the leader.
    Begin {
        /// The job's record as last read or written.
        at: Version,
        /// The job's new record.
        record: JobRecord,
        /// The run, not yet in the ledger.
        run: RunRecord,
    },
    /// Begin the run that a trigger asks for, in the trigger's place. The mark stays. Only the leader.
    BeginTriggered {
        /// The run, not yet in the ledger. Its record names the trigger.
        run: RunRecord,
    },
    /// Take away a trigger that leads to no run. Only the leader.
    DropTrigger {
        /// The job it names.
        job: JobName,
        /// The trigger.
        seq: TriggerSeq,
        /// Why it leads to none; absent where an earlier one of its uuid was decided on.
        skip: Option<Skip>,
        /// For the jobs that run after this one.
        links: Vec<Link>,
    },
    /// Begin a run whose upstreams' runs have ended as it wants, in place of their links. Only the leader.
    BeginDownstream {
        /// The job's record as last read or written, and its new one; absent in a chain that a trigger began: then the mark stays.
        mark: Option<(Version, JobRecord)>,
        /// The run, not yet in the ledger.
        run: RunRecord,
        /// The links.
        links: Vec<TriggerSeq>,
    },
    /// Take away links that lead to no run. The mark stays. Only the leader.
    DropLinks {
        /// The job that they are for.
        job: JobName,
        /// The links.
        links: Vec<TriggerSeq>,
        /// Why they lead to none. A record of the history that is there already stays as it is. Absent where there is nothing to say.
        skip: Option<Skip>,
        /// For the jobs that run after this one.
        dependents: Vec<Link>,
    },
    /// End a job's pause. Only the leader.
    Resume {
        /// The job.
        job: JobName,
        /// The pause's record as last read.
        control: Version,
        /// The job's record as last read or written, and its new one; absent for a job without occurrences here.
        mark: Option<(Option<Version>, JobRecord)>,
        /// The occurrences that the mark passed.
        skip: Option<SkipWrite>,
    },
    /// Begin another attempt of a run, or mark it cut off. Only the leader.
    UpdateRun {
        /// The run's record as last read or written.
        at: Version,
        /// Its new record.
        run: RunRecord,
    },
    /// Record a run that never had a process as missed, in place of the run: its misfire window is over. Only the leader.
    Miss {
        /// The run's record as last read or written.
        at: Version,
        /// The run.
        run: RunId,
        /// What is recorded instead.
        skip: Skip,
        /// For the jobs that run after this one.
        links: Vec<Link>,
    },
    /// Put an own run under the node's new session, or let it go (`retrying`, `unstarted`). Its owner, whoever leads.
    ChangeOwner {
        /// The run's record as last read or written.
        at: Version,
        /// Its new record.
        run: RunRecord,
    },
    /// Set the request that a run end, for whoever has it. Only the leader.
    Kill {
        /// The run's record as last read or written.
        at: Version,
        /// Its new record.
        run: RunRecord,
    },
    /// End a run. Its owner, whoever leads; or the leader, for a run whose owner is gone (`as_leader`).
    End {
        /// The run's record as last read or written.
        at: Version,
        /// How it ended.
        end: RunEnd,
        /// True where the own candidate guards it too.
        as_leader: bool,
    },
}

impl Change {
    /// The job it is about.
    pub fn job(&self) -> &JobName {
        match self {
            Self::Advance { job, .. }
            | Self::DropTrigger { job, .. }
            | Self::DropLinks { job, .. }
            | Self::Resume { job, .. } => job,
            Self::BeginTriggered { run }
            | Self::BeginDownstream { run, .. }
            | Self::Begin { run, .. }
            | Self::UpdateRun { run, .. }
            | Self::ChangeOwner { run, .. }
            | Self::Kill { run, .. } => &run.job,
            Self::Miss { run, .. } => run.job(),
            Self::End { end, .. } => &end.run.job,
        }
    }

    /// True where only the leader may write it.
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
            | Self::Miss { .. }
            | Self::Kill { .. } => true,
            Self::ChangeOwner { .. } => false,
            Self::End { as_leader, .. } => *as_leader,
        }
    }

    /// The links that it leaves for jobs that run after this one: part of it, like all else that it writes.
    pub fn links(&self) -> Vec<Link> {
        match self {
            Self::Advance { skip: Some(write), .. } | Self::Resume { skip: Some(write), .. } => write.links.clone(),
            Self::DropTrigger { links, .. } | Self::DropLinks { dependents: links, .. } | Self::Miss { links, .. } => {
                links.clone()
            }
            Self::End { end, .. } => Link::of_end(end).collect(),
            Self::Advance { skip: None, .. }
            | Self::Resume { skip: None, .. }
            | Self::Begin { .. }
            | Self::BeginTriggered { .. }
            | Self::BeginDownstream { .. }
            | Self::UpdateRun { .. }
            | Self::ChangeOwner { .. }
            | Self::Kill { .. } => Vec::new(),
        }
    }
}

/// A skip record: a new one, or a neighbour added to one written before.
#[derive(Clone, Debug, PartialEq)]
pub struct SkipWrite {
    /// The record as last written; absent: there is none.
    pub at: Option<Version>,
    /// The new record.
    pub skip: Skip,
    /// For the jobs that run after this one.
    pub links: Vec<Link>,
}

/// The answer to a guarded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It is written.
    Accepted,
    /// The own candidate is gone: nothing is written, and the term is over.
    Fenced,
    /// Another wrote what it rests on: nothing is written.
    Superseded,
    /// It may or may not be written. The session went before an answer came; or the answer was lost, and by the time it could be asked
    /// for again others, a later term as a rule, had written over every trace of it.
    Unknown,
}

/// What the ledger tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The answer to a commit.
    Answered {
        /// Which.
        id: CommitId,
        /// The answer.
        answer: Commit,
    },
    /// A commit is refused by the service, for a reason that is neither of [`Commit`]'s: nothing is written, it is tried again, and
    /// answered once it can be. Told once.
    PutOff(CommitId),
    /// A job's record as it stands, and its pause, read after that; absent: there is none.
    Job(JobName, Option<JobEntry>, Option<ControlEntry>),
    /// What operators want, as far as it was not told; told to the leader when something changed. It may lag behind.
    OperatorRequests(OperatorRequests),
    /// A run's record as it stands; absent: it is not in flight.
    Run(RunId, Option<(RunRecord, Version)>),
    /// A run of a dead process of this host ended: the backend has written that itself, before the process's entries went.
    Ended {
        /// How.
        end: Box<RunEnd>,
        /// The version that the run's record had.
        at: Version,
    },
    /// How the run ended whose end was written before that of this one; absent: there is none, or nothing is known of it.
    Before(RunId, Option<Outcome>),
    /// The job is gone from every node's files, and now nothing of it is left.
    Forgotten {
        /// The job.
        job: JobName,
        /// How many records its history had.
        records: usize,
    },
    /// The owner of a watched run is gone, and what is known of its processes; the run as read after that.
    OwnerGone(RunId, OwnerState, Option<(RunRecord, Version)>),
}

/// A job's record with its version.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEntry {
    /// The record; absent where it cannot be read.
    pub record: Option<JobRecord>,
    /// Its version.
    pub version: Version,
}

/// A run in flight, as a new leader finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// Its record.
    pub record: RunRecord,
    /// Its version.
    pub version: Version,
    /// What is known of its owner, found out after the record was read.
    pub owner: OwnerState,
}

/// What is known of the owner of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// Its member lives, under the session that the run names.
    Alive,
    /// It is gone; its processes may live on, cut off.
    Gone,
    /// It is gone, and its processes were seen dead.
    Dead,
}

/// All that a new leader needs to know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Every job's record.
    pub jobs: BTreeMap<JobName, JobEntry>,
    /// Every run in flight.
    pub running: Vec<Running>,
    /// What operators want, read after the jobs' records.
    pub requests: OperatorRequests,
    /// Records that cannot be read, and why, for people.
    pub damaged: Vec<String>,
}

/// The future of a read.
pub type ReadFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReadError>> + Send + 'a>>;

/// Reads for the operator's eyes: no decision rests on them.
pub trait Reader: Send + Sync {
    /// The queue and the living nodes.
    fn queue(&self) -> ReadFuture<'_, Queue>;
    /// Jobs and runs in flight.
    fn snapshot(&self) -> ReadFuture<'_, Snapshot>;
    /// The newest records of one job or of all.
    fn history(&self, job: Option<JobName>, window: Window) -> ReadFuture<'_, Newest>;
    /// How each job's run ended that ended last, as far back as is looked.
    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, LastEnd>>;
}

/// Why a read gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be read: {0}")]
pub struct ReadError(pub String);
