//! Calendars, compared with a model that asks for every occurrence whether its date counts.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Calendar, Dates, DatesFile, Dst, Schedule};
use super::at;
use crate::fuzz::{Fuzz, text};

fn file(name: &str, text: &str) -> DatesFile {
    let dates = Dates::parse(&format!("{text}\n")).unwrap_or_else(|faults| panic!("{text}: {faults:?}"));
    DatesFile { name: name.to_owned(), dates: Arc::new(dates) }
}

fn with(schedule: &str, zone: &str, exclude: &str, only: &str) -> Schedule {
    let files = |name: &str, text: &str| (!text.is_empty()).then(|| file(name, text)).into_iter().collect::<Vec<_>>();
    let calendar = Calendar::new(files("holidays.txt", exclude), files("business.txt", only));
    let schedule = Schedule::parse(&[schedule], zone, Dst::Once, "job").expect("valid");
    schedule.with_calendar(Some(calendar))
}

#[test]
fn a_file_has_dates_ranges_and_days_of_every_year() {
    let text = "# Holidays\n\n2026-12-25 Christmas Day\r\n 2026-12-28..2027-01-03\t# closed\n05-01#Labour Day\n02-29\n";
    let dates = Dates::parse(text).expect("valid");
    let has = |text: &str| dates.days.has(super::super::dates::number(text.parse::<Date>().unwrap()));
    for day in ["2026-12-25", "2026-12-28", "2027-01-01", "2027-01-03", "1970-05-01", "2100-05-01", "2028-02-29"] {
        assert!(has(day), "{day}");
    }
    for day in ["2026-12-24", "2026-12-26", "2026-12-27", "2027-01-04", "2027-12-25", "2027-02-28", "2027-03-01"] {
        assert!(!has(day), "{day}");
    }
    assert_eq!(dates.newest(), Some(("2027-01-03".parse().unwrap(), 4)));
    assert_eq!(Dates::parse("12-25\n").unwrap().newest(), None);
}

#[test]
fn a_line_that_is_not_understood_has_a_position() {
    let found = |text: &str| {
        let faults = Dates::parse(text).expect_err(text);
        let first = faults.first().expect("a fault");
        format!("{}:{} {}", first.line, first.column, first.message)
    };
    for (text, expected) in [
        ("2026-12-25\n  26.12.2026\n", "2:3 expected a date such as `2026-12-25`"),
        ("2026-1-1", "1:1 expected a date"),
        ("2026-02-30", "1:1 there is no such day"),
        ("02-30", "1:1 there is no such day"),
        ("13-01", "1:1 there is no such day"),
        ("1-1-1", "1:1 expected a date"),
        ("2026-12-28..2026-12-27", "1:1 the range ends before it begins"),
        ("2026-12-24 .. 2027-01-06", "1:1 a range is written without spaces"),
        ("2026-12-24 - 2027-01-06", "1:1 a range is written without spaces"),
        ("2026-12-24 to 2027-01-06", "1:1 a range is written without spaces"),
        ("12-24..01-06", "1:1 expected a date"),
        ("2026-12-24..", "1:1 expected a date"),
        ("2101-01-01", "1:1 only years from 1970 to 2100"),
        ("+026-01-01", "1:1 expected a date"),
        ("Christmas", "1:1 expected a date"),
        ("hä-ho", "1:1 expected a date"),
    ] {
        assert!(found(text).starts_with(expected), "{text}: {}", found(text));
    }
    assert!(found(&"2026-12-25\n".repeat(10_001)).starts_with("10001:1 more than 10000 entries"));
    assert_eq!(Dates::parse(&"x\n".repeat(1_000)).expect_err("wrong").len(), 20);
    assert!(Dates::parse("2026-12-25 - Christmas to come\n").is_ok());
}

/// Without its dates, a file of `exclude` leaves out nothing and one of `only` everything.
#[test]
fn a_file_that_is_empty_or_has_an_unfinished_line_is_refused() {
    let found = |text: &str| {
        let faults = Dates::parse(text).expect_err(text);
        faults.iter().map(|fault| format!("{}:{} {}", fault.line, fault.column, fault.message)).collect::<Vec<_>>()
    };
    for text in ["", "\n", "# 2026-12-25\n", " \r\n\t\n"] {
        let faults = found(text);
        assert!(
            faults.len() == 1 && faults[0].starts_with("1:1 the calendar has no entries; "),
            "{text:?}: {faults:?}"
        );
    }
    for (text, at) in
        [("2026-12-25", "1:11"), ("12-25\n2026-12-26 Boxing", "2:18"), ("12-25\n# ä", "2:4"), (" ", "1:2")]
    {
        let faults = found(text);
        let expected = format!("{at} the last line has no line end: is the file complete?");
        assert!(faults.len() == 1 && faults[0].starts_with(&expected), "{text:?}: {faults:?}");
    }
    assert_eq!(found("12-25\n2026-1")[0], format!("2:1 {}", found("x\n")[0].trim_start_matches("1:1 ")));
}

/// The days of a range can begin and end anywhere in a word of the set, and span several.
#[test]
fn a_range_has_its_days_and_no_others() {
    let text = |day: i64| super::super::zone::civil(day * 86_400).date().to_string();
    for (first, last) in [(0, 0), (63, 64), (64, 127), (100, 700), (47_800, 47_846), (0, 47_846)] {
        let dates = Dates::parse(&format!("{}..{}\n", text(first), text(last))).expect("valid");
        for day in (0..130).chain(690..710).chain(47_780..47_847) {
            assert_eq!(dates.days.has(day), (first..=last).contains(&day), "{day} in {first}..={last}");
        }
    }
}

#[test]
fn dates_are_left_out_or_the_only_ones() {
    let nexts = |schedule: &Schedule| {
        let found = schedule.occurrences(at("2026-12-23T12:00:00Z"), Timestamp::MAX).take(3);
        found.map(|at| at.to_string()).collect::<Vec<_>>()
    };
    let excluding = with("30 2 * * *", "Europe/Berlin", "2026-12-24..2026-12-26 Christmas", "");
    assert_eq!(nexts(&excluding), ["2026-12-27T01:30:00Z", "2026-12-28T01:30:00Z", "2026-12-29T01:30:00Z"]);
    let only = with("30 2 * * *", "Europe/Berlin", "12-26", "2026-12-25..2026-12-27");
    assert_eq!(nexts(&only), ["2026-12-25T01:30:00Z", "2026-12-27T01:30:00Z"]);
    // 23:30 UTC is the next day in Berlin.
    let midnight = with("30 0 * * *", "Europe/Berlin", "2026-12-25", "");
    assert_eq!(nexts(&midnight)[0], "2026-12-23T23:30:00Z");
    assert_eq!(nexts(&midnight)[1], "2026-12-25T23:30:00Z");
    let every = with("@every 12h", "UTC", "", "12-25");
    assert_eq!(nexts(&every), ["2026-12-25T00:00:00Z", "2026-12-25T12:00:00Z", "2027-12-25T00:00:00Z"]);
    assert!(nexts(&with("@at 2026-12-25T10:00:00Z", "UTC", "12-25", "")).is_empty());
}

#[test]
fn what_is_left_out_is_named_and_counted() {
    let five = NonZeroUsize::new(5).unwrap();
    let schedule = with("0 */6 * * *", "UTC", "2026-12-25", "2026-12-24..2026-12-25");
    let (number, first) = schedule.left_out(at("2026-12-24T12:00:00Z"), at("2026-12-26T06:00:00Z"), five);
    let first: Vec<String> = first.into_iter().map(|(at, file)| format!("{at} {file}")).collect();
    assert_eq!(number, 6);
    assert_eq!(first[0], "2026-12-25T00:00:00Z holidays.txt");
    assert_eq!(first[4], "2026-12-26T00:00:00Z business.txt");
    let none = with("0 */6 * * *", "UTC", "2025-12-25", "");
    assert_eq!(none.left_out(at("2026-12-24T12:00:00Z"), at("2027-12-26T06:00:00Z"), five), (0, vec![]));
}

#[test]
fn a_date_that_is_taken_for_a_name_is_doubted() {
    let doubted = |text: &str| {
        let dates = Dates::parse(&format!("06-01\n{text}\n")).expect("valid");
        dates.doubts().iter().map(|doubt| (doubt.line, doubt.column)).collect::<Vec<_>>()
    };
    for (text, column) in [
        ("2026-12-25 2026-12-26", 12),
        ("  2026-12-25\t 12-26 Boxing Day", 15),
        ("12-25 , 2026-12-27..2026-12-31", 9),
        ("12-25 and 12-26, holidays", 11),
        ("12-24 – 12-26", 9),
    ] {
        assert_eq!(doubted(text), [(2, column)], "{text}");
    }
    for text in [
        "2026-12-25 Christmas",
        "2026-12-28 for 2026-12-26",
        "12-25 # 12-26",
        "12-25 24-7",
        "12-25#12-26",
        "12-25 12-40",
    ] {
        assert_eq!(doubted(text), [], "{text}");
    }
}

#[test]
fn what_is_left_out_next_is_named_unless_something_counts_before() {
    let schedule = with("0 6 * * *", "Europe/Berlin", "2026-12-25", "");
    let christmas = (at("2026-12-25T05:00:00Z"), "holidays.txt".to_owned());
    assert_eq!(schedule.next_left_out(at("2026-12-24T05:00:00Z")), Some(christmas));
    assert_eq!(schedule.next_left_out(at("2026-12-24T04:59:59Z")), None);
    let over = with("@at 2026-12-24T18:00:00Z", "UTC", "2026-12-25", "");
    assert_eq!(over.next_left_out(at("2026-12-24T18:00:00Z")), None, "nothing is named any more");
}

#[test]
fn the_digest_changes_with_the_dates_only() {
    let digest = |exclude: &str| with("@daily", "UTC", exclude, "").calendar().unwrap().digest().to_owned();
    assert_eq!(digest("2026-12-25\n2026-12-26"), digest("# both\n2026-12-25..2026-12-26 Christmas"));
    assert_ne!(digest("2026-12-25"), digest("2026-12-26"));
    let plain = Schedule::parse(&["@daily"], "UTC", Dst::Once, "job").unwrap();
    assert_ne!(with("@daily", "UTC", "", "1970-01-01..2100-12-31"), plain);
}

/// Searches and counts must not walk from one occurrence to the next.
#[test]
fn a_calendar_without_dates_to_come_ends_every_search() {
    let begun = Instant::now();
    let (start, end) = (at("2026-01-01T00:00:00Z"), at("2099-01-01T00:00:00Z"));
    for expression in ["* * * * * *", "@every 1s", "*/5 * * * *", "0 0 L * fri#3"] {
        for zone in ["UTC", "Europe/Berlin", "Pacific/Apia"] {
            let past = with(expression, zone, "", "2020-01-01..2020-12-31\n2021-06-01");
            assert_eq!(past.next_after(start), None, "{expression} in {zone}");
            assert_eq!(past.count(start, end), 0);
            assert_eq!(past.last_before_or_at(end, start), None);
            let all_year = with(expression, zone, "1970-01-01..2099-12-31", "");
            assert_eq!(all_year.count(start, end), 0);
        }
    }
    let yearly = with("* * * * * *", "Europe/Berlin", "12-25\n12-26\n01-01", "");
    let plain = Schedule::parse(&["* * * * * *"], "Europe/Berlin", Dst::Once, "job").unwrap();
    assert_eq!(plain.count(start, end) - yearly.count(start, end), 3 * 73 * 86_400);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// The search of a schedule that its calendar never meets goes from each Monday to the next Tuesday. It is done once.
#[test]
fn a_schedule_that_its_calendar_never_meets_again_has_no_next_occurrence() {
    let days = |first: Date| -> String {
        std::iter::successors(Some(first), |day| day.checked_add(jiff::Span::new().weeks(1)).ok())
            .take_while(|day| day.year() <= 2100)
            .map(|day| format!("{day}\n"))
            .collect()
    };
    let tuesdays = days("1970-01-06".parse().unwrap());
    assert_eq!(with("0 3 * * mon", "Europe/Berlin", "", &tuesdays).next_after(Timestamp::UNIX_EPOCH), None);
    let once = with("0 3 * * mon", "Europe/Berlin", "", &format!("{tuesdays}2026-11-23"));
    assert_eq!(once.next_after(Timestamp::UNIX_EPOCH), Some(at("2026-11-23T02:00:00Z")));
    assert_eq!(once.next_after(at("2026-11-23T01:59:59Z")), Some(at("2026-11-23T02:00:00Z")));
    assert_eq!(once.next_after(at("2026-11-23T02:00:00Z")), None);
    let begun = Instant::now();
    (0..100_000).for_each(|_| assert_eq!(once.next_after(at("2026-11-23T02:00:00Z")), None));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

const WORDS: &[&str] = &[
    "2026-12-25",
    "..",
    "2026-12-24..2027-01-06",
    "12-25",
    "02-29",
    "02-30",
    "\n",
    "\r\n",
    "#",
    " ",
    "\t",
    "-",
    "–",
    "to ",
    "1970-01-01",
    "2100-12-31",
    "9999-99-99",
    "\u{feff}",
    "Christmas",
];

#[test]
fn fuzz_calendar() {
    Fuzz::of("calendar", WORDS).run(|input| {
        let text = text(input);
        match Dates::parse(&text) {
            Ok(dates) => {
                let schedule = Schedule::parse(&["0 */6 * * *"], "Europe/Berlin", Dst::Once, "job").expect("valid");
                let file = DatesFile { name: "f".to_owned(), dates: Arc::new(dates) };
                let (year, next) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
                let [without, only] = [(vec![file.clone()], vec![]), (vec![], vec![file])].map(|(exclude, only)| {
                    schedule.with_calendar(Some(Calendar::new(exclude, only))).count(year, next)
                });
                assert_eq!(without + only, schedule.count(year, next));
                true
            }
            Err(faults) => {
                let lines = text.lines().count().max(1);
                assert!((1..=20).contains(&faults.len()));
                assert!(faults.iter().all(|fault| (1..=lines).contains(&fault.line) && fault.column > 0));
                false
            }
        }
    });
}

/// A date, a range or a day of every year around an instant; and whether it names a date.
#[derive(Clone, Debug)]
enum Entry {
    Range(Date, Date),
    Yearly(i8, i8),
}

impl Entry {
    fn text(&self) -> String {
        match self {
            Self::Range(first, last) if first == last => first.to_string(),
            Self::Range(first, last) => format!("{first}..{last}"),
            Self::Yearly(month, day) => format!("{month:02}-{day:02}"),
        }
    }

    fn names(&self, date: Date) -> bool {
        match self {
            Self::Range(first, last) => (*first..=*last).contains(&date),
            Self::Yearly(month, day) => (date.month(), date.day()) == (*month, *day),
        }
    }
}

const BEGIN: i64 = 1_262_304_000; // 2010

fn entry() -> impl Strategy<Value = Entry> {
    let date = |day: i64| jiff::civil::date(2010, 1, 1) + jiff::Span::new().days(day);
    prop_oneof![
        (0..800_i64, 0..20_i64).prop_map(move |(first, more)| Entry::Range(date(first), date(first + more))),
        (0..800_i64).prop_map(move |day| Entry::Range(date(day), date(day))),
        (1..=12_i8, 1..=28_i8).prop_map(|(month, day)| Entry::Yearly(month, day)),
    ]
}

const EXPRESSIONS: [&str; 9] = [
    "0 */5 * * *",
    "30 2 * * *",
    "0 0 * * *",
    "59 23 * * 1-5",
    "0 0 L,15W * fri#2",
    "@every 7h",
    "@every 86401s",
    "*/30 22-2 * * *",
    "@at 2011-12-31T10:00:00Z",
];
const ZONES: [&str; 8] = [
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Asia/Beirut",
    "Pacific/Apia",
    "Atlantic/Azores",
    "Antarctica/Troll",
];

fn assert_like_model(list: &[&str], zone: &str, exclude: &[Entry], only: &[Entry], after: i64, length: i64) {
    let text = |entries: &[Entry]| entries.iter().map(Entry::text).collect::<Vec<_>>().join("\n");
    let files = |entries: &[Entry]| (!entries.is_empty()).then(|| file("f", &text(entries))).into_iter().collect();
    let calendar = Calendar::new(files(exclude), files(only));
    let plain = Schedule::parse(list, zone, Dst::Once, "job").expect("valid");
    let schedule = plain.with_calendar(Some(calendar));
    let after = Timestamp::from_second(BEGIN + after).expect("in range");
    let until = after + Duration::from_secs(length.unsigned_abs());
    let time_zone = TimeZone::get(zone).expect("a zone");
    let counts = |at: &Timestamp| {
        let date = time_zone.to_datetime(*at).date();
        let any = |entries: &[Entry]| entries.iter().any(|entry| entry.names(date));
        !any(exclude) && (only.is_empty() || any(only))
    };
    let (expected, left_out): (Vec<Timestamp>, Vec<Timestamp>) = plain.occurrences(after, until).partition(counts);
    let found: Vec<Timestamp> = schedule.occurrences(after, until).collect();
    assert_eq!(found, expected);
    assert_eq!(schedule.count(after, until), expected.len() as u64);
    assert_eq!(schedule.last_before_or_at(until, after), expected.last().copied());
    let (number, first) = schedule.left_out(after, until, NonZeroUsize::new(10).unwrap());
    assert_eq!(number, left_out.len() as u64);
    assert!(first.iter().map(|(at, _)| at).eq(left_out.iter().take(10)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_occurrence_differs_from_the_model(
        list in vec(proptest::sample::select(&EXPRESSIONS[..]), 1..3),
        zone in proptest::sample::select(&ZONES[..]),
        exclude in vec(entry(), 0..12),
        only in vec(entry(), 0..12),
        after in 0..40_000_000_i64,
        length in 0..30_000_000_i64,
    ) {
        assert_like_model(&list, zone, &exclude, &only, after, length);
    }

    /// In St. John's, 2010-11-07 began, and a minute later the clock went back to 23:01 of the day before.
    #[test]
    fn no_occurrence_differs_from_the_model_where_a_date_comes_again(
        minutes in proptest::sample::select(&["* * * * *", "*/30 * * * *", "@every 29m"][..]),
        is_only in any::<bool>(),
        days in proptest::sample::subsequence(vec![4_i8, 5, 6, 7, 8, 9], 1..6),
        after in 0..144_i64,
        length in 0..12_000_i64,
    ) {
        let days: Vec<Entry> = days.into_iter().map(|day| Entry::Yearly(11, day)).collect();
        let (exclude, only) = if is_only { (vec![], days) } else { (days, vec![]) };
        let before = 307 * 86_400 + after * 3_600; // 2010-11-04
        assert_like_model(&[minutes], "America/St_Johns", &exclude, &only, before, length * 60);
    }
}
