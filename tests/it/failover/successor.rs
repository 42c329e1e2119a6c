//! Nodes that lead by priority or by handover, not by their position in the queue.

use std::time::Duration;

use super::cluster::{Place, in_line, token, usual};
use crate::support::LONG;
use crate::support::command::command;
use crate::support::node::{Event, Node};

/// The node with the highest priority waits until it was fit for 30 s, as read every 15 s; the rest is for a loaded
/// machine.
const SETTLED: Duration = Duration::from_secs(150);

#[test]
fn leadership_is_handed_to_the_highest_priority_and_stays_there() {
    let place = Place::shared();
    let weights = [("a", "0"), ("b", "1"), ("c", "2")];
    let [a, b, c] = in_line(weights.map(|(name, weight)| usual(place.node(name)).option("--priority", weight)));
    c.await_event("takeover.done", SETTLED);
    assert!(token(&c) > token(&a));
    a.await_event("leader.resigned", LONG);
    let follows_c = |said: &Event| said.text("leader_node") == c.name();
    a.await_where("election.following", LONG, follows_c);
    b.await_where("election.following", LONG, follows_c);
    assert_eq!(b.events().named("leader.elected").len(), 0, "those between never lead");
}

/// Runs `cronkeeper handover` on a node. Returns its exit code and output.
fn hand_over(node: &Node, to: &str) -> (Option<i32>, String) {
    let mut command = command(&["handover", "--to", to, "--runtime-dir"]);
    command.arg(node.spec().runtime_dir());
    let output = command.output().expect("the program runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn the_operator_says_who_leads_next() {
    let place = Place::shared();
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name))));
    for node in [&a, &b] {
        let (code, said) = hand_over(node, "nobody");
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("the cluster knows no node `nobody`"), "{said}");
    }
    assert_eq!(a.events().named("leader.resigned").len(), 0);

    let (code, said) = hand_over(&a, c.name());
    assert_eq!((code, said), (Some(0), format!("{} gave leadership to {}\n", a.name(), c.name())));
    c.await_event("takeover.done", LONG);
    assert!(token(&c) > token(&a));
    assert_eq!(b.events().named("leader.elected").len(), 0, "those between never lead");
    for node in [&b, &c] {
        assert_eq!(hand_over(node, c.name()), (Some(0), format!("{} already leads\n", c.name())));
    }
    assert_eq!(c.events().named("leader.handover_failed").len(), 0);
    // It depends on which of the two has rejoined first.
    let follows = |said: &Event| [c.name(), a.name()].contains(&said.text("predecessor_node"));
    b.await_where("election.following", LONG, |said| follows(said) && said.text("leader_node") == c.name());
}
