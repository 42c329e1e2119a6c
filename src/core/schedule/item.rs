//! Parser for one field of an expression.
//!
//! A field consists of lists, ranges, steps, names, and values hashed from the job's name. [`super::rule_item`] parses
//! the days that depend on the month.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};

use super::error::{Fault, nearest};
use super::field::{Field, Values};
use super::parse::ExpressionError;
use super::piece::Piece;
use super::rule_item;

/// Parses a field; `job` determines its hashed values.
pub(super) fn values(field: Field, word: Piece<'_>, job: &str) -> Result<Values, ExpressionError> {
    let (mut set, mut rules) = (BTreeSet::new(), BTreeSet::new());
    for item in word.items() {
        refuse_other_dialects(field, item)?;
        match rule_item::read(field, item)? {
            Some(rule) => drop(rules.insert(rule)),
            None => set.extend(item_values(field, item, job)?),
        }
    }
    Ok(Values::new(field, &set, rules, word.text.starts_with('*')))
}

fn item_values(field: Field, item: Piece<'_>, job: &str) -> Result<Vec<u16>, ExpressionError> {
    if item.text.is_empty() {
        return Err(ExpressionError::at(item, Fault::EmptyItem { field }));
    }
    let (base, step) = match item.split_once('/') {
        Some((base, step)) => (base, Some(read_step(field, step)?)),
        None => (item, None),
    };
    if base.text.starts_with('H') {
        let span = hashed_span(field, base)?;
        return Ok(hashed(field, &span, step, job));
    }
    let span = match (base.text, base.split_once('-')) {
        ("*", _) => (field.min()..=field.max()).collect(),
        (_, Some((first, last))) => range(field, base, first, last)?,
        // With a step, a single value is the start of a range to the end, as in Quartz and cronie.
        (_, None) => match (value(field, base)?, step) {
            (start, Some(_)) => (start % week(field)..=field.max()).collect(),
            (only, None) => vec![only % week(field)],
        },
    };
    Ok(span.into_iter().step_by(usize::from(step.unwrap_or(1))).collect())
}

/// The modulus that turns weekday 7 into 0 and leaves other fields unchanged.
fn week(field: Field) -> u16 {
    if field == Field::DayOfWeek { 7 } else { u16::MAX }
}

fn refuse_other_dialects(field: Field, item: Piece<'_>) -> Result<(), ExpressionError> {
    let instead = |c| match c {
        '?' => Some("write `*`; and as Quartz counts Sunday as 1, write weekdays as names, such as `mon-fri`"),
        '~' => Some("write `H(first-last)`, which stays the same on every host"),
        '!' | '^' => Some("list what is wanted"),
        _ => None,
    };
    match item.text.chars().find_map(instead) {
        Some(instead) => Err(unsupported(field, item, instead)),
        None => Ok(()),
    }
}

pub(super) fn unsupported(field: Field, piece: Piece<'_>, instead: &'static str) -> ExpressionError {
    ExpressionError::at(piece, Fault::Unsupported { field, text: piece.text.to_owned(), instead })
}

fn read_step(field: Field, step: Piece<'_>) -> Result<u16, ExpressionError> {
    match number(step.text) {
        Some(Ok(step)) if (1..=field.size()).contains(&step) => Ok(step),
        _ => Err(ExpressionError::at(step, Fault::Step { field, text: step.text.to_owned() })),
    }
}

/// The values from `first` to `last` in order, wrapping at the end of the field.
fn range(field: Field, whole: Piece<'_>, first: Piece<'_>, last: Piece<'_>) -> Result<Vec<u16>, ExpressionError> {
    let (start, end) = (value(field, first)?, value(field, last)?);
    if start <= end {
        return Ok((start..=end).map(|value| value % week(field)).collect());
    }
    if field == Field::Year {
        return Err(ExpressionError::at(whole, Fault::Backwards { field, text: whole.text.to_owned() }));
    }
    // `7-2` is Sunday to Tuesday and does not wrap.
    if start % week(field) <= end {
        return Ok((start % week(field)..=end).collect());
    }
    Ok((start..=field.max()).chain(field.min()..=end).collect())
}

/// Parses a number or name. A weekday may be 7.
pub(super) fn value(field: Field, piece: Piece<'_>) -> Result<u16, ExpressionError> {
    let highest = if field == Field::DayOfWeek { 7 } else { field.max() };
    match number(piece.text) {
        Some(Ok(value)) if (field.min()..=highest).contains(&value) => Ok(value),
        Some(_) => Err(ExpressionError::at(piece, Fault::OutOfRange { field, text: piece.text.to_owned() })),
        None => named(field, piece.text).ok_or_else(|| unreadable(field, piece)),
    }
}

/// Parses a number: `None` if the text is not one, an error if it exceeds `u16`.
pub(super) fn number(text: &str) -> Option<Result<u16, std::num::ParseIntError>> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse())
}

pub(super) fn named(field: Field, text: &str) -> Option<u16> {
    let is_named = |name: &&str| name.eq_ignore_ascii_case(text) || name[..3].eq_ignore_ascii_case(text);
    let index = field.names().iter().position(is_named)?;
    u16::try_from(index).ok().map(|index| field.min() + index)
}

fn unreadable(field: Field, piece: Piece<'_>) -> ExpressionError {
    let short = field.names().iter().map(|name| &name[..3]);
    let nearest = nearest(piece.text, short.chain(field.names().iter().copied()));
    ExpressionError::at(piece, Fault::Unreadable { field, text: piece.text.to_owned(), nearest })
}

/// The values from which a hashed value is chosen.
fn hashed_span(field: Field, base: Piece<'_>) -> Result<Vec<u16>, ExpressionError> {
    if field == Field::Year {
        return Err(ExpressionError::at(base, Fault::HashedYear { field }));
    }
    if base.text == "H" {
        // Every month has at least 28 days, and a hashed day must occur in every month.
        let last = if field == Field::DayOfMonth { 28 } else { field.max() };
        return Ok((field.min()..=last).collect());
    }
    let Some((first, last)) = base.between("H(", ")").and_then(|inside| inside.split_once('-')) else {
        return Err(ExpressionError::at(base, Fault::Hashed { field, text: base.text.to_owned() }));
    };
    range(field, base, first, last)
}

/// One value of `span`. With a step, every `step`-th value from a start that is hashed within the first step.
fn hashed(field: Field, span: &[u16], step: Option<u16>, job: &str) -> Vec<u16> {
    let hash = hash(job, field.name());
    let choose = |of: usize| usize::try_from(hash % of as u64).unwrap_or_default();
    match step.map(usize::from) {
        None => vec![span[choose(span.len())]],
        Some(step) => span.iter().copied().skip(choose(step.min(span.len()))).step_by(step).collect(),
    }
}

/// A hash to spread jobs over `what` by name. It must never change: all hosts must agree on it, and an upgrade must not
/// move a job.
pub(crate) fn hash(job: &str, what: &str) -> u64 {
    let digest = Sha256::new().chain_update(job).chain_update([0]).chain_update(what).finalize();
    digest.iter().take(8).fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(field: Field, text: &str) -> Vec<u16> {
        values(field, Piece::whole(text), "nightly-backup").expect("valid").iter().collect()
    }

    #[test]
    fn ranges_wrap_and_step_on_past_the_end() {
        assert_eq!(set(Field::Hour, "22-2"), [0, 1, 2, 22, 23]);
        assert_eq!(set(Field::Hour, "21-3/3"), [0, 3, 21]);
        assert_eq!(set(Field::Month, "Nov-feb"), [1, 2, 11, 12]);
        assert_eq!(set(Field::DayOfMonth, "30-2"), [1, 2, 30, 31]);
    }

    #[test]
    fn sunday_is_0_and_7() {
        assert_eq!(set(Field::DayOfWeek, "7"), [0]);
        assert_eq!(set(Field::DayOfWeek, "5-7"), [0, 5, 6]);
        assert_eq!(set(Field::DayOfWeek, "7-2"), [0, 1, 2]);
        assert_eq!(set(Field::DayOfWeek, "Fri-Mon"), [0, 1, 5, 6]);
        assert_eq!(set(Field::DayOfWeek, "Sat-sunday"), [0, 6]);
        assert_eq!(set(Field::DayOfWeek, "1-7/2"), [0, 1, 3, 5]);
        assert_eq!(set(Field::DayOfWeek, "0-7"), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(set(Field::DayOfWeek, "7/3"), [0, 3, 6]);
    }

    #[test]
    fn a_step_after_a_single_value_runs_to_the_end() {
        assert_eq!(set(Field::Minute, "5/20"), [5, 25, 45]);
        assert_eq!(set(Field::Hour, "*/24"), [0]);
    }

    /// Changing one of these moves the jobs of everyone who uses `H`.
    #[test]
    fn hashed_values_never_change() {
        let pinned: [(&str, Field, &str, &[u16]); 10] = [
            ("nightly-backup", Field::Second, "H", &[57]),
            ("nightly-backup", Field::Minute, "H", &[49]),
            ("nightly-backup", Field::Hour, "H", &[5]),
            ("nightly-backup", Field::DayOfMonth, "H", &[19]),
            ("nightly-backup", Field::Month, "H", &[12]),
            ("nightly-backup", Field::DayOfWeek, "H", &[2]),
            ("nightly-backup", Field::Minute, "H/15", &[4, 19, 34, 49]),
            ("nightly-backup", Field::Minute, "H(0-29)", &[19]),
            ("nightly-backup", Field::Minute, "H(0-29)/10", &[9, 19, 29]),
            ("report", Field::Minute, "H", &[31]),
        ];
        for (job, field, text, expected) in pinned {
            let set = values(field, Piece::whole(text), job).expect("valid");
            assert!(set.iter().eq(expected.iter().copied()), "{text} of {job}, {field}: {set:?}");
        }
    }

    #[test]
    fn anagrams_hash_to_different_values() {
        assert_ne!(hash("ab", "minute"), hash("ba", "minute"));
        assert_ne!(hash("backup-1-2", "minute"), hash("backup-2-1", "minute"));
        assert_ne!(hash("ab", "minute"), hash("ab", "hour"));
    }

    #[test]
    fn hashed_values_spread_evenly() {
        let mut counts = [0_u32; 60];
        for job in 0..6_000 {
            counts[usize::try_from(hash(&format!("job-{job}"), "minute") % 60).expect("small")] += 1;
        }
        assert!(counts.iter().all(|count| (60..=150).contains(count)), "{counts:?}");
    }
}
