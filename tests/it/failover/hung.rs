//! A stopped warden: it neither starts nor kills anything, and its daemon takes over the killing.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, kill_process};

use super::cluster::{
    Lines, Place, again, await_begun, give, in_line, job, jobs, living, node, once, run_id, shared, soon, token, usual,
};
use crate::support::node::Node;
use crate::support::process::watcher_and_warden_of;
use crate::support::witness::{Entry, Witness};
use crate::support::{LONG, until};

const RERUN: &str = "interrupted: rerun";
const FOREVER: [&str; 2] = ["sleep", "600"];

fn signal_warden(node: &Node, signal: Signal) {
    let [_, warden] = watcher_and_warden_of(node.pid()).expect("a daemon has a warden");
    kill_process(Pid::from_raw(warden.cast_signed()).expect("it is a number"), signal).expect("it lives");
}

#[test]
fn a_daemon_whose_warden_hangs_ends_with_all_that_it_ran_and_another_leads() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    let at = soon();
    let forever = witness.command(&FOREVER);
    let tick = job("tick", "* * * * * *", &witness.command(&[]), "overlap: allow");
    give(&[&a, &b], &jobs(&[once("again", at, &forever, RERUN), once("keep", at, &forever, ""), tick]));
    ["again", "keep", "tick"].iter().for_each(|job| await_begun(&witness, job, 1));

    signal_warden(&a, Signal::STOP);
    let silent = a.await_event("warden.silent", LONG);
    assert!(silent.number("runs") >= Some(2), "{silent:?}");
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
    assert_eq!(a.job_processes(), [0; 0], "nothing outlives it");
    assert_eq!(place.queue().len(), 1, "it has released its place");
    b.await_event("takeover.done", LONG);
    await_begun(&witness, "again", 2);
    assert_eq!(place.await_end(&run_id("keep", at))["reason"], "node-died");
    let is_tick_of_b = |entry: &Entry| entry.job == "tick" && entry.token == token(&b);
    until("the next leader starts what is due", || witness.entries().iter().any(is_tick_of_b));
    // What the warden was ordered to start and never read is begun again, and has not ended without a program.
    let ended = place.history("tick");
    let ran: BTreeSet<String> = witness.entries().into_iter().map(|entry| entry.run).collect();
    let phantoms: Vec<_> =
        ended.iter().filter(|(run, end)| end.get("outcome").is_some() && !ran.contains(*run)).collect();
    assert!(phantoms.is_empty(), "{phantoms:#?}");
    let a = again(a);
    a.await_event("election.following", LONG);
    witness.assert_fine(&["tick"]);
}

/// Else another node would lead only when the session ends, where nothing restarts the daemon.
#[test]
fn a_daemon_whose_warden_is_killed_releases_its_place() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    give(&[&a, &b], &jobs(&[once("keep", soon(), &witness.command(&FOREVER), "")]));
    await_begun(&witness, "keep", 1);
    signal_warden(&a, Signal::KILL);
    assert_eq!(a.wait_exit(LONG).code(), Some(1));
    assert_eq!(place.queue().len(), 1);
    b.await_event("takeover.done", LONG);
    assert!(living(&witness, "keep").is_empty());
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
    signal_warden(&a, Signal::STOP);
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
