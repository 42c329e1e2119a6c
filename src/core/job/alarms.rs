//! Alarms: what a job's operator wants to hear of although no run has ended.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Hook;

/// Something that is wrong with a job while the alarm is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Alarm {
    /// A run has not started `late_after` after it was due.
    Late,
    /// An attempt has been running for longer than `long_after`. It is not killed.
    Long,
    /// The job has not succeeded for `stale_after`.
    Stale,
}

/// After how long each alarm of a job is raised; `None` means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlarmLimits {
    /// From when a run is due to the start of its first process.
    pub late_after: Option<Duration>,
    /// From the begin of an attempt.
    pub long_after: Option<Duration>,
    /// From the end of the last run that succeeded; if there was none, from when a leader first saw the job.
    pub stale_after: Option<Duration>,
}

impl Alarm {
    /// All alarms, in the order in which they are shown.
    pub const ALL: [Self; 3] = [Self::Late, Self::Long, Self::Stale];

    /// The name in logs, metrics and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Long => "long",
            Self::Stale => "stale",
        }
    }

    /// The hook that reports it.
    pub fn hook(self) -> Hook {
        match self {
            Self::Late => Hook::Late,
            Self::Long => Hook::Long,
            Self::Stale => Hook::Stale,
        }
    }
}

impl AlarmLimits {
    pub fn of(&self, alarm: Alarm) -> Option<Duration> {
        match alarm {
            Alarm::Late => self.late_after,
            Alarm::Long => self.long_after,
            Alarm::Stale => self.stale_after,
        }
    }

    /// True if the job has no alarms.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
