//! Failed attempts, and their retries.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::runs::retry::delay;
use crate::engine::{Command, Event, Report};
use crate::job::{Interrupted, Job, OnLeaseEnd, Retries};
use crate::ledger::{self, Change, Commit, OwnerState, Snapshot};
use crate::process::{EndedBy, Exit, Notice, StartFailure, StartStep};
use crate::run::journal::RecoveredRun;
use crate::run::{Attempt, Outcome, Reason, RunEnd, RunId, RunRecord, RunState, Traces, Version};
use crate::term::{NodeName, TermEnd};
use crate::{election, run};

/// A job that is due at 10:00:01, with two retries after ten seconds.
fn tried_again() -> Job {
    let mut job = job("a", "1 0 10 * * *");
    let seconds = Duration::from_secs;
    job.retries = Retries { limit: 2, delay: seconds(10), backoff: 1.0, max_delay: seconds(60) };
    job
}

/// The record of the run that a change releases for another attempt.
fn released(changes: &[Change]) -> RunRecord {
    match changes {
        [Change::ChangeOwner { run, .. }] if run.state == RunState::Retrying => run.clone(),
        other => panic!("{other:?}"),
    }
}

fn ended(changes: &[Change]) -> RunEnd {
    match changes {
        [Change::End { end, .. }] => end.clone(),
        other => panic!("{other:?}"),
    }
}

/// The record of a run of [`tried_again`] after its first failure, released by `host-b`.
fn waiting(retry_at: Timestamp) -> ledger::Running {
    let mut found = running(&tried_again(), at("10:00:01"), OwnerState::Gone);
    let end = RunEnd { outcome: Outcome::Failure, exit_code: Some(3), ..unseen(&found.record) };
    found.record.past.note(&end);
    (found.record.state, found.record.retry_at) = (RunState::Retrying, Some(retry_at));
    found
}

fn unseen(run: &RunRecord) -> RunEnd {
    RunEnd::unseen(run, Outcome::Interrupted, None, run.scheduled_at)
}

fn taken_over(wall: &str, job: Option<Job>, found: ledger::Running) -> Fixture {
    let jobs = [entry(&tried_again(), at("10:00:01"), 1)].into();
    Fixture::leading(wall, set(job), Snapshot { jobs, running: vec![found], ..Snapshot::default() })
}

#[test]
fn a_failed_attempt_is_released_and_the_next_begins_at_its_time() {
    let (mut fixture, tree_id) = running_one(tried_again());
    fixture.ended(tree_id, Exit::Code(3), None);
    let reported = fixture.reports();
    assert!(!reported.iter().any(|report| matches!(report, Report::Finished(_))), "{reported:?}");
    let record = released(&fixture.accept_all());
    let retry_at = record.retry_at.unwrap();
    let expected = delay(&tried_again().retries, &record.id(), 1);
    assert_eq!(retry_at, fixture.now.wall + expected);
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(retry_at));
    fixture.pass(8);
    assert!(fixture.commits().is_empty(), "not before its time");
    fixture.pass(3);
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { at: Version(1), run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((run.attempt, run.state, run.retry_at, run.past.failures), (2, RunState::Running, None, 1));
    assert_eq!(fixture.starts()[0].run.attempt, 2);
}

/// The attempts that were reported as started, and whether each with its lateness.
fn started(fixture: &Fixture) -> Vec<(u32, bool)> {
    let started = fixture.reports().into_iter().filter_map(|report| match report {
        Report::Started { attempt, lateness, .. } => Some((attempt, lateness.is_some())),
        _ => None,
    });
    started.collect()
}

#[test]
fn only_the_first_attempt_of_a_run_is_reported_with_a_lateness() {
    let mut fixture = Fixture::settled("10:00:00", vec![tried_again()]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    assert_eq!(started(&fixture), [(1, true)]);
    fixture.ended(tree_id, Exit::Code(3), None);
    fixture.accept_all();
    fixture.commands.clear();
    fixture.pass(11);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    assert_eq!(started(&fixture), [(2, false)], "it is due only since the first has failed");
}

#[test]
fn after_the_last_retry_the_run_ends_with_all_its_attempts() {
    let (mut fixture, mut tree_id) = running_one(tried_again());
    for attempt in 2..=3 {
        fixture.ended(tree_id, Exit::Code(attempt), None);
        fixture.accept_all();
        fixture.commands.clear();
        fixture.pass(11);
        fixture.accept_all();
        tree_id = fixture.starts()[0].tree_id;
        fixture.started(tree_id);
        fixture.commands.clear();
    }
    fixture.ended(tree_id, Exit::Code(9), None);
    let end = ended(&fixture.accept_all());
    assert_eq!((end.outcome, end.exit_code, end.run.attempt), (Outcome::Failure, Some(9), 3));
    let codes: Vec<_> = end.run.past.attempts.iter().map(|past| (past.attempt, past.exit_code)).collect();
    assert_eq!(codes, [(1, Some(2)), (2, Some(3))]);
}

#[test]
fn a_success_after_a_failure_is_a_success() {
    let (mut fixture, tree_id) = running_one(tried_again());
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.pass(11);
    fixture.accept_all();
    fixture.pass(11);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(ended(&fixture.accept_all()).outcome, Outcome::Success);
}

#[test]
fn timeouts_and_failed_starts_are_tried_again() {
    let mut slow = tried_again();
    slow.timeout = Some(Duration::from_secs(3));
    let (mut fixture, tree_id) = running_one(slow);
    fixture.pass(3);
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(released(&fixture.accept_all()).past.attempts[0].outcome, Outcome::Timeout);

    let mut fixture = Fixture::settled("10:00:00", vec![tried_again()]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.commands.clear();
    let why = StartFailure::Step { step: StartStep::Exec, errno: 2 };
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
    assert_eq!(released(&fixture.accept_all()).past.attempts[0].reason, Some(Reason::NotFound));
}

#[test]
fn an_interrupted_attempt_is_not_tried_again() {
    let (mut fixture, tree_id) = running_one(tried_again());
    fixture.handle(Event::Stop);
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    fixture.commands.retain(|command| !matches!(command, Command::Ask(Request::Election(_))));
    let end = ended(&fixture.accept_all());
    assert_eq!((end.outcome, end.reason), (Outcome::Interrupted, Some(Reason::Drain)));
}

#[test]
fn a_rerun_takes_no_retry_away() {
    let mut job = tried_again();
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    let mut fixture = taken_over("10:00:30", Some(job.clone()), running(&job, at("10:00:01"), OwnerState::Gone));
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    let reported: Vec<_> = run.past.attempts.iter().map(|past: &Attempt| past.outcome).collect();
    assert_eq!((run.attempt, run.past.failures, reported.as_slice()), (2, 0, [Outcome::Interrupted].as_slice()));
}

/// The node's member was deleted by hand: the node has a member again before the process that must die is dead.
#[test]
fn an_attempt_that_ends_while_it_is_taken_over_again_is_still_released() {
    let mut job = tried_again();
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    let (mut fixture, tree_id) = running_one(job);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::EntryGone }));
    fixture.join();
    let commits = fixture.commits();
    let [(id, Change::ChangeOwner { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!(run.state, RunState::Running);
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    fixture.answer(*id, Commit::Accepted);
    assert_eq!(released(&fixture.accept_all()).attempt, 1);
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Retrying { .. })));
}

#[test]
fn the_next_leader_makes_a_waiting_retry_at_its_time() {
    let mut fixture = taken_over("10:00:05", Some(tried_again()), waiting(at("10:00:11")));
    assert!(fixture.accept_all().is_empty());
    fixture.pass(5);
    assert!(fixture.accept_all().is_empty());
    fixture.pass(1);
    let accepted = fixture.accept_all();
    assert!(
        matches!(accepted.as_slice(), [Change::UpdateRun { at: Version(0), run, .. }] if run.attempt == 2),
        "{accepted:?}"
    );
    assert_eq!(fixture.starts().len(), 1);
}

#[test]
fn a_retry_that_is_overdue_at_a_takeover_is_made_at_once() {
    let mut fixture = taken_over("10:03:00", Some(tried_again()), waiting(at("10:00:11")));
    assert!(matches!(fixture.accept_all().as_slice(), [Change::UpdateRun { run, .. }] if run.attempt == 2));
}

#[test]
fn a_waiting_retry_counts_for_overlap() {
    let mut often = tried_again();
    often.due = job("a", "* * * * * *").due;
    let (mut fixture, tree_id) = running_one(often);
    fixture.ended(tree_id, Exit::Code(1), None);
    released(&fixture.accept_all());
    fixture.pass(1);
    assert_eq!(skipped(&fixture.accept_all()), ["overlap 2026-11-20T10:00:02Z 2026-11-20T10:00:02Z 1"]);
}

#[test]
fn a_node_that_leads_no_more_lets_go_and_forgets() {
    let (mut fixture, tree_id) = running_one(tried_again());
    fixture.handle(Event::Drain { timeout: Duration::from_secs(600) });
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.ended(tree_id, Exit::Code(1), None);
    released(&fixture.accept_all());
    let leave = Command::Ask(Request::Election(election::Request::Leave));
    assert!(fixture.take().contains(&leave), "a run that waits elsewhere does not hold the node");
}

#[test]
fn a_retry_goes_by_the_present_definition_and_without_one_the_run_ends_as_it_did() {
    let mut eager = tried_again();
    eager.retries.delay = Duration::from_secs(1);
    let mut fixture = taken_over("10:00:05", Some(tried_again()), waiting(at("10:00:11")));
    fixture.handle(Event::Loaded(set([eager])));
    fixture.pass(6);
    let starts = {
        fixture.accept_all();
        fixture.starts()
    };
    assert_eq!(starts[0].job.retries.delay, Duration::from_secs(1));

    let mut fixture = taken_over("10:00:05", None, waiting(at("10:00:11")));
    fixture.accept_all();
    fixture.pass(6);
    let end = ended(&fixture.accept_all());
    assert_eq!((end.outcome, end.exit_code, end.run.attempt), (Outcome::Failure, Some(3), 1));
}

#[test]
fn a_refused_letting_go_is_written_again_at_the_version_found() {
    let (mut fixture, tree_id) = running_one(tried_again());
    let record = fixture.engine.runs().next().unwrap().clone();
    fixture.ended(tree_id, Exit::Code(1), None);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), Some((record, Version(4))))));
    let accepted = fixture.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::ChangeOwner { at: Version(4), .. }]), "{accepted:?}");
    assert_eq!(released(&accepted).past.failures, 1);
}

#[test]
fn a_run_that_an_earlier_process_had_released_is_left_to_the_leader() {
    let found = waiting(at("10:00:11"));
    let begun = running(&tried_again(), at("10:00:01"), OwnerState::Gone).record;
    let mut fixture = Fixture::new("10:00:05", set([tried_again()]));
    let noted = RecoveredRun { record: begun, version: Version(0), pid: None, traces: Traces::default(), end: None };
    fixture.handle(recovered_runs(vec![noted]));
    fixture.join();
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    fixture.commands.clear();
    let id = found.record.id();
    fixture.handle(Event::Ledger(ledger::Event::Run(id.clone(), Some((found.record, Version(1))))));
    assert!(fixture.commands.contains(&Command::Forget(id)));
    assert!(fixture.commits().is_empty(), "it is not ended a second time");
    assert_eq!(fixture.engine.own_runs(), 0);
}

fn some_run() -> RunId {
    RunId::scheduled(name("a"), at("10:00:01"))
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn a_delay_is_the_same_everywhere_and_within_its_bounds(
        failures in 1u32..2000,
        delay_ms in 0u64..10_000_000,
        backoff in 1.0f64..100.0,
        max_ms in 1u64..100_000_000,
    ) {
        let of = Duration::from_millis;
        let retries = Retries { limit: 9, delay: of(delay_ms), backoff, max_delay: of(max_ms) };
        let drawn = delay(&retries, &some_run(), failures);
        prop_assert_eq!(drawn, delay(&retries, &some_run(), failures));
        prop_assert!(drawn <= retries.max_delay);
        let least = retries.delay.min(retries.max_delay).mul_f64(0.899);
        prop_assert!(drawn >= least, "{:?} under {:?}", drawn, least);
    }
}

#[test]
fn a_delay_grows_by_its_factor_and_is_spread_by_a_tenth() {
    let of = Duration::from_secs;
    let retries = Retries { limit: 9, delay: of(100), backoff: 2.0, max_delay: of(10_000) };
    let drawn: Vec<_> = (1..=3).map(|failures| delay(&retries, &some_run(), failures).as_secs_f64()).collect();
    for (drawn, base) in drawn.iter().zip([100.0, 200.0, 400.0]) {
        assert!((base * 0.9..=base * 1.1).contains(drawn) && *drawn != base, "{drawn}");
    }
    let other = RunId::scheduled(name("b"), at("10:00:01"));
    assert_ne!(delay(&retries, &some_run(), 1), delay(&retries, &other, 1));
}

#[test]
fn a_run_that_waits_is_nobodys_whoever_let_it_go() {
    let mut fixture = taken_over("10:00:05", Some(tried_again()), waiting(at("10:00:11")));
    fixture.commands.clear();
    let found = waiting(at("10:00:11")).record;
    assert_eq!(found.owner.node, NodeName::new("host-b"));
    let gone = ledger::Event::OwnerGone(found.id(), OwnerState::Dead, Some((found, run::Version(0))));
    fixture.handle(Event::Ledger(gone));
    assert!(fixture.commits().is_empty());
}
