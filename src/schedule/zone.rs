//! A time zone as stretches of constant offset.
//!
//! Zones come from the system's tzdata; behind it stands the copy that the binary carries, for systems
//! that have none or not all. Some names of the system's folder are no zones one should schedule by.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::error::{ScheduleError, nearest};

/// A zone of the IANA database.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Zone {
    name: String,
    zone: TimeZone,
}

/// A stretch of time in which local time keeps its distance from UTC. All in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OffsetSpan {
    /// Its first second; `i64::MIN` if it has none.
    pub(super) start: i64,
    /// The first second behind it; `i64::MAX` if there is none.
    pub(super) end: i64,
    /// Local time less UTC.
    pub(super) offset: i64,
    /// The offset before its start; its own, if nothing is before.
    pub(super) before: i64,
}

/// Names that mean another zone on another host, or none.
const NO_ZONES: [&str; 4] = ["localtime", "posixrules", "Factory", "Etc/Unknown"];

impl Zone {
    pub(super) fn find(name: &str) -> Result<Self, ScheduleError> {
        let unknown = || ScheduleError::UnknownZone { name: name.to_owned(), nearest: nearest_zone(name) };
        Self::known(name).ok_or_else(unknown)
    }

    /// Without a look at which other one was meant.
    pub(super) fn known(name: &str) -> Option<Self> {
        if NO_ZONES.iter().any(|other| other.eq_ignore_ascii_case(name)) {
            return None;
        }
        let zone = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name)).ok()?;
        Some(Self { name: zone.iana_name().unwrap_or(name).to_owned(), zone })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn offset_at(&self, at: i64) -> i64 {
        i64::from(self.zone.to_offset(timestamp(at)).seconds())
    }

    /// The stretch that `at` is in.
    pub(super) fn span_at(&self, at: i64) -> OffsetSpan {
        let offset = self.offset_at(at);
        let start =
            self.zone.preceding(timestamp(at.saturating_add(1))).next().map(|shift| second_of(shift.timestamp()));
        let end = self.zone.following(timestamp(at)).next().map(|shift| second_of(shift.timestamp()));
        OffsetSpan {
            start: start.unwrap_or(i64::MIN),
            end: end.unwrap_or(i64::MAX),
            offset,
            before: start.map_or(offset, |start| self.offset_at(start - 1)),
        }
    }
}

/// The second that an instant is in.
pub(super) fn second_of(instant: Timestamp) -> i64 {
    instant.as_second() - i64::from(instant.subsec_nanosecond() < 0)
}

/// The start of a second; of the first or the last there is, where it is beyond them.
pub(super) fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// A local time, from seconds counted as if it were UTC.
pub(super) fn civil(local: i64) -> DateTime {
    TimeZone::UTC.to_datetime(timestamp(local))
}

/// A zone of a like name, or the one whose city was meant.
fn nearest_zone(name: &str) -> Option<String> {
    let bundled = TimeZoneDatabase::bundled();
    let names: Vec<_> = jiff::tz::db().available().chain(bundled.available()).collect();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let city = |zone: &str| zone.rsplit_once('/').is_some_and(|(_, city)| city.eq_ignore_ascii_case(name));
    let by_city = names.iter().copied().filter(|zone| city(zone)).min().map(str::to_owned);
    by_city.or_else(|| nearest(name, names.iter().copied().filter(|zone| !NO_ZONES.contains(zone))))
}
