//! Occurrences that nobody decided on in time.

use std::time::Duration;

use proptest::prelude::*;

use super::fixture::*;
use crate::engine::misfire;
use crate::engine::{Event, Report};
use crate::job::{Job, Misfire, Overlap};
use crate::ledger;
use crate::ledger::{Change, Commit, JobEntry, Snapshot};
use crate::process::Exit;
use crate::run::Version;

const HOUR: Duration = Duration::from_secs(3600);

fn taken_over(job: Job, mark: &str, now: &str) -> Fixture {
    let entries = [entry(&job, at(mark), 3)].into();
    Fixture::leading(now, set([job]), Snapshot { jobs: entries, ..Snapshot::default() })
}

/// Nothing begins for a record that somebody else has written, but nothing vanishes either.
#[test]
fn what_was_due_while_a_record_was_unreadable_is_recorded_since_the_newest_occurrence_that_is_known() {
    let led = |decided: Option<&str>| {
        let jobs = [(name("a"), JobEntry { record: None, version: Version(4) })].into();
        let decided = decided.map(|decided| (name("a"), at(decided))).into_iter().collect();
        let all = Job { misfire: Misfire::RunAll, misfire_window: Some(HOUR), ..job("a", "* * * * * *") };
        let mut fixture = Fixture::leading("10:00:09", set([all]), Snapshot { jobs, decided, ..Snapshot::default() });
        let mut changes = fixture.accept_all();
        fixture.pass(1);
        changes.extend(fixture.accept_all());
        (skipped(&changes), begun(&changes))
    };
    let (next, nothing) = (vec!["a.20261120T100010Z".to_owned()], Vec::<String>::new());
    let missed = vec!["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:09Z 9".to_owned()];
    assert_eq!(led(Some("10:00:00")), (missed, next.clone()));
    assert_eq!(led(Some("10:00:09")), (nothing.clone(), next.clone()));
    assert_eq!(led(Some("10:00:10")), (nothing.clone(), nothing.clone()), "it was begun ahead of its time");
    // No leader decides so far ahead.
    assert_eq!(led(Some("23:00:00")), (nothing.clone(), next.clone()));
    assert_eq!(led(None), (nothing, next));
}

/// A leader whose begin of 10:00:05, ahead of its time or not, is superseded by what somebody else has written. It reads
/// this at `read`. Returns what it begins and skips until 10:00:10.
fn overwritten(misfire: Misfire, begun_at: &str, read: &str, written: Option<JobEntry>) -> (Vec<String>, Vec<String>) {
    let five = Job { misfire, overlap: Overlap::Allow, ..job("a", "*/5 * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![five]);
    let until =
        |fixture: &mut Fixture, time: &str| fixture.pass_by(at(time).duration_since(fixture.now.wall).unsigned_abs());
    until(&mut fixture, begun_at);
    let commits = fixture.commits();
    assert!(matches!(&commits[..], [(_, Change::Begin { .. })]), "{commits:?}");
    fixture.answer(commits[0].0, Commit::Superseded);
    until(&mut fixture, read);
    fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), written, None)));
    let mut changes = fixture.accept_all();
    for time in ["10:00:05.5", "10:00:08", "10:00:10"] {
        until(&mut fixture, time);
        changes.extend(fixture.accept_all());
    }
    (begun(&changes), skipped(&changes))
}

/// Whatever somebody else writes into a job's record, each occurrence is begun or recorded as missed.
#[test]
fn an_occurrence_whose_begin_meets_what_somebody_else_has_written_is_begun_or_recorded() {
    let next = "a.20261120T100010Z".to_owned();
    let run = (vec!["a.20261120T100005Z".to_owned(), next.clone()], Vec::new());
    let missed = (vec![next], vec!["missed 2026-11-20T10:00:05Z 2026-11-20T10:00:05Z 1".to_owned()]);
    let unreadable = || Some(JobEntry { record: None, version: Version(7) });
    let marked = |mark: &str| {
        let (_, JobEntry { record, .. }) = entry(&job("a", "*/5 * * * * *"), at(mark), 7);
        Some(JobEntry { record, version: Version(7) })
    };
    for misfire in [Misfire::Skip, Misfire::RunOnce, Misfire::RunAll] {
        for begun_at in ["10:00:04.995", "10:00:05"] {
            let overwritten = |read, written| overwritten(misfire, begun_at, read, written);
            assert_eq!(overwritten("10:00:05.05", unreadable()), missed, "{misfire:?} {begun_at}");
            for mark in ["10:00:05", "10:00:07"] {
                assert_eq!(overwritten("10:00:05.05", marked(mark)), missed, "{misfire:?} {begun_at} {mark}");
            }
            // The record as it was.
            assert_eq!(overwritten("10:00:05.05", None), run, "{misfire:?} {begun_at}");
            assert_eq!(overwritten("10:00:05.05", marked("10:00:00")), run, "{misfire:?} {begun_at}");
        }
        let early = |written| overwritten(misfire, "10:00:04.995", "10:00:04.997", written);
        assert_eq!(early(unreadable()), run, "{misfire:?}");
        assert_eq!(early(marked("10:00:07")), missed, "{misfire:?}");
        assert_eq!(early(None), run, "{misfire:?}");
    }
}

/// The leader counts a record that cannot be read from now, but before it has written that, somebody else writes again.
#[test]
fn what_passed_while_a_record_was_unreadable_is_recorded_whatever_is_written_before_the_leader_writes() {
    let tick = || Job { misfire: Misfire::Skip, ..job("a", "* * * * * *") };
    let unreadable = |version| JobEntry { record: None, version: Version(version) };
    let (_, repaired) = entry(&tick(), at("10:00:00"), 8);
    for written in [repaired, unreadable(8)] {
        let mut fixture = Fixture::settled("10:00:00", vec![tick()]);
        fixture.pass(1);
        let commits = fixture.commits();
        fixture.answer(commits[0].0, Commit::Superseded);
        fixture.pass(3);
        fixture.commands.clear();
        fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(unreadable(7)), None)));
        let commits = fixture.commits();
        assert!(matches!(&commits[..], [(_, Change::Advance { skip: Some(_), .. })]), "{commits:?}");
        fixture.commands.clear();
        fixture.answer(commits[0].0, Commit::Superseded);
        fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(written), None)));
        let mut changes = fixture.accept_all();
        fixture.handle(Event::Tick);
        changes.extend(fixture.accept_all());
        let passed: u64 = changes
            .iter()
            .map(|change| match change {
                Change::Advance { skip: Some(skip), .. } => skip.skip.count,
                Change::Begin { .. } => 1,
                _ => 0,
            })
            .sum();
        assert_eq!(passed, 4, "{changes:?}");
    }
}

#[test]
fn run_once_runs_the_newest_and_records_the_others() {
    let mut hourly = job("a", "0 * * * *");
    hourly.misfire_window = Some(24 * HOUR);
    let accepted = taken_over(hourly, "05:00:00", "10:20:00").accept_all();
    assert_eq!(begun(&accepted), ["a.20261120T100000Z"]);
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T06:00:00Z 2026-11-20T09:00:00Z 4"]);
}

#[test]
fn what_is_older_than_the_window_is_missed() {
    let mut daily = job("a", "30 2 * * *");
    daily.misfire_window = Some(HOUR);
    let accepted = taken_over(daily, "02:00:00", "10:00:00").accept_all();
    assert!(begun(&accepted).is_empty());
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T02:30:00Z 2026-11-20T02:30:00Z 1"]);
}

#[test]
fn without_a_window_an_occurrence_can_be_made_up_until_the_next() {
    let accepted = taken_over(job("a", "0 * * * *"), "08:00:00", "10:59:59").accept_all();
    assert_eq!(begun(&accepted), ["a.20261120T100000Z"]);
}

#[test]
fn one_second_late_is_lateness_more_is_missed() {
    let mut skipping = job("a", "0 0 10 * * *");
    skipping.misfire = Misfire::Skip;
    let accepted = taken_over(skipping.clone(), "09:00:00", "10:00:01").accept_all();
    assert_eq!(begun(&accepted), ["a.20261120T100000Z"]);
    let accepted = taken_over(skipping, "09:00:00", "10:00:01.001").accept_all();
    assert!(begun(&accepted).is_empty());
    assert_eq!(skipped(&accepted).len(), 1);
}

#[test]
fn run_all_runs_one_after_the_other_and_what_comes_due_joins_the_end() {
    let mut tick = job("a", "* * * * * *");
    (tick.misfire, tick.misfire_window) = (Misfire::RunAll, Some(HOUR));
    let mut fixture = taken_over(tick, "10:00:00", "10:00:03.5");
    for expected in ["1", "2", "3", "4"] {
        assert_eq!(begun(&fixture.accept_all()), [format!("a.20261120T10000{expected}Z")]);
        let tree_id = fixture.starts()[0].tree_id;
        fixture.commands.clear();
        fixture.started(tree_id);
        if expected == "2" {
            fixture.pass(1);
        }
        fixture.ended(tree_id, Exit::Code(0), None);
    }
}

#[test]
fn run_all_makes_up_no_more_than_its_limit() {
    let mut tick = job("a", "* * * * * *");
    (tick.misfire, tick.misfire_window, tick.misfire_limit) = (Misfire::RunAll, Some(HOUR), 2);
    tick.overlap = Overlap::Allow;
    let accepted = taken_over(tick, "10:00:00", "10:00:10").accept_all();
    assert_eq!(
        begun(&accepted),
        ["a.20261120T100007Z", "a.20261120T100008Z", "a.20261120T100009Z", "a.20261120T100010Z"]
    );
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:06Z 6"]);
}

const TEN_YEARS: Duration = Duration::from_secs(10 * 366 * 86_400);

/// All skipped occurrences give one commit, one record with their count, and one report.
#[test]
fn ten_years_of_a_job_of_every_second_are_one_skip() {
    let tick = job("a", "* * * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![tick]);
    fixture.now.wall += TEN_YEARS;
    fixture.handle(Event::Tick);
    let accepted = fixture.accept_all();
    // The newest two are not missed: one is a second late, the other becomes due while that one runs.
    assert_eq!(begun(&accepted), ["a.20361127T095959Z"]);
    let missed = "missed 2026-11-20T10:00:01Z 2036-11-27T09:59:58Z 316223998";
    assert_eq!(skipped(&accepted), [missed, "overlap 2036-11-27T10:00:00Z 2036-11-27T10:00:00Z 1"]);
    let reported = fixture.reports().into_iter().filter(|report| matches!(report, Report::Skipped { .. })).count();
    assert_eq!(reported, 2);
}

#[test]
fn ten_years_of_a_thousand_jobs_are_settled_at_once_with_one_commit_each() {
    let jobs = (0..1000).map(|number| job(&format!("job-{number:03}"), "* * * * * *"));
    let mut fixture = Fixture::settled("10:00:00.2", jobs.collect());
    fixture.now.wall += TEN_YEARS;
    fixture.handle(Event::Tick);
    let (changes, _) = fixture.start_all();
    let missed = skipped(&changes).into_iter().filter(|skip| skip.starts_with("missed 2026-11-20T10:00:01Z"));
    assert_eq!(missed.count(), 1000);
    assert!(changes.len() <= 3000, "{}", changes.len());
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Under every policy each missed occurrence is either run or counted as skipped, once, in order.
    #[test]
    fn every_missed_occurrence_is_accounted_for(
        behind in 0u64..200_000,
        window in prop::option::of(0u64..200_000),
        limit in 1usize..20,
        policy in prop::sample::select(vec![Misfire::Skip, Misfire::RunOnce, Misfire::RunAll]),
        schedule in prop::sample::select(vec!["*/7 * * * *", "30 2 * * *", "0 */3 * * *", "15,45 9-17 * * 1-5"]),
    ) {
        let mut job = job("a", schedule);
        (job.misfire, job.misfire_window, job.misfire_limit) = (policy, window.map(Duration::from_secs), limit);
        let now = at("10:00:00");
        let mark = now - Duration::from_secs(behind);
        let missed: Vec<_> =
            job.schedule().unwrap().occurrences(mark, now).filter(|&o| now.duration_since(o) > jiff::SignedDuration::from_secs(1)).collect();
        let plan = misfire::plan(&job, mark, now);
        let skipped = plan.skipped.map_or(0, |skipped| skipped.count as usize);
        prop_assert_eq!(skipped + plan.run.len(), missed.len());
        prop_assert_eq!(&missed[skipped..], plan.run.as_slice());
        if let Some(skipped) = plan.skipped {
            prop_assert_eq!(skipped.first, missed[0]);
            prop_assert_eq!(skipped.last, missed[skipped.count as usize - 1]);
        }
        prop_assert!(plan.run.iter().all(|&at| misfire::is_in_window(&job, at, now)));
    }

    /// An occurrence is missed for good from one instant on, and not before.
    #[test]
    fn an_occurrence_is_missed_for_good_from_one_instant_on(
        window in prop::option::of(0u64..200_000),
        policy in prop::sample::select(vec![Misfire::Skip, Misfire::RunOnce, Misfire::RunAll]),
        schedule in prop::sample::select(vec!["* * * * * *", "*/7 * * * *", "30 2 * * *", "15,45 9-17 * * 1-5"]),
        age in 0u64..200_000_000,
    ) {
        let mut job = job("a", schedule);
        (job.misfire, job.misfire_window) = (policy, window.map(Duration::from_secs));
        let due = job.next_after(at("10:00:00")).unwrap();
        let is_missed = |now: jiff::Timestamp| {
            let is_late = now.duration_since(due) > jiff::SignedDuration::from_secs(1);
            is_late && (policy == Misfire::Skip || !misfire::is_in_window(&job, due, now))
        };
        let from = misfire::missed_from(&job, due);
        let now = due + Duration::from_millis(age);
        prop_assert_eq!(is_missed(now), from <= now);
        prop_assert!(is_missed(from) && !is_missed(from - Duration::from_nanos(1)));
    }
}
