//! Members of etcd that fail while nodes use them.

use rustix::process::Signal;

use crate::support::command::CRONKEEPER;
use crate::support::etcd::Etcd;
use crate::support::node::{Node, Spec};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

fn nodes(etcd: &Etcd, witness: &Witness) -> [Node; 2] {
    let place = etcd.place();
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let start = |name| {
        let spec = Spec::new(CRONKEEPER, name).option("--etcd", &place).jobs(&jobs);
        spec.option("--session-timeout", "4s").start()
    };
    let a = start("a");
    a.await_event("leader.elected", LONG);
    let b = start("b");
    b.await_event("election.following", LONG);
    [a, b]
}

fn await_more(witness: &Witness, count: usize) {
    let seen = witness.entries().len();
    until("jobs run", || witness.entries().len() >= seen + count);
}

#[test]
fn the_jobs_go_on_when_any_one_member_is_killed_or_stopped() {
    let (mut etcd, witness) = (Etcd::start(3), Witness::new());
    let _nodes = nodes(&etcd, &witness);
    await_more(&witness, 2);
    for member in 0..3 {
        etcd.kill(member);
        await_more(&witness, 2);
        etcd.start_member(member);
        etcd.await_serving();
        etcd.signal(member, Signal::STOP);
        await_more(&witness, 2);
        etcd.signal(member, Signal::CONT);
        etcd.await_serving();
    }
    witness.assert_fine(&[]);
}

#[test]
fn without_a_majority_nobody_starts_anything_and_afterwards_the_jobs_go_on() {
    let (mut etcd, witness) = (Etcd::start(3), Witness::new());
    let nodes = nodes(&etcd, &witness);
    await_more(&witness, 2);
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
