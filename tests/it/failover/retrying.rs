//! Waiting retries while leadership moves from node to node.

use rustix::process::Signal;

use super::cluster::{Place, await_begun, give, in_line, jobs, once, run_id, soon, usual};
use crate::support::LONG;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;

/// A job that fails at its first attempt.
const FLAKY: [&str; 3] = ["sh", "-c", "[ $CRONKEEPER_ATTEMPT -gt 1 ]"];

#[test]
fn a_retry_that_waits_is_made_by_the_next_leader_at_its_time() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    give(&[&a, &b], &jobs(&[once("flaky", at, &witness.command(&FLAKY), "retries: {limit: 1, delay: 10s}")]));
    a.await_event("run.retrying", LONG);
    let run = run_id("flaky", at);
    a.kill9();
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "flaky", 2);
    let end = place.await_end(&run);
    assert_eq!((&end["outcome"], &end["run"]["attempt"]), (&"success".into(), &2.into()));
    let (waited, planned) = (&end["run"]["past"]["attempts"][0], &end["run"]["begun_at"]);
    let instant = |value: &serde_json::Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let delay = instant(planned).duration_since(instant(&waited["ended_at"]));
    assert!(delay >= jiff::SignedDuration::from_secs(9), "{delay}");
    assert!(place.running(&run).is_none());
    witness.assert_fine(&[]);
}

#[test]
fn a_run_that_fails_on_a_draining_node_is_tried_again_by_the_leader() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let gate = Scratch::new("gate");
    let open = gate.path().join("open");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", open.display());
    let slow = witness.command(&["sh", "-c", &format!("[ $CRONKEEPER_ATTEMPT -gt 1 ] || {{ {wait}; exit 4; }}")]);
    give(&[&a, &b], &jobs(&[once("flaky", at, &slow, "retries: {limit: 1, delay: 0s}")]));
    await_begun(&witness, "flaky", 1);
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    std::fs::write(&open, "").expect("a file can be written");
    assert_eq!(a.await_event("run.retrying", LONG).number("exit_code"), Some(4));
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    let end = place.await_end(&run_id("flaky", at));
    assert_eq!((&end["outcome"], &end["run"]["attempt"]), (&"success".into(), &2.into()));
    assert_eq!((&end["run"]["past"]["attempts"][0]["node"], &end["run"]["node"]), (&a.name().into(), &b.name().into()));
    witness.assert_fine(&[]);
}
