//! Expressions with two restricted day fields. As in crontab(5), a day matches if either field does.
//!
//! Most people who write `0 0 1-7 * 1` want the first Monday, and get eleven days a month.

use super::describe;
use super::field::{Field, Values};
use super::parse::{Fields, Meaning, parse};
use super::{Expression, Schedule};

/// An expression that is due on more days than each of its day fields says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EitherDay {
    /// Index of the expression, from 0.
    pub index: usize,
    /// When it is due, in words.
    pub days: String,
    /// What was probably meant, if it can be written: an expression, and when that is due, in words.
    pub instead: Option<(String, String)>,
}

impl Schedule {
    /// The expressions that are due if either of two restricted day fields matches.
    pub fn either_day(&self) -> impl Iterator<Item = EitherDay> + '_ {
        let expressions = self.0.expressions.iter().enumerate();
        expressions.filter_map(|(index, Expression { text, meaning, .. })| {
            let Meaning::Fields(fields) = meaning else { return None };
            let is_every_day = [Field::DayOfMonth, Field::DayOfWeek].iter().all(|field| fields.of(*field).full);
            let is_meant = !fields.either_day() || is_every_day;
            (!is_meant).then(|| EitherDay { index, days: describe::days(fields), instead: both(text, fields) })
        })
    }
}

/// The same expression for the days that match both fields: such as `mon#1` for the Monday among days 1 to 7.
fn both(text: &str, fields: &Fields) -> Option<(String, String)> {
    let (days, weekdays) = (fields.of(Field::DayOfMonth), fields.of(Field::DayOfWeek));
    let words: Vec<&str> = text.split_whitespace().collect();
    // With six or seven fields, the first is the second.
    let day = if words.len() == 5 { 2 } else { 3 };
    let weekday = day + 2;
    let (in_days, in_weekdays) = match (days.full, weekdays.full) {
        (true, _) => ("*".to_owned(), (*words.get(weekday)?).to_owned()),
        (_, true) => ((*words.get(day)?).to_owned(), "*".to_owned()),
        _ => ("*".to_owned(), rules(days, weekdays)?),
    };
    let written = words.iter().enumerate().map(|(index, word)| match index {
        _ if index == day => in_days.as_str(),
        _ if index == weekday => in_weekdays.as_str(),
        _ => *word,
    });
    let written = written.collect::<Vec<_>>().join(" ");
    match parse(&written, "").ok()? {
        Meaning::Fields(fields) => Some((written, describe::days(&fields))),
        _ => None,
    }
}

/// The rules for these weekdays among these days, if the days are whole weeks of a month.
fn rules(days: &Values, weekdays: &Values) -> Option<String> {
    if !(days.rules.is_empty() && weekdays.rules.is_empty()) {
        return None;
    }
    let of_week = |week: Option<u16>| {
        weekdays.iter().map(move |weekday| {
            let name = Field::DayOfWeek.name_of(weekday)[..3].to_lowercase();
            week.map_or_else(|| format!("{name}L"), |count| format!("{name}#{count}"))
        })
    };
    Some(weeks(days)?.into_iter().flat_map(of_week).collect::<Vec<_>>().join(","))
}

/// The weeks that consist of these days, counted from 1; `None` for the last week.
fn weeks(days: &Values) -> Option<Vec<Option<u16>>> {
    const LAST: [(u16, u16); 1] = [(25, 31)];
    if days.ranges() == LAST {
        return Some(vec![None]);
    }
    let has = |day: u16| days.iter().any(|found| found == day);
    let mut weeks = Vec::new();
    for count in 1..=5 {
        let mut week = 7 * count - 6..=(7 * count).min(31);
        match week.clone().filter(|day| has(*day)).count() {
            0 => {}
            _ if week.all(has) => weeks.push(Some(count)),
            _ => return None,
        }
    }
    Some(weeks)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::schedule::Dst;

    fn schedule(text: &str) -> Schedule {
        Schedule::parse(&[text], "UTC", Dst::Once, "job").unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn about(text: &str) -> Option<(String, Option<(String, String)>)> {
        schedule(text).either_day().next().map(|either| (either.days, either.instead))
    }

    fn instead(text: &str) -> Option<String> {
        about(text)?.1.map(|(expression, _)| expression)
    }

    #[test]
    fn what_was_probably_meant_is_named() {
        let first = ("0 0 * * mon#1".to_owned(), "on the first Monday of the month".to_owned());
        let days = "on days 1 to 7 of the month or on Monday".to_owned();
        assert_eq!(about("0 0 1-7 * 1"), Some((days, Some(first))));
        for (text, expression) in [
            ("0 0 1-7 * mon", "0 0 * * mon#1"),
            ("0 0 1,2,3,4,5,6,7 * 7", "0 0 * * sun#1"),
            ("30 2 8-14 */3 tue,thu", "30 2 * */3 tue#2,thu#2"),
            ("0 0 1-7,15-21 * wed", "0 0 * * wed#1,wed#3"),
            ("0 0 1-14 * wed", "0 0 * * wed#1,wed#2"),
            ("0 0 22-28 * fri", "0 0 * * fri#4"),
            ("0 0 29-31 * fri", "0 0 * * fri#5"),
            ("0 0 25-31 * 5", "0 0 * * friL"),
            ("10 0 0 1-7 * 1", "10 0 0 * * mon#1"),
            ("10 0 0 1-7 1 1 2027", "10 0 0 * 1 mon#1 2027"),
            ("0 0 1-31 * 1", "0 0 * * 1"),
            ("0 0 1-7 * 0-6", "0 0 1-7 * *"),
        ] {
            assert_eq!(instead(text).as_deref(), Some(expression), "{text}");
        }
    }

    #[test]
    fn what_was_meant_is_the_days_that_match_both() {
        for text in ["0 0 1-7 * 1", "0 0 8-14 * 2,4", "0 0 25-31 jan,mar,dec 5", "0 0 1-7,15-21,29-31 * 0"] {
            let fields: Vec<&str> = text.split(' ').collect();
            let all = |text: &str| -> Vec<Timestamp> {
                let until = "2031-01-01T00:00:00Z".parse().expect("an instant");
                schedule(text).occurrences("2026-01-01T00:00:00Z".parse().expect("an instant"), until).collect()
            };
            let on_days = all(&format!("0 0 {} {} *", fields[2], fields[3]));
            let mut both = all(&format!("0 0 * {} {}", fields[3], fields[4]));
            both.retain(|at| on_days.contains(at));
            assert_eq!(all(&instead(text).unwrap_or_else(|| panic!("{text}"))), both, "{text}");
        }
    }

    #[test]
    fn other_days_are_explained_and_days_that_mean_what_they_say_are_not() {
        for (text, days) in [
            ("0 0 13 * 5", "on day 13 of the month or on Friday"),
            ("0 0 1,15 * 1", "on days 1 and 15 of the month or on Monday"),
            ("0 0 2-8 * 1", "on days 2 to 8 of the month or on Monday"),
            ("0 0 L * mon#1", "on the last day of the month or on the first Monday of the month"),
            ("0 0 1-31 * 1", "every day"),
        ] {
            let about = about(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((about.0.as_str(), about.1.is_some()), (days, text.contains("1-31")), "{text}");
        }
        for text in
            ["0 0 1-7 * *", "0 0 * * 1", "0 0 */2 * 1", "0 0 1-7 * */2", "@weekly", "@every 5m", "0 0 1-31 * 0-6"]
        {
            assert_eq!(about(text), None, "{text}");
        }
    }
}
