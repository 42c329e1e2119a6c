//! A stopped warden: it neither starts nor kills anything, and its daemon takes over the killing.

use rustix::process::{Pid, Signal, kill_process};

use super::cluster::{
    Lines, Place, again, await_begun, give, in_line, job, jobs, living, node, once, run_id, shared, soon, token, usual,
};
use crate::support::node::Node;
use crate::support::process::watcher_and_warden_of;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

const RERUN: &str = "interrupted: rerun";
const FOREVER: [&str; 2] = ["sleep", "600"];

fn stop_warden(node: &Node) {
    let [_, warden] = watcher_and_warden_of(node.pid()).expect("a daemon has a warden");
    kill_process(Pid::from_raw(warden.cast_signed()).expect("it is a number"), Signal::STOP).expect("it lives");
}

#[test]
fn a_daemon_whose_warden_hangs_ends_with_all_that_it_ran_and_another_leads() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let forever = witness.command(&FOREVER);
    let tick = job("tick", "* * * * * *", &witness.command(&[]), "");
    give(&[&a, &b], &jobs(&[once("again", at, &forever, RERUN), once("keep", at, &forever, ""), tick]));
    ["again", "keep", "tick"].iter().for_each(|job| await_begun(&witness, job, 1));

    stop_warden(&a);
    let silent = a.await_event("warden.silent", LONG);
    assert!(silent.number("runs") >= Some(2), "{silent:?}");
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
    assert_eq!(a.job_processes(), [0; 0], "nothing outlives it");
    let a = again(a);
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "again", 2);
    assert_eq!(place.await_end(&run_id("keep", at))["reason"], "node-died");
    until("the next leader starts what is due", || witness.entries().iter().any(|entry| entry.token == token(&b)));
    a.await_event("election.following", LONG);
    witness.assert_fine(&[]);
}

#[test]
fn what_a_warden_that_hangs_does_not_kill_at_lease_end_is_dead_before_it_is_begun_again() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let witness = Witness::new();
    let [a, b] = in_line([usual(node("a", &lines.connect())), usual(place.node("b"))]);
    let at = soon();
    give(&[&a, &b], &jobs(&[once("again", at, &witness.command(&FOREVER), RERUN)]));
    await_begun(&witness, "again", 1);

    lines.part();
    stop_warden(&a);
    a.await_event("leader.lost", LONG);
    let overdue = a.await_event("run.outlived", LONG);
    assert_eq!((overdue.text("job"), overdue.text("run")), ("again", run_id("again", at).as_str()));
    until("the daemon has killed it", || living(&witness, "again").is_empty());
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "again", 2);
    a.await_event("warden.silent", LONG);
    a.wait_exit(LONG);
    assert_eq!(a.job_processes(), [0; 0]);
    witness.assert_fine(&[]);
}
