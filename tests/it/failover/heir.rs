//! Who leads because it was wanted, not because it was next.

use std::time::Duration;

use super::cluster::{Place, in_line, token, usual};
use crate::support::LONG;

/// The heaviest waits until it was fit for 30 s, as read every 15 s; the rest is for a loaded machine.
const SETTLED: Duration = Duration::from_secs(150);

#[test]
fn leadership_is_handed_to_the_heaviest_and_stays_there() {
    let place = Place::shared();
    let weights = [("a", "0"), ("b", "1"), ("c", "2")];
    let [a, b, c] = in_line(weights.map(|(name, weight)| usual(place.node(name)).option("--prefer", weight)));
    c.await_event("takeover.done", SETTLED);
    assert!(token(&c) > token(&a));
    a.await_event("leader.resigned", LONG);
    let follows_c = |said: &crate::support::node::Event| said.text("leader_node") == c.name();
    a.await_where("election.following", LONG, follows_c);
    b.await_where("election.following", LONG, follows_c);
    assert_eq!(b.events().named("leader.elected").len(), 0, "those between never lead");
}
