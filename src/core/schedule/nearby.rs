//! What a calendar says near an instant.
//!
//! A calendar has the dates of many years, and each year it gets more. Whoever has to know whether a schedule was edited
//! asks only for the days that matter to occurrences between two instants.

use std::ops::RangeInclusive;

use jiff::Timestamp;

use super::day::DAY;
use super::zone::second_of;
use super::{Calendar, Schedule};

/// How many days after an instant are near.
const NEAR: i64 = 8;

impl Schedule {
    /// Which days of the calendar count near `at`, from the day before, and the day of the next occurrence, which may be
    /// far; absent without a calendar.
    ///
    /// Schedules that are equal without their calendars, and have the same text here, have the same occurrences after
    /// `at` as far as it [reaches](Schedule::reaches).
    pub fn nearby(&self, at: Timestamp) -> Option<String> {
        let calendar = self.0.calendar.as_ref()?;
        let today = self.day_of(at);
        let next = self.next_after(at).map_or("none".to_owned(), |next| self.day_of(next).to_string());
        // A shift of the clock can lead back to the day before.
        Some(format!("{} then {next}", calendar.digits(today - 1..=today + NEAR)))
    }

    /// True if what was [near](Schedule::nearby) `at` says all about the occurrences up to `until`.
    pub fn reaches(&self, at: Timestamp, until: Timestamp) -> bool {
        let last = self.day_of(until);
        last <= self.day_of(at) + NEAR || self.next_after(at).is_some_and(|next| last <= self.day_of(next))
    }

    /// True if the calendars of both schedules agree on all days on which an instant after `after` and up to `until` can
    /// be.
    pub fn has_calendar_like(&self, other: &Self, after: Timestamp, until: Timestamp) -> bool {
        let days = |schedule: &Self| -> RangeInclusive<i64> { schedule.day_of(after) - 1..=schedule.day_of(until) };
        Calendar::agree(self.calendar(), other.calendar(), days(self))
    }

    /// The local day, counted from 1970-01-01.
    fn day_of(&self, at: Timestamp) -> i64 {
        let at = second_of(at);
        (at + self.0.zone.offset_at(at)).div_euclid(DAY)
    }
}
