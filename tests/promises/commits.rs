//! What is written, and on what condition.

use cronkeeper_core::election::Request;
use cronkeeper_core::ledger::{Change, Commit, JobEntry, OwnerState, Running, SkipWrite};
use cronkeeper_core::run::{HistoryRecord, RunRecord, Skip, SkipReason, Version};

use super::cluster::Cluster;
use crate::port::records::{at, begin, end, first_mark, job, mark, success};

on_every_backend! {
    a_change_is_accepted_only_at_the_version_it_names,
    a_run_begins_once_and_ends_once,
    changes_of_a_job_take_effect_in_order_and_fail_as_a_chain,
    a_refused_change_of_one_job_holds_up_no_other,
    a_node_that_does_not_lead_writes_no_decision,
    after_its_term_a_node_decides_nothing_and_ends_its_runs,
    what_was_requested_before_a_resignation_is_answered_before_the_term_is_over,
    neighbouring_skips_are_one_record,
    the_next_leader_finds_the_marks_and_the_history,
}

fn advance(name: &str, version: Option<i32>, second: i64) -> Change {
    let record = mark(second, &format!("1-{second}"));
    Change::Advance { job: job(name), at: version.map(Version), record, skip: None }
}

async fn a_change_is_accepted_only_at_the_version_it_names(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    assert_eq!(a.commit(advance("j", Some(0), 10)).await, Commit::Superseded);
    assert_eq!(a.read_job("j").await, (None, None));
    assert_eq!(a.commit(advance("j", None, 10)).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", None, 11)).await, Commit::Superseded);
    assert_eq!(a.read_job("j").await.0.map(|entry| entry.version), Some(Version(0)));
    assert_eq!(a.commit(advance("j", Some(0), 20)).await, Commit::Accepted);
    let entry = a.read_job("j").await.0.expect("the job has a record");
    assert_eq!((entry.version, entry.record), (Version(1), Some(mark(20, "1-20"))));
}

async fn a_run_begins_once_and_ends_once(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = a.begin("j", 60).await;
    let running = a.reader().snapshot().await.expect("the ledger can be read").running;
    let expected = Running { record: run.clone(), version: Version::FIRST, owner: OwnerState::Alive };
    assert_eq!(running, [expected]);
    let mut again = run.clone();
    again.nonce.0.push_str("-again");
    assert_eq!(a.commit(begin(1, &again)).await, Commit::Superseded);
    assert_eq!(a.read_job("j").await.0.map(|entry| entry.version), Some(Version(1)), "the mark has not moved");
    assert_eq!(
        a.commit(Change::UpdateRun { at: Version(0), run: run.clone(), taken_from: None }).await,
        Commit::Accepted
    );
    assert_eq!(a.commit(end(0, &again)).await, Commit::Superseded);
    assert_eq!(a.commit(end(1, &run)).await, Commit::Accepted);
    assert_eq!(a.commit(end(1, &again)).await, Commit::Superseded);
    assert_eq!(a.history("j").await, [HistoryRecord::Run(success(&run))]);
    assert_eq!(a.reader().snapshot().await.expect("the ledger can be read").running, []);
}

async fn changes_of_a_job_take_effect_in_order_and_fail_as_a_chain(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let changes = [(None, 10), (Some(0), 20), (Some(0), 30), (Some(1), 40)];
    let ids = changes.map(|(version, second)| a.request(advance("j", version, second)));
    let expected = [Commit::Accepted, Commit::Accepted, Commit::Superseded, Commit::Superseded];
    for (id, expected) in ids.into_iter().zip(expected) {
        assert_eq!(a.answer(id).await, expected);
    }
    assert_eq!(a.commit(advance("j", Some(1), 50)).await, Commit::Superseded, "until the job is read");
    a.read_job("j").await;
    assert_eq!(a.commit(advance("j", Some(1), 60)).await, Commit::Accepted);
}

async fn a_refused_change_of_one_job_holds_up_no_other(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let changes = [("a", None), ("b", Some(7)), ("c", None), ("b", Some(8)), ("a", Some(0))];
    let ids = changes.map(|(name, version)| a.request(advance(name, version, 10)));
    let expected = [Commit::Accepted, Commit::Superseded, Commit::Accepted, Commit::Superseded, Commit::Accepted];
    for (id, expected) in ids.into_iter().zip(expected) {
        assert_eq!(a.answer(id).await, expected);
    }
}

async fn a_node_that_does_not_lead_writes_no_decision(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    assert_eq!(b.commit(first_mark("j", "1")).await, Commit::Fenced);
    assert_eq!(a.read_job("j").await, (None, None));
}

async fn after_its_term_a_node_decides_nothing_and_ends_its_runs(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = a.begin("j", 60).await;
    a.ask(Request::Resign);
    a.over().await;
    assert_eq!(a.commit(advance("j", Some(1), 120)).await, Commit::Fenced);
    assert_eq!(a.commit(end(0, &run)).await, Commit::Accepted);
    let (mut b, _, snapshot) = cluster.leading("b").await;
    assert_eq!(snapshot.running, []);
    assert_eq!(b.read_job("j").await.0.map(|entry| entry.version), Some(Version(1)));
    assert_eq!(b.history("j").await.len(), 1);
}

async fn what_was_requested_before_a_resignation_is_answered_before_the_term_is_over(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let ids: Vec<_> = (0..200).map(|number| a.request(first_mark(&format!("job-{number}"), "1"))).collect();
    a.ask(Request::Resign);
    a.over().await;
    let answers: Vec<_> = ids.into_iter().map(|id| a.known_answer(id)).collect();
    assert!(answers.iter().all(|answer| *answer == Some(Commit::Accepted)), "{answers:?}");
}

async fn neighbouring_skips_are_one_record(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    a.mark("j").await;
    let mut skip = a.skip("j", 60, SkipReason::Missed);
    let pass = |skip: &Skip, version: i32, at: Option<i32>| {
        let write = SkipWrite { at: at.map(Version), skip: skip.clone(), links: Vec::new() };
        let record = mark(skip.last.as_second(), &format!("2-{version}"));
        Change::Advance { job: job("j"), at: Some(Version(version)), record, skip: Some(write) }
    };
    assert_eq!(a.commit(pass(&skip, 0, None)).await, Commit::Accepted);
    (skip.last, skip.count) = (at(61), 2);
    assert_eq!(a.commit(pass(&skip, 1, Some(0))).await, Commit::Accepted);
    assert_eq!(a.history("j").await, [HistoryRecord::Skip(skip)]);
}

async fn the_next_leader_finds_the_marks_and_the_history(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let ended = a.begin("j", 60).await;
    a.end(&ended).await;
    let running = a.begin("k", 60).await;
    let mut b = cluster.follower("b", "a").await;
    a.crash();
    let (_, snapshot) = b.elected().await;
    let entry = |run: &RunRecord| JobEntry { record: Some(mark(60, &run.nonce.0)), version: Version(1) };
    let jobs = [&ended, &running].map(|run| (run.job.clone(), entry(run)));
    assert_eq!((snapshot.jobs, snapshot.damaged), (jobs.into(), Vec::new()));
    let found: Vec<_> = snapshot.running.into_iter().map(|run| (run.record, run.version)).collect();
    assert_eq!(found, [(running, Version::FIRST)]);
    assert_eq!(b.history("j").await, [HistoryRecord::Run(success(&ended))]);
}
