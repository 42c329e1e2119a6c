//! Runs that wait for others while leadership moves from node to node.

use rustix::process::Signal;

use super::cluster::{Place, await_begun, give, in_line, job, jobs, usual};
use crate::support::LONG;
use crate::support::scratch::Scratch;
use crate::support::witness::{Mark, Witness};

#[test]
fn a_run_that_waits_stays_when_its_leader_dies_and_begins_once_the_other_is_settled() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name))));
    // The first attempt is long and dies with its node.
    let first_lasts = r#"[ -e "$0.$CRONKEEPER_JOB" ] || { : > "$0.$CRONKEEPER_JOB"; sleep 600; }"#;
    let mark = std::env::temp_dir().join(format!("waiting-{}", std::process::id()));
    let command = witness.command(&["sh", "-c", first_lasts, mark.to_str().unwrap()]);
    give(&[&a, &b], &jobs(&[job("load", "@every 2s", &command, "overlap: queue\non_lease_end: kill")]));
    await_begun(&witness, "load", 1);
    a.await_event("run.skipped", LONG);
    a.kill9();
    let ended = b.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("interrupted", "node-died"));
    let waited = b.await_event("run.started", LONG);
    assert_eq!(waited.number("attempt"), Some(1));
    assert!(waited.text("run") > ended.text("run"), "{waited:?}");
    place.await_end(waited.text("run"));
    let begun = witness.entries().into_iter().filter(|entry| entry.mark == Mark::Start);
    assert_eq!(begun.filter(|entry| entry.run == waited.text("run")).count(), 1);
    witness.assert_fine(&[]);
}

#[test]
fn a_run_of_a_draining_node_makes_room_for_its_successor() {
    let place = Place::shared();
    let witness = Witness::new();
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m")));
    let command = witness.command(&["sleep", "600"]);
    give(&[&a, &b], &jobs(&[job("load", "@every 5s", &command, "overlap: replace")]));
    await_begun(&witness, "load", 1);
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    let ended = a.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "replaced"));
    let started = b.await_event("run.started", LONG);
    assert!(started.text("run") > ended.text("run"));
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    b.kill9();
    assert_eq!(b.await_no_job_processes(LONG), [0; 0]);
    witness.assert_fine(&[]);
}

#[test]
fn what_a_former_leader_still_runs_counts_for_its_group() {
    let (place, witness) = (Place::shared(), Witness::new());
    let gate = Scratch::new("gate");
    let open = gate.path().join("open");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", open.display());
    let group = "concurrency_group: {name: disk, limit: 1}";
    let first = job("first", "@every 2s", &witness.command(&["sh", "-c", &wait]), group);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m")));
    give(&[&a, &b], &jobs(std::slice::from_ref(&first)));
    await_begun(&witness, "first", 1);
    let then = job("then", "@every 2s", &witness.command(&["true"]), group);
    give(&[&a, &b], &jobs(&[first, then]));

    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    // It is waiting, which counts for its own overlap.
    let skipped = b.await_where("run.skipped", LONG, |event| event.text("job") == "then");
    assert_eq!(skipped.text("reason"), "overlap");
    assert!(witness.entries().iter().all(|entry| entry.job != "then"), "the group is full");
    std::fs::write(&open, "").expect("a file can be written");
    let ended = a.await_event("run.finished", LONG);
    assert_eq!((ended.text("job"), ended.text("outcome")), ("first", "success"));
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    await_begun(&witness, "then", 1);
    witness.assert_fine(&[]);
}
