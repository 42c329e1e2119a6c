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
