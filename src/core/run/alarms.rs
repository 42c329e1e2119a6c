//! The active alarms of a job, in its record: each is raised once, whoever leads.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::RunId;
use crate::job::Alarm;

/// The part of a job's record about its alarms. Boxed, because few alarms are active, and each job has two of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StandingAlarms {
    /// From when `stale_after` counts: the last success that the writer knew of, or when a leader first saw the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stale_from: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    late: Option<Box<RaisedAlarm>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    long: Option<Box<RaisedAlarm>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stale: Option<Box<RaisedAlarm>>,
}

/// An active alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RaisedAlarm {
    /// When a leader raised it.
    pub raised_at: Timestamp,
    /// From when the alarm's limit counted: the run was due, the attempt began, or the job last succeeded.
    pub since: Timestamp,
    /// The run that is late or takes long; `None` for a job without success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

impl StandingAlarms {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// True while at least one alarm is active.
    pub fn is_any_active(&self) -> bool {
        self.iter().next().is_some()
    }

    pub fn get(&self, alarm: Alarm) -> Option<&RaisedAlarm> {
        match alarm {
            Alarm::Late => self.late.as_deref(),
            Alarm::Long => self.long.as_deref(),
            Alarm::Stale => self.stale.as_deref(),
        }
    }

    /// Raises the alarm, or ends it.
    pub fn set(&mut self, alarm: Alarm, raised: Option<RaisedAlarm>) {
        let raised = raised.map(Box::new);
        match alarm {
            Alarm::Late => self.late = raised,
            Alarm::Long => self.long = raised,
            Alarm::Stale => self.stale = raised,
        }
    }

    /// The active alarms, in the order in which they are shown.
    pub fn iter(&self) -> impl Iterator<Item = (Alarm, &RaisedAlarm)> {
        Alarm::ALL.into_iter().filter_map(|alarm| Some((alarm, self.get(alarm)?)))
    }
}
