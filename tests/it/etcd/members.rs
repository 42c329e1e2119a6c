//! Members of etcd that fail while nodes use them.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
use rustix::process::Signal;

use crate::support::command::CRONKEEPER;
use crate::support::etcd::Etcd;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// Two nodes at this place, of which the first leads.
pub fn nodes(place: &str, witness: &Witness) -> [Node; 2] {
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let start = |name| {
        let spec = Spec::new(CRONKEEPER, name).option("--etcd", place).jobs(&jobs);
        spec.option("--session-timeout", "4s").start()
    };
    let a = start("a");
    a.await_event("leader.elected", LONG);
    let b = start("b");
    b.await_event("election.following", LONG);
    [a, b]
}

#[test]
fn the_jobs_go_on_when_any_one_member_is_killed_or_stopped() {
    let (mut etcd, witness) = (Etcd::start(3), Witness::new());
    let _nodes = nodes(&etcd.place(), &witness);
    witness.await_more(2);
    for member in 0..3 {
        etcd.kill(member);
        witness.await_more(2);
        etcd.start_member(member);
        etcd.await_serving();
        etcd.signal(member, Signal::STOP);
        witness.await_more(2);
        etcd.signal(member, Signal::CONT);
        etcd.await_serving();
    }
    witness.assert_fine(&[]);
}

#[test]
fn without_a_majority_nobody_starts_anything_and_afterwards_the_jobs_go_on() {
    let (mut etcd, witness) = (Etcd::start(3), Witness::new());
    let nodes = nodes(&etcd.place(), &witness);
    witness.await_more(2);
    etcd.kill(0);
    etcd.kill(1);
    until("the leader has stepped down", || nodes.iter().any(|node| node.events().count("leader.lost") > 0));
    let seen = witness.entries().len();
    etcd.start_member(0);
    etcd.start_member(1);
    etcd.await_serving();
    until("jobs run again", || witness.entries().len() > seen + 2);
    witness.assert_fine(&[]);
}

/// Revisions count the writes of others too: the restored etcd has come as far as the lost commits.
#[test]
fn a_backup_that_was_restored_while_nobody_ran_is_noticed_though_others_have_written_since() {
    let (mut etcd, witness, dir) = (Etcd::start(1), Witness::new(), Scratch::new("snapshot"));
    let snapshot = dir.path().join("snapshot");
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let spec = Spec::new(CRONKEEPER, "a").option("--etcd", &etcd.place()).jobs(&jobs);
    let node = spec.option("--session-timeout", "4s").start();
    witness.await_more(2);
    assert!(etcd.etcdctl(&["snapshot", "save", snapshot.to_str().expect("the path is text")]).is_some());
    let revision = || etcd_revision(&etcd);
    let at_snapshot = revision();
    witness.await_more(3);
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit(LONG).code(), Some(0));
    let newest = revision();
    etcd.restore(&snapshot);
    // One write for each that is lost, and one more.
    for _ in at_snapshot..=newest {
        assert!(etcd.etcdctl(&["put", "/others", "x"]).is_some());
    }
    let node = node.again();
    node.await_event("coordination.rewound", LONG);
    witness.await_more(2);
    witness.assert_fine(&[]);
}

fn etcd_revision(etcd: &Etcd) -> i64 {
    let text = etcd.etcdctl(&["get", "/any", "--write-out", "json"]).expect("etcd answers");
    let said: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    said["header"]["revision"].as_i64().expect("it has a revision")
}

#[test]
fn a_member_that_accepts_no_connection_keeps_nobody_away_from_the_others() {
    let etcd = Etcd::start(1);
    // Its queue is full, so the kernel lets whoever connects wait.
    let silent = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket can be had");
    bind(&silent, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port is free");
    listen(&silent, 0).expect("it can listen");
    let address = SocketAddr::try_from(getsockname(&silent).expect("it has a name")).expect("it is an address");
    let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200));
    let _queued: Vec<TcpStream> = std::iter::from_fn(|| connect().ok()).take(8).collect();
    assert!(connect().is_err(), "the queue is full");
    let connect = format!("http://{address},{}", etcd.place());
    // So short that the first member takes all of the time for a request.
    let spec = Spec::new(CRONKEEPER, "a").option("--etcd", &connect).jobs("jobs: {}\n");
    spec.option("--session-timeout", "4s").start().await_event("leader.elected", LONG);
}
