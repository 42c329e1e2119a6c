//! Tests of clock shifts, zone by zone.
//!
//! The rules are those of cron(8) in Debian's cron (3.0pl1-162): "Special considerations exist when the clock is
//! changed by less than 3 hours, for example at the beginning and end of daylight savings time." Each test quotes the
//! sentence that applies.

use super::{Dst, Schedule, at};
use crate::schedule::DstEffect;

use Dst::{Once, Skip, Twice};

/// Asserts the occurrences later than the first instant and not later than the second.
fn assert_occurrences(zone: &str, dst: Dst, text: &str, between: [&str; 2], expected: &[&str]) {
    let schedule = Schedule::parse(&[text], zone, dst, "job").expect("valid");
    let [after, until] = between.map(at);
    let found: Vec<_> = schedule.occurrences(after, until).collect();
    let expected: Vec<_> = expected.iter().map(|text| at(text)).collect();
    assert_eq!(found, expected, "{text} in {zone}, {dst:?}");

    // A backward search must find the same instants.
    let last =
        |before: &jiff::Timestamp| schedule.last_before_or_at(*before - jiff::SignedDuration::from_secs(1), after);
    let mut backwards: Vec<_> = std::iter::successors(schedule.last_before_or_at(until, after), last).collect();
    backwards.reverse();
    assert_eq!(backwards, expected, "{text} in {zone}, {dst:?}, backwards");
}

/// cron(8): "those jobs which would have run in the time that was skipped will be run soon after the change".
#[test]
fn berlin_a_skipped_time_runs_at_the_first_instant_after_the_gap() {
    let night = ["2026-03-28T12:00:00+01:00", "2026-03-30T12:00:00+02:00"];
    let zone = "Europe/Berlin";
    assert_occurrences(zone, Once, "30 2 * * *", night, &["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]);
    assert_occurrences(zone, Twice, "30 2 * * *", night, &["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]);
    assert_occurrences(zone, Skip, "30 2 * * *", night, &["2026-03-30T02:30:00+02:00"]);
}

/// cron(8): "those jobs which would have run in the time that was skipped will be run soon after the change".
#[test]
fn berlin_several_skipped_times_make_one_occurrence() {
    let night = ["2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00"];
    assert_occurrences("Europe/Berlin", Once, "0,20,40 2 * * *", night, &["2026-03-29T03:00:00+02:00"]);
    assert_occurrences(
        "Europe/Berlin",
        Once,
        "15,30 2-3 * * *",
        night,
        &["2026-03-29T03:00:00+02:00", "2026-03-29T03:15:00+02:00", "2026-03-29T03:30:00+02:00"],
    );
    assert_occurrences("Europe/Berlin", Once, "*/5 30 2 * * *", night, &["2026-03-29T03:00:00+02:00"]);
}

/// cron(8): "those jobs which would have run in the time that was skipped will be run soon after the change".
#[test]
fn berlin_a_made_up_occurrence_and_a_regular_one_at_that_instant_are_one() {
    let night = ["2026-03-29T00:00:00+01:00", "2026-03-29T12:00:00+02:00"];
    assert_occurrences("Europe/Berlin", Once, "0 2,3 * * *", night, &["2026-03-29T03:00:00+02:00"]);
    let schedule = Schedule::parse(&["30 2 * * *", "0 3 * * *"], "Europe/Berlin", Once, "job").expect("valid");
    assert_eq!(schedule.count(at(night[0]), at(night[1])), 1);
}

/// cron(8): "those jobs that fall into the repeated time will not be re-run".
#[test]
fn berlin_a_repeated_time_counts_in_its_first_pass() {
    let night = ["2026-10-24T12:00:00+02:00", "2026-10-25T12:00:00+01:00"];
    let zone = "Europe/Berlin";
    assert_occurrences(zone, Once, "30 2 * * *", night, &["2026-10-25T02:30:00+02:00"]);
    assert_occurrences(zone, Skip, "30 2 * * *", night, &["2026-10-25T02:30:00+02:00"]);
    assert_occurrences(zone, Twice, "30 2 * * *", night, &["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]);
    // The first instant of the second pass has the overlap's first local time; the first instant after the overlap is
    // outside it.
    assert_occurrences(zone, Once, "0 2,3 * * *", night, &["2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00"]);
}

/// cron(8): "Only jobs that run at a particular time (not specified as @hourly, nor with '*' in the hour or minute
/// specifier) are affected. Jobs which are specified with wildcards are run based on the new time immediately."
#[test]
fn berlin_a_wildcard_runs_by_elapsed_time() {
    let spring = ["2026-03-29T01:00:00+01:00", "2026-03-29T04:00:00+02:00"];
    let autumn = ["2026-10-25T01:00:00+02:00", "2026-10-25T03:00:00+01:00"];
    let zone = "Europe/Berlin";
    let forwards = ["2026-03-29T01:30:00+01:00", "2026-03-29T03:30:00+02:00"];
    let twice = ["2026-10-25T01:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"];
    for dst in [Once, Twice] {
        assert_occurrences(zone, dst, "30 * * * *", spring, &forwards);
        assert_occurrences(zone, dst, "30 * * * *", autumn, &twice);
        assert_occurrences(zone, dst, "30 */2 * * *", spring, &[]);
        assert_occurrences(zone, dst, "*/30 2 * * *", spring, &[]);
    }
    assert_occurrences(zone, Skip, "30 * * * *", spring, &forwards);
    assert_occurrences(zone, Skip, "30 * * * *", autumn, &twice[..2]);
}

/// cron(8): "'*' in the hour or minute specifier" matters, not which hours match.
#[test]
fn a_range_over_all_hours_is_not_a_wildcard() {
    let spring = ["2026-03-29T01:00:00+01:00", "2026-03-29T04:00:00+02:00"];
    assert_occurrences(
        "Europe/Berlin",
        Once,
        "30 0-23 * * *",
        spring,
        &["2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"],
    );
}

#[test]
fn a_period_from_the_epoch_ignores_shifts() {
    let autumn = ["2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00"];
    assert_occurrences(
        "Europe/Berlin",
        Skip,
        "@every 30m",
        autumn,
        &["2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:00:00Z"],
    );
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
#[test]
fn new_york_shifts_at_two() {
    let zone = "America/New_York";
    let spring = ["2026-03-08T00:00:00-05:00", "2026-03-08T12:00:00-04:00"];
    let autumn = ["2026-11-01T00:00:00-04:00", "2026-11-01T12:00:00-05:00"];
    assert_occurrences(zone, Once, "30 2 * * *", spring, &["2026-03-08T03:00:00-04:00"]);
    assert_occurrences(zone, Once, "30 1 * * *", autumn, &["2026-11-01T01:30:00-04:00"]);
    assert_occurrences(zone, Twice, "30 1 * * *", autumn, &["2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00"]);
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
/// The shift is of 30 minutes.
#[test]
fn lord_howe_shifts_by_half_an_hour() {
    let zone = "Australia/Lord_Howe";
    let spring = ["2026-10-04T00:00:00+10:30", "2026-10-04T12:00:00+11:00"];
    let autumn = ["2026-04-05T00:00:00+11:00", "2026-04-05T12:00:00+10:30"];
    assert_occurrences(zone, Once, "15 2 * * *", spring, &["2026-10-04T02:30:00+11:00"]);
    assert_occurrences(zone, Once, "45 2 * * *", spring, &["2026-10-04T02:45:00+11:00"]);
    assert_occurrences(zone, Once, "45 1 * * *", autumn, &["2026-04-05T01:45:00+11:00"]);
    assert_occurrences(zone, Twice, "45 1 * * *", autumn, &["2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30"]);
    assert_occurrences(zone, Twice, "15 1 * * *", autumn, &["2026-04-05T01:15:00+11:00"]);
    assert_occurrences(
        zone,
        Once,
        "*/30 * * * *",
        ["2026-04-05T01:29:00+11:00", "2026-04-05T02:00:00+10:30"],
        &["2026-04-05T01:30:00+11:00", "2026-04-05T01:30:00+10:30", "2026-04-05T02:00:00+10:30"],
    );
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
/// A day may lack its 00:00.
#[test]
fn cairo_skips_and_repeats_midnight() {
    let zone = "Africa/Cairo";
    let spring = ["2024-04-25T12:00:00+02:00", "2024-04-27T12:00:00+03:00"];
    let autumn = ["2024-10-31T12:00:00+03:00", "2024-11-01T12:00:00+02:00"];
    assert_occurrences(zone, Once, "@daily", spring, &["2024-04-26T01:00:00+03:00", "2024-04-27T00:00:00+03:00"]);
    assert_occurrences(zone, Skip, "@daily", spring, &["2024-04-27T00:00:00+03:00"]);
    // At the end of Thursday the clock goes back to 23:00: midnight occurs once, the hour before it twice.
    assert_occurrences(zone, Once, "@daily", autumn, &["2024-11-01T00:00:00+02:00"]);
    assert_occurrences(zone, Once, "30 23 * * *", autumn, &["2024-10-31T23:30:00+03:00"]);
    assert_occurrences(zone, Twice, "30 23 * * *", autumn, &["2024-10-31T23:30:00+03:00", "2024-10-31T23:30:00+02:00"]);
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
#[test]
fn beirut_skips_and_repeats_midnight() {
    let zone = "Asia/Beirut";
    let spring = ["2024-03-30T12:00:00+02:00", "2024-03-31T12:00:00+03:00"];
    let autumn = ["2024-10-26T12:00:00+03:00", "2024-10-27T12:00:00+02:00"];
    assert_occurrences(zone, Once, "0 0 * * *", spring, &["2024-03-31T01:00:00+03:00"]);
    assert_occurrences(zone, Once, "59 23 * * *", autumn, &["2024-10-26T23:59:00+03:00"]);
    assert_occurrences(zone, Once, "0 0 * * *", autumn, &["2024-10-27T00:00:00+02:00"]);
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
#[test]
fn sao_paulo_once_had_days_that_began_at_one() {
    let zone = "America/Sao_Paulo";
    let spring = ["2018-11-03T12:00:00-03:00", "2018-11-05T12:00:00-02:00"];
    let autumn = ["2018-02-17T12:00:00-02:00", "2018-02-18T12:00:00-03:00"];
    assert_occurrences(zone, Once, "0 0 * * *", spring, &["2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00"]);
    assert_occurrences(zone, Once, "0 0 4 11 *", spring, &["2018-11-04T01:00:00-02:00"]);
    assert_occurrences(zone, Once, "15 23 * * 6", autumn, &["2018-02-17T23:15:00-02:00"]);
    assert_occurrences(zone, Twice, "15 23 * * 6", autumn, &["2018-02-17T23:15:00-02:00", "2018-02-17T23:15:00-03:00"]);
}

/// cron(8): "Clock changes of more than 3 hours are considered to be corrections to the clock, and the new time is used
/// immediately": here they are made up for all the same, the day left out by one occurrence.
#[test]
fn apia_left_out_a_whole_day() {
    let zone = "Pacific/Apia";
    let days = ["2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00"];
    assert_occurrences(
        zone,
        Once,
        "30 2,14 * * *",
        days,
        &[
            "2011-12-29T02:30:00-10:00",
            "2011-12-29T14:30:00-10:00",
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T02:30:00+14:00",
            "2011-12-31T14:30:00+14:00",
        ],
    );
    assert_occurrences(zone, Once, "0 12 30 12 *", days, &["2011-12-31T00:00:00+14:00"]);
    assert_occurrences(zone, Skip, "0 12 30 12 *", days, &[]);
    assert_occurrences(
        zone,
        Once,
        "0 */12 * * *",
        days,
        &[
            "2011-12-29T12:00:00-10:00",
            "2011-12-31T00:00:00+14:00",
            "2011-12-31T12:00:00+14:00",
            "2012-01-01T00:00:00+14:00",
        ],
    );
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
#[test]
fn london_shifts_at_one() {
    let zone = "Europe/London";
    let spring = ["2026-03-29T00:00:00Z", "2026-03-29T12:00:00+01:00"];
    let autumn = ["2026-10-25T00:00:00+01:00", "2026-10-25T12:00:00Z"];
    assert_occurrences(zone, Once, "30 1 * * *", spring, &["2026-03-29T02:00:00+01:00"]);
    assert_occurrences(zone, Once, "30 1 * * *", autumn, &["2026-10-25T01:30:00+01:00"]);
    assert_occurrences(zone, Once, "30 2 * * *", spring, &["2026-03-29T02:30:00+01:00"]);
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
#[test]
fn azores_shift_between_midnight_and_one() {
    let zone = "Atlantic/Azores";
    let spring = ["2026-03-28T12:00:00-01:00", "2026-03-29T12:00:00Z"];
    let autumn = ["2026-10-24T12:00:00Z", "2026-10-25T12:00:00-01:00"];
    assert_occurrences(zone, Once, "0 0 * * *", spring, &["2026-03-29T01:00:00Z"]);
    assert_occurrences(zone, Once, "0 0 * * *", autumn, &["2026-10-25T00:00:00Z"]);
    assert_occurrences(zone, Twice, "0 0 * * *", autumn, &["2026-10-25T00:00:00Z", "2026-10-25T00:00:00-01:00"]);
}

/// cron(8): what was skipped is "run soon after the change"; what falls "into the repeated time will not be re-run".
/// The shift is of two hours, within the three that cron makes up for.
#[test]
fn troll_shifts_by_two_hours() {
    let zone = "Antarctica/Troll";
    let spring = ["2026-03-29T00:00:00Z", "2026-03-29T12:00:00+02:00"];
    let autumn = ["2026-10-25T00:00:00+02:00", "2026-10-25T12:00:00Z"];
    assert_occurrences(zone, Once, "30 1,2 * * *", spring, &["2026-03-29T03:00:00+02:00"]);
    assert_occurrences(zone, Once, "30 1,2 * * *", autumn, &["2026-10-25T01:30:00+02:00", "2026-10-25T02:30:00+02:00"]);
}

#[test]
fn a_search_that_starts_inside_the_overlap_finds_the_second_pass() {
    // In the last year of the schedule, so that after the first pass no later local time matches.
    let autumn = ["2026-10-25T02:40:00+02:00", "2026-12-31T00:00:00Z"];
    assert_occurrences("Europe/Berlin", Twice, "0 30 2 25 10 * 2026", autumn, &["2026-10-25T02:30:00+01:00"]);
}

#[test]
fn the_effect_of_a_shift_on_an_occurrence_is_reported() {
    let daily = Schedule::parse(&["30 2 * * *"], "Europe/Berlin", Twice, "job").expect("valid");
    let moved = daily.dst_effect(at("2026-03-29T03:00:00+02:00"));
    assert_eq!(moved, Some(DstEffect::MovedOutOfGap("2026-03-29T02:30:00".parse().expect("a local time"))));
    assert_eq!(daily.dst_effect(at("2026-10-25T02:30:00+02:00")), Some(DstEffect::FirstPass));
    assert_eq!(daily.dst_effect(at("2026-10-25T02:30:00+01:00")), Some(DstEffect::SecondPass));
    assert_eq!(daily.dst_effect(at("2026-10-26T02:30:00+01:00")), None);
    let hourly = super::schedule("0 * * * *", "Europe/Berlin");
    assert_eq!(hourly.dst_effect(at("2026-03-29T03:00:00+02:00")), None);
    assert_eq!(super::schedule("0 * * * *", "UTC").dst_effect(at("2026-03-29T03:00:00Z")), None);
}

/// The search handles each shift separately, which is correct only because of this fact.
#[test]
fn no_zone_shifts_again_before_an_overlap_is_over() {
    let bundled = jiff::tz::TimeZoneDatabase::bundled();
    for name in bundled.available() {
        let zone = bundled.get(name.as_str()).expect("listed");
        let mut before: Option<(i64, i64)> = None;
        let first = at("1969-12-01T00:00:00Z");
        let mut offset = zone.to_offset(first).seconds();
        for shift in zone.following(first).take_while(|shift| shift.timestamp() < at("2101-01-01T00:00:00Z")) {
            let (second, size) = (shift.timestamp().as_second(), i64::from(shift.offset().seconds() - offset));
            offset = shift.offset().seconds();
            let near = before.is_some_and(|(last, last_size)| second - last < last_size.abs() + size.abs());
            assert!(size == 0 || !near, "{} shifts twice around {}", name.as_str(), shift.timestamp());
            if size != 0 {
                before = Some((second, size));
            }
        }
    }
}
