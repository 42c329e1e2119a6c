//! The seven fields of an expression, and sets of their values.

use std::collections::BTreeSet;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    Second,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    /// Sunday is 0.
    DayOfWeek,
    /// From 1970 to 2100, the range of the crate `cron`.
    Year,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

impl Field {
    pub(super) fn min(self) -> u16 {
        match self {
            Self::Second | Self::Minute | Self::Hour | Self::DayOfWeek => 0,
            Self::DayOfMonth | Self::Month => 1,
            Self::Year => 1970,
        }
    }

    /// The largest value. A weekday may also be written as 7, which means 0.
    pub(super) fn max(self) -> u16 {
        match self {
            Self::Second | Self::Minute => 59,
            Self::Hour => 23,
            Self::DayOfMonth => 31,
            Self::Month => 12,
            Self::DayOfWeek => 6,
            Self::Year => 2100,
        }
    }

    /// The number of values.
    pub(super) fn size(self) -> u16 {
        self.max() - self.min() + 1
    }

    /// The full names of the values, in order. The first three letters are valid names too.
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            Self::Month => &MONTHS,
            Self::DayOfWeek => &WEEKDAYS,
            _ => &[],
        }
    }

    /// The allowed values, for error messages.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Second | Self::Minute => "0 to 59",
            Self::Hour => "0 to 23",
            Self::DayOfMonth => "1 to 31",
            Self::Month => "1 to 12, jan to dec",
            Self::DayOfWeek => "0 to 7 (0 and 7 are Sunday), sun to sat",
            Self::Year => "1970 to 2100",
        }
    }

    /// The name for errors and hashed values. A change of a name would change every `H` of the field.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The values that one field matches, at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values {
    /// Ranges of consecutive values, each `(first, last)`, in order and with gaps between them.
    ranges: Box<[(u16, u16)]>,
    /// Written with a leading `*`. Determines how the day fields are combined and how shifts of the clock are handled.
    pub(super) wild: bool,
    /// Contains every value.
    pub(super) full: bool,
}

impl Values {
    pub(super) fn new(field: Field, set: &BTreeSet<u16>, wild: bool) -> Self {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for &value in set {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == value => *last = value,
                _ => ranges.push((value, value)),
            }
        }
        let full = set.len() == usize::from(field.size());
        Self { ranges: ranges.into(), wild, full }
    }

    /// Every value, with the meaning of `*`.
    pub(super) fn all(field: Field) -> Self {
        Self { ranges: [(field.min(), field.max())].into(), wild: true, full: true }
    }

    pub(super) fn one(value: u16) -> Self {
        Self { ranges: [(value, value)].into(), wild: false, full: false }
    }

    /// The values in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// The number of values.
    pub(super) fn len(&self) -> usize {
        self.ranges.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    }

    /// The value, if there is exactly one.
    pub(super) fn single(&self) -> Option<u16> {
        match *self.ranges {
            [(first, last)] if first == last => Some(first),
            _ => None,
        }
    }

    /// The largest value that is at most `limit`.
    pub(super) fn last_up_to(&self, limit: u16) -> Option<u16> {
        let (_, last) = self.ranges.iter().rfind(|&&(first, _)| first <= limit)?;
        Some(limit.min(*last))
    }

    /// The values as ranges of consecutive ones, each `(first, last)`.
    pub(super) fn ranges(&self) -> &[(u16, u16)] {
        &self.ranges
    }

    /// The set as a list of numbers and ranges, with `shift` added to each value.
    pub(super) fn list(&self, shift: u16) -> String {
        let item = |&(first, last): &(u16, u16)| match (first + shift, last + shift) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        self.ranges.iter().map(item).collect::<Vec<_>>().join(",")
    }
}

/// A canonical text. A leading `*` is part of the meaning.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.wild, self.full) {
            (true, true) => f.write_str("*"),
            (true, false) => write!(f, "*={}", self.list(0)),
            (false, _) => f.write_str(&self.list(0)),
        }
    }
}
