//! Dates that are added to or removed from the calendar of a job that has missed occurrences.

use std::time::Duration;

use super::fixture::*;
use crate::engine::{Event, Report};
use crate::job::{Job, Misfire};
use crate::ledger::{Change, JobEntry, Snapshot};
use crate::process::{Exit, TreeId};
use crate::run::Version;
use crate::test_records::without;

const DAY: Duration = Duration::from_secs(86_400);

/// A leader whose predecessor decided on the job up to yesterday.
fn taken_over(old: &Job, new: Job) -> Fixture {
    let jobs = [entry(old, at("03:00:00") - DAY, 3)].into();
    Fixture::leading("10:00:00", set([new]), Snapshot { jobs, ..Snapshot::default() })
}

#[test]
fn the_dates_of_coming_years_do_not_keep_a_new_leader_from_making_up_for_what_was_missed() {
    let daily = job("a", "0 3 * * *");
    let (old, new) = (without(&daily, "2026-12-25"), without(&daily, "2026-12-25\n2027-12-25"));
    let accepted = taken_over(&old, new).accept_all();
    assert_eq!(begun(&accepted), ["a.20261120T030000Z"]);
    assert!(skipped(&accepted).is_empty());
}

/// As without a calendar, somebody may have what was decided on decided on again.
#[test]
fn a_mark_that_was_set_back_by_hand_counts_with_a_calendar_too() {
    let daily = without(&job("a", "0 3 * * *"), "2026-11-21");
    let (name, mut set_back) = entry(&daily, at("03:00:00"), 3);
    let record = set_back.record.as_mut().expect("it was just made");
    (record.counted, record.last_scheduled) = (Some(at("03:00:00")), at("03:00:00") - DAY);
    let jobs = [(name, set_back)].into();
    let mut fixture = Fixture::leading("10:00:00", set([daily]), Snapshot { jobs, ..Snapshot::default() });
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T030000Z"]);
}

#[test]
fn a_day_that_was_left_out_and_is_not_any_more_does_not_fire_once_it_has_passed() {
    let daily = job("a", "0 3 * * *");
    let (old, new) = (without(&daily, "2026-11-20"), without(&daily, "2026-12-25"));
    let accepted = taken_over(&old, new.clone()).accept_all();
    assert!(begun(&accepted).is_empty());
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T03:00:00Z 2026-11-20T03:00:00Z 1"]);

    let mut fixture = taken_over(&old, old.clone());
    assert!(fixture.accept_all().is_empty());
    fixture.handle(Event::Loaded(set([new])));
    let accepted = fixture.accept_all();
    assert!(begun(&accepted).is_empty() && skipped(&accepted).is_empty(), "{accepted:?}");
}

/// The gaps for which an edit is reported, as `since until`.
fn edited(fixture: &Fixture) -> Vec<String> {
    let reports = fixture.reports().into_iter().filter_map(|report| match report {
        Report::Edited { job, since, until } => Some(format!("{job} {since} {until}")),
        _ => None,
    });
    reports.collect()
}

const SINCE_YESTERDAY: &str = "a 2026-11-19T03:00:00Z 2026-11-20T10:00:00Z";

/// The old calendar had it due, but a new leader knows the new one only.
#[test]
fn a_day_that_is_left_out_while_nobody_leads_is_told_of_though_nothing_is_recorded() {
    let daily = job("a", "0 3 * * *");
    let mut fixture = taken_over(&without(&daily, "2026-12-25"), without(&daily, "2026-11-20\n2026-12-25"));
    assert_eq!(edited(&fixture), [SINCE_YESTERDAY]);
    let accepted = fixture.accept_all();
    assert!(begun(&accepted).is_empty() && skipped(&accepted).is_empty(), "{accepted:?}");
    assert_eq!(edited(&fixture).len(), 1, "once");
}

#[test]
fn whatever_was_edited_while_nobody_led_is_told_of() {
    let daily = job("a", "0 3 * * *");
    for new in [without(&daily, "2026-11-21"), job("a", "0 4 1 * *"), Job { enabled: false, ..daily.clone() }] {
        let mut fixture = taken_over(&without(&daily, "2026-11-20"), new);
        fixture.accept_all();
        assert_eq!(edited(&fixture), [SINCE_YESTERDAY]);
    }
}

/// The leader that loads them knows both calendars, and records what the old one had due.
#[test]
fn what_a_leader_records_itself_is_not_told_of_as_an_edit() {
    let daily = job("a", "0 3 * * *");
    let (old, new) = (without(&daily, "2026-12-25"), without(&daily, "2026-11-21\n2026-12-25"));
    let mut unedited = taken_over(&old, old.clone());
    unedited.accept_all();
    assert!(edited(&unedited).is_empty());
    let (minutely, mut fixture, _) = making_up("2026-12-25");
    fixture.handle(Event::Loaded(set([without(&minutely, "2026-11-20")])));
    assert_eq!(skipped(&fixture.accept_all()).len(), 1);
    assert!(edited(&fixture).is_empty());

    // A reload and its record leave the next leader with that file nothing to tell.
    let mut fixture = Fixture::settled("10:00:00", vec![old]);
    fixture.handle(Event::Loaded(set([new.clone()])));
    let accepted = fixture.accept_all();
    let Some(Change::Advance { job, record, .. }) = accepted.last() else { panic!("{accepted:?}") };
    let entry = JobEntry { record: Some(record.clone()), version: Version(9) };
    let jobs = [(job.clone(), entry)].into();
    let next = Fixture::leading("10:00:30", set([new]), Snapshot { jobs, ..Snapshot::default() });
    assert!(edited(&next).is_empty());
}

/// A leader that makes up for three minutes, one after the other, and has begun the first.
fn making_up(dates: &str) -> (Job, Fixture, TreeId) {
    let mut minutely = job("a", "* * * * *");
    (minutely.misfire, minutely.misfire_window) = (Misfire::RunAll, Some(DAY));
    let old = without(&minutely, dates);
    let jobs = [entry(&old, at("09:57:00"), 3)].into();
    let mut fixture = Fixture::leading("10:00:30", set([old]), Snapshot { jobs, ..Snapshot::default() });
    let (changes, tree_ids) = fixture.start_all();
    assert_eq!(begun(&changes), ["a.20261120T095800Z"]);
    (minutely, fixture, tree_ids[0])
}

#[test]
fn a_reload_with_dates_to_come_drops_nothing_that_is_being_made_up_for() {
    let (minutely, mut fixture, tree_id) = making_up("2026-12-25");
    fixture.handle(Event::Loaded(set([without(&minutely, "2026-12-25\n2027-12-25")])));
    assert!(fixture.accept_all().is_empty(), "the record says all about the days near its mark");
    let tomorrow = without(&minutely, "2026-11-21\n2026-12-25");
    fixture.handle(Event::Loaded(set([tomorrow.clone()])));
    let accepted = fixture.accept_all();
    let [Change::Advance { record, skip: None, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(record.last_scheduled, at("09:58:00"));
    assert_eq!(record.schedule, Some(tomorrow.schedule_digest(at("09:58:00"))));
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T095900Z"]);
}

#[test]
fn a_reload_that_leaves_out_today_ends_what_is_being_made_up_for() {
    let (minutely, mut fixture, _) = making_up("2026-12-25");
    fixture.handle(Event::Loaded(set([without(&minutely, "2026-11-20")])));
    let accepted = fixture.accept_all();
    assert!(begun(&accepted).is_empty());
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T09:59:00Z 2026-11-20T10:00:00Z 2"]);
}

#[test]
fn an_added_date_takes_the_next_occurrence_out_of_the_agenda() {
    let daily = job("a", "0 3 * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![without(&daily, "2026-12-25")]);
    fixture.handle(Event::Loaded(set([without(&daily, "2026-11-21\n2026-12-25")])));
    fixture.accept_all();
    fixture.commands.clear();
    fixture.pass(17 * 3600);
    assert!(fixture.accept_all().is_empty());
    fixture.pass(24 * 3600);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261122T030000Z"]);
}
