//! Parser for sizes such as `64KiB` or `1MiB`.

use cronkeeper_core::suggest::{did_you_mean, nearest};

/// The units, in bytes.
const UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// The error for a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadSize {
    #[error("`{0}` is not a size: expected an integer and a unit, such as `64KiB` or `1MiB`")]
    NotASize(String),
    #[error("`{0}` has no unit: write `{0}B` for bytes")]
    NoUnit(String),
    #[error("`{text}` has the unknown unit `{unit}`{hint}; the units are B, KiB, MiB, GiB and TiB")]
    UnknownUnit { text: String, unit: String, hint: String },
    #[error("`{0}` is too large")]
    TooLarge(String),
}

/// Parses a size and returns it in bytes.
pub(crate) fn parse(text: &str) -> Result<u64, BadSize> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    if digits.is_empty() || !unit.bytes().all(|byte| byte.is_ascii_alphabetic()) {
        return Err(BadSize::NotASize(text.to_owned()));
    }
    if unit.is_empty() {
        return Err(BadSize::NoUnit(text.to_owned()));
    }
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(unknown_unit(text, unit));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .ok_or_else(|| BadSize::TooLarge(text.to_owned()))
}

/// Formats a size so that [`parse`] reads it back, in the largest unit that needs no fraction.
pub(crate) fn format(bytes: u64) -> String {
    let fits = |(_, factor): &&(&str, u64)| bytes >= *factor && bytes.is_multiple_of(*factor);
    let (unit, factor) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
    format!("{}{unit}", bytes / factor)
}

fn unknown_unit(text: &str, unit: &str) -> BadSize {
    // `M` and `MB` begin with the letter of the unit that was probably meant.
    let first = unit.chars().next().map(|c| c.to_ascii_uppercase());
    let alike = UNITS.iter().map(|(name, _)| *name).find(|name| unit.len() <= 3 && name.chars().next() == first);
    let hint = did_you_mean(alike.or_else(|| nearest(unit, UNITS.iter().map(|(name, _)| *name))));
    BadSize::UnknownUnit { text: text.to_owned(), unit: unit.to_owned(), hint: hint.trim_end_matches('?').to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn sizes_are_an_integer_and_a_unit() {
        for (text, bytes) in [("0B", 0), ("17B", 17), ("64KiB", 65_536), ("1MiB", 1 << 20), ("2GiB", 2 << 30)] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_size_is_formatted_as_it_is_read() {
        for text in ["0B", "17B", "1025B", "64KiB", "1MiB", "1536MiB", "2GiB", "3TiB"] {
            assert_eq!(parse(text).map(format), Ok(text.to_owned()));
        }
    }

    #[test]
    fn an_error_names_the_broken_rule() {
        for (text, message) in [
            ("", "`` is not a size: expected an integer and a unit, such as `64KiB` or `1MiB`"),
            ("1.5MiB", "`1.5MiB` is not a size: expected an integer and a unit, such as `64KiB` or `1MiB`"),
            ("-1B", "`-1B` is not a size: expected an integer and a unit, such as `64KiB` or `1MiB`"),
            ("65536", "`65536` has no unit: write `65536B` for bytes"),
            ("1MB", "`1MB` has the unknown unit `MB`, did you mean `MiB`; the units are B, KiB, MiB, GiB and TiB"),
            ("1m", "`1m` has the unknown unit `m`, did you mean `MiB`; the units are B, KiB, MiB, GiB and TiB"),
            ("1parsec", "`1parsec` has the unknown unit `parsec`; the units are B, KiB, MiB, GiB and TiB"),
            ("99999999TiB", "`99999999TiB` is too large"),
        ] {
            assert_eq!(parse(text).map_err(|error| error.to_string()), Err(message.to_owned()));
        }
    }
}
