//! Tests of `last/<job>`, which every end moves.

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::Right;
use crate::test_records::{record, success};
use crate::tree::Op;
use cronkeeper_core::ledger::Last;
use cronkeeper_core::run::{Outcome, RunEnd};
use jiff::Timestamp;

const LAST: &str = "/cronkeeper/last/backup";

fn last(fixture: &Fixture) -> Last {
    serde_json::from_slice(&fixture.server.tree().data(LAST).unwrap()).unwrap()
}

/// Another node ends a run of the job.
fn end_elsewhere(fixture: &Fixture, second: i64, outcome: Outcome) {
    let mut tree = fixture.server.tree();
    let before = tree.data(LAST).map(|data| serde_json::from_slice::<Last>(&data).unwrap());
    let end = RunEnd { outcome, ..success(record("backup", second, "0x2")) };
    let next = json(&Last::after(before.as_ref(), &end, Timestamp::MAX));
    let at = tree.stat(LAST).map(|stat| Version(stat.version));
    tree.apply(vec![match at {
        Some(at) => Op::Set { path: LAST.into(), data: next, at: at.into() },
        None => Op::Create { path: LAST.into(), data: next, life: crate::tree::Life::Lasting },
    }]);
}

/// A committer whose session has begun this many runs of `backup`, one a minute.
fn begun(runs: i32) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    for at in 0..runs {
        let second = 60 * (i64::from(at) + 1);
        assert_eq!(fixture.commit(begin("backup", at, second, &format!("7-{at}"))), Commit::Accepted);
    }
    fixture
}

fn ended(run: i32, outcome: Outcome) -> Change {
    let Change::End { at, end, as_leader } = end("backup", 0, 60 * (i64::from(run) + 1), &format!("7-{run}")) else {
        unreachable!("it is an end");
    };
    Change::End { at, end: RunEnd { outcome, ..end }, as_leader }
}

#[test]
fn ends_that_share_a_multi_move_the_record_once() {
    let mut fixture = begun(3);
    let outcomes = [Outcome::Failure, Outcome::Success, Outcome::Killed];
    let multis = fixture.server.tree().multis.len();
    let ids: Vec<_> = (0..).zip(outcomes).map(|(run, outcome)| fixture.request(ended(run, outcome))).collect();
    fixture.settle();
    assert_eq!(fixture.server.tree().multis.len(), multis + 1);
    assert_eq!(fixture.version(LAST), Some(0));
    let before: Vec<_> = ids.iter().map(|id| fixture.before.get(id).copied()).collect();
    assert_eq!(before, [None, Some(Outcome::Failure), Some(Outcome::Success)]);
    assert_eq!(last(&fixture).written.outcome, Outcome::Killed);
}

#[test]
fn after_another_nodes_end_the_record_is_read_again() {
    for ends_before in [0, 1] {
        let mut fixture = begun(3);
        for run in 0..ends_before {
            fixture.commit(ended(run, Outcome::Success));
        }
        end_elsewhere(&fixture, 600, Outcome::Abandoned);
        let id = fixture.request(ended(ends_before, Outcome::Success));
        fixture.settle();
        assert_eq!((fixture.answers[&id], fixture.before.get(&id)), (Commit::Accepted, Some(&Outcome::Abandoned)));
        let written = last(&fixture).written;
        assert_eq!((written.outcome, written.before), (Outcome::Success, Some(Outcome::Abandoned)));
        assert!(fixture.deferred.is_empty() && fixture.refused.is_empty());
    }
}

#[test]
fn an_end_that_is_in_doubt_is_sent_again_as_it_was() {
    let mut fixture = begun(2);
    fixture.commit(ended(0, Outcome::Failure));
    fixture.fates([Fate::AnswerLost]);
    let id = fixture.request(ended(1, Outcome::Success));
    fixture.settle();
    assert_eq!((fixture.answers[&id], fixture.before.get(&id)), (Commit::Accepted, Some(&Outcome::Failure)));
    assert_eq!(fixture.version(LAST), Some(1));
}

/// Only another node's end shows that the first try was not carried out.
#[test]
fn an_end_whose_request_was_lost_follows_what_another_node_has_ended_meanwhile() {
    let mut fixture = begun(2);
    fixture.commit(ended(0, Outcome::Success));
    fixture.fates([Fate::RequestLost]);
    let id = fixture.request(ended(1, Outcome::Success));
    fixture.turn();
    end_elsewhere(&fixture, 600, Outcome::Failure);
    fixture.settle();
    assert_eq!((fixture.answers[&id], fixture.before.get(&id)), (Commit::Accepted, Some(&Outcome::Failure)));
    assert_eq!(last(&fixture).written.before, Some(Outcome::Failure));
}

#[test]
fn a_record_that_somebody_has_removed_or_damaged_holds_up_no_end() {
    let mut fixture = begun(3);
    fixture.commit(ended(0, Outcome::Failure));
    fixture.server.tree().remove(LAST);
    assert_eq!(fixture.commit(ended(1, Outcome::Failure)), Commit::Accepted);
    fixture.server.tree().put(LAST, "{");
    fixture.server.tree().touch(LAST);
    assert_eq!(fixture.commit(ended(2, Outcome::Success)), Commit::Accepted);
    let before = Some(Outcome::Failure);
    assert_eq!(
        (last(&fixture).end.outcome, last(&fixture).written.before),
        (Outcome::Success, before),
        "by the history"
    );
}

#[test]
fn an_end_does_not_wait_for_a_record_that_may_not_be_written_and_the_path_is_named() {
    for (is_there, closed) in [(false, "/cronkeeper/last"), (true, LAST)] {
        let mut fixture = begun(3);
        if is_there {
            fixture.commit(ended(2, Outcome::Failure));
        }
        fixture.server.tree().close(closed, Right::Write);
        assert_eq!(fixture.commit(ended(0, Outcome::Success)), Commit::Accepted);
        assert_eq!(fixture.version(LAST), is_there.then_some(0));
        assert_eq!(fixture.refused[0].path, closed);
        assert!(fixture.deferred.is_empty() && fixture.mended.is_empty());
        fixture.server.tree().open(closed, Right::Write);
        // The clock of these tests goes on by a second with each look.
        (0..70).for_each(|_| _ = fixture.committer.context.clock.now());
        assert_eq!(fixture.commit(ended(1, Outcome::Success)), Commit::Accepted);
        assert_eq!(
            (fixture.mended.clone(), last(&fixture).written.outcome),
            (vec![closed.to_owned()], Outcome::Success)
        );
    }
}

/// Somebody who touches the record of one job again and again.
#[test]
fn a_record_that_is_moved_all_the_time_is_left_out() {
    let mut fixture = begun(1);
    end_elsewhere(&fixture, 600, Outcome::Success);
    let id = fixture.request(ended(0, Outcome::Failure));
    for _ in 0..200 {
        if !fixture.turn() {
            break;
        }
        fixture.server.tree().touch(LAST);
    }
    fixture.settle();
    assert_eq!(fixture.answers.get(&id), Some(&Commit::Accepted));
}

#[test]
fn many_records_that_others_have_moved_are_read_again_at_once() {
    let mut fixture = Fixture::new();
    let jobs: Vec<String> = (0..40).map(|at| format!("job-{at}")).collect();
    for job in &jobs {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        fixture.request(begin(job, 0, 60, &format!("7-{job}")));
    }
    fixture.settle();
    for job in &jobs {
        let elsewhere = success(record(job, 30, "0x2"));
        fixture.server.tree().put(&paths::last(&name(job)), json(&Last::after(None, &elsewhere, Timestamp::MAX)));
    }
    let multis = fixture.server.tree().multis.len();
    for job in &jobs {
        fixture.request(end(job, 0, 60, &format!("7-{job}")));
    }
    fixture.settle();
    assert!(fixture.answers.values().all(|answer| *answer == Commit::Accepted));
    assert_eq!(fixture.before.len(), 40, "each knows of the one elsewhere");
    assert_eq!(fixture.server.tree().multis.len(), multis + 2);
}

/// As `release` does before this process has started: others may have ended runs since.
#[test]
fn what_was_before_an_end_that_another_has_written_is_known_only_while_nothing_followed() {
    let mut fixture = begun(2);
    fixture.commit(ended(0, Outcome::Failure));
    assert_eq!(fixture.commit(ended(1, Outcome::Success)), Commit::Accepted);
    let again = fixture.request(ended(1, Outcome::Success));
    fixture.settle();
    assert_eq!((fixture.answers[&again], fixture.before.get(&again)), (Commit::Accepted, Some(&Outcome::Failure)));
    end_elsewhere(&fixture, 600, Outcome::Failure);
    let late = fixture.request(ended(1, Outcome::Success));
    fixture.settle();
    assert_eq!((fixture.answers[&late], fixture.before.get(&late)), (Commit::Accepted, None));
}
