//! Who leads.

use cronkeeper_core::election::{Event, Failure, Published, Request, TransferError};
use cronkeeper_core::ledger::Snapshot;
use cronkeeper_core::term::{NodeName, TermEnd};

use super::cluster::{Cluster, Node};

on_every_backend! {
    nodes_lead_in_the_order_in_which_they_joined,
    when_the_one_in_the_middle_goes_the_next_follows_the_one_before_it,
    a_leader_that_resigns_is_followed_under_a_larger_token_and_can_come_back,
    the_next_in_line_leads_after_a_leader_that_was_killed,
    a_killed_node_that_comes_back_joins_at_the_end,
    leadership_is_transferred_to_the_next_in_line,
    leadership_is_transferred_by_no_follower_and_to_no_stranger,
    a_node_that_leaves_is_no_candidate_and_no_member_any_more,
    a_node_that_resigned_stays_a_member,
    the_name_of_a_live_node_is_refused,
    others_can_read_what_a_node_publishes,
}

fn names(names: &[&str]) -> Vec<NodeName> {
    names.iter().copied().map(NodeName::new).collect()
}

async fn not_transferred(node: &mut Node, to: &str) -> TransferError {
    node.ask(Request::Transfer(NodeName::new(to)));
    node.election("not transferred", |event| match event {
        Event::NotTransferred { why, .. } => Some(why.clone()),
        _ => None,
    })
    .await
}

async fn withdrawn(node: &mut Node) {
    node.election("withdrawn", |event| (*event == Event::Withdrawn).then_some(())).await;
}

async fn left(node: &mut Node) {
    node.ask(Request::Leave);
    node.election("left", |event| (*event == Event::Left).then_some(())).await;
}

async fn nodes_lead_in_the_order_in_which_they_joined(mut cluster: Cluster) {
    let (mut a, first, snapshot) = cluster.leading("a").await;
    assert_eq!(snapshot, Snapshot::default(), "nothing was decided yet");
    let mut b = cluster.follower("b", "a").await;
    let mut c = cluster.follower("c", "b").await;
    assert_eq!(c.queue().await, names(&["a", "b", "c"]));
    left(&mut a).await;
    let (second, _) = b.elected().await;
    assert!(second.token > first.token && second.candidate != first.candidate);
    left(&mut b).await;
    let (third, _) = c.elected().await;
    assert!(third.token > second.token);
}

async fn when_the_one_in_the_middle_goes_the_next_follows_the_one_before_it(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let mut c = cluster.follower("c", "b").await;
    let mut d = cluster.follower("d", "c").await;
    b.crash();
    c.following(Some("a")).await;
    left(&mut c).await;
    d.following(Some("a")).await;
    // Whoever has seen it: the service may show it to others later.
    assert_eq!(d.queue().await, names(&["a", "d"]));
    left(&mut a).await;
    d.elected().await;
}

async fn a_leader_that_resigns_is_followed_under_a_larger_token_and_can_come_back(mut cluster: Cluster) {
    let (mut a, first, _) = cluster.leading("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.ask(Request::Resign);
    assert_eq!(a.over().await, (first.clone(), TermEnd::Resigned));
    withdrawn(&mut a).await;
    let (second, _) = b.elected().await;
    assert!(second.token > first.token);
    a.ask(Request::Campaign);
    a.following(Some("b")).await;
    left(&mut b).await;
    assert!(a.elected().await.0.token > second.token);
}

async fn the_next_in_line_leads_after_a_leader_that_was_killed(mut cluster: Cluster) {
    let (a, first, _) = cluster.leading("a").await;
    let mut b = cluster.follower("b", "a").await;
    let _c = cluster.follower("c", "b").await;
    a.crash();
    let (second, _) = b.elected().await;
    assert!(second.token > first.token);
    assert_eq!(b.queue().await, names(&["b", "c"]));
}

async fn a_killed_node_that_comes_back_joins_at_the_end(mut cluster: Cluster) {
    let a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    let old_session = a.current_session().cloned();
    a.crash();
    let mut a = cluster.follower("a", "b").await;
    assert_ne!(a.current_session().cloned(), old_session);
    b.elected().await;
    left(&mut b).await;
    a.elected().await;
}

async fn leadership_is_transferred_to_the_next_in_line(mut cluster: Cluster) {
    let (mut a, first, _) = cluster.leading("a").await;
    let mut b = cluster.follower("b", "a").await;
    let mut c = cluster.follower("c", "b").await;
    a.ask(Request::Transfer(NodeName::new("b")));
    assert_eq!(a.over().await, (first.clone(), TermEnd::Resigned));
    withdrawn(&mut a).await;
    assert!(b.elected().await.0.token > first.token);
    c.following(Some("b")).await;
}

async fn leadership_is_transferred_by_no_follower_and_to_no_stranger(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    assert_eq!(not_transferred(&mut b, "b").await, TransferError::NotLeading);
    assert_eq!(not_transferred(&mut a, "a").await, TransferError::Leads);
    assert_eq!(not_transferred(&mut a, "nobody").await, TransferError::NotQueued);
    a.mark("the-term-goes-on").await;
}

async fn a_node_that_leaves_is_no_candidate_and_no_member_any_more(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    left(&mut a).await;
    b.elected().await;
    let queue = b.reader().queue().await.expect("the queue can be read");
    let members: Vec<_> = queue.members.into_iter().map(|member| member.node).collect();
    assert_eq!((b.queue().await, members), (names(&["b"]), names(&["b"])));
}

async fn a_node_that_resigned_stays_a_member(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let mut b = cluster.follower("b", "a").await;
    a.ask(Request::Resign);
    withdrawn(&mut a).await;
    b.elected().await;
    let queue = b.reader().queue().await.expect("the queue can be read");
    let mut members: Vec<_> = queue.members.into_iter().map(|member| member.node).collect();
    members.sort();
    assert_eq!((b.queue().await, members), (names(&["b"]), names(&["a", "b"])));
}

async fn the_name_of_a_live_node_is_refused(mut cluster: Cluster) {
    let mut a = cluster.leader("a").await;
    let failure = cluster.refused("a").await;
    assert!(matches!(failure, Failure::NameTaken { ref node, .. } if *node == NodeName::new("a")), "{failure}");
    a.mark("the-term-goes-on").await;
}

async fn others_can_read_what_a_node_publishes(mut cluster: Cluster) {
    let a = cluster.leader("a").await;
    let b = cluster.follower("b", "a").await;
    let published = Published { priority: 7, draining: true, ..Published::default() };
    b.ask(Request::Publish(published.clone()));
    loop {
        let queue = a.reader().queue().await.expect("the queue can be read");
        let found = queue.members.into_iter().find(|member| member.node == NodeName::new("b"));
        // The service may show it to others later.
        // What it knows of placing is the backend's part.
        let is_published = |found: Published| Published { places: 0, ..found } == published;
        if found.is_some_and(|member| is_published(member.published)) {
            return;
        }
        tokio::task::yield_now().await;
    }
}
