//! What was not run, and why.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{RunId, Trigger, id_of};
use crate::job::JobName;
use crate::term::{FencingToken, NodeName};

/// Why an occurrence was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// A run of the job was in flight.
    Overlap,
    /// Nobody decided on it in time.
    Missed,
    /// An operator had paused the job.
    Paused,
    /// A job after which it runs did not end as it wants, or can say no more how it did.
    Upstream,
}

impl SkipReason {
    /// The word in logs, history and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Missed => "missed",
            Self::Paused => "paused",
            Self::Upstream => "upstream",
        }
    }
}

/// Occurrences that were not run, neighbours of one reason together: the other record of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// Format of the record.
    pub v: u32,
    /// The job.
    pub job: JobName,
    /// Why.
    pub reason: SkipReason,
    /// The first of them.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many; never 0.
    pub count: u64,
    /// The trigger that led to no run: such a record stands alone. Absent for occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// Of the term that decided.
    pub token: FencingToken,
    /// The node that decided.
    pub node: NodeName,
    /// When it decided last.
    pub decided_at: Timestamp,
}

impl Skip {
    /// The id its record goes by: that of the first occurrence, or of the trigger.
    pub fn id(&self) -> RunId {
        id_of(&self.job, self.first, self.trigger.as_ref())
    }
}
