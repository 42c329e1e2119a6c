//! Hooks: commands to run when a job's run has started, ended or was missed, when an alarm is raised, or when something
//! happens to the cluster.

use std::collections::BTreeMap;

use super::CommandLine;

/// The event that a hook follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// The program of a run's first attempt has begun.
    Start,
    /// A run ended without success, and no retry follows.
    Failure,
    /// A run succeeded.
    Success,
    /// A run succeeded, and the job's previous run did not.
    Recovery,
    /// Occurrences were missed because no leader decided on them in time.
    Missed,
    /// A run has not started `late_after` after it was due.
    Late,
    /// An attempt has been running for longer than `long_after`.
    Long,
    /// The job has not succeeded for `stale_after`.
    Stale,
}

pub type Hooks = BTreeMap<Hook, CommandLine>;

impl Hook {
    /// All hooks, in the order in which they run.
    pub const ALL: [Self; 8] =
        [Self::Start, Self::Failure, Self::Success, Self::Recovery, Self::Missed, Self::Late, Self::Long, Self::Stale];

    /// The key in the jobs file, and the value in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Start => "on_start",
            Self::Failure => "on_failure",
            Self::Success => "on_success",
            Self::Recovery => "on_recovery",
            Self::Missed => "on_missed",
            Self::Late => "on_late",
            Self::Long => "on_long",
            Self::Stale => "on_stale",
        }
    }
}

/// What happens to the cluster, as a node sees it, that a hook of the node follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeHook {
    /// This node has become the leader.
    LeaderChange,
    /// This node has known of no leader for a while.
    NoLeader,
    /// Another node has been gone for a while.
    NodeMissing,
    /// This node's jobs file was rejected.
    JobsRejected,
    /// Other nodes have other jobs or time zones than the leader.
    JobsDrift,
}

impl NodeHook {
    pub const ALL: [Self; 5] =
        [Self::LeaderChange, Self::NoLeader, Self::NodeMissing, Self::JobsRejected, Self::JobsDrift];

    /// The name in logs and in CRONKEEPER_HOOK.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeaderChange => "on_leader_change",
            Self::NoLeader => "on_no_leader",
            Self::NodeMissing => "on_node_missing",
            Self::JobsRejected => "on_jobs_rejected",
            Self::JobsDrift => "on_jobs_drift",
        }
    }
}
