//! Alarms: when each is raised, that it is raised once whoever leads, and when it ends.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::{AlarmChange, AlarmNews, Command, Event, Report};
use crate::job::{Alarm, AlarmLimits, CommandLine, Hook, Job, JobSet, Misfire, Overlap, Retries};
use crate::ledger::{Change, Commit, ControlEntry, JobEntry, LastSuccess, OwnerState, Snapshot};
use crate::process::{Exit, TreeId};
use crate::run::{ControlRecord, JobRecord, Pause, RaisedAlarm, Resume, Version};
use crate::term::TermEnd;
use crate::{election, ledger};

fn seconds(count: u64) -> Option<Duration> {
    Some(Duration::from_secs(count))
}

/// A job with these limits, and a hook for each alarm.
fn watched(schedule: &str, alarms: AlarmLimits) -> Job {
    let hooks = [Hook::Late, Hook::Long, Hook::Stale].map(|hook| (hook, CommandLine::Shell(hook.as_str().into())));
    Job { alarms, hooks: hooks.into(), ..job("a", schedule) }
}

fn late() -> Job {
    Job {
        overlap: Overlap::Queue,
        ..watched("* * * * * *", AlarmLimits { late_after: seconds(3), ..AlarmLimits::default() })
    }
}

fn long() -> Job {
    watched("1 0 10 * * *", AlarmLimits { long_after: seconds(5), ..AlarmLimits::default() })
}

fn stale() -> Job {
    watched("*/10 * * * * *", AlarmLimits { stale_after: seconds(25), ..AlarmLimits::default() })
}

impl Fixture {
    /// Accepts all that is requested. Returns what was said of alarms since the last time: reports, and hooks.
    fn alarms(&mut self) -> Vec<String> {
        self.accept_all();
        let said = self.take().into_iter().filter_map(|command| match command {
            Command::Report(Report::Alarm(AlarmNews { alarm, raised, change, .. })) => {
                let run = raised.run.map(|run| format!(" {run}").replace("a.20261120T", "")).unwrap_or_default();
                let since = raised.since.to_string().replace("2026-11-20T", "");
                Some(format!(
                    "{}{} since {since}{run}",
                    if change == AlarmChange::Raised { "" } else { "no longer " },
                    alarm.as_str()
                ))
            }
            Command::RunHook(start) => Some(start.call.name().to_owned()),
            _ => None,
        });
        said.collect()
    }

    /// Answers the read of the last success, which must have been requested.
    fn last_success(&mut self, success: Option<&str>) {
        let asked = Command::Ask(Request::Ledger(ledger::Request::ReadLastSuccesses([name("a")].into())));
        assert!(self.commands.contains(&asked), "{:?}", self.commands);
        self.commands.retain(|command| *command != asked);
        self.succeeded("a", success.map(at).into());
    }

    /// The newest start that was ordered.
    fn start_next(&mut self) -> TreeId {
        self.accept_all();
        let tree_id = self.starts().last().unwrap().tree_id;
        self.started(tree_id);
        tree_id
    }
}

/// A leader at `wall` that finds the record of `job` as the last write of `before` left it.
fn successor(wall: &str, job: Job, record: JobRecord) -> Fixture {
    let entry = JobEntry { record: Some(record), version: Version(7) };
    let jobs = BTreeMap::from([(job.name.clone(), entry)]);
    Fixture::leading(wall, set([job]), Snapshot { jobs, ..Snapshot::default() })
}

/// The job's pause.
fn paused(time: &str) -> ControlEntry {
    let pause = Pause { by: "uid 0".into(), reason: None, at: at(time), until: None };
    ControlEntry { record: ControlRecord::new(uuid::Uuid::from_u128(1), pause), version: Version(0) }
}

fn requests(control: &ControlEntry) -> Event {
    let control = BTreeMap::from([(name("a"), control.clone())]);
    Event::Ledger(ledger::Event::OperatorRequests(ledger::OperatorRequests { control, ..Default::default() }))
}

/// The newest record of the job among these changes.
fn last_record(changes: &[Change]) -> JobRecord {
    let mut records = changes.iter().filter_map(|change| match change {
        Change::Advance { record, .. } | Change::Begin { record, .. } => Some(record.clone()),
        _ => None,
    });
    records.next_back().unwrap()
}

#[test]
fn a_run_that_waits_too_long_is_late_once_until_one_starts_in_time() {
    let (mut fixture, first) = running_one(late());
    for _ in 0..3 {
        fixture.pass(1);
        assert_eq!(fixture.alarms(), [""; 0]);
    }
    fixture.pass(1);
    assert_eq!(fixture.alarms(), ["late since 10:00:02Z 100002Z", "on_late"]);
    fixture.pass(5);
    assert_eq!(fixture.alarms(), [""; 0], "it stands");
    fixture.ended(first, Exit::Code(0), None);
    let second = fixture.start_next();
    assert_eq!(fixture.alarms(), [""; 0], "it has started, but too late");
    fixture.ended(second, Exit::Code(0), None);
    fixture.pass(1);
    fixture.start_next();
    assert_eq!(fixture.alarms(), ["no longer late since 10:00:02Z 100002Z"]);
}

#[test]
fn a_run_that_a_new_leader_starts_too_late_was_late() {
    let job = watched("0 0 10 * * *", AlarmLimits { late_after: seconds(3), ..AlarmLimits::default() });
    let jobs = BTreeMap::from([entry(&job, at("09:59:00"), 1)]);
    let mut fixture = Fixture::leading("10:00:20", set([job]), Snapshot { jobs, ..Snapshot::default() });
    fixture.start_next();
    assert_eq!(fixture.alarms(), ["late since 10:00:00Z 100000Z", "on_late"]);
}

#[test]
fn an_attempt_that_takes_too_long_is_said_once_and_goes_on() {
    let (mut fixture, tree_id) = running_one(long());
    fixture.pass(4);
    assert_eq!(fixture.alarms(), [""; 0]);
    assert_eq!(fixture.engine.wake(fixture.now).wall, Some(at("10:00:06")));
    fixture.pass(1);
    assert_eq!(fixture.alarms(), ["long since 10:00:01Z 100001Z", "on_long"]);
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0]);
    fixture.ended(tree_id, Exit::Code(1), None);
    assert_eq!(fixture.alarms(), ["no longer long since 10:00:01Z 100001Z"]);
}

#[test]
fn a_job_without_success_is_stale_once_until_it_succeeds() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.last_success(None);
    let changes = fixture.accept_all();
    assert_eq!(last_record(&changes).alarms.stale_from, Some(at("10:00:00")), "counted from when it was first seen");
    let mut said = Vec::new();
    for _ in 0..4 {
        fixture.pass(10);
        let tree_id = fixture.start_next();
        fixture.ended(tree_id, Exit::Code(1), None);
        said.extend(fixture.alarms());
    }
    assert_eq!(said, ["stale since 10:00:00Z", "on_stale"]);
    fixture.pass(10);
    let tree_id = fixture.start_next();
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(fixture.alarms(), ["no longer stale since 10:00:00Z"]);
}

#[test]
fn nothing_is_called_stale_before_its_last_success_was_read() {
    let mut fixture = Fixture::settled("10:00:00", vec![Job { enabled: true, ..stale() }]);
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0]);
}

#[test]
fn a_success_on_another_node_is_read() {
    let job = Job { due: job("a", "0 0 12 * * *").due, ..stale() };
    let found = running(&job, at("09:59:00"), OwnerState::Alive);
    let run = found.record.id();
    let snapshot = Snapshot {
        jobs: BTreeMap::from([entry(&job, at("09:59:00"), 1)]),
        running: vec![found],
        ..Snapshot::default()
    };
    let mut fixture = Fixture::leading("10:00:00", set([job]), snapshot);
    fixture.accept_all();
    fixture.last_success(None);
    fixture.pass(20);
    fixture.handle(Event::Ledger(ledger::Event::Run(run, None)));
    fixture.last_success(Some("10:00:20"));
    fixture.pass(20);
    assert_eq!(fixture.alarms(), [""; 0]);
    fixture.pass(5);
    assert_eq!(fixture.alarms(), ["stale since 10:00:20Z", "on_stale"]);
}

#[test]
fn a_new_leader_does_not_raise_what_stands_and_ends_it_when_the_job_is_well() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.last_success(None);
    fixture.take();
    fixture.pass(25);
    let record = last_record(&fixture.accept_all());
    assert!(record.alarms.is_any_active());

    let mut next = successor("10:00:30", stale(), record);
    next.accept_all();
    next.last_success(None);
    next.pass(30);
    let tree_id = next.start_next();
    next.ended(tree_id, Exit::Code(1), None);
    assert_eq!(next.alarms(), [""; 0]);
    assert_eq!(next.engine.alarms().count(), 1);
    next.pass(10);
    let tree_id = next.start_next();
    next.ended(tree_id, Exit::Code(0), None);
    assert_eq!(next.alarms(), ["no longer stale since 10:00:00Z"]);
    assert_eq!(next.engine.alarms().count(), 0);
}

#[test]
fn without_an_answer_nobody_is_told_and_after_a_conflict_it_is_judged_again() {
    let write = |fixture: &mut Fixture| {
        let (mut fixture_commits, rest): (Vec<_>, Vec<_>) =
            fixture.commits().into_iter().partition(|(_, change)| matches!(change, Change::Advance { .. }));
        assert!(rest.is_empty(), "{rest:?}");
        fixture_commits.remove(0).0
    };
    let (mut fixture, _) = running_one(long());
    fixture.pass(5);
    let id = write(&mut fixture);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.answer(id, Commit::Unknown);
    assert_eq!(fixture.alarms(), [""; 0]);

    let (mut fixture, _) = running_one(long());
    fixture.pass(5);
    let id = write(&mut fixture);
    fixture.answer(id, Commit::Superseded);
    assert_eq!(fixture.alarms(), [""; 0]);
    let (_, read) = entry(&long(), at("10:00:01"), 9);
    fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(read), None)));
    assert_eq!(fixture.alarms(), ["long since 10:00:01Z 100001Z", "on_long"]);
}

#[test]
fn a_paused_job_does_not_become_stale_and_counts_anew_when_the_pause_ends() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.last_success(None);
    let mut control = paused("10:00:01");
    fixture.handle(requests(&control));
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0]);
    control.record.resume = Some(Resume { by: "uid 0".into(), at: at("10:01:00") });
    control.version = Version(1);
    fixture.handle(requests(&control));
    fixture.pass(24);
    let said = fixture.alarms();
    assert_eq!(said, [""; 0]);
    fixture.pass(1);
    assert_eq!(fixture.alarms(), ["stale since 10:01:00Z", "on_stale"]);
}

#[test]
fn an_alarm_ends_with_its_key_or_its_job() {
    for changed in [set([Job { alarms: AlarmLimits::default(), ..long() }]), set([Job { enabled: false, ..long() }])] {
        let (mut fixture, _) = running_one(long());
        fixture.pass(5);
        assert_eq!(fixture.alarms().len(), 2);
        fixture.handle(Event::Loaded(changed));
        assert_eq!(fixture.alarms(), ["no longer long since 10:00:01Z 100001Z"]);
        fixture.pass(60);
        assert_eq!(fixture.alarms(), [""; 0]);
    }
}

#[test]
fn a_second_attempt_that_takes_too_long_is_said_too() {
    let retries = Retries { limit: 1, delay: Duration::ZERO, ..Retries::default() };
    let (mut fixture, first) = running_one(Job { retries, ..long() });
    fixture.ended(first, Exit::Code(1), None);
    let second = fixture.start_next();
    assert_ne!(first, second);
    fixture.take();
    fixture.pass(5);
    assert_eq!(fixture.alarms(), ["long since 10:00:01Z 100001Z", "on_long"]);
}

/// The alarm is about an attempt, and that one is over.
#[test]
fn an_attempt_that_another_nodes_has_replaced_no_longer_takes_too_long() {
    let (mut fixture, tree_id) = running_one(long());
    fixture.pass(5);
    assert_eq!(fixture.alarms(), ["long since 10:00:01Z 100001Z", "on_long"]);
    let mut other = fixture.engine.runs().next().unwrap().clone();
    (other.attempt, other.token.0, other.begun_at) = (2, 12, fixture.now.wall);
    (other.owner.node, other.owner.session.0) = (crate::term::NodeName::new("host-b"), "b".into());
    let id = crate::term::SessionId("a2".into());
    fixture.handle(Event::Election(election::Event::Session { id, timeout: LEASE * 2 }));
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let found = Some((other.clone(), Version(4)));
    fixture.handle(Event::Ledger(ledger::Event::Run(other.id(), found.clone())));
    fixture.ended(tree_id, Exit::Code(0), None);
    fixture.handle(Event::Ledger(ledger::Event::Run(other.id(), found)));
    assert_eq!(fixture.alarms(), ["no longer long since 10:00:01Z 100001Z"]);
    fixture.pass(5);
    assert_eq!(fixture.alarms(), ["long since 10:00:06Z 100001Z", "on_long"]);
}

#[test]
fn a_run_that_goes_on_cut_off_still_takes_too_long() {
    let mut found = running(&long(), at("10:00:01"), OwnerState::Gone);
    found.record.keep_until = None;
    let mut record = entry(&long(), at("10:00:01"), 1).1.record.unwrap();
    let raised = RaisedAlarm { raised_at: at("10:00:06"), since: at("10:00:01"), run: Some(found.record.id()) };
    record.alarms.set(Alarm::Long, Some(raised));
    let jobs = BTreeMap::from([(name("a"), JobEntry { record: Some(record), version: Version(1) })]);
    let snapshot = Snapshot { jobs, running: vec![found], ..Snapshot::default() };
    let mut fixture = Fixture::leading("10:00:10", set([long()]), snapshot);
    assert_eq!(fixture.alarms(), [""; 0]);
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0], "it neither ends nor is raised again");
}

#[test]
fn the_end_of_a_pause_does_not_end_an_alarm_that_only_a_success_ends() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.last_success(None);
    fixture.alarms();
    fixture.pass(25);
    assert_eq!(fixture.alarms(), ["stale since 10:00:00Z", "on_stale"]);
    let mut control = paused("10:00:26");
    fixture.handle(requests(&control));
    fixture.alarms();
    control.record.resume = Some(Resume { by: "uid 0".into(), at: at("10:00:30") });
    control.version = Version(1);
    fixture.handle(requests(&control));
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0]);
}

#[test]
fn a_new_key_counts_from_the_last_success_and_an_enabled_job_from_now() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "0 0 12 * * *")]);
    let daily = || Job { due: job("a", "0 0 12 * * *").due, ..stale() };
    fixture.handle(Event::Loaded(set([daily()])));
    fixture.last_success(Some("09:50:00"));
    assert_eq!(fixture.alarms(), ["stale since 09:50:00Z", "on_stale"]);

    let mut fixture = Fixture::settled("10:00:00", vec![Job { enabled: false, ..daily() }]);
    fixture.handle(Event::Loaded(set([daily()])));
    fixture.accept_all();
    fixture.last_success(Some("09:50:00"));
    fixture.pass(24);
    assert_eq!(fixture.alarms(), [""; 0]);
    fixture.pass(1);
    assert_eq!(fixture.alarms(), ["stale since 10:00:00Z", "on_stale"]);
}

#[test]
fn a_success_recorded_by_a_clock_that_is_ahead_counts_as_now() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.last_success(Some("23:00:00"));
    fixture.alarms();
    fixture.pass(25);
    assert_eq!(fixture.alarms(), ["stale since 10:00:00Z", "on_stale"]);
}

#[test]
fn what_is_about_to_be_skipped_as_missed_is_not_late() {
    let job = Job {
        misfire: Misfire::Skip,
        ..watched("0 0 10 * * *", AlarmLimits { late_after: seconds(3), ..AlarmLimits::default() })
    };
    let jobs = BTreeMap::from([entry(&job, at("09:59:00"), 1)]);
    let mut fixture = Fixture::leading("10:00:20", set([job]), Snapshot { jobs, ..Snapshot::default() });
    assert_eq!(fixture.alarms(), [""; 0]);
    fixture.pass(60);
    assert_eq!(fixture.alarms(), [""; 0]);
}

#[test]
fn nothing_is_called_stale_whose_last_success_may_not_be_read() {
    let mut fixture = Fixture::leading("10:00:00", set([stale()]), Snapshot::default());
    fixture.accept_all();
    fixture.succeeded("a", LastSuccess::Unreadable);
    fixture.pass(600);
    assert!(fixture.alarms().iter().all(|said| !said.starts_with("stale")), "nothing says so");
}

#[test]
fn many_alarms_at_once_are_written_a_few_at_a_time() {
    let named = |number: u32| {
        let alarms = AlarmLimits { stale_after: seconds(10), ..AlarmLimits::default() };
        Job { alarms, ..job(&format!("j{number}"), "0 0 12 * * *") }
    };
    let jobs: JobSet = set((0..500).map(named));
    let mut fixture = Fixture::leading("10:00:00", jobs, Snapshot::default());
    fixture.accept_all();
    let asked = fixture.take().into_iter().find_map(|command| match command {
        Command::Ask(Request::Ledger(ledger::Request::ReadLastSuccesses(jobs))) => Some(jobs),
        _ => None,
    });
    let never: BTreeMap<_, _> = asked.unwrap().into_iter().map(|job| (job, LastSuccess::Never)).collect();
    assert_eq!(never.len(), 500, "all are read at once");
    fixture.handle(Event::Ledger(ledger::Event::LastSuccesses(never)));
    fixture.accept_all();
    fixture.take();
    fixture.pass(10);
    let (mut raised, mut turns) = (0, 0);
    while raised < 500 {
        fixture.handle(Event::Tick);
        let commits = fixture.commits();
        assert!(!commits.is_empty() && commits.len() <= 50, "{}", commits.len());
        raised += commits.len();
        turns += 1;
        commits.into_iter().for_each(|(id, _)| fixture.answer(id, Commit::Accepted));
    }
    assert!(turns >= 10);
}
