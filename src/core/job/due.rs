//! The cause of a job's runs: a schedule or upstream jobs.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Job, JobName};
use crate::schedule::Schedule;

/// The result that a job requires of an upstream's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The run must end with [`Outcome::Success`](crate::run::Outcome::Success).
    Success,
    /// Any result, including a skip in a chain that has begun.
    Always,
}

impl Condition {
    /// The value in jobs.yaml.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Always => "always",
        }
    }
}

/// The cause of a job's runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// The occurrences of a schedule.
    At(Schedule),
    /// The results of all of these upstream jobs. Never empty.
    After(BTreeMap<JobName, Condition>),
}

impl Job {
    /// The schedule; `None` if the job runs after other jobs.
    pub fn schedule(&self) -> Option<&Schedule> {
        match &self.due {
            Due::At(schedule) => Some(schedule),
            Due::After(_) => None,
        }
    }

    /// The upstream jobs; `None` if the job has a schedule.
    pub fn upstreams(&self) -> Option<&BTreeMap<JobName, Condition>> {
        match &self.due {
            Due::At(_) => None,
            Due::After(upstreams) => Some(upstreams),
        }
    }

    /// The first occurrence after `instant`. A job that runs after others has no occurrences of its own.
    pub fn next_after(&self, instant: Timestamp) -> Option<Timestamp> {
        self.schedule()?.next_after(instant)
    }

    /// The last occurrence in (`after`, `until`].
    pub fn last_before_or_at(&self, until: Timestamp, after: Timestamp) -> Option<Timestamp> {
        self.schedule()?.last_before_or_at(until, after)
    }
}

impl Due {
    /// A canonical text: equal for equal causes and different for different ones, apart from calendars.
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
