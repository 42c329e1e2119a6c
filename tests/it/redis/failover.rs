//! Masters that fail, and what takes over from them.

use jiff::{Timestamp, ToSpan as _};
use rustix::process::Signal;

use crate::support::command::CRONKEEPER;
use crate::support::node::{Node, Spec};
use crate::support::redis::{Sentinels, Server};
use crate::support::witness::{Entry, Mark, Witness};
use crate::support::{LONG, until};

/// A master and two replicas, which Sentinels watch.
struct Watched {
    master: Server,
    replicas: [Server; 2],
    sentinels: Sentinels,
}

impl Watched {
    fn start() -> Self {
        let master = Server::start(&[]);
        let replicas = [master.replica(), master.replica()];
        let sentinels = Sentinels::watch(&master);
        Self { master, replicas, sentinels }
    }

    /// The replica that is the master now.
    fn promoted(&self) -> &Server {
        let first = self.master.port();
        until("a replica is promoted", || self.sentinels.master() != first);
        let port = self.sentinels.master();
        self.replicas.iter().find(|replica| replica.port() == port).expect("it is one of the replicas")
    }
}

fn nodes(place: &str, witness: &Witness) -> [Node; 2] {
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let start = |name| {
        let spec = Spec::new(CRONKEEPER, name).option("--redis", place).jobs(&jobs);
        spec.env("CRONKEEPER_ACCEPT_REWIND", "true").option("--session-timeout", "4s").start()
    };
    let a = start("a");
    a.await_event("leader.elected", LONG);
    let b = start("b");
    b.await_event("election.following", LONG);
    [a, b]
}

fn is_counted(nodes: &[Node], event: &str) -> bool {
    nodes.iter().any(|node| node.events().count(event) > 0)
}

#[test]
fn a_replica_that_each_commit_waited_for_has_lost_nothing_when_it_is_promoted() {
    let (mut watched, witness) = (Watched::start(), Witness::new());
    let nodes = nodes(&watched.sentinels.place(2), &witness);
    let examined = nodes[0].await_event("coordination.examined", LONG);
    assert_eq!(examined.json()["may_rewind"], false, "{:?}", examined.json());
    witness.await_more(3);
    watched.master.kill();
    // The new master needs both replicas again.
    watched.promoted();
    watched.master.start_again();
    witness.await_more(3);
    witness.assert_fine(&[]);
    assert!(!is_counted(&nodes, "coordination.rewound"));
}

#[test]
fn a_master_that_was_replaced_while_it_was_stopped_acknowledges_nothing() {
    let (watched, witness) = (Watched::start(), Witness::new());
    let nodes = nodes(&watched.sentinels.place(1), &witness);
    witness.await_more(3);
    watched.master.signal(Signal::STOP);
    watched.promoted();
    witness.await_more(3);
    watched.master.signal(Signal::CONT);
    until("the old master has become a replica", || watched.master.info("role") == "slave");
    witness.await_more(3);
    witness.assert_fine(&[]);
    drop(nodes);
}

#[test]
fn without_enough_replicas_nobody_starts_anything_and_afterwards_the_jobs_go_on() {
    let (master, witness) = (Server::start(&[]), Witness::new());
    let mut replica = master.replica();
    let nodes = nodes(&format!("redis://127.0.0.1:{}?wait=1", master.port()), &witness);
    witness.await_more(2);
    replica.kill();
    until("the leader has stepped down", || is_counted(&nodes, "leader.lost"));
    let seen = witness.entries().len();
    replica.start_again();
    until("jobs run again", || witness.entries().len() > seen + 2);
    witness.assert_fine(&[]);
}

/// The master shows what no replica has, and a client that asks again hears that it is there.
#[test]
fn what_no_replica_has_starts_nothing() {
    let (master, witness) = (Server::start(&[]), Witness::new());
    let mut replica = master.replica();
    let nodes = nodes(&format!("redis://127.0.0.1:{}?wait=1", master.port()), &witness);
    witness.await_more(2);
    // Just before an occurrence, so that the lease still lasts when the next one has been asked for twice.
    until("an occurrence is near", || (850..950).contains(&Timestamp::now().subsec_millisecond()));
    replica.kill();
    let killed = Timestamp::now();
    until("the leader has stepped down", || is_counted(&nodes, "leader.lost"));
    let due = |entry: &Entry| entry.scheduled_at.parse::<Timestamp>().expect("a job is given a time");
    // What was recorded ahead of its time begins at its time, and so before a commit without replicas has been given up.
    let given_up = (killed + 1_300.milliseconds()).as_nanosecond();
    let is_late = |entry: &Entry| entry.mark == Mark::Start && due(entry) > killed && entry.at_ns > given_up;
    let late: Vec<Entry> = witness.entries().into_iter().filter(is_late).collect();
    assert!(late.is_empty(), "the replica was killed at {killed}: {late:?}");
}

#[test]
fn a_killed_server_that_starts_again_has_all_that_it_acknowledged() {
    let (mut server, witness) = (Server::start(&[]), Witness::new());
    let nodes = nodes(&server.place(), &witness);
    for _ in 0..3 {
        witness.await_more(2);
        server.kill();
        server.start_again();
    }
    witness.await_more(2);
    witness.assert_fine(&[]);
    assert!(!is_counted(&nodes, "coordination.rewound"));
}

#[test]
fn a_setting_that_forgets_commits_is_noticed_by_a_node_that_runs() {
    let (server, witness) = (Server::start(&[]), Witness::new());
    let nodes = nodes(&server.place(), &witness);
    let examined = nodes[0].await_event("coordination.examined", LONG);
    assert_eq!(examined.json()["may_rewind"], false, "{:?}", examined.json());
    server.cli(&["config", "set", "appendfsync", "everysec"]);
    // It looks after each reconnect, and once a minute.
    server.cli(&["client", "kill", "type", "normal"]);
    let worse = nodes[0].await_where("coordination.examined", LONG, |event| event.json()["may_rewind"] == true);
    let durability = worse.json()["durability"].as_str().unwrap_or_default();
    assert!(durability.contains("set `appendfsync always`"), "{durability}");
    witness.await_more(2);
    witness.assert_fine(&[]);
}

#[test]
fn a_restored_backup_is_noticed_and_nothing_runs_twice() {
    let (mut server, witness) = (Server::start(&[]), Witness::new());
    let nodes = nodes(&server.place(), &witness);
    witness.await_more(2);
    let backup = server.back_up();
    witness.await_more(3);
    server.restore(&backup);
    until("the loss is noticed", || is_counted(&nodes, "coordination.rewound"));
    witness.await_more(2);
    witness.assert_fine(&[]);
}

/// Nobody knows any more what has run, so nothing runs: an empty server is another cluster.
#[test]
fn on_a_server_that_is_flushed_nothing_runs_until_its_records_are_restored() {
    let (mut server, witness) = (Server::start(&[]), Witness::new());
    let nodes = nodes(&server.place(), &witness);
    witness.await_more(2);
    let backup = server.back_up();
    witness.await_more(2);
    server.cli(&["flushall"]);
    for node in &nodes {
        node.await_event("coordination.rewound", LONG);
        node.await_where("coordination.unreachable", LONG, |event| {
            event.json().to_string().contains("holds the id of cluster")
        });
        assert_eq!(node.status(), None, "it goes on trying");
    }
    let begun = || witness.entries().iter().filter(|entry| entry.mark == Mark::Start).count();
    let seen = begun();
    // Each has looked a few times, at which jobs were due.
    let looks = |node: &Node| node.events().count("coordination.unreachable");
    let before = looks(&nodes[0]);
    until("a node has looked again", || looks(&nodes[0]) > before + 1);
    assert_eq!(begun(), seen);
    server.restore(&backup);
    witness.await_more(2);
    witness.assert_fine(&[]);
}
