//! Triggers: operators' requests for a run now, independent of the schedule.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::parameters::{Parameters, format_of};
use super::placement;
use crate::job::JobName;
use crate::term::NodeName;

/// A trigger's number, in order of creation over all jobs. Assigned by the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TriggerSeq(pub u64);

impl fmt::Display for TriggerSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The request behind a manual run or its skip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    pub seq: TriggerSeq,
    /// Chosen by the client, so that repeating the request is harmless.
    pub uuid: Uuid,
    /// Who made the request, for display: `uid 1000 (alice) on host-a`.
    pub by: String,
    /// The time for which the run and those after it in its chain are made, if the request named one: their programs find
    /// it instead of the time of the request. Nothing else depends on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
}

/// The ledger's `triggers/<seq>`: a requested run that the leader has not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TriggerRecord {
    /// Format version of the record.
    pub v: u32,
    /// See [`Trigger::uuid`].
    pub uuid: Uuid,
    pub job: JobName,
    /// See [`Trigger::by`].
    pub by: String,
    /// When it was requested, in whole seconds. Becomes the run's `scheduled_at`.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub at: Timestamp,
    /// See [`Trigger::scheduled_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    pub parameters: Parameters,
    /// The nodes that are to run it, each a share; empty: where the job says.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub on: BTreeSet<NodeName>,
}

impl TriggerRecord {
    /// A request for a run without parameters.
    pub fn new(uuid: Uuid, job: JobName, by: String, at: Timestamp) -> Self {
        let (parameters, on) = (Parameters::default(), BTreeSet::new());
        Self { v: 1, uuid, job, by, at, scheduled_at: None, parameters, on }
    }

    /// The same request, for a run with these parameters and, if given, for this time.
    #[must_use]
    pub fn with(self, parameters: Parameters, scheduled_at: Option<Timestamp>) -> Self {
        let record = Self { scheduled_at, parameters, ..self };
        Self { v: format_of(Some(&record.numbered(TriggerSeq(0))), &record.parameters), ..record }
    }

    /// The same request, for a run on each of these nodes; none: where the job says.
    #[must_use]
    pub fn on(self, nodes: BTreeSet<NodeName>) -> Self {
        let v = if nodes.is_empty() { self.v } else { placement::FORMAT };
        Self { v, on: nodes, ..self }
    }

    /// The trigger as stored in the run that it leads to.
    pub fn numbered(&self, seq: TriggerSeq) -> Trigger {
        Trigger { seq, uuid: self.uuid, by: self.by.clone(), scheduled_at: self.scheduled_at }
    }
}
