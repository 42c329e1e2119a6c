//! Chained jobs while leadership moves from node to node.

use rustix::process::Signal;

use super::cluster::{Place, await_begun, give, in_line, job, jobs, once, run_id, soon, usual};
use crate::support::LONG;
use crate::support::witness::{Mark, Witness};

fn after(name: &str, upstreams: &str, command: &str, more: &str) -> String {
    job(name, "x", command, more).replace("schedule: \"x\"", &format!("after: {{{upstreams}}}"))
}

#[test]
fn a_chain_goes_on_when_the_leader_is_killed_in_its_middle() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let quick = witness.command(&["true"]);
    // The first attempt dies with its node; the second is short.
    let middle = witness.command(&["sh", "-c", "[ $CRONKEEPER_ATTEMPT -gt 1 ] || sleep 600"]);
    let chain = [
        once("extract", at, &quick, ""),
        after("load", "extract: success", &middle, "interrupted: rerun"),
        after("index", "extract: success", &quick, ""),
        after("report", "load: success, index: always", &quick, ""),
    ];
    give(&[&a, &b], &jobs(&chain));
    await_begun(&witness, "load", 1);
    place.await_end(&run_id("index", at));
    a.kill9();
    b.await_event("takeover.done", LONG);
    let end = place.await_end(&run_id("report", at));
    assert_eq!((&end["outcome"], &end["run"]["node"]), (&"success".into(), &b.name().into()));
    assert_eq!(place.await_end(&run_id("load", at))["run"]["attempt"], 2);
    for job in ["extract", "index", "report"] {
        let begun = witness.entries().into_iter().filter(|entry| entry.mark == Mark::Start && entry.job == job);
        assert_eq!(begun.count(), 1, "{job}");
    }
    assert!(place.zk.children(&place.path("/cronkeeper/triggers")).is_empty());
    witness.assert_fine(&[]);
}

#[test]
fn a_run_that_dies_with_its_leader_skips_what_wants_its_success_and_not_what_always_runs() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let (long, quick) = (witness.command(&["sleep", "600"]), witness.command(&["true"]));
    let chain = [
        once("extract", at, &long, "on_lease_end: kill"),
        after("load", "extract: success", &quick, ""),
        after("tidy", "load: always", &quick, ""),
    ];
    give(&[&a, &b], &jobs(&chain));
    await_begun(&witness, "extract", 1);
    a.kill9();
    assert_eq!(place.await_end(&run_id("extract", at))["outcome"], "interrupted");
    assert_eq!(place.await_end(&run_id("load", at))["reason"], "upstream");
    assert_eq!(place.await_end(&run_id("tidy", at))["outcome"], "success");
    let skipped = b.await_where("run.skipped", LONG, |event| event.text("job") == "load");
    assert_eq!(skipped.text("reason"), "upstream");
    witness.assert_fine(&[]);
}

#[test]
fn a_run_that_ends_on_a_draining_node_sets_off_the_next_on_the_leader() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m")));
    let at = soon();
    let (slow, quick) = (witness.command(&["sleep", "4"]), witness.command(&["true"]));
    give(&[&a, &b], &jobs(&[once("extract", at, &slow, ""), after("load", "extract: success", &quick, "")]));
    await_begun(&witness, "extract", 1);
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    let end = place.await_end(&run_id("load", at));
    assert_eq!((&end["outcome"], &end["run"]["node"]), (&"success".into(), &b.name().into()));
    assert_eq!(place.await_end(&run_id("extract", at))["run"]["node"], a.name());
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
}
