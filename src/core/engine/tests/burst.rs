//! Bursts: more due occurrences than can be started at once.

use std::time::Duration;

use super::fixture::*;
use crate::election;
use crate::engine::Event;
use crate::job::{Group, Job, Misfire, Overlap};
use crate::ledger::{Change, Snapshot};
use crate::process::Exit;
use crate::run::RunState;

const MANY: usize = 3_000;

fn many(change: impl Fn(usize, Job) -> Job) -> Vec<Job> {
    (0..MANY).map(|n| change(n, job(&format!("j{n:05}"), "1 0 10 * * *"))).collect()
}

#[test]
fn no_more_is_begun_than_can_be_started_soon_and_the_rest_waits_undecided() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| job));
    fixture.pass(1);
    let first = fixture.accept_all();
    assert!(!first.is_empty() && first.len() < 200, "{}", first.len());
    assert_eq!(fixture.starts().len(), first.len());
    fixture.pass(1);
    assert!(fixture.commits().is_empty(), "nothing has started yet");
    // Only a start makes room, not the passing of time.
    assert_eq!(fixture.engine.wake(fixture.now).wall, None);
}

#[test]
fn all_are_begun_in_the_end_each_once() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| job));
    fixture.pass(1);
    let (changes, tree_ids) = fixture.start_all();
    let mut ids = begun(&changes);
    assert_eq!((ids.len(), tree_ids.len()), (MANY, MANY));
    ids.dedup();
    assert_eq!(ids.len(), MANY);
}

#[test]
fn a_lease_that_ends_leaves_what_was_not_begun_to_the_next_leader() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| job));
    fixture.pass(1);
    let first = begun(&fixture.accept_all()).len();
    // The next leader finds the marks where they were.
    let jobs = many(|_, job| job);
    let entries = jobs.iter().skip(first).map(|job| entry(job, at("10:00:00"), 0)).collect();
    let mut next = Fixture::leading("10:00:20", set(jobs), Snapshot { jobs: entries, ..Snapshot::default() });
    let (changes, _) = next.start_all();
    assert_eq!(begun(&changes).len(), MANY - first);
}

#[test]
fn with_misfire_skip_what_could_not_begin_within_its_second_is_missed() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| Job { misfire: Misfire::Skip, ..job }));
    fixture.pass(1);
    let on_time = begun(&fixture.accept_all()).len();
    fixture.pass(2);
    let (changes, _) = fixture.start_all();
    assert_eq!(begun(&changes).len(), 0);
    let missed = skipped(&changes).len();
    assert_eq!(on_time + missed, MANY);
}

#[test]
fn the_oldest_begins_first_whatever_it_is() {
    let early = job("zz", "1 0 10 * * *");
    let late = (0..500).map(|n| job(&format!("j{n:03}"), "2 0 10 * * *"));
    let mut fixture = Fixture::settled("10:00:00", late.chain([early]).collect());
    fixture.pass_cut_off(2);
    assert_eq!(begun(&fixture.accept_all())[0], "zz.20261120T100001Z");
}

#[test]
fn triggers_wait_for_room_like_all_else() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| job));
    let record = |n: usize| {
        let uuid = uuid::Uuid::from_u128(n as u128);
        crate::run::TriggerRecord::new(uuid, name(&format!("j{n:05}")), "uid 0".into(), at("10:00:00"))
    };
    let entry = |n: usize| crate::ledger::TriggerEntry { record: record(n), is_in_history: false };
    let triggers = (0..MANY).map(|n| (crate::run::TriggerSeq(n as u64), entry(n))).collect();
    let requests = crate::ledger::OperatorRequests { triggers, ..Default::default() };
    fixture.handle(Event::Ledger(crate::ledger::Event::OperatorRequests(requests)));
    let first = fixture.accept_all().len();
    assert!(first < 200, "{first}");
    let (changes, _) = fixture.start_all();
    let fulfilled = changes.iter().filter(|change| matches!(change, Change::BeginTriggered { .. })).count();
    assert_eq!(first + fulfilled, MANY);
}

/// A group with one position and thousands of waiting runs: the cost of an end must not grow with their number.
#[test]
fn a_full_group_begins_one_at_each_end_in_the_order_of_the_occurrences() {
    let group = Some(Group { name: "database".into(), limit: 1 });
    let jobs = many(|_, job| Job { concurrency_group: group.clone(), overlap: Overlap::Allow, ..job });
    let mut fixture = Fixture::settled("10:00:00", jobs);
    fixture.pass(1);
    let (changes, mut tree_ids) = fixture.start_all();
    let queued = |change: &Change| matches!(change, Change::Begin { run, .. } if run.state == RunState::Queued);
    assert_eq!(changes.iter().filter(|change| queued(change)).count(), MANY - 1);
    let mut order = Vec::new();
    while let Some(tree_id) = tree_ids.pop() {
        fixture.commands.clear();
        fixture.ended(tree_id, Exit::Code(0), None);
        let (changes, started) = fixture.start_all();
        let begun: Vec<_> = changes
            .iter()
            .filter_map(|change| match change {
                Change::UpdateRun { run, .. } => Some(run.id().to_string()),
                _ => None,
            })
            .collect();
        assert_eq!(begun.len(), started.len());
        assert!(started.len() <= 1);
        order.extend(begun);
        tree_ids.extend(started);
    }
    assert_eq!(order.len(), MANY - 1);
    assert!(order.is_sorted());
}

#[test]
fn a_job_that_comes_faster_than_its_group_lets_it_does_not_pile_up_for_ever() {
    let group = Some(Group { name: "database".into(), limit: 1 });
    let mut fixture = Fixture::settled(
        "10:00:00",
        vec![Job { concurrency_group: group, overlap: Overlap::Allow, ..job("a", "* * * * * *") }],
    );
    for _ in 0..300 {
        fixture.pass(1);
        fixture.accept_all();
    }
    assert_eq!(fixture.engine.runs().count(), 101);
}

#[test]
fn a_lease_is_passed_on_in_the_turn_that_brings_it_however_much_is_due() {
    let mut fixture = Fixture::settled("10:00:00", many(|_, job| job));
    fixture.now = crate::clock::Now { wall: at("10:00:01"), up: fixture.now.up + Duration::from_secs(1) };
    let until = fixture.now.up + LEASE;
    fixture.handle(Event::Election(election::Event::Lease { until }));
    let order = crate::engine::Command::Order(crate::process::Order::Lease { until });
    assert_eq!(fixture.commands.first(), Some(&order));
}
