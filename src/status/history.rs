//! A record of the history as shown to operators: flat, without the fields that only the ledger needs.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::shown;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::ledger::filter::{Ending, Kind, Position};
use cronkeeper_core::run::{
    Attempt, HistoryRecord, LONGEST_TAIL, LONGEST_TAIL_OF_SUCCESS, Outcome, Reason, RunEnd, RunId, Skip, SkipReason,
};
use cronkeeper_core::term::{FencingToken, NodeName};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum HistoryEntry {
    Run(Box<EndedRun>),
    Skip(Box<Skipped>),
}

/// A run that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct EndedRun {
    pub job: JobName,
    pub run: RunId,
    /// The time of the occurrence, or of the trigger.
    pub scheduled_at: Timestamp,
    /// Who triggered the run; absent for a scheduled run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_by: Option<String>,
    /// The time for which it was triggered, which its program found as CRONKEEPER_SCHEDULED_AT; absent if the trigger named
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_for: Option<Timestamp>,
    /// The variables that the trigger set; left out on TCP without the token.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Who killed it: an operator, or the job's next run; absent if it was not killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed_by: Option<String>,
    /// The node that owned the run.
    pub node: NodeName,
    /// The fencing token of the last attempt: that of the term that began it, or, of a job with `run_on: any`, of its
    /// acceptance by the node.
    pub token: FencingToken,
    /// The number of the last attempt, from 1.
    pub attempt: u32,
    /// When the last attempt began.
    pub begun_at: Timestamp,
    /// When the last attempt's process started; absent if none did. If nobody saw its end, when it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When the run ended, or was settled.
    pub ended_at: Timestamp,
    /// Absent if it is not known.
    pub duration_ms: Option<u64>,
    pub outcome: Outcome,
    /// Details that the outcome does not contain.
    pub reason: Option<Reason>,
    /// The exit code of the main process, if it exited.
    pub exit_code: Option<i32>,
    /// The signal that ended the main process, if one did.
    pub signal: Option<i32>,
    /// Number of processes that outlived the main process and were killed.
    pub leftovers: u32,
    /// Bytes of output that were not logged.
    pub dropped_bytes: u64,
    /// Names what a failed start failed over, or why a run was abandoned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The end of the run's output.
    pub tail: String,
    /// The newest attempts before the last one, oldest first.
    #[serde(default)]
    pub earlier_attempts: Vec<Attempt>,
}

/// Occurrences that were skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Skipped {
    pub job: JobName,
    /// The run that the first occurrence would have been.
    pub run: RunId,
    pub reason: SkipReason,
    /// The first skipped occurrence.
    pub first: Timestamp,
    /// Who triggered the skipped run; absent for occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_by: Option<String>,
    /// The time for which the skipped run was triggered; absent if the trigger named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub triggered_for: Option<Timestamp>,
    /// The last skipped occurrence.
    pub last: Timestamp,
    pub count: u64,
    /// What kept the nodes from the last one, if no node took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The leader that decided to skip.
    pub node: NodeName,
    /// The token of its term.
    pub token: FencingToken,
    /// When it last added to this record.
    pub decided_at: Timestamp,
}

/// So many bytes at most are left out at the beginning of a kept end besides what does not fit: the rest of a character.
const REST_OF_CHARACTER: usize = 3;

impl EndedRun {
    /// True if the kept end is all that the last attempt has written.
    pub fn keeps_all_output(&self) -> bool {
        let longest = if self.outcome == Outcome::Success { LONGEST_TAIL_OF_SUCCESS } else { LONGEST_TAIL };
        let is_whole = self.tail.len() < longest - REST_OF_CHARACTER;
        self.duration_ms.is_some() && self.dropped_bytes == 0 && is_whole
    }

    /// Why it was not waited for any longer, if it was abandoned: `host-a did not come back before the next occurrence`.
    pub fn why_abandoned(&self) -> Option<&str> {
        self.detail.as_deref().and_then(shown).filter(|_| self.outcome == Outcome::Abandoned)
    }
}

impl Skipped {
    /// The reason, with what explains it: `no-node: no node has gpu (host-a: none)`.
    pub fn explained(&self) -> String {
        let of_share = self.run.node().filter(|_| self.reason == SkipReason::NoNode);
        let plain = || match of_share {
            Some(node) => format!("{}: {node} could not take it in time", self.reason.as_str()),
            None => self.reason.explained(&self.node),
        };
        self.details().unwrap_or_else(plain)
    }

    /// The same, with no more than the name of a reason that has no details.
    pub fn briefly(&self) -> String {
        self.details().unwrap_or_else(|| self.reason.as_str().to_owned())
    }

    fn details(&self) -> Option<String> {
        let detail = self.detail.as_deref().and_then(shown)?;
        Some(format!("{}: {detail}", self.reason.as_str()))
    }
}

/// What an outcome does not say: `no-memory, signal 9`, `exit 3`; empty if there is nothing.
pub fn ending_details(reason: Option<Reason>, exit_code: Option<i32>, signal: Option<i32>) -> String {
    let end = match (exit_code, signal) {
        (Some(code), _) if code != 0 => Some(format!("exit {code}")),
        (_, Some(signal)) => Some(format!("signal {signal}")),
        _ => None,
    };
    let parts = reason.map(|reason| reason.as_str().to_owned()).into_iter().chain(end);
    parts.collect::<Vec<_>>().join(", ")
}

impl HistoryEntry {
    /// Its place in the history, and its identity.
    pub fn position(&self) -> Position {
        let (run, kind) = match self {
            Self::Run(run) => (&run.run, Kind::Run),
            Self::Skip(skip) => (&skip.run, Kind::Skip),
        };
        Position { at: self.at().as_microsecond(), run: run.to_string(), kind }
    }

    /// The time by which the history is ordered.
    pub fn at(&self) -> Timestamp {
        match self {
            Self::Run(run) => run.ended_at,
            Self::Skip(skip) => skip.decided_at,
        }
    }

    /// The node that owned the run, or that decided to skip.
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Run(run) => &run.node,
            Self::Skip(skip) => &skip.node,
        }
    }

    /// The node that it is about: that of the share, or of the run, else the one that decided to skip. A share that ended
    /// before its node had it is the leader's.
    pub fn about(&self) -> &NodeName {
        let run = match self {
            Self::Run(run) => &run.run,
            Self::Skip(skip) => &skip.run,
        };
        run.node().unwrap_or_else(|| self.node())
    }

    /// True if the filter wants it.
    pub fn is_wanted(&self, filter: &Filter) -> bool {
        let (job, ending) = match self {
            Self::Run(run) => (&run.job, Ending::Run(run.outcome)),
            Self::Skip(skip) => (&skip.job, Ending::Skipped),
        };
        filter.wants_job(job.as_str())
            && filter.wants_ending(ending.as_str())
            && filter.wants_node(self.about().as_str())
            && filter.wants_position(&self.position())
    }
}

impl From<HistoryRecord> for HistoryEntry {
    fn from(record: HistoryRecord) -> Self {
        match record {
            HistoryRecord::Run(end) => Self::Run(Box::new(end.into())),
            HistoryRecord::Skip(skip) => Self::Skip(Box::new(skip.into())),
        }
    }
}

impl From<RunEnd> for EndedRun {
    fn from(end: RunEnd) -> Self {
        let started_at = started_at(&end);
        let triggered_for = end.run.trigger.as_ref().and_then(|trigger| trigger.scheduled_at);
        // A run may end by itself while a request to end it is on its way.
        let killed_by = end.run.kill.as_ref().filter(|_| end.outcome == Outcome::Killed).map(|kill| kill.by.clone());
        let token = end.run.fencing_token();
        Self {
            run: end.run.id(),
            job: end.run.job,
            scheduled_at: end.run.scheduled_at,
            triggered_by: end.run.trigger.map(|trigger| trigger.by),
            triggered_for,
            parameters: end.run.parameters.into(),
            killed_by,
            node: end.run.owner.node,
            token,
            attempt: end.run.attempt,
            begun_at: end.run.begun_at,
            started_at,
            ended_at: end.ended_at,
            duration_ms: end.duration_ms,
            outcome: end.outcome,
            reason: end.reason,
            exit_code: end.exit_code,
            signal: end.signal,
            leftovers: end.leftovers,
            dropped_bytes: end.dropped_bytes,
            detail: end.detail,
            tail: end.tail,
            earlier_attempts: end.run.past.attempts,
        }
    }
}

/// An occurrence is begun shortly before its time, so its record does not tell when the process started. Of an attempt
/// whose end nobody saw, nothing else is known.
fn started_at(end: &RunEnd) -> Option<Timestamp> {
    let is_lost = end.reason == Some(Reason::NodeDied) || end.outcome == Outcome::Abandoned;
    match end.duration_ms {
        Some(duration) => end.ended_at.checked_sub(Duration::from_millis(duration)).ok(),
        None => (is_lost && end.run.state.has_process()).then(|| end.run.begun_at.max(end.run.scheduled_at)),
    }
}

impl From<Skip> for Skipped {
    fn from(skip: Skip) -> Self {
        Self {
            run: skip.id(),
            job: skip.job,
            reason: skip.reason,
            first: skip.first,
            triggered_for: skip.trigger.as_ref().and_then(|trigger| trigger.scheduled_at),
            triggered_by: skip.trigger.map(|trigger| trigger.by),
            last: skip.last,
            count: skip.count,
            detail: skip.detail,
            node: skip.node,
            token: skip.token,
            decided_at: skip.decided_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::record;
    use cronkeeper_core::run::RunState;

    fn lost(state: RunState, outcome: Outcome, reason: Option<Reason>) -> Option<Timestamp> {
        let mut run = record("load", 60, "s");
        (run.state, run.begun_at) = (state, run.scheduled_at + Duration::from_millis(5));
        let end = RunEnd::unseen(&run, outcome, reason, run.scheduled_at + Duration::from_secs(60));
        EndedRun::from(end).started_at
    }

    #[test]
    fn a_run_that_was_lost_had_started_when_it_was_begun() {
        let begun = Some(record("load", 60, "s").scheduled_at + Duration::from_millis(5));
        let died = Some(Reason::NodeDied);
        assert_eq!(lost(RunState::Running, Outcome::Interrupted, died), begun);
        assert_eq!(lost(RunState::CutOff, Outcome::Interrupted, died), begun);
        assert_eq!(lost(RunState::CutOff, Outcome::Abandoned, None), begun);
        assert_eq!(lost(RunState::Unstarted, Outcome::Interrupted, died), None, "it had no process");
        assert_eq!(lost(RunState::Running, Outcome::Failure, Some(Reason::NotFound)), None);
        assert_eq!(lost(RunState::Queued, Outcome::Killed, Some(Reason::Operator)), None);
    }

    #[test]
    fn a_share_is_about_its_node_also_if_that_never_had_it() {
        let mut run = record("load", 60, "s");
        (run.on, run.state) = (Some(NodeName::new("host-c")), RunState::Queued);
        let end = RunEnd::unseen(&run, Outcome::Killed, Some(Reason::Operator), run.scheduled_at);
        let record = HistoryRecord::Run(end);
        assert_eq!(record.about(), &NodeName::new("host-c"));
        let entry = HistoryEntry::from(record.clone());
        assert_eq!((entry.about(), entry.node()), (record.about(), record.node()), "its owner is the leader");
        assert_ne!(entry.about(), entry.node());
    }
}
