//! Nodes with different files: a job that one of them does not define.

use super::fixture::*;
use crate::engine::Event;
use crate::job::{Job, Misfire};
use crate::ledger::{self, Commit, JobEntry, Snapshot};
use crate::run::{JobRecord, Version};

/// Every second, and all of them.
fn all() -> Job {
    Job {
        misfire: Misfire::RunAll,
        misfire_window: Some(std::time::Duration::from_secs(3_600)),
        ..job("a", "* * * * * *")
    }
}

fn recorded() -> Snapshot {
    Snapshot { jobs: [entry(&all(), at("10:00:00"), 4)].into(), ..Snapshot::default() }
}

#[test]
fn a_leader_leaves_the_records_of_jobs_that_its_file_does_not_define() {
    let mut fixture = Fixture::leading("10:00:01", set([]), recorded());
    fixture.pass(60);
    assert!(fixture.commits().is_empty());
    assert!(fixture.engine.is_settled());
}

/// A node with an older file led in between: the job's own misfire rule decides on the occurrences that passed.
#[test]
fn what_passed_under_a_leader_without_the_job_is_made_up_by_one_that_has_it() {
    let mut fixture = Fixture::leading("10:00:03", set([all()]), recorded());
    let mut runs = Vec::new();
    for _ in 0..3 {
        let (changes, tree_ids) = fixture.start_all();
        runs.extend(begun(&changes));
        tree_ids.iter().for_each(|&tree_id| fixture.ended(tree_id, crate::process::Exit::Code(0), None));
    }
    assert_eq!(runs, ["a.20261120T100001Z", "a.20261120T100002Z", "a.20261120T100003Z"]);
}

#[test]
fn a_job_that_comes_to_a_leaders_file_counts_from_then_and_the_gap_is_recorded() {
    let mut fixture = Fixture::leading("10:00:01", set([]), recorded());
    fixture.pass(8);
    fixture.handle(Event::Loaded(set([all()])));
    let changes = fixture.accept_all();
    assert_eq!(skipped(&changes), ["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:09Z 9"]);
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100010Z"]);
}

/// A pause has changed the record since it was read.
#[test]
fn so_it_does_where_its_record_has_changed_since_it_was_read() {
    let mut fixture = Fixture::leading("10:00:01", set([]), recorded());
    fixture.pass(8);
    fixture.handle(Event::Loaded(set([all()])));
    let commits = fixture.commits();
    fixture.answer(commits[0].0, Commit::Superseded);
    let (name, entry) = entry(&all(), at("10:00:00"), 5);
    let entry = JobEntry { record: entry.record.map(|record| JobRecord { v: 1, ..record }), version: Version(5) };
    fixture.commands.clear();
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(entry), None)));
    let changes = fixture.accept_all();
    assert_eq!(skipped(&changes), ["missed 2026-11-20T10:00:01Z 2026-11-20T10:00:09Z 9"]);
    assert!(begun(&changes).is_empty());
}
