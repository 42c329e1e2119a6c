//! Days that depend on the month: `L`, `L-3`, `LW`, `15W` of the days of the month, `mon#2` and `friL` of the weekdays.
//!
//! The meaning is that of Quartz, but for two surprises: `31W` has no day in a month of 30 days, and `L` alone is no
//! weekday (Quartz means Saturday). A rule names at most one day of a month.

use std::fmt;

use jiff::civil::Date;

use super::field::Field;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum DayRule {
    /// `L`: the last day; `L-3`: this many days before it.
    BeforeLast(u16),
    /// `LW`: the last day that is neither Saturday nor Sunday.
    LastWorkday,
    /// `15W`: of the days that are neither Saturday nor Sunday, the one of this month that is nearest.
    NearestWorkday(u16),
    /// `mon#2`: one of the month's Mondays, counted from 1.
    Nth { weekday: u16, count: u16 },
    /// `friL`: the last Friday.
    LastOf(u16),
}

impl DayRule {
    /// The day that the rule names in the month that begins at `first`, as a bit set: bit 0 is the first day.
    pub(super) fn bit(self, first: Date) -> u64 {
        let last = i32::from(first.days_in_month());
        let weekday = |day: i32| (i32::from(first.weekday().to_sunday_zero_offset()) + day - 1) % 7;
        let earliest = |wanted: u16| 1 + (i32::from(wanted) - weekday(1)).rem_euclid(7);
        let day = match self {
            Self::BeforeLast(days) => last - i32::from(days),
            Self::LastWorkday => workday(last, weekday(last), last),
            Self::NearestWorkday(day) if i32::from(day) <= last => {
                workday(i32::from(day), weekday(i32::from(day)), last)
            }
            Self::NearestWorkday(_) => return 0,
            Self::Nth { weekday, count } => earliest(weekday) + 7 * (i32::from(count) - 1),
            // The fifth, if there is one.
            Self::LastOf(weekday) => earliest(weekday) + if earliest(weekday) + 28 <= last { 28 } else { 21 },
        };
        if (1..=last).contains(&day) { 1 << (day - 1) } else { 0 }
    }

    /// In words, without `of the month`.
    pub(super) fn describe(self) -> String {
        match self {
            Self::BeforeLast(0) => "the last day".to_owned(),
            Self::BeforeLast(1) => "the day before the last".to_owned(),
            Self::BeforeLast(days) => format!("the {} day before the last", ordinal(days)),
            Self::LastWorkday => "the last weekday (Monday to Friday)".to_owned(),
            Self::NearestWorkday(day) => format!("the weekday (Monday to Friday) nearest to day {day}"),
            Self::Nth { weekday, count } => format!("the {} {}", ordinal(count), Field::DayOfWeek.name_of(weekday)),
            Self::LastOf(weekday) => format!("the last {}", Field::DayOfWeek.name_of(weekday)),
        }
    }
}

/// The day, or its neighbour in the same month if it is a Saturday (6) or a Sunday (0).
fn workday(day: i32, weekday: i32, last: i32) -> i32 {
    match weekday {
        6 if day == 1 => 3,
        6 => day - 1,
        0 if day == last => day - 2,
        0 => day + 1,
        _ => day,
    }
}

fn ordinal(number: u16) -> String {
    const WORDS: [&str; 5] = ["first", "second", "third", "fourth", "fifth"];
    match (number, usize::from(number).checked_sub(1).and_then(|index| WORDS.get(index))) {
        (_, Some(word)) => (*word).to_owned(),
        (21, None) => "21st".to_owned(),
        (22, None) => "22nd".to_owned(),
        (23, None) => "23rd".to_owned(),
        (_, None) => format!("{number}th"),
    }
}

/// A canonical text, as in an expression.
impl fmt::Display for DayRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BeforeLast(0) => f.write_str("L"),
            Self::BeforeLast(days) => write!(f, "L-{days}"),
            Self::LastWorkday => f.write_str("LW"),
            Self::NearestWorkday(day) => write!(f, "{day}W"),
            Self::Nth { weekday, count } => write!(f, "{weekday}#{count}"),
            Self::LastOf(weekday) => write!(f, "{weekday}L"),
        }
    }
}
