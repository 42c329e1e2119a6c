//! Hooks: which ones follow a start, an end or a skip, which node runs them, and how many at once.

mod crowd;
mod ending;
mod start;

use std::sync::Arc;
use std::time::Duration;

use super::fixture::*;
use crate::engine::hooks::{AT_ONCE, Cause, HookCall, HookOutcome, HookStart, JobHookCall, TIMEOUT};
use crate::engine::{Command, Event, Report};
use crate::job::{CommandLine, Hook, Hooks, Job, Misfire, OnLeaseEnd, Retries};
use crate::ledger::{Change, Commit, OwnerState, RunLookup, Snapshot};
use crate::process::{
    EndedBy, Exit, FileFault, FileProblem, Notice, Order, StartFailure, StartStep, TreeId, UnusableFile,
};
use crate::run::journal::RecoveredRun;
use crate::run::{Outcome, RunEnd, Traces, Version};
use crate::term::TermEnd;
use crate::{election, ledger};

/// All hooks except `on_start`, which the others of a run wait for.
fn hooks() -> Hooks {
    let mut all = all_hooks();
    all.remove(&Hook::Start);
    all
}

fn all_hooks() -> Hooks {
    Hook::ALL.map(|hook| (hook, CommandLine::Shell(hook.as_str().into()))).into()
}

/// A job that is due once, with hooks.
fn once() -> Job {
    Job { hooks: hooks(), ..job("a", "1 0 10 * * *") }
}

/// A job that is due every minute, with hooks.
fn minutely() -> Job {
    Job { hooks: hooks(), ..job("a", "* * * * *") }
}

impl Fixture {
    /// The hooks to start; drops all other commands.
    fn calls(&mut self) -> Vec<HookStart> {
        let calls = self.take().into_iter().filter_map(|command| match command {
            Command::RunHook(start) => Some(*start),
            _ => None,
        });
        calls.collect()
    }

    /// The hooks to start, as text: the hook, its run, and its cause.
    fn hooks(&mut self) -> Vec<String> {
        self.calls().iter().map(in_words).collect()
    }

    /// Accepts all requested commits, and returns the hooks that follow.
    fn hooks_of_all(&mut self) -> Vec<String> {
        self.accept_all();
        self.hooks()
    }

    /// The reported outcomes of hooks.
    fn finished(&self) -> Vec<(&'static str, HookOutcome)> {
        let reported = self.reports().into_iter().filter_map(|report| match report {
            Report::HookFinished { hook, how, .. } => Some((hook, how)),
            _ => None,
        });
        reported.collect()
    }
}

/// The call of a job's hook.
fn of_job(start: &HookStart) -> &JobHookCall {
    match &start.call {
        HookCall::OfJob(call) => call,
        HookCall::OfNode(call) => panic!("a hook of the node: {call:?}"),
    }
}

fn in_words(start: &HookStart) -> String {
    let what = match &of_job(start).cause {
        Cause::Started(run) => format!("attempt {}", run.attempt),
        Cause::Ended(end) => end.outcome.as_str().to_owned(),
        Cause::Skipped { skip, first, count } => format!("{} {count} {first} {}", skip.reason.as_str(), skip.last),
        Cause::Alarm { alarm, .. } => alarm.as_str().to_owned(),
    };
    let run = start.call.run().map(|run| run.to_string()).unwrap_or_default();
    format!("{} {run} {what}", start.call.name())
}

/// A leader whose run of [`once`] has failed, and its hook.
fn failed() -> (Fixture, HookStart) {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(3), None);
    fixture.accept_all();
    let call = fixture.calls().remove(0);
    (fixture, call)
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
        let (mut fixture, tree_id) = running_one(once());
        fixture.ended(tree_id, exit, ended_by);
        assert_eq!(fixture.hooks_of_all(), [expected], "{exit:?}");
    }
}

#[test]
fn a_run_that_took_too_long_or_could_not_be_started_has_failed() {
    let (mut fixture, tree_id) = running_one(Job { timeout: Some(Duration::from_secs(3)), ..once() });
    fixture.pass(3);
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(fixture.hooks_of_all(), [format!("on_failure {RUN} timeout")]);

    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    let why = StartFailure::Step { step: StartStep::Exec, errno: 2 };
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
    assert_eq!(fixture.hooks_of_all(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn without_the_key_nothing_follows() {
    let (mut fixture, tree_id) = running_one(Job { hooks: Hooks::new(), ..once() });
    fixture.ended(tree_id, Exit::Code(1), None);
    assert!(fixture.hooks_of_all().is_empty());
}

#[test]
fn nothing_follows_before_the_ledger_has_the_end_and_no_process_before_the_journal_forgets_it() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(1), None);
    let id = fixture.commits()[0].0;
    fixture.pass(1);
    assert!(fixture.hooks().is_empty());
    fixture.answer(id, Commit::Accepted);
    let place = |wanted: fn(&Command) -> bool| fixture.commands.iter().position(wanted).unwrap();
    assert!(place(|one| matches!(one, Command::Forget(_))) < place(|one| matches!(one, Command::RunHook(_))));
    assert_eq!(fixture.hooks(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn an_answer_that_is_not_known_leads_to_nothing_until_it_is() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.ended(tree_id, Exit::Code(1), None);
    let id = fixture.commits()[0].0;
    fixture.answer(id, Commit::Unknown);
    let commits = fixture.commits();
    assert_eq!(commits.len(), 1);
    fixture.answer(commits[0].0, Commit::Accepted);
    assert_eq!(fixture.hooks(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn an_end_that_another_wrote_is_followed_by_nothing_here() {
    let (mut fixture, tree_id) = running_one(once());
    let record = fixture.engine.runs().next().unwrap().clone();
    fixture.ended(tree_id, Exit::Code(1), None);
    let id = fixture.commits()[0].0;
    fixture.answer(id, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), None)));
    fixture.looked_up(&record.id(), RunLookup::Ended);
    assert!(fixture.reports().contains(&Report::Superseded { run: record.id(), outcome: Some(Outcome::Failure) }));
    assert!(fixture.hooks_of_all().is_empty());
}

#[test]
fn only_the_last_attempt_is_followed() {
    let retries = Retries { limit: 1, delay: Duration::from_secs(1), ..Retries::default() };
    let (mut fixture, tree_id) = running_one(Job { retries, ..once() });
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    fixture.pass(2);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    assert!(fixture.hooks().is_empty());
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(fixture.hooks_of_all(), [format!("on_failure {RUN} failure")]);
}

/// A leader that finds a run of `job`, begun at 10:00:00, at 10:00:30.
fn found(job: &Job, owner: OwnerState) -> Fixture {
    let run = running(job, at("10:00:00"), owner);
    let jobs = [entry(job, at("10:00:00"), 1)].into();
    Fixture::leading("10:00:30", set([job.clone()]), Snapshot { jobs, running: vec![run], ..Snapshot::default() })
}

#[test]
fn a_leader_runs_the_hook_of_what_it_settles() {
    let kill = Job { on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    assert_eq!(found(&kill, OwnerState::Gone).hooks_of_all(), ["on_failure a.20261120T100000Z interrupted"]);
    let mut fixture = found(&minutely(), OwnerState::Gone);
    assert!(fixture.hooks_of_all().is_empty(), "it is cut off, and may go on");
    fixture.pass(29);
    assert_eq!(fixture.hooks_of_all(), ["on_failure a.20261120T100000Z abandoned"]);
}

#[test]
fn what_somebody_else_settled_before_the_leader_is_not_followed_by_it() {
    let kill = Job { on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    for answer in [Commit::Superseded, Commit::Fenced, Commit::Unknown] {
        let mut fixture = found(&kill, OwnerState::Gone);
        let id = fixture.commits()[0].0;
        fixture.answer(id, answer);
        assert!(fixture.hooks_of_all().is_empty(), "{answer:?}");
    }
}

#[test]
fn a_node_that_is_back_runs_the_hook_of_what_its_death_ended() {
    let mut fixture = Fixture::new("10:00:30", set([minutely()]));
    let record = running(&minutely(), at("10:00:00"), OwnerState::Dead).record;
    let end = RunEnd::unseen(&record, Outcome::Interrupted, None, at("10:00:10"));
    let recovered = RecoveredRun { record, version: Version(0), pid: None, traces: Traces::default(), end: Some(end) };
    fixture.handle(recovered_runs(vec![recovered]));
    fixture.join();
    assert_eq!(fixture.hooks_of_all(), ["on_failure a.20261120T100000Z interrupted"]);
}

#[test]
fn what_the_backend_ended_for_a_dead_process_is_followed_unless_the_own_end_says_the_same() {
    let record = running(&minutely(), at("10:00:00"), OwnerState::Dead).record;
    let end = RunEnd::unseen(&record, Outcome::Interrupted, None, at("10:00:10"));
    let ended = || Event::Ledger(ledger::Event::Ended { end: Box::new(end.clone()), at: Version(0), before: None });
    let follows = ["on_failure a.20261120T100000Z interrupted"];

    let mut stranger = Fixture::new("10:00:30", set([minutely()]));
    stranger.handle(ended());
    assert_eq!(stranger.hooks(), follows);

    let mut successor = Fixture::new("10:00:30", set([minutely()]));
    let recovered = RecoveredRun {
        record: record.clone(),
        version: Version(0),
        pid: None,
        traces: Traces::default(),
        end: Some(end.clone()),
    };
    successor.handle(recovered_runs(vec![recovered]));
    successor.handle(ended());
    assert!(successor.hooks().is_empty());
    successor.join();
    assert_eq!(successor.hooks_of_all(), follows);
}

#[test]
fn a_success_after_any_other_outcome_is_a_recovery() {
    for (before, code, expected) in [
        (
            Some(Outcome::Timeout),
            0,
            &["on_recovery a.20261120T100001Z success", "on_success a.20261120T100001Z success"][..],
        ),
        (Some(Outcome::Success), 0, &["on_success a.20261120T100001Z success"]),
        (None, 0, &["on_success a.20261120T100001Z success"]),
        (Some(Outcome::Failure), 1, &["on_failure a.20261120T100001Z failure"]),
    ] {
        let (mut fixture, tree_id) = running_one(once());
        fixture.ended(tree_id, Exit::Code(code), None);
        let (id, change) = fixture.commits().remove(0);
        assert!(matches!(change, Change::End { .. }), "{change:?}");
        fixture.handle(Event::Ledger(ledger::Event::Answered { id, answer: Commit::Accepted, before, token: None }));
        assert_eq!(fixture.hooks(), expected, "{before:?}");
    }
}

#[test]
fn what_the_backend_ended_for_a_dead_process_may_be_a_recovery() {
    let record = running(&minutely(), at("10:00:00"), OwnerState::Dead).record;
    let end = RunEnd::unseen(&record, Outcome::Success, None, at("10:00:10"));
    let ended = ledger::Event::Ended { end: Box::new(end), at: Version(0), before: Some(Outcome::Abandoned) };
    let mut fixture = Fixture::new("10:00:30", set([minutely()]));
    fixture.handle(Event::Ledger(ended));
    assert_eq!(fixture.hooks()[0], "on_recovery a.20261120T100000Z success");
}

#[test]
fn what_was_missed_is_one_hook_with_its_count() {
    let job = Job { misfire: Misfire::Skip, ..minutely() };
    let entries = [entry(&job, at("09:00:00"), 3)].into();
    let mut fixture = Fixture::leading("10:00:30", set([job]), Snapshot { jobs: entries, ..Snapshot::default() });
    let expected = "on_missed a.20261120T090100Z missed 60 2026-11-20T09:01:00Z 2026-11-20T10:00:00Z";
    assert_eq!(fixture.hooks_of_all(), [expected]);
}

#[test]
fn what_was_skipped_for_another_reason_is_not_missed() {
    let mut fixture = found(&minutely(), OwnerState::Alive);
    fixture.pass(30);
    let accepted = fixture.accept_all();
    assert_eq!(skipped(&accepted).len(), 1);
    assert!(fixture.hooks().is_empty());
}

#[test]
fn a_flood_starts_so_many_at_once_and_the_others_in_order() {
    let jobs: Vec<Job> = (0..10_000)
        .map(|n| Job { hooks: hooks(), misfire: Misfire::Skip, ..job(&format!("j{n:05}"), "* * * * *") })
        .collect();
    let entries = jobs.iter().map(|job| entry(job, at("09:00:00"), 3)).collect();
    let mut fixture = Fixture::leading("10:00:30", set(jobs), Snapshot { jobs: entries, ..Snapshot::default() });
    fixture.accept_all();
    let mut open = fixture.calls();
    assert_eq!(open.len(), AT_ONCE);
    let mut seen = Vec::new();
    while let Some(call) = open.pop() {
        seen.push(of_job(&call).job.name.clone());
        fixture.ended(call.tree_id, Exit::Code(0), None);
        let next = fixture.calls();
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
    let mut fixture = Fixture::settled("10:00:00", jobs);
    fixture.pass(1);
    let (_, tree_ids) = fixture.start_all();
    for tree_id in tree_ids {
        let mut ending = fixture.ending(tree_id, Exit::Code(1), None);
        ending.tail = "x".repeat(4096);
        fixture.handle(Event::Warden(Notice::Ended(Box::new(ending))));
    }
    fixture.accept_all();
    let mut open = fixture.calls();
    let mut inputs = Vec::new();
    while let Some(call) = open.pop() {
        inputs.push(call.call.input().len());
        fixture.ended(call.tree_id, Exit::Code(0), None);
        open.extend(fixture.calls());
    }
    assert_eq!(inputs.len(), 2_000);
    // Hooks that run at once do not wait.
    let whole = AT_ONCE + (4 << 20) / 4096;
    assert_eq!(inputs.iter().filter(|&&length| length == 4096).count(), whole);
    assert_eq!(inputs.iter().filter(|&&length| length == 0).count(), 2_000 - whole);
}

#[test]
fn what_takes_too_long_is_stopped_with_the_jobs_grace() {
    let (mut fixture, HookStart { tree_id, until, .. }) = failed();
    assert!(
        until > fixture.now.up + TIMEOUT + Duration::from_secs(10),
        "the warden is only to see to what the engine does not"
    );
    fixture.started(tree_id);
    fixture.pass(TIMEOUT.as_secs() - 1);
    assert!(!fixture.take().iter().any(|command| matches!(command, Command::Order(Order::Stop { .. }))));
    fixture.pass(1);
    assert!(fixture.take().contains(&Command::Order(Order::Stop { tree_id, grace_ms: 10_000 })));
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    assert_eq!(fixture.finished(), [("on_failure", HookOutcome::TimedOut)]);
}

#[test]
fn the_outcome_of_a_hook_is_reported_and_changes_nothing() {
    let why = StartFailure::Step { step: StartStep::Exec, errno: 2 };
    let (mut fixture, HookStart { tree_id, .. }) = failed();
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
    assert_eq!(fixture.finished(), [("on_failure", HookOutcome::NotStarted(why))]);
    assert!(fixture.commits().is_empty());
    for (exit, word) in [(Exit::Code(0), "success"), (Exit::Code(7), "failure")] {
        let (mut fixture, HookStart { tree_id, .. }) = failed();
        fixture.started(tree_id);
        fixture.ended(tree_id, exit, None);
        assert_eq!(fixture.finished(), [("on_failure", HookOutcome::Exited(exit))]);
        assert_eq!(fixture.finished()[0].1.as_str(), word);
        assert!(fixture.hooks_of_all().is_empty());
    }
}

#[test]
fn the_files_that_a_hook_starts_without_are_reported_by_their_paths() {
    let environment_file = vec![crate::environment_file::EnvironmentFile::of("/gone.env")];
    let secrets = [("DB".to_owned(), "/gone".into())].into();
    let (mut fixture, tree_id) = running_one(Job { environment_file, secrets, ..once() });
    fixture.ended(tree_id, Exit::Code(3), None);
    fixture.accept_all();
    let HookStart { tree_id, .. } = fixture.calls().remove(0);
    let problem = FileProblem { index: 0, fault: FileFault::System };
    let files = [StartStep::Environment(problem), StartStep::Secret(problem)];
    let files = files.map(|step| UnusableFile { step, errno: 2 }).to_vec();
    fixture.handle(Event::Warden(Notice::WithoutFiles { tree_id, files }));
    let found = fixture.reports().into_iter().filter_map(|report| match report {
        Report::HookWithoutFile { hook, problem, .. } => Some(format!("{hook}: {problem}")),
        _ => None,
    });
    let no_file = "No such file or directory";
    let expected =
        [format!("on_failure: environment file /gone.env: {no_file}"), format!("on_failure: secret /gone: {no_file}")];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(fixture.finished().last(), Some(&("on_failure", HookOutcome::Exited(Exit::Code(0)))));
}

#[test]
fn a_hook_is_nobodys_run_and_goes_on_after_the_term() {
    let (mut fixture, tree_id) = running_one(Job { on_lease_end: OnLeaseEnd::Kill, ..minutely_now() });
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    let HookStart { tree_id: hook, .. } = fixture.calls().remove(0);
    fixture.started(hook);
    assert_eq!((fixture.engine.own_runs(), fixture.engine.has_trees()), (0, false));
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()).len(), 1, "the next occurrence does not overlap it");
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let orders = fixture.take();
    assert!(!orders.contains(&Command::Order(Order::Kill { tree_id: hook })), "{orders:?}");
}

/// A job that is due every second, with hooks.
fn minutely_now() -> Job {
    Job { hooks: hooks(), ..job("a", "* * * * * *") }
}

#[test]
fn the_definition_of_the_run_counts_and_for_others_the_present_one() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Loaded(set([])));
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    let calls = fixture.calls();
    assert_eq!(calls.len(), 1, "a run in flight keeps its definition");
    assert_eq!(of_job(&calls[0]).job, Arc::new(once()));
}
