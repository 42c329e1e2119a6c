//! The seven fields of an expression, and sets of their values.

use std::collections::BTreeSet;
use std::fmt;

use super::day_rule::DayRule;

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

    /// The full name of a value with a capital letter; empty if it has none.
    pub(super) fn name_of(self, value: u16) -> String {
        let name = self.names().get(usize::from(value - self.min())).copied().unwrap_or_default();
        let first = name.chars().next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(name.chars().skip(1)).collect()
    }

    /// The allowed values, for error messages.
    pub(super) fn allowed(self) -> &'static str {
        match self {
            Self::Second | Self::Minute => "0 to 59",
            Self::Hour => "0 to 23",
            Self::DayOfMonth => "1 to 31, L, L-3, LW, 15W",
            Self::Month => "1 to 12, jan to dec",
            Self::DayOfWeek => "0 to 7 (0 and 7 are Sunday), sun to sat, mon#2, friL",
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

/// The values that one field matches, at least one value or rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Values {
    /// Ranges of consecutive values, each `(first, last)`, in order and with gaps between them.
    ranges: Box<[(u16, u16)]>,
    /// What a day field matches besides the values, in order.
    pub(super) rules: Box<[DayRule]>,
    /// Written with a leading `*`. Determines how the day fields are combined and how shifts of the clock are handled.
    pub(super) wild: bool,
    /// Contains every value.
    pub(super) full: bool,
}

impl Values {
    pub(super) fn new(field: Field, set: &BTreeSet<u16>, rules: BTreeSet<DayRule>, wild: bool) -> Self {
        let mut ranges: Vec<(u16, u16)> = Vec::new();
        for &value in set {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == value => *last = value,
                _ => ranges.push((value, value)),
            }
        }
        let full = set.len() == usize::from(field.size());
        // Rules name days that a full set already contains.
        let rules = if full { Box::default() } else { rules.into_iter().collect() };
        Self { ranges: ranges.into(), rules, wild, full }
    }

    /// Every value, with the meaning of `*`.
    pub(super) fn all(field: Field) -> Self {
        Self { ranges: [(field.min(), field.max())].into(), rules: Box::default(), wild: true, full: true }
    }

    pub(super) fn one(value: u16) -> Self {
        Self { ranges: [(value, value)].into(), rules: Box::default(), wild: false, full: false }
    }

    /// The values in order, without rules.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> {
        self.ranges.iter().flat_map(|&(first, last)| first..=last)
    }

    /// The number of values, without rules.
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
        if self.wild && self.full {
            return f.write_str("*");
        }
        let values = (!self.ranges.is_empty()).then(|| self.list(0));
        let all: Vec<String> = values.into_iter().chain(self.rules.iter().map(ToString::to_string)).collect();
        write!(f, "{}{}", if self.wild { "*=" } else { "" }, all.join(","))
    }
}
