//! Occurrences that are begun before their time, and what takes such a begin back.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::fixture::*;
use crate::engine::{Command, Event, Report, Start};
use crate::job::{CommandLine, Group, Job, JobSet, Overlap};
use crate::ledger::{self, Change, ControlEntry, OperatorRequests, OwnerState, Snapshot};
use crate::process::{Exit, Notice, Order, StartFailure, TreeId};
use crate::run::{ControlRecord, Pause, Reason, RunRecord, RunState, SkipReason, Version};

const MS: Duration = Duration::from_millis(1);
/// Shorter than the horizon of one occurrence.
const BEFORE: Duration = Duration::from_millis(5);

/// A job that is due at 10:00:01 only.
fn once() -> Job {
    job("a", "1 0 10 * * *")
}

fn due() -> Timestamp {
    at("10:00:01")
}

/// A leader shortly before 10:00:01.
fn shortly_before(jobs: Vec<Job>) -> Fixture {
    let mut fixture = Fixture::settled("10:00:00", jobs);
    fixture.pass_by(Duration::from_secs(1) - BEFORE);
    fixture
}

/// A leader with one held start of that job.
fn holding(job: Job) -> (Fixture, Start) {
    let mut fixture = shortly_before(vec![job]);
    fixture.accept_all();
    let start = fixture.starts().pop().expect("it is begun ahead");
    fixture.handle(Event::Warden(Notice::Held { tree_id: start.tree_id, pid: 4242 }));
    fixture.commands.clear();
    (fixture, start)
}

fn cancelled(fixture: &Fixture) -> Vec<TreeId> {
    let orders = fixture.commands.iter().filter_map(|command| match command {
        Command::Order(Order::Cancel { tree_id }) => Some(*tree_id),
        _ => None,
    });
    orders.collect()
}

/// The warden has cancelled the start. Returns the record that is written then.
fn not_started(fixture: &mut Fixture, start: &Start) -> RunRecord {
    fixture.commands.clear();
    let notice = Notice::NotStarted { tree_id: start.tree_id, why: StartFailure::TooLate };
    fixture.handle(Event::Warden(notice));
    match &fixture.accept_all()[..] {
        [Change::ChangeOwner { run, .. }, ..] => run.clone(),
        other => panic!("{other:?}"),
    }
}

fn attempts(changes: &[Change]) -> Vec<u32> {
    let attempts = changes.iter().filter_map(|change| match change {
        Change::Begin { run, .. } | Change::UpdateRun { run, .. } => Some(run.attempt),
        _ => None,
    });
    attempts.collect()
}

fn pause() -> Event {
    let pause = Pause { by: "somebody".into(), at: due() - BEFORE, reason: None, until: None };
    let entry = ControlEntry { record: ControlRecord::new(Uuid::from_u128(1), pause), version: Version(0) };
    let requests = OperatorRequests { control: [(once().name, entry)].into(), ..OperatorRequests::default() };
    Event::Ledger(ledger::Event::OperatorRequests(requests))
}

#[test]
fn an_occurrence_is_begun_before_its_time_and_its_program_begins_at_it() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    let wake = fixture.engine.wake(fixture.now).wall.expect("it is due some time");
    assert!(wake < due() && wake > due() - 100 * MS, "{wake}");
    fixture.pass_by(Duration::from_secs(1) - BEFORE);
    let begun = fixture.accept_all();
    assert_eq!(attempts(&begun), [1]);
    let start = fixture.starts().pop().expect("it is begun ahead");
    assert_eq!(start.not_before, Some(fixture.now.up + BEFORE));
    fixture.handle(Event::Warden(Notice::Held { tree_id: start.tree_id, pid: 4242 }));
    fixture.pass_by(BEFORE);
    assert!(fixture.accept_all().is_empty(), "it is decided on already");
    fixture.started(start.tree_id);
    let lateness = fixture.reports().into_iter().find_map(|report| match report {
        Report::Started { lateness, .. } => lateness,
        _ => None,
    });
    assert_eq!(lateness, Some(Duration::ZERO));
    fixture.ended(start.tree_id, Exit::Code(0), None);
    assert!(matches!(&fixture.accept_all()[..], [Change::End { .. }]));
}

#[test]
fn a_begin_that_is_accepted_at_its_time_holds_nothing() {
    let mut fixture = shortly_before(vec![once()]);
    fixture.pass_by(BEFORE);
    fixture.accept_all();
    assert_eq!(fixture.starts()[0].not_before, None);
}

#[test]
fn what_can_turn_out_otherwise_is_not_decided_ahead() {
    let group = Group { name: "one".into(), limit: 5 };
    let grouped = Job { concurrency_group: Some(group), ..once() };
    let locked = Job { lock: ["/locks/a".parse().expect("a lock's path")].into(), ..once() };
    for job in [grouped, locked] {
        let mut fixture = shortly_before(vec![job]);
        assert!(fixture.commits().is_empty());
        fixture.pass_by(BEFORE);
        assert_eq!(fixture.commits().len(), 1, "it is decided on at its time");
    }
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    fixture.handle(pause());
    fixture.pass_by(Duration::from_secs(1) - BEFORE);
    assert!(fixture.commits().is_empty(), "it is paused");
}

#[test]
fn a_run_in_flight_keeps_the_next_from_being_decided_ahead_unless_both_may_run() {
    for overlap in [Overlap::Skip, Overlap::Queue, Overlap::Replace, Overlap::Allow] {
        let tick = Job { overlap, ..job("a", "* * * * * *") };
        let mut fixture = Fixture::settled("09:59:59", vec![tick]);
        fixture.pass(1);
        let (_, trees) = fixture.start_all();
        assert_eq!(trees.len(), 1);
        fixture.pass_by(Duration::from_secs(1) - BEFORE);
        assert_eq!(attempts(&fixture.accept_all()).len(), usize::from(overlap == Overlap::Allow), "{overlap:?}");
    }
}

#[test]
fn without_a_lease_that_covers_it_nothing_is_decided_ahead() {
    let mut fixture = Fixture::settled("10:00:00", vec![once()]);
    let until = fixture.now.up + Duration::from_secs(1) + MS;
    fixture.handle(Event::Election(crate::election::Event::Lease { until }));
    fixture.pass_cut_off_by(Duration::from_secs(1) - BEFORE);
    assert!(fixture.commits().is_empty());
    fixture.pass_cut_off_by(BEFORE);
    assert_eq!(fixture.commits().len(), 1);
}

#[test]
fn a_pause_takes_it_back_and_its_occurrence_is_skipped() {
    let (mut fixture, start) = holding(once());
    fixture.handle(pause());
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    let record = not_started(&mut fixture, &start);
    assert_eq!((record.state, record.retry_at), (RunState::Unstarted, Some(due())));
    fixture.pass_by(BEFORE - MS);
    assert!(fixture.commits().is_empty(), "its time has not come");
    fixture.pass_by(MS);
    match &fixture.accept_all()[..] {
        [Change::SkipRun { skip, .. }] => assert_eq!((skip.reason, skip.first), (SkipReason::Paused, due())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_changed_job_runs_at_its_time_as_it_is_then_and_a_removed_one_does_not() {
    let (mut fixture, start) = holding(once());
    let changed = Job { command: CommandLine::Argv(vec!["other".into()]), ..once() };
    fixture.handle(Event::Loaded(set([changed.clone()])));
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    not_started(&mut fixture, &start);
    fixture.pass_by(BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [2]);
    let again = fixture.starts().pop().expect("it starts at its time");
    assert_eq!((&again.job.command, again.not_before), (&changed.command, None));

    let (mut fixture, start) = holding(once());
    fixture.handle(Event::Loaded(JobSet::default()));
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    not_started(&mut fixture, &start);
    fixture.pass_by(BEFORE);
    assert!(attempts(&fixture.accept_all()).is_empty());
}

#[test]
fn a_job_that_is_changed_before_its_begin_is_accepted_is_not_started_as_it_was() {
    let mut fixture = shortly_before(vec![once()]);
    let begin = fixture.commits().pop().expect("it is begun ahead").0;
    let changed = Job { command: CommandLine::Argv(vec!["other".into()]), ..once() };
    fixture.handle(Event::Loaded(set([changed])));
    fixture.answer(begin, crate::ledger::Commit::Accepted);
    assert!(fixture.starts().is_empty());
    fixture.accept_all();
    fixture.pass_by(BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [2]);
}

#[test]
fn other_jobs_are_held_on_when_one_is_removed_or_paused() {
    let other = Job { name: job("b", "@daily").name, ..once() };
    let removed = Event::Loaded(set([other.clone()]));
    for (event, again) in [(pause(), removed.clone()), (removed, pause())] {
        let mut fixture = shortly_before(vec![once(), other.clone()]);
        fixture.accept_all();
        let starts = fixture.starts();
        assert_eq!(starts.len(), 2);
        let first = starts.iter().find(|start| start.run.job == once().name).expect("both").tree_id;
        fixture.commands.clear();
        fixture.handle(event);
        assert_eq!(cancelled(&fixture), [first]);
        fixture.commands.clear();
        fixture.handle(again);
        assert!(cancelled(&fixture).is_empty(), "cancelled twice");
    }
}

#[test]
fn a_clock_that_is_set_takes_it_back_and_it_runs_when_its_time_comes() {
    for by in [-3_600, 3_600, 1] {
        let (mut fixture, start) = holding(once());
        fixture.now.wall += jiff::SignedDuration::from_secs(by);
        fixture.handle(Event::Tick);
        assert_eq!(cancelled(&fixture), [start.tree_id], "{by}");
        let record = not_started(&mut fixture, &start);
        assert_eq!(record.retry_at, (by < 0).then_some(due()));
        if by < 0 {
            fixture.pass(3_599);
            assert!(attempts(&fixture.accept_all()).is_empty());
            fixture.pass_by(Duration::from_secs(1) + BEFORE);
        }
        fixture.accept_all();
        let again: Vec<u32> = fixture.starts().iter().map(|start| start.run.attempt).collect();
        assert_eq!(again, [2], "{by}");
    }
}

#[test]
fn a_slewed_clock_takes_nothing_back() {
    let (mut fixture, _) = holding(once());
    fixture.now.wall += MS;
    fixture.handle(Event::Tick);
    assert!(cancelled(&fixture).is_empty());
}

#[test]
fn a_node_that_ends_leaves_it_to_the_next_leader_which_waits_for_its_time() {
    let (mut fixture, start) = holding(once());
    fixture.handle(Event::Drain { timeout: Duration::from_secs(60) });
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    let record = not_started(&mut fixture, &start);
    let unstarted = fixture.reports().into_iter().find_map(|report| match report {
        Report::Unstarted { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!((record.state, unstarted), (RunState::Unstarted, Some(Some(Reason::Drain))));

    let left = ledger::Running { record, version: Version(1), owner: OwnerState::Gone };
    let mut next = Fixture::new("10:00:00", set([once()]));
    next.now.wall = due() - BEFORE;
    next.join();
    next.elect(10, Snapshot { jobs: [entry(&once(), due(), 1)].into(), running: vec![left], ..Snapshot::default() });
    assert!(attempts(&next.accept_all()).is_empty(), "its time has not come");
    next.pass_by(BEFORE);
    assert_eq!(attempts(&next.accept_all()), [2]);
}

#[test]
fn a_begin_that_is_accepted_while_the_node_ends_is_not_started() {
    let mut fixture = shortly_before(vec![once()]);
    let begin = fixture.commits().pop().expect("it is begun ahead").0;
    fixture.handle(Event::Drain { timeout: Duration::from_secs(60) });
    fixture.answer(begin, crate::ledger::Commit::Accepted);
    assert!(fixture.starts().is_empty());
}

#[test]
fn a_program_that_begins_before_it_is_cancelled_goes_on() {
    let (mut fixture, start) = holding(once());
    fixture.pass_by(BEFORE);
    fixture.handle(pause());
    fixture.started(start.tree_id);
    assert!(fixture.reports().iter().any(|report| matches!(report, Report::Started { .. })));
    fixture.commands.clear();
    fixture.ended(start.tree_id, Exit::Code(0), None);
    assert!(matches!(&fixture.accept_all()[..], [Change::End { .. }]));
}

#[test]
fn a_run_that_an_operator_ends_while_it_is_held_is_killed_without_a_process() {
    let (mut fixture, start) = holding(once());
    let mut record = start.run.clone();
    let kill = crate::run::KillRequest { reason: Reason::Operator, by: "x".into(), at: fixture.now.wall, force: false };
    record.kill = Some(Box::new(kill));
    fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), Some((record, Version(1))))));
    let stops = fixture.commands.iter().any(|command| matches!(command, Command::Order(Order::Stop { .. })));
    assert!(stops, "{:?}", fixture.commands);
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why: StartFailure::TooLate }));
    match &fixture.accept_all()[..] {
        [Change::End { end, .. }] => assert_eq!(end.reason, Some(Reason::Operator)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_held_start_that_somebody_kills_begins_at_its_time() {
    let (mut fixture, start) = holding(once());
    fixture.ended(start.tree_id, Exit::Signal { signal: 15, core: false }, None);
    match &fixture.accept_all()[..] {
        [Change::ChangeOwner { run, .. }] => assert_eq!((run.state, run.retry_at), (RunState::Unstarted, Some(due()))),
        other => panic!("{other:?}"),
    }
    fixture.pass_by(BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [2]);
}

#[test]
fn thousands_due_at_once_are_begun_ahead_only_up_to_a_limit() {
    let jobs = (0..2_000).map(|n| Job { name: job(&format!("j{n:04}"), "@daily").name, ..once() }).collect();
    let mut fixture = Fixture::settled("10:00:00", jobs);
    fixture.pass_by(Duration::from_millis(600));
    let mut held = 0;
    loop {
        fixture.accept_all();
        let starts = fixture.starts();
        fixture.commands.clear();
        if starts.is_empty() {
            break;
        }
        held += starts.len();
        for start in starts {
            fixture.pass_by(Duration::from_micros(500));
            fixture.handle(Event::Warden(Notice::Held { tree_id: start.tree_id, pid: 1 }));
        }
    }
    assert!((400..=600).contains(&held), "{held}");
    let wake = fixture.engine.wake(fixture.now).wall;
    assert_eq!(wake, Some(due()), "the others wait for their time, and the loop does not spin");
}

/// The loop would turn without end until the retry is due.
#[test]
fn a_retry_that_is_due_in_between_does_not_keep_it_from_being_begun() {
    let other = job("b", "@daily");
    let mut waiting = running(&other, at("09:00:00"), OwnerState::Gone);
    (waiting.record.state, waiting.record.retry_at) = (RunState::Retrying, Some(due() - MS));
    let jobs = [entry(&once(), at("10:00:00"), 0), entry(&other, at("10:00:00"), 0)].into();
    let snapshot = Snapshot { jobs, running: vec![waiting], ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:00", set([once(), other]), snapshot);
    fixture.pass_by(Duration::from_secs(1) - BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [1]);
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(due() - MS));
}

#[test]
fn a_job_that_is_disabled_before_its_time_does_not_run() {
    let (mut fixture, start) = holding(once());
    fixture.handle(Event::Loaded(set([Job { enabled: false, ..once() }])));
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    not_started(&mut fixture, &start);
    fixture.pass_by(BEFORE);
    let skips = fixture.accept_all();
    let skip = skips.iter().find_map(|change| match change {
        Change::SkipRun { skip, .. } => Some((skip.reason, skip.first)),
        _ => None,
    });
    assert_eq!((attempts(&skips), skip), (vec![], Some((SkipReason::Missed, due()))));
}

/// It was decided on by the schedule of then, as any run that has begun.
#[test]
fn a_job_that_is_due_at_another_time_from_now_on_runs_once_more_at_the_old_one() {
    let (mut fixture, start) = holding(once());
    fixture.handle(Event::Loaded(set([job("a", "1 0 11 * * *")])));
    assert_eq!(cancelled(&fixture), [start.tree_id]);
    not_started(&mut fixture, &start);
    fixture.pass_by(BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [2]);
}

#[test]
fn a_job_that_is_resumed_before_its_time_runs_at_it() {
    let (mut fixture, start) = holding(once());
    fixture.handle(pause());
    not_started(&mut fixture, &start);
    // Looked at before its time, as after a reload.
    fixture.handle(Event::Loaded(set([Job { lock: Vec::new(), description: Some("x".into()), ..once() }])));
    assert!(fixture.accept_all().iter().all(|change| !matches!(change, Change::SkipRun { .. })));
}

/// A run that the lease does not end would begin on a node that has been replaced.
#[test]
fn a_term_that_is_taken_away_takes_held_starts_with_it() {
    for event in [
        crate::election::Event::Over { term: Fixture::term(9), why: crate::term::TermEnd::EntryGone },
        crate::election::Event::Expired { session: crate::term::SessionId("a".into()) },
    ] {
        let (mut fixture, start) = holding(once());
        fixture.handle(Event::Election(event));
        assert_eq!(cancelled(&fixture), [start.tree_id]);
    }
    let (mut fixture, _) = holding(once());
    let over = crate::election::Event::Over { term: Fixture::term(9), why: crate::term::TermEnd::Resigned };
    fixture.handle(Event::Election(over));
    assert!(cancelled(&fixture).is_empty(), "it begins here at its time, as any run in flight stays");
}

#[test]
fn what_cannot_be_prepared_before_its_time_is_tried_again_at_it() {
    let mut fixture = shortly_before(vec![once()]);
    fixture.accept_all();
    let start = fixture.starts().pop().expect("it is begun ahead");
    fixture.commands.clear();
    let why = StartFailure::Step { step: crate::process::StartStep::Directory, errno: 2 };
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }));
    match &fixture.accept_all()[..] {
        [Change::ChangeOwner { run, .. }] => assert_eq!(run.retry_at, Some(due())),
        other => panic!("{other:?}"),
    }
    fixture.pass_by(BEFORE);
    assert_eq!(attempts(&fixture.accept_all()), [2]);
    let again = fixture.starts().pop().expect("it is started at its time").tree_id;
    fixture.commands.clear();
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id: again, why }));
    assert!(matches!(&fixture.accept_all()[..], [Change::End { .. }]), "now it has failed");
}

#[test]
fn a_cancelled_start_is_not_blamed_on_the_lease() {
    let (mut fixture, start) = holding(once());
    fixture.handle(Event::Loaded(set([Job { description: Some("x".into()), ..once() }])));
    not_started(&mut fixture, &start);
    let reason = fixture.reports().into_iter().find_map(|report| match report {
        Report::Unstarted { reason, .. } => Some(reason),
        _ => None,
    });
    assert_eq!(reason, Some(None));
}

/// Its begin would be refused again and again until its time.
#[test]
fn an_obstructed_begin_is_repeated_at_its_time_only() {
    let mut fixture = shortly_before(vec![once()]);
    let begin = fixture.commits().pop().expect("it is begun ahead").0;
    fixture.answer(begin, crate::ledger::Commit::Superseded);
    let (name, unchanged) = entry(&once(), at("10:00:00"), 0);
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(unchanged), None)));
    assert!(fixture.commits().is_empty());
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(due()));
    fixture.pass_by(BEFORE);
    assert_eq!(fixture.commits().len(), 1);
}

#[test]
fn a_held_program_that_never_begins_is_watched_for_kill_requests() {
    let (mut fixture, start) = holding(once());
    fixture.pass(2);
    let watched = fixture.commands.iter().any(|command| {
        matches!(command, Command::Ask(crate::coordination::Request::Ledger(ledger::Request::WatchOwn(run)))
            if *run == start.run.id())
    });
    assert!(watched, "{:?}", fixture.commands);
}
