//! What an operator said of a job's schedule: paused, and to be resumed.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Who paused a job, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who, for people: `uid 1000 (alice) on host-a`.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// Why, in the operator's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Who wants a pause to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// Who, for people.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// `control/<job>` of the ledger: there while the job is paused. Only the leader takes it away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRecord {
    /// Format of the record.
    pub v: u32,
    /// Drawn when the job was paused: tells this pause from every other of the job.
    pub id: Uuid,
    /// See [`Pause`].
    pub paused: Pause,
    /// The request to end it, until the leader has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
}

impl ControlRecord {
    /// A pause as it begins.
    pub fn new(id: Uuid, paused: Pause) -> Self {
        Self { v: 1, id, paused, resume: None }
    }

    /// What stands for a record that cannot be read. The job counts as paused: what is not run can be run by hand.
    pub fn unreadable() -> Self {
        let reason = Some("its record in the ledger cannot be read".to_owned());
        Self::new(Uuid::nil(), Pause { by: "nobody known".to_owned(), at: Timestamp::UNIX_EPOCH, reason })
    }
}
