//! What operators want of a node: that it be drained, or that it hand leadership over.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::term::{CandidateName, NodeName};

/// An operator's request to drain a node: from then on it does not lead, and its runs in flight continue to their end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Drain {
    /// Who drained the node, for display: `uid 1000 (alice) on host-a`.
    pub by: String,
    pub at: Timestamp,
    /// The reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Drain {
    /// The same as [`at`](Self::at); `None` if the record cannot be read, which counts as a drain.
    pub fn since(&self) -> Option<Timestamp> {
        super::control::known(self.at)
    }
}

/// An operator's request that the leader hand leadership over, written by another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandoverRequest {
    /// Random id of the request.
    pub id: Uuid,
    /// The candidate that should give leadership up. In a later term the request no longer counts.
    pub candidate: CandidateName,
    /// The node that leads next; absent: the next in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<NodeName>,
    /// Who made the request, for display.
    pub by: String,
    pub at: Timestamp,
}

/// The ledger's `wanted/<node>`. Absent if nothing is wanted of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeControl {
    /// Format version of the record.
    pub v: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Drain>,
    /// The last handover that was requested of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handover: Option<HandoverRequest>,
}

impl Default for NodeControl {
    fn default() -> Self {
        Self { v: 1, drained: None, handover: None }
    }
}

impl NodeControl {
    /// Replaces a record that is unreadable. The node counts as drained: another can lead instead, but nobody can undo
    /// that a node led which should not have.
    pub fn unreadable() -> Self {
        let reason = Some("its record in the ledger cannot be read".to_owned());
        let drain = Drain { by: "nobody known".to_owned(), at: Timestamp::UNIX_EPOCH, reason };
        Self { drained: Some(drain), ..Self::default() }
    }

    /// Reads a record.
    pub fn read(data: &[u8]) -> Self {
        serde_json::from_slice(data).unwrap_or_else(|_| Self::unreadable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_counts_as_drained() {
        assert!(NodeControl::read(b"{").drained.is_some());
        assert_eq!(NodeControl::read(br#"{"v":1}"#), NodeControl::default());
    }
}
