//! What the record of a placed attempt says: which definition it is for, and what its nodes have answered.

use serde::{Deserialize, Serialize};

use crate::job::Digest;
use crate::term::{FencingToken, NodeName};

/// The format of records of placed attempts: a node that does not know them must leave them alone.
pub(super) const FORMAT: u32 = 3;

/// An attempt that the leader has placed on a node.
///
/// No command travels: the node runs its own definition of the job, if that is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// [`Job::execution_digest`](crate::job::Job::execution_digest) of the leader's definition.
    pub definition: Digest,
    /// How long before its time it was placed, in milliseconds by the leader's clock; 0: when it was due.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ahead_ms: u64,
    /// Other runs may wait for its end, so the leader is notified of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_awaited: bool,
    /// Its node waits for the locks of its job before it accepts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_locks: bool,
    /// The attempt's fencing token: the place of its acceptance among all writes. Known from the acceptance on, and in the
    /// ledger from the next write on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<FencingToken>,
    /// Its node could start no process for it, which was not the job's fault.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed_start: bool,
    /// How many attempts were not started for a reason that may hold on every node: their process died before its program,
    /// or it was too late by their node's clock. From the second on the run pauses before it is placed again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub setbacks: u32,
    /// The last refusal of the run by a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

impl Placement {
    /// An attempt that is placed when it is due.
    pub fn new(definition: Digest) -> Self {
        Self {
            definition,
            ahead_ms: 0,
            is_awaited: false,
            awaits_locks: false,
            token: None,
            failed_start: false,
            setbacks: 0,
            refused: None,
        }
    }
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// A node's answer that it does not run an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Refusal {
    pub node: NodeName,
    pub reason: RefusalReason,
    /// The digest of the node's files, by which it refused. Once it has others, the refusal says nothing about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub digest: Option<Digest>,
}

/// Why a node does not run an attempt that was placed there. No process was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RefusalReason {
    /// Its files do not define the job.
    NotDefined,
    /// Its files define the job otherwise, or not as one that is placed.
    Definition,
    /// Its labels are not what the job asks for.
    Labels,
    /// An operator has drained it.
    Drained,
    /// It is stopping.
    Ending,
    /// Its clock is far off.
    Clock,
    /// Another client holds a lock of the job.
    Locked,
    /// Its misfire window is over.
    Late,
    /// A node of a newer version has another reason.
    #[serde(other)]
    Other,
}

impl RefusalReason {
    pub const ALL: [Self; 8] = [
        Self::NotDefined,
        Self::Definition,
        Self::Labels,
        Self::Drained,
        Self::Ending,
        Self::Clock,
        Self::Locked,
        Self::Late,
    ];

    /// Why the node does not run the attempt, in words that follow the node's name and a colon.
    pub fn explained(self) -> &'static str {
        match self {
            Self::NotDefined => "its files have no such job",
            Self::Definition => "its files define the job differently from the leader's",
            Self::Labels => "its labels do not fit the job",
            Self::Drained => "it is drained",
            Self::Ending => "it is stopping",
            Self::Clock => "its clock is too far from the service's",
            Self::Locked => "another client holds a lock of the job",
            Self::Late => "it is too late to start it",
            Self::Other => "for a reason that this version does not know",
        }
    }

    /// True if somebody must fix the node before it runs the job: its files, or its clock.
    pub fn is_fault(self) -> bool {
        matches!(self, Self::NotDefined | Self::Definition | Self::Clock)
    }

    /// The value in logs, history and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDefined => "not-defined",
            Self::Definition => "definition",
            Self::Labels => "labels",
            Self::Drained => "drained",
            Self::Ending => "ending",
            Self::Clock => "clock",
            Self::Locked => "locked",
            Self::Late => "late",
            Self::Other => "other",
        }
    }
}
