//! A record of the history as it is shown: flat, and without what only the ledger needs.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::job::JobName;
use crate::run::{Attempt, HistoryRecord, Outcome, Reason, RunEnd, RunId, Skip, SkipReason};
use crate::term::{FencingToken, NodeName};

/// One record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HistoryEntry {
    /// A run that ended.
    Run(Box<EndedRun>),
    /// Occurrences that were skipped.
    Skip(Skipped),
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRun {
    /// The job.
    pub job: JobName,
    /// The run.
    pub run: RunId,
    /// The occurrence, or when the trigger was made.
    pub scheduled_at: Timestamp,
    /// Who triggered it; absent for a scheduled run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_by: Option<String>,
    /// The node that had it.
    pub node: NodeName,
    /// Of the term that began the last attempt.
    pub token: FencingToken,
    /// Which attempt was the last, from 1.
    pub attempt: u32,
    /// When that was begun.
    pub begun_at: Timestamp,
    /// When it ended, or was settled.
    pub ended_at: Timestamp,
    /// How long it ran, where that is known.
    pub duration_ms: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// What the outcome does not say.
    pub reason: Option<Reason>,
    /// Of the main process, when it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended the main process.
    pub signal: Option<i32>,
    /// Processes that outlived the main process and were killed.
    pub leftovers: u32,
    /// Bytes of output that were not logged.
    pub dropped_bytes: u64,
    /// The last of its output.
    pub tail: String,
    /// The newest attempts before the last one, oldest first.
    #[serde(default)]
    pub earlier_attempts: Vec<Attempt>,
}

/// Occurrences that were skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The job.
    pub job: JobName,
    /// The run that the first of them would have been.
    pub run: RunId,
    /// Why.
    pub reason: SkipReason,
    /// The first of them.
    pub first: Timestamp,
    /// Who triggered the run that was not; absent for occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_by: Option<String>,
    /// The last of them.
    pub last: Timestamp,
    /// How many.
    pub count: u64,
    /// The node that decided.
    pub node: NodeName,
    /// Of the term that decided.
    pub token: FencingToken,
    /// When it decided last.
    pub decided_at: Timestamp,
}

impl From<HistoryRecord> for HistoryEntry {
    fn from(record: HistoryRecord) -> Self {
        match record {
            HistoryRecord::Run(end) => Self::Run(Box::new(end.into())),
            HistoryRecord::Skip(skip) => Self::Skip(skip.into()),
        }
    }
}

impl From<RunEnd> for EndedRun {
    fn from(end: RunEnd) -> Self {
        Self {
            run: end.run.id(),
            job: end.run.job,
            scheduled_at: end.run.scheduled_at,
            triggered_by: end.run.trigger.map(|trigger| trigger.by),
            node: end.run.owner.node,
            token: end.run.token,
            attempt: end.run.attempt,
            begun_at: end.run.begun_at,
            ended_at: end.ended_at,
            duration_ms: end.duration_ms,
            outcome: end.outcome,
            reason: end.reason,
            exit_code: end.exit_code,
            signal: end.signal,
            leftovers: end.leftovers,
            dropped_bytes: end.dropped_bytes,
            tail: end.tail,
            earlier_attempts: end.run.past.attempts,
        }
    }
}

impl From<Skip> for Skipped {
    fn from(skip: Skip) -> Self {
        Self {
            run: skip.id(),
            job: skip.job,
            reason: skip.reason,
            first: skip.first,
            triggered_by: skip.trigger.map(|trigger| trigger.by),
            last: skip.last,
            count: skip.count,
            node: skip.node,
            token: skip.token,
            decided_at: skip.decided_at,
        }
    }
}
