//! The locks of runs: one request holds a lock at a time, whichever node asks.

use cronkeeper_core::election::Request as ElectionRequest;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::RunId;
use cronkeeper_core::run_lock::{Event, LockGrant, LockRequestId, Request};

use super::cluster::{Cluster, Node};
use crate::port::records::{at, job};

on_every_backend! {
    one_request_holds_a_lock_at_a_time_and_its_token_grows,
    a_request_that_does_not_wait_is_told_that_the_lock_is_held,
    requests_of_one_node_exclude_each_other_too,
    several_locks_are_held_together_or_not_at_all,
    a_request_that_is_given_up_holds_nothing,
    what_a_dead_node_held_is_free,
    what_a_former_leader_holds_stays_held_until_it_releases_it,
}

impl Node {
    fn acquire(&self, id: u64, paths: &[&str], waits: bool) {
        let run = RunId::scheduled(job("j"), at(60));
        let paths = paths.iter().map(|text| LockPath::parse(text).expect("a path")).collect();
        self.ask_lock(Request::Acquire { id: LockRequestId(id), run, paths, waits });
    }

    fn release(&self, id: u64) {
        self.ask_lock(Request::Release { id: LockRequestId(id) });
    }

    async fn held(&mut self, wanted: u64) -> LockGrant {
        self.lock("the lock", |event| match event {
            Event::Held { id: LockRequestId(id), grant } if *id == wanted => Some(grant.clone()),
            _ => None,
        })
        .await
    }

    async fn busy(&mut self, wanted: u64) -> LockPath {
        self.lock("that the lock is held", |event| match event {
            Event::Busy { id: LockRequestId(id), path } if *id == wanted => Some(path.clone()),
            _ => None,
        })
        .await
    }

    /// True if the lock is held by somebody else, as a request finds that does not wait.
    async fn finds_held(&mut self, id: u64, path: &str) -> bool {
        self.acquire(id, &[path], false);
        let held = self.lock("an answer", |event| match event {
            Event::Held { id: LockRequestId(of), .. } if *of == id => Some(false),
            Event::Busy { id: LockRequestId(of), .. } if *of == id => Some(true),
            _ => None,
        });
        let held = held.await;
        self.release(id);
        held
    }
}

async fn one_request_holds_a_lock_at_a_time_and_its_token_grows(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/x"], true);
    let first = a.held(1).await;
    b.acquire(1, &["/locks/x"], true);
    assert!(a.finds_held(2, "/locks/x").await);
    a.release(1);
    let second = b.held(1).await;
    assert!(second.held[0].1 > first.held[0].1, "{first:?} {second:?}");
    assert_ne!(first.key, second.key);
    assert!(a.finds_held(3, "/locks/x").await);
}

async fn a_request_that_does_not_wait_is_told_that_the_lock_is_held(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/x"], false);
    a.held(1).await;
    b.acquire(1, &["/locks/y", "/locks/x"], false);
    assert_eq!(b.busy(1).await.as_str(), "/locks/x");
    assert!(!a.finds_held(2, "/locks/y").await, "nothing is left of it");
}

async fn requests_of_one_node_exclude_each_other_too(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    a.acquire(1, &["/locks/x"], true);
    a.held(1).await;
    a.acquire(2, &["/locks/x"], true);
    assert!(a.finds_held(3, "/locks/x").await);
    a.release(1);
    a.held(2).await;
    assert!(a.finds_held(4, "/locks/x").await);
    a.release(2);
    assert!(!a.finds_held(5, "/locks/x").await);
}

async fn several_locks_are_held_together_or_not_at_all(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/y", "/locks/x"], true);
    let grant = a.held(1).await;
    let paths: Vec<&str> = grant.held.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["/locks/y", "/locks/x"], "in the order of the request");
    b.acquire(1, &["/locks/x", "/locks/y"], true);
    assert!(b.finds_held(2, "/locks/y").await);
    a.release(1);
    b.held(1).await;
}

async fn a_request_that_is_given_up_holds_nothing(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/x"], true);
    a.held(1).await;
    b.acquire(1, &["/locks/x"], true);
    b.release(1);
    b.acquire(2, &["/locks/x"], true);
    a.release(1);
    b.held(2).await;
    b.release(2);
    a.acquire(3, &["/locks/x"], true);
    a.held(3).await;
}

async fn what_a_dead_node_held_is_free(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/x"], true);
    a.held(1).await;
    b.acquire(1, &["/locks/x"], true);
    a.crash();
    b.held(1).await;
}

async fn what_a_former_leader_holds_stays_held_until_it_releases_it(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.acquire(1, &["/locks/x"], true);
    a.held(1).await;
    a.ask(ElectionRequest::Resign);
    b.elected().await;
    assert!(b.finds_held(1, "/locks/x").await);
    b.acquire(2, &["/locks/x"], true);
    a.release(1);
    b.held(2).await;
}
