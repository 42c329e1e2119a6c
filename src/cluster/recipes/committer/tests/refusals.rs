//! Tests of changes that the server refuses: they are deferred, retried, and hold up nothing else.

use super::*;
use crate::recipes::tests_support::Right;
use cronkeeper_core::run::TriggerSeq;

#[test]
fn a_change_that_the_server_refuses_is_deferred_and_holds_up_its_own_job_only() {
    let mut fixture = Fixture::new();
    for job in ["a", "b", "c"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.server.tree().close("/cronkeeper/jobs/b", Right::Write);
    let ids = [
        fixture.request(begin("a", 0, 60, "7-1")),
        fixture.request(begin("b", 0, 60, "7-2")),
        fixture.request(begin("b", 1, 120, "7-3")),
        fixture.request(begin("c", 0, 60, "7-4")),
    ];
    fixture.settle();
    let accepted = Some(&Commit::Accepted);
    assert_eq!(ids.map(|id| fixture.answers.get(&id)), [accepted, None, None, accepted]);
    assert_eq!(fixture.deferred, [ids[1]], "it is reported once");
    assert_eq!(fixture.refused.iter().map(|damage| damage.path.as_str()).next(), Some("/cronkeeper/jobs/b"));
    assert_eq!(fixture.commit(begin("a", 1, 120, "7-5")), Commit::Accepted, "other jobs go on");

    fixture.server.tree().open("/cronkeeper/jobs/b", Right::Write);
    assert_eq!(fixture.await_answer(ids[2]), Some(Commit::Accepted));
    assert_eq!((fixture.answers[&ids[1]], fixture.version("/cronkeeper/jobs/b")), (Commit::Accepted, Some(2)));
    assert_eq!(fixture.mended, ["/cronkeeper/jobs/b"]);
}

#[test]
fn a_refused_change_is_retried_after_growing_pauses() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.server.tree().close("/cronkeeper/running", Right::Write);
    let id = fixture.request(begin("a", 0, 60, "7-1"));
    assert_eq!(fixture.await_answer(id), None);
    let (multis, seconds) = (fixture.server.tree().multis.len(), fixture.committer.context.clock.now().up);
    assert!(multis < 15, "{multis} tries in {seconds:?}");
    assert!(fixture.refused.iter().all(|damage| damage.path == "/cronkeeper/running"), "{:?}", fixture.refused);
}

#[test]
fn many_refused_jobs_leave_room_for_the_others() {
    let mut fixture = Fixture::new();
    let jobs: Vec<String> = (0..20).map(|at| format!("job-{at}")).collect();
    for job in &jobs {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        fixture.server.tree().close(&format!("/cronkeeper/jobs/{job}"), Right::Write);
        fixture.request(begin(job, 0, 60, &format!("7-{job}")));
    }
    fixture.settle();
    fixture.put(paths::job(&name("other")), &mark(0, "1-0"));
    assert_eq!(fixture.commit(begin("other", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.answers.len(), 1);
}

#[test]
fn a_written_begin_is_accepted_though_its_path_was_closed_before_its_answer() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("a", 0, 60, "7-1"));
    fixture.turn();
    fixture.server.tree().close("/cronkeeper/jobs/a", Right::Write);
    fixture.server.tree().close("/cronkeeper/jobs/a", Right::Read);
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Accepted, "the run's own record proves it");
}

/// If the fate of a group cannot be found out, it stays unknown for each of its changes, also for one that was deferred
/// meanwhile.
#[test]
fn changes_split_off_a_group_of_unknown_fate_stay_unknown() {
    let mut fixture = Fixture::new();
    for job in ["a", "b"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.fates([Fate::AnswerLost]);
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("b", 0, 60, "7-2"))];
    fixture.turn();
    for job in ["a", "b"] {
        let mut tree = fixture.server.tree();
        tree.remove(&format!("/cronkeeper/running/{job}.19700101T000100Z"));
        tree.apply(ops(&begin(job, 1, 120, "9-1")));
    }
    fixture.server.tree().close("/cronkeeper/jobs/a", Right::Write);
    fixture.settle();
    assert_eq!((fixture.answers.get(&ids[0]), fixture.answers.get(&ids[1])), (None, Some(&Commit::Unknown)));
    fixture.server.tree().open("/cronkeeper/jobs/a", Right::Write);
    assert_eq!(fixture.await_answer(ids[0]), Some(Commit::Unknown));
}

#[test]
fn the_end_of_a_term_does_not_wait_for_refused_changes() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.server.tree().close("/cronkeeper/jobs/a", Right::Write);
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("a", 1, 120, "7-2"))];
    fixture.settle();
    assert!(!fixture.committer.has_fenced());
    let answers = fixture.committer.fence_off(Some(CANDIDATE.into()));
    assert_eq!(answers, ids.map(|id| (id, Commit::Fenced)));
}

#[test]
fn a_refused_change_is_given_up_before_too_many_wait_behind_it() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.server.tree().close("/cronkeeper/jobs/a", Right::Write);
    for at in 0..300 {
        fixture.request(begin("a", at, 60 + i64::from(at), &format!("7-{at}")));
        fixture.settle();
    }
    assert!(fixture.answers.values().all(|&answer| answer == Commit::Superseded));
    assert_eq!(fixture.answers.len(), 300, "and all that depend on it, until the job is read");
    assert!(fixture.committer.waiting.iter().next().is_none() && fixture.committer.deferred.is_empty());
}

#[test]
fn a_candidate_that_is_closed_to_its_own_node_ends_the_term() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.server.tree().close(CANDIDATE, Right::Read);
    assert_eq!(fixture.commit(begin("a", 0, 60, "7-1")), Commit::Fenced);
    assert!(fixture.is_fenced);
}

/// After 2^31 - 1 the servers stop counting and answer that the node exists.
#[test]
fn a_parent_without_free_sequence_numbers_causes_no_busy_loop_of_ends_that_leave_links() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.commit(begin("a", 0, 60, "7-1"));
    // The name that the next number makes: this record's own creation counts as number 0.
    let stuck = paths::trigger(TriggerSeq(1));
    fixture.server.tree().put(&stuck, "");
    let mut change = end("a", 0, 60, "7-1");
    if let Change::End { end, .. } = &mut change {
        end.run.dependents = vec![name("b")];
    }
    let id = fixture.request(change);
    fixture.settle();
    assert_eq!(fixture.answers.get(&id), None);
    assert_eq!(fixture.deferred, [id]);
    fixture.server.tree().remove(&stuck);
    assert_eq!(fixture.await_answer(id), Some(Commit::Accepted));
}
