//! Paths in ZooKeeper that are open to others: a node logs them once at its start, in one line.

use zookeeper_client::Permission;

use super::cluster::{Lines, Place, in_line, job, jobs, shared, usual};
use super::records::stranger;
use super::start::with_credential;
use crate::support::node::{Node, Spec};
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// What a node has logged about its own data so far.
pub fn said(node: &Node) -> Vec<String> {
    said_of(node, "cronkeeper's data")
}

fn said_of(node: &Node, what: &str) -> Vec<String> {
    let events = node.events().all();
    let warnings = events.iter().filter(|event| event.name() == "coordination.exposed");
    warnings
        .inspect(|event| assert_eq!(event.text("level"), level_of(event.text("message"))))
        .map(|event| event.text("message").to_owned())
        .filter(|message| message.starts_with(what))
        .collect()
}

/// Nobody has to mend what is as configured.
fn level_of(message: &str) -> &'static str {
    let is_configured =
        ["has no identity", "authentication file contains"].iter().any(|reason| message.contains(reason));
    if is_configured { "INFO" } else { "WARN" }
}

/// Waits until a node has logged it, exactly once.
pub fn the_line_of(node: &Node) -> String {
    the_line_about(node, "cronkeeper's data")
}

fn the_line_about(node: &Node, what: &str) -> String {
    until(&format!("it says that {what} can be written to"), || !said_of(node, what).is_empty());
    let [line] = <[String; 1]>::try_from(said_of(node, what)).expect("it says so once");
    line
}

#[test]
fn a_node_without_an_identity_says_so_once_however_often_it_connects() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let spec = Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), "a").zookeeper(&lines.connect());
    let [node] = in_line([usual(spec)]);
    assert!(the_line_of(&node).contains("everybody"));
    lines.part();
    node.await_event("coordination.expired", LONG);
    let seen = node.events().len();
    lines.pass();
    node.await_after(seen, "takeover.done", LONG, |_| true);
    the_line_of(&node);
}

#[test]
fn a_node_on_no_zookeeper_says_nothing_of_it() {
    let node = Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), "a").start();
    node.await_event("takeover.done", LONG);
    assert_eq!(said(&node), [""; 0]);
}

#[test]
fn what_somebody_made_beforehand_and_keeps_open_is_named_at_every_start() {
    let ensemble = Ensemble::start(1);
    let (place, witness, stranger) = (Place::on(&ensemble), Witness::new(), stranger(&ensemble));
    let queue = place.path("/leader");
    stranger.create(&queue);
    // All rights except the one to change the access list.
    stranger.seize(&queue, Permission::READ | Permission::WRITE | Permission::CREATE | Permission::DELETE);
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "")]);
    let specs = ["a", "b"].map(|name| with_credential(usual(place.node(name)).jobs(&file), "digest:cron:secret"));
    let [leader, follower] = in_line(specs.each_ref().map(|(_, spec)| spec.clone()));
    let is_named = |node: &Node| {
        let line = the_line_of(node);
        assert!(line.contains("/leader") && line.contains("world:anyone (cdrw)"), "{line}");
        assert!(line.contains("digest:other (cdrwa)") && !line.contains("other:"), "{line}");
        assert!(!line.contains("/cronkeeper"), "{line}");
    };
    is_named(&leader);
    is_named(&follower);
    leader.await_where("coordination.damaged", LONG, |damaged| damaged.text("path") == "/leader");
    is_named(&follower.again());
    until("jobs are run", || !witness.entries().is_empty());
    witness.assert_fine(&[]);
}

#[test]
fn open_locks_of_jobs_and_the_open_folders_they_are_in_have_a_line_each() {
    let ensemble = Ensemble::start(1);
    let (place, stranger) = (Place::on(&ensemble), stranger(&ensemble));
    let make = |paths: &[&str]| paths.iter().for_each(|path| stranger.create(&place.path(path)));
    make(&["/locks", "/locks/shut", "/locks/shut/b", "/locks/team", "/locks/team/a", "/read", "/read/c"]);
    // A stranger's, so the leader leaves it alone; everybody may use it.
    stranger.seize(&place.path("/locks/team/a"), Permission::ALL);
    stranger.seize(&place.path("/locks/shut"), Permission::NONE);
    stranger.seize(&place.path("/read"), Permission::READ);
    stranger.seize(&place.path("/read/c"), Permission::READ);
    let locks = "lock: [/locks/team/a, /locks/shut/b, /read/c, /top]";
    let file = jobs(&[job("tick", "0 0 1 1 *", "[\"true\"]", locks)]);
    let specs = ["a", "b"].map(|name| with_credential(usual(place.node(name)).jobs(&file), "digest:cron:secret"));
    let [leader, follower] = in_line(specs.each_ref().map(|(_, spec)| spec.clone()));
    for node in [&leader, &follower] {
        let folders = the_line_about(node, "folders of jobs' locks");
        assert!(folders.contains("to everybody: to world:anyone (cdrwa) /locks, /locks/team."), "{folders}");
        assert!(folders.contains("setAcl"), "{folders}");
        let locks = the_line_about(node, "locks of jobs");
        // The other one too, unless the leader has closed it before.
        let of_everybody = locks.split("; ").find(|open| open.contains("to world:anyone (cdrwa) "));
        assert!(of_everybody.is_some_and(|open| open.contains("/locks/team/a")), "{locks}");
        assert!(locks.contains("digest:other (cdrwa) /locks/team/a"), "{locks}");
    }
    leader.await_event("coordination.secured", LONG);
    stranger.seize(&place.path("/locks"), Permission::READ);
    stranger.seize(&place.path("/locks/team"), Permission::READ);
    stranger.seize(&place.path("/locks/team/a"), Permission::NONE);
    let follower = follower.again();
    // The leader has closed what was open to everybody and named nobody else.
    let locks = the_line_about(&follower, "locks of jobs");
    assert!(!locks.contains("/locks/shut/b") && locks.contains("world:anyone (r) /read/c"), "{locks}");
    // The folders would have been named before the locks.
    assert_eq!(said_of(&follower, "folders"), [""; 0]);
}
