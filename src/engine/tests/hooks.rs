//! What follows an end or a skip, who runs it, and how much of it at once.

mod ending;
mod recovery;

use std::sync::Arc;
use std::time::Duration;

use super::rig::*;
use crate::engine::hooks::{AT_ONCE, Cause, HookOutcome, HookStart, TIMEOUT};
use crate::engine::{Command, Event, Report};
use crate::job::{CommandLine, Hook, Hooks, Job, Misfire, OnLeaseEnd, Retries};
use crate::ledger::{Commit, OwnerState, Snapshot};
use crate::run::journal::RecoveredRun;
use crate::run::{Outcome, RunEnd, Traces, Version};
use crate::term::TermEnd;
use crate::warden::wire::{EndedBy, Exit, Notice, Order, Slot, StartFailure, Step};
use crate::{election, ledger};

fn hooks() -> Hooks {
    Hook::ALL.map(|hook| (hook, CommandLine::Shell(hook.as_str().into()))).into()
}

/// Due once, with all hooks.
fn once() -> Job {
    Job { hooks: hooks(), ..job("a", "1 0 10 * * *") }
}

/// Due every minute, with all hooks.
fn minutely() -> Job {
    Job { hooks: hooks(), ..job("a", "* * * * *") }
}

impl Rig {
    /// The hooks to start; everything else is forgotten.
    fn calls(&mut self) -> Vec<HookStart> {
        let calls = self.take().into_iter().filter_map(|command| match command {
            Command::RunHook(start) => Some(*start),
            _ => None,
        });
        calls.collect()
    }

    /// The same in words: the hook, its run, and what it follows.
    fn hooks(&mut self) -> Vec<String> {
        self.calls().iter().map(in_words).collect()
    }

    /// All that is asked for is accepted; the hooks that follow.
    fn hooks_of_all(&mut self) -> Vec<String> {
        self.accept_all();
        self.hooks()
    }

    /// How hooks went, as told.
    fn finished(&self) -> Vec<(Hook, HookOutcome)> {
        let told = self.reports().into_iter().filter_map(|report| match report {
            Report::HookFinished { hook, how, .. } => Some((hook, how)),
            _ => None,
        });
        told.collect()
    }
}

fn in_words(start: &HookStart) -> String {
    let what = match &start.call.cause {
        Cause::Ended(end) => end.outcome.as_str().to_owned(),
        Cause::Skipped { skip, first, count } => format!("{} {count} {first} {}", skip.reason.as_str(), skip.last),
    };
    format!("{} {} {what}", start.call.hook.as_str(), start.call.run())
}

/// A leader whose run of [`once`] has failed, and its hook.
fn failed() -> (Rig, HookStart) {
    let (mut rig, slot) = running_one(once());
    rig.ended(slot, Exit::Code(3), None);
    rig.accept_all();
    let call = rig.calls().remove(0);
    (rig, call)
}

const RUN: &str = "a.20261120T100001Z";

#[test]
fn success_and_every_other_outcome_have_their_hook() {
    for (exit, ended_by, expected) in [
        (Exit::Code(0), None, "on_success a.20261120T100001Z success"),
        (Exit::Code(1), None, "on_failure a.20261120T100001Z failure"),
        (Exit::Signal { signal: 9, core: false }, None, "on_failure a.20261120T100001Z failure"),
        (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Deadline), "on_failure a.20261120T100001Z interrupted"),
    ] {
        let (mut rig, slot) = running_one(once());
        rig.ended(slot, exit, ended_by);
        assert_eq!(rig.hooks_of_all(), [expected], "{exit:?}");
    }
}

#[test]
fn a_run_that_took_too_long_or_could_not_be_started_has_failed() {
    let (mut rig, slot) = running_one(Job { timeout: Some(Duration::from_secs(3)), ..once() });
    rig.pass(3);
    rig.ended(slot, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(rig.hooks_of_all(), [format!("on_failure {RUN} timeout")]);

    let mut rig = Rig::settled("10:00:00", vec![once()]);
    rig.pass(1);
    rig.accept_all();
    let slot = rig.starts()[0].slot;
    let why = StartFailure::Step { step: Step::Exec, errno: 2 };
    rig.tell(Event::Warden(Notice::NotStarted { slot, why }));
    assert_eq!(rig.hooks_of_all(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn without_the_key_nothing_follows() {
    let (mut rig, slot) = running_one(Job { hooks: Hooks::new(), ..once() });
    rig.ended(slot, Exit::Code(1), None);
    assert!(rig.hooks_of_all().is_empty());
}

#[test]
fn nothing_follows_before_the_ledger_has_the_end_and_no_process_before_the_journal_forgets_it() {
    let (mut rig, slot) = running_one(once());
    rig.ended(slot, Exit::Code(1), None);
    let id = rig.commits()[0].0;
    rig.pass(1);
    assert!(rig.hooks().is_empty());
    rig.answer(id, Commit::Accepted);
    let place = |wanted: fn(&Command) -> bool| rig.commands.iter().position(wanted).unwrap();
    assert!(place(|one| matches!(one, Command::Forget(_))) < place(|one| matches!(one, Command::RunHook(_))));
    assert_eq!(rig.hooks(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn an_answer_that_is_not_known_leads_to_nothing_until_it_is() {
    let (mut rig, slot) = running_one(once());
    rig.ended(slot, Exit::Code(1), None);
    let id = rig.commits()[0].0;
    rig.answer(id, Commit::Unknown);
    let commits = rig.commits();
    assert_eq!(commits.len(), 1);
    rig.answer(commits[0].0, Commit::Accepted);
    assert_eq!(rig.hooks(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn an_end_that_another_wrote_is_followed_by_nothing_here() {
    let (mut rig, slot) = running_one(once());
    let record = rig.engine.runs().next().unwrap().clone();
    rig.ended(slot, Exit::Code(1), None);
    let id = rig.commits()[0].0;
    rig.answer(id, Commit::Superseded);
    rig.tell(Event::Ledger(ledger::Event::Run(record.id(), None)));
    assert!(rig.reports().contains(&Report::Superseded { run: record.id() }));
    assert!(rig.hooks_of_all().is_empty());
}

#[test]
fn only_the_last_attempt_is_followed() {
    let retries = Retries { limit: 1, delay: Duration::from_secs(1), ..Retries::default() };
    let (mut rig, slot) = running_one(Job { retries, ..once() });
    rig.ended(slot, Exit::Code(1), None);
    rig.accept_all();
    rig.pass(2);
    rig.accept_all();
    let slot = rig.starts()[0].slot;
    assert!(rig.hooks().is_empty());
    rig.ended(slot, Exit::Code(1), None);
    assert_eq!(rig.hooks_of_all(), [format!("on_failure {RUN} failure")]);
}

/// A leader that finds a run of `job`, begun at 10:00:00, at 10:00:30.
fn found(job: &Job, owner: OwnerState) -> Rig {
    let run = running(job, at("10:00:00"), owner);
    let jobs = [entry(job, at("10:00:00"), 1)].into();
    Rig::leading("10:00:30", set([job.clone()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() })
}

#[test]
fn a_leader_runs_the_hook_of_what_it_settles() {
    let kill = Job { on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    assert_eq!(found(&kill, OwnerState::Gone).hooks_of_all(), ["on_failure a.20261120T100000Z interrupted"]);
    let mut rig = found(&minutely(), OwnerState::Gone);
    assert!(rig.hooks_of_all().is_empty(), "it is cut off, and may go on");
    rig.pass(29);
    assert_eq!(rig.hooks_of_all(), ["on_failure a.20261120T100000Z abandoned"]);
}

#[test]
fn what_somebody_else_settled_before_the_leader_is_not_followed_by_it() {
    let kill = Job { on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    for answer in [Commit::Superseded, Commit::Fenced, Commit::Unknown] {
        let mut rig = found(&kill, OwnerState::Gone);
        let id = rig.commits()[0].0;
        rig.answer(id, answer);
        assert!(rig.hooks_of_all().is_empty(), "{answer:?}");
    }
}

#[test]
fn a_node_that_is_back_runs_the_hook_of_what_its_death_ended() {
    let mut rig = Rig::new("10:00:30", set([minutely()]));
    let record = running(&minutely(), at("10:00:00"), OwnerState::Dead).record;
    let end = RunEnd::unseen(&record, Outcome::Interrupted, None, at("10:00:10"));
    let recovered = RecoveredRun { record, version: Version(0), pid: None, traces: Traces::default(), end: Some(end) };
    rig.tell(Event::Recovered(vec![recovered]));
    rig.join();
    assert_eq!(rig.hooks_of_all(), ["on_failure a.20261120T100000Z interrupted"]);
}

#[test]
fn what_the_backend_ended_for_a_dead_process_is_followed_unless_the_own_end_says_the_same() {
    let record = running(&minutely(), at("10:00:00"), OwnerState::Dead).record;
    let end = RunEnd::unseen(&record, Outcome::Interrupted, None, at("10:00:10"));
    let ended = || Event::Ledger(ledger::Event::Ended { end: Box::new(end.clone()), at: Version(0) });
    let follows = ["on_failure a.20261120T100000Z interrupted"];

    let mut stranger = Rig::new("10:00:30", set([minutely()]));
    stranger.tell(ended());
    assert_eq!(stranger.hooks(), follows);

    let mut heir = Rig::new("10:00:30", set([minutely()]));
    let recovered = RecoveredRun {
        record: record.clone(),
        version: Version(0),
        pid: None,
        traces: Traces::default(),
        end: Some(end.clone()),
    };
    heir.tell(Event::Recovered(vec![recovered]));
    heir.tell(ended());
    assert!(heir.hooks().is_empty());
    heir.join();
    assert_eq!(heir.hooks_of_all(), follows);
}

#[test]
fn what_was_missed_is_one_hook_with_its_count() {
    let job = Job { misfire: Misfire::Skip, ..minutely() };
    let entries = [entry(&job, at("09:00:00"), 3)].into();
    let mut rig = Rig::leading("10:00:30", set([job]), Snapshot { jobs: entries, ..Snapshot::default() });
    let expected = "on_missed a.20261120T090100Z missed 60 2026-11-20T09:01:00Z 2026-11-20T10:00:00Z";
    assert_eq!(rig.hooks_of_all(), [expected]);
}

#[test]
fn what_was_skipped_for_another_reason_is_not_missed() {
    let mut rig = found(&minutely(), OwnerState::Alive);
    rig.pass(30);
    let accepted = rig.accept_all();
    assert_eq!(skipped(&accepted).len(), 1);
    assert!(rig.hooks().is_empty());
}

#[test]
fn a_flood_starts_so_many_at_once_and_the_others_in_order() {
    let jobs: Vec<Job> = (0..10_000)
        .map(|n| Job { hooks: hooks(), misfire: Misfire::Skip, ..job(&format!("j{n:05}"), "* * * * *") })
        .collect();
    let entries = jobs.iter().map(|job| entry(job, at("09:00:00"), 3)).collect();
    let mut rig = Rig::leading("10:00:30", set(jobs), Snapshot { jobs: entries, ..Snapshot::default() });
    rig.accept_all();
    let mut open = rig.calls();
    assert_eq!(open.len(), AT_ONCE);
    let mut seen = Vec::new();
    while let Some(call) = open.pop() {
        seen.push(call.call.job.name.clone());
        rig.ended(call.slot, Exit::Code(0), None);
        let next = rig.calls();
        assert!(next.len() <= 1);
        open.extend(next);
    }
    assert_eq!(seen.len(), 10_000);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 10_000, "each once");
}

#[test]
fn output_that_waits_is_bounded() {
    let jobs: Vec<Job> =
        (0..2_000).map(|n| Job { hooks: hooks(), ..job(&format!("j{n:05}"), "1 0 10 * * *") }).collect();
    let mut rig = Rig::settled("10:00:00", jobs);
    rig.pass(1);
    let (_, slots) = rig.start_all();
    for slot in slots {
        let mut ending = rig.ending(slot, Exit::Code(1), None);
        ending.tail = "x".repeat(4096);
        rig.tell(Event::Warden(Notice::Ended(Box::new(ending))));
    }
    rig.accept_all();
    let mut open = rig.calls();
    let mut inputs = Vec::new();
    while let Some(call) = open.pop() {
        inputs.push(call.call.input().len());
        rig.ended(call.slot, Exit::Code(0), None);
        open.extend(rig.calls());
    }
    assert_eq!(inputs.len(), 2_000);
    // What runs at once does not wait.
    let whole = AT_ONCE + (4 << 20) / 4096;
    assert_eq!(inputs.iter().filter(|&&length| length == 4096).count(), whole);
    assert_eq!(inputs.iter().filter(|&&length| length == 0).count(), 2_000 - whole);
}

#[test]
fn what_takes_too_long_is_stopped_with_the_jobs_grace() {
    let (mut rig, HookStart { slot, until, .. }) = failed();
    assert!(
        until > rig.now.up + TIMEOUT + Duration::from_secs(10),
        "the warden is only to see to what the engine does not"
    );
    rig.started(slot);
    rig.pass(TIMEOUT.as_secs() - 1);
    assert!(!rig.take().iter().any(|command| matches!(command, Command::Order(Order::Stop { .. }))));
    rig.pass(1);
    assert!(rig.take().contains(&Command::Order(Order::Stop { slot, grace_ms: 10_000 })));
    rig.ended(slot, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::TimedOut)]);
}

#[test]
fn how_it_went_is_told_and_changes_nothing() {
    let why = StartFailure::Step { step: Step::Exec, errno: 2 };
    let (mut rig, HookStart { slot, .. }) = failed();
    rig.tell(Event::Warden(Notice::NotStarted { slot, why }));
    assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::NotStarted(why))]);
    assert!(rig.commits().is_empty());
    for (exit, word) in [(Exit::Code(0), "success"), (Exit::Code(7), "failure")] {
        let (mut rig, HookStart { slot, .. }) = failed();
        rig.started(slot);
        rig.ended(slot, exit, None);
        assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::Exited(exit))]);
        assert_eq!(rig.finished()[0].1.as_str(), word);
        assert!(rig.hooks_of_all().is_empty());
    }
}

#[test]
fn a_hook_is_nobodys_run_and_outlives_the_term() {
    let (mut rig, slot) = running_one(Job { on_lease_end: OnLeaseEnd::Kill, ..minutely_now() });
    rig.ended(slot, Exit::Code(1), None);
    rig.accept_all();
    let HookStart { slot: hook, .. } = rig.calls().remove(0);
    rig.started(hook);
    assert_eq!((rig.engine.own_runs(), rig.engine.has_trees()), (0, false));
    rig.pass(1);
    assert_eq!(begun(&rig.accept_all()).len(), 1, "the next occurrence does not overlap it");
    rig.commands.clear();
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::LeaseOver }));
    let orders = rig.take();
    assert!(!orders.contains(&Command::Order(Order::Kill { slot: hook })), "{orders:?}");
}

/// Due every second, with all hooks.
fn minutely_now() -> Job {
    Job { hooks: hooks(), ..job("a", "* * * * * *") }
}

#[test]
fn the_definition_of_the_run_counts_and_for_others_the_present_one() {
    let (mut rig, slot) = running_one(once());
    rig.tell(Event::Loaded(set([])));
    rig.ended(slot, Exit::Code(1), None);
    rig.accept_all();
    let calls = rig.calls();
    assert_eq!(calls.len(), 1, "a run in flight keeps its definition");
    assert_eq!(calls[0].call.job, Arc::new(once()));
}
