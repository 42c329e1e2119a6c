//! Tests of the count of a span against the individual occurrences.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Dst, Schedule};
use super::{at, schedule};

const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Beirut",
    "Pacific/Apia",
    "Antarctica/Troll",
];

/// Common and rare expressions, fixed and by elapsed time, on both sides of midnight.
const EXPRESSIONS: [&str; 29] = [
    "* * * * * *",
    "*/7 * * * * *",
    "*/20 59 23 * * *",
    "* * * * *",
    "*/13 * * * *",
    "0 * * * *",
    "30 2 * * *",
    "0,15,30,45 0-3 * * *",
    "30 1,2 * * sun",
    "0 0 * * *",
    "59 23 31 * *",
    "15 */5 1,15 * 5",
    "15 4 */9 * 3",
    "0 22-2 * 11-3 fri-mon",
    "5 5 29 2 *",
    "0 30 2 * 3,10,11 0 1995-2031",
    "30 2 L * *",
    "*/30 1-2 * * sunL",
    "0 0 15W,LW * mon#1",
    "59 59 23 L-1 2 thu#5",
    "0 0 */9,L-2 * sat,tue#5",
    "@hourly",
    "@every 1s",
    "@every 90s",
    "@every 97s",
    "@every 45m",
    "@every 86401s",
    "@at 2026-10-25T01:30:00Z",
    "@at 2027-03-28T01:00:00Z",
];

#[derive(Clone, Debug)]
struct Span {
    after: Timestamp,
    /// Number of occurrences in it, if the schedule has so many.
    many: usize,
    /// How far it extends beyond the last of them, in nanoseconds, but not to the next.
    behind: u64,
}

/// From 1969 to 2101, mostly within a day before a shift.
fn span(zone: &'static str) -> impl Strategy<Value = Span> {
    let begin = -86_400_i64..4_134_067_200;
    let second = 1_000_000_000_u64;
    (begin, any::<bool>(), 0..86_400_i64, 0..600_usize, 0..4 * second).prop_map(
        move |(begin, is_at_shift, before, many, behind)| {
            let zone = TimeZone::get(zone).expect("a zone");
            let begin = Timestamp::from_second(begin).expect("in range");
            let shift = zone.following(begin).next().filter(|_| is_at_shift).map(|shift| shift.timestamp());
            let after = shift.map_or(begin, |shift| shift - Duration::from_secs(before.unsigned_abs()));
            Span { after, many, behind }
        },
    )
}

fn case() -> impl Strategy<Value = (&'static str, Dst, Vec<&'static str>, Span)> {
    let zone = proptest::sample::select(&ZONES[..]);
    let dst = proptest::sample::select(vec![Dst::Once, Dst::Skip, Dst::Twice]);
    let list = vec(proptest::sample::select(&EXPRESSIONS[..]), 1..5);
    (zone, dst, list).prop_flat_map(|(zone, dst, list)| (Just(zone), Just(dst), Just(list), span(zone)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_count_is_that_of_the_occurrences_one_by_one((zone, dst, list, span) in case()) {
        let schedule = Schedule::parse(&list, zone, dst, "job").expect("valid");
        let found: Vec<Timestamp> = schedule.occurrences(span.after, Timestamp::MAX).take(span.many).collect();
        let last = found.last().copied().unwrap_or(span.after);
        let next = schedule.next_after(last).unwrap_or(Timestamp::MAX);
        let until = (last + Duration::from_nanos(span.behind)).min(next - Duration::from_nanos(1));
        prop_assert_eq!(schedule.count(span.after, until), found.len() as u64, "until {}", until);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Days in the middle are counted whole and those at the ends in part. However a span is cut, the sum must be the
    /// same.
    #[test]
    fn a_span_holds_what_its_parts_hold((zone, dst, list, span) in case(), cut in 0..5_000_000_u64, rest in 0..100_000_000_u64) {
        let schedule = Schedule::parse(&list, zone, dst, "job").expect("valid");
        let middle = span.after + Duration::from_secs(cut);
        let end = middle + Duration::from_secs(rest);
        let parts = schedule.count(span.after, middle) + schedule.count(middle, end);
        prop_assert_eq!(schedule.count(span.after, end), parts);
    }
}

#[test]
fn ten_years_of_seconds_are_counted_to_the_last() {
    let (after, until) = (at("2026-01-01T00:00:00Z"), at("2036-01-01T00:00:00Z"));
    let seconds = 315_532_800;
    assert_eq!(until.duration_since(after).as_secs(), seconds);
    for zone in ["UTC", "Europe/Berlin", "Australia/Lord_Howe"] {
        assert_eq!(schedule("* * * * * *", zone).count(after, until), seconds.unsigned_abs(), "{zone}");
    }
    assert_eq!(schedule("@every 1s", "UTC").count(after, until), seconds.unsigned_abs());
}

/// Many periods at once, over the whole range of timestamps, which no iteration could cover.
#[test]
fn periods_are_counted_by_arithmetic() {
    let schedule = |periods: &[&str]| Schedule::parse(periods, "UTC", Dst::Once, "job").expect("valid");
    let always = |schedule: &Schedule| schedule.count(Timestamp::MIN, Timestamp::MAX);
    let (first, last) = (Timestamp::MIN.as_second() + 1, Timestamp::MAX.as_second());
    let every = |period: i64| (last.div_euclid(period) - (first - 1).div_euclid(period)).unsigned_abs();
    assert_eq!(always(&schedule(&["@every 7s"])), every(7));
    assert_eq!(always(&schedule(&["@every 6s", "@every 10s"])), every(6) + every(10) - every(30));
    let many: Vec<String> = (2..40).map(|seconds| format!("@every {seconds}s")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let hour = at("2026-11-20T00:00:00Z")..at("2026-11-20T01:00:00Z");
    let one_by_one = schedule(&many).occurrences(hour.start, hour.end).count();
    assert_eq!(schedule(&many).count(hour.start, hour.end), one_by_one as u64);
}

/// A hundred years of every second, in a list that must be combined day by day. An iteration would not finish in this
/// time.
#[test]
fn a_century_of_seconds_is_counted_quickly() {
    let list = ["* * * * * *", "*/7 * * * * *", "30 2 * * 1-5", "@every 90s"];
    let schedule = Schedule::parse(&list, "Europe/Berlin", Dst::Once, "job").expect("valid");
    let (after, until) = (at("1971-01-01T00:00:00Z"), at("2071-01-01T00:00:00Z"));
    let begun = Instant::now();
    assert_eq!(schedule.count(after, until), until.duration_since(after).as_secs().unsigned_abs());
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
