//! Starts that are delayed by the job's splay.

use std::time::Duration;

use super::fixture::*;
use crate::engine::runs::keep_until;
use crate::engine::{Event, Report};
use crate::job::{Job, Misfire, Splay};
use crate::ledger::{Change, Snapshot};

const SPLAY: Duration = Duration::from_secs(600);

fn splayed(schedule: &str) -> (Job, Duration) {
    let mut job = job("report", schedule);
    job.splay = Splay::new(SPLAY, "report");
    let delay = job.splay.delay();
    assert!(delay > Duration::from_secs(10), "{delay:?}");
    (job, delay)
}

fn marks(changes: &[Change]) -> Vec<jiff::Timestamp> {
    let marks = changes.iter().filter_map(|change| match change {
        Change::Advance { record, .. } | Change::Begin { record, .. } => Some(record.last_scheduled),
        _ => None,
    });
    marks.collect()
}

#[test]
fn the_start_is_put_off_and_the_run_keeps_the_schedules_instant() {
    let (job, delay) = splayed("0 10 * * *");
    let mut fixture = Fixture::settled("09:59:59", vec![job]);
    let due = at("10:00:00") + delay;
    let wake = fixture.engine.wake(fixture.now).wall.expect("it is due some time");
    assert!(wake <= due && wake >= due - Duration::from_millis(100), "{wake} for {due}");
    fixture.pass(1);
    fixture.pass(delay.as_secs());
    assert!(fixture.accept_all().is_empty());
    fixture.pass(1);
    let accepted = fixture.accept_all();
    assert_eq!(begun(&accepted), ["report.20261120T100000Z"]);
    assert_eq!(marks(&accepted), [at("10:00:00")]);
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    let lateness = fixture.reports().into_iter().find_map(|report| match report {
        Report::Started { lateness, .. } => lateness,
        _ => None,
    });
    assert!(lateness.is_some_and(|lateness| lateness < Duration::from_secs(1)), "{lateness:?}");
}

#[test]
fn an_occurrence_is_missed_only_after_its_delayed_instant() {
    let (mut job, delay) = splayed("0 10 * * *");
    job.misfire = Misfire::Skip;
    let taken_over = |late: Duration| {
        let entries = [entry(&job, at("09:00:00"), 3)].into();
        let mut fixture = Fixture::new("10:00:00", set([job.clone()]));
        fixture.now.wall += delay + late;
        fixture.join();
        fixture.elect(9, Snapshot { jobs: entries, ..Snapshot::default() });
        fixture.accept_all()
    };
    assert_eq!(begun(&taken_over(Duration::from_secs(1))), ["report.20261120T100000Z"]);
    let accepted = taken_over(Duration::from_millis(1001));
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T10:00:00Z 2026-11-20T10:00:00Z 1"]);
}

/// A splay that is longer than the period shifts all occurrences: each is run, in order, at its own delayed instant.
#[test]
fn a_splay_beyond_the_next_occurrence_only_shifts() {
    let (mut job, delay) = splayed("* * * * *");
    job.overlap = crate::job::Overlap::Allow;
    let mut fixture = Fixture::settled("09:59:59", vec![job]);
    fixture.now.wall += delay;
    let mut all = Vec::new();
    for _ in 0..3 {
        fixture.pass(60);
        all.extend(begun(&fixture.accept_all()));
    }
    assert_eq!(all.len(), 3, "{all:?}");
    assert!(all.is_sorted(), "{all:?}");
    assert_eq!(all[0], "report.20261120T100000Z");
}

#[test]
fn another_splay_is_another_schedule_and_counts_from_now() {
    let (job, _) = splayed("0 10 * * *");
    let mut fixture = Fixture::settled("09:00:00", vec![job.clone()]);
    fixture.pass(3601);
    let mut other = job.clone();
    other.splay = Splay::default();
    let digest = |job: &crate::job::Job| job.schedule_digest(at("09:00:00"));
    assert_ne!(digest(&job), digest(&other));
    fixture.handle(Event::Loaded(set([other])));
    let accepted = fixture.accept_all();
    assert!(begun(&accepted).is_empty());
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T10:00:00Z 2026-11-20T10:00:00Z 1"]);
}

#[test]
fn a_cut_off_run_may_go_on_until_the_next_start() {
    let (job, delay) = splayed("0 * * * *");
    let keep_until = keep_until(&job, &job, at("10:00:00"), at("10:00:00") + delay);
    assert_eq!(keep_until, Some(at("11:00:00") + delay - Duration::from_secs(1)));
}
