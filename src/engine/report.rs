//! What the engine has to tell people: the facts behind the log events of terms and runs.
//!
//! The engine stays silent itself; whoever performs its commands logs these, counts them, and shows them.

use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::election::TransferError;
use crate::job::{Hook, JobName};
use crate::process::{Exit, StartFailure};
use crate::run::{Pause, Reason, RunEnd, RunId, Skip};
use crate::term::{FencingToken, NodeName, Term, TermEnd};

/// A fact worth a log line.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// This node leads.
    Elected {
        /// The term.
        term: Term,
        /// From knowing to be first until now.
        took: Duration,
    },
    /// This node no longer leads.
    TermOver {
        /// The term.
        token: FencingToken,
        /// Why.
        why: TermEnd,
    },
    /// This node gives leadership away by itself.
    GivingUp {
        /// To whom; absent: to the next in line.
        to: Option<NodeName>,
        /// Why.
        why: Unfit,
    },
    /// Leadership was not given to the node that was to have it.
    NotTransferred {
        /// The node.
        to: NodeName,
        /// Why.
        why: TransferError,
    },
    /// What earlier leaders left is settled.
    TakeoverDone {
        /// The term.
        token: FencingToken,
        /// Runs that were begun again, ended or marked cut off.
        settled: u64,
        /// Occurrences recorded as missed.
        missed: u64,
        /// From the election until now.
        took: Duration,
    },
    /// A process of a run was started.
    Started {
        /// The run.
        run: RunId,
        /// Which of its attempts.
        attempt: u32,
        /// Of the term that began it.
        token: FencingToken,
        /// Its main process.
        pid: i32,
        /// From its scheduled time until the start.
        lateness: Duration,
    },
    /// A run ended, here or settled for a node that is gone.
    Finished(Box<RunEnd>),
    /// An attempt ended here, and a leader is to begin another.
    Retrying {
        /// How it ended.
        end: Box<RunEnd>,
        /// From its end to the next attempt.
        delay: Duration,
    },
    /// An attempt that was begun had no process, and a leader is to begin the next.
    Unstarted {
        /// The run.
        run: RunId,
        /// Which of its attempts.
        attempt: u32,
        /// Why none was started.
        reason: Option<Reason>,
    },
    /// A hook was run, or was to be.
    HookFinished {
        /// Which.
        hook: Hook,
        /// The run it was about.
        run: RunId,
        /// How it went.
        how: HookOutcome,
    },
    /// Occurrences were skipped, and that is written down. What is told is this decision, not all neighbours.
    Skipped {
        /// The record, with all neighbours.
        skip: Skip,
        /// The first of this decision.
        first: Timestamp,
        /// How many in this decision.
        count: u64,
    },
    /// A trigger's run was begun.
    Triggered {
        /// The run.
        run: RunId,
        /// Who asked for it.
        by: String,
    },
    /// The leader has heard that a job is paused.
    Paused {
        /// The job.
        job: JobName,
        /// By whom, and why.
        pause: Pause,
    },
    /// The leader has ended a job's pause.
    Resumed {
        /// The job.
        job: JobName,
        /// Who asked for it.
        by: String,
    },
    /// What was kept of a job that no node's files define any more is removed.
    Forgotten {
        /// The job.
        job: JobName,
        /// How many records its history had.
        records: usize,
    },
    /// A run that this node had was settled by another meanwhile.
    Superseded {
        /// The run.
        run: RunId,
    },
    /// A run's node is gone without a word; it may go on there.
    CutOff {
        /// The run.
        run: RunId,
        /// The node.
        owner: NodeName,
        /// How long it may go on; without limit where absent.
        keep_until: Option<Timestamp>,
    },
    /// The node was told to end and waits for its runs.
    Draining {
        /// Runs in flight here.
        runs: usize,
        /// How long it waits.
        timeout: Duration,
    },
    /// The node ends though its ledger does not know the ends of all its runs: the state directory keeps them.
    Unsettled {
        /// How many.
        runs: usize,
    },
    /// The time of day was set.
    ClockStepped {
        /// Forwards, or, negative, backwards.
        by: SignedDuration,
    },
    /// This node's clock and the coordination service's differ otherwise than was told before.
    ClockSkewed {
        /// How far this node's is ahead, or, negative, behind; as much as is sure.
        by: SignedDuration,
        /// True where it is so far ahead that occurrences have to wait.
        holds: bool,
    },
    /// A job's mark was found ahead of the time.
    MarkAhead {
        /// The job.
        job: JobName,
        /// The mark.
        ahead: MarkAhead,
    },
    /// A record of the ledger cannot be read; it was passed over.
    Damaged(String),
    /// An occurrence's place in the ledger is taken by something that is not its run.
    Obstructed {
        /// The job.
        job: JobName,
        /// The run.
        run: RunId,
    },
    /// The state of a run did not allow a step, so nothing was done about it: a bug.
    IllegalStep { run: RunId, why: IllegalStep },
}

/// How a hook went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookOutcome {
    /// It ended by itself.
    Exited(Exit),
    /// It could not be started.
    NotStarted(StartFailure),
    /// It took too long.
    TimedOut,
    /// The node ended.
    Killed,
    /// It was not started: too many waited, or the node ended.
    Dropped,
}

impl HookOutcome {
    /// The word in logs.
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

/// Why a node gives leadership away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It cannot start processes.
    NoStarts,
    /// Its jobs file is invalid, the other's is not.
    InvalidFile,
    /// The operator prefers the other.
    LowerPriority,
}

impl Unfit {
    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoStarts => "processes cannot be started here",
            Self::InvalidFile => "the jobs file here is invalid, and there it is not",
            Self::LowerPriority => "it is preferred",
        }
    }
}

/// A job's mark that lies ahead of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkAhead {
    pub mark: Timestamp,
    /// True where occurrences before it are decided on all the same.
    pub is_ignored: bool,
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
