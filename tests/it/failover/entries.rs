//! Entries deleted by hand while their node is alive.

use super::cluster::{Place, await_begun, in_line, job, jobs, living, token, usual};
use crate::support::node::Node;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

struct Scene {
    place: Place,
    witness: Witness,
    node: Node,
}

/// One node with a run in flight that must die with the term.
fn scene() -> Scene {
    let place = Place::shared();
    let witness = Witness::new();
    let file = jobs(&[job("slow", "* * * * * *", &witness.command(&["sleep", "600"]), "on_lease_end: kill")]);
    let [node] = in_line([usual(place.node("a")).jobs(&file)]);
    await_begun(&witness, "slow", 1);
    Scene { place, witness, node }
}

/// Waits until the term is lost, its runs are dead, and the node leads again with a new candidate.
fn leads_anew_after(scene: &Scene, delete: impl FnOnce(&Place)) {
    let Scene { place, witness, node } = scene;
    let (seen, old, doomed) = (node.events().len(), token(node), living(witness, "slow"));
    let candidate = place.queue().remove(0);
    delete(place);
    let lost = node.await_after(seen, "leader.lost", LONG, |_| true);
    // A write may fail before the watch fires.
    assert!(["entry-gone", "fenced"].contains(&lost.text("reason")), "{}", lost.json());
    node.await_after(seen, "election.joined", LONG, |joined| joined.text("candidate") != candidate);
    node.await_after(seen, "takeover.done", LONG, |_| true);
    until("the runs of that term die", || doomed.iter().all(|pid| !living(witness, "slow").contains(pid)));
    until("its jobs go on", || witness.entries().iter().any(|entry| entry.token == token(node)));
    assert!(token(node) > old);
    assert_eq!(place.queue().len(), 1);
    assert!(place.zk.children(&place.path("/cronkeeper/nodes")).contains(&node.name().to_owned()));
    witness.assert_fine(&[]);
}

#[test]
fn a_leader_whose_entries_are_deleted_by_hand_joins_anew() {
    let scene = scene();
    leads_anew_after(&scene, |place| {
        let candidate = place.queue().remove(0);
        place.zk.remove(&place.path(&format!("/leader/{candidate}")));
    });
    leads_anew_after(&scene, |place| {
        place.zk.remove(&place.path(&format!("/cronkeeper/nodes/{}", scene.node.name())));
    });
    leads_anew_after(&scene, |place| {
        // The node may recreate one before the other is deleted.
        until("the queue's parent is deleted", || {
            place.queue().iter().for_each(|name| place.zk.remove(&place.path(&format!("/leader/{name}"))));
            place.zk.delete(&place.path("/leader")).is_ok()
        });
    });
}

#[test]
fn a_follower_whose_candidate_is_deleted_by_hand_joins_anew() {
    let place = Place::shared();
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name))));
    let candidate = place.queue().remove(1);
    let seen = (b.events().len(), c.events().len());
    place.zk.remove(&place.path(&format!("/leader/{candidate}")));
    c.await_after(seen.1, "election.following", LONG, |said| said.text("predecessor_node") == a.name());
    // A follower does not watch its own candidate: it reads the queue every 15 s.
    b.await_after(seen.0, "election.following", LONG, |said| said.text("predecessor_node") == c.name());
    assert_eq!(place.queue().len(), 3);
}
