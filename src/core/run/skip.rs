//! The record of occurrences that were not run.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{RunId, Trigger, id_of};
use crate::job::JobName;
use crate::term::{FencingToken, NodeName};

/// The reason why an occurrence was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// A run of the job was in flight.
    Overlap,
    /// No leader decided on it in time.
    Missed,
    /// An operator had paused the job.
    Paused,
    /// An upstream's result did not meet the job's condition, or can no longer arrive.
    Upstream,
    /// Another client held a lock of the job.
    Locked,
    /// The jobs file of the leader, which decided on the trigger or on the upstreams' results, did not define the job.
    NotDefined,
    /// The jobs file of the leader, which decided on the trigger, does not allow the trigger's parameters.
    Parameters,
    /// No node that fits was alive and took it in time.
    NoNode,
    /// An operator had drained the node whose share it is.
    Drained,
    /// The service has lost commits that it had acknowledged. The run may have been begun by one of them.
    Rewound,
}

impl SkipReason {
    /// The value in logs and history.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Missed => "missed",
            Self::Paused => "paused",
            Self::Upstream => "upstream",
            Self::Locked => "locked",
            Self::NotDefined => "not-defined",
            Self::Parameters => "parameters",
            Self::NoNode => "no-node",
            Self::Drained => "drained",
            Self::Rewound => "rewound",
        }
    }

    /// The value, with what it means where that is not plain. `node`: who decided.
    pub fn explained(self, node: &NodeName) -> String {
        match self {
            Self::NotDefined => format!("{}: the leader {node} has no such job", self.as_str()),
            Self::Parameters => {
                format!("{}: the job does not allow them in the jobs file of the leader {node}", self.as_str())
            }
            Self::NoNode => format!("{}: no node that fits could take it in time", self.as_str()),
            Self::Rewound => {
                format!("{}: the service has lost commits, and this occurrence may have run", self.as_str())
            }
            Self::Drained => format!("{}: its node was drained", self.as_str()),
            Self::Overlap | Self::Missed | Self::Paused | Self::Upstream | Self::Locked => self.as_str().to_owned(),
        }
    }
}

/// The history record of occurrences that were not run. Consecutive ones with the same reason share a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skip {
    /// Format version of the record.
    pub v: u32,
    pub job: JobName,
    pub reason: SkipReason,
    /// The first occurrence.
    #[serde(deserialize_with = "super::id::occurrence")]
    pub first: Timestamp,
    /// The last occurrence.
    pub last: Timestamp,
    /// Number of occurrences; never 0.
    pub count: u64,
    /// The trigger that led to no run. Such a record covers only this trigger. `None` for occurrences.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The node whose shares were not run; `None` if no node's were, or if the job does not run on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<NodeName>,
    /// What kept the nodes from the last occurrence, if no node took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Fencing token of the term that decided last.
    pub token: FencingToken,
    /// The node that decided last.
    pub node: NodeName,
    /// When the last occurrence was decided.
    pub decided_at: Timestamp,
}

impl Skip {
    /// The id of the record: that of the first occurrence or of the trigger.
    pub fn id(&self) -> RunId {
        self.id_from(self.first)
    }

    /// The id of the run that one of its occurrences would have had, or the trigger.
    pub fn id_from(&self, at: Timestamp) -> RunId {
        id_of(&self.job, at, self.trigger.as_ref()).on(self.on.clone())
    }
}
