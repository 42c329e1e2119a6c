//! Descriptions of expressions in English.
//!
//! Common forms read naturally. All others are described field by field, which is always correct.

use super::field::{Field, Values};
use super::parse::{Fields, Meaning};
use super::zone::timestamp;

const EVERY_DAY: &str = "every day";

/// Describes one expression in local time.
pub(super) fn meaning(meaning: &Meaning) -> String {
    match meaning {
        Meaning::Fields(fields) => match days(fields) {
            // What happens in every hour happens every day.
            days if days == EVERY_DAY && fields.of(Field::Hour).full => times(fields),
            days => format!("{} {days}", times(fields)),
        },
        Meaning::Every(seconds) => format!("every {}, counted from 1970-01-01T00:00:00Z", duration(*seconds)),
        Meaning::At(second) => format!("once, at {}", timestamp(*second)),
    }
}

/// Explains why an expression never occurs, if the reason is that its months lack its days, such as 30 February.
pub(super) fn missing_days(meaning: &Meaning) -> Option<String> {
    let Meaning::Fields(fields) = meaning else { return None };
    let (days, months) = (fields.of(Field::DayOfMonth), fields.of(Field::Month));
    let longest = |month: u16| match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let first = days.iter().next()?;
    // If either day field suffices, the weekday occurs in every month.
    if fields.either_day() || !days.rules.is_empty() || months.iter().any(|month| longest(month) >= first) {
        return None;
    }
    let have = if months.len() == 1 { "has" } else { "have" };
    Some(format!("{} {have} no {}", named(Field::Month, months), listed("day", "days", days)))
}

fn times(fields: &Fields) -> String {
    let [second, minute, hour] = [Field::Second, Field::Minute, Field::Hour].map(|field| fields.of(field));
    let in_hours = || if hour.full { String::new() } else { format!(" of {}", listed("hour", "hours", hour)) };
    let Some(at_second) = second.single() else {
        let seconds = regularly("second", second);
        let minutes = if minute.full { String::new() } else { format!(" of {}", listed("minute", "minutes", minute)) };
        return format!("{seconds}{minutes}{}", in_hours());
    };
    let seconds = if at_second == 0 { String::new() } else { format!(":{at_second:02}") };
    match minute.single() {
        Some(minute) if hour.len() <= MOST_TIMES => {
            let clock = hour.iter().map(|hour| format!("{hour:02}:{minute:02}{seconds}"));
            format!("at {}", joined(clock.collect()))
        }
        Some(minute) if hour.full => format!("at minute {minute}{seconds} of every hour"),
        Some(minute) => match steady_hours(hour) {
            Some((first, step)) => format!("every {step} hours from {first:02}:{minute:02}{seconds}"),
            None => format!("at minute {minute}{seconds}{}", in_hours()),
        },
        None if at_second == 0 => {
            let minutes = regularly("minute", minute);
            let is_list = minutes.starts_with("at ");
            minutes + &if is_list && hour.full { " of every hour".to_owned() } else { in_hours() }
        }
        None => {
            format!("at second {at_second} of {}{}", regularly("minute", minute).trim_start_matches("at "), in_hours())
        }
    }
}

/// The first hour and the step, if the hours repeat evenly across days.
fn steady_hours(hours: &Values) -> Option<(u16, usize)> {
    let (first, size) = (hours.iter().next()?, hours.len());
    let step = (size > 1 && 24 % size == 0).then_some(24 / size)?;
    hours.iter().eq((first..24).step_by(step)).then_some((first, step))
}

/// Maximum number of times of day to list one by one.
const MOST_TIMES: usize = 6;

/// `every minute`, `every 15 minutes`, or the list of them.
fn regularly(unit: &str, values: &Values) -> String {
    let all: Vec<u16> = values.iter().collect();
    match all.as_slice() {
        _ if values.full => format!("every {unit}"),
        // Only a step that divides 60 stays regular across the end of the hour.
        [0, step, ..] if 60 % step == 0 && all.iter().copied().eq((0..60).step_by(usize::from(*step))) => {
            format!("every {step} {unit}s")
        }
        _ => format!("at {}", listed(unit, &format!("{unit}s"), values)),
    }
}

/// Describes the days on which fields match.
pub(super) fn days(fields: &Fields) -> String {
    let of = |field| fields.of(field);
    let (dates, weekdays) = (of(Field::DayOfMonth), of(Field::DayOfWeek));
    let dates = format!("on {} of the month", with_rules(dates, || listed("day", "days", dates)));
    let of_the_month = if weekdays.rules.is_empty() { "" } else { " of the month" };
    let weekdays = with_rules(weekdays, || named(Field::DayOfWeek, weekdays)) + of_the_month;
    let days = match (of(Field::DayOfMonth).full, of(Field::DayOfWeek).full) {
        // If either may match and one always does, the other has no effect.
        (true, true) => EVERY_DAY.to_owned(),
        (true, false) | (false, true) if fields.either_day() => EVERY_DAY.to_owned(),
        (true, false) => format!("on {weekdays}"),
        (false, true) => dates,
        (false, false) if fields.either_day() => format!("{dates} or on {weekdays}"),
        (false, false) => format!("{dates} if it is {weekdays}"),
    };
    let month = of(Field::Month);
    let in_months = if month.full { String::new() } else { format!(" in {}", named(Field::Month, month)) };
    let year = of(Field::Year);
    let in_years = if year.full { String::new() } else { format!(" in {}", listed("year", "years", year)) };
    format!("{days}{in_months}{in_years}")
}

/// The values in words, unless there are only rules, and the rules.
fn with_rules(values: &Values, words: impl FnOnce() -> String) -> String {
    let words = (values.len() > 0).then(words);
    joined(words.into_iter().chain(values.rules.iter().map(|rule| rule.describe())).collect())
}

/// `day 1`, or `days 1, 15 and 20 to 25`.
fn listed(one: &str, many: &str, values: &Values) -> String {
    if values.full {
        return format!("every {one}");
    }
    let word = if values.len() == 1 { one } else { many };
    format!("{word} {}", spans(values, |value| value.to_string()))
}

fn named(field: Field, values: &Values) -> String {
    spans(values, |value| field.name_of(value))
}

/// Lists the values, formatted by `name`. Three or more consecutive values become `first to last`.
fn spans(values: &Values, name: impl Fn(u16) -> String) -> String {
    let mut texts = Vec::new();
    for &(first, last) in values.ranges() {
        match last - first {
            0 => texts.push(name(first)),
            1 => texts.extend([name(first), name(last)]),
            _ => texts.push(format!("{} to {}", name(first), name(last))),
        }
    }
    joined(texts)
}

fn joined(mut texts: Vec<String>) -> String {
    match texts.pop() {
        Some(last) if texts.is_empty() => last,
        Some(last) => format!("{} and {last}", texts.join(", ")),
        None => String::new(),
    }
}

fn duration(seconds: i64) -> String {
    let parts = [
        ("day", seconds / 86_400),
        ("hour", seconds / 3_600 % 24),
        ("minute", seconds / 60 % 60),
        ("second", seconds % 60),
    ];
    let worded = parts.iter().filter(|(_, count)| *count > 0).map(|(unit, count)| match count {
        1 => format!("1 {unit}"),
        _ => format!("{count} {unit}s"),
    });
    let words: Vec<String> = worded.collect();
    match words.as_slice() {
        // "every minute" rather than "every 1 minute".
        [one] if one.starts_with("1 ") => one[2..].to_owned(),
        _ => words.join(" "),
    }
}

#[cfg(test)]
mod tests {
    fn described(text: &str) -> String {
        super::meaning(&super::super::parse::parse(text, "job").expect("valid"))
    }

    #[test]
    fn common_expressions_read_naturally() {
        for (text, words) in [
            ("30 2 * * *", "at 02:30 every day"),
            ("@daily", "at 00:00 every day"),
            ("0 9,17 * * mon-fri", "at 09:00 and 17:00 on Monday to Friday"),
            ("* * * * *", "every minute"),
            ("*/15 * * * *", "every 15 minutes"),
            ("*/15 8-17 * * 1-5", "every 15 minutes of hours 8 to 17 on Monday to Friday"),
            ("5 * * * *", "at minute 5 of every hour"),
            ("15 2 1 * *", "at 02:15 on day 1 of the month"),
            ("0 0 1,15 * 0", "at 00:00 on days 1 and 15 of the month or on Sunday"),
            ("0 0 */10 2 0", "at 00:00 on days 1, 11, 21 and 31 of the month if it is Sunday in February"),
            ("10 0 0 1 jan * 2027", "at 00:00:10 on day 1 of the month in January in year 2027"),
            ("*/10 * * * * *", "every 10 seconds"),
            ("0 */2 * * *", "every 2 hours from 00:00 every day"),
            ("5 1-23/2 * * sat", "every 2 hours from 01:05 on Saturday"),
            ("0 8-20/2 * * *", "at minute 0 of hours 8, 10, 12, 14, 16, 18 and 20 every day"),
            ("0 */6 * * *", "at 00:00, 06:00, 12:00 and 18:00 every day"),
            ("*/7 * * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of every hour"),
            ("0 22-2 * * fri-mon", "at 00:00, 01:00, 02:00, 22:00 and 23:00 on Sunday, Monday, Friday and Saturday"),
            ("15,45 30 9 * * *", "at seconds 15 and 45 of minute 30 of hour 9 every day"),
            ("30 */10 9 * * *", "at second 30 of every 10 minutes of hour 9 every day"),
            ("0 0 12 1 1 * 2030-2032", "at 12:00 on day 1 of the month in January in years 2030 to 2032"),
            ("0 0 1 */3 *", "at 00:00 on day 1 of the month in January, April, July and October"),
            ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday"),
            ("0 0 L * *", "at 00:00 on the last day of the month"),
            ("0 0 1,15,L * *", "at 00:00 on days 1 and 15 and the last day of the month"),
            (
                "0 0 L-1,L-3,L-21 * *",
                "at 00:00 on the day before the last, the third day before the last and the 21st day before the last of the month",
            ),
            ("0 0 LW 12 *", "at 00:00 on the last weekday (Monday to Friday) of the month in December"),
            ("0 0 15W * *", "at 00:00 on the weekday (Monday to Friday) nearest to day 15 of the month"),
            ("0 0 * * mon#2", "at 00:00 on the second Monday of the month"),
            ("0 0 * * wed,friL", "at 00:00 on Wednesday and the last Friday of the month"),
            ("0 0 L * 1#1", "at 00:00 on the last day of the month or on the first Monday of the month"),
            (
                "0 0 */2 * 7L",
                "at 00:00 on days 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29 and 31 of the month if it is the last Sunday of the month",
            ),
            ("@every 36h", "every 1 day 12 hours, counted from 1970-01-01T00:00:00Z"),
            ("3,7 5 * * *", "at minutes 3 and 7 of hour 5 every day"),
            ("@every 90s", "every 1 minute 30 seconds, counted from 1970-01-01T00:00:00Z"),
            ("@every 1h", "every hour, counted from 1970-01-01T00:00:00Z"),
            ("@at 2026-12-24T18:00:00Z", "once, at 2026-12-24T18:00:00Z"),
        ] {
            assert_eq!(described(text), words, "{text}");
        }
    }
}
