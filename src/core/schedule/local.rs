//! Occurrences in the schedule's own zone, and the effect of a clock shift on them, in words.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, Zoned};

use super::{DstEffect, Schedule};

impl Schedule {
    /// An instant in the schedule's time zone.
    pub fn local(&self, at: Timestamp) -> Zoned {
        let name = self.zone_name();
        let found = jiff::tz::db().get(name).or_else(|_| TimeZoneDatabase::bundled().get(name));
        // The parser has checked that the zone exists, so the fallback to UTC is never used.
        at.to_zoned(found.unwrap_or(TimeZone::UTC))
    }
}

impl DstEffect {
    /// Describes the effect on the occurrence at this local time.
    pub fn describe(self, local: &Zoned) -> String {
        let shown = local.strftime("%H:%M");
        match self {
            Self::MovedOutOfGap(named) => format!("for {}, which is skipped", named.strftime("%H:%M")),
            Self::FirstPass => format!("the first {shown} of two"),
            Self::SecondPass => format!("the second {shown} of two"),
        }
    }
}
