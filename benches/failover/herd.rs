//! Measures how many nodes of a long queue wake up when the first one disappears, and checks who watches what.
//!
//! The nodes' backends run in this process, a hundred of them; the servers count the notifications that they send, and
//! say which session watches which path.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use zookeeper_client::Client;

use crate::contender::{Contender, leave};
use crate::support::LONG;
use crate::support::zookeeper::Ensemble;

/// The queue of the candidates.
const QUEUE: &str = "/leader";

/// A place in the queue, and the paths that its session watches.
struct Place {
    candidate: String,
    watches: BTreeSet<String>,
}

/// How many notifications all servers together send when the leader of a queue this long dies.
///
/// The run fails unless, before and afterwards, each follower watches its predecessor only, nobody watches the queue
/// itself, no two followers watch the same path, and the death changes what the new leader watches and nobody else.
pub fn woken(ensemble: &Ensemble, nodes: usize) -> usize {
    // Its own threads, because the requests to the servers block this one.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be had").block_on(async {
        let client = Client::connect(&ensemble.connect_string()).await.expect("the servers serve");
        let mut queue = Vec::new();
        for n in 0..nodes {
            let mut contender = Contender::start(&ensemble.connect_string(), n);
            contender.await_place().await;
            queue.push(contender);
        }
        let places = settled(&client, ensemble, nodes).await;
        let before = notifications(ensemble);
        queue.remove(0).backend.abort();
        queue[0].await_leading().await;
        let left = settled(&client, ensemble, nodes - 1).await;
        let sent = notifications(ensemble) - before;
        for (was, is) in places.iter().skip(2).zip(left.iter().skip(1)) {
            assert_eq!((&was.candidate, &was.watches), (&is.candidate, &is.watches), "the leader's death concerns it");
        }
        leave(queue).await;
        sent
    })
}

/// The places of a queue of this length, once everybody watches what it should. Watches are set shortly after a node
/// has found its place.
async fn settled(client: &Client, ensemble: &Ensemble, nodes: usize) -> Vec<Place> {
    let end = Instant::now() + LONG;
    loop {
        let places = places(client, ensemble).await;
        let faults = faults(&places);
        if places.len() == nodes && faults.is_empty() {
            return places;
        }
        assert!(Instant::now() < end, "{} places instead of {nodes}: {faults:#?}", places.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The queue in its order.
async fn places(client: &Client, ensemble: &Ensemble) -> Vec<Place> {
    let mut watched = BTreeMap::<String, BTreeSet<String>>::new();
    for (path, sessions) in (0..ensemble.len()).flat_map(|i| ensemble.watches(i)) {
        for session in sessions {
            watched.entry(session).or_default().insert(path.clone());
        }
    }
    let mut names = client.list_children(QUEUE).await.expect("the servers serve");
    // All have prefixes of one length, so that the numbers behind them decide.
    names.sort_by_key(|name| name.rsplit('-').next().map(str::to_owned));
    let mut places = Vec::new();
    for name in names {
        let candidate = format!("{QUEUE}/{name}");
        let Some(stat) = client.check_stat(&candidate).await.expect("the servers serve") else { continue };
        let session = format!("0x{:x}", stat.ephemeral_owner);
        places.push(Place { candidate, watches: watched.remove(&session).unwrap_or_default() });
    }
    places
}

/// Which watches of the queue would wake others than the next in line.
fn faults(places: &[Place]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut watched_by = BTreeMap::<&str, &str>::new();
    for place in places.iter().filter(|place| place.watches.contains(QUEUE)) {
        faults.push(format!("{} watches the whole queue", place.candidate));
    }
    for (before, place) in places.iter().zip(places.iter().skip(1)) {
        let in_queue: Vec<&String> = place.watches.iter().filter(|path| path.starts_with(QUEUE)).collect();
        if in_queue != [&before.candidate] {
            faults.push(format!("{} is behind {} and watches {in_queue:?}", place.candidate, before.candidate));
        }
        for path in &place.watches {
            if let Some(other) = watched_by.insert(path, &place.candidate) {
                faults.push(format!("{path} is watched by both {other} and {}", place.candidate));
            }
        }
    }
    faults
}

/// Of all kinds, since the servers were started.
fn notifications(ensemble: &Ensemble) -> usize {
    const KINDS: [&str; 4] = ["created", "deleted", "changed", "children"];
    let of = |i: usize| {
        let figures = ensemble.figures(i);
        let sum = |kind: &str| figures.get(&format!("zk_sum_node_{kind}_watch_count"))?.parse::<f64>().ok();
        KINDS.iter().filter_map(|kind| sum(kind)).sum::<f64>() as usize
    };
    (0..ensemble.len()).map(of).sum()
}
