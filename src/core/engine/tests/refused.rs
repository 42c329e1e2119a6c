//! Writes that the service refuses for hours, or does not answer: they must affect only their own job.

use std::time::Duration;

use uuid::Uuid;

use super::fixture::*;
use crate::engine::Event;
use crate::job::{Group, Interrupted, Job, Misfire, OnLeaseEnd, Overlap, Splay};
use crate::ledger::{self, Change, Commit, CommitId, OperatorRequests, OwnerState, Snapshot, TriggerEntry};
use crate::process::{Exit, Notice, StartFailure, StartStep};
use crate::run::{RunState, TriggerRecord, TriggerSeq};

/// More jobs than are begun at once.
const MANY: u64 = 200;

impl Fixture {
    fn refuse(&mut self, id: CommitId) {
        self.handle(Event::Ledger(ledger::Event::Deferred(id)));
    }
}

/// A leader with these jobs, and one that is due every second and whose first begin, at 10:00:01, is refused.
fn refused(overlap: Overlap, others: impl IntoIterator<Item = Job>) -> (Fixture, CommitId) {
    let refused = Job { overlap, ..job("refused", "* * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", others.into_iter().chain([refused]).collect());
    fixture.pass(1);
    let commits = fixture.commits();
    let [(begin, Change::Begin { .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.refuse(*begin);
    (fixture, *begin)
}

#[test]
fn a_job_whose_begin_is_refused_takes_no_start_from_others() {
    let (mut fixture, begin) = refused(Overlap::Allow, [job("other", "0 1 10 * * *")]);
    for _ in 0..MANY {
        fixture.pass(1);
    }
    assert_eq!(
        begun(&fixture.accept_all()),
        ["other.20261120T100100Z"],
        "nothing more is requested about the job itself"
    );
    fixture.answer(begin, Commit::Accepted);
    assert!(begun(&fixture.accept_all()).iter().any(|run| run.starts_with("refused.")));
}

#[test]
fn a_job_whose_begin_is_refused_takes_no_place_in_its_group() {
    let grouped = |name: &str, schedule: &str| {
        let concurrency_group = Some(Group { name: "database".into(), limit: 1 });
        Job { concurrency_group, ..job(name, schedule) }
    };
    let mut fixture = Fixture::settled("10:00:00", vec![grouped("a", "1 0 10 * * *"), grouped("b", "1 0 10 * * *")]);
    fixture.pass(1);
    let commits = fixture.commits();
    let [(begin, Change::Begin { .. }), (queued, Change::Begin { run, .. })] = commits.as_slice() else {
        panic!("{commits:?}")
    };
    assert_eq!(run.state, RunState::Queued);
    fixture.answer(*queued, Commit::Accepted);
    assert!(fixture.accept_all().is_empty());
    fixture.refuse(*begin);
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::UpdateRun { run, .. }] if run.job.as_str() == "b"), "{changes:?}");
}

#[test]
fn the_triggers_of_a_job_whose_begin_is_refused_wait_for_the_answer() {
    let (mut fixture, begin) = refused(Overlap::Allow, []);
    let uuid = Uuid::from_u128(1);
    let record = TriggerRecord::new(uuid, name("refused"), "alice".into(), at("10:00:01"));
    let triggers = [(TriggerSeq(7), TriggerEntry { record, is_in_history: false })].into();
    fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(OperatorRequests {
        triggers,
        ..OperatorRequests::default()
    })));
    assert!(fixture.commits().is_empty());
    fixture.answer(begin, Commit::Accepted);
    assert!(fixture.accept_all().iter().any(|change| matches!(change, Change::BeginTriggered { .. })));
}

#[test]
fn a_takeover_does_not_wait_for_any_write_about_a_job_that_is_refused() {
    let mut a = Job { overlap: Overlap::Allow, interrupted: Interrupted::Skip, ..job("a", "* * * * *") };
    a.on_lease_end = OnLeaseEnd::Kill;
    let running = ["09:58:00", "09:59:00"].map(|time| running(&a, at(time), OwnerState::Gone)).to_vec();
    let jobs = [entry(&a, at("10:00:00"), 1)].into();
    let mut fixture = Fixture::leading("10:00:00", set([a]), Snapshot { jobs, running, ..Snapshot::default() });
    let commits = fixture.commits();
    assert_eq!(commits.len(), 2, "{commits:?}");
    fixture.refuse(commits[0].0);
    assert!(fixture.engine.is_settled());
}

/// Like a full disk: no write is refused, and none is answered.
#[test]
fn what_is_due_while_a_begin_has_no_answer_is_decided_on_when_it_has_one() {
    let minutely = Job { misfire_window: Some(Duration::from_secs(30)), ..job("a", "1 * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![minutely]);
    fixture.pass(1);
    let begin = fixture.commits()[0].0;
    fixture.pass(60);
    fixture.pass(60);
    assert!(fixture.commits().is_empty(), "whether the first overlaps is not known");
    fixture.answer(begin, Commit::Accepted);
    let changes = fixture.accept_all();
    assert_eq!(begun(&changes), ["a.20261120T100201Z"], "{changes:?}");
    let missed = changes
        .iter()
        .any(|change| matches!(change, Change::SkipRun { run, .. } if run.to_string().contains("100001")));
    assert!(missed, "the first is over its window: {changes:?}");
    assert_eq!(skipped(&changes), ["missed 2026-11-20T10:01:01Z 2026-11-20T10:01:01Z 1"]);
}

/// A window that the job sets counts however short the outage was.
#[test]
fn a_begin_that_is_answered_after_the_jobs_own_window_starts_nothing_and_is_not_in_the_way() {
    for (misfire, outage, is_started) in
        [(Misfire::RunOnce, 4, false), (Misfire::Skip, 4, false), (Misfire::RunOnce, 1, true), (Misfire::Skip, 2, true)]
    {
        let every_five = Job { misfire, misfire_window: Some(Duration::from_secs(2)), ..job("a", "1/5 * * * * *") };
        let mut fixture = Fixture::settled("10:00:00", vec![every_five]);
        fixture.pass(1);
        let begin = fixture.commits()[0].0;
        fixture.pass(outage);
        assert_eq!(fixture.engine.unconfirmed_runs().count(), 1);
        fixture.answer(begin, Commit::Accepted);
        let changes = fixture.accept_all();
        assert_eq!(fixture.engine.unconfirmed_runs().count(), 0);
        assert_eq!(fixture.starts().len(), usize::from(is_started), "{misfire:?} {outage}");
        if is_started {
            continue;
        }
        let missed = changes
            .iter()
            .any(|change| matches!(change, Change::SkipRun { run, .. } if run.to_string().contains("100001")));
        assert!(missed, "{misfire:?}: {changes:?}");
        fixture.pass(5 - outage);
        assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100006Z"]);
    }
}

/// `misfire: skip` runs nothing late, however long the job's window is.
#[test]
fn with_misfire_skip_a_begin_that_is_answered_much_later_starts_nothing() {
    let window = Some(Duration::from_secs(3600));
    let job = Job { misfire: Misfire::Skip, misfire_window: window, ..job("a", "1 0 10 * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![job]);
    fixture.pass(1);
    let begin = fixture.commits()[0].0;
    fixture.pass(50 * 60);
    fixture.answer(begin, Commit::Accepted);
    let changes = fixture.accept_all();
    assert!(fixture.starts().is_empty());
    assert!(changes.iter().any(|change| matches!(change, Change::SkipRun { .. })), "{changes:?}");
}

/// The window counts from the delayed instant.
#[test]
fn a_job_whose_splay_is_longer_than_its_window_starts_once() {
    let mut splayed = Job { misfire_window: Some(Duration::from_secs(1)), ..job("report", "0 10 * * *") };
    splayed.splay = Splay::new(Duration::from_secs(600), "report");
    let delay = splayed.splay.delay();
    assert!(delay > Duration::from_secs(10), "{delay:?}");
    let mut fixture = Fixture::settled("09:59:59", vec![splayed]);
    fixture.pass_by(Duration::from_secs(1) + delay);
    assert_eq!(begun(&fixture.accept_all()), ["report.20261120T100000Z"]);
    assert_eq!(fixture.starts().len(), 1);
}

/// A trigger is recorded with its whole second.
#[test]
fn a_trigger_is_not_too_old_by_the_second_that_its_time_was_cut_by() {
    let hurried = Job { misfire_window: Some(Duration::ZERO), ..job("a", "30 2 * * *") };
    let mut fixture = Fixture::settled("10:00:01.99", vec![hurried]);
    let record = TriggerRecord::new(Uuid::from_u128(1), name("a"), "alice".into(), at("10:00:01"));
    let triggers = [(TriggerSeq(7), TriggerEntry { record, is_in_history: false })].into();
    fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(OperatorRequests {
        triggers,
        ..OperatorRequests::default()
    })));
    fixture.pass_by(Duration::from_millis(30));
    let changes = fixture.accept_all();
    assert!(matches!(changes.as_slice(), [Change::BeginTriggered { .. }]), "{changes:?}");
    assert_eq!(fixture.starts().len(), 1);
}

#[test]
fn however_long_nothing_is_answered_only_so_much_is_asked_for() {
    let mut fixture = Fixture::settled("10:00:00", vec![Job { overlap: Overlap::Allow, ..job("a", "* * * * * *") }]);
    let mut requested = 0;
    for _ in 0..10_000 {
        fixture.pass(1);
        requested += fixture.commits().len();
    }
    assert!(requested <= 64, "{requested}");
}

/// The pauses of a run that cannot be started grow until its window is over: the next occurrence must not be lost with
/// it.
#[test]
fn an_unstarted_run_that_is_over_its_window_is_not_in_the_way_of_the_next() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "1 * * * * *")]);
    let mut changes = Vec::new();
    for _ in 0..61 {
        fixture.pass(1);
        changes.extend(fixture.accept_all());
        for start in fixture.starts() {
            fixture.commands.clear();
            let why = StartFailure::Step { step: StartStep::Fork, errno: 11 };
            fixture.handle(Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }));
            changes.extend(fixture.accept_all());
        }
    }
    assert!(skipped(&changes).is_empty(), "{changes:?}");
    assert_eq!(begun(&changes), ["a.20261120T100001Z", "a.20261120T100101Z"]);
    assert!(changes.iter().any(|change| matches!(change, Change::SkipRun { .. })));
}

#[test]
fn an_ended_run_whose_record_is_refused_keeps_its_own_job_back_alone() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *"), job("b", "* * * * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    for start in fixture.starts() {
        fixture.started(start.tree_id);
        fixture.ended(start.tree_id, Exit::Code(0), None);
    }
    let commits = fixture.commits();
    let [(a, Change::End { .. }), (b, Change::End { .. })] = commits.as_slice() else { panic!("{commits:?}") };
    fixture.refuse(*a);
    fixture.answer(*b, Commit::Accepted);
    fixture.pass(1);
    assert_eq!(begun(&fixture.accept_all()), ["b.20261120T100002Z"]);
    fixture.answer(*a, Commit::Accepted);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T100002Z"]);
}
