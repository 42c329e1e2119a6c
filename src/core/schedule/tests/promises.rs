//! Tests of macros, lists of expressions, hashes, counting and identity.

use super::{Dst, Schedule, at, schedule};

fn nexts(schedule: &Schedule, after: &str, many: usize) -> Vec<String> {
    let until = jiff::Timestamp::MAX;
    schedule.occurrences(at(after), until).take(many).map(|at| at.to_string()).collect()
}

#[test]
fn next_is_strictly_later_and_a_whole_second() {
    let daily = schedule("0 0 * * *", "UTC");
    assert_eq!(nexts(&daily, "2026-11-20T00:00:00Z", 1), ["2026-11-21T00:00:00Z"]);
    assert_eq!(nexts(&daily, "2026-11-19T23:59:59.999999999Z", 1), ["2026-11-20T00:00:00Z"]);
    assert_eq!(nexts(&daily, "1969-12-31T23:59:59.5Z", 1), ["1970-01-01T00:00:00Z"]);
    assert_eq!(daily.next_after(jiff::Timestamp::MIN), Some(at("1970-01-01T00:00:00Z")));
    assert_eq!(daily.next_after(at("2100-12-31T00:00:00Z")), None);
}

#[test]
fn last_is_within_its_bounds() {
    let daily = schedule("0 0 * * *", "UTC");
    let last = |to, not_before| daily.last_before_or_at(at(to), at(not_before)).map(|at| at.to_string());
    assert_eq!(last("2026-11-20T00:00:00Z", "2026-11-19T00:00:00Z").as_deref(), Some("2026-11-20T00:00:00Z"));
    assert_eq!(last("2026-11-20T00:00:00.5Z", "2026-11-20T00:00:00Z"), None);
    assert_eq!(last("2026-11-19T23:59:59Z", "2026-11-18T00:00:00Z").as_deref(), Some("2026-11-19T00:00:00Z"));
    assert_eq!(last("2026-11-19T23:59:59Z", "2026-11-20T00:00:00Z"), None);
    // Ten years of seconds, found without iterating over them.
    let second = schedule("* * * * * *", "Europe/Berlin");
    let last = second.last_before_or_at(at("2036-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"));
    assert_eq!(last, Some(at("2036-01-01T00:00:00Z")));
}

/// The crate `cron` finds December of an earlier year only if the query is in December.
#[test]
fn the_last_of_an_earlier_year_is_found() {
    let old = schedule("0 0 0 24 12 * 2020,2022", "UTC");
    let last = |to| old.last_before_or_at(at(to), jiff::Timestamp::MIN);
    assert_eq!(last("2026-03-01T00:00:00Z"), Some(at("2022-12-24T00:00:00Z")));
    assert_eq!(last("2021-03-01T00:00:00Z"), Some(at("2020-12-24T00:00:00Z")));
    assert_eq!(last("2020-12-23T00:00:00Z"), None);
    assert_eq!(last("2300-01-01T00:00:00Z"), Some(at("2022-12-24T00:00:00Z")));
}

#[test]
fn either_day_field_suffices_unless_one_begins_with_a_star() {
    let either = schedule("0 0 13 * 5", "UTC");
    assert_eq!(
        nexts(&either, "2026-11-01T00:00:00Z", 4),
        ["2026-11-06T00:00:00Z", "2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z"]
    );
    let both = schedule("0 0 */2 * 5", "UTC");
    assert_eq!(nexts(&both, "2026-11-01T00:00:00Z", 2), ["2026-11-13T00:00:00Z", "2026-11-27T00:00:00Z"]);
    // Contains a star but does not begin with one, so either field suffices, and the first matches every day.
    let listed = schedule("0 0 5,* * 5", "UTC");
    assert_eq!(nexts(&listed, "2026-11-01T00:00:00Z", 2), ["2026-11-02T00:00:00Z", "2026-11-03T00:00:00Z"]);
}

#[test]
fn a_period_is_aligned_to_the_epoch() {
    let every = schedule("@every 90s", "Europe/Berlin");
    assert_eq!(nexts(&every, "2026-11-20T00:00:00Z", 2), ["2026-11-20T00:01:30Z", "2026-11-20T00:03:00Z"]);
    assert_eq!(every.next_after(at("2026-11-20T00:00:10Z")), every.next_after(at("2026-11-20T00:01:29Z")));
    assert_eq!(nexts(&every, "1969-12-31T23:58:00Z", 2), ["1969-12-31T23:58:30Z", "1970-01-01T00:00:00Z"]);
    let last = every.last_before_or_at(at("2026-11-20T00:01:29Z"), at("2026-11-01T00:00:00Z"));
    assert_eq!(last, Some(at("2026-11-20T00:00:00Z")));
    assert_eq!(schedule("@every 1h30m", "UTC"), schedule("@every 1h30m", "UTC"));
}

#[test]
fn an_instant_occurs_once() {
    let once = schedule("@at 2026-12-24T18:00:00+01:00", "UTC");
    assert_eq!(nexts(&once, "2026-11-20T00:00:00Z", 2), ["2026-12-24T17:00:00Z"]);
    assert_eq!(once.next_after(at("2026-12-24T17:00:00Z")), None);
}

#[test]
fn macros_abbreviate_fields() {
    for (word, fields) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@Weekly", "0 0 * * 7"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 0 * * *"),
        ("@hourly", "0 0 * * * * *"),
    ] {
        assert_eq!(schedule(word, "UTC").canonical(), schedule(fields, "UTC").canonical(), "{word}");
    }
}

#[test]
fn rare_days_are_found() {
    let leap_sunday = schedule("0 0 29 2 */7", "UTC");
    assert_eq!(
        nexts(&leap_sunday, "2026-11-20T00:00:00Z", 3),
        ["2032-02-29T00:00:00Z", "2060-02-29T00:00:00Z", "2088-02-29T00:00:00Z"]
    );
    assert_eq!(nexts(&schedule("0 0 0 1 1 * 2099", "Pacific/Apia"), "2026-11-20T00:00:00Z", 2).len(), 1);
}

#[test]
fn two_expressions_that_match_one_instant_give_one_occurrence() {
    let both = Schedule::parse(&["0 2 * * *", "0 */2 * * *"], "UTC", Dst::Once, "job").expect("valid");
    assert_eq!(nexts(&both, "2026-11-20T00:00:00Z", 2), ["2026-11-20T02:00:00Z", "2026-11-20T04:00:00Z"]);
    assert_eq!(both.count(at("2026-11-20T00:00:00Z"), at("2026-11-21T00:00:00Z")), 12);
    assert_eq!(both.count(at("2026-11-20T00:00:00Z"), at("2026-11-19T00:00:00Z")), 0);
}

#[test]
fn hashed_values_differ_by_name_and_are_stable() {
    let of = |job: &str| Schedule::parse(&["H H * * *"], "UTC", Dst::Once, job).expect("valid");
    assert_eq!(of("report"), of("report"));
    assert_ne!(of("report").canonical(), of("porter").canonical());
}

#[test]
fn the_canonical_text_depends_only_on_the_meaning() {
    let canonical =
        |texts: &[&str]| Schedule::parse(texts, "europe/berlin", Dst::Once, "job").expect("valid").canonical();
    assert_eq!(canonical(&["30 2 * * Mon-Fri"]), "0 30 2 * * 1-5 * | Europe/Berlin | once");
    assert_eq!(canonical(&[" 30\t2  * * 1-5 "]), canonical(&["30 02 * * mon,tue,wed,thu,fri"]));
    assert_eq!(canonical(&["@daily", "@hourly"]), canonical(&["@hourly", "@daily", "@daily"]));
    // A leading star is part of the meaning, and so is every value.
    assert_ne!(canonical(&["*/30 2 * * *"]), canonical(&["0,30 2 * * *"]));
    assert_ne!(canonical(&["0 2 * * *"]), canonical(&["0 3 * * *"]));
    assert_eq!(canonical(&["@every 5400s"]), canonical(&["@every 1h30m"]));
    assert_eq!(canonical(&["@at 2026-12-24T18:00:00+01:00"]), "@at 2026-12-24T17:00:00Z | Europe/Berlin | once");
}

#[test]
fn the_original_text_is_kept() {
    let written = Schedule::parse(&[" 0 2 * * * ", "@daily"], "UTC", Dst::Skip, "job").expect("valid");
    assert_eq!(written.expressions().collect::<Vec<_>>(), ["0 2 * * *", "@daily"]);
    assert_eq!((written.zone_name(), written.dst()), ("UTC", Dst::Skip));
    assert_eq!(written.describe(), "at 02:00 every day; also at 00:00 every day");
}

#[test]
fn a_schedule_can_be_shared_between_threads() {
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Schedule>();
}
