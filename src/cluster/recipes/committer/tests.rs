//! Tests of the committer against a server that loses requests and answers on schedule.

mod fixture;
mod lasts;
mod notices;
mod placing;
mod refusals;

use proptest::prelude::*;

use super::*;
use crate::paths;
use crate::recipes::context::json;
use crate::recipes::tests_support::Fate;
use crate::recipes::transaction::tests::{begin, end, mark, name, skip};
use crate::recipes::transaction::{self, ops};
use cronkeeper_core::ledger::{Commit, CommitId, Last, SkipWrite};
use cronkeeper_core::run::{RunRecord, Version};
use fixture::{CANDIDATE, Fixture};

#[test]
fn a_begin_whose_answer_was_lost_began_then() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    assert_eq!(fixture.commit(begin("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/jobs/backup"), Some(1));
}

#[test]
fn an_end_whose_answer_was_lost_ended_then_and_is_counted_once() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.commit(begin("backup", 0, 60, "7-1"));
    fixture.fates([Fate::AnswerLost, Fate::RequestLost, Fate::AnswerLost]);
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
}

#[test]
fn an_end_that_an_earlier_process_had_written_is_accepted() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.commit(begin("backup", 0, 60, "7-1"));
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-1")), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
    assert_eq!(fixture.commit(end("backup", 0, 60, "7-2")), Commit::Superseded, "another end was written");
}

#[test]
fn a_lost_begin_that_another_leader_forestalled_is_superseded() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    // Another leader begins the same occurrence under its own nonce.
    fixture.server.tree().apply(ops(&begin("backup", 0, 60, "9-1")));
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Superseded);
}

#[test]
fn a_written_begin_is_accepted_though_the_candidate_went_before_its_answer() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    fixture.server.tree().remove(CANDIDATE);
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Accepted, "it is on record, so its owner must end it");
}

#[test]
fn a_begin_whose_answer_was_lost_and_that_others_overwrote_is_unknown() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    // The next term has settled the run, trimmed its history record, and moved the mark.
    {
        let mut tree = fixture.server.tree();
        tree.remove(CANDIDATE);
        tree.remove("/cronkeeper/running/backup.19700101T000100Z");
        tree.apply(ops(&begin("backup", 1, 120, "9-1")));
    }
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Unknown);
    assert!(fixture.is_fenced, "the term is over nevertheless");
}

/// Found by the simulation: the committer reported it as superseded, and nobody recorded what it skipped.
#[test]
fn a_written_mark_that_others_overwrote_is_unknown_even_if_its_version_failed_first() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(advance("7-1"));
    fixture.turn();
    // The second try fails on the version that the first has made. Its trace is overwritten before the committer looks
    // for it.
    fixture.server.tree().apply(ops(&begin("backup", 1, 120, "9-1")));
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Unknown);
}

/// Found by the simulation: the begin counted as fenced, its owner dropped it, and the run stayed in flight without a
/// process.
#[test]
fn what_others_overwrote_is_unknown_also_beside_a_change_that_is_on_record() {
    let mut fixture = Fixture::new();
    let start = |job: &str, nonce: &str| Change::UpdateRun {
        at: Version(0),
        run: transaction::tests::run(job, 60, nonce),
        taken_from: None,
    };
    for job in ["a", "b"] {
        let queued = transaction::tests::run(job, 60, "1-0");
        fixture.server.tree().put(&paths::running(&queued.id()), json(&queued));
    }
    fixture.fates([Fate::AnswerLost]);
    let ids = [fixture.request(start("a", "7-1")), fixture.request(start("b", "7-2"))];
    fixture.turn();
    // The next leader asks the owner to end one of the runs.
    {
        let mut tree = fixture.server.tree();
        tree.remove(CANDIDATE);
        let run = RunRecord { attempt: 9, ..transaction::tests::run("b", 60, "7-2") };
        tree.apply(ops(&Change::UpdateRun { at: Version(1), run, taken_from: None }));
    }
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Accepted, Commit::Unknown]);
}

fn advance(nonce: &str) -> Change {
    Change::Advance { job: name("backup"), at: Some(Version(0)), record: mark(60, nonce), skip: None }
}

#[test]
fn a_begin_that_was_lost_before_the_next_term_moved_the_mark_is_fenced() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    {
        let mut tree = fixture.server.tree();
        tree.remove(CANDIDATE);
        tree.apply(ops(&begin("backup", 0, 60, "9-1")));
    }
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Fenced);
}

#[test]
fn without_the_candidate_the_leaders_changes_are_fenced_and_the_owners_are_written() {
    let mut fixture = Fixture::new();
    for job in ["backup", "other"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    fixture.commit(begin("backup", 0, 60, "7-1"));
    fixture.server.tree().remove(CANDIDATE);
    let fenced = fixture.request(begin("other", 0, 60, "7-2"));
    let ended = fixture.request(end("backup", 0, 60, "7-1"));
    fixture.settle();
    assert_eq!((fixture.answers[&fenced], fixture.answers[&ended]), (Commit::Fenced, Commit::Accepted));
    assert!(fixture.is_fenced);
    assert_eq!(fixture.version("/cronkeeper/jobs/other"), Some(0));
}

#[test]
fn of_changes_that_share_a_multi_only_the_failed_one_and_its_followers_fail() {
    let mut fixture = Fixture::new();
    for job in ["a", "b", "c"] {
        fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
    }
    let ids = [
        fixture.request(begin("a", 0, 60, "7-1")),
        fixture.request(begin("b", 5, 60, "7-2")),
        fixture.request(begin("b", 6, 120, "7-3")),
        fixture.request(begin("c", 0, 60, "7-4")),
    ];
    fixture.settle();
    let expected = [Commit::Accepted, Commit::Superseded, Commit::Superseded, Commit::Accepted];
    assert_eq!(ids.map(|id| fixture.answers[&id]), expected);
    assert_eq!(fixture.server.tree().multis.len(), 2);
}

/// A pause also changes the job's record, and so can produce the version that a later decision of the chain expects.
#[test]
fn what_depends_on_a_refused_decision_is_refused_although_its_version_exists() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.server.tree().touch(&paths::job(&name("a")));
    let ids = [fixture.request(begin("a", 0, 60, "7-1")), fixture.request(begin("a", 1, 120, "7-2"))];
    fixture.settle();
    assert_eq!(ids.map(|id| fixture.answers[&id]), [Commit::Superseded; 2]);
    assert_eq!(fixture.commit(begin("a", 1, 120, "7-3")), Commit::Superseded, "the leader does not know of it yet");
    fixture.committer.read(&name("a"));
    assert_eq!(fixture.commit(begin("a", 1, 180, "7-4")), Commit::Accepted);
}

#[test]
fn waiting_changes_share_a_multi_of_at_most_two_hundred_operations() {
    let mut fixture = Fixture::new();
    for at in 0..500 {
        fixture.put(paths::job(&name(&format!("job-{at}"))), &mark(0, "1-0"));
        fixture.request(begin(&format!("job-{at}"), 0, 60, &format!("7-{at}")));
    }
    fixture.settle();
    assert!(fixture.answers.values().all(|&answer| answer == Commit::Accepted));
    assert_eq!(fixture.server.tree().multis.len(), 6, "500 begins of two operations, 99 per multi besides its fence");
}

#[test]
fn a_trimmed_skip_record_is_recreated() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    let grow = Change::Advance {
        job: name("backup"),
        at: Some(Version(0)),
        record: mark(60, "7-1"),
        skip: Some(SkipWrite { at: Some(Version(4)), skip: skip("backup", 60), links: Vec::new() }),
    };
    assert_eq!(fixture.commit(grow), Commit::Accepted);
    assert_eq!(fixture.version("/cronkeeper/history/backup/backup.19700101T000100Z"), Some(0));
}

#[test]
fn after_its_term_a_change_is_not_sent_until_the_candidate_is_removed() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    fixture.fates([Fate::RequestLost]);
    fixture.request(begin("backup", 0, 60, "7-1"));
    fixture.turn();
    fixture.committer.fence_off(Some(CANDIDATE.into()));
    assert!(!fixture.turn());
    fixture.server.tree().remove(CANDIDATE);
    fixture.committer.release();
    fixture.settle();
    assert_eq!(fixture.answers[&CommitId(1)], Commit::Fenced);
    assert_eq!(fixture.version("/cronkeeper/jobs/backup"), Some(0));
}

#[test]
fn the_loss_of_the_session_leaves_what_was_sent_unknown_and_keeps_what_was_not() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("a")), &mark(0, "1-0"));
    fixture.fates([Fate::AnswerLost]);
    fixture.request(begin("a", 0, 60, "7-1"));
    fixture.turn();
    fixture.request(begin("b", 0, 60, "7-2"));
    fixture.request(end("c", 0, 60, "7-3"));
    let (answers, unsent) = fixture.committer.into_rest();
    assert_eq!(answers, [(CommitId(1), Commit::Unknown), (CommitId(2), Commit::Fenced)]);
    assert_eq!(unsent.into_iter().map(|(id, _)| id).collect::<Vec<_>>(), [CommitId(3)]);
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => Just(Fate::Answered), 1 => Just(Fate::AnswerLost), 1 => Just(Fate::RequestLost)]
}

#[test]
fn two_ends_of_a_job_share_a_history_that_the_first_creates() {
    let mut fixture = Fixture::new();
    fixture.put(paths::job(&name("backup")), &mark(0, "1-0"));
    for (at, second) in [(0, 60), (1, 120)] {
        fixture.request(begin("backup", at, second, &format!("7-{at}")));
        fixture.request(end("backup", 0, second, &format!("7-{at}")));
    }
    fixture.settle();
    assert!(fixture.answers.values().all(|&answer| answer == Commit::Accepted));
    assert_eq!(fixture.server.tree().below(&paths::job_history(&name("backup"))).len(), 2);
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    /// Whatever is lost on the way, chains of begins and ends are written once each and answered so.
    #[test]
    fn every_commit_is_written_exactly_once(
        jobs in 1usize..6,
        runs in 1i32..6,
        fates in prop::collection::vec(fate(), 0..60),
        pauses in prop::collection::vec(0usize..4, 0..40),
    ) {
        let mut fixture = Fixture::new();
        let jobs: Vec<String> = (0..jobs).map(|at| format!("job-{at}")).collect();
        for job in &jobs {
            fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        }
        fixture.fates(fates);
        let mut pauses = pauses.into_iter();
        for round in 0..runs {
            for job in &jobs {
                let (second, nonce) = (60 * (i64::from(round) + 1), format!("7-{job}-{round}"));
                fixture.request(begin(job, round, second, &nonce));
                fixture.request(end(job, 0, second, &nonce));
                for _ in 0..pauses.next().unwrap_or(0) {
                    fixture.turn();
                }
            }
        }
        fixture.settle();
        prop_assert_eq!(fixture.answers.len() as u64, fixture.last);
        for (id, answer) in &fixture.answers {
            prop_assert_eq!(*answer, Commit::Accepted, "{:?}", id);
        }
        for job in &jobs {
            prop_assert_eq!(fixture.version(&paths::job(&name(job))), Some(runs));
            let tree = fixture.server.tree();
            let ended = tree.below(&paths::job_history(&name(job)));
            prop_assert_eq!(ended.len() as i32, runs);
            let version = |path: &String| tree.stat(path).map(|stat| stat.version);
            prop_assert!(ended.iter().all(|path| version(path) == Some(0)), "an end was written twice");
            let last = tree.data(&paths::last(&name(job))).map(|data| serde_json::from_slice::<Last>(&data).unwrap());
            let written = last.map(|last| (last.end.run, last.written.run));
            let newest = transaction::tests::run(job, 60 * i64::from(runs), "").id();
            prop_assert_eq!(written, Some((newest.clone(), newest)));
        }
    }

    /// An answer always reports what is on record, even if another writer touches the jobs meanwhile.
    #[test]
    fn an_answer_reports_what_is_on_record(
        fates in prop::collection::vec(fate(), 0..40),
        touched in prop::collection::vec((0usize..6, 0usize..5), 0..6),
    ) {
        let mut fixture = Fixture::new();
        let jobs: Vec<String> = (0..6).map(|at| format!("job-{at}")).collect();
        for job in &jobs {
            fixture.put(paths::job(&name(job)), &mark(0, "1-0"));
        }
        fixture.fates(fates);
        let ids: Vec<_> = jobs.iter().map(|job| fixture.request(begin(job, 0, 60, &format!("7-{job}")))).collect();
        for (job, turns) in touched {
            for _ in 0..turns {
                fixture.turn();
            }
            fixture.server.tree().touch(&paths::job(&name(&jobs[job])));
        }
        fixture.settle();
        for (job, id) in jobs.iter().zip(ids) {
            let is_there = fixture.version(&format!("/cronkeeper/running/{job}.19700101T000100Z")).is_some();
            let expected = if is_there { Commit::Accepted } else { Commit::Superseded };
            prop_assert_eq!(fixture.answers[&id], expected, "{}", job);
        }
    }
}
