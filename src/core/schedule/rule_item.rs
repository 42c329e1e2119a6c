//! Parser for the items of a day field that are rules: `L`, `L-3`, `LW`, `15W`, `mon#2` and `friL`. What looks like a
//! rule but is not one is refused with what to write instead.

use super::day_rule::DayRule;
use super::field::Field;
use super::item::{named, number, unsupported, value};
use super::parse::ExpressionError;
use super::piece::Piece;

/// The rule, or `None` if the item is a number, a name, a range or the like.
pub(super) fn read(field: Field, item: Piece<'_>) -> Result<Option<DayRule>, ExpressionError> {
    let text = item.text.to_ascii_lowercase();
    match field {
        Field::DayOfMonth => day_of_month(item, &text),
        Field::DayOfWeek => day_of_week(item, &text),
        _ if text.contains('#') => Err(refused(field, item, "only the day of week has it, such as `mon#2`")),
        _ => Ok(None),
    }
}

fn refused(field: Field, item: Piece<'_>, instead: &'static str) -> ExpressionError {
    unsupported(field, item, instead)
}

fn day_of_month(item: Piece<'_>, text: &str) -> Result<Option<DayRule>, ExpressionError> {
    let refused = |instead| Err(refused(Field::DayOfMonth, item, instead));
    if text.contains('#') {
        return refused("write it in the day of week, such as `mon#2`");
    }
    match text {
        "l" => return Ok(Some(DayRule::BeforeLast(0))),
        "lw" => return Ok(Some(DayRule::LastWorkday)),
        "w" => return refused("write `15W` for the weekday nearest to day 15, or `LW` for the last weekday"),
        _ => {}
    }
    if let Some(days) = text.strip_prefix("l-").and_then(number) {
        return match days {
            Ok(days @ 1..=30) => Ok(Some(DayRule::BeforeLast(days))),
            _ => refused("write `L-1` to `L-30`, or `L` for the last day"),
        };
    }
    if let Some(day) = text.strip_suffix('w').and_then(number) {
        return match day {
            Ok(day @ 1..=31) => Ok(Some(DayRule::NearestWorkday(day))),
            _ => refused("write `1W` to `31W`, or `LW` for the last weekday of the month"),
        };
    }
    if text.strip_suffix('l').is_some_and(is_weekday) {
        return refused("write `L` for the last day, or `friL` in the day of week for the last Friday");
    }
    if has_rule(text) {
        return refused("a rule is neither part of a range nor has a step; list the days, such as `L-2,L-1,L`");
    }
    Ok(None)
}

fn day_of_week(item: Piece<'_>, text: &str) -> Result<Option<DayRule>, ExpressionError> {
    let refused = |instead| Err(refused(Field::DayOfWeek, item, instead));
    if text == "l" || text.strip_prefix("l-").is_some_and(|days| number(days).is_some()) {
        return refused("write `sat` for every Saturday, `friL` for the last Friday, or `L` in the day of month");
    }
    if text.strip_suffix('w').is_some_and(|day| matches!(day, "" | "l") || number(day).is_some()) {
        return refused("write `15W` or `LW` in the day of month, or `mon-fri` here");
    }
    if text.contains(['-', '/']) && has_rule(text) {
        return refused("a rule is neither part of a range nor has a step; list the days, such as `mon#1,mon#3`");
    }
    if text.strip_suffix('l').is_some_and(is_weekday) {
        return Ok(Some(DayRule::LastOf(value(Field::DayOfWeek, item.without_last())? % 7)));
    }
    let Some((weekday, count)) = item.split_once('#') else { return Ok(None) };
    let weekday = value(Field::DayOfWeek, weekday)? % 7;
    match number(count.text) {
        Some(Ok(count @ 1..=5)) => Ok(Some(DayRule::Nth { weekday, count })),
        _ => refused("write `mon#1` to `mon#5`, or `monL` for the last Monday of the month"),
    }
}

fn is_weekday(text: &str) -> bool {
    number(text).is_some() || named(Field::DayOfWeek, text).is_some()
}

/// True if a part of a range or step is written like a rule.
fn has_rule(text: &str) -> bool {
    text.split(['-', '/']).any(|part| {
        let before = part.strip_suffix(['l', 'w']);
        part.contains('#') || before.is_some_and(|before| matches!(before, "" | "l") || is_weekday(before))
    })
}
