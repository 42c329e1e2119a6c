//! The days that an expression matches, and the seconds of such a day.
//!
//! The fields match the same seconds on every matching day, so a whole day is counted at once. This module knows
//! neither zones nor shifts.

use jiff::civil::Date;

use super::field::Field;
use super::parse::Fields;

/// The days that an expression matches.
#[derive(Debug)]
pub(super) struct Days {
    /// Bit sets, counted from each field's smallest value.
    years: [u64; 3],
    months: u64,
    days: u64,
    weekdays: u64,
    /// A day matches if either day field matches; otherwise both must match.
    either: bool,
}

impl Days {
    pub(super) fn of(fields: &Fields) -> Self {
        let set = |field: Field| bits(fields.of(field).iter().map(|value| value - field.min()));
        let [months, days, weekdays] = [Field::Month, Field::DayOfMonth, Field::DayOfWeek].map(|field| set(field)[0]);
        Self { years: set(Field::Year), months, days, weekdays, either: fields.either_day() }
    }

    pub(super) fn holds(&self, date: Date) -> bool {
        let Ok(year) = usize::try_from(i32::from(date.year()) - i32::from(Field::Year.min())) else { return false };
        let is_in_year = self.years.get(year / 64).is_some_and(|years| years >> (year % 64) & 1 == 1);
        let day = self.days >> (date.day() - 1) & 1 == 1;
        let weekday = self.weekdays >> date.weekday().to_sunday_zero_offset() & 1 == 1;
        let is_day = if self.either { day || weekday } else { day && weekday };
        is_in_year && is_day && self.months >> (date.month() - 1) & 1 == 1
    }
}

fn bits(values: impl Iterator<Item = u16>) -> [u64; 3] {
    let mut bits = [0; 3];
    for value in values {
        bits[usize::from(value / 64)] |= 1 << (value % 64);
    }
    bits
}

/// Length of a day in seconds, in local time without shifts.
pub(super) const DAY: i64 = 86_400;

/// A set of seconds of a day: one integer for each minute, one bit for each second.
#[derive(Clone, Debug)]
pub(super) struct Seconds(Vec<u64>);

impl Seconds {
    const MINUTES: usize = 24 * 60;

    pub(super) fn none() -> Self {
        Self(vec![0; Self::MINUTES])
    }

    pub(super) fn of(fields: &Fields) -> Self {
        let [seconds, ..] = bits(fields.of(Field::Second).iter());
        let mut all = Self::none();
        for hour in fields.of(Field::Hour).iter() {
            for minute in fields.of(Field::Minute).iter() {
                all.0[usize::from(hour * 60 + minute)] = seconds;
            }
        }
        all
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (minute, more) in self.0.iter_mut().zip(&other.0) {
            *minute |= more;
        }
    }

    /// Removes every `period`-th second from `first` on.
    pub(super) fn remove(&mut self, first: i64, period: i64) {
        let mut second = first;
        while let Some(minute) = usize::try_from(second / 60).ok().and_then(|minute| self.0.get_mut(minute)) {
            *minute &= !(1 << (second % 60));
            second += period;
        }
    }

    /// The number of seconds in the set from `first` to `last`, both included.
    pub(super) fn count(&self, first: i64, last: i64) -> u64 {
        let within = |(minute, seconds): (i64, &u64)| {
            let from = (first - minute * 60).clamp(0, 60);
            let to = (last + 1 - minute * 60).clamp(0, 60);
            let mask = ((1_u64 << to) - 1) & !((1_u64 << from) - 1);
            u64::from((seconds & mask).count_ones())
        };
        (0..).zip(&self.0).map(within).sum()
    }
}
