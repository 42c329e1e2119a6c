//! Links: the results of upstream runs, stored for the jobs that run after them.
//!
//! The node that ends a run or skips an occurrence writes a link for each job that runs directly after it, in the same
//! write. So a chain continues under any leader, and none of its steps is lost.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::parameters::{Parameters, UnreadableRecord, format_of, known_format};
use super::{Outcome, RunEnd, RunId, Skip, Trigger, TriggerRecord};
use crate::job::{Condition, JobName};

/// The result of an upstream's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpstreamResult {
    /// It succeeded.
    Success,
    /// It ended with another outcome.
    Otherwise,
    /// It was skipped in a chain that had already begun.
    Skipped,
    /// The chain's first run was skipped, so the chain never began.
    NotBegun,
}

impl UpstreamResult {
    /// True if a job with this condition may run after it.
    pub fn meets(self, condition: Condition) -> bool {
        match condition {
            Condition::Success => self == Self::Success,
            Condition::Always => self != Self::NotBegun,
        }
    }
}

/// A link, stored in the ledger's `triggers/<seq>`: the result of one job's run, for one job that runs after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Format version of the record.
    pub v: u32,
    /// The job whose run ended or was skipped.
    pub upstream: JobName,
    /// The downstream job.
    pub job: JobName,
    /// The occurrence or trigger time of the chain's first job. If several occurrences were skipped at once, the first
    /// of them.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub scheduled_at: Timestamp,
    /// The last of these occurrences and their number.
    #[serde(flatten)]
    pub span: Span,
    /// The trigger that began the chain; `None` if the schedule did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    #[serde(rename = "answer")]
    pub result: UpstreamResult,
    /// When the run ended or was skipped.
    pub at: Timestamp,
    /// The earliest time at which it may have ended or been skipped before, by a commit that a store has lost; `None`
    /// means `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
}

/// A number of consecutive occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The last occurrence.
    pub last: Timestamp,
    /// Number of occurrences; never 0.
    pub count: u64,
}

impl Link {
    /// The id of the downstream run that the link may lead to.
    pub fn run(&self) -> RunId {
        super::id_of(&self.job, self.scheduled_at, self.trigger.as_ref())
    }

    /// The links that a run's end writes.
    pub fn of_end(end: &RunEnd) -> impl Iterator<Item = Self> {
        let result = if end.outcome == Outcome::Success { UpstreamResult::Success } else { UpstreamResult::Otherwise };
        // A first attempt whose node saw its end has ended once.
        let is_only_end = end.run.attempt == 1 && end.duration_ms.is_some();
        let since = (!is_only_end).then(|| end.run.earliest_end());
        end.run.dependents.iter().map(move |job| Self {
            v: format_of(end.run.trigger.as_ref(), &Parameters::default()),
            upstream: end.run.job.clone(),
            job: job.clone(),
            scheduled_at: end.run.scheduled_at,
            span: Span { last: end.run.scheduled_at, count: 1 },
            trigger: end.run.trigger.clone(),
            result,
            at: end.ended_at,
            since,
        })
    }

    /// The links that a skip of `count` occurrences from `first` on writes for these jobs.
    pub fn of_skip(
        skip: &Skip,
        first: Timestamp,
        count: u64,
        result: UpstreamResult,
        dependents: &[JobName],
    ) -> Vec<Self> {
        let link = |job: &JobName| Self {
            v: format_of(skip.trigger.as_ref(), &Parameters::default()),
            upstream: skip.job.clone(),
            job: job.clone(),
            scheduled_at: first,
            span: Span { last: skip.last, count },
            trigger: skip.trigger.clone(),
            result,
            at: skip.decided_at,
            since: None,
        };
        dependents.iter().map(link).collect()
    }

    /// The same links, of what may have been decided before since then.
    pub fn since(links: Vec<Self>, since: Option<Timestamp>) -> Vec<Self> {
        links.into_iter().map(|link| Self { since, ..link }).collect()
    }

    /// The earliest time at which the run may have ended or been skipped, as far as commits can be lost.
    pub fn earliest(&self) -> Timestamp {
        self.since.map_or(self.at, |since| since.min(self.at))
    }
}

/// A record under the ledger's `triggers`: an operator's request or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Trigger(TriggerRecord),
    Link(Link),
}

impl Note {
    /// Parses a record from JSON.
    ///
    /// # Errors
    /// If it is neither of the two, or has a newer format: then a node of that version decides on it.
    pub fn read(json: &[u8]) -> Result<Self, UnreadableRecord> {
        /// The field that only a link has.
        #[derive(Deserialize)]
        struct LinkMarker {
            upstream: Option<serde::de::IgnoredAny>,
        }
        let note = match serde_json::from_slice::<LinkMarker>(json)?.upstream {
            Some(_) => Self::Link(serde_json::from_slice(json)?),
            None => Self::Trigger(serde_json::from_slice(json)?),
        };
        known_format(match &note {
            Self::Trigger(record) => record.v,
            Self::Link(link) => link.v,
        })?;
        Ok(note)
    }

    /// The job that the record is for.
    pub fn into_job(self) -> JobName {
        match self {
            Self::Trigger(record) => record.job,
            Self::Link(link) => link.job,
        }
    }
}
