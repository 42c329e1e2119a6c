//! Clocks that are set, and clocks that disagree.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::fixture::*;
use crate::clock::server::ServerTime;
use crate::engine::{AlarmNews, Command, Event, Report};
use crate::job::{AlarmLimits, Job, Misfire};
use crate::ledger::{JobEntry, Snapshot};
use crate::process::Exit;
use crate::run::{JobRecord, Nonce, Version};
use crate::{election, ledger};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);

impl Fixture {
    /// Reads the service's clock.
    fn read(&mut self, server: Timestamp) {
        let up = self.now.up;
        let time = ServerTime::new(server.as_millisecond(), up, up).unwrap();
        self.handle(Event::Election(election::Event::Time(time)));
    }

    fn set_clock(&mut self, by: SignedDuration) {
        self.now.wall += by;
        self.handle(Event::Tick);
    }

    /// Accepts and ends all begun runs, and returns them.
    fn run_all(&mut self) -> Vec<String> {
        let begun = begun(&self.accept_all());
        for start in self.starts() {
            self.started(start.tree_id);
            self.ended(start.tree_id, Exit::Code(0), None);
        }
        self.accept_all();
        begun
    }

    fn clock_reports(&mut self) -> Vec<String> {
        let reported = self.reports().into_iter().filter_map(|report| match report {
            Report::ClockStepped { by } => Some(format!("stepped {}", by.as_millis())),
            Report::ClockSkewed { by, holds } => {
                Some(format!("skewed {}{}", by.as_secs(), if holds { " holds" } else { "" }))
            }
            _ => None,
        });
        let reported = reported.collect();
        self.commands.clear();
        reported
    }
}

#[test]
fn a_clock_set_back_repeats_nothing() {
    let mut fixture = Fixture::settled("10:00:30", vec![job("a", "* * * * *")]);
    fixture.pass(30);
    assert_eq!(fixture.run_all(), ["a.20261120T100100Z"]);
    fixture.set_clock(-HOUR);
    for _ in 0..59 {
        fixture.pass(60);
        assert!(fixture.run_all().is_empty(), "at {}", fixture.now.wall);
    }
    fixture.pass(120);
    assert_eq!(fixture.run_all(), ["a.20261120T100200Z"]);
}

#[test]
fn a_clock_set_forwards_settles_what_it_passed_and_goes_on() {
    let mut fixture = Fixture::settled("10:00:30", vec![job("a", "* * * * *")]);
    fixture.set_clock(HOUR);
    let accepted = fixture.accept_all();
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T10:01:00Z 2026-11-20T10:59:00Z 59"]);
    assert_eq!(begun(&accepted), ["a.20261120T110000Z"]);
}

#[test]
fn a_step_is_reported_once_and_the_passing_of_time_is_none() {
    let mut fixture = Fixture::settled("10:00:30", vec![]);
    fixture.pass(86_400);
    assert!(fixture.clock_reports().is_empty());
    fixture.set_clock(SignedDuration::from_millis(999));
    assert!(fixture.clock_reports().is_empty());
    fixture.set_clock(SignedDuration::from_millis(-90_500));
    fixture.pass(10);
    assert_eq!(fixture.clock_reports(), ["stepped -90500"]);
}

#[test]
fn a_skew_is_reported_when_it_comes_changes_and_goes() {
    let mut fixture = Fixture::settled("10:00:30", vec![]);
    for (skew, reported) in [
        (900, vec![]),
        (1_800, vec!["skewed 1"]),
        (2_000, vec![]),
        (900, vec![]),
        (1_900, vec![]),
        (-30_000, vec!["skewed -30"]),
        (-31_000, vec![]),
        (100, vec!["skewed 0"]),
        (59_000, vec!["skewed 58"]),
        (61_500, vec!["skewed 61 holds"]),
        (62_500, vec![]),
        (0, vec!["skewed 0"]),
    ] {
        fixture.pass(60);
        fixture.read(fixture.now.wall - SignedDuration::from_millis(skew));
        assert_eq!(fixture.clock_reports(), reported, "at a skew of {skew} ms");
    }
}

/// An occurrence far ahead of the service's clock waits for that clock. It is not missed, and earlier ones are not
/// delayed.
#[test]
fn nothing_is_begun_more_than_a_minute_ahead_of_the_service() {
    let mut minutely = job("a", "* * * * *");
    minutely.misfire = Misfire::Skip;
    let mut fixture = Fixture::settled("10:00:30", vec![minutely]);
    fixture.read(at("10:00:30"));
    fixture.set_clock(HOUR);
    // The minute itself is jumped over like any other time.
    assert_eq!(skipped(&fixture.accept_all()), ["missed 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
    let wake = fixture.engine.wake(fixture.now).wall.unwrap();
    assert_eq!(wake, at("11:01:00"));
    for expected in ["a.20261120T100200Z", "a.20261120T100300Z"] {
        fixture.pass(29);
        assert!(fixture.run_all().is_empty());
        fixture.pass(1);
        assert_eq!(fixture.run_all(), [expected]);
        fixture.pass(30);
    }
    // The clock is corrected: the leader waits until the minute has passed again, and begins nothing twice.
    fixture.set_clock(-HOUR);
    fixture.pass(30);
    assert!(fixture.run_all().is_empty());
    fixture.pass(60);
    assert_eq!(fixture.run_all(), ["a.20261120T100400Z"]);
}

#[test]
fn a_service_whose_clock_is_ahead_holds_nothing_up() {
    let mut fixture = Fixture::settled("10:00:30", vec![job("a", "* * * * *")]);
    fixture.read(at("10:00:30") + HOUR);
    fixture.pass(30);
    assert_eq!(fixture.run_all(), ["a.20261120T100100Z"]);
}

#[test]
fn a_schedule_edited_while_the_clock_is_ahead_does_not_lose_the_time_between() {
    let mut fixture = Fixture::settled("10:00:30", vec![job("a", "0 0 * * *")]);
    fixture.read(at("10:00:30"));
    fixture.set_clock(HOUR);
    fixture.handle(Event::Loaded(set([job("a", "30 10 * * *")])));
    fixture.accept_all();
    fixture.read(at("10:00:30"));
    fixture.set_clock(-HOUR);
    for _ in 0..29 {
        fixture.pass(60);
        assert!(fixture.run_all().is_empty());
    }
    fixture.pass(30);
    assert_eq!(fixture.run_all(), ["a.20261120T103000Z"]);
}

fn found(mark: Timestamp, counted: Option<Timestamp>) -> Fixture {
    let hourly = job("a", "0 * * * *");
    let schedule = Some(hourly.schedule_digest(mark));
    let record = JobRecord { counted, schedule, ..JobRecord::new(mark, Nonce("1-1".into())) };
    let entry = JobEntry { record: Some(record), version: Version(4) };
    let jobs = [(hourly.name.clone(), entry)].into();
    Fixture::leading("10:30:00", set([hourly]), Snapshot { jobs, ..Snapshot::default() })
}

fn errors(fixture: &Fixture) -> Vec<bool> {
    fixture.engine.marks_ahead(fixture.now).map(|(_, ahead)| ahead.is_ignored).collect()
}

/// Every begin moves both mark and count, so an occurrence after the count was never begun.
#[test]
fn a_mark_that_no_leader_set_ahead_hides_nothing() {
    let year = SignedDuration::from_hours(24 * 365);
    let mut fixture = found(at("10:00:00") + year, Some(at("09:00:00")));
    assert_eq!(errors(&fixture), [true]);
    let reports = fixture.reports();
    assert!(reports.iter().any(|report| matches!(report, Report::MarkAhead { .. })), "{reports:?}");
    let accepted = fixture.accept_all();
    assert_eq!(begun(&accepted), ["a.20261120T100000Z"]);
    // The mark does not move back, and the record has the count beside it.
    let ledger::Change::Begin { record, .. } = accepted.last().unwrap() else { panic!("{accepted:?}") };
    assert_eq!((record.last_scheduled, record.counted), (at("10:00:00") + year, Some(at("10:00:00"))));
}

#[test]
fn a_mark_that_a_leader_set_ahead_stands_and_is_an_error() {
    for counted in [None, Some(at("10:00:00") + HOUR * 24)] {
        let mut fixture = found(at("10:00:00") + HOUR * 24, counted);
        assert_eq!(errors(&fixture), [false]);
        fixture.pass(3600);
        assert!(fixture.run_all().is_empty());
        fixture.set_clock(HOUR * 24);
        assert!(errors(&fixture).is_empty());
        assert_eq!(fixture.run_all(), ["a.20261121T110000Z"]);
    }
}

#[test]
fn a_mark_within_a_minute_is_no_error() {
    let fixture = found(at("10:30:00") + MINUTE, None);
    assert!(errors(&fixture).is_empty());
}

/// A slow answer is imprecise: it does not replace a good reading before that is old.
#[test]
fn a_slow_answer_does_not_spoil_a_good_reading() {
    let mut fixture = Fixture::settled("10:00:30", vec![]);
    fixture.read(at("10:00:30"));
    let slow = |fixture: &mut Fixture| {
        let up = fixture.now.up;
        let stamp = fixture.now.wall.as_millisecond() - 100_000;
        let time = ServerTime::new(stamp, up - Duration::from_secs(5), up).unwrap();
        fixture.handle(Event::Election(election::Event::Time(time)));
    };
    slow(&mut fixture);
    assert_eq!(fixture.engine.skew(fixture.now), Some(SignedDuration::ZERO));
    fixture.pass(301);
    slow(&mut fixture);
    assert_eq!(fixture.engine.skew(fixture.now).map(|skew| skew.as_secs()), Some(94));
}

/// A job of every second, with the limits that follow the clock.
fn watched() -> Job {
    let [late_after, stale_after] = [5, 20].map(|seconds| Some(Duration::from_secs(seconds)));
    let alarms = AlarmLimits { late_after, stale_after, ..AlarmLimits::default() };
    Job { alarms, ..job("a", "* * * * * *") }
}

impl Fixture {
    /// A second passes, and everything that is due runs. Returns what was said of alarms and marks.
    fn second(&mut self) -> Vec<String> {
        self.pass(1);
        let mut said = self.said();
        self.run_all();
        said.extend(self.said());
        said
    }

    fn said(&mut self) -> Vec<String> {
        let said = self.reports().into_iter().filter_map(|report| match report {
            Report::Alarm(AlarmNews { alarm, raised, change, .. }) => {
                let since = raised.since.to_string().replace("2026-11-20T", "");
                Some(format!("{} {change:?} since {since}", alarm.as_str()))
            }
            Report::MarkAhead { ahead, .. } => Some(format!("mark {}", ahead.mark).replace("2026-11-20T", "")),
            _ => None,
        });
        let said = said.collect();
        self.commands.retain(|command| !matches!(command, Command::Report(_)));
        said
    }
}

/// Nothing is due before the mark, so nothing else says that the job does not run.
#[test]
fn a_clock_that_was_ahead_for_a_while_leaves_no_silence() {
    let mut fixture = Fixture::settled("10:00:00", vec![watched()]);
    fixture.succeeded("a", ledger::LastSuccess::Never);
    for _ in 0..3 {
        assert_eq!(fixture.second(), [""; 0]);
    }
    fixture.set_clock(MINUTE * 5);
    assert_eq!(fixture.second(), ["stale Raised since 10:00:03Z", "stale Ended since 10:00:03Z"], "as far as it knows");
    fixture.set_clock(-MINUTE * 5);
    assert_eq!(fixture.said(), ["mark 10:05:04Z"]);
    let mut said = Vec::new();
    for _ in 0..25 {
        said.extend(fixture.second());
    }
    assert_eq!(said, ["late Raised since 10:00:05Z", "stale Raised since 10:00:04Z"]);
    fixture.set_clock(MINUTE * 5 - SignedDuration::from_secs(20));
    let mut said = fixture.said();
    said.extend((0..2).flat_map(|_| fixture.second()));
    assert_eq!(said, ["late Ended since 10:00:05Z", "stale Ended since 10:00:04Z"]);
}

#[test]
fn an_alarm_that_was_raised_by_a_clock_ahead_ends_with_the_next_success() {
    let stale = AlarmLimits { stale_after: watched().alarms.stale_after, ..AlarmLimits::default() };
    let mut fixture = Fixture::settled("10:00:00", vec![Job { alarms: stale, ..job("a", "* * * * * *") }]);
    fixture.succeeded("a", ledger::LastSuccess::Never);
    fixture.set_clock(MINUTE * 5);
    fixture.second();
    fixture.pass(25);
    fixture.accept_all();
    assert_eq!(fixture.said(), ["stale Raised since 10:05:01Z"]);
    fixture.set_clock(-MINUTE * 5);
    let mut said = fixture.said();
    fixture.run_all();
    said.extend(fixture.said());
    assert!(said.contains(&"stale Ended since 10:05:01Z".to_owned()), "{said:?}");
}

#[test]
fn a_success_in_a_future_that_the_clocks_have_left_counts_as_none() {
    let mut fixture = Fixture::settled("10:00:00", vec![watched()]);
    let success = ledger::LastSuccess::At(at("10:00:00") + MINUTE * 5);
    fixture.succeeded("a", success);
    fixture.pass(10);
    fixture.accept_all();
    fixture.commands.clear();
    fixture.succeeded("a", success);
    fixture.pass(10);
    fixture.accept_all();
    assert!(fixture.said().contains(&"stale Raised since 10:00:00Z".to_owned()));
}
