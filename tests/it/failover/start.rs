//! Starts that cannot succeed yet, and starts that never will: retried, or ended with 78 and a hint.

use std::os::unix::net::UnixDatagram;

use super::cluster::{Place, Zk, in_line, node, usual};
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::zookeeper::{Ensemble, shared};
use crate::support::{LONG, until};

/// Expects exit code 78, a last line that says what is wrong, and a hint that says what to change.
pub fn refused(node: &Node, wrong: &str, change: &str) {
    assert_eq!(node.wait_exit(LONG).code(), Some(78), "{}", node.events().tail());
    until("the last lines are logged", || node.events().tail().contains(change));
    assert!(node.events().tail().contains(wrong), "{}", node.events().tail());
}

#[test]
fn without_zookeeper_a_node_is_up_keeps_trying_and_joins_when_it_is_there() {
    let ensemble = Ensemble::start(1);
    let place = Place::on(&ensemble);
    ensemble.kill(0);
    let dir = Scratch::new("notify");
    let path = dir.path().join("socket");
    let systemd = UnixDatagram::bind(&path).expect("a socket can be bound");
    systemd.set_read_timeout(Some(LONG)).expect("a timeout can be set");

    let node = usual(place.node("a")).env("NOTIFY_SOCKET", path.to_str().expect("it is a text")).start();
    let mut said = String::new();
    while !said.contains("READY=1") {
        let mut text = [0; 4096];
        let length = systemd.recv(&mut text).expect("READY comes without ZooKeeper");
        said.push_str(&String::from_utf8_lossy(&text[..length]));
    }
    until("it says that it retries", || node.events().named("coordination.unreachable").len() >= 2);
    ensemble.restart(0);
    node.await_event("takeover.done", LONG);
}

#[test]
fn a_chroot_that_is_not_there_is_named() {
    let place = Place::shared();
    let node = node("a", &format!("{}/nowhere", place.connect())).start();
    refused(&node, "/nowhere` does not exist", "correct `--zookeeper`");
}

#[test]
fn a_cluster_is_not_created_among_the_data_of_another() {
    let place = Place::shared();
    let [_first] = in_line([usual(place.node("a"))]);
    for inside in ["/cronkeeper", "/cronkeeper/jobs", "/cronkeeper/jobs/deeper", "/leader", "/leader/cron"] {
        let node = node("b", &format!("{}{inside}", place.connect())).start();
        refused(&node, &format!("{inside}` on"), "give this cluster another path");
        let (cluster, beside) = (format!("whose path is `{}`", place.chroot), format!("`{}/cron`", place.chroot));
        refused(&node, &cluster, &beside);
    }
    place.zk.create(&place.path("/other"));
    in_line([usual(node("b", &format!("{}/other", place.connect())))]);
}

#[test]
fn a_cluster_without_a_path_has_no_other_in_its_data_but_beside_it() {
    let ensemble = Ensemble::start(1);
    let zk = Zk::connect(&ensemble.connect_string());
    let at = |name, chroot: &str| usual(node(name, &format!("{}{chroot}", ensemble.connect_string())));
    // A cluster that is older than the one around it goes on, and gets new nodes.
    zk.create("/leader");
    zk.create("/leader/old");
    let [_old] = in_line([at("a", "/leader/old")]);
    let [_around] = in_line([at("b", "")]);
    at("c", "/leader/old").start().await_event("election.following", LONG);
    let inside = at("d", "/cronkeeper/jobs").start();
    refused(&inside, "whose path is `/`", "leave the path out");
    zk.create("/other");
    in_line([at("e", "/other")]);
}

#[test]
fn a_corrected_path_is_taken_after_a_start_with_a_misspelt_one() {
    let place = Place::shared();
    let spec = usual(place.node("a"));
    let misspelt = spec.clone().zookeeper(&format!("{}/nowhere", place.connect())).start();
    refused(&misspelt, "/nowhere` does not exist", "correct `--zookeeper`");
    drop(misspelt);
    in_line([spec]);
}

#[test]
fn a_name_that_a_living_node_has_is_not_taken() {
    let place = Place::shared();
    let spec = usual(place.node("a"));
    let [first] = in_line([spec.clone()]);
    let second = spec.elsewhere().start();
    let said = second.await_event("coordination.stalled", LONG);
    assert!(said.text("message").contains(first.name()), "{}", said.json());
    refused(&second, "is already in use by", "--node NAME");
    assert_eq!(second.events().count("coordination.stalled"), 1, "{}", second.events().tail());
    assert_eq!(second.events().count("coordination.unreachable"), 0, "{}", second.events().tail());
    assert!(first.events().named("leader.lost").is_empty());
}

#[test]
fn a_state_directory_of_another_cluster_is_refused() {
    let place = Place::shared();
    let spec = usual(place.node("a"));
    let [first] = in_line([spec.clone()]);
    drop(first);
    place
        .zk
        .set(&place.path("/cronkeeper/cluster"), b"5f5b6a0e-3b1d-4c53-9a6e-0d9f0b7f5a11")
        .expect("it is open to all");
    refused(&spec.start(), "but", "--state-dir");

    let elsewhere = Place::shared();
    let moved = spec.zookeeper(&elsewhere.connect()).start();
    refused(&moved, "belongs to ZooKeeper under", "--state-dir");
}

#[test]
fn a_place_that_is_not_open_to_this_node_is_refused() {
    let ensemble = Ensemble::start(1);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be had");
    let place = runtime.block_on(ensemble.secured("cron:secret"));
    refused(&node("a", &place).start(), "refused the authentication", "--zookeeper-auth-file");
    let wrong = with_credential(node("b", &place), "digest:cron:guess");
    refused(&wrong.1.start(), "refused the authentication", "--zookeeper-auth-file");
}

/// A node with a credential in a file. The file is deleted when the first value is dropped.
pub fn with_credential(spec: Spec, credential: &str) -> (Scratch, Spec) {
    let dir = Scratch::new("credential");
    let file = dir.write("auth", &format!("{credential}\n"));
    let spec = spec.option("--zookeeper-auth-file", &file.display().to_string());
    (dir, spec)
}

#[test]
fn a_scheme_that_the_servers_do_not_know_is_refused() {
    let (_dir, spec) = with_credential(node("a", &shared()), "sesame:open");
    refused(&spec.start(), "refused the authentication", "--zookeeper-auth-file");
}

#[test]
fn a_session_of_a_lost_state_directory_is_waited_for() {
    let place = Place::shared();
    let spec = usual(place.node("a"));
    let [first] = in_line([spec.clone()]);
    first.kill9();
    let second = spec.elsewhere().start();
    second.await_event("coordination.stalled", LONG);
    second.await_event("coordination.recovered", LONG);
    second.await_event("takeover.done", LONG);
    let client = Zk::connect(&place.connect());
    assert_eq!(client.children("/leader").len(), 1);
}

/// Otherwise the first start after a reboot would find sessions of another boot, and so would every later one.
#[test]
fn a_state_directory_remembers_the_sessions_that_may_have_entries_and_no_others() {
    let place = Place::shared();
    let spec = usual(place.node("a"));
    let remembered = || {
        let text = std::fs::read_to_string(spec.state_dir().join("sessions.json")).expect("it is there");
        let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
        value["sessions"].as_array().map_or(0, Vec::len)
    };
    for _ in 0..3 {
        let node = spec.start();
        node.await_event("takeover.done", LONG);
        assert_eq!(remembered(), 1);
        node.kill9();
    }
}
