//! Benchmark of failovers: `cargo bench --bench failover -- [--service NAME] [TRIALS] [WORD]`.
//!
//! It measures how long leadership takes to pass on, and checks that two nodes never lead. It uses real daemons and
//! three real ZooKeeper servers with a tick of 500 ms; the benchmark plays the supervisor. Every figure is the time of
//! an event in a daemon's log minus a time taken here; both are the machine's real-time clock. Cases that take as long
//! as a session are tried on several clusters at once, which mostly wait; all others are tried one after the other.
//! Slowness is only printed. The run fails if there are two leaders, if a stale leader does anything, if a job saw a
//! broken promise, or if a longer queue wakes more nodes. With a word, it measures only the rows whose name contains it.
//! On another service than ZooKeeper it measures what is done to a leader without cutting its links, and then what users
//! of the service have for the same.
//!
//! ```text
//! cases      what is done to a leader      outage  what is done to the servers
//! clusters   a case, tried many times      herd    how many wake
//! replicas   three nodes of a cluster      table   the figures
//! beliefs    who thought it led, and when  others  etcdctl elect, a loop over rows that are locked
//! ```

#[path = "failover/beliefs.rs"]
mod beliefs;
#[path = "failover/cases.rs"]
mod cases;
#[path = "failover/clusters.rs"]
mod clusters;
#[path = "shared/contender.rs"]
mod contender;
#[path = "failover/herd.rs"]
mod herd;
#[path = "failover/others.rs"]
mod others;
#[path = "failover/outage.rs"]
mod outage;
#[path = "failover/replicas.rs"]
mod replicas;
#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::process::ExitCode;
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode};

use self::clusters::Place;
use self::replicas::Replicas;
use self::service::Service;
use self::short::pick;
use self::support::zookeeper::Ensemble;
use self::table::{Bound, Table, ms};

/// Of the servers.
const TICK: Duration = Duration::from_millis(500);
/// Session timeouts: the recommended one for hosts near each other, and the default.
const SESSIONS: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(10)];
/// How long all servers are dead: longer than the shorter session timeout.
const OUTAGE: Duration = Duration::from_secs(7);
/// Trials of cases that take down all servers, so that nothing else can be tried meanwhile.
const FEW: usize = 5;
/// Lengths of the queues whose leaders die.
const QUEUES: [usize; 2] = [10, 100];

fn main() -> ExitCode {
    let words = service::words();
    let trials = words.iter().find_map(|word| word.parse().ok()).unwrap_or(pick(20, 1)).max(1);
    let mut table = Table::new(words.into_iter().find(|word| word.parse::<usize>().is_err()));
    for case in cases::on_one_host() {
        clusters::measure(&case, trials, Place::OneHost, &mut table);
    }
    if service::is_another() {
        let servers = Service::start();
        let all = sessions().iter().flat_map(|&session| cases::on_service(session));
        for case in all.filter(|case| !case.has_lines) {
            clusters::measure(&case, trials, Place::Service(&servers), &mut table);
        }
        others::measure(&servers, trials, &mut table);
        return table.verdict();
    }
    let ensemble = Ensemble::builder(3).tick(TICK).start();
    warm_up(&ensemble);
    for case in sessions().iter().flat_map(|&session| cases::on_service(session)) {
        clusters::measure(&case, trials, Place::ZooKeeper(&ensemble), &mut table);
    }
    servers_die(&ensemble, trials.min(FEW), &mut table);
    table.verdict()
}

/// Session timeouts of the nodes.
fn sessions() -> &'static [Duration] {
    let all: &[Duration] = &SESSIONS;
    pick(all, &all[..1])
}

fn servers_die(ensemble: &Ensemble, trials: usize, table: &mut Table) {
    let session = SESSIONS[0];
    if table.wants("all servers dead for 7 s") {
        let mut replicas = Replicas::on_zookeeper(ensemble, session);
        let took = (0..trials).map(|_| outage::all_dead(ensemble, &mut replicas, OUTAGE)).collect();
        table.times("all servers dead for 7 s", took, &[Bound::Each(ms(1000))], &replicas.faults());
    }
    if table.wants("step-downs: a server killed") {
        let replicas = Replicas::on_zookeeper(ensemble, session);
        let downs = (0..trials).map(|trial| outage::one_dead(ensemble, &replicas, trial)).collect();
        table.counts("step-downs: a server killed", downs, 0, &replicas.faults());
    }
    herd_wakes(ensemble, trials.min(3), table);
}

/// How many nodes wake when the leader of a queue dies: as many in a long one as in a short one.
fn herd_wakes(ensemble: &Ensemble, trials: usize, table: &mut Table) {
    let lengths = pick(QUEUES, [3, 12]);
    let names = lengths.map(|nodes| format!("woken of {nodes} when the leader goes"));
    if !names.iter().any(|name| table.wants(name)) {
        return;
    }
    let woken = lengths.map(|nodes| (0..trials).map(|_| herd::woken(ensemble, nodes)).collect::<Vec<_>>());
    let [most_of_few, most_of_many] = [0, 1].map(|i| woken[i].iter().max().copied().unwrap_or_default());
    let is_herd = most_of_many > most_of_few;
    let herd =
        is_herd.then(|| format!("a queue of {} wakes {most_of_few}, one of {} {most_of_many}", lengths[0], lengths[1]));
    let faults: Vec<String> = herd.into_iter().collect();
    for (i, (name, woken)) in names.iter().zip(woken).enumerate() {
        table.counts(name, woken, 1, if i == 0 { &[] } else { &faults });
    }
}

/// A freshly started Java is slow, so the servers first do for a while what an election asks of them.
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
