//! Calendars: days on which a schedule has no occurrence.
//!
//! An instant counts if its local date is in none of the `exclude` files and, if there are `only` files, in one of
//! them. The date is that of the instant itself, also of one that makes up for a gap. Files name days from 1970 to 2100;
//! on other days, `exclude` leaves out nothing and `only` everything.
//!
//! The days that count are one set of bits, so a test costs the same however many dates there are, and a search goes
//! from one run of days to the next rather than from one occurrence to the next.

use std::ops::RangeInclusive;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::dates::{DAYS, Dates, DaySet};
use super::day::DAY;
use super::timeline::LONGEST_SHIFT;
use super::zone::Zone;

/// A file with dates, by the name that the jobs file gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct DatesFile {
    pub name: String,
    pub dates: Arc<Dates>,
}

/// The calendar of a schedule. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar(Arc<Inner>);

#[derive(Debug, PartialEq)]
struct Inner {
    exclude: Vec<DatesFile>,
    only: Vec<DatesFile>,
    /// The days that count.
    days: DaySet,
    /// Of all these days.
    digest: String,
}

impl Calendar {
    pub fn new(exclude: Vec<DatesFile>, only: Vec<DatesFile>) -> Self {
        let mut days = if only.is_empty() { DaySet::all() } else { DaySet::none() };
        only.iter().for_each(|file| days.unite(&file.dates.days));
        exclude.iter().for_each(|file| days.remove(&file.dates.days));
        let mut hash = Sha256::new().chain_update([u8::from(only.is_empty())]);
        days.bytes().for_each(|bytes| hash.update(bytes));
        let digest = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self(Arc::new(Inner { exclude, only, days, digest }))
    }

    /// The names of the files whose dates are left out.
    pub fn exclude(&self) -> impl Iterator<Item = &str> {
        self.0.exclude.iter().map(|file| file.name.as_str())
    }

    /// The names of the files that have the only dates that count.
    pub fn only(&self) -> impl Iterator<Item = &str> {
        self.0.only.iter().map(|file| file.name.as_str())
    }

    /// A digest of the days that count: equal for equal calendars, whatever their files are called.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// For each of these days, a digit that says whether it counts.
    pub(super) fn digits(&self, days: RangeInclusive<i64>) -> String {
        days.map(|day| if self.counts(day) { '1' } else { '0' }).collect()
    }

    /// True if the same of these days count; without a calendar all do.
    pub(super) fn agree(one: Option<&Self>, other: Option<&Self>, days: RangeInclusive<i64>) -> bool {
        if one.map(Self::digest) == other.map(Self::digest) {
            return true;
        }
        let counts = |calendar: Option<&Self>, day| calendar.is_none_or(|calendar| calendar.counts(day));
        // The days that no file can name are all alike.
        let (first, last) = ((*days.start()).clamp(-1, DAYS), (*days.end()).clamp(-1, DAYS));
        (first..=last).all(|day| counts(one, day) == counts(other, day))
    }

    /// The file that leaves out the local time, or the files that all lack its date; `None` if it counts.
    pub(super) fn left_out_by(&self, local: i64) -> Option<String> {
        let day = local.div_euclid(DAY);
        if self.counts(day) {
            return None;
        }
        let excluding = self.0.exclude.iter().find(|file| file.dates.days.has(day));
        Some(excluding.map_or_else(|| self.only().collect::<Vec<_>>().join(", "), |file| file.name.clone()))
    }

    /// The first instant from `at` on whose date counts, or, if `counting` is false, does not count.
    pub(super) fn seek(&self, zone: &Zone, at: i64, counting: bool) -> Option<i64> {
        let mut at = at;
        loop {
            let span = zone.span_at(at);
            let today = at.saturating_add(span.offset).div_euclid(DAY);
            let Some(day) = self.next_day(today, counting) else {
                // After a backward shift, an earlier date can come again.
                self.next_day(today - LONGEST_SHIFT / DAY - 1, counting)?;
                at = (span.end != i64::MAX).then_some(span.end)?;
                continue;
            };
            let start = day * DAY - span.offset;
            if day == today || start < span.end {
                return Some(start.max(at));
            }
            // Shortly before a backward shift, an earlier date can still come again.
            at = if span.end.saturating_sub(at) <= LONGEST_SHIFT {
                span.end
            } else {
                span.end.max(start - LONGEST_SHIFT)
            };
        }
    }

    /// The last instant up to `at` whose date counts.
    pub(super) fn seek_back(&self, zone: &Zone, at: i64) -> Option<i64> {
        let mut at = at;
        loop {
            let span = zone.span_at(at);
            let today = at.saturating_add(span.offset).div_euclid(DAY);
            let before = (span.start != i64::MIN).then(|| span.start - 1);
            let Some(day) = self.previous_day(today) else {
                // Before a backward shift, the clock may have shown a later date.
                self.previous_day(today + LONGEST_SHIFT / DAY + 1)?;
                at = before?;
                continue;
            };
            let end = day * DAY + DAY - 1 - span.offset;
            if day == today || end >= span.start {
                return Some(end.min(at));
            }
            // Shortly after a backward shift, a later date may have come before.
            at =
                if at.saturating_sub(span.start) <= LONGEST_SHIFT { before? } else { before?.min(end + LONGEST_SHIFT) };
        }
    }

    fn counts(&self, day: i64) -> bool {
        if (0..DAYS).contains(&day) { self.0.days.has(day) } else { self.counts_elsewhere() }
    }

    /// True if days that no file can name count.
    fn counts_elsewhere(&self) -> bool {
        self.0.only.is_empty()
    }

    fn next_day(&self, day: i64, counting: bool) -> Option<i64> {
        let elsewhere = self.counts_elsewhere() == counting;
        if day >= DAYS || (day < 0 && elsewhere) {
            return elsewhere.then_some(day);
        }
        self.0.days.next(day.max(0), counting).or(elsewhere.then_some(DAYS))
    }

    fn previous_day(&self, day: i64) -> Option<i64> {
        if day < 0 || (day >= DAYS && self.counts_elsewhere()) {
            return self.counts_elsewhere().then_some(day);
        }
        self.0.days.previous(day.min(DAYS - 1)).or(self.counts_elsewhere().then_some(-1))
    }
}
