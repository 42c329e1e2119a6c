//! Paths in ZooKeeper that are open to others: a node logs them once at its start, in one line.

use zookeeper_client::Permission;

use super::cluster::{Lines, Place, in_line, job, jobs, shared, usual};
use super::records::stranger;
use super::start::with_credential;
use crate::support::node::{Node, Spec};
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// What a node has logged about it so far.
pub fn said(node: &Node) -> Vec<String> {
    let events = node.events().all();
    let warnings = events.iter().filter(|event| event.text("message").contains("stands open"));
    warnings
        .inspect(|event| assert_eq!(event.text("level"), "WARN"))
        .map(|event| event.text("message").to_owned())
        .collect()
}

/// Waits until a node has logged it, exactly once.
pub fn the_line_of(node: &Node) -> String {
    until("it says what stands open", || !said(node).is_empty());
    let [line] = <[String; 1]>::try_from(said(node)).expect("it says so once");
    line
}

#[test]
fn a_node_without_an_identity_says_so_once_however_often_it_connects() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let spec = Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), "a").zookeeper(&lines.connect());
    let [node] = in_line([usual(spec)]);
    assert!(the_line_of(&node).contains("everybody"));
    lines.part();
    node.await_event("coordination.expired", LONG);
    let seen = node.events().len();
    lines.pass();
    node.await_after(seen, "takeover.done", LONG, |_| true);
    the_line_of(&node);
}

#[test]
fn a_node_on_no_zookeeper_says_nothing_of_it() {
    let node = Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), "a").start();
    node.await_event("takeover.done", LONG);
    assert_eq!(said(&node), [""; 0]);
}

#[test]
fn what_somebody_made_beforehand_and_keeps_open_is_named_at_every_start() {
    let ensemble = Ensemble::start(1);
    let (place, witness, stranger) = (Place::on(&ensemble), Witness::new(), stranger(&ensemble));
    let queue = place.path("/leader");
    stranger.create(&queue);
    // All rights except the one to change the access list.
    stranger.seize(&queue, Permission::READ | Permission::WRITE | Permission::CREATE | Permission::DELETE);
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let specs = ["a", "b"].map(|name| with_credential(usual(place.node(name)).jobs(&file), "digest:cron:secret"));
    let [leader, follower] = in_line(specs.each_ref().map(|(_, spec)| spec.clone()));
    let is_named = |node: &Node| {
        let line = the_line_of(node);
        assert!(line.contains("/leader") && line.contains("world:anyone (cdrw)"), "{line}");
        assert!(line.contains("digest:other (cdrwa)") && !line.contains("other:"), "{line}");
        assert!(!line.contains("/cronkeeper"), "{line}");
    };
    is_named(&leader);
    is_named(&follower);
    leader.await_where("coordination.damaged", LONG, |damaged| damaged.text("path") == "/leader");
    is_named(&follower.again());
    until("jobs are run", || !witness.entries().is_empty());
    witness.assert_fine(&[]);
}
