//! The days that an expression matches, and the seconds of such a day.
//!
//! The fields match the same seconds on every matching day, so a whole day is counted at once. This module knows
//! neither zones nor shifts.

use jiff::civil::Date;

use super::day_rule::DayRule;
use super::field::Field;
use super::parse::Fields;

/// The days that an expression matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Days {
    /// Bit sets, counted from each field's smallest value.
    years: [u64; 3],
    months: u64,
    days: u64,
    weekdays: u64,
    /// The rules of each day field.
    day_rules: Box<[DayRule]>,
    weekday_rules: Box<[DayRule]>,
    /// A day matches if either day field matches; otherwise both must match.
    either: bool,
}

impl Days {
    pub(super) fn of(fields: &Fields) -> Self {
        let set = |field: Field| bits(fields.of(field).iter().map(|value| value - field.min()));
        let [months, days, weekdays] = [Field::Month, Field::DayOfMonth, Field::DayOfWeek].map(|field| set(field)[0]);
        let rules = |field: Field| fields.of(field).rules.clone();
        Self {
            years: set(Field::Year),
            months,
            days,
            weekdays,
            day_rules: rules(Field::DayOfMonth),
            weekday_rules: rules(Field::DayOfWeek),
            either: fields.either_day(),
        }
    }

    pub(super) fn holds(&self, date: Date) -> bool {
        self.in_month(date.first_of_month()) >> (date.day() - 1) & 1 == 1
    }

    /// The first of them from `date` on.
    pub(super) fn next(&self, date: Date) -> Option<Date> {
        let mut first = date.first_of_month();
        let mut days = self.in_month(first) >> (date.day() - 1) << (date.day() - 1);
        while days == 0 {
            first = first.last_of_month().tomorrow().ok()?;
            if first.year() > LAST_YEAR {
                return None;
            }
            days = self.in_month(first);
        }
        day_of(first, days.trailing_zeros())
    }

    /// The last of them up to `date`.
    pub(super) fn previous(&self, date: Date) -> Option<Date> {
        let mut first = date.first_of_month();
        let mut days = self.in_month(first) & ((1 << date.day()) - 1);
        while days == 0 {
            first = first.yesterday().ok()?.first_of_month();
            if first.year() < FIRST_YEAR {
                return None;
            }
            days = self.in_month(first);
        }
        day_of(first, days.ilog2())
    }

    /// The matching days of the month that begins at `first`, as a bit set: bit 0 is the first day.
    fn in_month(&self, first: Date) -> u64 {
        let Ok(year) = usize::try_from(first.year() - FIRST_YEAR) else { return 0 };
        let is_in_year = self.years.get(year / 64).is_some_and(|years| years >> (year % 64) & 1 == 1);
        if !is_in_year || self.months >> (first.month() - 1) & 1 == 0 {
            return 0;
        }
        let named = |rules: &[DayRule]| rules.iter().fold(0, |days, rule| days | rule.bit(first));
        let days = self.days | named(&self.day_rules);
        // The weekdays from the first day on, in each of the weeks.
        let begin = first.weekday().to_sunday_zero_offset();
        let week = (self.weekdays | self.weekdays << 7) >> begin & 0x7F;
        let weekdays = (0..5).fold(0, |days, number| days | week << (7 * number)) | named(&self.weekday_rules);
        let month = (1 << first.days_in_month()) - 1;
        month & if self.either { days | weekdays } else { days & weekdays }
    }
}

/// The range of [`Field::Year`].
const FIRST_YEAR: i16 = 1970;
const LAST_YEAR: i16 = 2100;

fn day_of(first: Date, bit: u32) -> Option<Date> {
    first.with().day(i8::try_from(bit).ok()? + 1).build().ok()
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
