//! Runs that wait for others, runs that replace others, and kill requests.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::{Command, Event, Report};
use crate::job::{Group, Job, Overlap, Retries};
use crate::ledger::{self, Change, Commit, OwnerState, Running, Snapshot};
use crate::process::{EndedBy, Exit, Order, TreeId};
use crate::run::{KillRequest, Outcome, Reason, RunEnd, RunRecord, RunState, Version};

fn with(overlap: Overlap) -> Job {
    let mut job = job("a", "* * * * * *");
    job.overlap = overlap;
    job
}

/// The effect of each change on runs, in a few words.
fn summary(changes: &[Change]) -> Vec<String> {
    let lines = changes.iter().map(|change| match change {
        Change::Begin { run, .. } => format!("{} {:?}", run.id(), run.state),
        Change::UpdateRun { run, .. } => format!("{} attempt {}", run.id(), run.attempt),
        Change::Kill { run, .. } => format!("{} to be killed", run.id()),
        Change::End { end, .. } => format!("{} {}", end.run.id(), end.outcome.as_str()),
        Change::Advance { skip: Some(_), .. } => "skipped".into(),
        other => format!("{other:?}"),
    });
    lines.map(|text| text.replace("a.20261120T1000", "")).collect()
}

fn stop(tree_id: TreeId) -> Command {
    Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })
}

/// A leader of these jobs at 10:00:`second` that finds these runs.
fn taking_over(second: &str, jobs: Vec<Job>, running: Vec<Running>) -> Fixture {
    let entries = jobs.iter().map(|job| entry(job, at(&format!("10:00:{second}")), 1)).collect();
    Fixture::leading(&format!("10:00:{second}"), set(jobs), Snapshot { jobs: entries, running, ..Snapshot::default() })
}

fn found(job: &Job, second: &str, state: RunState, owner: OwnerState) -> Running {
    let mut found = running(job, at(&format!("10:00:{second}")), owner);
    (found.record.state, found.record.keep_until) = (state, None);
    found.record.attempt = u32::from(state != RunState::Queued);
    found
}

fn by_operator(force: bool) -> KillRequest {
    KillRequest { reason: Reason::Operator, by: "uid 0 on host-c".into(), at: at("10:00:02"), force }
}

fn receive(fixture: &mut Fixture, record: &RunRecord, version: i32) {
    fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), Some((record.clone(), Version(version))))));
}

#[test]
fn one_occurrence_waits_and_the_next_is_skipped() {
    let (mut fixture, tree_id) = running_one(with(Overlap::Queue));
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["02Z Queued"]);
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["skipped"]);
    assert!(fixture.starts().is_empty());
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(summary(&fixture.accept_all()), ["01Z success", "02Z attempt 1"]);
    assert_eq!((fixture.starts().len(), fixture.starts()[0].run.id().to_string().as_str()), (1, "a.20261120T100002Z"));
}

#[test]
fn what_waits_does_not_begin_before_the_end_of_the_other_is_in_the_ledger() {
    for overlap in [Overlap::Queue, Overlap::Replace] {
        let (mut fixture, tree_id) = running_one(with(overlap));
        fixture.pass(1);
        fixture.accept_all();
        fixture.commands.clear();
        fixture.ended(tree_id, Exit::Code(0), Some(EndedBy::Order));
        let commits = fixture.commits();
        assert!(matches!(commits.as_slice(), [(_, Change::End { .. })]), "{commits:?}");
        fixture.answer(commits[0].0, Commit::Accepted);
        assert_eq!(summary(&fixture.accept_all()), ["02Z attempt 1"]);
    }
}

#[test]
fn a_run_that_waits_is_begun_once_by_whoever_leads_then() {
    let queue = with(Overlap::Queue);
    let older = found(&queue, "01", RunState::Running, OwnerState::Alive);
    let waiting = found(&queue, "02", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("03", vec![queue], vec![waiting, older.clone()]);
    assert!(fixture.accept_all().is_empty());
    fixture.handle(Event::Ledger(ledger::Event::Run(older.record.id(), None)));
    assert_eq!(summary(&fixture.accept_all()), ["02Z attempt 1"]);
    assert_eq!(fixture.starts().len(), 1);
    fixture.handle(Event::Tick);
    assert!(fixture.commits().is_empty());
}

#[test]
fn of_several_that_wait_the_oldest_begins() {
    let queue = with(Overlap::Queue);
    let waiting = |second| found(&queue, second, RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("04", vec![queue.clone()], vec![waiting("03"), waiting("02")]);
    assert_eq!(summary(&fixture.accept_all()), ["02Z attempt 1"]);
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(summary(&fixture.accept_all()), ["02Z failure", "03Z attempt 1"]);
}

#[test]
fn a_retry_is_before_what_waits() {
    let mut queue = with(Overlap::Queue);
    queue.retries = Retries { limit: 1, delay: Duration::from_millis(200), ..Retries::default() };
    let (mut fixture, tree_id) = running_one(queue);
    fixture.pass(1);
    fixture.accept_all();
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    fixture.commands.clear();
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["01Z attempt 2", "skipped"]);
}

#[test]
fn a_waiting_run_whose_first_attempt_another_began_is_left_to_it() {
    let queue = with(Overlap::Queue);
    let waiting = found(&queue, "02", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("03", vec![queue], vec![waiting.clone()]);
    let commits = fixture.commits();
    assert!(matches!(commits.as_slice(), [(_, Change::UpdateRun { .. })]), "{commits:?}");
    fixture.answer(commits[0].0, Commit::Superseded);
    let begun = RunRecord { state: RunState::Running, attempt: 1, ..waiting.record };
    receive(&mut fixture, &begun, 1);
    assert!(fixture.accept_all().is_empty());
    assert!(fixture.starts().is_empty());
}

#[test]
fn a_run_whose_place_in_the_line_is_unknown_is_looked_up() {
    let (mut fixture, _) = running_one(with(Overlap::Queue));
    fixture.pass(1);
    let commits = fixture.commits();
    let (id, Change::Begin { run, .. }) = commits[0].clone() else { panic!("{commits:?}") };
    fixture.answer(id, Commit::Unknown);
    let look = Command::Ask(Request::Ledger(ledger::Request::ReadRun(run.id())));
    assert!(fixture.take().contains(&look));
    receive(&mut fixture, &run, 0);
    assert!(fixture.engine.runs().any(|known| *known == run));
}

#[test]
fn replace_stops_the_older_run_and_begins_after_its_end() {
    let (mut fixture, tree_id) = running_one(with(Overlap::Replace));
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["02Z Queued"]);
    assert!(fixture.take().contains(&stop(tree_id)));
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    let accepted = fixture.accept_all();
    assert_eq!(summary(&accepted), ["01Z killed", "02Z attempt 1"]);
    let Change::End { end, .. } = &accepted[0] else { panic!() };
    assert_eq!((end.outcome, end.reason), (Outcome::Killed, Some(Reason::Replaced)));
}

#[test]
fn a_newer_run_takes_the_place_of_one_that_waits_too() {
    let (mut fixture, tree_id) = running_one(with(Overlap::Replace));
    fixture.pass(1);
    fixture.accept_all();
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["03Z Queued", "02Z killed"]);
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(summary(&fixture.accept_all()), ["01Z killed", "03Z attempt 1"]);
}

#[test]
fn a_replaced_run_is_not_tried_again() {
    let mut replace = with(Overlap::Replace);
    replace.retries = Retries { limit: 3, ..Retries::default() };
    let (mut fixture, tree_id) = running_one(replace);
    fixture.pass(1);
    fixture.accept_all();
    // It ended by itself before the signal arrived.
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(summary(&fixture.accept_all()), ["01Z failure", "02Z attempt 1"]);
}

#[test]
fn another_nodes_run_is_asked_to_end_by_its_record_until_the_ledger_has_it() {
    let replace = with(Overlap::Replace);
    let older = found(&replace, "01", RunState::Running, OwnerState::Alive);
    let mut fixture = taking_over("01", vec![replace], vec![older.clone()]);
    fixture.pass(1);
    let accepted = fixture.commits();
    let [(begin, Change::Begin { .. })] = accepted.as_slice() else { panic!("{accepted:?}") };
    fixture.answer(*begin, Commit::Accepted);
    let commits = fixture.commits();
    let [(id, Change::Kill { at: Version(0), run })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!(run.kill.as_ref().map(|kill| kill.reason), Some(Reason::Replaced));
    // Its owner has written meanwhile.
    fixture.answer(*id, Commit::Superseded);
    receive(&mut fixture, &older.record, 3);
    let commits = fixture.commits();
    let [(id, Change::Kill { at: Version(3), .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Accepted);
    assert!(fixture.accept_all().is_empty(), "once");
    fixture.handle(Event::Ledger(ledger::Event::Run(older.record.id(), None)));
    assert_eq!(summary(&fixture.accept_all()), ["02Z attempt 1"]);
}

#[test]
fn the_next_leader_asks_what_the_last_one_may_not_have_asked() {
    let replace = with(Overlap::Replace);
    let older = found(&replace, "01", RunState::Running, OwnerState::Alive);
    let waiting = found(&replace, "02", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("02", vec![replace], vec![older, waiting]);
    assert_eq!(summary(&fixture.accept_all()), ["01Z to be killed"]);
}

#[test]
fn a_former_leader_obeys_and_ends_its_run() {
    let (mut fixture, tree_id) = running_one(with(Overlap::Replace));
    let watch_own =
        Command::Ask(Request::Ledger(ledger::Request::WatchOwn(fixture.engine.runs().next().unwrap().id())));
    fixture.handle(Event::Drain { timeout: Duration::from_secs(600) });
    let resigned = crate::term::TermEnd::Resigned;
    fixture.handle(Event::Election(crate::election::Event::Over { term: Fixture::term(9), why: resigned }));
    fixture.pass(1);
    assert!(fixture.take().contains(&watch_own));
    let mut record = fixture.engine.runs().next().unwrap().clone();
    record.kill = Some(Box::new(by_operator(false)));
    receive(&mut fixture, &record, 1);
    assert!(fixture.take().contains(&stop(tree_id)));
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    let accepted = fixture.accept_all();
    let [Change::End { at: Version(1), end, as_leader: false }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((end.outcome, end.reason), (Outcome::Killed, Some(Reason::Operator)));
}

#[test]
fn an_attempt_is_watched_from_its_second_second_on() {
    let (mut fixture, _) = running_one(job("a", "1 0 10 * * *"));
    let is_attended = |fixture: &Fixture| {
        let attends =
            |command: &Command| matches!(command, Command::Ask(Request::Ledger(ledger::Request::WatchOwn(_))));
        fixture.commands.iter().any(attends)
    };
    assert_eq!(fixture.engine.wake(fixture.now).up, Some(fixture.now.up + Duration::from_secs(1)));
    assert!(!is_attended(&fixture));
    fixture.pass(1);
    assert!(is_attended(&fixture));
}

#[test]
fn a_request_received_while_an_own_write_is_open_is_not_lost() {
    let (mut fixture, tree_id) = running_one(job("a", "1 0 10 * * *"));
    let session = crate::term::SessionId("a2".into());
    fixture.handle(Event::Election(crate::election::Event::Session { id: session, timeout: LEASE * 2 }));
    let commits = fixture.commits();
    let [(id, Change::ChangeOwner { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    let wanted = RunRecord { kill: Some(Box::new(by_operator(false))), ..run.clone() };
    receive(&mut fixture, &wanted, 2);
    fixture.answer(*id, Commit::Accepted);
    assert!(fixture.take().contains(&stop(tree_id)));
}

#[test]
fn what_was_read_before_the_own_write_is_no_news() {
    let (mut fixture, _) = running_one(job("a", "1 0 10 * * *"));
    let old = fixture.engine.runs().next().unwrap().clone();
    let session = crate::term::SessionId("a2".into());
    fixture.handle(Event::Election(crate::election::Event::Session { id: session, timeout: LEASE * 2 }));
    fixture.accept_all();
    fixture.commands.clear();
    let stale = RunRecord { attempt: 0, ..old };
    receive(&mut fixture, &stale, 0);
    assert!(!fixture.reports().iter().any(|report| matches!(report, Report::Superseded { .. })));
}

#[test]
fn a_run_that_waits_is_killed_by_the_leader_at_once() {
    let once = job("a", "1 0 10 * * *");
    for state in [RunState::Queued, RunState::Retrying] {
        let older = found(&once, "01", RunState::Running, OwnerState::Alive);
        let mut waiting = found(&once, "02", state, OwnerState::Gone);
        waiting.record.retry_at = Some(at("10:09:00"));
        let mut fixture = taking_over("03", vec![once.clone()], vec![older, waiting.clone()]);
        assert!(fixture.accept_all().is_empty());
        let wanted = RunRecord { kill: Some(Box::new(by_operator(false))), ..waiting.record };
        receive(&mut fixture, &wanted, 1);
        let accepted = fixture.accept_all();
        let [Change::End { at: Version(1), end, as_leader: true }] = accepted.as_slice() else {
            panic!("{accepted:?}")
        };
        assert_eq!((end.outcome, end.reason), (Outcome::Killed, Some(Reason::Operator)));
    }
}

#[test]
fn a_cut_off_run_ends_by_force_alone() {
    let once = job("a", "1 0 10 * * *");
    for force in [false, true] {
        let mut cut_off = found(&once, "01", RunState::CutOff, OwnerState::Gone);
        let mut fixture = taking_over("03", vec![once.clone()], vec![cut_off.clone()]);
        cut_off.record.kill = Some(Box::new(by_operator(force)));
        receive(&mut fixture, &cut_off.record, 1);
        let expected: &[&str] = if force { &["01Z killed"] } else { &[] };
        assert_eq!(summary(&fixture.accept_all()), expected);
    }
}

#[test]
fn an_attempt_that_was_to_be_killed_before_it_was_started_is_not_started() {
    let once = job("a", "1 0 10 * * *");
    let waiting = found(&once, "01", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("03", vec![once], vec![waiting]);
    let commits = fixture.commits();
    let [(id, Change::UpdateRun { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    let wanted = RunRecord { kill: Some(Box::new(by_operator(false))), ..run.clone() };
    receive(&mut fixture, &wanted, 2);
    fixture.answer(*id, Commit::Accepted);
    // Started before the request was received, or not at all.
    let starts = fixture.starts();
    let stopped = fixture.commands.iter().any(|command| matches!(command, Command::Order(Order::Stop { .. })));
    assert!(starts.is_empty() || stopped, "{starts:?}");
}

#[test]
fn a_failed_attempt_that_is_to_be_killed_is_not_tried_again() {
    let mut once = job("a", "1 0 10 * * *");
    once.retries = Retries { limit: 3, ..Retries::default() };
    let (mut fixture, tree_id) = running_one(once);
    let record = fixture.engine.runs().next().unwrap().clone();
    fixture.ended(tree_id, Exit::Code(1), None);
    let commits = fixture.commits();
    let [(id, Change::ChangeOwner { .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Superseded);
    receive(&mut fixture, &RunRecord { kill: Some(Box::new(by_operator(false))), ..record }, 1);
    let accepted = fixture.accept_all();
    let [Change::End { at: Version(1), end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    let RunEnd { outcome, reason, .. } = end;
    assert_eq!((*outcome, *reason), (Outcome::Killed, Some(Reason::Operator)));
}

#[test]
fn a_cut_off_run_is_in_the_way_a_second_longer_than_it_may_live() {
    let queue = {
        let mut job = job("a", "*/10 * * * * *");
        job.overlap = Overlap::Queue;
        job
    };
    let mut cut_off = found(&queue, "01", RunState::CutOff, OwnerState::Gone);
    cut_off.record.keep_until = Some(at("10:00:05"));
    let waiting = found(&queue, "02", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("03", vec![queue], vec![cut_off, waiting]);
    fixture.accept_all();
    fixture.pass(2);
    assert!(fixture.accept_all().is_empty());
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["01Z abandoned", "02Z attempt 1"]);
}

fn grouped(name: &str, schedule: &str, limit: usize) -> Job {
    let concurrency_group = Some(Group { name: "database".into(), limit });
    Job { concurrency_group, overlap: Overlap::Allow, ..job(name, schedule) }
}

#[test]
fn of_a_group_only_so_many_run_and_the_others_wait_in_their_order() {
    let jobs =
        [("c", "3"), ("b", "2"), ("a", "1")].map(|(name, second)| grouped(name, &format!("{second} 0 10 * * *"), 1));
    let mut fixture = Fixture::settled("10:00:00", jobs.to_vec());
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["01Z Running"]);
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.pass(1);
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["b.20261120T100002Z Queued", "c.20261120T100003Z Queued"]);
    fixture.commands.clear();
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(summary(&fixture.accept_all()), ["01Z success", "b.20261120T100002Z attempt 1"]);
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(summary(&fixture.accept_all()), ["b.20261120T100002Z failure", "c.20261120T100003Z attempt 1"]);
}

#[test]
fn a_new_leader_counts_the_runs_of_a_group_that_others_have() {
    let (a, b) = (grouped("a", "1 0 10 * * *", 2), grouped("b", "2 0 10 * * *", 2));
    let has = |job: &Job, second| found(job, second, RunState::Running, OwnerState::Alive);
    let waits = found(&b, "02", RunState::Queued, OwnerState::Gone);
    let mut fixture = taking_over("05", vec![a.clone(), b.clone()], vec![has(&a, "01"), has(&b, "00"), waits]);
    assert!(fixture.accept_all().is_empty());
    let one = has(&a, "01").record.id();
    fixture.handle(Event::Ledger(ledger::Event::Run(one, None)));
    assert_eq!(summary(&fixture.accept_all()), ["b.20261120T100002Z attempt 1"]);
}

#[test]
fn a_larger_limit_lets_those_begin_that_waited() {
    let both = |limit| [grouped("a", "1 0 10 * * *", limit), grouped("b", "1 0 10 * * *", limit)];
    let mut fixture = Fixture::settled("10:00:00", both(1).to_vec());
    fixture.pass(1);
    assert_eq!(summary(&fixture.accept_all()), ["01Z Running", "b.20261120T100001Z Queued"]);
    fixture.handle(Event::Loaded(set(both(2))));
    assert_eq!(summary(&fixture.accept_all()), ["b.20261120T100001Z attempt 1"]);
}
