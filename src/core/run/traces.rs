//! Traces that identify a run's processes.
//!
//! They are recorded with the run, so that another process that reads a dead node's journal can kill the run's
//! processes and no others. What a process can write itself, such as its environment, is the last resort: any process
//! of the same user could claim to belong to the run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Uptime;

/// No program is held for longer than this before it begins.
pub const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// The known facts about the processes of one run. Fields missing from a journal of an older version restrict nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traces {
    /// The user the processes run as; `None` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// No process of the run started before this time; `None` means any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Uptime>,
    /// No program of the run began before this time; `None` means any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Uptime>,
    /// Where it is noted that the program has begun; `None` if nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<BeginNote>,
    #[serde(default)]
    pub known_by: KnownBy,
}

/// Names the note that the program of a tree has begun, which outlives the daemon.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BeginNote {
    /// The file in the state directory that has the notes of one daemon.
    pub file: String,
    /// The tree's id in that daemon.
    pub tree: u64,
}

/// The criterion that distinguishes a run's processes from all others. Exactly one applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KnownBy {
    /// The run's processes are exactly those in this cgroup.
    Cgroup(String),
    /// The processes are in this audit session of the kernel. No other process can enter it, and leaving it takes a
    /// privilege.
    AuditSession(u32),
    /// The run's id in the environment, the main process's session, and descent from it.
    #[default]
    Environment,
}

impl Traces {
    /// The traces that remain valid on another boot or host, where pids, uptimes and session numbers mean nothing.
    pub(super) fn elsewhere(&self) -> Self {
        Self { uid: self.uid, ..Self::default() }
    }
}
