//! Hooks: commands to run after a job's run ended or was missed.

use std::collections::BTreeMap;

use super::CommandLine;

/// The event that a hook follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// A run ended without success, and no retry follows.
    Failure,
    /// A run succeeded.
    Success,
    /// A run succeeded, and the job's previous run did not.
    Recovery,
    /// Occurrences were missed because no leader decided on them in time.
    Missed,
}

pub type Hooks = BTreeMap<Hook, CommandLine>;

impl Hook {
    /// All hooks, in the order in which they run.
    pub const ALL: [Self; 4] = [Self::Failure, Self::Success, Self::Recovery, Self::Missed];

    /// The key in the jobs file, and the value in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failure => "on_failure",
            Self::Success => "on_success",
            Self::Recovery => "on_recovery",
            Self::Missed => "on_missed",
        }
    }
}
