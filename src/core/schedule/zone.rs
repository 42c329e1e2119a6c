//! A time zone as spans of constant offset.
//!
//! Zones come from the system's tzdata. The binary contains a copy for zones that the system does not have. Some names
//! in the system's directory are not suitable for schedules and are rejected.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::error::{ScheduleError, nearest};

/// A zone of the IANA database.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Zone {
    name: String,
    zone: TimeZone,
}

/// A span of time with a constant offset from UTC. All values are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OffsetSpan {
    /// Its first second; `i64::MIN` if it has no beginning.
    pub(super) start: i64,
    /// The first second after it; `i64::MAX` if it has no end.
    pub(super) end: i64,
    /// Local time minus UTC.
    pub(super) offset: i64,
    /// The offset before its start; its own offset if it has no beginning.
    pub(super) before: i64,
}

/// Names that mean different zones on different hosts, or no zone.
const NO_ZONES: [&str; 4] = ["localtime", "posixrules", "Factory", "Etc/Unknown"];

impl Zone {
    pub(super) fn find(name: &str) -> Result<Self, ScheduleError> {
        let unknown = || ScheduleError::UnknownZone { name: name.to_owned(), nearest: nearest_zone(name) };
        Self::known(name).ok_or_else(unknown)
    }

    /// Finds a zone without searching for a suggestion.
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

    /// The span that contains `at`.
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

/// The second that contains an instant.
pub(super) fn second_of(instant: Timestamp) -> i64 {
    instant.as_second() - i64::from(instant.subsec_nanosecond() < 0)
}

/// The start of a second, limited to the range of `Timestamp`.
pub(super) fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// The local time for a number of seconds, counted as if local time were UTC.
pub(super) fn civil(local: i64) -> DateTime {
    TimeZone::UTC.to_datetime(timestamp(local))
}

/// The first second of a date, counted as if local time were UTC.
pub(super) fn start_of(date: Date) -> i64 {
    date.to_zoned(TimeZone::UTC).map_or(i64::MAX, |start| start.timestamp().as_second())
}

/// A suggestion for an unknown name: the zone of this city, or the most similar name.
fn nearest_zone(name: &str) -> Option<String> {
    let bundled = TimeZoneDatabase::bundled();
    let names: Vec<_> = jiff::tz::db().available().chain(bundled.available()).collect();
    let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
    let city = |zone: &str| zone.rsplit_once('/').is_some_and(|(_, city)| city.eq_ignore_ascii_case(name));
    let by_city = names.iter().copied().filter(|zone| city(zone)).min().map(str::to_owned);
    by_city.or_else(|| nearest(name, names.iter().copied().filter(|zone| !NO_ZONES.contains(zone))))
}
