//! Schedules compared with a brute-force reading of crontab(5).
//!
//! The reference checks every minute of real time; it needs neither a parser nor a search. A case is a window of three
//! days, mostly around a shift of a zone's clock, and thirty schedules. Each field is generated together with its set
//! of values. The reference asks jiff for each local time whether it occurs twice; the schedule itself never uses this
//! function.

use std::collections::BTreeSet;
use std::fmt;

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{Dst, Schedule};

const ZONES: [&str; 16] = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Atlantic/Azores",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Antarctica/Troll",
];

const MINUTES: usize = 3 * 1_440;
const SCHEDULES: usize = 30;
const COMPARED: usize = 40;

proptest! {
    // 400 windows of 30 schedules make 12,000 schedules of one or two expressions.
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_differs_from_the_brute_force_reference(window in window(), cases in vec(case(), SCHEDULES)) {
        let minutes = window.minutes();
        for case in &cases {
            compare(&window, &minutes, case)?;
        }
    }
}

fn compare(window: &Window, minutes: &[Minute], case: &Case) -> Result<(), TestCaseError> {
    let texts: Vec<String> = case.expressions.iter().map(|one| one.text(window.year)).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let Ok(schedule) = Schedule::parse(&texts, window.zone, case.dst, "job") else {
        // The generator makes only well-formed expressions, so the only error left is one that never occurs.
        let impossible = case.expressions.iter().any(|one| one.is_impossible(window.year));
        prop_assert!(impossible, "{texts:?} refused in {}", window.zone);
        return Ok(());
    };
    let (start, end) = (minutes[0].second, minutes[0].second + 60 * MINUTES as i64 - 1);
    let probe = case.probe.index(MINUTES);
    let after = start + 60 * probe as i64 + case.second - 1;

    let expected = merged(case.expressions.iter().map(|one| one.all(minutes, window, case.dst, probe)), after);
    let found: Vec<i64> = schedule.occurrences(instant(after), instant(end)).take(COMPARED).map(seconds).collect();
    prop_assert_eq!(&found, &expected, "{:?} {:?} {} after {}", texts, case.dst, window.zone, instant(after));

    let last = case.expressions.iter().filter_map(|one| one.last(minutes, window, case.dst, after)).max();
    let found = schedule.last_before_or_at(instant(after), instant(start)).map(seconds);
    prop_assert_eq!(
        found,
        last.filter(|last| *last > start),
        "{:?} {:?} {} last at {}",
        texts,
        case.dst,
        window.zone,
        instant(after)
    );
    Ok(())
}

fn merged(lists: impl Iterator<Item = impl Iterator<Item = i64>>, after: i64) -> Vec<i64> {
    // The first n occurrences of the union are among the first n of each list.
    let all: BTreeSet<i64> = lists.flat_map(|list| list.filter(|at| *at > after).take(COMPARED)).collect();
    all.into_iter().take(COMPARED).collect()
}

fn instant(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

fn seconds(at: Timestamp) -> i64 {
    at.as_second()
}

/// Three days in a zone.
struct Window {
    zone: &'static str,
    time_zone: TimeZone,
    start: Timestamp,
    /// The local year in which it starts.
    year: i16,
}

/// One minute of real time and its local time.
struct Minute {
    second: i64,
    local: DateTime,
    offset: i32,
}

impl Window {
    fn minutes(&self) -> Vec<Minute> {
        let minute = |index: usize| {
            let at = self.start + (index as i64).minutes();
            let offset = self.time_zone.to_offset(at);
            Minute { second: at.as_second(), local: offset.to_datetime(at), offset: offset.seconds() }
        };
        (0..MINUTES).map(minute).collect()
    }

    /// True if this local time has occurred before, at an earlier offset.
    fn is_second_pass(&self, minute: &Minute) -> bool {
        match self.time_zone.to_ambiguous_timestamp(minute.local).offset() {
            AmbiguousOffset::Fold { after, .. } => after.seconds() == minute.offset,
            _ => false,
        }
    }
}

/// Without the zone's table, which is very long.
impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "three days from {} in {}", self.start, self.zone)
    }
}

fn window() -> impl Strategy<Value = Window> {
    let zone = proptest::sample::select(&ZONES[..]);
    let begin = 157_766_400_i64..4_070_908_800; // 1975 to 2099
    (zone, begin, proptest::bool::weighted(0.8), 1..2 * 1_440_i64).prop_map(|(zone, begin, at_shift, before)| {
        let time_zone = TimeZone::get(zone).expect("a zone");
        let begin = instant(begin - begin % 60);
        // Some entries of the database do not change the offset and may not even be at the start of a minute.
        let is_shift = |at: &Timestamp| time_zone.to_offset(*at) != time_zone.to_offset(*at - 1.second());
        let shift = time_zone.following(begin).take(8).map(|entry| entry.timestamp()).find(is_shift);
        let start = shift.filter(|_| at_shift).unwrap_or(begin) - before.minutes();
        let year = time_zone.to_datetime(start).year();
        Window { zone, time_zone, start, year }
    })
}

#[derive(Clone, Debug)]
struct Case {
    expressions: Vec<ReferenceExpression>,
    dst: Dst,
    probe: proptest::sample::Index,
    second: i64,
}

fn case() -> impl Strategy<Value = Case> {
    let dst = proptest::sample::select(vec![Dst::Once, Dst::Skip, Dst::Twice]);
    let expressions = prop_oneof![4 => vec(reference_expression(), 1), 1 => vec(reference_expression(), 2)];
    (expressions, dst, any::<proptest::sample::Index>(), 0..60_i64).prop_map(|(expressions, dst, probe, second)| Case {
        expressions,
        dst,
        probe,
        second,
    })
}

/// A field's text, its values as bits, and whether it begins with `*`.
#[derive(Clone, Debug)]
struct Part {
    text: String,
    set: u64,
    wild: bool,
}

fn bits(values: impl IntoIterator<Item = i64>) -> u64 {
    values.into_iter().fold(0, |bits, value| bits | 1 << value)
}

impl Part {
    fn star(min: i64, max: i64) -> Self {
        Self { text: "*".to_owned(), set: bits(min..=max), wild: true }
    }

    fn first(&self) -> i8 {
        i8::try_from(self.set.trailing_zeros()).expect("no field is empty")
    }
}

/// An expression with its values, for the brute-force reference.
#[derive(Clone, Debug)]
struct ReferenceExpression {
    second: Option<Part>,
    minute: Part,
    hour: Part,
    day: Part,
    month: Part,
    weekday: Part,
    /// The range of a seventh field: years before and after the window's year.
    years: Option<(i16, i16)>,
}

impl ReferenceExpression {
    fn text(&self, year: i16) -> String {
        let Self { minute, hour, day, month, weekday, .. } = self;
        let five = [minute, hour, day, month, weekday].map(|part| part.text.as_str()).join(" ");
        match (&self.second, self.years) {
            (Some(second), Some((before, behind))) => {
                format!("{} {five} {}-{}", second.text, year - before, (year + behind).min(2100))
            }
            (Some(second), None) => format!("{} {five}", second.text),
            (None, _) => five,
        }
    }

    fn matches(&self, local: DateTime, year: i16) -> bool {
        let has = |part: &Part, value: i8| part.set >> value & 1 == 1;
        // Rejects most minutes before the more expensive calendar functions.
        if !(has(&self.minute, local.minute()) && has(&self.hour, local.hour()) && has(&self.month, local.month())) {
            return false;
        }
        let day = has(&self.day, local.day());
        let weekday = has(&self.weekday, local.weekday().to_sunday_zero_offset());
        // crontab(5): "If both fields are restricted (i.e., do not contain the "*" character), the command
        // will be run when either field matches the current time."
        let is_day = if self.day.wild || self.weekday.wild { day && weekday } else { day || weekday };
        let years = if self.second.is_some() { self.years } else { None };
        is_day && years.is_none_or(|(before, behind)| (year - before..=year + behind).contains(&local.year()))
    }

    /// The occurrences within one minute of real time, in order.
    fn in_minute(&self, minutes: &[Minute], window: &Window, dst: Dst, index: usize) -> Vec<i64> {
        // cron(8): "Only jobs that run at a particular time (not specified as @hourly, nor with '*' in the
        // hour or minute specifier) are affected."
        let fixed = !self.minute.wild && !self.hour.wild;
        let (minute, year) = (&minutes[index], window.year);
        let made_up = fixed && dst != Dst::Skip && index > 0 && self.is_in_gap(&minutes[index - 1], minute, year);
        // cron(8): "those jobs that fall into the repeated time will not be re-run".
        let first_only = dst == Dst::Skip || (fixed && dst == Dst::Once);
        let matches = self.matches(minute.local, year) && !(first_only && window.is_second_pass(minute));
        if !made_up && !matches {
            return Vec::new();
        }
        let named = if matches { self.second.as_ref().map_or(1, |part| part.set) } else { 0 };
        let seconds = named | u64::from(made_up);
        (0..60).filter(|second| seconds >> second & 1 == 1).map(|second| minute.second + second).collect()
    }

    /// cron(8): "If the time has moved forwards, those jobs which would have run in the time that was skipped will be
    /// run soon after the change."
    fn is_in_gap(&self, before: &Minute, behind: &Minute, year: i16) -> bool {
        if behind.offset <= before.offset {
            return false;
        }
        let mut skipped = before.local + 1.minute();
        while skipped < behind.local {
            if self.matches(skipped, year) {
                return true;
            }
            skipped += 1.minute();
        }
        false
    }

    /// All occurrences in order, from the minute `from` on.
    fn all<'a>(
        &'a self,
        minutes: &'a [Minute],
        window: &'a Window,
        dst: Dst,
        from: usize,
    ) -> impl Iterator<Item = i64> + 'a {
        (from..MINUTES).flat_map(move |index| self.in_minute(minutes, window, dst, index))
    }

    fn last(&self, minutes: &[Minute], window: &Window, dst: Dst, at: i64) -> Option<i64> {
        let reached = usize::try_from((at - minutes[0].second).div_euclid(60)).ok()?;
        let in_minute = |index| self.in_minute(minutes, window, dst, index);
        (0..=reached).rev().find_map(|index| in_minute(index).into_iter().rfind(|second| *second <= at))
    }

    /// True if no date of the calendar matches.
    fn is_impossible(&self, year: i16) -> bool {
        let first = jiff::civil::date(1970, 1, 1);
        let days = first.series(1.day()).take_while(|day| day.year() <= 2100);
        let time = jiff::civil::time(self.hour.first(), self.minute.first(), 0, 0);
        !days.map(|day| day.to_datetime(time)).any(|local| self.matches(local, year))
    }
}

fn reference_expression() -> impl Strategy<Value = ReferenceExpression> {
    let second = proptest::option::weighted(0.3, part(0, 59, &[]));
    let years = proptest::option::weighted(0.5, (0..3_i16, 0..3_i16));
    let weekdays = &["sun", "Mon", "TUE", "wed", "thursday", "fri", "Saturday"];
    let months = &["jan", "FEB", "march", "apr", "May", "jun", "jul", "aug", "september", "oct", "nov", "dec"];
    let month = prop_oneof![3 => Just(Part::star(1, 12)), 1 => part(1, 12, months)];
    (second, part(0, 59, &[]), part(0, 23, &[]), part(1, 31, &[]), month, part(0, 6, weekdays), years).prop_map(
        |(second, minute, hour, day, month, weekday, years)| ReferenceExpression {
            second,
            minute,
            hour,
            day,
            month,
            weekday,
            years,
        },
    )
}

/// A field from `min` to `max`. The maximum of a weekday is 6; 7 may be written for 0.
fn part(min: i64, max: i64, names: &'static [&'static str]) -> impl Strategy<Value = Part> {
    let listed = vec(item(min, max, names), 1..4).prop_map(|items| Part {
        wild: items[0].0.starts_with('*'),
        text: items.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(","),
        set: bits(items.into_iter().flat_map(|(_, set)| set)),
    });
    prop_oneof![2 => Just(Part::star(min, max)), 3 => listed]
}

fn item(min: i64, max: i64, names: &'static [&'static str]) -> impl Strategy<Value = (String, Vec<i64>)> {
    let is_week = max == 6;
    let written_max = if is_week { 7 } else { max };
    let word = move |value: i64, named: bool| match usize::try_from(value - min).ok().and_then(|index| names.get(index))
    {
        Some(name) if named => (*name).to_owned(),
        _ => value.to_string(),
    };
    let step = proptest::option::of(1..=(max - min + 1));
    let values = (min..=written_max, min..=written_max);
    (0..8_u8, values, step, any::<bool>()).prop_map(move |(kind, (first, last), step, named)| {
        let (base, mut values) = match kind {
            0 => ("*".to_owned(), (min..=max).collect::<Vec<_>>()),
            1..=4 if step.is_none() => (word(first, named), vec![first]),
            // A single value with a step runs to the end. Sunday, even if written as 7, is the first day of the week.
            1..=4 => (word(first, named), (if is_week { first % 7 } else { first }..=max).collect()),
            _ if first <= last => (format!("{}-{}", word(first, named), word(last, named)), (first..=last).collect()),
            _ => (format!("{}-{}", word(first, named), word(last, named)), around(first, last, min, max)),
        };
        if is_week {
            values.iter_mut().for_each(|value| *value %= 7);
        }
        let picked = values.into_iter().step_by(usize::try_from(step.unwrap_or(1)).expect("positive")).collect();
        (step.map_or(base.clone(), |step| format!("{base}/{step}")), picked)
    })
}

/// The values from `first` to `last`, wrapping at the end of the field.
fn around(first: i64, last: i64, min: i64, max: i64) -> Vec<i64> {
    let mut values = vec![];
    let mut value = if first > max { min } else { first };
    loop {
        values.push(value);
        if value == last {
            return values;
        }
        value = if value == max { min } else { value + 1 };
    }
}
