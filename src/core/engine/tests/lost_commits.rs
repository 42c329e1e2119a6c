//! A store that has lost commits, and nobody knows which.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use super::fixture::*;
use crate::engine::{Event, Report};
use crate::job::{Condition, Due, Interrupted, Job, Misfire, OnLeaseEnd, Overlap, Retries};
use crate::ledger::{self, Change, Commit, OperatorRequests, OwnerState, Running, Snapshot, TriggerEntry};
use crate::process::Exit;
use crate::run::{
    Link, OnLoss, Outcome, OverAttempt, OverAttempts, Reason, RunEnd, RunRecord, RunState, Span, TriggerRecord,
    TriggerSeq, UpstreamResult,
};

fn minutely() -> Job {
    Job { misfire: Misfire::RunAll, ..job("a", "0 * * * * *") }
}

/// What a leader finds that takes over after commits were lost until then.
fn lost_until(until: &str, jobs: &[Job], mark: &str) -> Snapshot {
    let jobs = jobs.iter().map(|job| entry(job, at(mark), 3)).collect();
    Snapshot { jobs, lost_until: Some(at(until)), ..Snapshot::default() }
}

/// What these changes skip, and why.
fn reasons(changes: &[Change]) -> Vec<String> {
    let one = |change: &Change| {
        let skip = match change {
            Change::SkipRun { skip, .. } => skip,
            Change::DropTrigger { skip: Some(skip), .. } | Change::DropLinks { skip: Some(skip), .. } => skip,
            _ => return None,
        };
        Some(format!("{} {}", skip.id(), skip.reason.as_str()))
    };
    changes.iter().filter_map(one).collect()
}

#[test]
fn occurrences_that_a_lost_commit_may_have_begun_are_skipped_and_later_ones_run() {
    let jobs = [minutely()];
    let snapshot = lost_until("10:05:40", &jobs, "10:00:00");
    let mut fixture = Fixture::leading("10:05:30", set(jobs), snapshot);
    assert_eq!(skipped(&fixture.accept_all()), ["rewound 2026-11-20T10:01:00Z 2026-11-20T10:05:00Z 5"]);
    fixture.pass(29);
    assert!(fixture.accept_all().is_empty() && fixture.starts().is_empty());
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100600Z"]);
}

/// Whoever led may have begun it ahead of its time, or may still go on.
#[test]
fn what_is_due_until_the_end_of_the_loss_is_skipped_before_its_time() {
    let jobs = [job("a", "* * * * * *")];
    let snapshot = lost_until("10:00:05", &jobs, "10:00:00");
    let mut fixture = Fixture::leading("10:00:02", set(jobs), snapshot);
    assert_eq!(skipped(&fixture.accept_all()), ["rewound 2026-11-20T10:00:01Z 2026-11-20T10:00:05Z 5"]);
    for _ in 0..3 {
        fixture.pass(1);
        assert_eq!(begun(&fixture.accept_all()), [""; 0]);
    }
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100006Z"]);
}

#[test]
fn a_loss_that_an_earlier_leader_has_passed_over_skips_nothing() {
    let jobs = [minutely()];
    let snapshot = lost_until("09:59:00", &jobs, "10:00:00");
    let mut fixture = Fixture::leading("10:01:30", set(jobs), snapshot);
    let changes = fixture.accept_all();
    assert_eq!((begun(&changes), skipped(&changes)), (vec!["a.20261120T100100Z".to_owned()], Vec::new()));
}

/// A clock that is wrong, or somebody who can write the record, must not stop the cluster.
#[test]
fn no_loss_reaches_further_than_a_minute_into_the_future() {
    let jobs = [minutely()];
    let snapshot = lost_until("23:00:00", &jobs, "10:00:00");
    let mut fixture = Fixture::leading("10:00:30", set(jobs), snapshot);
    assert_eq!(skipped(&fixture.accept_all()), ["rewound 2026-11-20T10:01:00Z 2026-11-20T10:01:00Z 1"]);
    fixture.pass(90);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100200Z"]);
}

#[test]
fn what_this_node_knows_to_have_begun_is_not_skipped() {
    let job = minutely();
    let known = running(&job, at("10:03:00"), OwnerState::Gone).record;
    let mut over = OverAttempts::default();
    over.remember(OverAttempt::of(&known, None));
    let mut fixture = Fixture::new("10:05:30", set([job.clone()]));
    fixture.handle(Event::Recovered { runs: Vec::new(), over });
    fixture.join();
    fixture.elect(10, lost_until("10:05:40", &[job], "10:00:00"));
    let skips = skipped(&fixture.accept_all());
    let counts: Vec<&str> = skips.iter().filter_map(|skip| skip.rsplit(' ').next()).collect();
    // The second extends the first, without what has run.
    assert_eq!(counts, ["2", "4"], "{skips:?}");
}

#[test]
fn what_waits_since_before_the_loss_and_has_not_run_is_skipped() {
    let jobs = ["queued", "unstarted", "retrying", "later"].map(|name| Job {
        overlap: Overlap::Queue,
        retries: Retries { limit: 3, ..Retries::default() },
        ..job(name, "1 0 10 * * *")
    });
    let waits = |job: &Job, state, begun_at: &str| {
        let Running { record, version, owner } = running(job, at("10:00:01"), OwnerState::Gone);
        let attempt = u32::from(state != RunState::Queued);
        Running { record: RunRecord { state, attempt, begun_at: at(begun_at), ..record }, version, owner }
    };
    let [queued, unstarted, retrying, later] = &jobs;
    let mut retried = waits(retrying, RunState::Retrying, "10:00:01");
    retried.record.past.failures = 1;
    let running = vec![
        waits(queued, RunState::Queued, "10:00:01"),
        waits(unstarted, RunState::Unstarted, "10:00:01"),
        retried,
        waits(later, RunState::Queued, "10:00:09"),
    ];
    let snapshot = Snapshot { running, ..lost_until("10:00:05", &jobs, "10:00:01") };
    let mut fixture = Fixture::leading("10:00:10", set(jobs.clone()), snapshot);
    let (changes, _) = fixture.start_all();
    assert_eq!(reasons(&changes), ["queued.20261120T100001Z rewound", "unstarted.20261120T100001Z rewound"]);
    let again = changes.iter().filter_map(|change| match change {
        Change::UpdateRun { run, .. } => Some(run.job.as_str()),
        _ => None,
    });
    assert_eq!(again.collect::<Vec<_>>(), ["later", "retrying"]);
}

/// What a leader finds at 10:05:30: a run of 10:05:00 whose node is gone, and commits that were lost until `until`.
fn found_lost(job: Job, until: &str, owner: OwnerState, change: impl FnOnce(&mut RunRecord)) -> Fixture {
    let mut found = running(&job, at("10:05:00"), owner);
    change(&mut found.record);
    let jobs = [job];
    let snapshot = Snapshot { running: vec![found], ..lost_until(until, &jobs, "10:05:00") };
    Fixture::leading("10:05:30", set(jobs), snapshot)
}

fn ends(changes: Vec<Change>) -> Vec<RunEnd> {
    let end = |change| match change {
        Change::End { end, .. } => Some(end),
        _ => None,
    };
    changes.into_iter().filter_map(end).collect()
}

fn doubted(fixture: &Fixture) -> Vec<(String, u32)> {
    let doubt = |report| match report {
        Report::BegunInDoubt { run, attempt } => Some((run.to_string(), attempt)),
        _ => None,
    };
    fixture.reports().into_iter().filter_map(doubt).collect()
}

/// It may have ended with success before its node went.
#[test]
fn a_run_whose_end_may_be_lost_is_not_said_to_have_died_with_its_node() {
    for (on_loss, owner) in [(OnLoss::Interrupt, OwnerState::Gone), (OnLoss::CutOff, OwnerState::Dead)] {
        let mut fixture = found_lost(minutely(), "10:05:15", owner, |record| record.on_loss = on_loss);
        let [end] = &ends(fixture.accept_all())[..] else { panic!("it is settled") };
        assert_eq!((end.outcome, end.reason), (Outcome::Abandoned, None));
        assert!(end.detail.as_ref().is_some_and(|detail| detail.contains("lost commits")), "{end:?}");
    }
}

#[test]
fn a_run_that_was_begun_after_the_loss_died_with_its_node() {
    let interrupt = |record: &mut RunRecord| record.on_loss = OnLoss::Interrupt;
    let mut fixture = found_lost(minutely(), "10:04:59", OwnerState::Gone, interrupt);
    let [end] = &ends(fixture.accept_all())[..] else { panic!("it is settled") };
    assert_eq!((end.outcome, end.reason), (Outcome::Interrupted, Some(Reason::NodeDied)));
}

#[test]
fn a_run_that_is_begun_again_although_its_end_may_be_lost_says_so() {
    let rerun = || Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    let in_doubt = [("a.20261120T100500Z".to_owned(), 2)];
    for (until, outcome, reason, expected) in [
        ("10:05:15", Outcome::Abandoned, None, &in_doubt[..]),
        ("10:04:59", Outcome::Interrupted, Some(Reason::NodeDied), &[]),
    ] {
        let mut fixture = found_lost(rerun(), until, OwnerState::Gone, |_| {});
        let commits = fixture.commits();
        let [(id, Change::UpdateRun { run, .. })] = &commits[..] else { panic!("{commits:?}") };
        let [first] = &run.past.attempts[..] else { panic!("{run:?}") };
        assert_eq!((run.attempt, first.outcome, first.reason), (2, outcome, reason));
        assert_eq!(doubted(&fixture), [], "nothing is begun before the ledger has it");
        fixture.answer(*id, Commit::Accepted);
        assert_eq!(doubted(&fixture), expected, "{until}");
    }
}

/// Its next attempt may have begun by a commit that is lost, unless that was not due yet.
#[test]
fn a_retry_that_may_have_been_made_before_says_so() {
    let retried = || Job { retries: Retries { limit: 3, ..Retries::default() }, ..minutely() };
    for (retry_at, expected) in [("10:05:10", 1), ("10:05:20", 0)] {
        let mut fixture = found_lost(retried(), "10:05:15", OwnerState::Gone, |record| {
            let failed = RunEnd::unseen(record, Outcome::Failure, None, at("10:05:05"));
            record.past.note(&RunEnd { exit_code: Some(1), ..failed });
            (record.state, record.retry_at) = (RunState::Retrying, Some(at(retry_at)));
        });
        fixture.accept_all();
        assert_eq!(doubted(&fixture).len(), expected, "{retry_at}");
    }
}

/// Although that was before the time until which commits may be lost: this leader knows how its own attempts ended.
#[test]
fn what_this_leader_has_begun_itself_is_not_in_doubt() {
    let retries = Retries { limit: 3, delay: Duration::from_secs(1), ..Retries::default() };
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, retries, ..minutely() };
    let mut fixture = found_lost(rerun, "10:05:40", OwnerState::Gone, |_| {});
    let (_, trees) = fixture.start_all();
    assert_eq!((trees.len(), doubted(&fixture).len()), (1, 1));
    fixture.take();
    fixture.ended(trees[0], Exit::Code(1), None);
    fixture.accept_all();
    fixture.pass(3);
    let again = fixture.accept_all();
    let attempts = again.iter().filter_map(|change| match change {
        Change::UpdateRun { run, .. } => Some(run.attempt),
        _ => None,
    });
    assert_eq!((attempts.collect::<Vec<_>>(), doubted(&fixture)), (vec![3], Vec::new()));
}

fn trigger(job: &str, time: &str, uuid: u128) -> TriggerEntry {
    let record = TriggerRecord::new(Uuid::from_u128(uuid), name(job), "alice".into(), at(time));
    TriggerEntry { record, is_in_history: false }
}

fn after(upstream: &str, name: &str, condition: Condition) -> Job {
    let upstreams: BTreeMap<_, _> = [(super::fixture::name(upstream), condition)].into();
    Job { due: Due::After(upstreams), ..job(name, "* * * * * *") }
}

/// Its node may have ended it before, by a commit that is lost, and what follows may have begun.
#[test]
fn what_follows_a_run_that_a_leader_ends_is_skipped_down_the_chain() {
    let jobs = [
        minutely(),
        after("a", "b", Condition::Success),
        after("a", "c", Condition::Always),
        after("b", "d", Condition::Always),
    ];
    let mut found = running(&jobs[0], at("10:05:00"), OwnerState::Gone);
    found.record = RunRecord { on_loss: OnLoss::Interrupt, dependents: vec![name("b"), name("c")], ..found.record };
    let mut snapshot = Snapshot { running: vec![found], ..lost_until("10:05:15", &jobs[..1], "10:05:00") };
    snapshot.jobs.extend(jobs[1..].iter().map(|job| entry(job, at("10:04:00"), 2)));
    let mut fixture = Fixture::leading("10:05:30", set(jobs), snapshot);
    let mut seqs = (1..).map(TriggerSeq);
    let mut all = Vec::new();
    for _ in 0..3 {
        let changes = fixture.accept_all();
        let links = changes.iter().flat_map(Change::links);
        let links: BTreeMap<TriggerSeq, Link> = seqs.by_ref().zip(links).collect();
        all.extend(changes);
        let requests = OperatorRequests { links, ..OperatorRequests::default() };
        fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(requests)));
    }
    let ends = all.iter().filter(|change| matches!(change, Change::End { .. })).count();
    let skips = ["b.20261120T100500Z upstream", "c.20261120T100500Z rewound", "d.20261120T100500Z rewound"];
    assert_eq!((ends, reasons(&all)), (1, skips.map(str::to_owned).to_vec()), "{all:#?}");
}

#[test]
fn triggers_and_links_of_that_time_are_skipped_and_later_ones_run() {
    let jobs = [minutely(), after("a", "b", Condition::Success), after("a", "c", Condition::Success)];
    let link = |job: &str, ended: Timestamp| Link {
        v: 1,
        upstream: name("a"),
        job: name(job),
        scheduled_at: at("10:05:00"),
        span: Span { last: at("10:05:00"), count: 1 },
        trigger: None,
        result: UpstreamResult::Success,
        at: ended,
        since: None,
    };
    let links = [(TriggerSeq(3), link("b", at("10:05:09"))), (TriggerSeq(4), link("c", at("10:05:21")))];
    let triggers = [(TriggerSeq(1), trigger("a", "10:05:10", 1)), (TriggerSeq(2), trigger("a", "10:05:20", 2))];
    let requests = OperatorRequests { triggers: triggers.into(), links: links.into(), ..OperatorRequests::default() };
    let mut snapshot = Snapshot { requests, ..lost_until("10:05:15", &jobs, "10:05:00") };
    snapshot.jobs.extend(jobs[1..].iter().map(|job| entry(job, at("10:04:00"), 2)));
    let mut fixture = Fixture::leading("10:05:30", set(jobs), snapshot);
    let changes = fixture.accept_all();
    assert_eq!(reasons(&changes), ["a.20261120T100510Z.m1 rewound", "b.20261120T100500Z rewound"], "{changes:#?}");
    let begun = changes.iter().filter_map(|change| match change {
        Change::BeginTriggered { run } | Change::BeginDownstream { run, .. } => Some(run.id().to_string()),
        _ => None,
    });
    assert_eq!(begun.collect::<Vec<_>>(), ["a.20261120T100520Z.m2", "c.20261120T100500Z"]);
}

/// The node that led before has written a run again that it still has, and moved the mark.
#[test]
fn what_is_lost_is_passed_over_again_if_another_node_has_moved_the_mark() {
    let jobs = [minutely()];
    let mut fixture = Fixture::leading("10:05:30", set(jobs.clone()), lost_until("10:05:40", &jobs, "10:00:00"));
    let commits = fixture.commits();
    let [(id, Change::Advance { .. })] = &commits[..] else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Superseded);
    let (name, read) = entry(&jobs[0], at("10:02:00"), 4);
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(read), None)));
    fixture.pass(5);
    let changes = fixture.accept_all();
    assert_eq!(skipped(&changes), ["rewound 2026-11-20T10:03:00Z 2026-11-20T10:05:00Z 3"]);
    assert_eq!(begun(&changes), [""; 0]);
}

/// A read shows it as it waits, after its skip was refused.
#[test]
fn a_waiting_run_that_is_read_again_is_skipped_again() {
    let jobs = [Job { overlap: Overlap::Queue, ..minutely() }];
    let Running { record, version, .. } = running(&jobs[0], at("10:05:00"), OwnerState::Gone);
    let record = RunRecord { state: RunState::Queued, attempt: 0, ..record };
    let found = Running { record: record.clone(), version, owner: OwnerState::Gone };
    let snapshot = Snapshot { running: vec![found], ..lost_until("10:05:15", &jobs, "10:05:00") };
    let mut fixture = Fixture::leading("10:05:20", set(jobs), snapshot);
    let commits = fixture.commits();
    let skip = commits.iter().find(|(_, change)| matches!(change, Change::SkipRun { .. }));
    fixture.answer(skip.expect("it is skipped").0, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(record.id(), Some((record, version.next())))));
    let (changes, _) = fixture.start_all();
    assert_eq!(reasons(&changes), ["a.20261120T100500Z rewound"], "{changes:#?}");
}
