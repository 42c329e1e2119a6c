//! Evaluation of the fields by the crate `cron`, on naive local time.
//!
//! A local time is counted in seconds as if it were UTC. The crate numbers weekdays from 1, combines the day fields
//! with "and", and supports the years 1970 to 2100. So it receives only numbers, a second schedule if either day field
//! suffices, and no query outside these years. It has no days that depend on the month: if there are any, it receives
//! every day, and [`Days`] says which of them match.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDate, Utc};

use super::day::{DAY, Days};
use super::error::Fault;
use super::field::Field;
use super::parse::Fields;
use super::zone::{civil, start_of};

/// The local times that an expression matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    /// One schedule, or two if either day field suffices.
    schedules: Vec<cron::Schedule>,
    /// The days, if the schedule does not say which.
    days: Option<Days>,
    pub(super) fields: Arc<Fields>,
}

/// The patterns of many schedules. Those with equal fields share one, which takes a kilobyte.
#[derive(Debug, Default)]
pub struct Patterns(HashMap<Arc<Fields>, Arc<Pattern>>);

impl Patterns {
    /// The pattern of these fields.
    pub(super) fn of(&mut self, fields: &Arc<Fields>) -> Result<Arc<Pattern>, Fault> {
        if let Some(known) = self.0.get(fields) {
            return Ok(Arc::clone(known));
        }
        let pattern = Arc::new(Pattern::new(fields)?);
        self.0.insert(Arc::clone(fields), Arc::clone(&pattern));
        Ok(pattern)
    }
}

impl Pattern {
    fn new(fields: &Arc<Fields>) -> Result<Self, Fault> {
        let [days, weekdays] = [Field::DayOfMonth, Field::DayOfWeek].map(|field| fields.of(field));
        let has_rules = !(days.rules.is_empty() && weekdays.rules.is_empty());
        let schedules = if has_rules {
            vec![schedule(fields, "*", "*")?]
        } else if fields.either_day() {
            vec![schedule(fields, &days.list(0), "*")?, schedule(fields, "*", &weekdays.list(1))?]
        } else {
            vec![schedule(fields, &days.list(0), &weekdays.list(1))?]
        };
        let days = has_rules.then(|| Days::of(fields));
        Ok(Self { schedules, days, fields: Arc::clone(fields) })
    }

    /// The first match at `local` or later.
    pub(super) fn at_or_after(&self, local: i64) -> Option<i64> {
        let found = self.first_from(local)?;
        match &self.days {
            Some(days) if !days.holds(civil(found).date()) => {
                // Every matching day has the same times, so the search ends on the first one.
                self.first_from(start_of(days.next(civil(found).date())?))
            }
            _ => Some(found),
        }
    }

    /// The last match at `local` or earlier.
    pub(super) fn at_or_before(&self, local: i64) -> Option<i64> {
        let found = self.last_until(local)?;
        match &self.days {
            Some(days) if !days.holds(civil(found).date()) => {
                self.last_until(start_of(days.previous(civil(found).date())?) + DAY - 1)
            }
            _ => Some(found),
        }
    }

    fn first_from(&self, local: i64) -> Option<i64> {
        let before = DateTime::from_timestamp(local.max(0) - 1, 0)?;
        self.schedules.iter().filter_map(|schedule| schedule.after(&before).next()).map(|at| at.timestamp()).min()
    }

    fn last_until(&self, local: i64) -> Option<i64> {
        let next = DateTime::from_timestamp(self.last_in_years(local)?.checked_add(1)?, 0)?;
        let matches = self.schedules.iter().filter_map(|schedule| schedule.after(&next).next_back());
        matches.map(|at| at.timestamp()).max()
    }

    /// Moves a query to the end of the last matching year. For a date in another year, the crate would search earlier
    /// years only up to that date's month.
    fn last_in_years(&self, local: i64) -> Option<i64> {
        let query = DateTime::<Utc>::from_timestamp(local.min(LAST), 0)?;
        let year = u16::try_from(query.year()).ok()?;
        let matching = self.fields.of(Field::Year).last_up_to(year)?;
        if matching == year {
            return Some(query.timestamp());
        }
        let last = NaiveDate::from_ymd_opt(i32::from(matching), 12, 31)?.and_hms_opt(23, 59, 59)?;
        Some(last.and_utc().timestamp())
    }
}

/// 2100-12-31T23:59:59.
const LAST: i64 = 4_133_980_799;

fn schedule(fields: &Fields, days: &str, weekdays: &str) -> Result<cron::Schedule, Fault> {
    let list = |field| match fields.of(field) {
        values if values.full => "*".to_owned(),
        values => values.list(0),
    };
    let (second, minute, hour) = (list(Field::Second), list(Field::Minute), list(Field::Hour));
    let (month, year) = (list(Field::Month), list(Field::Year));
    let pattern = format!("{second} {minute} {hour} {days} {month} {weekdays} {year}");
    cron::Schedule::from_str(&pattern).map_err(|error| Fault::Refused { pattern, reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Dst, Schedule};

    #[test]
    fn equal_expressions_share_a_pattern_and_others_do_not() {
        let mut patterns = Patterns::default();
        let mut parse = |text, zone| {
            let schedule = Schedule::parse_sharing(&mut patterns, &[text], zone, Dst::Once, "job").unwrap();
            let alone = Schedule::parse(&[text], zone, Dst::Once, "job").unwrap();
            assert_eq!(schedule.canonical(), alone.canonical());
            let (from, to) = ("2026-01-01T00:00:00Z".parse().unwrap(), "2026-06-01T00:00:00Z".parse().unwrap());
            assert!(schedule.occurrences(from, to).eq(alone.occurrences(from, to)), "{text}");
        };
        parse("0 3 * * *", "UTC");
        parse(" 0  3 * * * ", "Europe/Berlin");
        parse("00 03 * * 0-7", "UTC");
        parse("@every 5m", "UTC");
        parse("0 4 * * *", "UTC");
        assert_eq!(patterns.0.len(), 3, "{patterns:?}");
    }
}
