//! etcd's history is compacted while nodes run.

use std::time::{Duration, Instant};

use cronkeeper_cluster::etcd::Etcd as Client;
use cronkeeper_cluster::store::{Found, If, Op, Rewinds, Store as _, Then, Wanted};
use cronkeeper_cluster::tree::Revision;
use tokio::time::timeout;

use super::members::nodes;
use crate::support::etcd::{Etcd, settings};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// Six of them are the history that is kept.
const EVERY: Duration = Duration::from_millis(200);

fn client(place: &str) -> Client {
    Client::with_upkeep(settings(place), LONG, Rewinds::Refused, EVERY)
}

async fn commit(client: &Client) -> Revision {
    let op = Op { path: "/a".to_owned(), when: If::Anything, then: Then::Put(Vec::new()) };
    client.commit(vec![op]).await.expect("it takes effect").revision
}

async fn nonces(client: &Client, revisions: &[Revision]) -> Vec<Option<u64>> {
    let wanted = revisions.iter().copied().map(Wanted::Nonce).collect();
    let (_, found) = client.read(wanted).await.expect("it can be read");
    let nonce = |found| match found {
        Found::Nonce(nonce) => nonce,
        other => panic!("a nonce: {other:?}"),
    };
    found.into_iter().map(nonce).collect()
}

#[tokio::test]
async fn history_is_compacted_only_where_all_keys_are_the_clusters_own_and_the_newest_is_kept() {
    let etcd = Etcd::start(1);
    let place = etcd.place();
    let client = client(&place);
    assert!(etcd.etcdctl(&["put", "/others", "x"]).is_some());
    let first = commit(&client).await;
    let mut newest = first;
    // Begins the upkeep.
    drop(client.changed(first));
    let begun = Instant::now();
    while begun.elapsed() < EVERY * 12 {
        newest = commit(&client).await;
    }
    assert!(nonces(&client, &[first, newest]).await.iter().all(Option::is_some), "others may need it");
    assert!(etcd.etcdctl(&["del", "/others"]).is_some());
    let begun = Instant::now();
    while nonces(&client, &[first]).await[0].is_some() {
        newest = commit(&client).await;
        assert!(begun.elapsed() < LONG, "nothing is compacted");
    }
    // One that is gone does not hide those that are there.
    let before = newest;
    newest = commit(&client).await;
    let kept = nonces(&client, &[first, before, newest]).await;
    assert!(kept[0].is_none() && kept[1].is_some() && kept[2].is_some(), "{kept:?}");
    // Whoever waits for changes since then still hears of the next.
    let waiting = client.changed(newest);
    let other = Client::new(settings(&place), LONG, Rewinds::Refused);
    commit(&other).await;
    timeout(LONG, waiting).await.expect("it hears of it");
}

#[test]
fn nodes_go_on_when_history_is_compacted_also_one_that_stood_still_meanwhile() {
    let (etcd, witness) = (Etcd::start(1), Witness::new());
    let place = etcd.place();
    let [a, b] = nodes(&place, &witness);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be had");
    let client = client(&place);
    let oldest = runtime.block_on(async {
        let (head, _) = client.read(Vec::new()).await.expect("it can be read");
        drop(client.changed(head.revision));
        head.revision
    });
    // Its newest read is of before, and so is its watch.
    b.stop();
    let is_compacted = || runtime.block_on(nonces(&client, &[oldest]))[0].is_none();
    until("the history is compacted", is_compacted);
    witness.await_more(2);
    b.cont();
    a.kill9();
    b.await_event("leader.elected", LONG);
    witness.await_more(2);
    witness.assert_fine(&[]);
    for node in [&a, &b] {
        assert_eq!(node.events().count("coordination.rewound"), 0);
    }
}
