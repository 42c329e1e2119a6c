//! Servers that die, pause and return. A quorum left: nobody steps down. None left: the daemons stay up.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::cluster::{Place, again, await_begun, give, in_line, job, jobs, once, run_id, soon, usual};
use crate::support::node::{Event, Node};
use crate::support::scratch::Scratch;
use crate::support::witness::{Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

fn await_next_run(witness: &Witness) {
    let seen = witness.entries().len();
    until("jobs are run", || witness.entries()[seen..].iter().filter(|entry| entry.mark == Mark::Start).count() > 1);
}

fn await_resumed(node: &Node) {
    until("the connection is back", || {
        node.events().named("coordination.resumed").len() >= node.events().named("coordination.suspended").len()
    });
}

/// What a node has logged in an outage is short and in its own words, and a reason is repeated only after the pause that
/// the line before named: in twice the time there is one line more.
fn assert_quiet_outage(node: &Node) {
    let events = node.events();
    assert_eq!(events.count("log"), 0, "no library speaks: {}", events.tail());
    // What is open is not about the outage.
    let of_outage =
        |event: &&Event| event.name().starts_with("coordination.") && event.name() != "coordination.exposed";
    for event in events.all().iter().filter(of_outage) {
        assert!(event.text("message").chars().count() <= 160, "{:?}", event.json());
    }
    let said = events.named("coordination.unreachable");
    let at = |event: &Event| event.text("timestamp").parse::<Timestamp>().expect("a time").as_millisecond();
    let since = |from: i64, event: &Event| (at(event) - from) / 1_000;
    let first = at(&said[0]);
    for (index, event) in said.iter().enumerate() {
        assert!(event.text("message").starts_with("ZooKeeper is unavailable: "), "{:?}", event.json());
        assert!(event.number("retry_ms").is_some_and(|retry_ms| retry_ms <= 1_000), "{:?}", event.json());
        let reasons: BTreeSet<&str> = said[..=index].iter().map(|event| event.text("error")).collect();
        let doublings = (since(first, event) / 5 + 1).ilog2() as usize;
        assert!(index < reasons.len() + doublings + 1, "{}", events.tail());
    }
    for two in said.windows(2).filter(|two| two[0].text("error") == two[1].text("error")) {
        let pause = two[0].number("repeat_ms").expect("the pause is named");
        assert!(at(&two[1]) - at(&two[0]) >= pause - 50, "{:?} {:?}", two[0].json(), two[1].json());
    }
}

#[test]
fn nobody_steps_down_when_a_server_dies_be_it_the_leader_of_the_ensemble() {
    let ensemble = Ensemble::start(3);
    let place = Place::on(&ensemble);
    let witness = Witness::new();
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "misfire: run-all\nmisfire_window: 5m")]);
    // Half of it is the lease: longer than three servers take to agree on a leader, even on a loaded machine.
    let specs = ["a", "b"].map(|name| place.node(name).option("--session-timeout", "10s").jobs(&file));
    let [a, b] = in_line(specs);
    for i in [ensemble.leader(), ensemble.followers()[0], ensemble.leader()] {
        ensemble.kill(i);
        ensemble.leader();
        await_next_run(&witness);
        ensemble.restart(i);
        ensemble.await_serving();
        await_next_run(&witness);
    }
    for node in [&a, &b] {
        await_resumed(node);
        for never in ["leader.lost", "coordination.expired"] {
            assert_eq!(node.events().named(never).len(), 0, "{}: {}", node.name(), node.events().tail());
        }
    }
    assert_eq!((a.events().named("leader.elected").len(), b.events().named("leader.elected").len()), (1, 0));
    witness.assert_fine(&[]);
}

#[test]
fn after_an_outage_longer_than_the_session_one_leads_and_the_runs_that_went_on_are_kept() {
    let ensemble = Ensemble::start(3);
    let mut place = Place::on(&ensemble);
    let witness = Witness::new();
    let gate = Scratch::new("gate");
    let wait = format!("until [ -e {}/open ]; do sleep 0.1; done", gate.path().display());
    let nodes = in_line(["a", "b", "c"].map(|name| usual(place.node(name))));
    let [a, b, c] = &nodes;
    let at = soon();
    give(&[a, b, c], &jobs(&[once("keep", at, &witness.command(&["sh", "-c", &wait]), "")]));
    await_begun(&witness, "keep", 1);

    (0..3).for_each(|i| ensemble.kill(i));
    for node in &nodes {
        node.await_event("coordination.suspended", LONG);
        node.await_event("coordination.expired", LONG);
        // The daemon logs it less and less often, but keeps trying.
        let said = |node: &Node| node.events().count("coordination.unreachable");
        until("the node says again that it retries", || said(node) >= 3);
        assert_quiet_outage(node);
    }
    assert_eq!(a.events().named("leader.lost").len(), 1);
    assert!(a.events().named("run.finished").is_empty(), "a run that nobody else can begin goes on");
    let seen = nodes.each_ref().map(|node| node.events().len());
    (0..3).for_each(|i| ensemble.restart(i));
    ensemble.await_serving();
    place.reconnect();

    let leads = |node: &Node, seen| {
        node.events().wait(seen, std::time::Duration::ZERO, |event| event.name() == "takeover.done")
    };
    let leaders = || nodes.iter().zip(seen).filter(|(node, seen)| leads(node, *seen).is_some()).count();
    until("one leads", || leaders() == 1);
    until("all are in the queue, and nothing of the old sessions", || {
        let owners: Vec<i64> =
            place.queue().iter().map(|name| place.zk.owner(&place.path(&format!("/leader/{name}")))).collect();
        owners.len() == 3
    });
    let followers = || {
        let follows = |seen, node: &Node| {
            node.events().wait(seen, std::time::Duration::ZERO, |event| event.name() == "election.following").is_some()
        };
        nodes.iter().zip(seen).filter(|(node, seen)| follows(*seen, node)).count()
    };
    until("two follow", || followers() >= 2);
    assert_eq!(leaders(), 1);
    std::fs::write(gate.path().join("open"), "").expect("a file can be written");
    let end = place.await_end(&run_id("keep", at));
    assert_eq!((&end["outcome"], &end["run"]["node"]), (&"success".into(), &a.name().into()));
    witness.assert_fine(&[]);
}

#[test]
fn an_end_that_could_not_be_written_is_written_later_also_by_the_next_process() {
    let ensemble = Ensemble::start(1);
    let mut place = Place::on(&ensemble);
    let witness = Witness::new();
    let gate = Scratch::new("gate");
    let wait = |open: &str| format!("until [ -e {}/{open} ]; do sleep 0.1; done", gate.path().display());
    let [node] = in_line([usual(place.node("a"))]);
    let at = soon();
    let command = |open: &str| witness.command(&["sh", "-c", &wait(open)]);
    give(&[&node], &jobs(&[once("first", at, &command("first"), ""), once("second", at, &command("second"), "")]));
    ["first", "second"].iter().for_each(|job| await_begun(&witness, job, 1));
    let finish = |node: &Node, job: &str| {
        std::fs::write(gate.path().join(job), "").expect("a file can be written");
        let finished = node.await_where("run.finished", LONG, |event| event.text("job") == job);
        assert_eq!(finished.text("outcome"), "success");
    };

    ensemble.pause(0);
    finish(&node, "first");
    ensemble.cont(0);
    place.reconnect();
    assert_eq!(place.await_end(&run_id("first", at))["outcome"], "success");

    node.await_event("takeover.done", LONG);
    ensemble.pause(0);
    finish(&node, "second");
    node.kill9();
    let node = again(node);
    ensemble.cont(0);
    node.await_event("takeover.done", LONG);
    place.reconnect();
    assert_eq!(place.await_end(&run_id("second", at))["outcome"], "success");
    witness.assert_fine(&[]);
}
