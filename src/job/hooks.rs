//! The commands that follow what became of a run, or of occurrences that were not run.

use std::collections::BTreeMap;

use super::CommandLine;

/// When a hook is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// A run ended otherwise than by success; not while it is to be tried again.
    Failure,
    /// A run ended by success.
    Success,
    /// A run ended by success, and the job's run that ended before it did not.
    Recovery,
    /// Occurrences were skipped because nobody decided on them in time.
    Missed,
}

/// The hooks of a job.
pub type Hooks = BTreeMap<Hook, CommandLine>;

impl Hook {
    /// All of them, in the order in which they are run.
    pub const ALL: [Self; 4] = [Self::Failure, Self::Success, Self::Recovery, Self::Missed];

    /// The key of the jobs file, and the word in logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failure => "on_failure",
            Self::Success => "on_success",
            Self::Recovery => "on_recovery",
            Self::Missed => "on_missed",
        }
    }
}
