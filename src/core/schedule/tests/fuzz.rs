//! Fuzz tests: a zone in the first line, expressions in the others.

use jiff::{SignedDuration, Timestamp};

use super::{Dst, Schedule, at};
use crate::fuzz::{Fuzz, text};
use crate::schedule::known_zone;

const WORDS: &[&str] = &[
    "*",
    " ",
    "\n",
    "*/5",
    "0",
    "59",
    "1-5",
    "5-1",
    ",",
    "-",
    "/",
    "/0",
    "H",
    "H(0-29)",
    "H/7",
    "mon",
    "Sun",
    "jan",
    "L",
    "W",
    "#",
    "L-3",
    "LW",
    "15W",
    "mon#2",
    "friL",
    "?",
    "2099",
    "1970",
    "@every ",
    "@at ",
    "@daily",
    "@yearly",
    "@reboot",
    "1h30m",
    "1500ms",
    "36600d",
    "2026-12-24T18:00:00Z",
    "2026-12-24T18:00:00+01:00[Europe/Berlin]",
    "-009999-01-02T01:59:59Z",
    "9999-12-30T22:00:00Z",
    "UTC",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Antarctica/Troll",
    "Etc/GMT+12",
    "EST5EDT",
    "../",
    "posix/",
    "TZ=UTC",
    "\u{a0}",
    "~",
    "%",
];

#[test]
fn fuzz_schedule() {
    Fuzz { longest: 8 << 10, ..Fuzz::of("schedule", WORDS) }.run(|input| {
        let text = text(input);
        let (zone, expressions) = text.split_once('\n').unwrap_or(("Europe/Berlin", &text));
        let zone = if known_zone(zone).is_some() { zone } else { "Europe/Berlin" };
        let expressions: Vec<&str> = expressions.lines().collect();
        let dst = [Dst::Once, Dst::Skip, Dst::Twice][input.len() % 3];
        let all = is_sound(&expressions, zone, dst);
        expressions.iter().take(3).fold(all, |any, one| is_sound(&[one], zone, dst) || any)
    });
}

fn is_sound(expressions: &[&str], zone: &str, dst: Dst) -> bool {
    match Schedule::parse(expressions, zone, dst, "job") {
        Ok(schedule) => {
            assert_sound(&schedule);
            true
        }
        Err(error) => {
            if let Some(position) = error.position() {
                let expression = expressions[position.expression];
                assert!(position.offset + position.length <= expression.chars().count(), "{error}: {position:?}");
                let _ = error.hint(expression);
            }
            drop(error.to_string());
            false
        }
    }
}

/// Asserts that the functions of a schedule agree with each other, at both ends of time and between.
fn assert_sound(schedule: &Schedule) {
    let expressions: Vec<&str> = schedule.expressions().collect();
    let again = Schedule::parse(&expressions, schedule.zone_name(), schedule.dst(), "job");
    assert_eq!(again.map(|again| again.canonical()), Ok(schedule.canonical()));
    assert!(!schedule.describe().is_empty());
    for instant in [Timestamp::MIN, at("1970-01-01T00:00:00Z"), at("2026-03-29T00:59:59.5Z"), Timestamp::MAX] {
        let _ = schedule.last_before_or_at(instant, Timestamp::MIN);
        let Some(next) = schedule.next_after(instant) else { continue };
        assert!(next > instant && next.subsec_nanosecond() == 0, "{next}");
        assert_eq!(schedule.last_before_or_at(next, instant), Some(next));
        let _ = schedule.dst_effect(next);
        let before = next.checked_sub(SignedDuration::from_hours(30 * 24)).unwrap_or(Timestamp::MIN).max(instant);
        assert_eq!(schedule.count(before, next), 1);
    }
}

#[test]
fn fuzz_zone() {
    Fuzz { longest: 1 << 10, ..Fuzz::of("zone", WORDS) }.run(|input| {
        let text = text(input);
        match known_zone(&text) {
            Some(name) => {
                assert_eq!(known_zone(&name), Some(name));
                true
            }
            // The search for a suggestion compares with every zone, so only some inputs pay for it.
            None if input.len() % 64 != 0 => false,
            None => {
                let rejected = Schedule::parse(&["@daily"], &text, Dst::Once, "job");
                assert!(rejected.is_err_and(|error| error.to_string().contains("time zone")));
                false
            }
        }
    });
}
