//! Parser and formatter for durations such as `500ms`, `90s` or `1h30m`.
//!
//! jobs.yaml, the command line and all output share them. Fractions, weeks and numbers without a unit are deliberately
//! not supported: a bare `90` means minutes to one reader and seconds to another.

use std::time::Duration;

use crate::suggest::{did_you_mean, nearest};

/// The units in milliseconds, from large to small.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Common spellings that are not supported, with the unit to suggest instead.
const ALIASES: [(&str, &str); 6] =
    [("sec", "s"), ("secs", "s"), ("min", "m"), ("mins", "m"), ("hr", "h"), ("day", "d")];

/// The longest duration, a century. The limit keeps all sums of instants and durations in range.
const LONGEST: Duration = Duration::from_secs(36_525 * 86_400);

/// The error for a text that is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// It does not begin with digits, or contains something other than digits and units.
    #[error("`{0}` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`")]
    NotADuration(String),
    /// A number without a unit.
    #[error("`{0}` has no unit: write `{0}s` for seconds, `{0}m` for minutes")]
    NoUnit(String),
    /// A unit that does not exist.
    #[error("`{text}` has the unknown unit `{unit}`{hint}", hint = did_you_mean(*.nearest))]
    UnknownUnit {
        text: String,
        unit: String,
        /// The unit that was probably meant.
        nearest: Option<&'static str>,
    },
    /// Such as `30m1h` or `1m1m`.
    #[error("`{0}` must name its units from large to small, each at most once: d, h, m, s, ms")]
    OutOfOrder(String),
    /// More than a century.
    #[error("`{0}` is longer than a hundred years")]
    TooLong(String),
}

/// Parses a duration that must not be zero.
///
/// # Errors
/// If the text is not a duration, or is zero; the text is for people.
pub fn parse_positive(text: &str) -> Result<Duration, String> {
    match parse(text) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(bad) => Err(bad.to_string()),
    }
}

/// Parses a duration. Zero is valid; for callers that cannot use it there is [`parse_positive`].
///
/// # Errors
/// If the text is not a duration; the error names the broken rule.
pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let mut rest = text;
    let mut millis: u64 = 0;
    let mut units = UNITS.iter();
    if text.is_empty() {
        return Err(BadDuration::NotADuration(text.to_owned()));
    }
    while !rest.is_empty() {
        let (digits, unit, behind) = next_part(text, rest)?;
        let known = UNITS.iter().any(|(name, _)| *name == unit);
        if !known {
            return Err(unknown_unit(text, unit));
        }
        // The iterator continues after the last unit found, which rejects `30m1h` and `1m1m`.
        let (_, factor) =
            units.find(|(name, _)| *name == unit).ok_or_else(|| BadDuration::OutOfOrder(text.to_owned()))?;
        millis = digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor))
            .and_then(|part| part.checked_add(millis))
            .ok_or_else(|| BadDuration::TooLong(text.to_owned()))?;
        rest = behind;
    }
    let duration = Duration::from_millis(millis);
    if duration > LONGEST { Err(BadDuration::TooLong(text.to_owned())) } else { Ok(duration) }
}

/// Splits the next number and its unit off `rest`.
fn next_part<'a>(text: &str, rest: &'a str) -> Result<(&'a str, &'a str, &'a str), BadDuration> {
    let digits_end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, behind) = rest.split_at(digits_end);
    let unit_end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
    let (unit, behind) = behind.split_at(unit_end);
    if !digits.is_empty() && digits.len() == text.len() {
        return Err(BadDuration::NoUnit(text.to_owned()));
    }
    if digits.is_empty() || unit.is_empty() {
        return Err(BadDuration::NotADuration(text.to_owned()));
    }
    Ok((digits, unit, behind))
}

fn unknown_unit(text: &str, unit: &str) -> BadDuration {
    let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(unit)).map(|(_, name)| *name);
    let nearest = alias.or_else(|| nearest(unit, UNITS.iter().map(|(name, _)| *name)));
    BadDuration::UnknownUnit { text: text.to_owned(), unit: unit.to_owned(), nearest }
}

/// Formats a duration so that [`parse`] reads it back. Truncates to milliseconds.
pub fn format(duration: Duration) -> String {
    let mut millis = duration.as_millis();
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (name, factor) in UNITS {
        let count = millis / u128::from(factor);
        millis %= u128::from(factor);
        if count > 0 {
            text.push_str(&format!("{count}{name}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};
    use proptest::prelude::*;

    #[test]
    fn durations_are_integers_with_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            ("0s", 0),
            ("1d2h3m4s5ms", 93_784_005),
            ("007s", 7000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_broken_rule() {
        for (text, message) in [
            ("", "`` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`"),
            ("90", "`90` has no unit: write `90s` for seconds, `90m` for minutes"),
            ("1h30", "`1h30` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`"),
            ("-5s", "`-5s` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`"),
            ("1.5h", "`1.5h` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`"),
            ("5 m", "`5 m` is not a duration: expected integers with units, such as `500ms`, `90s`, `1h30m` or `2d`"),
            ("5min", "`5min` has the unknown unit `min`, did you mean `m`?"),
            ("5S", "`5S` has the unknown unit `S`, did you mean `s`?"),
            ("5fortnights", "`5fortnights` has the unknown unit `fortnights`"),
            ("30m1h", "`30m1h` must name its units from large to small, each at most once: d, h, m, s, ms"),
            ("1m1m", "`1m1m` must name its units from large to small, each at most once: d, h, m, s, ms"),
            ("40000d", "`40000d` is longer than a hundred years"),
            ("99999999999999999999s", "`99999999999999999999s` is longer than a hundred years"),
        ] {
            assert_eq!(parse(text).map_err(|error| error.to_string()), Err(message.to_owned()));
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn parse_reads_back_what_format_wrote(millis in 0..LONGEST.as_millis() as u64) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}|[0-9dhms]{0,30}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn fuzz_duration() {
        let words = &["d", "h", "m", "s", "ms", "min", "90", "0", "36525d", "1h30m"];
        Fuzz { longest: 1 << 10, ..Fuzz::of("duration", words) }.run(|input| match parse(&text(input)) {
            Ok(duration) => {
                assert_eq!(parse(&format(duration)), Ok(duration));
                true
            }
            Err(refused) => {
                drop(refused.to_string());
                false
            }
        });
    }
}
