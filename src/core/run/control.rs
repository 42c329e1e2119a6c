//! The record of a paused job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An operator's request to pause a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pause {
    /// Who paused the job, for display: `uid 1000 (alice) on host-a`.
    pub by: String,
    pub at: Timestamp,
    /// The reason that the operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When the pause ends by itself; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Pause {
    /// The same as [`at`](Self::at); `None` if the record cannot be read, which counts as a pause.
    pub fn since(&self) -> Option<Timestamp> {
        known(self.at)
    }
}

/// The time of a request; `None` if it is that of an unreadable record.
pub(super) fn known(at: Timestamp) -> Option<Timestamp> {
    Some(at).filter(|at| *at != Timestamp::UNIX_EPOCH)
}

/// An operator's request to end a pause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Who made the request, for display.
    pub by: String,
    pub at: Timestamp,
}

/// The ledger's `control/<job>`. Exists while the job is paused; only the leader removes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRecord {
    /// Format version of the record.
    pub v: u32,
    /// Random id of this pause, chosen when the job was paused.
    pub id: Uuid,
    pub paused: Pause,
    /// The request to end the pause, until the leader has ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
}

impl ControlRecord {
    /// A new pause without a request to end it.
    pub fn new(id: Uuid, paused: Pause) -> Self {
        Self { v: 1, id, paused, resume: None }
    }

    /// Replaces a record that is unreadable. The job counts as paused, because an operator can make up for a run that
    /// did not happen but not for one that should not have happened.
    pub fn unreadable() -> Self {
        let reason = Some("its record in the ledger cannot be read".to_owned());
        Self::new(Uuid::nil(), Pause { by: "nobody known".to_owned(), at: Timestamp::UNIX_EPOCH, reason, until: None })
    }
}
