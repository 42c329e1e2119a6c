//! Links to downstream jobs on real servers.

use cronkeeper::election::Request;
use cronkeeper::job::JobName;
use cronkeeper::ledger::{Change, Commit, Event, Window};
use cronkeeper::run::{HistoryRecord, Link, RunRecord, SkipReason, TriggerSeq, UpstreamResult, Version};
use cronkeeper::term::{SessionId, Term};

use super::fixture::{Fixture, begin, end, first_mark, job, leader, mark, run, skip};
use crate::support::zookeeper::shared;

/// Waits until the leader has received this many links, and returns them.
async fn links(fixture: &mut Fixture, count: usize) -> Vec<(TriggerSeq, Link)> {
    fixture
        .ledger("links", |event| match event {
            Event::OperatorRequests(requests) if requests.links.len() == count => {
                Some(requests.links.clone().into_iter().collect())
            }
            _ => None,
        })
        .await
}

/// Runs `a` at second 60 to its end, with these downstream jobs.
async fn run_first(fixture: &mut Fixture, behind: &[JobName], session: &SessionId, term: &Term) -> RunRecord {
    fixture.commit(first_mark("a", "1")).await;
    let first = RunRecord { dependents: behind.to_vec(), ..run("a", 60, "a", session, term.token) };
    assert_eq!(fixture.commit(begin(0, &first)).await, Commit::Accepted);
    assert_eq!(fixture.commit(end(0, &first)).await, Commit::Accepted);
    first
}

fn drop_links(name: &str, links: Vec<TriggerSeq>, term: &Term) -> Change {
    let skip = skip(name, 60, SkipReason::Upstream, "a", term.token);
    Change::DropLinks { job: job(name), links, skip: Some(skip), dependents: Vec::new() }
}

#[tokio::test]
async fn an_end_leaves_links_and_the_run_they_lead_to_takes_them_away_once() {
    let connect = shared();
    let (mut leader, term, session) = leader(&connect).await;
    run_first(&mut leader, &[job("b"), job("c")], &session, &term).await;
    let said = links(&mut leader, 2).await;
    let jobs: Vec<_> = said.iter().map(|(_, link)| (link.job.to_string(), link.result)).collect();
    assert_eq!(jobs, [("b".to_owned(), UpstreamResult::Success), ("c".to_owned(), UpstreamResult::Success)]);
    leader.commit(first_mark("b", "1")).await;
    let next = run("b", 60, "a", &session, term.token);
    let follow = |version| {
        let mark = Some((Version(version), mark(60, &next.nonce.0)));
        Change::BeginDownstream { mark, run: next.clone(), links: vec![said[0].0] }
    };
    assert_eq!(leader.commit(follow(0)).await, Commit::Accepted);
    assert_eq!(leader.commit(end(0, &next)).await, Commit::Accepted);
    assert_eq!(leader.commit(follow(1)).await, Commit::Superseded, "its link is gone");
    assert_eq!(leader.commit(drop_links("c", vec![said[1].0], &term)).await, Commit::Accepted);
}

#[tokio::test]
async fn what_is_given_up_is_no_news_where_the_history_knows_better() {
    let connect = shared();
    let (mut leader, term, session) = leader(&connect).await;
    leader.commit(first_mark("b", "1")).await;
    let ended = run("b", 60, "a", &session, term.token);
    leader.commit(begin(0, &ended)).await;
    leader.commit(end(0, &ended)).await;
    run_first(&mut leader, &[job("b")], &session, &term).await;
    let said = links(&mut leader, 1).await;
    let drop_links = drop_links("b", vec![said[0].0], &term);
    assert_eq!(leader.commit(drop_links.clone()).await, Commit::Accepted);
    assert_eq!(leader.commit(drop_links).await, Commit::Superseded);
    let history = leader.reader().history(Some(job("b")), Window::of(10)).await.unwrap().records;
    assert!(matches!(history.as_slice(), [HistoryRecord::Run(_)]), "{history:?}");
}

#[tokio::test]
async fn sixty_four_jobs_behind_one_are_notified_of_its_end_and_the_next_leader_knows_of_all() {
    let connect = shared();
    let (mut leader, term, session) = leader(&connect).await;
    let mut follower = Fixture::start(&connect, "b");
    follower.ask(Request::Campaign);
    follower.following(Some("a")).await;
    let behind: Vec<_> = (0..64).map(|number| job(&format!("b{number}"))).collect();
    run_first(&mut leader, &behind, &session, &term).await;
    assert_eq!(links(&mut leader, 64).await.len(), 64);
    leader.crash();
    let (_, snapshot) = follower.elected().await;
    assert_eq!((snapshot.requests.links.len(), snapshot.damaged), (64, Vec::new()));
}
