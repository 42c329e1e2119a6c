//! Ends of runs, and the end of the node.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::election::TransferError;
use crate::engine::{Command, Event, Report};
use crate::job::{Interrupted, Job, OnLeaseEnd};
use crate::ledger::{self, Change, Commit, RunLookup};
use crate::process::{
    EndedBy, Ending, Exit, FileFault, FileProblem, InterpreterFault, Notice, Order, StartFailure, StartStep,
};
use crate::run::journal::RecoveredRun;
use crate::run::{Outcome, Reason, RunEnd, RunId, Traces, Version};
use crate::term::{NodeName, SessionId, TermEnd};
use crate::{election, ledger::OwnerState};

const MINUTE: Duration = Duration::from_secs(60);

fn once() -> Job {
    job("a", "1 0 10 * * *")
}

fn end_of(changes: &[Change]) -> RunEnd {
    match changes {
        [Change::End { end, .. }] => end.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_end_is_kept_before_it_is_committed_and_forgotten_after() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(0), None);
    let kept = fixture.commands.iter().position(|command| matches!(command, Command::KeepEnd { .. }));
    let requested = fixture.commands.iter().position(|command| matches!(command, Command::Ask(Request::Ledger(_))));
    assert!(kept < requested && kept.is_some());
    assert_eq!(end_of(&fixture.accept_all()).outcome, Outcome::Success);
    assert!(fixture.commands.iter().any(|command| matches!(command, Command::Forget(_))));
}

impl Fixture {
    /// How the runs ended whose ends were reported as recorded; drops all commands.
    fn recorded(&mut self) -> Vec<Outcome> {
        let reports = self.reports();
        self.commands.clear();
        let recorded = reports.into_iter().filter_map(|report| match report {
            Report::Recorded(end) => Some(end.outcome),
            _ => None,
        });
        recorded.collect()
    }
}

#[test]
fn an_end_is_recorded_once_the_ledger_has_accepted_it() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(0), None);
    let id = fixture.commits()[0].0;
    fixture.pass(1);
    assert_eq!(fixture.recorded(), []);
    fixture.answer(id, Commit::Accepted);
    assert_eq!(fixture.recorded(), [Outcome::Success]);
}

#[test]
fn a_superseded_end_is_never_recorded() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(0), None);
    let id = fixture.commits()[0].0;
    fixture.answer(id, Commit::Superseded);
    let run = RunId::parse("a.20261120T100001Z").unwrap();
    fixture.handle(Event::Ledger(ledger::Event::Run(run.clone(), None)));
    fixture.looked_up(&run, RunLookup::Ended);
    assert!(fixture.reports().contains(&Report::Superseded { run, outcome: Some(Outcome::Success) }));
    fixture.pass(1);
    assert_eq!(fixture.recorded(), []);
}

#[test]
fn an_end_that_the_backend_has_written_is_recorded_once() {
    let record = running(&once(), at("09:00:00"), OwnerState::Gone).record;
    let end = RunEnd::unseen(&record, Outcome::Interrupted, Some(Reason::NodeDied), at("09:59:00"));
    let written = || Event::Ledger(ledger::Event::Ended { end: Box::new(end.clone()), at: Version(0), before: None });
    let mut fixture = Fixture::new("10:00:00", set([once()]));
    fixture.join();
    fixture.handle(written());
    assert_eq!(fixture.recorded(), [Outcome::Interrupted]);

    // This process knows of the run, so it writes the same end itself.
    let mut fixture = Fixture::new("10:00:00", set([once()]));
    let run =
        RecoveredRun { record, version: Version(0), pid: None, traces: Traces::default(), end: Some(end.clone()) };
    fixture.handle(recovered_runs(vec![run]));
    fixture.join();
    fixture.handle(written());
    fixture.accept_all();
    assert_eq!(fixture.recorded(), [Outcome::Interrupted]);
}

#[test]
fn exit_codes_and_signals_are_distinguished() {
    let mut lenient = once();
    lenient.success_exit_codes = [0, 3].into();
    for (exit, outcome, reason) in [
        (Exit::Code(0), Outcome::Success, None),
        (Exit::Code(3), Outcome::Success, None),
        (Exit::Code(1), Outcome::Failure, None),
        (Exit::Signal { signal: 9, core: false }, Outcome::Failure, None),
        (Exit::Signal { signal: 11, core: true }, Outcome::Failure, Some(Reason::CoreDump)),
    ] {
        let (mut fixture, tree_id) = running_one(lenient.clone());
        fixture.ended(tree_id, exit, None);
        let end = end_of(&fixture.accept_all());
        assert_eq!((end.outcome, end.reason), (outcome, reason), "{exit:?}");
    }
}

#[test]
fn a_run_that_the_kernel_killed_for_its_memory_says_so() {
    for (exit, ended_by, outcome, reason) in [
        (Exit::Signal { signal: 9, core: false }, None, Outcome::Failure, Some(Reason::NoMemory)),
        (Exit::Code(1), None, Outcome::Failure, Some(Reason::NoMemory)),
        // One of its processes was killed and the run still succeeded; or somebody else killed it.
        (Exit::Code(0), None, Outcome::Success, None),
        (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Deadline), Outcome::Interrupted, Some(Reason::Lease)),
    ] {
        let (mut fixture, tree_id) = running_one(once());
        let ending = Ending { out_of_memory: true, ..fixture.ending(tree_id, exit, ended_by) };
        fixture.handle(Event::Warden(Notice::Ended(Box::new(ending))));
        let end = end_of(&fixture.accept_all());
        assert_eq!((end.outcome, end.reason), (outcome, reason), "{exit:?}");
    }
}

#[test]
fn an_attempt_over_its_timeout_is_stopped_with_its_grace() {
    let mut slow = once();
    slow.timeout = Some(Duration::from_secs(3));
    let (mut fixture, tree_id) = running_one(slow);
    fixture.pass(1);
    assert_eq!(fixture.engine.wake(fixture.now).up, Some(fixture.now.up + Duration::from_secs(2)));
    fixture.pass(2);
    assert!(fixture.take().contains(&Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })));
    fixture.ended(tree_id, Exit::Code(0), Some(EndedBy::Order));
    assert_eq!(end_of(&fixture.accept_all()).outcome, Outcome::Timeout);
}

/// The warden kills it if the daemon is stopped, which learns of that before or after it sees the timeout itself.
#[test]
fn a_run_killed_at_its_time_limit_has_timed_out() {
    for seen_first in [false, true] {
        let (mut fixture, tree_id) = running_one(Job { timeout: Some(MINUTE), ..once() });
        if seen_first {
            fixture.pass(61);
        }
        fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::TimeLimit));
        let end = end_of(&fixture.accept_all());
        assert_eq!((end.outcome, end.reason), (Outcome::Timeout, None), "{seen_first}");
    }
}

#[test]
fn what_cannot_be_started_ends_with_its_reason() {
    let why = |step, errno| StartFailure::Step { step, errno };
    let missing = FileProblem { index: 0, fault: FileFault::System };
    for (why, outcome, reason) in [
        (why(StartStep::Exec, 2), Outcome::Failure, Reason::NotFound),
        (why(StartStep::Interpreter(InterpreterFault::CarriageReturn), 2), Outcome::Failure, Reason::NotFound),
        (why(StartStep::Exec, 13), Outcome::Failure, Reason::NotExecutable),
        (why(StartStep::Directory, 2), Outcome::Failure, Reason::NoDirectory),
        (why(StartStep::User, 0), Outcome::Failure, Reason::NoUser),
        (why(StartStep::Environment(missing), 2), Outcome::Failure, Reason::NoEnvironment),
        (why(StartStep::Secret(missing), 2), Outcome::Failure, Reason::NoSecret),
        (why(StartStep::Environment(missing), 11), Outcome::Failure, Reason::NoEnvironment),
        (why(StartStep::Secret(missing), 12), Outcome::Failure, Reason::NoSecret),
        (why(StartStep::Exec, 0), Outcome::Failure, Reason::NotExecutable),
        (why(StartStep::Exec, 11), Outcome::Failure, Reason::NoMemory),
    ] {
        let mut fixture = Fixture::settled("10:00:00", vec![once()]);
        fixture.pass(1);
        fixture.accept_all();
        let tree_id = fixture.starts()[0].tree_id;
        fixture.commands.clear();
        fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
        let end = end_of(&fixture.accept_all());
        assert_eq!((end.outcome, end.reason), (outcome, Some(reason)));
        let named = fixture.reports().into_iter().find_map(|report| match report {
            Report::NotStarted { problem, .. } => Some(problem.to_string()),
            _ => None,
        });
        assert!(named.is_some() && end.detail == named, "{:?}", end.detail);
    }
}

#[test]
fn an_end_that_another_version_refused_is_written_again_at_that_version() {
    let (mut fixture, tree_id) = running_one(once());
    let record = fixture.engine.runs().next().unwrap().clone();
    fixture.ended(tree_id, Exit::Code(0), None);
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let id = RunId::scheduled(record.job.clone(), record.scheduled_at);
    fixture.handle(Event::Ledger(ledger::Event::Run(id, Some((record, Version(4))))));
    let commits = fixture.commits();
    assert!(matches!(commits.as_slice(), [(_, Change::End { at: Version(4), .. })]), "{commits:?}");
}

#[test]
fn a_drained_node_resigns_first_then_waits_then_leaves_then_ends() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    assert!(fixture.take().contains(&Command::Ask(Request::Election(election::Request::Resign))));
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass(30);
    let leave = Command::Ask(Request::Election(election::Request::Leave));
    assert!(!fixture.commands.contains(&leave));
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(!fixture.commands.contains(&leave), "the end is not written yet");
    fixture.accept_all();
    assert!(fixture.commands.contains(&leave));
    fixture.handle(Event::Election(election::Event::Left));
    assert!(fixture.take().contains(&Command::Exit));
}

#[test]
fn a_draining_node_that_is_out_of_the_queue_sleeps_until_its_timeout() {
    let (mut fixture, _) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass(10);
    assert_eq!(fixture.engine.wake(fixture.now).up, Some(fixture.now.up + Duration::from_secs(50)));
}

#[test]
fn a_draining_node_begins_nothing() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.commands.clear();
    fixture.pass(1);
    assert!(fixture.commits().is_empty());
}

#[test]
fn runs_that_outlast_the_drain_timeout_are_stopped_and_end_interrupted() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass(60);
    assert!(fixture.take().contains(&Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })));
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    let end = end_of(&fixture.accept_all());
    assert_eq!((end.outcome, end.reason), (Outcome::Interrupted, Some(Reason::Drain)));
}

#[test]
fn a_second_signal_kills_at_once() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Stop);
    assert!(fixture.take().contains(&Command::Order(Order::Kill { tree_id })));
}

#[test]
fn a_tree_that_does_not_die_keeps_the_member() {
    let (mut fixture, _) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass(60);
    fixture.commands.clear();
    fixture.pass(60);
    let commands = fixture.take();
    assert!(commands.contains(&Command::Exit));
    assert!(!commands.contains(&Command::Ask(Request::Election(election::Request::Leave))));
}

fn leave() -> Command {
    Command::Ask(Request::Election(election::Request::Leave))
}

#[test]
fn ends_that_nobody_writes_hold_the_end_up_for_a_moment_only_and_the_member_stays() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Election(election::Event::Suspended { session: SessionId("a".into()), error: None }));
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass_cut_off(30);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(!fixture.commands.contains(&Command::Exit), "it may be written yet");
    let ends_at = fixture.now.up + Duration::from_secs(2);
    assert_eq!(fixture.engine.wake(fixture.now).up, Some(ends_at));
    fixture.commands.clear();
    fixture.pass_cut_off(2);
    assert!(fixture.reports().contains(&Report::Unsettled { runs: 1 }));
    let commands = fixture.take();
    assert!(commands.contains(&Command::Exit) && !commands.contains(&leave()), "{commands:?}");
}

#[test]
fn the_node_never_leaves_while_an_end_is_known_only_here() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Drain { timeout: MINUTE });
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.pass(60);
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    for _ in 0..20 {
        fixture.pass(1);
    }
    let commands = fixture.take();
    assert!(commands.contains(&Command::Exit) && !commands.contains(&leave()), "{commands:?}");
}

#[test]
fn a_node_that_cannot_take_part_any_more_lets_its_runs_end_and_writes_nothing() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Failed { timeout: MINUTE });
    let lost = Report::TermOver { token: Fixture::term(9).token, why: TermEnd::SessionExpired };
    assert!(fixture.reports().contains(&lost));
    let first = vec![RunId::scheduled(name("a"), at("10:00:01"))];
    assert!(fixture.reports().contains(&Report::Draining { runs: 1, first, timeout: MINUTE }));
    fixture.pass_cut_off(30);
    let commands = fixture.take();
    assert!(!commands.iter().any(|command| matches!(command, Command::Exit | Command::Order(Order::Stop { .. }))));
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(fixture.commands.iter().any(|command| matches!(command, Command::KeepEnd { .. })));
    let commands = fixture.take();
    assert!(commands.contains(&Command::Exit) && !commands.contains(&leave()), "{commands:?}");
    assert!(!commands.iter().any(|command| matches!(command, Command::Ask(Request::Ledger(_)))));
}

#[test]
fn a_node_that_cannot_take_part_stops_what_outlasts_the_drain_timeout() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Failed { timeout: MINUTE });
    fixture.pass_cut_off(60);
    assert!(fixture.take().contains(&Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })));
    fixture.handle(Event::Stop);
    assert!(fixture.take().contains(&Command::Order(Order::Kill { tree_id })));
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    assert!(fixture.take().contains(&Command::Exit));
}

#[test]
fn a_node_that_cannot_take_part_and_runs_nothing_ends_at_once() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.handle(Event::Failed { timeout: MINUTE });
    assert!(fixture.take().contains(&Command::Exit));
}

#[test]
fn handing_over_leaves_the_queue_and_joins_it_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.handle(Event::HandOver { to: None });
    assert!(fixture.take().contains(&Command::Ask(Request::Election(election::Request::Resign))));
    fixture.pass(1);
    assert!(fixture.commits().is_empty(), "nothing is decided meanwhile");
    fixture.handle(Event::Election(election::Event::Withdrawn));
    assert!(fixture.take().contains(&Command::Ask(Request::Election(election::Request::Campaign))));
}

#[test]
fn a_transfer_that_cannot_be_made_changes_nothing() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    let to = NodeName::new("host-z");
    fixture.handle(Event::HandOver { to: Some(to.clone()) });
    assert!(fixture.take().contains(&Command::Ask(Request::Election(election::Request::Transfer(to.clone())))));
    fixture.pass(1);
    assert!(fixture.commits().is_empty(), "nothing is decided meanwhile");
    let why = TransferError::NotQueued;
    fixture.handle(Event::Election(election::Event::NotTransferred { to: to.clone(), why: why.clone() }));
    let commands = fixture.take();
    assert!(commands.contains(&Command::Report(Report::NotTransferred { to, why })));
    let is_commit =
        |command: &&Command| matches!(command, Command::Ask(Request::Ledger(ledger::Request::Commit { .. })));
    assert_eq!(commands.iter().filter(is_commit).count(), 1, "what came due meanwhile is begun");
}

#[test]
fn a_node_that_does_not_lead_has_no_leadership_to_give() {
    let mut fixture = Fixture::new("10:00:00", set([once()]));
    let to = NodeName::new("host-z");
    fixture.handle(Event::HandOver { to: Some(to.clone()) });
    let refused = Command::Report(Report::NotTransferred { to, why: TransferError::NotLeading });
    assert_eq!(fixture.take(), [refused]);
}

#[test]
fn an_earlier_process_of_the_node_leaves_ends_to_be_written() {
    let record = running(&once(), at("09:00:00"), OwnerState::Gone).record;
    let mut fixture = Fixture::new("10:00:00", set([once()]));
    let run = RecoveredRun { record, version: Version(0), pid: None, traces: Traces::default(), end: None };
    fixture.handle(recovered_runs(vec![run]));
    assert!(fixture.commits().is_empty(), "there is no session yet");
    fixture.join();
    let end = end_of(&fixture.accept_all());
    assert_eq!((end.outcome, end.reason), (Outcome::Interrupted, Some(Reason::NodeDied)));
}

/// SIGKILL leaves no exit code: the run had ended by itself when its deadline came.
#[test]
fn an_exit_code_wins_over_a_deadline_that_comes_in_the_same_moment() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once() };
    for (exit, outcome) in [(Exit::Code(0), Outcome::Success), (Exit::Code(1), Outcome::Failure)] {
        let (mut fixture, tree_id) = running_one(rerun.clone());
        fixture.ended(tree_id, exit, Some(EndedBy::Deadline));
        assert_eq!(end_of(&fixture.accept_all()).outcome, outcome);
    }
    let (mut fixture, tree_id) = running_one(rerun);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::EntryGone }));
    fixture.ended(tree_id, Exit::Code(0), Some(EndedBy::Order));
    assert_eq!(end_of(&fixture.accept_all()).outcome, Outcome::Success);
}

#[test]
fn a_timeout_counts_from_the_order_to_start_until_the_program_runs() {
    let slow = Job { timeout: Some(Duration::from_secs(3)), ..once() };
    let mut fixture = Fixture::settled("10:00:00", vec![slow]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    let stop = Command::Order(Order::Stop { tree_id, grace_ms: 10_000 });
    fixture.pass(2);
    assert!(!fixture.commands.contains(&stop));
    // It starts late, and the timeout counts from its start.
    fixture.started(tree_id);
    fixture.pass(2);
    assert!(!fixture.commands.contains(&stop));
    fixture.pass(1);
    assert!(fixture.take().contains(&stop));
}

#[test]
fn one_that_does_not_come_to_run_is_stopped_by_its_timeout_and_started_no_more() {
    let stuck = Job { timeout: Some(Duration::from_secs(3)), ..once() };
    let mut fixture = Fixture::settled("10:00:00", vec![stuck]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.pass(3);
    assert!(fixture.take().contains(&Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })));
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(end_of(&fixture.accept_all()).outcome, Outcome::Timeout);
}

/// No duration in a file, a command or a record may overflow an instant.
#[test]
fn the_last_of_all_instants_ends_no_node() {
    let last = Job {
        splay: crate::job::Splay::new(Duration::from_secs(12 * 3_600), "a"),
        overlap: crate::job::Overlap::Queue,
        ..job("a", "@at 9999-12-30T21:59:58Z")
    };
    let mut fixture = Fixture::settled("10:00:00", vec![last]);
    fixture.pass(1);
    assert!(fixture.accept_all().is_empty());
    let _ = fixture.engine.wake(fixture.now);
    fixture.now.wall = "9999-12-30T21:59:59Z".parse().unwrap();
    fixture.handle(Event::Tick);
    fixture.accept_all();
    fixture.now.wall = jiff::Timestamp::MAX;
    fixture.handle(Event::Tick);
    fixture.accept_all();
}
