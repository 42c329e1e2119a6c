//! Authentication switched on, and a password changed, on a running cluster, host by host.

use std::collections::BTreeSet;
use std::path::PathBuf;

use jiff::Timestamp;
use rustix::process::Signal;
use zookeeper_client::Client;

use super::cluster::{Place, Zk, in_line, job, jobs, usual};
use super::standing_open::{said, the_line_of};
use crate::support::command::command;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::witness::{Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// A lock of a job that never runs.
const LOCK: &str = "/locks/orders";

/// Three nodes on their own ensemble, with a job that runs every second.
struct Cluster {
    ensemble: Ensemble,
    place: Place,
    witness: Witness,
    nodes: Vec<Node>,
    dir: Scratch,
}

impl Cluster {
    fn start() -> Self {
        let ensemble = Ensemble::start(1);
        let (place, witness) = (Place::on(&ensemble), Witness::new());
        let file = jobs(&[job(
            "tick",
            "* * * * * *",
            &witness.command(&[]),
            "overlap: allow\nmisfire: run-all\nmisfire_window: 5m",
        )]);
        let file = format!("{file}  yearly:\n    schedule: '@yearly'\n    command: 'true'\n    lock: {LOCK}\n");
        let nodes = in_line(["a", "b", "c"].map(|name| usual(place.node(name)).jobs(&file))).into();
        Self { ensemble, place, witness, nodes, dir: Scratch::new("authentication") }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("auth")
    }

    /// Restarts the nodes one after the other with these settings.
    fn introduce(&mut self, lines: &str) {
        self.dir.write("auth", lines);
        for at in 0..self.nodes.len() {
            self.restart(at);
        }
    }

    fn restart(&mut self, at: usize) {
        let node = &self.nodes[at];
        node.signal(Signal::TERM);
        assert_eq!(node.wait_exit(LONG).code(), Some(0), "{}", node.events().tail());
        let spec = self.authenticated(node.spec());
        self.nodes[at] = spec.start();
        self.nodes[at].await_event("election.following", LONG);
        self.await_a_run();
    }

    fn authenticated(&self, spec: &Spec) -> Spec {
        spec.clone().env("CRONKEEPER_ZOOKEEPER_AUTH_FILE", &self.file().display().to_string())
    }

    /// Waits for the end of a run that is due from now on.
    fn await_a_run(&self) {
        let now = Timestamp::now().to_string();
        until("a run has ended", || {
            self.witness.entries().iter().any(|entry| entry.mark == Mark::End && entry.scheduled_at > now)
        });
    }

    fn client(&self, credential: Option<&str>) -> Zk {
        let connector = match credential {
            Some(credential) => Client::connector().with_auth("digest", credential.as_bytes()),
            None => Client::connector(),
        };
        Zk::with(connector, &self.ensemble.connect_string())
    }

    /// All paths except those of the nodes themselves.
    fn paths(&self, known: &Zk) -> Vec<String> {
        let root = ["/leader", "/cronkeeper", "/cronkeeper/cluster", "/cronkeeper/nodes", LOCK];
        let mut paths: Vec<String> = root.iter().map(|path| self.place.path(path)).collect();
        for folder in ["jobs", "running", "control", "triggers", "gone", "history", "history/tick"] {
            let folder = self.place.path(&format!("/cronkeeper/{folder}"));
            paths.extend(known.children(&folder).into_iter().map(|name| format!("{folder}/{name}")));
            paths.push(folder);
        }
        paths
    }

    /// Waits until these credentials have access to no path.
    fn await_closed(&self, known: &Zk, stranger: &Zk) {
        // A path that is gone meanwhile is open to nobody.
        let is_closed = |path: &String| !stranger.may_set(path) || !known.is_there(path);
        until("all is closed to others", || self.paths(known).iter().all(is_closed));
    }

    /// Waits until these credentials have access to every path.
    fn await_open(&self, known: &Zk, other: &Zk) {
        until("all is open to the next", || self.paths(known).iter().all(|path| other.may_set(path)));
    }

    fn assert_every_second_was_run_once(&self) {
        self.witness.assert_fine(&["tick"]);
        let instant = |text: &str| text.parse::<Timestamp>().expect("it is a time").as_second();
        let entries = self.witness.entries();
        let ended = entries.iter().filter(|entry| entry.mark == Mark::End);
        let ended: BTreeSet<i64> = ended.map(|entry| instant(&entry.scheduled_at)).collect();
        let (first, last) = (*ended.first().expect("some ended"), *ended.last().expect("some ended"));
        let lost: Vec<i64> = (first..=last).filter(|second| !ended.contains(second)).collect();
        assert!(lost.is_empty(), "never run: {lost:?}");
    }
}

#[test]
fn authentication_and_then_another_password_are_introduced_without_a_run_or_a_node_lost() {
    let mut cluster = Cluster::start();
    cluster.await_a_run();
    for path in ["/cronkeeper/gone", "/cronkeeper/gone/other", "/locks", LOCK] {
        cluster.place.zk.create(&cluster.place.path(path));
    }
    assert!(the_line_of(&cluster.nodes[0]).contains("has no identity"));
    cluster.introduce("digest:cron:first\nworld:anyone\n");
    assert!(the_line_of(&cluster.nodes[0]).contains("`world:anyone`"));
    cluster.introduce("digest:cron:first\n");
    let first = cluster.client(Some("cron:first"));
    cluster.await_closed(&first, &cluster.client(None));

    cluster.introduce("digest:cron:first\ndigest:cron:second\n");
    let second = cluster.client(Some("cron:second"));
    cluster.await_open(&first, &second);
    cluster.introduce("digest:cron:second\n");
    cluster.await_closed(&second, &first);
    cluster.restart(0);
    assert_eq!(said(&cluster.nodes[0]), [""; 0]);
    cluster.assert_every_second_was_run_once();
    for node in &cluster.nodes {
        assert_eq!(node.status(), None, "{}", node.events().tail());
        assert!(node.events().named("coordination.damaged").is_empty(), "{}", node.events().tail());
    }
}

/// What a node's readiness waits for, as shown by `cronkeeper status`.
fn awaited(node: &Node) -> Option<String> {
    let mut command = command(&["status", "--json", "--runtime-dir"]);
    command.arg(node.spec().runtime_dir());
    let output = command.output().expect("the program runs");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    status["awaiting"].as_str().map(str::to_owned)
}

#[test]
fn a_node_that_is_given_a_credential_alone_ends_none_of_the_others() {
    let mut cluster = Cluster::start();
    cluster.dir.write("auth", "digest:cron:secret\n");
    cluster.restart(2);
    // The other nodes read the members now and then, and find one that they cannot read.
    let member = format!("/cronkeeper/nodes/{}", cluster.nodes[2].name());
    for node in &cluster.nodes[..2] {
        node.await_where("coordination.damaged", LONG, |said| said.text("path") == member);
    }
    // This node leads next but one, and then sets the access lists of all paths.
    for at in 0..2 {
        cluster.nodes[at].kill9();
        let next = &cluster.nodes[at + 1];
        next.await_event("takeover.done", LONG);
        cluster.await_a_run();
        if at == 0 {
            let spec = cluster.nodes[0].spec().clone();
            cluster.nodes[0] = spec.start();
            cluster.nodes[0].await_event("election.following", LONG);
        }
    }
    let (known, stranger) = (cluster.client(Some("cron:secret")), cluster.client(None));
    cluster.await_closed(&known, &stranger);
    cluster.await_a_run();
    // The node without a credential is still alive but has no access any more, and says so.
    let locked_out = &cluster.nodes[0];
    assert_eq!(locked_out.status(), None, "{}", locked_out.events().tail());
    until("it names what it lacks", || locked_out.events().named("coordination.damaged").len() >= 2);
    // With the leader's death its place in the queue is gone. It leads nobody, and is not ready to.
    cluster.nodes[2].kill9();
    until("it says what it waits for", || {
        awaited(locked_out).is_some_and(|awaited| awaited.contains("not authorized"))
    });
    assert_eq!(locked_out.status(), None, "{}", locked_out.events().tail());
}
