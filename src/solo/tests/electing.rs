//! Election: the order of the queue, handover, and the effects of removed files.

use super::*;

#[tokio::test]
async fn leadership_can_be_transferred_only_to_the_next_in_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let (mut b, mut c) = (Node::start(dir.path(), "b").await, Node::start(dir.path(), "c").await);
    for follower in [&mut b, &mut c] {
        follower.request(election::Request::Campaign);
        follower.until(|event| matches!(event, Event::Election(election::Event::Following { .. })).then_some(())).await;
    }
    a.request(election::Request::Transfer(NodeName::new("c")));
    let refused = |event| match event {
        Event::Election(election::Event::NotTransferred { why, .. }) => Some(why),
        _ => None,
    };
    assert_eq!(a.until(refused).await, election::TransferError::NotNext);
    a.request(election::Request::Transfer(NodeName::new("b")));
    b.elected().await;
}

#[tokio::test]
async fn the_first_node_leads_and_each_other_follows_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let (term, snapshot) = a.lead().await;
    assert_eq!((term.token, snapshot), (FencingToken(1), Snapshot::default()));
    let mut b = Node::start(dir.path(), "b").await;
    b.request(election::Request::Campaign);
    assert_eq!(b.following().await, (NodeName::new("a"), NodeName::new("a")));
    let mut c = Node::start(dir.path(), "c").await;
    c.request(election::Request::Campaign);
    assert_eq!(c.following().await, (NodeName::new("b"), NodeName::new("a")));
    drop(b);
    assert_eq!(c.following().await, (NodeName::new("a"), NodeName::new("a")));
    let queue = a.solo.coordination.reader.queue().await.unwrap();
    let nodes: Vec<_> = queue.candidates.into_iter().filter_map(|candidate| candidate.node).collect();
    assert_eq!(nodes, [NodeName::new("a"), NodeName::new("c")]);
}

#[tokio::test]
async fn a_dropped_leader_is_followed_under_a_larger_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let mut b = Node::start(dir.path(), "b").await;
    let (first, _) = a.lead().await;
    b.request(election::Request::Campaign);
    b.following().await;
    drop(a);
    let (second, _) = b.elected().await;
    assert!(second.token > first.token && second.candidate != first.candidate);
}

#[tokio::test]
async fn a_resigned_leader_hands_over_and_can_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let mut b = Node::start(dir.path(), "b").await;
    let (first, _) = a.lead().await;
    b.request(election::Request::Campaign);
    b.following().await;
    a.request(election::Request::Resign);
    let over = a.until(|event| match event {
        Event::Election(election::Event::Over { term, why }) => Some((term, why)),
        _ => None,
    });
    assert_eq!(over.await, (first, TermEnd::Resigned));
    b.elected().await;
    a.request(election::Request::Campaign);
    assert_eq!(a.following().await.0, NodeName::new("b"));
    b.request(election::Request::Leave);
    assert_eq!(a.elected().await.0.token, FencingToken(3));
}

#[tokio::test]
async fn the_lease_never_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let until = a.until(|event| match event {
        Event::Election(election::Event::Lease { until }) => Some(until),
        _ => None,
    });
    assert_eq!(until.await, Uptime::NEVER);
}

#[tokio::test]
async fn the_name_of_a_live_member_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let a = Node::start(dir.path(), "a").await;
    let state = StateDir::open(dir.path(), BackendIdentity::Solo, &NodeName::new("a")).unwrap();
    let refused = start(&state, &NodeName::new("a"), Arc::new(|_| Ok(())), None).err().unwrap();
    assert!(matches!(refused, SoloError::Refused(Failure::NameTaken { .. })), "{refused}");
    drop(a);
}

#[tokio::test]
async fn a_leader_whose_lock_file_was_removed_is_fenced_and_joins_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    let (first, _) = a.lead().await;
    std::fs::remove_file(dir.path().join("leader.lock")).unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
    assert!(a.elected().await.0.token > first.token);
}

#[tokio::test]
async fn a_leader_with_an_old_token_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute("UPDATE term SET token = 7", []).unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
    assert_eq!(a.elected().await.0.token, FencingToken(8));
}

#[tokio::test]
async fn a_node_that_leaves_in_order_leaves_no_files_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.request(election::Request::Leave);
    a.until(|event| matches!(event, Event::Election(election::Event::Left)).then_some(())).await;
    for directory in ["members", "queue"] {
        assert_eq!(std::fs::read_dir(dir.path().join(directory)).unwrap().count(), 0, "{directory}");
    }
}
