//! Runs that an earlier leader left behind.

use super::rig::*;
use crate::coordination::Request;
use crate::engine::flight::{Flight, Holder, News};
use crate::engine::{Command, Event, Report};
use crate::job::{Interrupted, Job, OnLeaseEnd};
use crate::ledger::{self, Change, Commit, OwnerState, Snapshot};
use crate::run::journal::RecoveredRun;
use crate::run::{Outcome, Reason, RunEnd, RunId, RunState, Traces, Version};
use crate::term::TermEnd;
use crate::warden::wire::{Deadline, EndedBy, Exit, Order};
use crate::{election, run::OnLoss};

/// A leader that finds a run of `job`, begun at 10:00:00, at 10:00:30.
fn found(job: &Job, owner: OwnerState) -> Rig {
    let run = running(job, at("10:00:00"), owner);
    let jobs = [entry(job, at("10:00:00"), 1)].into();
    Rig::leading("10:00:30", set([job.clone()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() })
}

fn rerun() -> Job {
    let mut job = job("a", "* * * * *");
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    job
}

#[test]
fn a_living_owners_run_is_left_and_watched() {
    let mut rig = found(&job("a", "* * * * *"), OwnerState::Alive);
    let run = RunId::parse("a.20261120T100000Z").unwrap();
    assert!(rig.commands.contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(run)))));
    assert!(rig.commits().is_empty());
}

#[test]
fn a_living_owners_run_counts_for_overlap() {
    let mut rig = found(&job("a", "* * * * *"), OwnerState::Alive);
    rig.pass(30);
    assert_eq!(skipped(&rig.accept_all()), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

#[test]
fn an_end_that_comes_too_late_hides_no_attempt_that_was_begun_since() {
    let job = rerun();
    let mut rig = Rig::new("10:00:30", set([job.clone()]));
    let first = running(&job, at("10:00:00"), OwnerState::Gone).record;
    let end = Some(RunEnd::unseen(&first, Outcome::Success, None, at("10:00:10")));
    rig.tell(Event::Recovered(vec![RecoveredRun {
        record: first,
        version: Version(0),
        pid: None,
        traces: Traces::default(),
        end,
    }]));
    rig.join();
    let mut second = running(&job, at("10:00:00"), OwnerState::Alive);
    (second.record.attempt, second.version) = (2, Version(1));
    let jobs = [entry(&job, at("10:00:00"), 1)].into();
    rig.elect(9, Snapshot { jobs, running: vec![second], ..Snapshot::default() });
    assert!(rig.reports().iter().any(|report| matches!(report, Report::Superseded { .. })));
    // The end is not answered yet.
    rig.pass(30);
    let asked: Vec<Change> = rig.commits().into_iter().map(|(_, change)| change).collect();
    assert_eq!(skipped(&asked), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

#[test]
fn rerun_begins_another_attempt_under_the_same_id() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    let accepted = rig.accept_all();
    let [Change::Settle { at, run }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((*at, run.attempt, run.state), (Version(0), 2, RunState::Running));
    let starts = rig.starts();
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
    let mut rig = found(&job("a", "* * * * *"), OwnerState::Gone);
    let accepted = rig.accept_all();
    let [Change::Settle { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(run.state, RunState::CutOff);
    assert!(rig.reports().iter().any(|report| matches!(report, Report::CutOff { .. })));
    rig.pass(28);
    assert!(rig.commits().is_empty());
    rig.pass(1);
    let accepted = rig.accept_all();
    let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(end.outcome, Outcome::Abandoned);
    rig.pass(1);
    assert_eq!(begun(&rig.accept_all()), ["a.20261120T100100Z"]);
}

#[test]
fn a_run_whose_processes_were_seen_dead_is_never_cut_off() {
    let accepted = found(&job("a", "* * * * *"), OwnerState::Dead).accept_all();
    let [Change::End { end, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!(end.outcome, Outcome::Interrupted);
}

#[test]
fn a_cut_off_owner_that_is_back_is_left_alone_again() {
    let mut rig = found(&job("a", "* * * * *"), OwnerState::Gone);
    let accepted = rig.accept_all();
    let [Change::Settle { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    let mut back = run.clone();
    (back.state, back.owner.session.0) = (RunState::Running, "b2".into());
    let id = RunId::scheduled(back.job.clone(), back.scheduled_at);
    rig.tell(Event::Ledger(ledger::Event::Run(id, Some((back, Version(2))))));
    rig.pass(29);
    assert!(rig.commits().is_empty());
}

#[test]
fn a_watched_owner_that_goes_is_settled_then() {
    let mut rig = found(&rerun(), OwnerState::Alive);
    let run = running(&rerun(), at("10:00:00"), OwnerState::Alive);
    let id = RunId::scheduled(run.record.job.clone(), run.record.scheduled_at);
    rig.commands.clear();
    rig.tell(Event::Ledger(ledger::Event::OwnerGone(id, OwnerState::Gone, Some((run.record, Version(0))))));
    let accepted = rig.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::Settle { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn takeover_is_done_when_all_is_answered() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    assert!(!rig.engine.is_settled());
    rig.accept_all();
    assert!(rig.engine.is_settled());
    assert!(rig.reports().iter().any(|report| matches!(report, Report::TakeoverDone { settled: 1, missed: 0, .. })));
}

#[test]
fn a_lost_term_kills_what_may_be_begun_again_and_lets_it_go() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    rig.accept_all();
    let start = rig.starts()[0].clone();
    rig.started(start.slot);
    rig.commands.clear();
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::EntryGone }));
    assert!(rig.take().contains(&Command::Order(Order::Kill { slot: start.slot })));
    rig.ended(start.slot, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    let accepted = rig.accept_all();
    assert!(
        matches!(accepted.as_slice(), [Change::Reown { run, .. }] if run.state == RunState::Retrying),
        "{accepted:?}"
    );
}

#[test]
fn a_resigned_leader_lets_its_runs_go_on() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    rig.accept_all();
    let start = rig.starts()[0].clone();
    rig.started(start.slot);
    rig.commands.clear();
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::Resigned }));
    assert!(!rig.commands.iter().any(|command| matches!(command, Command::Order(Order::Kill { .. }))));
}

#[test]
fn a_run_let_go_is_begun_again_by_the_leader() {
    let mut run = running(&rerun(), at("10:00:00"), OwnerState::Alive);
    run.record.state = RunState::Retrying;
    assert_eq!(run.record.on_loss, OnLoss::Rerun);
    let jobs = [entry(&rerun(), at("10:00:00"), 1)].into();
    let mut rig =
        Rig::leading("10:00:30", set([rerun()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() });
    let accepted = rig.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::Settle { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn a_rerun_that_another_settled_first_is_not_started() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    let commits = rig.commits();
    rig.answer(commits[0].0, Commit::Superseded);
    assert!(rig.starts().is_empty());
}

#[test]
fn a_run_of_this_very_session_that_was_never_answered_for_was_never_started_and_is_begun_again() {
    let mut run = running(&job("a", "* * * * *"), at("10:00:00"), OwnerState::Alive);
    (run.record.owner.node, run.record.owner.session.0) = (crate::term::NodeName::new("host-a"), "a".into());
    let jobs = [entry(&job("a", "* * * * *"), at("10:00:00"), 1)].into();
    let snapshot = Snapshot { jobs, running: vec![run], ..Snapshot::default() };
    let accepted = Rig::leading("10:00:30", set([job("a", "* * * * *")]), snapshot).accept_all();
    let [Change::Settle { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
    assert_eq!((run.attempt, run.past.attempts.len()), (2, 0));
}

#[test]
fn an_occurrence_waits_for_the_end_of_a_run_that_is_just_being_settled() {
    let mut job = job("a", "* * * * *");
    job.on_lease_end = OnLeaseEnd::Kill;
    let run = running(&job, at("10:00:00"), OwnerState::Gone);
    let jobs = [entry(&job, at("10:00:00"), 1)].into();
    let snapshot = Snapshot { jobs, running: vec![run], ..Snapshot::default() };
    let mut rig = Rig::leading("10:01:00", set([job]), snapshot);
    let commits = rig.commits();
    assert!(matches!(commits.as_slice(), [(_, Change::End { .. })]), "{commits:?}");
    rig.answer(commits[0].0, Commit::Accepted);
    assert_eq!(begun(&rig.accept_all()), ["a.20261120T100100Z"]);
}

#[test]
fn what_is_heard_while_a_commit_is_open_counts_if_that_is_refused() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    let commits = rig.commits();
    let mut back = running(&rerun(), at("10:00:00"), OwnerState::Alive).record;
    back.state = RunState::Retrying;
    let id = back.id();
    rig.tell(Event::Ledger(ledger::Event::Run(id, Some((back, Version(1))))));
    rig.answer(commits[0].0, Commit::Superseded);
    let accepted = rig.accept_all();
    assert!(
        matches!(accepted.as_slice(), [Change::Settle { at: Version(1), run }] if run.attempt == 2),
        "{accepted:?}"
    );
}

/// Its owner is back, and the answer to the mark was lost: it runs, and stands in the way of the next.
#[test]
fn a_run_of_which_nobody_knows_whether_it_was_marked_cut_off_is_looked_up() {
    let mut rig = found(&job("a", "* * * * *"), OwnerState::Gone);
    let commits = rig.commits();
    let [(mark, Change::Settle { run, .. })] = commits.as_slice() else { panic!("{commits:?}") };
    rig.answer(*mark, Commit::Unknown);
    let asked = rig.take();
    assert!(asked.contains(&Command::Ask(Request::Ledger(ledger::Request::ReadRun(run.id())))));
    assert!(asked.contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(run.id())))));
    let mut back = run.clone();
    (back.state, back.owner.session.0) = (RunState::Running, "b2".into());
    rig.tell(Event::Ledger(ledger::Event::Run(back.id(), Some((back, Version(2))))));
    rig.pass(30);
    assert_eq!(skipped(&rig.accept_all()), ["overlap 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
}

/// An operator writes into the record of a lost run that waits to be begun again: its owner's end is not told by itself once more.
#[test]
fn a_lost_run_whose_record_changes_is_watched_again() {
    let mut rig = Rig::new("10:00:30", set([rerun()]));
    rig.join();
    let lost = running(&rerun(), at("10:00:00"), OwnerState::Gone);
    let (mut changed, jobs) = (lost.record.clone(), [entry(&rerun(), at("10:00:00"), 1)].into());
    let snapshot = Box::new(Snapshot { jobs, running: vec![lost], ..Snapshot::default() });
    let (term, lease_until, took) = (Rig::term(9), crate::clock::Uptime::ZERO, std::time::Duration::ZERO);
    rig.tell(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    changed.nonce = crate::run::Nonce("operator".into());
    rig.commands.clear();
    rig.tell(Event::Ledger(ledger::Event::Run(changed.id(), Some((changed.clone(), Version(1))))));
    assert!(rig.take().contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(changed.id())))));
    rig.tell(Event::Ledger(ledger::Event::OwnerGone(
        changed.id(),
        OwnerState::Gone,
        Some((changed.clone(), Version(1))),
    )));
    rig.pass(1);
    let accepted = rig.accept_all();
    assert!(matches!(accepted.as_slice(), [Change::Settle { run, .. }] if run.attempt == 2), "{accepted:?}");
}

#[test]
fn that_an_owner_is_gone_stays_known_while_a_commit_is_open() {
    let record = running(&job("a", "* * * * *"), at("10:00:00"), OwnerState::Alive).record;
    let mut flight = Flight::new(record.clone(), Version(0), Holder::Other);
    let found = |version| Some((record.clone(), Version(version)));
    flight.note_news(News::OwnerGone(OwnerState::Gone, found(0)));
    flight.note_news(News::Changed(found(1)));
    let news = flight.news.take();
    assert!(matches!(news, Some(News::OwnerGone(_, Some((_, Version(1)))))), "{news:?}");
}

#[test]
fn a_leader_watches_a_run_that_it_gave_up_and_another_has() {
    let mut rig = found(&rerun(), OwnerState::Gone);
    rig.accept_all();
    let start = rig.starts()[0].clone();
    rig.started(start.slot);
    let mut other = start.run.clone();
    (other.attempt, other.token.0, other.owner.session.0) = (3, 12, "b2".into());
    rig.tell(Event::Election(election::Event::Session { id: crate::term::SessionId("a2".into()), timeout: LEASE * 2 }));
    let commits = rig.commits();
    rig.answer(commits[0].0, Commit::Superseded);
    rig.tell(Event::Ledger(ledger::Event::Run(other.id(), Some((other.clone(), Version(4))))));
    rig.commands.clear();
    rig.ended(start.slot, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    assert!(rig.take().contains(&Command::Ask(Request::Ledger(ledger::Request::ReadRun(other.id())))));
    rig.tell(Event::Ledger(ledger::Event::Run(other.id(), Some((other.clone(), Version(4))))));
    assert!(rig.take().contains(&Command::Ask(Request::Ledger(ledger::Request::Watch(other.id())))));
}

/// A host that never comes back takes no place from others for ever: `allow`, and a job that is never due again, have no next
/// occurrence to end it by.
#[test]
fn a_cut_off_run_is_given_up_after_a_day_at_most() {
    let day = std::time::Duration::from_secs(24 * 3_600);
    let allow = Job { overlap: crate::job::Overlap::Allow, ..job("a", "0 0 1 1 *") };
    let yearly = job("a", "0 0 1 1 *");
    for job in [allow, yearly] {
        let mut rig = found(&job, OwnerState::Gone);
        let accepted = rig.accept_all();
        let [Change::Settle { run, .. }] = accepted.as_slice() else { panic!("{accepted:?}") };
        assert_eq!((run.state, run.keep_until), (RunState::CutOff, Some(at("10:00:30") + day)));
        rig.pass(24 * 3_600);
        let accepted = rig.accept_all();
        assert!(
            matches!(accepted.as_slice(), [Change::End { end, .. }] if end.outcome == Outcome::Abandoned),
            "{accepted:?}"
        );
    }
}

/// Its own node ends it by then, too, and lets it go on for good once the ledger has it under a living session again.
#[test]
fn a_node_without_a_session_ends_what_it_keeps_before_others_give_it_up() {
    let allow = Job { overlap: crate::job::Overlap::Allow, ..job("a", "1 0 10 * * *") };
    let (mut rig, slot) = running_one(allow);
    rig.tell(Event::Election(election::Event::Expired { session: crate::term::SessionId("a".into()) }));
    let until = rig.now.up + std::time::Duration::from_secs(24 * 3_600);
    assert!(rig.take().contains(&Command::Order(Order::Deadline { slot, deadline: Deadline::At(until) })));
    rig.pass_cut_off(60);
    rig.tell(Event::Election(election::Event::Session { id: crate::term::SessionId("a2".into()), timeout: LEASE * 2 }));
    rig.accept_all();
    assert!(rig.take().contains(&Command::Order(Order::Deadline { slot, deadline: Deadline::None })));
}
