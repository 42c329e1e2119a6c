//! Other programs in the queue: a hundred candidates, kazoo, Curator, and a node with other jobs.

use rustix::process::Signal;

use super::cluster::{Place, in_line, job, jobs, shared, token, usual};
use crate::support::command::command;
use crate::support::node::Node;
use crate::support::peers::{Library, Peer};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

#[test]
fn the_end_of_a_leader_wakes_one_of_a_hundred() {
    let place = Place::shared();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let folder = place.path("/leader");
    let mut last = place.queue().remove(1);
    for _ in 0..100 {
        last = place.zk.queue_up(&folder, Some(&last));
    }
    let c = usual(place.node("c")).start();
    c.await_event("election.following", LONG);
    let queue = place.queue();
    assert_eq!(queue.len(), 103);
    let before = place.watches(shared());
    let seen = c.events().len();

    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    a.wait_exit(LONG);
    let after = place.watches(shared());
    for entry in &queue[2..102] {
        let path = format!("/leader/{entry}");
        assert_eq!((before[&path].len(), &before[&path]), (1, &after[&path]), "nobody was woken: {path}");
    }
    assert_eq!(before[&format!("/leader/{}", queue[0])].len(), 2, "the leader's own, and the next one's");
    assert!(!after.contains_key(&format!("/leader/{}", queue[0])));
    let said = c.events().wait(seen, std::time::Duration::ZERO, |event| event.name() == "election.following");
    assert!(said.is_none_or(|said| said.text("predecessor") == last), "only that another leads");
}

/// First the node ahead of the peer leads, then the peer holds the lock, then the node behind it leads.
fn between_two_nodes(library: Library) {
    let place = Place::shared();
    let witness = Witness::new();
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let [a] = in_line([usual(place.node("a")).jobs(&file)]);
    let Some(peer) = Peer::or_skip(library, &place.connect(), "/leader") else { return };
    peer.await_connected(LONG);
    until("the peer is in the queue", || place.queue().len() == 2);
    let b = usual(place.node("b")).jobs(&file).start();
    let behind = b.await_event("election.following", LONG);
    assert_eq!((behind.text("predecessor_node"), behind.text("leader_node")), ("", a.name()));

    a.signal(Signal::TERM);
    let held = peer.await_acquired(LONG);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    assert_eq!(place.queue()[0], held);
    assert!(b.events().named("leader.elected").is_empty(), "the peer has the lock");
    let seen = witness.entries().len();
    peer.release(LONG);
    b.await_event("takeover.done", LONG);
    assert_eq!(witness.entries()[..seen].iter().filter(|entry| entry.node == b.name()).count(), 0);
    assert!(token(&b) > token(&a));
}

#[test]
fn kazoos_lock_waits_for_a_leader_and_keeps_the_next_waiting() {
    between_two_nodes(Library::Kazoo);
}

#[test]
fn curators_mutex_waits_for_a_leader_and_keeps_the_next_waiting() {
    between_two_nodes(Library::Curator);
}

#[test]
fn nodes_with_different_jobs_say_so_and_status_shows_it() {
    let place = Place::shared();
    let file = |argument: &str| jobs(&[job("daily", "@daily", &format!("[echo, {argument}]"), "")]);
    let [a, b] =
        in_line([("a", "one"), ("b", "two")].map(|(name, argument)| usual(place.node(name)).jobs(&file(argument))));
    for (node, other) in [(&a, &b), (&b, &a)] {
        let drift = node.await_event("jobs.drift", LONG);
        assert_eq!(drift.text("other"), other.name());
        let digest = |node: &Node| node.events().named("jobs.loaded")[0].text("digest").to_owned();
        assert_eq!((drift.text("digest"), drift.text("other_digest")), (&*digest(node), &*digest(other)));
        until("status shows it", || status(node)["drift"] == serde_json::json!([b.name()]));
    }
    super::cluster::give(&[&b], &file("one"));
    for node in [&a, &b] {
        until("they agree", || status(node)["drift"] == serde_json::json!([]));
    }
}

fn status(node: &Node) -> serde_json::Value {
    let mut command = command(&["status", "--json", "--runtime-dir"]);
    command.arg(node.spec().runtime_dir());
    let answer = command.output().expect("the program is there");
    assert!(answer.status.success(), "{answer:?}");
    serde_json::from_slice(&answer.stdout).expect("it is JSON")
}
