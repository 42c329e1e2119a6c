//! How long leadership takes to pass on: `cargo bench --bench failover -- [ROUNDS] [WORD]`.
//!
//! Real daemons, and three real ZooKeeper servers with a tick of 500 ms and sessions of 4 s. Every figure is the time of a
//! `leader.elected` in a daemon's log less a time taken here: both are the machine's real-time clock. With a word, only the
//! rows whose name has it are measured.

#[path = "failover/herd.rs"]
mod herd;
#[path = "failover/outage.rs"]
mod outage;
#[path = "failover/replicas.rs"]
mod replicas;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use zookeeper_client::{Acls, Client, CreateMode};

use self::replicas::Replicas;
use self::support::zookeeper::Ensemble;
use self::table::{Bound, Table};

/// Of the servers.
const TICK: Duration = Duration::from_millis(500);
/// Of the nodes.
const SESSION: Duration = Duration::from_secs(4);
/// How long all servers are dead: longer than a session lives.
const OUTAGE: Duration = Duration::from_secs(7);

const MS: fn(u64) -> Duration = Duration::from_millis;

fn main() {
    // Cargo adds words of its own, which begin with a dash.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let rounds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(10);
    let mut table = Table::new(words.into_iter().find(|word| word.parse::<usize>().is_err()));
    on_one_host(rounds, &mut table);
    on_zookeeper(rounds, &mut table);
}

fn on_one_host(rounds: usize, table: &mut Table) {
    if let Some(row) = table.row("solo: kill -9", &[Bound::Median(MS(100))]) {
        let mut replicas = Replicas::on_one_host();
        row.measure(rounds, || kill(&mut replicas));
    }
    if let Some(row) = table.row("solo: SIGTERM", &[Bound::Median(MS(100))]) {
        let mut replicas = Replicas::on_one_host();
        row.measure(rounds, || end(&mut replicas));
    }
}

fn on_zookeeper(rounds: usize, table: &mut Table) {
    let ensemble = Ensemble::builder(3).tick(TICK).start();
    warm_up(&ensemble);
    let connect = ensemble.connect_string();
    if let Some(row) = table.row("ZooKeeper: SIGTERM", &[Bound::Median(MS(10))]) {
        let mut replicas = Replicas::on_zookeeper(&connect);
        row.measure(rounds, || end(&mut replicas));
    }
    if let Some(row) = table.row("ZooKeeper: kill -9 and restart", &[Bound::Median(MS(500))]) {
        let mut replicas = Replicas::on_zookeeper(&connect);
        row.measure(rounds, || kill_and_restart(&mut replicas));
    }
    let each = SESSION + TICK * 3 / 2 + MS(100);
    if let Some(row) = table.row("ZooKeeper: kill -9 alone", &[Bound::Median(SESSION + TICK), Bound::Each(each)]) {
        let mut replicas = Replicas::on_zookeeper(&connect);
        row.measure(rounds, || kill(&mut replicas));
    }
    if let Some(row) = table.row("ZooKeeper: all servers dead for 7 s", &[Bound::Each(MS(1000))]) {
        let mut replicas = Replicas::on_zookeeper(&connect);
        row.measure(rounds, || outage::all_dead(&ensemble, &mut replicas, OUTAGE));
    }
    if let Some(row) = table.row("step-downs: a server killed", &[]) {
        let replicas = Replicas::on_zookeeper(&connect);
        row.count(rounds, 0, |round| outage::one_dead(&ensemble, &replicas, round));
    }
    if let Some(row) = table.row("woken of 100 when the leader goes", &[]) {
        row.count(rounds.min(3), 1, |_| herd::woken(&ensemble, 100));
    }
}

/// Java just started is slow; servers at work are not. So they do for a while what an election asks of them.
fn warm_up(ensemble: &Ensemble) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let work = async |server: String| {
        let client = Client::connect(&server).await?;
        let mode = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        for _ in 0..1_000 {
            let (_, sequence) = client.create("/warm-", b"", &mode).await?;
            let path = format!("/warm-{sequence}");
            let (_, _, _watch) = client.get_and_watch_data(&path).await?;
            client.list_children("/").await?;
            client.delete(&path, None).await?;
        }
        Ok::<_, zookeeper_client::Error>(())
    };
    let [one, two, three] = [0, 1, 2].map(|i| work(ensemble.connect_string_of(i)));
    runtime.block_on(async { tokio::try_join!(one, two, three) }).expect("the servers serve");
}

/// From the kill to the successor's election. The dead node is started again afterwards.
fn kill(replicas: &mut Replicas) -> Duration {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.node(old).kill9();
    let took = replicas.await_leader(at);
    replicas.restart(old);
    took
}

/// From SIGTERM to the successor's election.
fn end(replicas: &mut Replicas) -> Duration {
    let (old, at) = (replicas.leader(), Timestamp::now());
    replicas.node(old).signal(Signal::TERM);
    let took = replicas.await_leader(at);
    replicas.node(old).wait_exit(support::LONG);
    replicas.restart(old);
    took
}

/// From the start of the same node on its state directory to the next election, whoever's.
fn kill_and_restart(replicas: &mut Replicas) -> Duration {
    let old = replicas.leader();
    replicas.node(old).kill9();
    let at = Timestamp::now();
    replicas.start_again(old);
    let took = replicas.await_leader(at);
    replicas.settle(old);
    took
}
