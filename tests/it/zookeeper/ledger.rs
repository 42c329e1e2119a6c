//! Commits, and what other writers may do in between.

use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::session::ConnectionSettings;
use cronkeeper_core::election::{Defined, Published, Request};
use cronkeeper_core::job::Digest;
use cronkeeper_core::ledger::{self, Commit, Filter, Window};
use cronkeeper_core::term::TermEnd;

use super::fixture::{Fixture, Memory, TIMEOUT, admin, begin, end, first_mark, job, leader, run, run_id};
use crate::support::LONG;
use crate::support::zookeeper::shared;

#[tokio::test]
async fn a_job_touched_by_another_supersedes_the_begin() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    fixture.commit(first_mark("backup", "1")).await;
    let admin = admin(&connect).await;
    let (data, _) = admin.get_data("/cronkeeper/jobs/backup").await.unwrap();
    admin.set_data("/cronkeeper/jobs/backup", &data, None).await.unwrap();
    let run = run("backup", 60, "a", &session, term.token);
    assert_eq!(fixture.commit(begin(0, &run)).await, Commit::Superseded);
    assert_eq!(admin.list_children("/cronkeeper/running").await.unwrap(), [""; 0]);
    assert_eq!(fixture.commit(begin(1, &run)).await, Commit::Superseded, "what it rests on was refused");
    fixture.ask_ledger(ledger::Request::ReadJob(run.job.clone()));
    assert_eq!(fixture.commit(begin(1, &run)).await, Commit::Accepted, "the term goes on");
}

#[tokio::test]
async fn nothing_is_written_once_the_candidate_is_gone() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    fixture.commit(first_mark("backup", "1")).await;
    let admin = admin(&connect).await;
    let run = run("backup", 60, "a", &session, term.token);
    let deleted = admin.delete(&format!("/leader/{}", term.candidate), None).await;
    let id = fixture.request(begin(0, &run));
    assert_eq!(fixture.answer(id).await, Commit::Fenced);
    deleted.unwrap();
    assert_eq!(admin.list_children("/cronkeeper/running").await.unwrap(), [""; 0]);
    let over = fixture.seen.iter().any(|event| format!("{event:?}").contains("Over"));
    if !over {
        assert!(matches!(fixture.over().await.1, TermEnd::Fenced | TermEnd::EntryGone));
    }
}

#[tokio::test]
async fn five_hundred_begins_share_multis_and_one_that_fails_fails_alone() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    let names: Vec<String> = (0..500).map(|at| format!("job-{at}")).collect();
    let marks: Vec<_> = names.iter().map(|name| fixture.request(first_mark(name, "1"))).collect();
    for id in marks {
        assert_eq!(fixture.answer(id).await, Commit::Accepted);
    }
    admin(&connect).await.set_data("/cronkeeper/jobs/job-250", b"{}", None).await.unwrap();
    let begins: Vec<_> =
        names.iter().map(|name| fixture.request(begin(0, &run(name, 60, "a", &session, term.token)))).collect();
    for (at, id) in begins.into_iter().enumerate() {
        let expected = if at == 250 { Commit::Superseded } else { Commit::Accepted };
        assert_eq!(fixture.answer(id).await, expected, "job-{at}");
    }
    assert_eq!(fixture.reader().snapshot().await.unwrap().running.len(), 499);
}

#[tokio::test]
async fn one_jobs_commits_take_effect_in_the_order_requested() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    let first = fixture.request(first_mark("backup", "1"));
    let runs: Vec<_> = (1..=20).map(|at| run("backup", at * 60, "a", &session, term.token)).collect();
    let begins: Vec<_> = runs.iter().enumerate().map(|(at, run)| fixture.request(begin(at as i32, run))).collect();
    let ends: Vec<_> = runs.iter().map(|run| fixture.request(end(0, run))).collect();
    for id in [first].into_iter().chain(begins).chain(ends) {
        assert_eq!(fixture.answer(id).await, Commit::Accepted);
    }
}

#[tokio::test]
async fn folders_removed_by_hand_are_made_again() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    fixture.commit(first_mark("backup", "1")).await;
    let admin = admin(&connect).await;
    admin.delete("/cronkeeper/running", None).await.unwrap();
    admin.delete("/cronkeeper/history", None).await.unwrap();
    let run = run("backup", 60, "a", &session, term.token);
    assert_eq!(fixture.commit(begin(0, &run)).await, Commit::Accepted);
    assert_eq!(fixture.commit(end(0, &run)).await, Commit::Accepted);
    assert_eq!(fixture.reader().history(Filter::of_job(job("backup")), Window::of(10)).await.unwrap().records.len(), 1);
}

#[tokio::test]
async fn of_a_long_history_the_newest_twenty_runs_stay() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    fixture.commit(first_mark("backup", "1")).await;
    for at in 0..30 {
        let run = run("backup", 60 + i64::from(at), "a", &session, term.token);
        assert_eq!(fixture.commit(begin(at, &run)).await, Commit::Accepted);
        assert_eq!(fixture.commit(end(0, &run)).await, Commit::Accepted);
    }
    let admin = admin(&connect).await;
    let names = tokio::time::timeout(LONG, async {
        loop {
            let names = admin.list_children("/cronkeeper/history/backup").await.unwrap();
            if names.len() == 20 {
                return names;
            }
            tokio::task::yield_now().await;
        }
    });
    let names = names.await.expect("trimmed in time");
    assert!(names.contains(&run_id("backup", 89).to_string()) && names.contains(&run_id("backup", 70).to_string()));
}

#[tokio::test]
async fn the_histories_of_two_hundred_jobs_that_end_all_the_time_stay_short() {
    let connect = shared();
    let (mut fixture, term, session) = leader(&connect).await;
    let names: Vec<String> = (0..200).map(|number| format!("job-{number}")).collect();
    for name in &names {
        fixture.request(first_mark(name, "1"));
    }
    for at in 0..60 {
        let mut last = None;
        for name in &names {
            let run = run(name, 60 + i64::from(at), "a", &session, term.token);
            fixture.request(begin(at, &run));
            last = Some(fixture.request(end(0, &run)));
        }
        let last = last.expect("there are jobs");
        assert_eq!(fixture.answer(last).await, Commit::Accepted);
        fixture.seen.clear();
    }
    let admin = admin(&connect).await;
    let trimmed = async {
        for name in &names {
            let folder = format!("/cronkeeper/history/{name}");
            while admin.check_stat(&folder).await.unwrap().unwrap().num_children > 20 {
                tokio::task::yield_now().await;
            }
            let mut left = admin.list_children(&folder).await.unwrap();
            left.sort();
            let newest: Vec<_> = (100..120).map(|second| run_id(name, second).to_string()).collect();
            assert_eq!(left, newest);
        }
    };
    tokio::time::timeout(LONG, trimmed).await.expect("trimmed in time");
}

#[tokio::test]
async fn nothing_is_left_of_a_job_that_every_nodes_file_lacks_and_one_of_its_name_is_new() {
    let connect = shared();
    let settings =
        ConnectionSettings { connect: connect.clone(), session_timeout: TIMEOUT, ..ConnectionSettings::default() };
    let after = Duration::from_secs(1);
    let mut fixture = Fixture::forgetting(settings, "a", Memory::default(), Some(after));
    fixture.ask(Request::Campaign);
    let session = fixture.session().await;
    let (term, _) = fixture.elected().await;
    for name in ["old", "kept"] {
        fixture.commit(first_mark(name, "1")).await;
        for at in 0..3 {
            let run = run(name, 60 + i64::from(at), "a", &session, term.token);
            assert_eq!(fixture.commit(begin(at, &run)).await, Commit::Accepted);
            assert_eq!(fixture.commit(end(0, &run)).await, Commit::Accepted);
        }
    }
    let digest = Digest::of(b"kept");
    let defined = Defined { digest: digest.clone(), jobs: [job("kept")].into(), ..Defined::default() };
    fixture.ask(Request::Define(Arc::new(defined)));
    fixture.ask(Request::Publish(Published { digest, ..Published::default() }));
    let forgotten = fixture.ledger("that it is forgotten", |event| match event {
        ledger::Event::Forgotten { job, records } => Some((job.clone(), *records)),
        _ => None,
    });
    assert_eq!(forgotten.await, (job("old"), 3));
    let admin = admin(&connect).await;
    for path in ["jobs/old", "history/old", "control/old", "gone/old"] {
        assert!(admin.check_stat(&format!("/cronkeeper/{path}")).await.unwrap().is_none(), "{path}");
    }
    assert_eq!(fixture.reader().history(Filter::of_job(job("kept")), Window::of(10)).await.unwrap().records.len(), 3);
    assert_eq!(fixture.commit(first_mark("old", "2")).await, Commit::Accepted);
    let again = run("old", 90, "a", &session, term.token);
    assert_eq!(fixture.commit(begin(0, &again)).await, Commit::Accepted);
    assert_eq!(fixture.commit(end(0, &again)).await, Commit::Accepted);
}
