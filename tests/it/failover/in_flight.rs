//! Runs in flight when their node is stopped or dies.

use rustix::process::Signal;

use super::cluster::{Place, again, await_begun, give, in_line, job, jobs, living, once, run_id, soon, token, usual};
use crate::support::witness::{Mark, Witness};
use crate::support::{LONG, until};

const RERUN: &str = "interrupted: rerun";
const KILL: &str = "on_lease_end: kill";
const FOREVER: [&str; 2] = ["sleep", "600"];

#[test]
fn of_a_killed_node_one_run_is_begun_again_one_ends_and_one_is_cut_off_until_the_node_is_back() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let forever = witness.command(&FOREVER);
    let each = [once("again", at, &forever, RERUN), once("die", at, &forever, KILL), once("keep", at, &forever, "")];
    give(&[&a, &b], &jobs(&each));
    ["again", "die", "keep"].iter().for_each(|job| await_begun(&witness, job, 1));

    a.kill9();
    assert_eq!(a.await_no_job_processes(LONG), [0; 0], "the warden kills what the daemon leaves");
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "again", 2);
    let died = b.await_event("run.finished", LONG);
    assert_eq!((died.text("job"), died.text("outcome"), died.text("reason")), ("die", "interrupted", "node-died"));
    let cut_off = b.await_event("run.cut_off", LONG);
    assert_eq!((cut_off.text("job"), cut_off.text("owner")), ("keep", a.name()));
    let keep = run_id("keep", at);
    assert_eq!(place.running(&keep).expect("it is in flight")["state"], "cut-off");

    let a = again(a);
    a.await_event("election.following", LONG);
    let end = place.await_end(&keep);
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
    assert!(place.running(&keep).is_none());
    witness.assert_fine(&[]);
    assert_eq!(place.history("die").len(), 1);

    // There is no other node, so a run that is drained at the end is not begun again either.
    b.signal(Signal::TERM);
    // Two signals at once can be received as one.
    b.await_event("node.draining", LONG);
    b.signal(Signal::TERM);
    b.wait_exit(LONG);
}

#[test]
fn what_a_restarted_node_had_in_flight_is_settled_at_once() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| place.node(name).option("--session-timeout", "10s")));
    let at = soon();
    let forever = witness.command(&FOREVER);
    let each = [once("again", at, &forever, RERUN), once("die", at, &forever, KILL), once("keep", at, &forever, "")];
    give(&[&a, &b], &jobs(&each));
    ["again", "die", "keep"].iter().for_each(|job| await_begun(&witness, job, 1));

    a.kill9();
    let a = again(a);
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "again", 2);
    for job in ["die", "keep"] {
        let end = place.await_end(&run_id(job, at));
        assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()), "{job}");
    }
    let second = place.running(&run_id("again", at)).expect("it is in flight");
    assert_eq!((&second["attempt"], &second["node"]), (&2.into(), &b.name().into()));
    witness.assert_fine(&[]);
    assert_eq!(living(&witness, "again").len(), 1);
    drop(a);
}

#[test]
fn a_node_that_is_asked_to_end_lets_its_runs_end_and_the_next_leader_leaves_them_alone() {
    let place = Place::shared();
    let witness = Witness::new();
    let gate = crate::support::scratch::Scratch::new("gate");
    let open = gate.path().join("open");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", open.display());
    let file = jobs(&[job("slow", "* * * * * *", &witness.command(&["sh", "-c", &wait]), RERUN)]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    await_begun(&witness, "slow", 1);

    a.signal(Signal::TERM);
    a.await_event("leader.resigned", LONG);
    b.await_event("takeover.done", LONG);
    let skipped = b.await_event("run.skipped", LONG);
    assert_eq!((skipped.text("job"), skipped.text("reason")), ("slow", "overlap"));
    assert_eq!(living(&witness, "slow").len(), 1, "the run goes on");
    assert_eq!(witness.entries().iter().filter(|entry| entry.mark == Mark::Start).count(), 1);

    std::fs::write(&open, "").expect("a file can be written");
    let finished = a.await_event("run.finished", LONG);
    assert_eq!(finished.text("outcome"), "success");
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    let end = place.await_end(finished.text("run"));
    assert_eq!((&end["outcome"], end["run"]["token"].as_i64()), (&"success".into(), Some(token(&a))));
    until("the next leader goes on", || witness.entries().iter().any(|entry| entry.token == token(&b)));
    witness.assert_fine(&[]);
}
