//! Days that depend on the month, compared with a model that walks the days of the month.

use std::collections::BTreeSet;

use jiff::civil::{Date, date};
use jiff::{Timestamp, ToSpan};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Dst, Schedule};
use super::{at, schedule};

/// The first dates of an expression for midnight in UTC.
fn dates(text: &str, after: &str, count: usize) -> Vec<String> {
    let schedule = schedule(text, "UTC");
    let found = schedule.occurrences(at(after), Timestamp::MAX).take(count);
    found.map(|at| at.to_string().trim_end_matches("T00:00:00Z").to_owned()).collect()
}

#[test]
fn the_last_days_of_the_month_are_found() {
    assert_eq!(dates("0 0 L * *", "2027-01-15T00:00:00Z", 3), ["2027-01-31", "2027-02-28", "2027-03-31"]);
    assert_eq!(dates("0 0 L-3 2 *", "2027-01-15T00:00:00Z", 2), ["2027-02-25", "2028-02-26"]);
    assert_eq!(dates("0 0 L-30 * *", "2027-01-15T00:00:00Z", 3), ["2027-03-01", "2027-05-01", "2027-07-01"]);
    assert_eq!(dates("0 0 1,15,L 11 *", "2026-11-02T00:00:00Z", 3), ["2026-11-15", "2026-11-30", "2027-11-01"]);
    // 31 January is a Sunday, 28 February too.
    assert_eq!(dates("0 0 lw * *", "2027-01-15T00:00:00Z", 3), ["2027-01-29", "2027-02-26", "2027-03-31"]);
}

#[test]
fn the_nearest_weekday_stays_in_its_month() {
    // Saturday 1 May, Sunday 2 May; Sunday 31 January; Saturday 15 and Sunday 16 May.
    assert_eq!(dates("0 0 1W 5 *", "2027-01-01T00:00:00Z", 1), ["2027-05-03"]);
    assert_eq!(dates("0 0 2W 5 *", "2027-01-01T00:00:00Z", 1), ["2027-05-03"]);
    assert_eq!(dates("0 0 31W * *", "2027-01-01T00:00:00Z", 3), ["2027-01-29", "2027-03-31", "2027-05-31"]);
    assert_eq!(dates("0 0 15W,16w 5 *", "2027-01-01T00:00:00Z", 2), ["2027-05-14", "2027-05-17"]);
}

#[test]
fn a_weekday_of_the_month_is_counted_from_either_end() {
    assert_eq!(dates("0 0 * * mon#2", "2026-11-01T00:00:00Z", 2), ["2026-11-09", "2026-12-14"]);
    assert_eq!(dates("0 0 * * 7#1", "2026-11-01T00:00:00Z", 1), ["2026-12-06"]);
    assert_eq!(dates("0 0 * * Monday#5", "2026-11-01T00:00:00Z", 3), ["2026-11-30", "2027-03-29", "2027-05-31"]);
    assert_eq!(dates("0 0 * * friL,0L", "2026-11-01T00:00:00Z", 3), ["2026-11-27", "2026-11-29", "2026-12-25"]);
    assert_eq!(dates("0 0 * 2 thu#5", "2026-11-01T00:00:00Z", 2), ["2052-02-29", "2080-02-29"]);
}

#[test]
fn the_day_fields_are_combined_as_in_crontab() {
    // Either day field suffices unless one of them begins with `*`.
    assert_eq!(dates("0 0 L * mon#1", "2026-11-02T00:00:00Z", 3), ["2026-11-30", "2026-12-07", "2026-12-31"]);
    assert_eq!(dates("0 0 */1 * friL", "2026-11-02T00:00:00Z", 2), ["2026-11-27", "2026-12-25"]);
    assert_eq!(dates("0 0 */31,L * sat", "2026-11-02T00:00:00Z", 2), ["2027-05-01", "2027-07-31"]);
}

#[test]
fn equal_meanings_have_one_canonical_text() {
    let canonical = |text: &str| schedule(text, "UTC").canonical();
    assert_eq!(canonical("0 0 L,15,lw * *"), canonical("0 0 LW,15,L,L * *"));
    assert_eq!(canonical("0 0 L,15 * *"), "0 0 0 15,L * * * | UTC | once");
    assert_eq!(canonical("0 0 * * Sun#2,fRiL"), "0 0 0 * * 0#2,5L * | UTC | once");
    assert_eq!(canonical("0 0 * * 7#2,5L"), canonical("0 0 * * 0#2,FridayL"));
    assert_eq!(canonical("0 0 *,L * *"), canonical("0 0 * * *"));
    assert_ne!(canonical("0 0 L * *"), canonical("0 0 L-1 * *"));
}

#[test]
fn a_rule_that_never_holds_is_refused() {
    for text in ["0 0 30W 2 *", "0 0 L-30 2,4 *", "0 0 0 * 2 mon#5 2027"] {
        assert!(Schedule::parse(&[text], "UTC", Dst::Once, "job").is_err(), "{text}");
    }
}

/// A gap in the night of the last Sunday of March, an overlap in that of the last Sunday of October.
#[test]
fn shifts_of_the_clock_treat_these_days_like_others() {
    let next = |text: &str, after: &str| schedule(text, "Europe/Berlin").next_after(at(after));
    assert_eq!(next("30 2 * 3 sunL", "2027-01-01T00:00:00Z"), Some(at("2027-03-28T01:00:00Z")));
    let overlap = schedule("30 2 * 10 sunL", "Europe/Berlin");
    assert_eq!(overlap.count(at("2026-10-01T00:00:00Z"), at("2026-11-01T00:00:00Z")), 1);
}

/// What a rule says, without arithmetic on the month.
#[derive(Clone, Copy, Debug)]
enum Model {
    Day(i8),
    BeforeLast(i8),
    LastWorkday,
    Nearest(i8),
    Weekday(i8),
    Nth(i8, usize),
    LastOf(i8),
}

impl Model {
    fn text(self) -> String {
        match self {
            Self::Day(day) => day.to_string(),
            Self::BeforeLast(0) => "L".to_owned(),
            Self::BeforeLast(days) => format!("L-{days}"),
            Self::LastWorkday => "LW".to_owned(),
            Self::Nearest(day) => format!("{day}W"),
            Self::Weekday(weekday) => weekday.to_string(),
            Self::Nth(weekday, count) => format!("{weekday}#{count}"),
            Self::LastOf(weekday) => format!("{weekday}L"),
        }
    }

    fn holds(self, day: Date) -> bool {
        let month: Vec<Date> =
            day.first_of_month().series(1.day()).take_while(|one| one.month() == day.month()).collect();
        let workdays: Vec<Date> = month.iter().copied().filter(|day| !matches!(weekday(*day), 0 | 6)).collect();
        let same = || month.iter().filter(|other| weekday(**other) == weekday(day));
        match self {
            Self::Day(wanted) => day.day() == wanted,
            Self::BeforeLast(days) => month.iter().rev().nth(usize::try_from(days).unwrap()) == Some(&day),
            Self::LastWorkday => workdays.last() == Some(&day),
            Self::Nearest(wanted) => {
                let nearest = workdays.iter().min_by_key(|other| other.day().abs_diff(wanted));
                month.len() >= usize::try_from(wanted).unwrap() && nearest == Some(&day)
            }
            Self::Weekday(wanted) => weekday(day) == wanted % 7,
            Self::Nth(wanted, count) => weekday(day) == wanted % 7 && same().nth(count - 1) == Some(&day),
            Self::LastOf(wanted) => weekday(day) == wanted % 7 && same().next_back() == Some(&day),
        }
    }
}

fn weekday(day: Date) -> i8 {
    day.weekday().to_sunday_zero_offset()
}

fn of_month() -> impl Strategy<Value = Model> {
    let rules = prop_oneof![
        (1..=31_i8).prop_map(Model::Day),
        (0..=30_i8).prop_map(Model::BeforeLast),
        Just(Model::LastWorkday),
        (1..=31_i8).prop_map(Model::Nearest),
    ];
    rules.boxed()
}

fn of_week() -> impl Strategy<Value = Model> {
    prop_oneof![
        (0..=7_i8).prop_map(Model::Weekday),
        (0..=7_i8, 1..=5_usize).prop_map(|(weekday, count)| Model::Nth(weekday, count)),
        (0..=7_i8).prop_map(Model::LastOf),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_day_differs_from_the_model(
        days in vec(of_month(), 0..4),
        weekdays in vec(of_week(), 0..4),
        year in 1971..2098_i16,
        month in 1..=12_i8,
    ) {
        let field = |rules: &[Model]| match rules {
            [] => "*".to_owned(),
            rules => rules.iter().map(|rule| rule.text()).collect::<Vec<_>>().join(","),
        };
        let text = format!("0 12 {} * {}", field(&days), field(&weekdays));
        let schedule = schedule(&text, "UTC");
        let any = |rules: &[Model], day: Date| rules.iter().any(|rule| rule.holds(day));
        let holds = |day: &Date| match (days.as_slice(), weekdays.as_slice()) {
            ([], []) => true,
            (days, []) => any(days, *day),
            ([], weekdays) => any(weekdays, *day),
            (days, weekdays) => any(days, *day) || any(weekdays, *day),
        };
        let noon = |day: Date| day.at(12, 0, 0, 0).in_tz("UTC").expect("valid").timestamp();
        let start = date(year, month, 1);
        let (after, until) = (noon(start) - 24.hours(), noon(start + 14.months()));
        let expected: BTreeSet<Timestamp> =
            start.series(1.day()).take_while(|day| noon(*day) <= until).filter(holds).map(noon).collect();
        let found: BTreeSet<Timestamp> = schedule.occurrences(after, until).collect();
        prop_assert_eq!(&found, &expected, "{}", text);
        prop_assert_eq!(schedule.count(after, until), expected.len() as u64, "{}", text);
        prop_assert_eq!(schedule.last_before_or_at(until, after), expected.last().copied(), "{}", text);
    }
}
