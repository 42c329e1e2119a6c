//! Evaluation of the fields by the crate `cron`, on naive local time.
//!
//! A local time is counted in seconds as if it were UTC. The crate numbers weekdays from 1, combines the day fields
//! with "and", and supports the years 1970 to 2100. So it receives only numbers, a second schedule if either day field
//! suffices, and no query outside these years.

use std::str::FromStr;

use chrono::{DateTime, Datelike, NaiveDate, Utc};

use super::error::Fault;
use super::field::{Field, Values};
use super::parse::Fields;

/// The local times that an expression matches.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    /// One schedule, or two if either day field suffices.
    schedules: Vec<cron::Schedule>,
    years: Values,
}

impl Pattern {
    pub(super) fn new(fields: &Fields) -> Result<Self, Fault> {
        let (days, weekdays) = (fields.of(Field::DayOfMonth).list(0), fields.of(Field::DayOfWeek).list(1));
        let schedules = if fields.either_day() {
            vec![schedule(fields, &days, "*")?, schedule(fields, "*", &weekdays)?]
        } else {
            vec![schedule(fields, &days, &weekdays)?]
        };
        Ok(Self { schedules, years: fields.of(Field::Year).clone() })
    }

    /// The first match at `local` or later.
    pub(super) fn at_or_after(&self, local: i64) -> Option<i64> {
        let before = DateTime::from_timestamp(local.max(0) - 1, 0)?;
        self.schedules.iter().filter_map(|schedule| schedule.after(&before).next()).map(|at| at.timestamp()).min()
    }

    /// The last match at `local` or earlier.
    pub(super) fn at_or_before(&self, local: i64) -> Option<i64> {
        let next = DateTime::from_timestamp(self.last_in_years(local)?.checked_add(1)?, 0)?;
        let matches = self.schedules.iter().filter_map(|schedule| schedule.after(&next).next_back());
        matches.map(|at| at.timestamp()).max()
    }

    /// Moves a query to the end of the last matching year. For a date in another year, the crate would search earlier
    /// years only up to that date's month.
    fn last_in_years(&self, local: i64) -> Option<i64> {
        let query = DateTime::<Utc>::from_timestamp(local.min(LAST), 0)?;
        let year = u16::try_from(query.year()).ok()?;
        let matching = self.years.last_up_to(year)?;
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
