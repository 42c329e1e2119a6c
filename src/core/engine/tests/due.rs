//! Due occurrences, and the reactions to the ledger's answers.

use std::time::Duration;

use uuid::Uuid;

use super::fixture::*;
use crate::clock::Uptime;
use crate::coordination::Request;
use crate::election;
use crate::engine::{Command, Event, Report};
use crate::job::Overlap;
use crate::ledger::{self, Change, Commit, JobEntry, OwnerState, RunLookup, Running, Snapshot};
use crate::process::{Deadline, Exit};
use crate::run::{JobRecord, Nonce, RunId, RunRecord, RunState, Version};
use crate::term::{SessionId, TermEnd};

#[test]
fn an_occurrence_starts_only_after_its_begin_is_accepted() {
    let mut fixture = Fixture::settled("02:29:59", vec![job("backup", "30 2 * * *")]);
    fixture.pass(1);
    assert!(fixture.starts().is_empty());
    let accepted = fixture.accept_all();
    assert_eq!(begun(&accepted), ["backup.20261120T023000Z"]);
    let starts = fixture.starts();
    assert_eq!(starts.len(), 1);
    assert_eq!(starts[0].not_after, fixture.now.up + LEASE);
    assert_eq!(starts[0].deadline, Deadline::LeaseAnd(fixture.now.up + Duration::from_secs(86_399)));
}

#[test]
fn one_occurrence_leads_to_one_begin() {
    let mut fixture = Fixture::settled("02:29:59", vec![job("backup", "30 2 * * *")]);
    fixture.pass(1);
    fixture.handle(Event::Tick);
    fixture.handle(Event::Tick);
    assert_eq!(fixture.commits().len(), 1);
}

#[test]
fn a_clock_set_back_repeats_nothing() {
    let mut fixture = Fixture::settled("02:29:59", vec![job("backup", "30 2 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    fixture.now.wall = at("02:29:59");
    fixture.commands.clear();
    fixture.pass(1);
    assert!(fixture.commits().is_empty());
}

#[test]
fn begins_of_one_job_are_chained_by_version() {
    let mut tight = job("tick", "* * * * * *");
    tight.overlap = Overlap::Allow;
    let mut fixture = Fixture::settled("10:00:00", vec![tight]);
    fixture.pass(1);
    fixture.pass(1);
    let versions: Vec<_> = fixture
        .commits()
        .into_iter()
        .map(|(_, change)| match change {
            Change::Begin { at, .. } => at,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(versions, [Version(0), Version(1)]);
}

#[test]
fn a_fenced_leader_starts_nothing_more() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *"), job("b", "* * * * * *")]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Fenced);
    fixture.answer(commits[1].0, Commit::Fenced);
    fixture.pass(1);
    assert!(fixture.starts().is_empty());
    assert!(fixture.commits().is_empty());
}

#[test]
fn a_late_refusal_of_an_earlier_term_does_not_fence_this_one() {
    let tick = job("a", "* * * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![tick.clone()]);
    fixture.pass(1);
    let late = fixture.commits()[0].0;
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let entries = [entry(&tick, at("10:00:00"), 0)].into();
    fixture.elect(11, crate::ledger::Snapshot { jobs: entries, ..Default::default() });
    fixture.answer(late, Commit::Fenced);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100001Z"]);
    assert_eq!(fixture.starts().len(), 1);
}

#[test]
fn nothing_is_begun_once_the_lease_has_ended() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.pass_cut_off(LEASE.as_secs());
    assert!(fixture.commits().is_empty());
    assert_eq!(fixture.engine.wake(fixture.now).wall, None);
}

#[test]
fn what_was_begun_as_the_lease_ended_is_not_started_and_goes_back() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.now.up = fixture.now.up + LEASE;
    fixture.answer(commits[0].0, Commit::Accepted);
    assert!(fixture.starts().is_empty());
    let commits = fixture.commits();
    let [(_, Change::ChangeOwner { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!((run.state, run.attempt), (RunState::Unstarted, 1));
}

#[test]
fn an_occurrence_beside_a_run_in_flight_is_skipped_and_said() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.pass(1);
    fixture.pass(1);
    let accepted = fixture.accept_all();
    assert_eq!(
        skipped(&accepted),
        ["overlap 2026-11-20T10:00:02Z 2026-11-20T10:00:02Z 1", "overlap 2026-11-20T10:00:02Z 2026-11-20T10:00:03Z 2"]
    );
    let reported = fixture.reports().into_iter().filter(|report| matches!(report, Report::Skipped { count: 1, .. }));
    assert_eq!(reported.count(), 2);
}

#[test]
fn the_next_occurrence_after_the_end_runs_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    fixture.accept_all();
    fixture.commands.clear();
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100002Z"]);
}

#[test]
fn a_refused_begin_is_decided_anew_from_what_the_record_says() {
    let touched = job("a", "* * * * * *");
    let digest = Some(touched.schedule_digest(at("10:00:00")));
    let mut fixture = Fixture::settled("10:00:00", vec![touched]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let requested = fixture.take();
    assert!(requested.contains(&Command::Ask(Request::Ledger(ledger::Request::ReadJob(name("a"))))), "{requested:?}");
    let record = JobRecord { schedule: digest, ..JobRecord::new(at("10:00:00"), Nonce("op".into())) };
    let entry = JobEntry { record: Some(record), version: Version(5) };
    fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry), None)));
    let commits = fixture.commits();
    let [(_, Change::Begin { at: version, run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!((*version, run.scheduled_at), (Version(5), at("10:00:01")));
}

/// The begin of the first occurrence is refused although the job's record is unchanged: its path is taken.
/// Returns the next requests.
fn obstructed(fixture: &mut Fixture) -> Vec<Change> {
    fixture.pass(1);
    let commits = fixture.commits();
    let (id, Change::Begin { record, .. }) = &commits[0] else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Superseded);
    fixture.commands.clear();
    let record = JobRecord { last_scheduled: at("10:00:00"), ..record.clone() };
    let entry = JobEntry { record: Some(record), version: Version(0) };
    fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry), None)));
    assert!(
        fixture
            .reports()
            .contains(&Report::Obstructed { job: name("a"), run: RunId::scheduled(name("a"), at("10:00:01")) })
    );
    fixture.accept_all()
}

#[test]
fn an_occurrence_whose_place_is_taken_by_something_else_is_missed_and_said_to_be() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    let requested = obstructed(&mut fixture);
    assert_eq!(skipped(&requested), ["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:01Z 1"]);
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Skipped { count: 1, .. })));
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100002Z"]);
}

#[test]
fn an_occurrence_that_has_its_run_although_the_mark_was_set_back_gets_no_second_one() {
    let mut every_second = job("a", "* * * * * *");
    every_second.overlap = Overlap::Allow;
    let jobs = [entry(&every_second, at("10:00:00"), 0)].into();
    let running = vec![running(&every_second, at("10:00:01"), OwnerState::Alive)];
    let snapshot = Snapshot { jobs, running, ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:00", set([every_second]), snapshot);
    fixture.commands.clear();
    fixture.pass(2);
    let requested = fixture.accept_all();
    assert_eq!((begun(&requested), skipped(&requested)), (vec!["a.20261120T100002Z".to_owned()], Vec::new()));
}

#[test]
fn a_mark_whose_fate_is_unknown_while_the_term_goes_on_is_read_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Unknown);
    assert!(fixture.starts().is_empty());
    assert!(fixture.take().contains(&Command::Ask(Request::Ledger(ledger::Request::ReadJob(name("a"))))));
}

/// A node that requested a begin and lost its session before the answer, and the requested record.
fn unsure() -> (Fixture, RunRecord) {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
    fixture.pass(1);
    let commits = fixture.commits();
    let (id, Change::Begin { run, .. }) = commits[0].clone() else { panic!() };
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.handle(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    fixture.answer(id, Commit::Unknown);
    assert!(fixture.starts().is_empty());
    (fixture, run)
}

#[test]
fn a_begin_whose_fate_is_unknown_is_not_started_and_looked_up_under_the_next_session() {
    let (mut fixture, run) = unsure();
    fixture.join();
    let id = run.id();
    assert!(fixture.take().contains(&Command::Ask(Request::Ledger(ledger::Request::ReadRun(id.clone())))));
    fixture.handle(Event::Ledger(ledger::Event::Run(id, Some((run, Version(0))))));
    let commits = fixture.commits();
    let [(_, Change::ChangeOwner { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!(run.state, RunState::Unstarted);
}

#[test]
fn a_begin_never_answered_goes_back_also_where_another_leader_has_cut_the_run_off() {
    let (mut fixture, mut run) = unsure();
    fixture.join();
    (run.state, run.nonce) = (RunState::CutOff, Nonce("12-1".into()));
    fixture.take();
    fixture.handle(Event::Ledger(ledger::Event::Run(run.id(), Some((run, Version(1))))));
    let commits = fixture.commits();
    let [(_, Change::ChangeOwner { at: Version(1), run })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!(run.state, RunState::Unstarted);
}

#[test]
fn a_begin_never_answered_is_begun_again_where_its_node_leads_again_before_it_could_look() {
    let (mut fixture, run) = unsure();
    fixture.handle(Event::Election(election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 }));
    fixture.take();
    let jobs = [entry(&job("a", "1 0 10 * * *"), at("10:00:01"), 1)].into();
    let running = vec![Running { record: run, version: Version(0), owner: OwnerState::Gone }];
    fixture.elect(12, Snapshot { jobs, running, ..Snapshot::default() });
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { at: Version(0), run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((run.attempt, run.past.attempts.len()), (2, 0));
}

#[test]
fn the_node_says_when_it_is_busy_and_when_no_longer() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    let busy: Vec<_> = fixture
        .take()
        .into_iter()
        .filter_map(|command| match command {
            Command::Ask(Request::Election(election::Request::Busy(busy))) => Some(busy),
            _ => None,
        })
        .collect();
    assert_eq!(busy, [true, false]);
}

#[test]
fn a_new_schedule_counts_from_now_and_the_gap_is_missed() {
    let old = job("a", "* * * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![old]);
    fixture.pass_cut_off(LEASE.as_secs());
    fixture.handle(Event::Loaded(set([job("a", "*/5 * * * * *")])));
    let accepted = fixture.accept_all();
    assert_eq!(skipped(&accepted), ["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:05Z 5"]);
    fixture.pass(4);
    assert!(fixture.commits().is_empty());
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100010Z"]);
}

#[test]
fn a_job_taken_out_and_put_back_does_not_fire_for_the_past() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.handle(Event::Loaded(set([])));
    fixture.accept_all();
    fixture.pass(100);
    fixture.handle(Event::Loaded(set([job("a", "* * * * * *")])));
    assert!(begun(&fixture.accept_all()).is_empty());
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100141Z"]);
}

#[test]
fn a_follower_never_decides() {
    let mut fixture = Fixture::new("10:00:00", set([job("a", "* * * * * *")]));
    fixture.join();
    fixture.now.up = Uptime::ZERO + Duration::from_secs(5000);
    fixture.pass(10);
    assert!(fixture.commits().is_empty());
}

#[test]
fn a_run_cut_off_meanwhile_is_taken_over_again_by_its_owner() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.handle(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    fixture.commands.clear();
    let session = election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 };
    fixture.handle(Event::Election(session));
    let commits = fixture.commits();
    let [(id, Change::ChangeOwner { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!(run.owner.session.0, "a2");
    fixture.answer(*id, Commit::Superseded);
    let mut found = start.run.clone();
    found.state = RunState::CutOff;
    let id = RunId::scheduled(found.job.clone(), found.scheduled_at);
    fixture.handle(Event::Ledger(ledger::Event::Run(id, Some((found, Version(1))))));
    let commits = fixture.commits();
    let [(_, Change::ChangeOwner { at, run })] = commits.as_slice() else { panic!("{commits:?}") };
    assert_eq!((*at, run.state), (Version(1), RunState::Running));
}

#[test]
fn a_run_settled_meanwhile_is_killed_and_not_written_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.commands.clear();
    fixture.join();
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let id = RunId::scheduled(start.run.job.clone(), start.run.scheduled_at);
    fixture.handle(Event::Ledger(ledger::Event::Run(id.clone(), None)));
    fixture.looked_up(&id, RunLookup::Ended);
    assert!(fixture.reports().contains(&Report::Superseded { run: id, outcome: None }));
    fixture.ended(start.tree_id, Exit::Signal { signal: 9, core: false }, Some(crate::process::EndedBy::Order));
    assert!(fixture.commits().is_empty());
}

#[test]
fn nonces_of_two_copies_of_a_process_differ() {
    let nonce = || {
        let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 0 10 * * *")]);
        fixture.engine = fixture.engine.with_random(|| Uuid::new_v4().as_u64_pair().0);
        fixture.pass(1);
        match fixture.commits().remove(0).1 {
            Change::Begin { run, .. } => run.nonce,
            other => panic!("{other:?}"),
        }
    };
    assert_ne!(nonce(), nonce());
}
