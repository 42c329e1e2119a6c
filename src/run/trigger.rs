//! What an operator wants now: a run besides the schedule's.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::job::JobName;

/// Numbers the triggers in the order they were made, over all jobs. Given by the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TriggerSeq(pub u64);

impl fmt::Display for TriggerSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whose request a manual run, or its skip, answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// The trigger's number.
    pub seq: TriggerSeq,
    /// Drawn by whoever asked, so that asking twice is harmless.
    pub uuid: Uuid,
    /// Who asked, for people: `uid 1000 (alice) on host-a`.
    pub by: String,
}

/// `triggers/<seq>` of the ledger: a run wanted, and not yet decided on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerRecord {
    /// Format of the record.
    pub v: u32,
    /// See [`Trigger::uuid`].
    pub uuid: Uuid,
    /// The job.
    pub job: JobName,
    /// See [`Trigger::by`].
    pub by: String,
    /// When it was asked for, in whole seconds: the run's `scheduled_at`.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub at: Timestamp,
}

impl TriggerRecord {
    /// As the run it leads to carries it.
    pub fn numbered(&self, seq: TriggerSeq) -> Trigger {
        Trigger { seq, uuid: self.uuid, by: self.by.clone() }
    }
}
