//! Errors in schedules, with position and suggestion.

use super::field::Field;
use crate::suggest::did_you_mean;

/// The reason why a schedule is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// One of the expressions is invalid.
    #[error("{fault}")]
    Expression { position: FaultPosition, fault: Fault },
    /// The list of expressions is empty.
    #[error("a schedule needs at least one expression")]
    NoExpression,
    /// Neither the system nor the bundled copy knows the time zone.
    #[error("`{}` is not a time zone of the IANA database{}", shown(name), did_you_mean(nearest.as_deref()))]
    UnknownZone {
        name: String,
        /// The most similar known name.
        nearest: Option<String>,
    },
}

impl ScheduleError {
    /// A hint, if the number of fields in `expression` is probably the mistake.
    pub fn hint(&self, expression: &str) -> Option<&'static str> {
        let Self::Expression { fault, .. } = self else { return None };
        match (fault, expression.split_whitespace().count()) {
            (Fault::FieldCount { count: 8.. }, _) => Some("the expression must not contain a command"),
            (Fault::FieldCount { .. } | Fault::Unmarked { .. } | Fault::Impossible { .. }, _) => None,
            (_, 6) if !expression.trim_start().starts_with('@') => {
                Some("with six fields the first is the second; with five it is the minute")
            }
            (_, 7) if !expression.trim_start().starts_with('@') => {
                Some("with seven fields the first is the second and the last is the year")
            }
            _ => None,
        }
    }

    /// The position of the fault; `None` if it is not in an expression.
    pub fn position(&self) -> Option<FaultPosition> {
        match self {
            Self::Expression { position, .. } => Some(*position),
            Self::NoExpression | Self::UnknownZone { .. } => None,
        }
    }
}

/// A position in a list of expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPosition {
    /// Index of the expression, from 0.
    pub expression: usize,
    /// Index of the first character in the expression, from 0.
    pub offset: usize,
    /// Number of characters that the fault covers; 0 if something is missing.
    pub length: usize,
}

/// An error in one expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the expression is empty")]
    Empty,
    #[error(
        "{count} field{}, expected five (minute, hour, day of month, month, day of week), six (seconds first) \
         or seven (year last)",
        if *count == 1 { "" } else { "s" }
    )]
    FieldCount { count: usize },
    #[error("`{}` is not an expression: write `{instead}`", shown(text))]
    Unmarked { text: String, instead: String },
    #[error("a time zone in the expression is not supported: give it as `timezone`")]
    ZoneInside,
    #[error("`@reboot` is refused: a cluster has no single boot to follow; use a systemd unit on each host")]
    Reboot,
    #[error("`{}` is unknown{}; known are {known}", shown(word), did_you_mean(nearest.as_deref()))]
    UnknownMacro { word: String, nearest: Option<String>, known: String },
    #[error("nothing may follow `{word}`")]
    MacroWithMore { word: String },
    #[error("`@every` needs a duration of whole seconds, such as `90s`, `5m` or `1h30m`, not `{}`", shown(text))]
    Every { text: String },
    #[error(
        "`@at` needs an instant of whole seconds with its offset, such as `2026-12-24T18:00:00Z`, not `{}`",
        shown(text)
    )]
    At { text: String },
    #[error("{field}: nothing between two commas, or before or after one")]
    EmptyItem { field: Field },
    #[error("{field}: `{}` is not supported: {instead}", shown(text))]
    Unsupported { field: Field, text: String, instead: &'static str },
    #[error(
        "{field}: `{}` is neither a number nor a name{}; allowed: {}",
        shown(text), did_you_mean(nearest.as_deref()), field.allowed()
    )]
    Unreadable { field: Field, text: String, nearest: Option<String> },
    #[error("{field}: {} is out of range; allowed: {}", shown(text), field.allowed())]
    OutOfRange { field: Field, text: String },
    #[error("{field}: the range `{}` goes backwards", shown(text))]
    Backwards { field: Field, text: String },
    #[error(
        "{field}: the step `{}` is not a number from 1 to {}; for longer periods use `@every`",
        shown(text), field.size()
    )]
    Step { field: Field, text: String },
    #[error("{field}: `{}` is not a hashed value: write `H`, `H/15`, `H(0-29)` or `H(0-29)/10`", shown(text))]
    Hashed { field: Field, text: String },
    #[error("{field}: `H` is not allowed here, because a year comes only once")]
    HashedYear { field: Field },
    #[error("never comes: {}", why.as_deref().unwrap_or(&format!("no such day or time from 1970 to 2100 in {zone}")))]
    Impossible { zone: String, why: Option<String> },
    #[error("the evaluator refuses `{pattern}`: {reason}")]
    Refused { pattern: String, reason: String },
}

/// Quotes user input for an error message: on one line, with limited length.
fn shown(text: &str) -> String {
    crate::escape::short(text, 40)
}

/// The candidate most similar to a misspelt word, if any is similar.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    const LONGEST: usize = 64;
    if word.len() > LONGEST {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let length = word.chars().count();
    let close = (length / 3).clamp(1, 3);
    candidates
        .into_iter()
        // Each extra letter is a difference, so these cannot match; a comparison would cost the product of both
        // lengths.
        .filter(|candidate| candidate.chars().count().abs_diff(length) <= close)
        .map(|candidate| (strsim::osa_distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= close)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}
