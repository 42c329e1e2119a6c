//! Parser for one expression.
//!
//! This module parses the fields itself, because the crate `cron` numbers weekdays differently and rejects wrapped
//! ranges; [`super::pattern`] passes it the result. Macros are abbreviations for fields, except `@every` and `@at`,
//! which are not patterns.

use std::sync::Arc;

use jiff::Timestamp;

use super::error::{Fault, nearest};
use super::field::{Field, Values};
use super::item;
use super::piece::Piece;

/// The meaning of one expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning {
    /// The local times that match all fields.
    Fields(Arc<Fields>),
    /// Every this many seconds, counted from the epoch.
    Every(i64),
    /// Once, at this second since the epoch.
    At(i64),
}

/// The fields of one expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fields([Values; 7]);

/// A fault with its offset and length in characters.
#[derive(Debug)]
pub(super) struct ExpressionError {
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) fault: Fault,
}

impl ExpressionError {
    pub(super) fn at(piece: Piece<'_>, fault: Fault) -> Self {
        Self { offset: piece.offset, length: piece.text.chars().count(), fault }
    }
}

impl Meaning {
    /// A canonical text: equal for equal meanings.
    pub(super) fn canonical(&self) -> String {
        match self {
            Self::Fields(fields) => fields.canonical(),
            Self::Every(seconds) => format!("@every {seconds}s"),
            Self::At(second) => format!("@at {}", super::zone::timestamp(*second)),
        }
    }
}

impl Fields {
    pub(super) fn of(&self, field: Field) -> &Values {
        &self.0[field as usize]
    }

    /// True if neither day field begins with `*`. Then a day that matches either one suffices, see crontab(5).
    pub(super) fn either_day(&self) -> bool {
        !self.of(Field::DayOfMonth).wild && !self.of(Field::DayOfWeek).wild
    }

    /// True if minute or hour begins with `*`. Then the job runs by elapsed time, see cron(8).
    pub(super) fn is_wildcard(&self) -> bool {
        self.of(Field::Minute).wild || self.of(Field::Hour).wild
    }

    /// A canonical text: equal for equal meanings.
    pub(super) fn canonical(&self) -> String {
        self.0.each_ref().map(ToString::to_string).join(" ")
    }
}

/// Parses an expression; `job` determines its hashed values.
pub(super) fn parse(text: &str, job: &str) -> Result<Meaning, ExpressionError> {
    let words = Piece::whole(text).words();
    match words.as_slice() {
        [] => Err(ExpressionError::at(Piece::whole(text), Fault::Empty)),
        [first, ..] if first.text.starts_with("TZ=") || first.text.starts_with("CRON_TZ=") => {
            Err(ExpressionError::at(*first, Fault::ZoneInside))
        }
        [first, more @ ..] if first.text.starts_with('@') => macro_meaning(*first, more, job),
        words => fields(words, job).map(|fields| Meaning::Fields(Arc::new(fields))),
    }
}

fn fields(words: &[Piece<'_>], job: &str) -> Result<Fields, ExpressionError> {
    let (second, middle, year) = match words {
        middle @ [_, _, _, _, _] => (None, middle, None),
        [second, middle @ ..] if middle.len() == 5 => (Some(second), middle, None),
        [second, middle @ .., year] if middle.len() == 5 => (Some(second), middle, Some(year)),
        // With too many fields, the eighth is at fault; with too few, the first.
        _ => {
            if let Some(instead) = with_at(words) {
                let whole = words.iter().map(|word| word.text).collect::<Vec<_>>().join(" ");
                return Err(ExpressionError::at(words[0], Fault::Unmarked { text: whole, instead }));
            }
            let place = words.get(7).or(words.first()).copied().unwrap_or(Piece::whole(""));
            return Err(ExpressionError::at(place, Fault::FieldCount { count: words.len() }));
        }
    };
    let read = |field, word: Piece<'_>| item::values(field, word, job);
    let optional = |field, word: Option<&Piece<'_>>, absent| word.map_or(Ok(absent), |&word| read(field, word));
    Ok(Fields([
        optional(Field::Second, second, Values::one(0))?,
        read(Field::Minute, middle[0])?,
        read(Field::Hour, middle[1])?,
        read(Field::DayOfMonth, middle[2])?,
        read(Field::Month, middle[3])?,
        read(Field::DayOfWeek, middle[4])?,
        optional(Field::Year, year, Values::all(Field::Year))?,
    ]))
}

/// What was meant by `5m`, `every 5m` or `daily`.
fn with_at(words: &[Piece<'_>]) -> Option<String> {
    let (first, period) = match words {
        [one] => (one.text.to_ascii_lowercase(), one.text),
        [first, period] => (first.text.to_ascii_lowercase(), period.text),
        _ => return None,
    };
    let is_period = words.len() == 1 || first == "every";
    if is_period && whole_seconds(period).is_some_and(|seconds| seconds > 0) {
        return Some(format!("@every {period}"));
    }
    MACROS.iter().map(|(name, _)| *name).find(|name| words.len() == 1 && name[1..] == first).map(str::to_owned)
}

/// The macros that abbreviate fields.
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

fn macro_meaning(word: Piece<'_>, more: &[Piece<'_>], job: &str) -> Result<Meaning, ExpressionError> {
    let name = word.text.to_ascii_lowercase();
    match name.as_str() {
        "@reboot" => return Err(ExpressionError::at(word, Fault::Reboot)),
        "@every" => return every(word, more),
        "@at" => return at(word, more),
        _ => {}
    }
    let Some((_, text)) = MACROS.iter().find(|(known, _)| *known == name) else {
        return Err(ExpressionError::at(word, unknown_macro(word.text)));
    };
    match more.first() {
        Some(first) => Err(ExpressionError::at(*first, Fault::MacroWithMore { word: name })),
        None => parse(text, job),
    }
}

fn unknown_macro(word: &str) -> Fault {
    let known: Vec<&str> = MACROS.iter().map(|(name, _)| *name).chain(["@every", "@at"]).collect();
    let nearest = nearest(word, known.iter().copied().chain(["@reboot"]));
    Fault::UnknownMacro { word: word.to_owned(), nearest, known: known.join(" ") }
}

/// The single argument of `@every` and `@at`. If it is missing, the fault is at the macro; if there are several, at the
/// second.
fn argument<'a>(word: Piece<'a>, more: &[Piece<'a>], fault: fn(String) -> Fault) -> Result<Piece<'a>, ExpressionError> {
    match more {
        [argument] => Ok(*argument),
        [] => Err(ExpressionError::at(word, fault(String::new()))),
        [_, second, ..] => {
            Err(ExpressionError::at(*second, fault(more.iter().map(|piece| piece.text).collect::<Vec<_>>().join(" "))))
        }
    }
}

fn every(word: Piece<'_>, more: &[Piece<'_>]) -> Result<Meaning, ExpressionError> {
    let fault = |text| Fault::Every { text };
    let given = argument(word, more, fault)?;
    match whole_seconds(given.text) {
        Some(seconds) if seconds > 0 => Ok(Meaning::Every(seconds)),
        _ => Err(ExpressionError::at(given, fault(given.text.to_owned()))),
    }
}

/// Parses a duration such as `1h30m` of whole seconds, at most a hundred years.
fn whole_seconds(text: &str) -> Option<i64> {
    const LONGEST_MS: i64 = 100 * 366 * 86_400_000;
    let mut rest = text;
    let mut total_ms: i64 = 0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        total_ms = total_ms.checked_add(number.parse::<i64>().ok()?.checked_mul(unit_ms)?)?;
        rest = after;
    }
    (total_ms % 1_000 == 0 && total_ms <= LONGEST_MS).then_some(total_ms / 1_000)
}

fn at(word: Piece<'_>, more: &[Piece<'_>]) -> Result<Meaning, ExpressionError> {
    let fault = |text| Fault::At { text };
    let given = argument(word, more, fault)?;
    match given.text.parse::<Timestamp>() {
        // The parser accepts more than RFC 3339. A zone in brackets could contradict the offset.
        Ok(instant) if instant.subsec_nanosecond() == 0 && !given.text.contains('[') => {
            Ok(Meaning::At(instant.as_second()))
        }
        _ => Err(ExpressionError::at(given, fault(given.text.to_owned()))),
    }
}
