//! The records of a run: in flight, ended, skipped.
//!
//! The leader commits a run's record *before* its process starts, so that a successor can distinguish "never began"
//! from "began, end unknown". This module does not know where records are stored.

mod alarms;
mod attempt;
mod control;
#[cfg(test)]
mod fuzz;
mod id;
pub mod journal;
mod link;
mod node_control;
mod notice;
mod over;
mod parameters;
mod placement;
mod recount;
mod skip;
mod traces;
mod trigger;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use alarms::{RaisedAlarm, StandingAlarms};
pub use attempt::{Attempt, Past};
pub use control::{ControlRecord, Pause, Resume};
pub use id::{BadRunId, RunId};
pub use link::{Link, Note, Span, UpstreamResult};
pub use node_control::{Drain, HandoverRequest, NodeControl};
pub use notice::{ChannelRecord, Notice, NoticeKey, Sending};
pub use over::{OverAttempt, OverAttempts, REMEMBERED};
pub use parameters::{BadParameters, Parameters, UnreadableRecord};
pub use placement::{Placement, Refusal, RefusalReason};
pub use recount::{Decisions, MOST_LISTED, NotRecounted, Recount, RecountRequest, Recounted};
pub use skip::{Skip, SkipReason};
pub use traces::{BeginNote, KnownBy, LONGEST_HOLD, Traces};
pub use trigger::{Trigger, TriggerRecord, TriggerSeq};

use crate::job::{Digest, Interrupted, Job, JobName, NoticeKinds, OnLeaseEnd};
use crate::term::{FencingToken, NodeName, SessionId};

/// The version of a record in the ledger: 0 when created, incremented by every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub i32);

impl Version {
    /// The version of a newly created record.
    pub const FIRST: Self = Self(0);

    /// The version after one more change.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A unique id of one decision in one term, `<token>-<count>`.
///
/// It is stored in every record that the decision writes, so that a writer who lost the answer can recognise its own
/// write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nonce(pub String);

/// The ledger's `jobs/<job>`: how far a job's occurrences have been decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Format version of the record.
    pub v: u32,
    /// The mark: the newest occurrence that has been decided. It never moves back.
    pub last_scheduled: Timestamp,
    /// How far a leader has counted occurrences. Differs from the mark only if something other than a leader wrote the
    /// mark, or if an operator had the job recounted; `None` means the same as the mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Timestamp>,
    /// What operators' recounts have left. A version that does not know it counts from `counted` too, but decides a second
    /// time on what it lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recount: Option<Box<Recount>>,
    /// Digest of the schedule with which the mark was computed. `None` if the job has no schedule (disabled or no
    /// longer defined).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Digest>,
    #[serde(default, skip_serializing_if = "StandingAlarms::is_empty")]
    pub alarms: StandingAlarms,
    /// Its attempts were placed once. Since then each has its own fencing token, larger than that of its term, so all later
    /// ones must have one too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub placed: bool,
    /// Identifies the decision that wrote the record.
    pub nonce: Nonce,
}

impl JobRecord {
    /// The record of a job without a schedule or alarms whose occurrences are decided up to the mark.
    pub fn new(last_scheduled: Timestamp, nonce: Nonce) -> Self {
        Self {
            v: 1,
            last_scheduled,
            counted: None,
            recount: None,
            schedule: None,
            alarms: StandingAlarms::default(),
            placed: false,
            nonce,
        }
    }

    /// The record of a job that no leader had decided on when it was paused. Its occurrences count from the first decision.
    pub fn undecided(pause: Uuid) -> Self {
        Self::new(Timestamp::UNIX_EPOCH, Nonce(format!("pause-{pause}")))
    }
}

/// What the next leader does with a run whose node is gone.
///
/// It is fixed when the run begins, because the node's own warden follows the same rule when the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnLoss {
    /// Killed at the end of the lease; the next leader begins another attempt.
    Rerun,
    /// Killed at the end of the lease; the run ends as `interrupted`.
    Interrupt,
    /// The run continues while cut off, until `keep_until`.
    CutOff,
}

impl OnLoss {
    /// The rule that the job's `interrupted` and `on_lease_end` select.
    pub fn of(job: &Job) -> Self {
        match (job.interrupted, job.on_lease_end) {
            (Interrupted::Rerun, _) => Self::Rerun,
            (Interrupted::Skip, OnLeaseEnd::Kill) => Self::Interrupt,
            (Interrupted::Skip, OnLeaseEnd::Keep) => Self::CutOff,
        }
    }
}

/// The state of a run in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// Waiting for other runs to end, or for locks. No attempt has begun yet; the leader begins the first one.
    Queued,
    /// Its owner has a process for it or is about to start one.
    Running,
    /// Its node may start it once it has accepted it. Until then the leader may take it back.
    Placed,
    /// No node has a process for it; the leader begins another attempt.
    Retrying,
    /// Its attempt began, but provably no process was started; the leader begins the next attempt. This does not count
    /// as a failure, an interruption or a retry. Only the end of the misfire window prevents another start.
    Unstarted,
    /// Its owner disappeared without recording an end. The process may continue there until `keep_until`.
    CutOff,
}

impl RunState {
    /// True if the attempt has, or may have, a process.
    pub fn has_process(self) -> bool {
        matches!(self, Self::Running | Self::CutOff)
    }

    /// True if its owner has released it for another attempt.
    pub fn is_released(self) -> bool {
        matches!(self, Self::Retrying | Self::Unstarted)
    }

    /// True if no node has a process for it and the leader must begin an attempt.
    pub fn waits(self) -> bool {
        self == Self::Queued || self.is_released()
    }
}

/// The node that owns a run, and the session that proves it is alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub node: NodeName,
    /// The session of the node's member when the node began or took over the run.
    pub session: SessionId,
}

/// The ledger's `running/<run>`: a run in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Format version of the record.
    pub v: u32,
    pub job: JobName,
    /// The occurrence, or the time of the trigger.
    #[serde(deserialize_with = "id::occurrence")]
    pub scheduled_at: Timestamp,
    /// The trigger that requested the run; `None` for a scheduled run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The node whose share of a run on every node this is; `None` for a run that is not one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<NodeName>,
    /// The nodes that are to get a share each and do not have one yet. Such a run is `queued`, has no process itself, and
    /// is replaced by the shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_among: Option<Box<BTreeSet<NodeName>>>,
    /// What the trigger set for this run.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    pub state: RunState,
    #[serde(flatten)]
    pub owner: Owner,
    /// Fencing token of the term that began the attempt.
    pub token: FencingToken,
    /// Number of the attempt, from 1; 0 while the run is queued.
    pub attempt: u32,
    /// Identifies the decision that wrote the record.
    pub nonce: Nonce,
    /// When the attempt began.
    pub begun_at: Timestamp,
    pub on_loss: OnLoss,
    /// Until when the run may continue while cut off; `None` means without limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_until: Option<Timestamp>,
    /// Since when the run may start, if it waited for other runs; `None` means since its occurrence. The misfire window
    /// counts from this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Timestamp>,
    /// Since when it has been waiting for a node that can take it, while `queued`: the misfire window counts from then,
    /// whoever leads. `None`: it waits for other runs, however long that takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_node_since: Option<Timestamp>,
    /// When the next attempt begins, while `retrying` or `unstarted`; `None` means at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Past::is_empty")]
    pub past: Past,
    /// The jobs that run directly after this one. The node that ends the run writes a [`Link`] for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependents: Vec<JobName>,
    /// What whoever ends the run leaves a notification of, as the leader's file said at the attempt's begin.
    #[serde(default, skip_serializing_if = "NoticeKinds::is_empty")]
    pub notify: NoticeKinds,
    /// If the attempt was placed: what its node must know of that, and has said to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Box<Placement>>,
    /// Request to end the run, written by the leader or an operator for the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kill: Option<Box<KillRequest>>,
}

/// A request to end a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillRequest {
    /// [`Reason::Operator`] or [`Reason::Replaced`].
    pub reason: Reason,
    /// Who made the request, for display.
    pub by: String,
    pub at: Timestamp,
    /// Also end a run that is cut off, although the fate of its process is unknown.
    #[serde(default)]
    pub force: bool,
}

impl RunRecord {
    /// Parses the record of a run in flight from JSON.
    ///
    /// # Errors
    /// If it is not a record, or one of a newer format: the run must not continue without what this version would
    /// ignore.
    pub fn read(json: &[u8]) -> Result<Self, UnreadableRecord> {
        let record: Self = serde_json::from_slice(json)?;
        parameters::known_format(record.v)?;
        Ok(record)
    }

    /// The record, with the number of the format that it needs: the lowest that says all of it.
    #[must_use]
    pub fn in_its_format(self) -> Self {
        let v = match self.placement.is_some() || self.on.is_some() || self.share_among.is_some() {
            true => placement::FORMAT,
            false => parameters::format_of(self.trigger.as_ref(), &self.parameters),
        };
        Self { v, ..self }
    }

    /// The record of the same run with these parameters.
    #[must_use]
    pub fn with(self, parameters: Parameters) -> Self {
        Self { parameters, ..self }.in_its_format()
    }

    /// The fencing token of the attempt: that of its term, or of its acceptance, if the attempt was placed. One leader
    /// may place two attempts of a run, while the first still runs on a node that is cut off; the second has the larger
    /// token.
    pub fn fencing_token(&self) -> FencingToken {
        self.placement.as_ref().and_then(|placement| placement.token).unwrap_or(self.token)
    }

    pub fn id(&self) -> RunId {
        id_of(&self.job, self.scheduled_at, self.trigger.as_ref()).on(self.on.clone())
    }

    /// The time for which the run is made, as its program finds it.
    pub fn made_for(&self) -> Timestamp {
        self.trigger.as_ref().and_then(|trigger| trigger.scheduled_at).unwrap_or(self.scheduled_at)
    }

    /// True if `other` records the same attempt: the same run and attempt number, begun by the same term.
    pub fn is_same_attempt(&self, other: &Self) -> bool {
        (self.token, self.attempt, self.scheduled_at) == (other.token, other.attempt, other.scheduled_at)
            && (&self.job, &self.on) == (&other.job, &other.on)
    }
}

impl RunRecord {
    /// True if an earlier attempt had a process or failed for a reason within the job.
    pub fn has_past(&self) -> bool {
        !self.past.is_empty()
    }

    /// Since when the run may start. Never before its occurrence, even if the clock of the node that wrote `ready_at`
    /// was slow.
    pub fn ready(&self) -> Timestamp {
        self.ready_at.map_or(self.scheduled_at, |ready| ready.max(self.scheduled_at))
    }

    /// The earliest time at which the run may have ended, by a commit that a store has lost: another attempt may have
    /// followed an earlier one.
    pub fn earliest_end(&self) -> Timestamp {
        if self.attempt > 1 { self.scheduled_at.min(self.begun_at) } else { self.begun_at }
    }

    /// Number of consecutive attempts without a process, provided that the current one has none either. Includes the
    /// current one.
    pub fn unstarted_attempts(&self) -> u32 {
        let last = self.past.attempts.last().map_or(0, |last| last.attempt);
        self.attempt.saturating_sub(last)
    }
}

impl RunRecord {
    /// Stores a request to end the run, unless an equally strong one exists. Returns true if it was stored.
    pub fn request_to_end(&mut self, request: KillRequest) -> bool {
        let is_new = self.kill.as_ref().is_none_or(|known| request.force && !known.force);
        if is_new {
            self.kill = Some(Box::new(request));
        }
        is_new
    }
}

/// The outcome of a run that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Its exit code is one of `success_exit_codes`.
    Success,
    /// It ended by itself in any other way, or its program could not be started.
    Failure,
    /// It took longer than `timeout`.
    Timeout,
    /// An operator or the job's next run ended it.
    Killed,
    /// Ended by the drain timeout, the end of the lease, or the death of its node.
    Interrupted,
    /// Nobody knows how it ended: its node stayed cut off until the next occurrence, or the service has lost commits, one
    /// of which may have had its end.
    Abandoned,
}

impl Outcome {
    /// True for the outcomes that `retries` applies to: the run ended by itself or timed out.
    pub fn is_failed(self) -> bool {
        matches!(self, Self::Failure | Self::Timeout)
    }

    /// The value in logs and history.
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

/// The cause of an outcome, where the outcome alone does not show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The program does not exist.
    NotFound,
    /// The program cannot be executed.
    NotExecutable,
    /// The user or group is unknown on this host.
    NoUser,
    /// The working directory cannot be entered.
    NoDirectory,
    /// A file with variables cannot be used.
    NoEnvironment,
    /// A secret cannot be used.
    NoSecret,
    /// The job does not take the parameters in the run's record.
    Parameters,
    /// Memory or a process could not be allocated, or the run was killed at its memory limit.
    NoMemory,
    /// It dumped core.
    CoreDump,
    /// An operator ended it.
    Operator,
    /// The job's next run replaced it (`overlap: replace`).
    Replaced,
    /// The drain timeout passed, or the node had to stop at once.
    Drain,
    /// The node's lease ended.
    Lease,
    /// A lock was lost.
    Lock,
    /// The node died.
    NodeDied,
}

impl Reason {
    /// The value in logs and history.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::NotExecutable => "not-executable",
            Self::NoUser => "no-user",
            Self::NoDirectory => "no-directory",
            Self::NoEnvironment => "no-environment",
            Self::NoSecret => "no-secret",
            Self::Parameters => "parameters",
            Self::NoMemory => "no-memory",
            Self::CoreDump => "core-dump",
            Self::Operator => "operator",
            Self::Replaced => "replaced",
            Self::Drain => "drain",
            Self::Lease => "lease",
            Self::Lock => "lock",
            Self::NodeDied => "node-died",
        }
    }

    /// In words, why the program did not begin; `None` if it did, or may have.
    pub fn prevented_start(self) -> Option<&'static str> {
        match self {
            Self::NotFound => Some("its program was not found"),
            Self::NotExecutable => Some("its program cannot be executed"),
            Self::NoUser => Some("its user or group is unknown on its node"),
            Self::NoDirectory => Some("its working directory cannot be entered"),
            Self::NoEnvironment => Some("one of its environment files cannot be used"),
            Self::NoSecret => Some("one of its secrets cannot be used"),
            Self::Parameters => Some("its job does not take its parameters"),
            _ => None,
        }
    }
}

/// Most bytes that are kept of the end of an attempt's output, before invalid UTF-8 is replaced.
pub const LONGEST_TAIL: usize = 4 << 10;
/// The same of a run that succeeded.
pub const LONGEST_TAIL_OF_SUCCESS: usize = 512;

/// The history record of a run that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunEnd {
    /// Format version of the record.
    pub v: u32,
    /// The run's last record.
    pub run: RunRecord,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Exit code of the main process, if it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended the main process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// When it ended, or when the leader settled it.
    pub ended_at: Timestamp,
    /// How long the attempt ran, in milliseconds; `None` if no process was started or nobody observed its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Number of processes of the run that outlived the main process and were killed.
    #[serde(default)]
    pub leftovers: u32,
    /// The end of its output. Invalid UTF-8 is replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tail: String,
    /// Bytes of output that were not logged.
    #[serde(default)]
    pub dropped_bytes: u64,
    /// Names what a failed start failed over, or why the run was abandoned, in at most some 300 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

impl RunEnd {
    /// The end of a run that never had a process, or whose process nobody observed.
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
            detail: None,
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
    Run(RunEnd),
    Skip(Skip),
}

impl HistoryRecord {
    /// The time by which the history is ordered.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Run(end) => end.ended_at,
            Self::Skip(skip) => skip.decided_at,
        }
    }

    pub fn job(&self) -> &JobName {
        match self {
            Self::Run(end) => &end.run.job,
            Self::Skip(skip) => &skip.job,
        }
    }

    /// The node that owned the run, or that decided to skip.
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Run(end) => &end.run.owner.node,
            Self::Skip(skip) => &skip.node,
        }
    }

    /// The node that it is about: that of the share, or of the run, else the one that decided to skip. A share that ended
    /// before its node had it is the leader's.
    pub fn about(&self) -> &NodeName {
        match self {
            Self::Skip(Skip { on: Some(node), .. }) => node,
            Self::Run(end) => end.run.on.as_ref().unwrap_or(&end.run.owner.node),
            Self::Skip(_) => self.node(),
        }
    }

    /// The trigger that requested it; `None` if it was scheduled.
    pub fn trigger(&self) -> Option<&Trigger> {
        match self {
            Self::Run(end) => end.run.trigger.as_ref(),
            Self::Skip(skip) => skip.trigger.as_ref(),
        }
    }

    pub fn id(&self) -> RunId {
        match self {
            Self::Run(end) => end.run.id(),
            Self::Skip(skip) => skip.id(),
        }
    }
}

/// A duration in milliseconds, as in logs and history.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
