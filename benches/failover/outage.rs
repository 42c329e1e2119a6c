//! Servers that die under the nodes.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;
use zookeeper_client::Client;

use crate::replicas::{Replicas, instant, since};
use crate::support::until;
use crate::support::zookeeper::Ensemble;
use crate::{SESSIONS, TICK};

/// From the first possible commit, after all servers were dead for `time`, to the one new leader. Zero if it led before
/// this process had its own first commit answered.
pub fn all_dead(ensemble: &Ensemble, replicas: &mut Replicas, time: Duration) -> Duration {
    (0..ensemble.len()).for_each(|i| ensemble.kill(i));
    std::thread::sleep(time);
    let back = Timestamp::now();
    (0..ensemble.len()).for_each(|i| ensemble.restart(i));
    let possible = first_commit(ensemble);
    let elected = back + replicas.await_leader(back);
    ensemble.await_serving();
    let leader = replicas.leader();
    for i in (0..replicas.nodes().count()).filter(|&i| i != leader) {
        replicas.await_following(i, back);
    }
    assert_eq!(replicas.elections(back), 1, "there is one leader");
    since(elected, possible)
}

/// The time at which a server first answered a write; opening a session is one.
fn first_commit(ensemble: &Ensemble) -> Timestamp {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let [one, two, three] = [0, 1, 2].map(|i| session(ensemble.address_of(i)));
    runtime.block_on(async {
        tokio::select! {
            at = one => at,
            at = two => at,
            at = three => at,
        }
    })
}

async fn session(server: SocketAddr) -> Timestamp {
    loop {
        let connector = Client::connector().with_session_timeout(SESSIONS[0]).with_fail_eagerly();
        if connector.connect(&server.to_string()).await.is_ok() {
            return Timestamp::now();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How many terms ended while one server was dead for longer than a session lasts: in every second round the ensemble's
/// leader.
pub fn one_dead(ensemble: &Ensemble, replicas: &Replicas, round: usize) -> usize {
    let leader = ensemble.leader();
    let victim = if round.is_multiple_of(2) { leader } else { (leader + 1) % ensemble.len() };
    let before = Timestamp::now();
    ensemble.kill(victim);
    ensemble.leader_other_than(victim);
    std::thread::sleep(SESSIONS[0] + TICK * 2);
    ensemble.restart(victim);
    ensemble.await_serving();
    until("the queue is whole", || ensemble.figures(victim).get("zk_ephemerals_count").is_some_and(|n| n == "6"));
    let ended = |name: &str| {
        let all = replicas.nodes().flat_map(|node| node.events().named(name));
        all.filter(|event| instant(event) > before).count()
    };
    ended("leader.lost") + ended("leader.resigned")
}
