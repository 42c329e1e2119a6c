//! The record of one run, and what became of it.
//!
//! The leader commits a record *before* the process starts, so a successor can tell "never began"
//! from "began, end unknown". Knows nothing of where records live.

mod attempt;
mod control;
#[cfg(test)]
pub(crate) mod fuzz;
mod id;
pub mod journal;
mod link;
mod skip;
#[cfg(test)]
pub(crate) mod tests_support;
mod traces;
mod trigger;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use attempt::{Attempt, Past};
pub use control::{ControlRecord, Pause, Resume};
pub use id::{BadRunId, RunId};
pub use link::{Answer, Link, Note, Span};
pub use skip::{Skip, SkipReason};
pub use traces::{KnownBy, Traces};
pub use trigger::{Trigger, TriggerRecord, TriggerSeq};

use crate::job::{Digest, Interrupted, Job, JobName, OnLeaseEnd};
use crate::term::{FencingToken, NodeName, SessionId};

/// The version of a record in the ledger: 0 when created, one more with every change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub i32);

impl Version {
    /// Of a record just created.
    pub const FIRST: Self = Self(0);

    /// After one more change.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Tells one decision of one term from every other: `<token>-<count>`. What a write left behind is known by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub String);

/// `jobs/<job>` of the ledger: how far a job's occurrences have been decided on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Format of the record.
    pub v: u32,
    /// The mark: the newest occurrence that was decided on. It never goes back.
    pub last_scheduled: Timestamp,
    /// How far a leader has counted: the mark, unless somebody else wrote that. Absent: the mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Timestamp>,
    /// Of the schedule the mark was counted with; absent when the job has none (disabled, or no longer defined).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Digest>,
    /// Of the decision that wrote it.
    pub nonce: Nonce,
}

/// What a successor does with a run whose node is gone, fixed when the run began: the node's warden acts by the same rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// Killed at lease end, then begun again by the next leader.
    Rerun,
    /// Killed at lease end; ends `interrupted`.
    Interrupt,
    /// Goes on while cut off, until `keep_until`.
    CutOff,
}

impl OnLoss {
    /// The rule that a job's keys ask for.
    pub fn of(job: &Job) -> Self {
        match (job.interrupted, job.on_lease_end) {
            (Interrupted::Rerun, _) => Self::Rerun,
            (Interrupted::Skip, OnLeaseEnd::Kill) => Self::Interrupt,
            (Interrupted::Skip, OnLeaseEnd::Keep) => Self::CutOff,
        }
    }
}

/// Where a run in flight stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// It waits for other runs to end: no attempt was begun yet, and the leader is to begin the first.
    Queued,
    /// Its owner has, or is about to have, a process for it.
    Running,
    /// Nobody has a process for it: the leader is to begin another attempt.
    Retrying,
    /// Its attempt was begun, and it is known that no process was started for it: the leader is to begin the next one. That is no
    /// failure, no interruption and no retry; only the end of its misfire window keeps it from being started.
    Unstarted,
    /// Its owner is gone without a word; it may go on there until `keep_until`.
    CutOff,
}

impl RunState {
    /// True where its owner has let it go for another attempt.
    pub fn is_let_go(self) -> bool {
        matches!(self, Self::Retrying | Self::Unstarted)
    }

    /// True where no node has a process for it, and the leader is to begin one.
    pub fn waits(self) -> bool {
        self == Self::Queued || self.is_let_go()
    }
}

/// The node that has a run, and the session that says so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The node.
    pub node: NodeName,
    /// The session its member lived under when the run was begun or taken over.
    pub session: SessionId,
}

/// `running/<run>` of the ledger: a run in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Format of the record.
    pub v: u32,
    /// The job.
    pub job: JobName,
    /// The occurrence, or when the trigger was made.
    #[serde(deserialize_with = "id::occurrence")]
    pub scheduled_at: Timestamp,
    /// The trigger it answers; absent for a scheduled run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// See [`RunState`].
    pub state: RunState,
    /// Who has it.
    #[serde(flatten)]
    pub owner: Owner,
    /// Of the term that began the attempt.
    pub token: FencingToken,
    /// Counts from 1.
    pub attempt: u32,
    /// Of the decision that wrote this.
    pub nonce: Nonce,
    /// When the attempt was begun.
    pub begun_at: Timestamp,
    /// See [`OnLoss`].
    pub on_loss: OnLoss,
    /// How long it may go on while cut off; absent: without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Timestamp>,
    /// Since when it may start, where that is later than its occurrence: it waited for other runs. Its misfire window counts from
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// When the next attempt is to begin, while `retrying` or `unstarted`; absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    /// The attempts before this one.
    #[serde(default, skip_serializing_if = "Past::is_empty")]
    pub past: Past,
    /// The jobs that run directly after it: whoever ends it leaves each of them word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependents: Vec<JobName>,
    /// That it is to end. Set by somebody who does not have it, for whoever does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<Box<KillRequest>>,
}

/// The request that a run end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillRequest {
    /// Why: [`Reason::Operator`] or [`Reason::Replaced`].
    pub reason: Reason,
    /// Whose request it is, for people.
    pub by: String,
    /// When it was made.
    pub at: Timestamp,
    /// A run that is cut off ends too, though nobody knows what becomes of its process.
    #[serde(default)]
    pub force: bool,
}

impl RunRecord {
    /// The id it goes by.
    pub fn id(&self) -> RunId {
        id_of(&self.job, self.scheduled_at, self.trigger.as_ref())
    }

    /// True if `other` tells of the same attempt: of the same run, begun by the same term, counted the same.
    pub fn is_same_attempt(&self, other: &Self) -> bool {
        (self.token, self.attempt, self.scheduled_at) == (other.token, other.attempt, other.scheduled_at)
            && self.job == other.job
    }
}

impl RunRecord {
    /// True where an attempt before this one had a process, or failed for a reason of the job's own.
    pub fn has_past(&self) -> bool {
        !self.past.is_empty()
    }

    /// Since when it could start: never before its occurrence, even where the clock of the node that wrote so was behind.
    pub fn ready(&self) -> Timestamp {
        self.ready_at.map_or(self.scheduled_at, |ready| ready.max(self.scheduled_at))
    }

    /// How many attempts in a row, this one among them, had no process when this one has none either.
    pub fn unstarted_attempts(&self) -> u32 {
        let last = self.past.attempts.last().map_or(0, |last| last.attempt);
        self.attempt.saturating_sub(last)
    }
}

impl RunRecord {
    /// Takes a request that it end, unless one stands that is as strong; true where it is taken.
    pub fn request_to_end(&mut self, request: KillRequest) -> bool {
        let is_new = self.kill.as_ref().is_none_or(|known| request.force && !known.force);
        if is_new {
            self.kill = Some(Box::new(request));
        }
        is_new
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its exit code is one of `success_exit_codes`.
    Success,
    /// It ended by itself in any other way, or could not be started.
    Failure,
    /// It took longer than `timeout`.
    Timeout,
    /// An operator ended it, or its successor.
    Killed,
    /// Drain timeout, lease, or death of its node.
    Interrupted,
    /// Its node was cut off until the next occurrence.
    Abandoned,
}

impl Outcome {
    /// True for what `retries` make up for: it ended by itself, or took too long.
    pub fn is_failed(self) -> bool {
        matches!(self, Self::Failure | Self::Timeout)
    }

    /// The word in logs, history and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Timeout => "timeout",
            Self::Killed => "killed",
            Self::Interrupted => "interrupted",
            Self::Abandoned => "abandoned",
        }
    }
}

/// What the outcome alone does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The program does not exist.
    NotFound,
    /// The program cannot be executed.
    NotExecutable,
    /// This host does not know the user or group.
    NoUser,
    /// The working directory cannot be entered.
    NoDirectory,
    /// No memory or process could be had for it, or it was killed at its memory limit.
    NoMemory,
    /// It dumped core.
    CoreDump,
    /// An operator wanted it.
    Operator,
    /// The job's next run took its place (`overlap: replace`).
    Replaced,
    /// The drain timeout passed, or the node was told to stop at once.
    Drain,
    /// The node's lease ended.
    Lease,
    /// The node died.
    NodeDied,
}

impl Reason {
    /// The word in logs and history.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::NotExecutable => "not-executable",
            Self::NoUser => "no-user",
            Self::NoDirectory => "no-directory",
            Self::NoMemory => "no-memory",
            Self::CoreDump => "core-dump",
            Self::Operator => "operator",
            Self::Replaced => "replaced",
            Self::Drain => "drain",
            Self::Lease => "lease",
            Self::NodeDied => "node-died",
        }
    }
}

/// How a run ended: one record of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Format of the record.
    pub v: u32,
    /// The run as it stood.
    pub run: RunRecord,
    /// How it ended.
    pub outcome: Outcome,
    /// What the outcome does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Of the main process, when it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When it ended, or was settled.
    pub ended_at: Timestamp,
    /// How long the attempt ran, in milliseconds; absent when no process was started, or nobody saw its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Processes of the tree that outlived the main process and were killed.
    #[serde(default)]
    pub leftovers: u32,
    /// The last of its output; bytes that are not UTF-8 replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Bytes of output that were counted but not logged.
    #[serde(default)]
    pub dropped_bytes: u64,
}

impl RunEnd {
    /// The end of a run whose process nobody saw, or that never had one.
    pub fn unseen(run: &RunRecord, outcome: Outcome, reason: Option<Reason>, at: Timestamp) -> Self {
        Self {
            v: 1,
            run: run.clone(),
            outcome,
            reason,
            exit_code: None,
            signal: None,
            ended_at: at,
            duration_ms: None,
            leftovers: 0,
            tail: String::new(),
            dropped_bytes: 0,
        }
    }
}

fn id_of(job: &JobName, at: Timestamp, trigger: Option<&Trigger>) -> RunId {
    match trigger {
        Some(trigger) => RunId::manual(job.clone(), at, trigger.seq),
        None => RunId::scheduled(job.clone(), at),
    }
}

/// One record of a job's history.
#[expect(clippy::large_enum_variant, reason = "most records are of runs")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HistoryRecord {
    /// A run that ended.
    Run(RunEnd),
    /// Occurrences that were skipped.
    Skip(Skip),
}

impl HistoryRecord {
    /// When it was written, for "newest first".
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Run(end) => end.ended_at,
            Self::Skip(skip) => skip.decided_at,
        }
    }

    /// The trigger it answers; absent for what was scheduled.
    pub fn trigger(&self) -> Option<&Trigger> {
        match self {
            Self::Run(end) => end.run.trigger.as_ref(),
            Self::Skip(skip) => skip.trigger.as_ref(),
        }
    }

    /// The id it goes by.
    pub fn id(&self) -> RunId {
        match self {
            Self::Run(end) => end.run.id(),
            Self::Skip(skip) => skip.id(),
        }
    }
}

/// Milliseconds of a duration, as logs and history tell it.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
