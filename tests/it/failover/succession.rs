//! Order of succession: who leads after whom, who watches whom, and what followers log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;

use super::cluster::{Lines, Place, TIMEOUT, again, in_line, node, shared, token, usual};
use crate::support::node::{Event, Node};
use crate::support::{LONG, until};

/// The position in the queue that a node logged last.
fn following(node: &Node) -> (String, String) {
    let said = node.events().named("election.following");
    let last = said.last().expect("it follows");
    (last.text("predecessor_node").to_owned(), last.text("leader_node").to_owned())
}

#[test]
fn each_follower_watches_its_predecessor_alone_and_says_who_leads() {
    let place = Place::shared();
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| usual(place.node(name))));
    assert_eq!(following(&b), (a.name().to_owned(), a.name().to_owned()));
    assert_eq!(following(&c), (b.name().to_owned(), a.name().to_owned()));

    let queue = place.queue();
    let watchers =
        |watches: &BTreeMap<String, BTreeSet<String>>, path: &str| watches.get(path).map_or(0, BTreeSet::len);
    let watches = place.watches(shared());
    let entry = |at: usize| format!("/leader/{}", queue[at]);
    assert_eq!(watchers(&watches, &entry(0)), 2, "the leader's own and its follower's: {watches:?}");
    assert_eq!(watchers(&watches, &entry(1)), 1, "{watches:?}");
    assert_eq!(watchers(&watches, &entry(2)), 0, "{watches:?}");
    assert_eq!(watchers(&watches, "/leader"), 0, "{watches:?}");
    for node in [&a, &b, &c] {
        assert_eq!(watchers(&watches, &format!("/cronkeeper/wanted/{}", node.name())), 1, "{watches:?}");
    }
    for node in [&a, &b, &c] {
        assert_eq!(watchers(&watches, &format!("/cronkeeper/offers/{}", node.name())), 1, "{watches:?}");
    }
    assert_eq!(watches.len(), 12, "and the leader's, on its member and on what others write for it: {watches:?}");

    let seen = c.events().len();
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    assert!(token(&b) > token(&a));
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    // The queue is read every 15 s; the rest is for a loaded machine.
    c.await_after(seen, "election.following", Duration::from_secs(30), |said| said.text("leader_node") == b.name());

    let a = again(a);
    a.await_event("election.following", LONG);
    assert_eq!(following(&a), (c.name().to_owned(), b.name().to_owned()));
    b.kill9();
    c.await_event("takeover.done", LONG);
    assert!(token(&c) > token(&b));
    until("two are in the queue", || place.queue().len() == 2);
}

/// What a dead node leaves in the queue is there until its session ends, also if it is the first entry by then.
#[test]
fn a_node_that_dies_before_its_turn_is_never_said_to_lead() {
    let place = Place::shared();
    // Time for the last one to look at the queue while the dead one is first.
    let [a, b, c] = in_line(["a", "b", "c"].map(|name| place.node(name).option("--session-timeout", "12s")));
    b.kill9();
    a.signal(Signal::TERM);
    let about_to_lead = |said: &Event| said.text("predecessor_node") == b.name() && said.text("leader_node").is_empty();
    c.await_where("election.following", LONG, about_to_lead);
    let elected = c.await_event("leader.elected", LONG);
    assert_eq!(elected.text("after"), "", "it has not led: {elected:?}");
    c.await_event("takeover.done", LONG);
    let following = c.events().named("election.following");
    assert!(following.iter().all(|said| said.text("leader_node") != b.name()), "{following:?}");
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
}

/// The session is so long that nobody would lead in time if it had to expire.
#[test]
fn a_restarted_leader_removes_what_it_left_and_the_next_leads_at_once() {
    const IN_TIME: Duration = Duration::from_secs(8);
    let place = Place::shared();
    let specs = ["a", "b", "c"].map(|name| place.node(name).option("--session-timeout", "10s"));
    let [a, b, c] = in_line(specs);

    let mut tokens = vec![token(&a)];
    let mut line = std::collections::VecDeque::from([a, b, c]);
    for _ in 0..3 {
        let leader = line.pop_front().expect("there are three");
        let old = place.queue().remove(0);
        leader.kill9();
        let restarted = again(leader);
        line[0].await_event("takeover.done", IN_TIME);
        restarted.await_event("election.following", LONG);
        assert!(!place.queue().contains(&old), "{:?}", place.queue());
        tokens.push(token(&line[0]));
        line.push_back(restarted);
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[test]
fn a_killed_leaders_place_is_free_once_its_session_has_expired() {
    let place = Place::shared();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    a.kill9();
    let elected = b.await_event("takeover.done", TIMEOUT + LONG);
    assert_eq!(elected.number("token"), Some(token(&b)));
    assert!(token(&b) > token(&a));
}

/// The watch event is lost on the way, and the connection stays: the follower reads the queue every 15 s anyway.
#[test]
fn a_follower_that_is_not_notified_of_its_predecessors_end_finds_out_by_itself() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let specs = [place.node("a"), node("b", &lines.connect())].map(|spec| spec.option("--session-timeout", "10s"));
    let [a, b] = in_line(specs);
    lines.swallow_events();
    a.signal(Signal::TERM);
    a.wait_exit(LONG);
    b.await_event("takeover.done", LONG);
}
