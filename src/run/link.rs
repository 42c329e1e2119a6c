//! What a job that runs after others waits for: a link of the chain, which says what became of one upstream's run.
//!
//! Whoever ends a run, or skips an occurrence, leaves a link for each job that runs directly after it, in the same
//! write. So a chain goes on whoever leads next, and none of its steps is forgotten.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Outcome, RunEnd, RunId, Skip, Trigger, TriggerRecord};
use crate::job::{Condition, JobName};

/// What became of an upstream's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// It ended with success.
    Success,
    /// It ended otherwise.
    Otherwise,
    /// It was skipped, in a chain that had begun.
    Skipped,
    /// The chain's first run was skipped, so there is no chain.
    NotBegun,
}

impl Answer {
    /// True where a job may run after it.
    pub fn meets(self, condition: Condition) -> bool {
        match condition {
            Condition::Success => self == Self::Success,
            Condition::Always => self != Self::NotBegun,
        }
    }
}

/// `triggers/<seq>` of the ledger: what became of one job's run, left for one that runs after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Format of the record.
    pub v: u32,
    /// Whose run has ended.
    pub upstream: JobName,
    /// The job that runs after it.
    pub job: JobName,
    /// The occurrence, or trigger, of the chain's first job: the first of them, where several were skipped at once.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub scheduled_at: Timestamp,
    /// The last of them, and how many there are.
    #[serde(flatten)]
    pub span: Span,
    /// The trigger that began the chain; absent where it was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// What became of it.
    pub answer: Answer,
    /// Since when that is so.
    pub at: Timestamp,
}

/// How many occurrences in a row a link is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The last of them.
    pub last: Timestamp,
    /// How many; never 0.
    pub count: u64,
}

impl Link {
    /// The run that it may lead to.
    pub fn run(&self) -> RunId {
        super::id_of(&self.job, self.scheduled_at, self.trigger.as_ref())
    }

    /// The links that a run's end leaves.
    pub fn of_end(end: &RunEnd) -> impl Iterator<Item = Self> {
        let answer = if end.outcome == Outcome::Success { Answer::Success } else { Answer::Otherwise };
        end.run.dependents.iter().map(move |job| Self {
            v: 1,
            upstream: end.run.job.clone(),
            job: job.clone(),
            scheduled_at: end.run.scheduled_at,
            span: Span { last: end.run.scheduled_at, count: 1 },
            trigger: end.run.trigger.clone(),
            answer,
            at: end.ended_at,
        })
    }

    /// The links that a skip leaves for these jobs: `count` occurrences from `first` on.
    pub fn of_skip(skip: &Skip, first: Timestamp, count: u64, answer: Answer, dependents: &[JobName]) -> Vec<Self> {
        let link = |job: &JobName| Self {
            v: 1,
            upstream: skip.job.clone(),
            job: job.clone(),
            scheduled_at: first,
            span: Span { last: skip.last, count },
            trigger: skip.trigger.clone(),
            answer,
            at: skip.decided_at,
        };
        dependents.iter().map(link).collect()
    }
}

/// A record under `triggers`: what an operator wants, or what a job that runs after others waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// See [`TriggerRecord`].
    Trigger(TriggerRecord),
    /// See [`Link`].
    Link(Link),
}

impl Note {
    /// Reads one from JSON.
    ///
    /// # Errors
    /// When it is neither.
    pub fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        /// What only a link has.
        #[derive(Deserialize)]
        struct Kind {
            upstream: Option<serde::de::IgnoredAny>,
        }
        match serde_json::from_slice::<Kind>(json)?.upstream {
            Some(_) => serde_json::from_slice(json).map(Self::Link),
            None => serde_json::from_slice(json).map(Self::Trigger),
        }
    }

    /// The job that is to run.
    pub fn into_job(self) -> JobName {
        match self {
            Self::Trigger(record) => record.job,
            Self::Link(link) => link.job,
        }
    }
}
