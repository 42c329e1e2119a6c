//! What sets a job off: the time, or the ends of other jobs' runs.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Job, JobName};
use crate::schedule::Schedule;

/// How an upstream's run is to end for a job to run after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// With [`Outcome::Success`](crate::run::Outcome::Success).
    Success,
    /// Any way, also skipped in a chain that has begun.
    Always,
}

impl Condition {
    /// The word in jobs.yaml.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Always => "always",
        }
    }
}

/// What sets a job off.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// The time.
    At(Schedule),
    /// The ends of these jobs' runs, all of them. Never empty.
    After(BTreeMap<JobName, Condition>),
}

impl Job {
    /// Its schedule; absent where it runs after other jobs.
    pub fn schedule(&self) -> Option<&Schedule> {
        match &self.due {
            Due::At(schedule) => Some(schedule),
            Due::After(_) => None,
        }
    }

    /// The jobs after which it runs; absent where it has a schedule.
    pub fn upstreams(&self) -> Option<&BTreeMap<JobName, Condition>> {
        match &self.due {
            Due::At(_) => None,
            Due::After(upstreams) => Some(upstreams),
        }
    }

    /// The first occurrence after `instant`. A job that runs after others has none of its own.
    pub fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.schedule()?.next_after(instant)
    }

    /// The last occurrence in (`after`, `until`].
    pub fn last_before_or_at(&self, until: Timestamp, after: Timestamp) -> Option<Timestamp> {
        self.schedule()?.last_before_or_at(until, after)
    }
}

impl Due {
    /// What tells it from every other: of a schedule its own words.
    pub(super) fn canonical(&self) -> String {
        match self {
            Self::At(schedule) => schedule.canonical(),
            Self::After(upstreams) => {
                let each = upstreams.iter().map(|(name, condition)| format!(" {name}:{}", condition.as_str()));
                std::iter::once("after".to_owned()).chain(each).collect()
            }
        }
    }
}
