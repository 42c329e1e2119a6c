//! Reports of the engine: the facts behind the log events of terms and runs.
//!
//! The engine does not log. The daemon, which performs its commands, logs these reports, counts them, and shows them.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock::instant;
use crate::election::TransferError;
use crate::job::{Alarm, JobName};
use crate::lock::LockPath;
use crate::process::{Exit, StartFailure};
use crate::run::{Drain, Outcome, Pause, RaisedAlarm, Reason, RefusalReason, RunEnd, RunId, Skip};
use crate::start_problem::StartProblem;
use crate::term::{FencingToken, NodeName, Term, TermEnd};

/// What a pause that ended by itself was ended by: this, and who paused.
pub const END_OF_PAUSE: &str = "the end of the pause by ";

/// A fact to log.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// This node leads.
    Elected {
        term: Term,
        /// From reading that its candidate is first until now.
        took: Duration,
    },
    /// This node no longer leads.
    TermOver { token: FencingToken, why: TermEnd },
    /// This node gives leadership up by its own decision.
    GivingUp {
        /// The next leader; absent: the next in the queue.
        to: Option<NodeName>,
        why: Unfit,
    },
    /// Leadership was not handed over to the node that was to get it.
    NotTransferred { to: NodeName, why: TransferError },
    /// The runs and jobs that earlier leaders left are settled.
    TakeoverDone {
        token: FencingToken,
        /// Runs that were begun again or ended.
        settled: u64,
        /// Runs that were marked as cut off.
        cut_off: u64,
        /// Occurrences recorded as missed.
        missed: u64,
        /// From the election until now.
        took: Duration,
    },
    /// A process of a run was started.
    Started {
        run: RunId,
        attempt: u32,
        /// Token of the term in which the attempt was begun.
        token: FencingToken,
        /// The main process.
        pid: i32,
        /// When its program began.
        started_at: Timestamp,
        /// From when it was due to its start; absent if the run has had a process before, because no time was set for
        /// another.
        lateness: Option<Duration>,
    },
    /// The leader has placed an attempt on a node.
    Placed { run: RunId, attempt: u32, to: NodeName },
    /// This node has refused an attempt that was placed here.
    Refused { run: RunId, node: NodeName, reason: RefusalReason },
    /// The leader has taken an attempt back that was not accepted. `to`: the node that has the next one, if any.
    Moved {
        run: RunId,
        from: NodeName,
        to: Option<NodeName>,
        /// `overdue`, `node-gone`, `node-drained` or `offer-removed`.
        reason: &'static str,
    },
    /// No node can take a run now: it waits for one.
    Unplaced {
        run: RunId,
        /// What keeps each node from it.
        why: String,
    },
    /// No node can run a job that is to be placed, as far as the leader knows.
    Unplaceable {
        job: JobName,
        /// What keeps each node from it.
        why: String,
    },
    /// A node can run the job again.
    Placeable { job: JobName },
    /// A node has not accepted in time what was placed there. It gets nothing more while others can.
    Suspect { node: NodeName },
    /// A run ended, here or settled for a node that is gone.
    Finished(Box<RunEnd>),
    /// The ledger accepted an end from this node. One end of each run is recorded, by one node; an end that was
    /// superseded is not.
    Recorded(Box<RunEnd>),
    /// An attempt ended here, and a leader must begin another.
    Retrying {
        end: Box<RunEnd>,
        /// From the attempt's end to the next attempt.
        delay: Duration,
    },
    /// An attempt was killed here because the lease is over or a lock is lost, and another node may begin the next.
    Killed { run: RunId, attempt: u32, reason: Option<Reason> },
    /// An attempt was begun but not started, and a leader must begin the next.
    Unstarted {
        run: RunId,
        attempt: u32,
        /// Why no process was started.
        reason: Option<Reason>,
    },
    /// The process of an attempt could not be started.
    NotStarted { run: RunId, attempt: u32, problem: StartProblem },
    /// A hook starts without a file of its job.
    HookWithoutFile {
        /// The hook's key.
        hook: &'static str,
        job: JobName,
        /// The run that the hook is about; `None` if it is about no run.
        run: Option<RunId>,
        /// The file, and why it cannot be used.
        problem: StartProblem,
    },
    /// A hook ended, or was not started.
    HookFinished {
        /// The hook's key.
        hook: &'static str,
        /// `None` for a hook of the node itself.
        job: Option<JobName>,
        /// The run that the hook was about; `None` if it was about no run.
        run: Option<RunId>,
        how: HookOutcome,
        /// What its start failed over, if that is why it was not started.
        problem: Option<StartProblem>,
    },
    /// Occurrences were skipped, and the ledger has the skip. `first` and `count` cover only those of this decision.
    Skipped {
        /// The skip record, which may cover neighbouring occurrences too.
        skip: Skip,
        /// The first occurrence of this decision.
        first: Timestamp,
        /// Number of occurrences in this decision.
        count: u64,
    },
    /// A trigger's run was begun.
    Triggered {
        run: RunId,
        /// Who requested it.
        by: String,
        /// The names of its parameters, with commas between.
        parameters: String,
    },
    /// The leader has read that a job is paused.
    Paused { job: JobName, pause: Pause },
    /// The leader has ended a job's pause.
    Resumed {
        job: JobName,
        /// Who requested it.
        by: String,
    },
    /// An alarm was raised or has ended, and the ledger has it.
    Alarm(AlarmNews),
    /// The records of a job that no node's file defines any more were removed.
    Forgotten {
        job: JobName,
        /// Number of records in its history.
        records: usize,
    },
    /// The node has been away for so long that it is no place to run jobs any more.
    ForgottenNode { node: NodeName },
    /// Somebody else has ended a lock that a run held.
    LockLost { run: RunId, path: LockPath },
    /// Somebody asks to release a lock that a run holds.
    LockRevokeRequested { run: RunId, path: LockPath },
    /// The service refuses a lock that a run waits for; the request is repeated.
    LockRefused { run: RunId, why: String },
    /// Another node has settled a run that this node had.
    Superseded {
        run: RunId,
        /// How it ended here, if it has.
        outcome: Option<Outcome>,
    },
    /// The coordination service has lost what it had acknowledged about a run of this node.
    Rewound {
        run: RunId,
        /// How it ended; absent if it has not, if another attempt was to follow, or if nobody knows any more.
        outcome: Option<Outcome>,
    },
    /// The leader has begun a run again, as its job says, although it may have gone on or ended by a commit that the
    /// service has lost.
    BegunInDoubt { run: RunId, attempt: u32 },
    /// The coordination service has lost a job's mark that it had acknowledged to this leader, or somebody has set the
    /// mark back by hand.
    MarkRewound {
        job: JobName,
        /// The mark in the record as read, as far as the job is counted; absent if that cannot be read.
        found: Option<Timestamp>,
        /// The mark that is written again.
        mark: Timestamp,
    },
    /// A run's node is gone without having ended the run; the run may go on there.
    CutOff {
        run: RunId,
        owner: NodeName,
        /// Until when the run may go on; absent: without limit.
        keep_until: Option<Timestamp>,
    },
    /// The node was requested to end and waits for its runs, for at most `timeout`.
    Draining {
        /// Number of runs in flight here.
        runs: usize,
        /// The first of them.
        first: Vec<RunId>,
        timeout: Duration,
    },
    /// An operator has drained the node: it leads no more.
    Drained {
        drain: Drain,
        /// Number of runs in flight here.
        runs: usize,
        /// The first of them.
        first: Vec<RunId>,
    },
    /// The node is no longer drained.
    Undrained {
        /// The drain that is over.
        drain: Drain,
    },
    /// The node exits although the ledger does not have the ends of all its runs. The state directory keeps them.
    Unsettled { runs: usize },
    /// The wall clock was set.
    ClockStepped {
        /// Forwards; negative: backwards.
        by: SignedDuration,
    },
    /// The skew between this node's clock and the coordination service's has changed.
    ClockSkewed {
        /// How far this node's clock is at least ahead; negative: behind.
        by: SignedDuration,
        /// True if it is so far ahead that occurrences have to wait.
        holds: bool,
    },
    /// A job's schedule differs from the one by which it was last decided on, and of that only a digest is known. What
    /// it had due after `since`, up to `until`, has no record.
    Edited { job: JobName, since: Timestamp, until: Timestamp },
    /// A job's mark is in the future.
    MarkAhead { job: JobName, ahead: MarkAhead },
    /// An operator has had a job recounted.
    Recounted {
        job: JobName,
        /// Who asked for it.
        by: String,
        /// The time from which it is counted.
        from: Timestamp,
        /// Number of later occurrences that were decided on before, and are not decided on again.
        listed: usize,
    },
    /// A record of the ledger is not readable and was ignored.
    Damaged(String),
    /// The path of an occurrence's run in the ledger is taken by something that is not that run.
    Obstructed { job: JobName, run: RunId },
    /// The state of a run did not allow a step, so the step was not taken: a bug.
    IllegalStep { run: RunId, why: IllegalStep },
}

/// An alarm that was raised or has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct AlarmNews {
    pub job: JobName,
    pub alarm: Alarm,
    /// The alarm as it is, or as it was until now.
    pub raised: RaisedAlarm,
    pub change: AlarmChange,
}

/// What has become of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmChange {
    Raised,
    Ended,
}

/// Outcome of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    Exited(Exit),
    NotStarted(StartFailure),
    TimedOut,
    /// The node ended first.
    Killed,
    /// Not started, because too many hooks waited or the node ended.
    Dropped,
}

impl HookOutcome {
    /// The outcome as it appears in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited(Exit::Code(0)) => "success",
            Self::Exited(_) | Self::NotStarted(_) => "failure",
            Self::TimedOut => "timeout",
            Self::Killed => "killed",
            Self::Dropped => "dropped",
        }
    }
}

/// Reason why a node gives leadership up by its own decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// This node cannot start processes.
    NoStarts,
    /// This node's jobs file is invalid, and the other's is valid.
    InvalidFile,
    /// The other node has a higher priority.
    LowerPriority,
}

impl Unfit {
    /// The reason as it appears in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoStarts => "no-starts",
            Self::InvalidFile => "invalid-file",
            Self::LowerPriority => "priority",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::NoStarts => "processes cannot be started here",
            Self::InvalidFile => "the jobs file here is invalid, and the other node's is valid",
            Self::LowerPriority => "the other node has a higher priority",
        }
    }
}

/// A job's mark that is in the future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkAhead {
    pub mark: Timestamp,
    /// True if occurrences before the mark are decided on regardless: no leader wrote it.
    pub is_ignored: bool,
}

/// Says why it is a problem, and what the leader does about it.
impl fmt::Display for MarkAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let then = match self.is_ignored {
            true => "and no leader wrote it; ignoring it",
            false => "because the clocks went back; no occurrence is due before it",
        };
        write!(f, "last-scheduled time ({}) is in the future {then}", instant(self.mark))
    }
}

/// A step that the run's state does not allow: a bug. The state stays as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IllegalStep {
    pub state: &'static str,
    pub step: &'static str,
}

impl fmt::Display for IllegalStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a run that is {} cannot {}", self.state, self.step)
    }
}
