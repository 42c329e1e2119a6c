//! Tests of error messages and their positions.

use super::{Dst, Schedule, at};
use crate::schedule::{FaultPosition, ScheduleError};

fn rejected(text: &str) -> (String, usize) {
    match Schedule::parse(&[text], "UTC", Dst::Once, "job") {
        Err(error) => (error.to_string(), error.position().expect("a position").offset),
        Ok(schedule) => panic!("{text:?} was accepted as {}", schedule.canonical()),
    }
}

fn assert_rejected(text: &str, offset: usize, words: &str) {
    let (message, position) = rejected(text);
    assert!(message.contains(words), "{text:?}: {message:?} does not contain {words:?}");
    assert_eq!(position, offset, "{text:?}: {message}");
}

#[test]
fn the_field_and_its_values_are_named() {
    assert_rejected("60 2 * * *", 0, "minute: 60 is out of range; allowed: 0 to 59");
    assert_rejected("0 24 * * *", 2, "hour: 24 is out of range; allowed: 0 to 23");
    assert_rejected("0 0 0 * *", 4, "day of month: 0 is out of range; allowed: 1 to 31");
    assert_rejected("0 0 * 13 *", 6, "month: 13 is out of range; allowed: 1 to 12, jan to dec");
    assert_rejected("0 0 * * 8", 8, "day of week: 8 is out of range; allowed: 0 to 7 (0 and 7 are Sunday), sun to sat");
    assert_rejected("60 0 0 * * *", 0, "second: 60 is out of range");
    assert_rejected("0 0 0 * * * 2101", 12, "year: 2101 is out of range; allowed: 1970 to 2100");
    assert_rejected("0 99999999999999999999 * * *", 2, "hour: 99999999999999999999 is out of range");
    assert_rejected("0 1,,2 * * *", 4, "hour: nothing between two commas");
    assert_rejected("0 0 * * 1,", 10, "day of week: nothing between two commas");
}

#[test]
fn the_position_is_counted_in_characters_from_the_start_of_the_text() {
    assert_rejected("  0\u{a0}0 * * 1-9", 12, "day of week: 9 is out of range");
    assert_rejected("0 0 * * mon,täglich", 12, "neither a number nor a name");
    assert_rejected("0 0 * * 1-fry", 10, "did you mean `fri`?");
    assert_rejected("*/0 * * * *", 2, "minute: the step `0`");
    let error = Schedule::parse(&["@daily", "0 0 * * 9"], "UTC", Dst::Once, "job").expect_err("wrong");
    assert_eq!(error.position(), Some(FaultPosition { expression: 1, offset: 8, length: 1 }));
}

#[test]
fn the_fault_has_a_length() {
    let length = |text: &str| {
        let error = Schedule::parse(&[text], "UTC", Dst::Once, "job").expect_err("wrong");
        error.position().expect("a position").length
    };
    for (text, expected) in [
        ("0 61 * * *", 2),
        ("0 0 * * mon,täglich", 7),
        ("*/100 * * * *", 3),
        ("0 0 1,,2 * *", 0),
        ("@daily noon", 4),
        (" 0 0 30 2 * ", 10),
        ("", 0),
    ] {
        assert_eq!(length(text), expected, "{text:?}");
    }
}

#[test]
fn a_hint_names_the_number_of_fields_if_it_may_be_the_mistake() {
    let hint = |text: &str| Schedule::parse(&[text], "UTC", Dst::Once, "job").expect_err("wrong").hint(text);
    assert_eq!(hint("0 2 * * * root"), Some("with six fields the first is the second; with five it is the minute"));
    assert_eq!(
        hint("0 2 * * * root backup"),
        Some("with seven fields the first is the second and the last is the year")
    );
    assert_eq!(hint("0 2 * * * root backup --all"), Some("the expression must not contain a command"));
    assert_eq!(hint("60 2 * * *"), None);
    assert_eq!(hint("@every 1 2 3 4 5"), None);
}

#[test]
fn a_period_or_a_macro_without_its_at_sign_is_recognized() {
    for (text, instead) in [
        ("5m", "@every 5m"),
        ("1h30m", "@every 1h30m"),
        ("every 90s", "@every 90s"),
        ("Every 2h", "@every 2h"),
        ("daily", "@daily"),
        ("HOURLY", "@hourly"),
    ] {
        assert_rejected(text, 0, &format!("`{text}` is not an expression: write `{instead}`"));
    }
    for text in ["5", "0s", "soon", "every", "each 5m", "daily x"] {
        let error = Schedule::parse(&[text], "UTC", Dst::Once, "job").expect_err("wrong");
        assert!(error.to_string().contains("expected five"), "{text}: {error}");
    }
}

#[test]
fn the_nearest_word_is_suggested() {
    assert_rejected("0 0 * * mno", 8, "did you mean `mon`?");
    assert_rejected("0 0 * jnuary *", 6, "did you mean `january`?");
    assert_rejected("@dayly", 0, "did you mean `@daily`?");
    assert_rejected("@fortnightly", 0, "known are @yearly");
    let zone = |name: &str| Schedule::parse(&["@daily"], name, Dst::Once, "job").expect_err("no zone").to_string();
    assert!(zone("Europe/Berlni").contains("did you mean `Europe/Berlin`?"));
    assert!(zone("berlin").contains("did you mean `Europe/Berlin`?"));
    for name in ["", "localtime", "Factory", "+02:00", "../etc/passwd", "Europe/", "Etc/Unknown"] {
        assert!(zone(name).contains("is not a time zone"), "{name}");
    }
}

#[test]
fn other_dialects_are_rejected_with_a_replacement() {
    let quartz = "`?` is not supported: write `*`; and as Quartz counts Sunday as 1, write weekdays as names";
    assert_rejected("0 0 ? * 1", 4, quartz);
    assert_rejected("0 0 12 ? * 2-6", 7, quartz);
    assert_rejected("0 0 12 1 * ?", 11, quartz);
    assert_rejected("0~59 * * * *", 0, "`0~59` is not supported: write `H(first-last)`");
}

#[test]
fn a_rule_that_says_nothing_is_rejected_with_a_replacement() {
    let sunday = "write `sat` for every Saturday, `friL` for the last Friday, or `L` in the day of month";
    for (text, offset, words) in [
        ("0 0 L-31 * *", 4, "day of month: `L-31` is not supported: write `L-1` to `L-30`, or `L` for the last day"),
        ("0 0 L-0 * *", 4, "write `L-1` to `L-30`"),
        ("0 0 1,32W * *", 6, "`32W` is not supported: write `1W` to `31W`, or `LW`"),
        ("0 0 0W * *", 4, "write `1W` to `31W`"),
        ("0 0 W * *", 4, "write `15W`"),
        ("0 0 L-3W * *", 4, "a rule is neither part of a range nor has a step"),
        ("0 0 15W-20 * *", 4, "list the days, such as `L-2,L-1,L`"),
        ("0 0 25-L * *", 4, "`25-L` is not supported: a rule"),
        ("0 0 L/2 * *", 4, "a rule is neither part of a range nor has a step"),
        ("0 0 5L * *", 4, "write `L` for the last day, or `friL` in the day of week"),
        ("0 0 mon#2 * *", 4, "write it in the day of week, such as `mon#2`"),
        ("0 0 * * L", 8, sunday),
        ("0 0 * * L-2", 8, sunday),
        ("0 0 * * LW", 8, "write `15W` or `LW` in the day of month, or `mon-fri` here"),
        ("0 0 * * 5W", 8, "write `15W` or `LW` in the day of month"),
        ("0 0 * * mon#6", 8, "write `mon#1` to `mon#5`, or `monL`"),
        ("0 0 * * mon#0", 8, "write `mon#1` to `mon#5`"),
        ("0 0 * * mon#", 8, "write `mon#1` to `mon#5`"),
        ("0 0 * * mon#+1", 8, "write `mon#1` to `mon#5`"),
        ("0 0 * * mon-fri#2", 8, "list the days, such as `mon#1,mon#3`"),
        ("0 0 * * mon#1/2", 8, "a rule is neither part of a range nor has a step"),
        ("0 0 * * mon-friL", 8, "a rule is neither part of a range nor has a step"),
        ("0 0 * * 8#1", 8, "8 is out of range"),
        ("0 0 * * 1,9L", 10, "9 is out of range"),
        ("0 0 * * mno#1", 8, "did you mean `mon`?"),
        ("5#1 0 * * *", 0, "minute: `5#1` is not supported: only the day of week has it, such as `mon#2`"),
        ("0 0 * L *", 6, "month: `L` is neither a number nor a name"),
    ] {
        assert_rejected(text, offset, words);
    }
}

#[test]
fn a_wrong_number_of_fields_is_reported() {
    assert_rejected("* * * *", 0, "4 fields, expected five");
    assert_rejected("soon", 0, "1 field, expected five");
    assert_rejected("0 2 * * * * * /usr/bin/backup", 14, "8 fields");
    assert_rejected("", 0, "the expression is empty");
    assert_rejected(" \t", 0, "the expression is empty");
    assert_rejected("CRON_TZ=UTC 0 0 * * *", 0, "give it as `timezone`");
}

#[test]
fn reboot_is_rejected_with_the_reason() {
    assert_rejected("@reboot", 0, "use a systemd unit");
}

#[test]
fn macros_with_missing_or_extra_arguments_are_rejected() {
    assert_rejected("@daily 5", 7, "nothing may follow `@daily`");
    for text in [
        "@every",
        "@every 0s",
        "@every 90",
        "@every 1500ms",
        "@every -5m",
        "@every 5 m",
        "@every 1.5h",
        "@every 99999999999d",
    ] {
        assert!(rejected(text).0.contains("`@every` needs a duration of whole seconds"), "{text}");
    }
    for text in
        ["@at", "@at tomorrow", "@at 2026-12-24T18:00:00", "@at 2026-12-24T18:00:00.5Z", "@at 2026-12-24 18:00:00Z"]
    {
        assert!(rejected(text).0.contains("`@at` needs an instant"), "{text}");
    }
}

#[test]
fn steps_and_ranges_beyond_a_field_are_rejected() {
    assert_rejected("*/90 * * * *", 2, "the step `90` is not a number from 1 to 60; for longer periods use `@every`");
    assert_rejected("*/x * * * *", 2, "the step `x`");
    assert_rejected("0 0 0 1 1 * 2030-2020", 12, "year: the range `2030-2020` goes backwards");
    assert_rejected("H(5) * * * *", 0, "`H(5)` is not a hashed value");
    assert_rejected("H(0-70) * * * *", 4, "minute: 70 is out of range");
    assert_rejected("0 0 0 1 1 * H", 12, "`H` is not allowed here");
}

#[test]
fn an_expression_that_never_occurs_is_rejected() {
    assert_rejected("0 0 30 2 *", 0, "never comes: February has no day 30");
    assert_rejected("0 0 31 4,6,9,11 *", 0, "never comes: April, June, September and November have no day 31");
    assert_rejected("0 0 30,31 feb */2", 0, "never comes: February has no days 30 and 31");
    assert_rejected(" 0 0 0 29 2 * 2027", 1, "never comes: no such day or time from 1970 to 2100 in UTC");
    let skipped = Schedule::parse(&["0 30 2 29 3 * 2026"], "Europe/Berlin", Dst::Skip, "job");
    assert!(matches!(skipped, Err(ScheduleError::Expression { .. })));
    assert!(Schedule::parse(&["0 30 2 29 3 * 2026"], "Europe/Berlin", Dst::Once, "job").is_ok());
    // Either day field suffices, so the weekday makes it valid.
    assert!(Schedule::parse(&["0 0 30 2 1"], "UTC", Dst::Once, "job").is_ok());
    assert_eq!(Schedule::parse(&[], "UTC", Dst::Once, "job"), Err(ScheduleError::NoExpression));
}

#[test]
fn a_long_or_unprintable_word_is_shown_short_and_safe() {
    let (message, _) = rejected(&format!("{}\u{1b}[31m * * * *", "x".repeat(1_000)));
    assert!(message.len() < 200 && !message.contains('\u{1b}'), "{message}");
    assert!(rejected("\u{1b}[31m * * * *").0.contains("\\u{1b}"));
}

#[test]
fn a_schedule_of_the_past_is_valid_and_has_no_next() {
    let past = super::schedule("@at 2020-01-01T00:00:00Z", "UTC");
    assert_eq!(past.next_after(at("2026-01-01T00:00:00Z")), None);
}
