//! Jobs with `lock` on real nodes: other jobs, other nodes and foreign clients are excluded.

use rustix::process::Signal;
use zookeeper_client::{Client as ZooKeeper, Permission};

use super::fixture::{Client, printed};
use crate::failover::cluster::{Place, Zk, await_begun, give, in_line, job, jobs, living, shared, usual};
use crate::support::LONG;
use crate::support::command::{CRONKEEPER, command};
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::until;
use crate::support::witness::{Mark, Witness};

const LOCK: &str = "/locks/orders";

fn locked(name: &str, command: &str, more: &str) -> String {
    job(name, "@every 1s", command, &format!("lock: {LOCK}\n{more}"))
}

/// A shell command that complains in a file of `scratch` if another such command runs at the same time.
fn alone(witness: &Witness, scratch: &Scratch) -> String {
    let [lock, faults] = ["alone", "faults"].map(|name| scratch.path().join(name).display().to_string());
    witness.command(&["sh", "-c", &format!("exec flock -n {lock} sleep 0.2 || echo $CRONKEEPER_RUN_ID >> {faults}")])
}

fn begun(witness: &Witness, job: &str) -> usize {
    witness.entries().iter().filter(|entry| entry.mark == Mark::Start && entry.job == job).count()
}

#[test]
fn jobs_with_one_lock_never_run_together_even_if_their_leader_dies() {
    let (place, witness, scratch) = (Place::shared(), Witness::new(), Scratch::new("alone"));
    let command = alone(&witness, &scratch);
    let all = jobs(&[
        locked("one", &command, "overlap: queue"),
        locked("two", &command, "overlap: queue\ninterrupted: rerun"),
        locked("three", &command, "overlap: allow"),
    ]);
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&all)));
    let each_ran = |times: usize| ["one", "two", "three"].iter().all(|job| begun(&witness, job) >= times);
    until("each has run twice", || each_ran(2));
    a.kill9();
    b.await_event("takeover.done", LONG);
    let before = ["one", "two", "three"].map(|job| begun(&witness, job)).into_iter().max().unwrap_or_default();
    until("each has run under the next leader", || each_ran(before + 2));
    assert!(!scratch.path().join("faults").exists(), "{:?}", std::fs::read_to_string(scratch.path().join("faults")));
    drop((a, b));
    witness.assert_fine(&["three"]);
}

#[test]
fn while_a_foreign_client_holds_the_lock_a_run_waits_or_is_skipped() {
    let (place, witness) = (Place::shared(), Witness::new());
    let foreign = Client::start(&place.connect(), &[LOCK]);
    let outer = foreign.await_held();
    let token = witness.command(&["sh", "-c", "echo $CRONKEEPER_LOCK_PATH $CRONKEEPER_FENCING_TOKEN"]);
    let all = jobs(&[locked("skips", &token, ""), locked("waits", &token, "overlap: queue")]);
    let [a] = in_line([usual(place.node("a")).jobs(&all)]);
    let skipped = a.await_where("run.skipped", LONG, |event| event.text("job") == "skips");
    assert_eq!(skipped.text("reason"), "locked");
    let skipped = a.await_where("run.skipped", LONG, |event| event.text("job") == "waits");
    assert_eq!(skipped.text("reason"), "overlap", "one waits already");
    assert!(witness.entries().is_empty(), "{:?}", witness.entries());
    let (code, listed) = printed(&place.connect(), &["locks", LOCK]);
    assert_eq!(code, Some(0));
    assert!(listed.contains("job waits"), "{listed}");

    foreign.release();
    await_begun(&witness, "waits", 1);
    await_begun(&witness, "skips", 1);
    let end = a.await_where("run.finished", LONG, |event| event.text("job") == "waits");
    let record = place.await_end(end.text("run"));
    let tail = record["tail"].as_str().unwrap_or_default();
    let (path, token) = tail.trim().split_once(' ').expect("it prints both");
    assert_eq!(path, LOCK);
    assert!(token.parse::<i64>().expect("a number") > outer, "{token} {outer}");
}

#[test]
fn a_foreign_client_waits_until_the_processes_of_a_killed_nodes_run_are_dead() {
    let (place, witness) = (Place::shared(), Witness::new());
    let command = witness.command(&["sh", "-c", "trap '' TERM; setsid sleep 600 & sleep 600"]);
    let [a] = in_line([usual(place.node("a")).jobs(&jobs(&[locked("long", &command, "")]))]);
    await_begun(&witness, "long", 1);
    let pids = living(&witness, "long");
    let script = pids.iter().map(|pid| format!("kill -0 {pid} 2>&1 && echo alive; ")).collect::<String>();
    let foreign = Client::start_with(&place.connect(), &[LOCK], &format!("{script} echo held"));
    assert!(foreign.waits());
    a.kill9();
    let said = foreign.await_line("held");
    assert_eq!(foreign.await_exit(), Some(0), "{said}");
    assert_eq!(a.await_no_job_processes(LONG), [0; 0]);
    assert!(pids.iter().all(|pid| !living(&witness, "long").contains(pid)));
}

/// Somebody's sequential znode that goes with no session: a mistake, or meant to block a job forever.
#[test]
fn a_persistent_entry_ahead_of_a_job_is_named_until_it_is_gone() {
    let (place, witness) = (Place::shared(), Witness::new());
    let entry = format!("{LOCK}/x-lock-0000000000");
    for path in ["/locks", LOCK, &entry] {
        place.zk.create(&place.path(path));
    }
    let all =
        jobs(&[locked("skips", &witness.command(&[]), ""), locked("waits", &witness.command(&[]), "overlap: queue")]);
    let [a] = in_line([usual(place.node("a")).jobs(&all)]);
    let named = a.await_event("coordination.damaged", LONG);
    assert_eq!(named.text("path"), entry);
    assert!(named.text("message").contains("is not ephemeral"), "{named:?}");
    let skipped = a.await_where("run.skipped", LONG, |event| event.text("job") == "skips");
    assert_eq!(skipped.text("reason"), "locked");
    let damaged = || damaged(&a);
    until("the status names it", || damaged().iter().any(|path| path.starts_with(&entry)));
    assert!(witness.entries().is_empty(), "{:?}", witness.entries());
    place.zk.delete_all(&place.path(&entry));
    await_begun(&witness, "waits", 1);
    await_begun(&witness, "skips", 1);
    until("nothing is damaged", || damaged().is_empty());
    assert_eq!(a.events().named("coordination.damaged").len(), 1, "{}", a.events().tail());
}

/// The damaged paths that `cronkeeper status` shows.
fn damaged(node: &Node) -> Vec<String> {
    let output = command(&["status", "--json", "--runtime-dir"]).arg(node.spec().runtime_dir()).output();
    let status: serde_json::Value =
        serde_json::from_slice(&output.expect("the program runs").stdout).expect("the node answers");
    let all = status["damaged"].as_array().cloned().unwrap_or_default();
    all.iter().filter_map(|path| path.as_str().map(str::to_owned)).collect()
}

#[test]
fn a_command_of_a_job_may_take_the_lock_again() {
    let (place, witness) = (Place::shared(), Witness::new());
    let command = witness.command(&[CRONKEEPER, "lock", "--timeout", "0s", LOCK, "--", "echo", "inside"]);
    let servers = format!("environment: {{CRONKEEPER_ZOOKEEPER: '{}'}}", place.connect());
    let [a] = in_line([usual(place.node("a")).jobs(&jobs(&[locked("outer", &command, &servers)]))]);
    let end = a.await_event("run.finished", LONG);
    let record = place.await_end(end.text("run"));
    assert_eq!((end.text("outcome"), record["tail"].as_str()), ("success", Some("inside\n")), "{record}");
}

#[test]
fn a_run_whose_entry_is_deleted_is_killed_and_a_request_to_release_is_logged() {
    let (place, witness) = (Place::shared(), Witness::new());
    let command = witness.command(&["sleep", "600"]);
    let [a] = in_line([usual(place.node("a")).jobs(&jobs(&[locked("long", &command, "")]))]);
    await_begun(&witness, "long", 1);
    assert_eq!(printed(&place.connect(), &["lock", "--revoke", LOCK]).0, Some(0));
    let asked = a.await_event("lock.revoke_requested", LONG);
    assert_eq!((asked.text("job"), asked.text("path")), ("long", LOCK));
    let entries = place.zk.children(&place.path(LOCK));
    place.zk.delete_all(&place.path(&format!("{LOCK}/{}", entries[0])));
    assert_eq!(a.await_event("lock.lost", LONG).text("path"), LOCK);
    let ended = a.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("interrupted", "lock"));
}

#[test]
fn a_node_that_drains_keeps_the_lock_of_its_run_and_the_next_leader_waits_for_it() {
    let (place, witness, gate) = (Place::shared(), Witness::new(), Scratch::new("gate"));
    let open = gate.path().join("open");
    let wait = format!("until [ -e {} ]; do sleep 0.1; done", open.display());
    let first = locked("first", &witness.command(&["sh", "-c", &wait]), "");
    let [a, b] = in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m")));
    give(&[&a, &b], &jobs(std::slice::from_ref(&first)));
    await_begun(&witness, "first", 1);
    give(&[&a, &b], &jobs(&[first, locked("second", &witness.command(&["true"]), "overlap: queue")]));
    a.signal(Signal::TERM);
    b.await_event("takeover.done", LONG);
    b.await_where("run.skipped", LONG, |event| event.text("job") == "second");
    assert_eq!(begun(&witness, "second"), 0, "it waits for the lock");
    std::fs::write(&open, "").expect("a file can be written");
    let ended = a.await_event("run.finished", LONG);
    assert_eq!(ended.text("outcome"), "success");
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    await_begun(&witness, "second", 1);
    witness.assert_fine(&[]);
}

#[test]
fn a_lock_whose_path_is_closed_is_named_and_the_run_begins_once_it_is_open() {
    let (place, witness) = (Place::shared(), Witness::new());
    let other = Zk::with(ZooKeeper::connector().with_auth("digest", b"other:secret"), &shared().connect_string());
    other.create(&place.path("/locks"));
    other.seize(&place.path("/locks"), Permission::READ);
    let all = jobs(&[locked("waits", &witness.command(&["true"]), "overlap: queue")]);
    let [a] = in_line([usual(place.node("a")).jobs(&all)]);
    let refused = a.await_event("lock.refused", LONG);
    assert!(refused.text("message").contains(LOCK), "{refused:?}");
    other.give_back(&place.path("/locks"));
    await_begun(&witness, "waits", 1);
}
