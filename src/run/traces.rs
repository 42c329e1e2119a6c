//! By what the processes of a run are known to another process than the one that started them.
//!
//! Noted with the run, so that who finds it in a dead node's journal kills its processes and no others. What a process can write
//! itself, as its environment, is asked last: there whoever has the same user can claim to be of the run.

use serde::{Deserialize, Serialize};

use crate::clock::Uptime;

/// What is known of the processes of one run. Absent, in a journal of an older version: whoever it may be, since whenever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traces {
    /// Whom they run as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// None of them was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Uptime>,
    /// See [`KnownBy`].
    #[serde(default)]
    pub known_by: KnownBy,
}

/// What tells the processes of one run from all others. One of these decides, and no other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// They are in this cgroup, and whatever is in it is theirs.
    Cgroup(String),
    /// They are in this session of the kernel's audit. Nobody else can enter it, and to leave it takes a privilege.
    AuditSession(u32),
    /// The run's id in their environment, the main process's session, and descent.
    #[default]
    Environment,
}

impl Traces {
    /// As seen from another boot, or another host: numbers of processes, times and sessions mean nothing there.
    pub(super) fn elsewhere(&self) -> Self {
        Self { uid: self.uid, ..Self::default() }
    }
}
