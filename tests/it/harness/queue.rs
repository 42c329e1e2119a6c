//! kazoo and Curator join the same queue, each behind a candidate named like ours.

use uuid::Uuid;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::LONG;
use crate::support::peers::{Library, Peer};
use crate::support::zookeeper::shared;

async fn a_peer_waits_for_our_candidate_and_then_has_the_lock(library: Library) {
    let connect = shared();
    let client = Client::connect(&connect).await.unwrap();
    let all = Acls::anyone_all();
    client.create("/leader", b"", &CreateMode::Persistent.with_acls(all)).await.unwrap();
    let prefix = format!("/leader/_c_{}-lock-", Uuid::new_v4());
    let (_, own) = client.create(&prefix, b"", &CreateMode::EphemeralSequential.with_acls(all)).await.unwrap();

    let Some(peer) = Peer::or_skip(library, &connect, "/leader") else { return };
    peer.await_connected(LONG);
    let mut queue = client.list_children("/leader").await.unwrap();
    while queue.len() < 2 {
        let (_, _, changed) = client.get_and_watch_children("/leader").await.unwrap();
        queue = client.list_children("/leader").await.unwrap();
        if queue.len() < 2 {
            tokio::time::timeout(LONG, changed.changed()).await.expect("the peer joins the queue");
        }
    }
    client.delete(&format!("{prefix}{own}"), None).await.unwrap();
    let node = peer.await_acquired(LONG);
    assert!(queue.contains(&node), "{node} is not in {queue:?}");
    peer.release(LONG);
    assert!(client.list_children("/leader").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_waits_for_our_candidate_and_then_has_the_lock() {
    a_peer_waits_for_our_candidate_and_then_has_the_lock(Library::Kazoo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curator_waits_for_our_candidate_and_then_has_the_lock() {
    a_peer_waits_for_our_candidate_and_then_has_the_lock(Library::Curator).await;
}
