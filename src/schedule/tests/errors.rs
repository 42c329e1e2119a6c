//! What is refused, with which words, and where the fault is said to be.

use super::{Dst, Schedule, at};
use crate::schedule::{Place, ScheduleError};

fn refused(text: &str) -> (String, usize) {
    match Schedule::parse(&[text], "UTC", Dst::Once, "job") {
        Err(error) => (error.to_string(), error.offset().expect("a place").offset),
        Ok(schedule) => panic!("{text:?} was taken as {}", schedule.canonical()),
    }
}

fn assert_refused(text: &str, offset: usize, words: &str) {
    let (message, place) = refused(text);
    assert!(message.contains(words), "{text:?}: {message:?} does not say {words:?}");
    assert_eq!(place, offset, "{text:?}: {message}");
}

#[test]
fn the_field_and_its_values_are_named() {
    assert_refused("60 2 * * *", 0, "minute: 60 is out of range; allowed: 0 to 59");
    assert_refused("0 24 * * *", 2, "hour: 24 is out of range; allowed: 0 to 23");
    assert_refused("0 0 0 * *", 4, "day of month: 0 is out of range; allowed: 1 to 31");
    assert_refused("0 0 * 13 *", 6, "month: 13 is out of range; allowed: 1 to 12, jan to dec");
    assert_refused("0 0 * * 8", 8, "day of week: 8 is out of range; allowed: 0 to 7 (0 and 7 are Sunday), sun to sat");
    assert_refused("60 0 0 * * *", 0, "second: 60 is out of range");
    assert_refused("0 0 0 * * * 2101", 12, "year: 2101 is out of range; allowed: 1970 to 2100");
    assert_refused("0 99999999999999999999 * * *", 2, "hour: 99999999999999999999 is out of range");
    assert_refused("0 1,,2 * * *", 4, "hour: nothing between two commas");
    assert_refused("0 0 * * 1,", 10, "day of week: nothing between two commas");
}

#[test]
fn the_place_is_counted_in_characters_from_the_start_of_the_text() {
    assert_refused("  0\u{a0}0 * * 1-9", 12, "day of week: 9 is out of range");
    assert_refused("0 0 * * mon,täglich", 12, "neither a number nor a name");
    assert_refused("0 0 * * 1-fry", 10, "did you mean `fri`?");
    assert_refused("*/0 * * * *", 2, "minute: the step `0`");
    let error = Schedule::parse(&["@daily", "0 0 * * 9"], "UTC", Dst::Once, "job").expect_err("wrong");
    assert_eq!(error.offset(), Some(Place { expression: 1, offset: 8, length: 1 }));
}

#[test]
fn the_fault_has_a_length() {
    let length = |text: &str| {
        let error = Schedule::parse(&[text], "UTC", Dst::Once, "job").expect_err("wrong");
        error.offset().expect("a place").length
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
fn the_number_of_fields_is_hinted_at_where_it_may_be_the_mistake() {
    let hint = |text: &str| Schedule::parse(&[text], "UTC", Dst::Once, "job").expect_err("wrong").hint(text);
    assert_eq!(hint("0 2 * * * root"), Some("of six fields the first is the seconds; five begin with the minute"));
    assert_eq!(hint("0 2 * * * root backup"), Some("of seven fields the first is the seconds and the last the year"));
    assert_eq!(hint("0 2 * * * root backup --all"), Some("a command does not belong into the expression"));
    assert_eq!(hint("60 2 * * *"), None);
    assert_eq!(hint("@every 1 2 3 4 5"), None);
}

#[test]
fn the_nearest_word_is_offered() {
    assert_refused("0 0 * * mno", 8, "did you mean `mon`?");
    assert_refused("0 0 * jnuary *", 6, "did you mean `january`?");
    assert_refused("@dayly", 0, "did you mean `@daily`?");
    assert_refused("@fortnightly", 0, "known are @yearly");
    let zone = |name: &str| Schedule::parse(&["@daily"], name, Dst::Once, "job").expect_err("no zone").to_string();
    assert!(zone("Europe/Berlni").contains("did you mean `Europe/Berlin`?"));
    assert!(zone("berlin").contains("did you mean `Europe/Berlin`?"));
    for name in ["", "localtime", "Factory", "+02:00", "../etc/passwd", "Europe/", "Etc/Unknown"] {
        assert!(zone(name).contains("is no time zone"), "{name}");
    }
}

#[test]
fn other_dialects_are_refused_with_what_to_write_instead() {
    assert_refused("0 0 ? * 1", 4, "`?` is not supported: write `*`");
    assert_refused("0 0 L * *", 4, "`L` is not supported");
    assert_refused("0 0 15W * *", 4, "`15W` is not supported");
    assert_refused("0 0 LW * *", 4, "`LW` is not supported");
    assert_refused("0 0 L-3 * *", 4, "`L` is not supported");
    assert_refused("0 0 * * friL", 8, "`friL` is not supported");
    assert_refused("0 0 * * 1#2", 8, "`1#2` is not supported");
    assert_refused("0~59 * * * *", 0, "`0~59` is not supported: write `H(first-last)`");
}

#[test]
fn the_number_of_fields_is_told() {
    assert_refused("* * * *", 0, "4 fields, where five");
    assert_refused("daily", 0, "1 field, where five");
    assert_refused("0 2 * * * * * /usr/bin/backup", 14, "8 fields");
    assert_refused("", 0, "the expression is empty");
    assert_refused(" \t", 0, "the expression is empty");
    assert_refused("CRON_TZ=UTC 0 0 * * *", 0, "give it as `timezone`");
}

#[test]
fn reboot_is_refused_with_the_reason() {
    assert_refused("@reboot", 0, "use a systemd unit");
}

#[test]
fn macros_take_what_they_need_and_no_more() {
    assert_refused("@daily 5", 7, "`@daily` stands alone");
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
        assert!(refused(text).0.contains("`@every` needs a duration of whole seconds"), "{text}");
    }
    for text in
        ["@at", "@at tomorrow", "@at 2026-12-24T18:00:00", "@at 2026-12-24T18:00:00.5Z", "@at 2026-12-24 18:00:00Z"]
    {
        assert!(refused(text).0.contains("`@at` needs an instant"), "{text}");
    }
}

#[test]
fn steps_and_ranges_beyond_a_field_are_refused() {
    assert_refused("*/90 * * * *", 2, "the step `90` is not a number from 1 to 60; for longer periods use `@every`");
    assert_refused("*/x * * * *", 2, "the step `x`");
    assert_refused("0 0 0 1 1 * 2030-2020", 12, "year: the range `2030-2020` goes backwards");
    assert_refused("H(5) * * * *", 0, "`H(5)` is no hashed value");
    assert_refused("H(0-70) * * * *", 4, "minute: 70 is out of range");
    assert_refused("0 0 0 1 1 * H", 12, "`H` has no meaning here");
}

#[test]
fn what_can_never_come_is_refused() {
    assert_refused("0 0 30 2 *", 0, "never comes: February has no day 30");
    assert_refused("0 0 31 4,6,9,11 *", 0, "never comes: April, June, September and November have no day 31");
    assert_refused("0 0 30,31 feb */2", 0, "never comes: February has no days 30 and 31");
    assert_refused(" 0 0 0 29 2 * 2027", 1, "never comes: no such day or time from 1970 to 2100 in UTC");
    let skipped = Schedule::parse(&["0 30 2 29 3 * 2026"], "Europe/Berlin", Dst::Skip, "job");
    assert!(matches!(skipped, Err(ScheduleError::Expression { .. })));
    assert!(Schedule::parse(&["0 30 2 29 3 * 2026"], "Europe/Berlin", Dst::Once, "job").is_ok());
    // Either day field will do, so the weekday saves it.
    assert!(Schedule::parse(&["0 0 30 2 1"], "UTC", Dst::Once, "job").is_ok());
    assert_eq!(Schedule::parse(&[], "UTC", Dst::Once, "job"), Err(ScheduleError::NoExpression));
}

#[test]
fn a_long_or_unprintable_word_is_shown_short_and_safe() {
    let (message, _) = refused(&format!("{}\u{1b}[31m * * * *", "x".repeat(1_000)));
    assert!(message.len() < 200 && !message.contains('\u{1b}'), "{message}");
    assert!(refused("\u{1b}[31m * * * *").0.contains("\\u{1b}"));
}

#[test]
fn a_schedule_of_the_past_is_valid_and_has_no_next() {
    let past = super::schedule("@at 2020-01-01T00:00:00Z", "UTC");
    assert_eq!(past.next_after(at("2026-01-01T00:00:00Z")), None);
}
