//! Log messages for alarms that were raised or have ended.

use tracing::field::display;

use cronkeeper_core::clock::instant;
use cronkeeper_core::engine::{AlarmChange, AlarmNews};
use cronkeeper_core::job::Alarm;
use cronkeeper_core::log;
use cronkeeper_core::run::{RaisedAlarm, millis};

/// Logs an alarm that was raised, or that has ended.
pub(super) fn changed(AlarmNews { job, alarm, raised, change }: &AlarmNews) {
    let RaisedAlarm { raised_at, since, run } = raised;
    let run = run.as_ref().map(display);
    if *change == AlarmChange::Ended {
        let (alarm, raised_at) = (alarm.as_str(), instant(*raised_at));
        return log!(ALARM_CLEARED, %job, alarm, run, %raised_at);
    }
    let after_ms = millis(raised_at.duration_since(*since).try_into().unwrap_or_default());
    let since = instant(*since);
    match alarm {
        Alarm::Late => log!(ALARM_LATE, %job, run, %since, after_ms),
        Alarm::Long => log!(ALARM_LONG, %job, run, %since, after_ms),
        Alarm::Stale => log!(ALARM_STALE, %job, %since, after_ms),
    }
}
