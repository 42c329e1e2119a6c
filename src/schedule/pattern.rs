//! The fields evaluated by the crate `cron`, on local time that knows no zone.
//!
//! A local time is counted in seconds as if it were UTC. The crate numbers weekdays from 1, joins the
//! day fields by "and", and counts years from 1970 to 2100; so it is given numbers only, the days that
//! either day field names as a second schedule, and no question outside those years.

use std::collections::BTreeSet;
use std::str::FromStr;

use chrono::{DateTime, Datelike, NaiveDate, Utc};

use super::error::Fault;
use super::field::Field;
use super::parse::Fields;

/// The local times that an expression names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pattern {
    /// One schedule, or two of which either may match.
    schedules: Vec<cron::Schedule>,
    years: BTreeSet<u16>,
}

impl Pattern {
    pub(super) fn new(fields: &Fields) -> Result<Self, Fault> {
        let (days, weekdays) = (fields.of(Field::DayOfMonth).list(0), fields.of(Field::DayOfWeek).list(1));
        let schedules = if fields.either_day() {
            vec![schedule(fields, &days, "*")?, schedule(fields, "*", &weekdays)?]
        } else {
            vec![schedule(fields, &days, &weekdays)?]
        };
        Ok(Self { schedules, years: fields.of(Field::Year).set.clone() })
    }

    /// The first match at `local` or later.
    pub(super) fn at_or_after(&self, local: i64) -> Option<i64> {
        let before = DateTime::from_timestamp(local.max(0) - 1, 0)?;
        self.schedules.iter().filter_map(|schedule| schedule.after(&before).next()).map(|at| at.timestamp()).min()
    }

    /// The last match at `local` or earlier.
    pub(super) fn at_or_before(&self, local: i64) -> Option<i64> {
        let behind = DateTime::from_timestamp(self.last_in_years(local)?.checked_add(1)?, 0)?;
        let matches = self.schedules.iter().filter_map(|schedule| schedule.after(&behind).next_back());
        matches.map(|at| at.timestamp()).max()
    }

    /// The crate, asked for what was before a date in a year that is not named, looks in earlier years
    /// only up to that date's month. So the question is moved to the end of the last year that is named.
    fn last_in_years(&self, local: i64) -> Option<i64> {
        let asked = DateTime::<Utc>::from_timestamp(local.min(LAST), 0)?;
        let year = u16::try_from(asked.year()).ok()?;
        let &named = self.years.range(..=year).next_back()?;
        if named == year {
            return Some(asked.timestamp());
        }
        let last = NaiveDate::from_ymd_opt(i32::from(named), 12, 31)?.and_hms_opt(23, 59, 59)?;
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
