//! Links from a job's run to the jobs that run after it.

use cronkeeper_core::election::Request;
use cronkeeper_core::ledger::{Change, Commit, Request as LedgerRequest};
use cronkeeper_core::run::{HistoryRecord, Link, RunRecord, Skip, SkipReason, TriggerSeq, UpstreamResult, Version};

use super::cluster::{Cluster, Node};
use crate::port::records::{job, mark};

on_every_backend! {
    an_end_leaves_links_and_the_decision_on_them_removes_them_once,
    a_dropped_link_leaves_links_of_its_own,
    a_skip_does_not_replace_what_the_history_knows,
    the_leader_is_notified_of_links_that_a_former_leader_leaves,
    the_next_leader_finds_the_links_of_a_dead_one,
}

/// Begins a run of `a` that these jobs run after.
async fn begin_upstream(node: &mut Node, dependents: &[&str]) -> RunRecord {
    let run = RunRecord { dependents: dependents.iter().map(|name| job(name)).collect(), ..node.run("a", 60) };
    node.begin_run(&run).await;
    run
}

/// Waits until the leader has received this many links.
async fn links(node: &mut Node, count: usize) -> Vec<(TriggerSeq, Link)> {
    node.requests(|requests| requests.links.len() == count).await.links.into_iter().collect()
}

fn drop_links(skip: &Skip, links: &[TriggerSeq], dependents: &[&str]) -> Change {
    let jobs: Vec<_> = dependents.iter().map(|name| job(name)).collect();
    let dependents = Link::of_skip(skip, skip.first, 1, UpstreamResult::Skipped, &jobs);
    Change::DropLinks { job: skip.job.clone(), links: links.to_vec(), skip: Some(skip.clone()), dependents }
}

async fn an_end_leaves_links_and_the_decision_on_them_removes_them_once(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = begin_upstream(&mut a, &["b", "c"]).await;
    a.end(&run).await;
    let links = links(&mut a, 2).await;
    let found: Vec<_> = links.iter().map(|(_, link)| (link.run().to_string(), link.result)).collect();
    let expected = ["b", "c"].map(|name| (format!("{name}.19700101T000100Z"), UpstreamResult::Success));
    assert_eq!(found, expected);
    a.mark("b").await;
    let next = a.run("b", 60);
    let follow = |version| {
        let mark = Some((Version(version), mark(60, &next.nonce.0)));
        Change::BeginDownstream { mark, run: next.clone(), links: vec![links[0].0] }
    };
    assert_eq!(a.commit(follow(1)).await, Commit::Superseded, "at another version");
    a.read_job("b").await;
    assert_eq!(a.commit(follow(0)).await, Commit::Accepted);
    a.end(&next).await;
    a.read_job("b").await;
    assert_eq!(a.commit(follow(1)).await, Commit::Superseded, "its link is gone");
}

async fn a_dropped_link_leaves_links_of_its_own(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = begin_upstream(&mut a, &["b"]).await;
    a.end(&run).await;
    let (first, _) = links(&mut a, 1).await.remove(0);
    let skip = a.skip("b", 60, SkipReason::Upstream);
    let change = drop_links(&skip, &[first], &["c"]);
    assert_eq!(a.commit(change.clone()).await, Commit::Accepted);
    let requests = a.requests(|requests| !requests.links.contains_key(&first)).await;
    assert_eq!(a.commit(change).await, Commit::Superseded);
    let (last, link) = requests.links.first_key_value().expect("there is a link");
    assert_eq!((&link.job, &link.upstream, link.result), (&job("c"), &job("b"), UpstreamResult::Skipped));
    assert!(*last > first, "no number is used again");
    assert_eq!(a.history("b").await, [HistoryRecord::Skip(skip)]);
}

async fn a_skip_does_not_replace_what_the_history_knows(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let ended = a.begin("b", 60).await;
    a.end(&ended).await;
    let run = begin_upstream(&mut a, &["b", "c"]).await;
    a.end(&run).await;
    let links = links(&mut a, 2).await;
    let [skip_b, skip_c] = ["b", "c"].map(|name| a.skip(name, 60, SkipReason::Upstream));
    assert_eq!(a.commit(drop_links(&skip_b, &[links[0].0], &[])).await, Commit::Accepted);
    assert!(matches!(a.history("b").await.as_slice(), [HistoryRecord::Run(_)]));
    let both = [links[0].0, links[1].0];
    assert_eq!(a.commit(drop_links(&skip_b, &both, &[])).await, Commit::Superseded, "all or none");
    assert_eq!(a.commit(drop_links(&skip_c, &[links[1].0], &[])).await, Commit::Accepted);
}

async fn the_leader_is_notified_of_links_that_a_former_leader_leaves(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let run = begin_upstream(&mut a, &["b"]).await;
    a.ask(Request::Resign);
    a.over().await;
    let mut b = cluster.leader("b").await;
    b.ask_ledger(LedgerRequest::Watch(run.id()));
    a.end(&run).await;
    assert_eq!(links(&mut b, 1).await[0].1.upstream, job("a"));
}

async fn the_next_leader_finds_the_links_of_a_dead_one(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let dependents: Vec<String> = (0..64).map(|number| format!("b{number}")).collect();
    let run = begin_upstream(&mut a, &dependents.iter().map(String::as_str).collect::<Vec<_>>()).await;
    a.end(&run).await;
    let mut b = cluster.follower("b", "a").await;
    a.crash();
    let (_, snapshot) = b.elected().await;
    let found: Vec<_> = snapshot.requests.links.values().map(|link| link.job.to_string()).collect();
    assert_eq!((found, snapshot.damaged), (dependents, Vec::new()));
    assert!(snapshot.requests.triggers.is_empty());
}
