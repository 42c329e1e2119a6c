//! Attempts that never had a process: they are released to be started again, whatever stopped them.

use std::time::Duration;

use super::fixture::*;
use crate::clock::{self, Uptime};
use crate::coordination::Request;
use crate::election;
use crate::engine::{Command, Event, Report};
use crate::job::{Condition, Due, Interrupted, Job, JobName, JobSet, Misfire, OnLeaseEnd, Retries};
use crate::ledger::{self, Change, Commit, OwnerState, Running, Snapshot};
use crate::process::{EndedBy, Exit, Notice, StartFailure, StartStep};
use crate::run::{Attempt, KillRequest, Outcome, Reason, RunRecord, RunState, Version};
use crate::term::{NodeName, TermEnd};

const HOUR: Duration = Duration::from_secs(3_600);

/// A job that is due at 10:00:01 only, with a window of one hour.
fn once() -> Job {
    Job { misfire_window: Some(HOUR), ..job("a", "1 0 10 * * *") }
}

/// The three kinds of jobs, which differ in the treatment of lost runs that had started.
fn kinds() -> [Job; 3] {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once() };
    [once(), rerun, Job { retries: Retries { limit: 3, ..Retries::default() }, ..once() }]
}

/// The record of the run that a change releases as never started.
fn released(changes: &[Change]) -> RunRecord {
    match changes {
        [Change::ChangeOwner { run, .. }] if run.state == RunState::Unstarted => run.clone(),
        other => panic!("{other:?}"),
    }
}

/// The attempt that a change begins.
fn begun_again(changes: &[Change]) -> RunRecord {
    match changes {
        [Change::UpdateRun { run, .. }] if run.state == RunState::Running => run.clone(),
        other => panic!("{other:?}"),
    }
}

/// A leader whose run was accepted, and that has ordered the warden to start it.
fn start_ordered(job: Job) -> Fixture {
    let mut fixture = Fixture::settled("10:00:00", vec![job]);
    fixture.pass(1);
    fixture.accept_all();
    assert_eq!(fixture.starts().len(), 1);
    fixture
}

fn not_started(fixture: &mut Fixture, why: StartFailure) {
    let tree_id = fixture.starts()[0].tree_id;
    fixture.commands.clear();
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
}

fn renew(fixture: &mut Fixture) {
    let until = fixture.now.up + LEASE;
    fixture.handle(Event::Election(election::Event::Lease { until }));
}

/// A leader at `second` after 10:00 that finds this run, released by a node that never started it.
fn found(second: &str, job: &Job, change: impl FnOnce(&mut RunRecord)) -> Fixture {
    let mut run = running(job, at("10:00:01"), OwnerState::Alive);
    run.record.state = RunState::Unstarted;
    change(&mut run.record);
    taking_over(second, set([job.clone()]), run)
}

fn taking_over(second: &str, jobs: JobSet, run: Running) -> Fixture {
    let entries = jobs.jobs.values().map(|job| entry(job, at("10:00:01"), 1)).collect();
    Fixture::leading(second, jobs, Snapshot { jobs: entries, running: vec![run], ..Snapshot::default() })
}

/// A leader at 10:00:09 that finds this run.
fn elected_without_a_lease(job: &Job, run: Running) -> Fixture {
    let mut fixture = Fixture::new("10:00:09", set([job.clone()]));
    fixture.join();
    let jobs = [entry(job, at("10:00:01"), 1)].into();
    let snapshot = Box::new(Snapshot { jobs, running: vec![run], ..Snapshot::default() });
    let (term, took) = (Fixture::term(9), Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until: Uptime::ZERO, snapshot, took }));
    fixture
}

#[test]
fn an_answer_that_comes_after_the_lease_costs_no_job_its_run() {
    for job in kinds() {
        let mut fixture = Fixture::settled("10:00:00", vec![job]);
        fixture.pass(1);
        let commits = fixture.commits();
        fixture.now = crate::clock::Now { wall: at("10:00:08"), up: fixture.now.up + Duration::from_secs(7) };
        fixture.answer(commits[0].0, Commit::Accepted);
        assert!(fixture.starts().is_empty());
        // The term may go on: the servers did not respond to any node.
        released(&fixture.accept_all());
        assert!(fixture.starts().is_empty() && fixture.commits().is_empty(), "nothing is begun without a lease");
        renew(&mut fixture);
        let run = begun_again(&fixture.accept_all());
        assert_eq!((run.attempt, run.past.failures, run.past.attempts.len()), (2, 0, 0));
        assert_eq!(fixture.starts().len(), 1);
    }
}

#[test]
fn the_wardens_refusal_costs_no_job_its_run() {
    for job in kinds() {
        let mut fixture = start_ordered(job);
        not_started(&mut fixture, StartFailure::TooLate);
        assert!(
            fixture.commands.iter().any(|command| matches!(command, Command::NoteUnstarted(_))),
            "nothing of it is noted"
        );
        fixture.now.up = fixture.now.up + LEASE;
        released(&fixture.accept_all());
        renew(&mut fixture);
        assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
    }
}

/// Somebody killed its process before its program began: another job, an operator with pkill, the kernel for lack of
/// memory, or the daemon for a warden that hangs.
#[test]
fn a_process_that_ends_before_its_program_costs_no_job_its_run() {
    for ended_by in [None, Some(EndedBy::Deadline)] {
        for job in kinds() {
            let mut fixture = start_ordered(job);
            let tree_id = fixture.starts()[0].tree_id;
            fixture.commands.clear();
            fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, ended_by);
            assert!(
                fixture.commands.iter().any(|command| matches!(command, Command::NoteUnstarted(_))),
                "nothing is noted"
            );
            let error = "signal 15 ended its process before its program began";
            let is_said =
                |report: &Report| matches!(report, Report::NotStarted { problem, .. } if problem.error == error);
            assert!(fixture.reports().iter().any(is_said));
            let reason = ended_by.map(|_| Reason::Lease);
            let mut changes = fixture.accept_all();
            let run = released(&changes[..1]);
            assert_eq!((run.past.failures, run.past.attempts.len()), (0, 0));
            let said = |report: &Report| matches!(report, Report::Unstarted { reason: its, .. } if *its == reason);
            assert!(fixture.reports().iter().any(said));
            fixture.pass(1);
            changes.extend(fixture.accept_all());
            assert_eq!(begun_again(&changes[1..]).attempt, 2);
        }
    }
}

#[test]
fn a_process_that_is_killed_again_and_again_before_its_program_is_started_after_growing_pauses() {
    let mut fixture = start_ordered(once());
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let tree_id = fixture.starts()[0].tree_id;
        fixture.commands.clear();
        fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, None);
        let retry_at = released(&fixture.accept_all()).retry_at.expect("it has a pause");
        pauses.push(retry_at.duration_since(fixture.now.wall).as_millis());
        fixture.pass_by(retry_at.duration_since(fixture.now.wall).unsigned_abs());
        fixture.accept_all();
    }
    assert_eq!(pauses, [500, 1_000, 2_000]);
}

#[test]
fn a_process_that_hangs_before_its_program_has_its_timeout_and_its_kill() {
    let kill = || KillRequest { reason: Reason::Operator, by: "x".into(), at: at("10:00:01"), force: false };
    for is_killed in [false, true] {
        let mut fixture = start_ordered(Job { timeout: Some(Duration::from_secs(5)), ..once() });
        let (tree_id, mut record) = (fixture.starts()[0].tree_id, fixture.starts()[0].run.clone());
        if is_killed {
            record.kill = Some(Box::new(kill()));
            fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), Some((record, Version(1))))));
        } else {
            fixture.pass(5);
        }
        fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
        let expected = if is_killed { (Outcome::Killed, Some(Reason::Operator)) } else { (Outcome::Timeout, None) };
        match &fixture.accept_all()[..] {
            [.., Change::End { end, .. }] => assert_eq!((end.outcome, end.reason), expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_release_is_reported_once_it_is_written() {
    let mut fixture = start_ordered(once());
    not_started(&mut fixture, StartFailure::TooLate);
    let is_said = |fixture: &Fixture| {
        fixture.reports().iter().any(|report| matches!(report, Report::Unstarted { attempt: 1, .. }))
    };
    assert!(!is_said(&fixture));
    fixture.accept_all();
    assert!(is_said(&fixture));
    assert!(!fixture.reports().iter().any(|report| matches!(report, Report::Finished(_) | Report::Retrying { .. })));
}

#[test]
fn a_node_that_ends_lets_go_what_it_has_not_started() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.pass(1);
    let commits = fixture.commits();
    fixture.handle(Event::Stop);
    fixture.answer(commits[0].0, Commit::Accepted);
    assert!(fixture.starts().is_empty());
    let changes: Vec<Change> = fixture.commits().into_iter().map(|(_, change)| change).collect();
    released(&changes);
}

#[test]
fn a_start_that_fails_for_want_of_means_is_tried_again_after_growing_pauses() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.pass(1);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        fixture.accept_all();
        not_started(&mut fixture, StartFailure::Step { step: StartStep::Fork, errno: 11 });
        let run = released(&fixture.accept_all());
        pauses.push(run.retry_at.unwrap().duration_since(fixture.now.wall).as_millis());
        assert!(fixture.starts().is_empty());
        while fixture.starts().is_empty() {
            fixture.pass(1);
            fixture.accept_all();
        }
    }
    assert_eq!(pauses, [500, 1_000, 2_000, 4_000]);
}

#[test]
fn what_was_released_is_begun_by_whoever_leads_once_its_lease_holds() {
    for job in kinds() {
        let mut run = running(&job, at("10:00:01"), OwnerState::Alive);
        run.record.state = RunState::Unstarted;
        let mut fixture = elected_without_a_lease(&job, run);
        assert!(fixture.commits().is_empty());
        assert!(!fixture.engine.is_settled());
        renew(&mut fixture);
        assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
        assert!(fixture.engine.is_settled());
    }
}

/// A leader that was elected without a lease began reruns and retries anyway, and released them unstarted.
#[test]
fn a_leader_without_a_lease_begins_no_rerun_and_no_retry() {
    let [_, rerun, retries] = kinds();
    let mut retrying = running(&retries, at("10:00:01"), OwnerState::Gone);
    retrying.record.state = RunState::Retrying;
    for (job, run) in [(rerun.clone(), running(&rerun, at("10:00:01"), OwnerState::Gone)), (retries, retrying)] {
        let mut fixture = elected_without_a_lease(&job, run);
        assert!(fixture.commits().is_empty());
        fixture.pass(1);
        assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
        assert_eq!(fixture.starts().len(), 1);
    }
}

#[test]
fn past_its_window_it_is_missed_and_that_is_written_in_place_of_the_run() {
    let mut fixture = found("11:00:02", &once(), |_| {});
    let changes = fixture.accept_all();
    let [Change::SkipRun { at: Version(0), run, skip, .. }] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((run.to_string().as_str(), skip.reason.as_str(), skip.count), ("a.20261120T100001Z", "missed", 1));
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Skipped { count: 1, .. })));
    assert_eq!(fixture.engine.runs().count(), 0);
}

#[test]
fn within_its_window_it_is_begun_however_often_it_was_not_started() {
    let mut fixture = found("11:00:01", &once(), |run| run.attempt = 9);
    assert_eq!(begun_again(&fixture.accept_all()).attempt, 10);
}

#[test]
fn with_misfire_skip_the_window_is_the_second_in_which_a_start_is_on_time() {
    let job = Job { misfire: Misfire::Skip, ..once() };
    assert!(matches!(found("10:00:02", &job, |_| {}).accept_all().as_slice(), [Change::UpdateRun { .. }]));
    assert!(matches!(found("10:00:03", &job, |_| {}).accept_all().as_slice(), [Change::SkipRun { .. }]));
}

/// ZooKeeper refuses the begin until an operator has fixed the access list; the lease is renewed all the time.
fn accepted_after(wait: Duration) -> Fixture {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.pass(1);
    let begin = fixture.commits()[0].0;
    fixture.now = crate::clock::Now { wall: clock::later(fixture.now.wall, wait), up: fixture.now.up + wait };
    renew(&mut fixture);
    fixture.answer(begin, Commit::Accepted);
    fixture
}

#[test]
fn a_begin_that_is_accepted_after_its_window_is_missed() {
    let mut fixture = accepted_after(HOUR + Duration::from_secs(1));
    assert!(fixture.starts().is_empty());
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::ChangeOwner { .. }, Change::SkipRun { .. }]), "{changes:?}");
    assert!(fixture.starts().is_empty());
}

#[test]
fn a_begin_that_is_accepted_late_and_within_its_window_is_started() {
    assert_eq!(accepted_after(HOUR - Duration::from_secs(1)).starts().len(), 1);
}

#[test]
fn the_window_of_one_that_waited_counts_from_when_it_could_start() {
    let ready = at("11:30:00");
    let mut fixture = found("12:20:00", &once(), |run| run.ready_at = Some(ready));
    assert_eq!(begun_again(&fixture.accept_all()).ready_at, Some(ready));
}

/// A leader whose clock was behind recorded that the run could start before it was due, so its window ended when it
/// became due, and it was missed.
#[test]
fn the_window_of_one_that_waited_counts_from_its_occurrence_at_the_earliest() {
    let minutely = job("a", "1 * * * * *");
    let mut fixture = found("10:00:05", &minutely, |run| run.ready_at = Some(at("09:59:55")));
    assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
}

#[test]
fn a_run_of_which_an_attempt_had_a_process_is_begun_again_without_a_limit() {
    let earlier = Attempt {
        attempt: 1,
        node: NodeName::new("host-b"),
        outcome: Outcome::Failure,
        reason: None,
        exit_code: Some(1),
        signal: None,
        ended_at: at("10:00:02"),
        duration_ms: Some(7),
    };
    let mut fixture = found("14:00:00", &once(), |run| {
        run.attempt = 2;
        run.past.failures = 1;
        run.past.attempts.push(earlier);
    });
    let run = begun_again(&fixture.accept_all());
    assert_eq!((run.attempt, run.past.failures, run.past.attempts.len()), (3, 1, 1));
}

#[test]
fn one_that_an_operator_kills_ends_killed() {
    let kill = KillRequest { reason: Reason::Operator, by: "uid 0".into(), at: at("10:00:02"), force: false };
    let mut fixture = found("10:00:03", &once(), |run| run.kill = Some(Box::new(kill)));
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::End { end, .. }] if end.outcome == Outcome::Killed), "{changes:?}");
}

#[test]
fn one_whose_job_is_not_defined_here_waits_for_a_node_that_knows_it() {
    let mut run = running(&once(), at("10:00:01"), OwnerState::Alive);
    for state in [RunState::Unstarted, RunState::Queued] {
        run.record.state = state;
        let mut fixture = taking_over("10:00:09", set([]), run.clone());
        fixture.pass(3_600);
        assert!(fixture.commits().is_empty());
        fixture.handle(Event::Loaded(set([Job { misfire_window: Some(HOUR * 3), ..once() }])));
        fixture.pass(3);
        let changes = fixture.accept_all();
        assert!(changes.iter().any(|change| matches!(change, Change::UpdateRun { .. })), "{state:?} {changes:?}");
    }
}

/// A pause that another node wrote for its own lack of resources does not bind this node.
#[test]
fn the_pause_of_a_node_that_could_not_start_it_holds_no_other_back() {
    let mut fixture = found("10:00:05", &once(), |run| run.retry_at = Some(at("10:59:00")));
    assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
}

/// With an hour of clock skew between the nodes, a pause of half a second took an hour.
#[test]
fn a_pause_is_measured_by_the_clock_that_ends_it() {
    let mut fixture = start_ordered(once());
    let (up, behind) = (fixture.now.up, clock::earlier(fixture.now.wall, HOUR));
    let time = clock::server::ServerTime::new(behind.as_millisecond(), up, up).unwrap();
    fixture.handle(Event::Election(election::Event::Time(time)));
    not_started(&mut fixture, StartFailure::Step { step: StartStep::Fork, errno: 11 });
    released(&fixture.accept_all());
    fixture.pass(1);
    assert_eq!(begun_again(&fixture.accept_all()).attempt, 2);
}

/// The runs of its upstreams ended long ago; then it waited for a position in its group.
#[test]
fn the_window_of_one_that_waited_in_line_counts_from_its_turn() {
    let mut fixture = found("12:20:00", &once(), |run| {
        (run.state, run.attempt, run.ready_at) = (RunState::Queued, 0, Some(at("10:00:02")));
    });
    assert_eq!(begun_again(&fixture.accept_all()).ready_at, Some(at("12:20:00")));
}

/// A leader that had known the job, or whose job runs after another, ignored the waiting run until its window was over.
#[test]
fn one_whose_job_comes_back_to_the_file_is_begun_again() {
    let chained = Job { due: Due::After([(JobName::parse("b").unwrap(), Condition::Success)].into()), ..once() };
    for job in [once(), chained] {
        let mut run = running(&job, at("10:00:01"), OwnerState::Alive);
        run.record.state = RunState::Unstarted;
        (run.record.retry_at, run.record.owner.node) = (Some(at("10:00:20")), NodeName::new("host-a"));
        let both = set([job, super::fixture::job("b", "@yearly")]);
        let mut fixture = taking_over("10:00:09", both.clone(), run);
        fixture.accept_all();
        fixture.handle(Event::Loaded(set([])));
        fixture.accept_all();
        fixture.pass(60);
        assert!(fixture.accept_all().is_empty(), "it waits for its definition");
        fixture.handle(Event::Loaded(both));
        fixture.pass(1);
        let changes = fixture.accept_all();
        assert!(changes.iter().any(|change| matches!(change, Change::UpdateRun { .. })), "{changes:?}");
    }
}

#[test]
fn one_whose_job_nobody_defines_any_more_is_missed_in_the_end() {
    let mut run = running(&once(), at("10:00:01"), OwnerState::Alive);
    run.record.state = RunState::Unstarted;
    let mut fixture = taking_over("10:00:09", set([]), run);
    fixture.pass(13 * 3_600);
    assert!(matches!(fixture.accept_all().as_slice(), [Change::SkipRun { .. }]));
}

#[test]
fn a_run_missed_that_another_wrote_is_looked_at_again() {
    let mut fixture = found("11:00:02", &once(), |_| {});
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let run = fixture.engine.runs().next().unwrap().clone();
    assert!(fixture.take().contains(&Command::Ask(Request::Ledger(ledger::Request::ReadRun(run.id())))));
    fixture.handle(Event::Ledger(ledger::Event::Run(run.id(), Some((run, Version(3))))));
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::SkipRun { at: Version(3), .. }]), "{changes:?}");
}

#[test]
fn a_begin_accepted_after_the_term_is_released_to_the_next_leader() {
    for job in kinds() {
        let mut fixture = Fixture::settled("10:00:00", vec![job]);
        fixture.pass(1);
        let commits = fixture.commits();
        fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
        fixture.answer(commits[0].0, Commit::Accepted);
        released(&fixture.accept_all());
        assert_eq!((fixture.starts().len(), fixture.engine.own_runs()), (0, 0));
    }
}
