//! Imported jobs are due when the entries were: compared minute by minute with a direct reading of crontab(5).

use cronkeeper_core::schedule::{Dst, Schedule};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use proptest::prelude::*;

use super::*;

const ZONE: &str = "Asia/Kathmandu";
const DAYS: i64 = 12;

/// A field's text, and the values that it matches. In the set, weekday 7 is 0.
#[derive(Clone, Debug)]
struct Part {
    text: String,
    set: Vec<i64>,
}

fn part(low: i64, high: i64, names: &'static [&'static str]) -> impl Strategy<Value = Part> {
    let word = move |value: i64, named: bool| {
        let name = usize::try_from(value - low).ok().and_then(|index| names.get(index)).filter(|_| named);
        name.map_or(value.to_string(), |name| (*name).to_owned())
    };
    let item =
        (0..4_u8, low..=high, low..=high, 1..=90_i64, any::<bool>()).prop_map(move |(kind, a, b, step, named)| {
            let (a, b) = (a.min(b), a.max(b));
            let stepped = |first: i64, last: i64| (first..=last).step_by(usize::try_from(step).expect("positive"));
            match kind {
                0 => (word(a, named), vec![a]),
                1 => (format!("{}-{}", word(a, named), word(b, named)), (a..=b).collect()),
                2 => (format!("{a}-{b}/{step}"), stepped(a, b).collect::<Vec<_>>()),
                _ => (format!("*/{step}"), stepped(low, high).collect()),
            }
        });
    let listed = prop::collection::vec(item, 1..4).prop_map(move |items| Part {
        text: items.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join(","),
        set: items
            .into_iter()
            .flat_map(|(_, set)| set)
            .map(|value| if high == 7 { value % 7 } else { value })
            .collect(),
    });
    prop_oneof![1 => Just(Part { text: "*".to_owned(), set: (low..=high).collect() }), 2 => listed]
}

fn fields() -> impl Strategy<Value = [Part; 5]> {
    let months = &["jan", "FEB", "mar", "apr", "May", "jun", "jul", "aug", "sep", "oct", "nov", "DEC"];
    let weekdays = &["sun", "Mon", "tue", "wed", "thu", "FRI", "sat"];
    let month =
        prop_oneof![3 => Just(Part { text: "*".to_owned(), set: (1..=12).collect() }), 1 => part(1, 12, months)];
    (part(0, 59, &[]), part(0, 23, &[]), part(1, 31, &[]), month, part(0, 7, weekdays)).prop_map(Into::into)
}

fn matches([minute, hour, day, month, weekday]: &[Part; 5], at: DateTime) -> bool {
    let has = |part: &Part, value: i8| part.set.contains(&i64::from(value));
    let (day_is, weekday_is) = (has(day, at.day()), has(weekday, at.weekday().to_sunday_zero_offset()));
    let is_day = if day.text.starts_with('*') || weekday.text.starts_with('*') {
        day_is && weekday_is
    } else {
        day_is || weekday_is
    };
    has(minute, at.minute()) && has(hour, at.hour()) && has(month, at.month()) && is_day
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_imported_job_is_due_when_the_entry_was(
        entries in prop::collection::vec(fields(), 20),
        start in 1_500_000_000_i64..2_000_000_000,
    ) {
        let zone = TimeZone::get(ZONE).expect("a zone");
        let start = Timestamp::from_second(start - start % 60).expect("in range");
        let minutes: Vec<(Timestamp, DateTime)> = (1..=DAYS * 1_440)
            .map(|minute| start + minute.minutes())
            .map(|at| (at, zone.to_datetime(at)))
            .collect();
        for (index, entry) in entries.iter().enumerate() {
            let text = entry.each_ref().map(|part| part.text.as_str()).join("\t ");
            let crontab = format!("{text}  job{index} x\n");
            let imported = import(crontab.as_bytes(), &Origin { zone: ZONE, ..origin(false) }).expect("a crontab");
            let jobs = valid(&imported.yaml);
            let expected: Vec<Timestamp> =
                minutes.iter().filter(|(_, local)| matches(entry, *local)).map(|(at, _)| *at).collect();
            let Some(job) = jobs.jobs.values().next() else {
                prop_assert_eq!(imported.notes.len(), 1, "{} was dropped silently", text);
                prop_assert!(expected.is_empty() && imported.notes[0].text.contains("never comes"), "{}", text);
                continue;
            };
            let last = minutes.last().expect("minutes").0;
            let found: Vec<Timestamp> = job.schedule().unwrap().occurrences(start, last).collect();
            prop_assert_eq!(found, expected, "{}", text);
        }
    }
}

#[test]
fn macros_are_due_when_crontab_5_says() {
    for (word, same) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
        ("@every_minute", "*/1 * * * *"),
    ] {
        let first = |text: &str| {
            let (_, jobs) = imported(&format!("{text} x\n"));
            let job = jobs.jobs.into_values().next().expect("a job");
            job.schedule().unwrap().occurrences(Timestamp::UNIX_EPOCH, Timestamp::MAX).take(100).collect::<Vec<_>>()
        };
        assert_eq!(first(word), first(same), "{word}");
    }
}

#[test]
fn a_range_of_weekdays_may_end_with_sunday() {
    for (range, days) in [
        ("sat-sun", "0 0 * * 0,6"),
        ("Fri-SUN", "0 0 * * 0,5,6"),
        ("6-0", "0 0 * * 0,6"),
        ("mon-sun", "0 0 * * 0-6"),
        ("7-0", "0 0 * * 0"),
        ("wed,sat-sun", "0 0 * * 0,3,6"),
    ] {
        let (imported, jobs) = imported(&format!("0 0 * * {range} x\n"));
        let job = jobs.jobs.values().next().unwrap_or_else(|| panic!("{range}: {}", imported.yaml));
        let other = Schedule::parse(&[days], "Europe/Berlin", Dst::Once, "x").unwrap();
        let first = |schedule: &Schedule| {
            schedule.occurrences(Timestamp::UNIX_EPOCH, Timestamp::MAX).take(20).collect::<Vec<_>>()
        };
        assert_eq!(first(job.schedule().unwrap()), first(&other), "{range}");
        assert!(imported.notes[0].text.contains("as in cronie since 2025"), "{:?}", imported.notes);
    }
}

#[test]
fn a_random_time_is_one_of_its_range_and_stays() {
    let (imported, jobs) = imported("10~19 3~3 * * * backup\n");
    let job = jobs.jobs.values().next().expect("a job");
    let due: Vec<_> = job
        .schedule()
        .unwrap()
        .occurrences(Timestamp::UNIX_EPOCH, Timestamp::MAX)
        .take(3)
        .map(|at| at.to_zoned(TimeZone::get("Europe/Berlin").expect("a zone")))
        .collect();
    assert!(due.iter().all(|at| at.hour() == 3 && (10..20).contains(&at.minute()) && at.minute() == due[0].minute()));
    assert_eq!(imported.notes.len(), 1);
}
