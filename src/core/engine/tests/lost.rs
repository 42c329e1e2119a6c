//! Runs that an earlier leader left behind.

use std::time::Duration;

use super::fixture::*;
use super::transfer::member;
use crate::coordination::Request;
use crate::engine::runs::active_run::{ActiveRun, ActiveRunState, News};
use crate::engine::{Command, Event, Report};
use crate::job::{Interrupted, Job, OnLeaseEnd};
use crate::ledger::{self, Change, Commit, OwnerState, Snapshot};
use crate::process::{Deadline, EndedBy, Exit, Order};
use crate::run::journal::RecoveredRun;
use crate::run::{Outcome, Reason, RunEnd, RunId, RunRecord, RunState, Traces, Version};
use crate::term::TermEnd;
use crate::{election, run::OnLoss};

/// A leader that finds a run of `job`, begun at 10:00:00, at 10:00:30.
fn found(job: &Job, owner: OwnerState) -> Fixture {
    let run = running(job, at("10:00:00"), owner);
    let jobs = [entry(job, at("10:00:00"), 1)].into();
    Fixture::leading("10:00:30", set([job.clone()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() })
}

fn rerun() -> Job {
    let mut job = job("a", "* * * * *");
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    job
}

#[test]
fn a_living_owners_run_is_left_and_watched() {
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Alive);
    let run = RunId::parse("a.20261120T100000Z").unwrap();
    assert!(fixture.commands.contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(run)))));
    assert!(fixture.commits().is_empty());
}

#[test]
fn a_living_owners_run_counts_for_overlap() {
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Alive);
    fixture.pass(30);
    assert_eq!(skipped(&fixture.accept_all()), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

#[test]
fn an_end_that_comes_too_late_hides_no_attempt_that_was_begun_since() {
    let job = rerun();
    let mut fixture = Fixture::new("10:00:30", set([job.clone()]));
    let first = running(&job, at("10:00:00"), OwnerState::Gone).record;
    let end = Some(RunEnd::unseen(&first, Outcome::Success, None, at("10:00:10")));
    fixture.handle(recovered_runs(vec![RecoveredRun {
        record: first,
        version: Version(0),
        pid: None,
        traces: Traces::default(),
        end,
    }]));
    fixture.join();
    let mut second = running(&job, at("10:00:00"), OwnerState::Alive);
    (second.record.attempt, second.version) = (2, Version(1));
    let jobs = [entry(&job, at("10:00:00"), 1)].into();
    fixture.elect(9, Snapshot { jobs, running: vec![second], ..Snapshot::default() });
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Superseded { .. })));
    // The end is not answered yet.
    fixture.pass(30);
    let requested: Vec<Change> = fixture.commits().into_iter().map(|(_, change)| change).collect();
    assert_eq!(skipped(&requested), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

#[test]
fn rerun_begins_another_attempt_under_the_same_id() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { at, run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((*at, run.attempt, run.state), (Version(0), 2, RunState::Running));
    let starts = fixture.starts();
    assert_eq!(starts.len(), 1);
    assert_eq!((starts[0].run.attempt, starts[0].version, starts[0].deadline), (2, Version(1), Deadline::Lease));
}

#[test]
fn kill_ends_interrupted() {
    let mut job = job("a", "* * * * *");
    job.on_lease_end = OnLeaseEnd::Kill;
    let accepted = found(&job, OwnerState::Gone).accept_all();
    let [Change::End { end, as_leader: true, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((end.outcome, end.reason), (Outcome::Interrupted, Some(Reason::NodeDied)));
}

#[test]
fn keep_is_cut_off_at_once_and_abandoned_before_the_next_occurrence() {
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Gone);
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(run.state, RunState::CutOff);
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::CutOff { .. })));
    fixture.pass(28);
    assert!(fixture.commits().is_empty());
    fixture.pass(1);
    let accepted = fixture.accept_all();
    let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(end.outcome, Outcome::Abandoned);
    assert_eq!(end.detail.as_deref(), Some("host-b did not come back before the next occurrence"));
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100100Z"]);
}

/// It needs a moment to read its run and to write the end.
#[test]
fn an_owner_that_comes_back_in_the_last_moment_reports_first() {
    let back = || {
        let mut fixture = found(&job("a", "* * * * *"), OwnerState::Gone);
        fixture.accept_all();
        fixture.handle(Event::Election(election::Event::Members(vec![member("host-b", 0)])));
        fixture.pass(29);
        assert!(fixture.commits().is_empty());
        fixture
    };
    let mut fixture = back();
    let run = RunId::parse("a.20261120T100000Z").unwrap();
    fixture.handle(Event::Ledger(ledger::Event::Run(run, None)));
    fixture.pass_by(Duration::from_millis(500));
    assert!(!fixture.accept_all().iter().any(|change| matches!(change, Change::End { .. })), "it has reported");

    let mut fixture = back();
    fixture.pass_by(Duration::from_millis(400));
    let accepted = fixture.accept_all();
    let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(end.detail.as_deref(), Some("host-b came back, but did not report the run in time"));
    fixture.pass_by(Duration::from_millis(600));
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100100Z"]);
}

#[test]
fn a_run_whose_processes_were_seen_dead_is_never_cut_off() {
    let accepted = found(&job("a", "* * * * *"), OwnerState::Dead).accept_all();
    let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(end.outcome, Outcome::Interrupted);
}

#[test]
fn an_end_that_the_leader_settled_is_recorded_even_if_the_answer_comes_after_the_term() {
    for is_over in [false, true] {
        let mut fixture = found(&job("a", "* * * * *"), OwnerState::Dead);
        let commits = fixture.commits();
        let [(id, Change::End { .. })] = commits.as_slice() else { panic!("{commits:?}") };
        if is_over {
            fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
        }
        fixture.answer(*id, Commit::Accepted);
        let recorded = fixture.reports().into_iter().filter(|report| matches!(report, Report::Recorded(_)));
        assert_eq!(recorded.count(), 1, "{is_over}");
    }
}

#[test]
fn a_cut_off_owner_that_is_back_is_left_alone_again() {
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Gone);
    let accepted = fixture.accept_all();
    let [Change::UpdateRun { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    let mut back = run.clone();
    (back.state, back.owner.session.0) = (RunState::Running, "b2".into());
    let id = RunId::scheduled(back.job.clone(), back.scheduled_at);
    fixture.handle(Event::Ledger(ledger::Event::Run(id, Some((back, Version(2))))));
    fixture.pass(29);
    assert!(fixture.commits().is_empty());
}

#[test]
fn a_watched_owner_that_goes_is_settled_then() {
    let mut fixture = found(&rerun(), OwnerState::Alive);
    let run = running(&rerun(), at("10:00:00"), OwnerState::Alive);
    let id = RunId::scheduled(run.record.job.clone(), run.record.scheduled_at);
    fixture.commands.clear();
    fixture.handle(Event::Ledger(ledger::Event::OwnerGone(id, OwnerState::Gone, Some((run.record, Version(0))))));
    let accepted = fixture.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::UpdateRun { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn takeover_is_done_when_all_is_answered() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    assert!(!fixture.engine.is_settled());
    fixture.accept_all();
    assert!(fixture.engine.is_settled());
    let is_done = |report: &Report| matches!(report, Report::TakeoverDone { settled: 1, cut_off: 0, missed: 0, .. });
    assert!(fixture.reports().iter().any(is_done));
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Gone);
    fixture.accept_all();
    let is_done = |report: &Report| matches!(report, Report::TakeoverDone { settled: 0, cut_off: 1, missed: 0, .. });
    assert!(fixture.reports().iter().any(is_done), "a run that is cut off is not settled");
}

#[test]
fn a_lost_term_kills_what_may_be_begun_again_and_lets_it_go() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::EntryGone }));
    assert!(fixture.take().contains(&Command::Order(Order::Kill { tree_id: start.tree_id })));
    fixture.ended(start.tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    let accepted = fixture.accept_all();
    assert!(
        matches!(accepted.as_slice(), [Change::ChangeOwner { run, .. }] if run.state == RunState::Retrying),
        "{accepted:?}"
    );
}

#[test]
fn a_resigned_leader_lets_its_runs_go_on() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
    assert!(!fixture.commands.iter().any(|command| matches!(command, Command::Order(Order::Kill { .. }))));
}

#[test]
fn a_released_run_is_begun_again_by_the_leader() {
    let mut run = running(&rerun(), at("10:00:00"), OwnerState::Alive);
    run.record.state = RunState::Retrying;
    assert_eq!(run.record.on_loss, OnLoss::Rerun);
    let jobs = [entry(&rerun(), at("10:00:00"), 1)].into();
    let mut fixture =
        Fixture::leading("10:00:30", set([rerun()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() });
    let accepted = fixture.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::UpdateRun { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn a_rerun_that_another_settled_first_is_not_started() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    assert!(fixture.starts().is_empty());
}

#[test]
fn a_run_of_this_very_session_that_was_never_answered_for_was_never_started_and_is_begun_again() {
    let mut run = running(&job("a", "* * * * *"), at("10:00:00"), OwnerState::Alive);
    (run.record.owner.node, run.record.owner.session.0) = (crate::term::NodeName::new("host-a"), "a".into());
    let jobs = [entry(&job("a", "* * * * *"), at("10:00:00"), 1)].into();
    let snapshot = Snapshot { jobs, running: vec![run], ..Snapshot::default() };
    let accepted = Fixture::leading("10:00:30", set([job("a", "* * * * *")]), snapshot).accept_all();
    let [Change::UpdateRun { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((run.attempt, run.past.attempts.len()), (2, 0));
}

#[test]
fn an_occurrence_waits_for_the_end_of_a_run_that_is_just_being_settled() {
    let mut job = job("a", "* * * * *");
    job.on_lease_end = OnLeaseEnd::Kill;
    let run = running(&job, at("10:00:00"), OwnerState::Gone);
    let jobs = [entry(&job, at("10:00:00"), 1)].into();
    let snapshot = Snapshot { jobs, running: vec![run], ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:01:00", set([job]), snapshot);
    let commits = fixture.commits();
    assert!(matches!(commits.as_slice(), [(_, Change::End { .. })]), "{commits:?}");
    fixture.answer(commits[0].0, Commit::Accepted);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100100Z"]);
}

#[test]
fn news_received_during_a_commit_count_if_the_commit_is_rejected() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    let commits = fixture.commits();
    let mut back = running(&rerun(), at("10:00:00"), OwnerState::Alive).record;
    back.state = RunState::Retrying;
    let id = back.id();
    fixture.handle(Event::Ledger(ledger::Event::Run(id, Some((back, Version(1))))));
    fixture.answer(commits[0].0, Commit::Superseded);
    let accepted = fixture.accept_all();
    assert!(
        matches!(accepted.as_slice(), [Change::UpdateRun { at: Version(1), run, .. }] if run.attempt == 2),
        "{accepted:?}"
    );
}

/// The run's owner is back, and the answer to marking it cut off was lost: the run continues and blocks the next one.
#[test]
fn a_run_of_which_nobody_knows_whether_it_was_marked_cut_off_is_looked_up() {
    let mut fixture = found(&job("a", "* * * * *"), OwnerState::Gone);
    let commits = fixture.commits();
    let [(mark, Change::UpdateRun { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.answer(*mark, Commit::Unknown);
    let requested = fixture.take();
    assert!(requested.contains(&Command::Ask(Request::Ledger(ledger::Request::ReadRun(run.id())))));
    assert!(requested.contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(run.id())))));
    let mut back = run.clone();
    (back.state, back.owner.session.0) = (RunState::Running, "b2".into());
    fixture.handle(Event::Ledger(ledger::Event::Run(back.id(), Some((back, Version(2))))));
    fixture.pass(30);
    assert_eq!(skipped(&fixture.accept_all()), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

/// An operator writes into the record of a lost run that waits to be begun again: the watch does not
/// report the gone owner again.
#[test]
fn a_lost_run_whose_record_changes_is_watched_again() {
    let mut fixture = Fixture::new("10:00:30", set([rerun()]));
    fixture.join();
    let lost = running(&rerun(), at("10:00:00"), OwnerState::Gone);
    let (mut changed, jobs) = (lost.record.clone(), [entry(&rerun(), at("10:00:00"), 1)].into());
    let snapshot = Box::new(Snapshot { jobs, running: vec![lost], ..Snapshot::default() });
    let (term, lease_until, took) = (Fixture::term(9), crate::clock::Uptime::ZERO, std::time::Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    changed.nonce = crate::run::Nonce("operator".into());
    fixture.commands.clear();
    fixture.handle(Event::Ledger(ledger::Event::Run(changed.id(), Some((changed.clone(), Version(1))))));
    assert!(fixture.take().contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(changed.id())))));
    fixture.handle(Event::Ledger(ledger::Event::OwnerGone(
        changed.id(),
        OwnerState::Gone,
        Some((changed.clone(), Version(1))),
    )));
    fixture.pass(1);
    let accepted = fixture.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::UpdateRun { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn that_an_owner_is_gone_stays_known_while_a_commit_is_open() {
    let record = running(&job("a", "* * * * *"), at("10:00:00"), OwnerState::Alive).record;
    let mut run = ActiveRun::new(record.clone(), Version(0), ActiveRunState::Remote);
    let found = |version| Some((record.clone(), Version(version)));
    run.note_news(News::OwnerGone(OwnerState::Gone, found(0)));
    run.note_news(News::Changed(found(1)));
    let news = run.news.take();
    assert!(matches!(news, Some(News::OwnerGone(_, Some((_, Version(1)))))), "{news:?}");
}

/// Otherwise the run would stay here as one that nobody has, and block its job in a later term of this node.
#[test]
fn an_attempt_whose_begin_is_rejected_after_the_term_is_forgotten() {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    let commits = fixture.commits();
    let [(id, Change::UpdateRun { .. })] = commits.as_slice() else { panic!("{commits:?}") };
    let over = election::Event::Over { term: Fixture::term(9), why: crate::term::TermEnd::LeaseOver };
    fixture.handle(Event::Election(over));
    fixture.answer(*id, Commit::Superseded);
    assert_eq!(fixture.engine.runs().count(), 0);
}

/// A leader whose own run another node has begun again, and whose process of it has just died. The run as the other node
/// has it.
fn superseded_and_dead() -> (Fixture, RunRecord) {
    let mut fixture = found(&rerun(), OwnerState::Gone);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    let mut other = start.run.clone();
    (other.attempt, other.token.0, other.owner.session.0) = (3, 12, "b2".into());
    let id = crate::term::SessionId("a2".into());
    fixture.handle(Event::Election(election::Event::Session { id, timeout: LEASE * 2 }));
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(other.id(), Some((other.clone(), Version(4))))));
    fixture.commands.clear();
    fixture.ended(start.tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    (fixture, other)
}

#[test]
fn a_leader_watches_a_run_that_it_gave_up_and_another_has() {
    let (mut fixture, other) = superseded_and_dead();
    let requested = fixture.take();
    for request in [ledger::Request::ReadRun(other.id()), ledger::Request::Watch(other.id())] {
        assert!(requested.contains(&Command::Ask(Request::Ledger(request))), "{requested:?}");
    }
}

/// Otherwise two runs of the job are alive at once: the process of the other attempt is another node's.
#[test]
fn a_run_that_was_given_up_and_another_has_counts_for_overlap_before_it_is_read() {
    let (mut fixture, other) = superseded_and_dead();
    fixture.pass(30);
    assert_eq!(skipped(&fixture.accept_all()), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
    fixture.handle(Event::Ledger(ledger::Event::Run(other.id(), None)));
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100200Z"], "it has ended there");
}

/// A host that never comes back must not block other runs forever: with `allow`, or if the job is never due again, no
/// next occurrence ends its run.
#[test]
fn a_cut_off_run_is_given_up_after_a_day_at_most() {
    let day = std::time::Duration::from_secs(24 * 3_600);
    let allow = Job { overlap: crate::job::Overlap::Allow, ..job("a", "0 0 1 1 *") };
    let yearly = job("a", "0 0 1 1 *");
    for job in [allow, yearly] {
        let mut fixture = found(&job, OwnerState::Gone);
        let accepted = fixture.accept_all();
        let [Change::UpdateRun { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
        assert_eq!((run.state, run.keep_until), (RunState::CutOff, Some(at("10:00:30") + day)));
        fixture.pass(24 * 3_600);
        let accepted = fixture.accept_all();
        let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
        let why = "host-b did not come back by 2026-11-21 10:00:30Z";
        assert_eq!((end.outcome, end.detail.as_deref()), (Outcome::Abandoned, Some(why)));
    }
}

/// The run's own node ends it by then too, and removes the limit once the ledger has it under a live session again.
#[test]
fn a_node_without_a_session_ends_what_it_keeps_before_others_give_it_up() {
    let allow = Job { overlap: crate::job::Overlap::Allow, ..job("a", "1 0 10 * * *") };
    let (mut fixture, tree_id) = running_one(allow);
    fixture.handle(Event::Election(election::Event::Expired { session: crate::term::SessionId("a".into()) }));
    let until = fixture.now.up + std::time::Duration::from_secs(24 * 3_600);
    assert!(fixture.take().contains(&Command::Order(Order::Deadline { tree_id, deadline: Deadline::At(until) })));
    fixture.pass_cut_off(60);
    fixture.handle(Event::Election(election::Event::Session {
        id: crate::term::SessionId("a2".into()),
        timeout: LEASE * 2,
    }));
    fixture.accept_all();
    assert!(fixture.take().contains(&Command::Order(Order::Deadline { tree_id, deadline: Deadline::None })));
}

/// The release is written once the ledger can be written to again, and until then nobody else says it.
#[test]
fn a_run_that_is_killed_because_the_lease_is_over_is_said_at_once_and_is_not_shown_as_running() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..job("a", "1 0 10 * * *") };
    let (mut fixture, tree_id) = running_one(rerun);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    fixture.commands.clear();
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    let run = RunId::parse("a.20261120T100001Z").unwrap();
    assert!(fixture.reports().contains(&Report::Killed { run: run.clone(), attempt: 1, reason: Some(Reason::Lease) }));
    let over: Vec<_> = fixture.engine.unwritten_ends().collect();
    assert_eq!(over, [(run, Some(Outcome::Interrupted))]);
}
