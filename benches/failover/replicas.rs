//! Three nodes, one of which leads.

use std::time::Duration;

use jiff::Timestamp;

use crate::SESSION;
use crate::support::node::{Event, Node, Spec};
use crate::support::{LONG, poll};

/// Nodes, counted from 0.
pub struct Replicas {
    nodes: Vec<Node>,
    leader: usize,
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_cronkeeper");

/// Jobs enough for a takeover to have something to read, none of which comes due.
fn jobs() -> String {
    let job = |n| format!("  job-{n:02}:\n    schedule: \"0 0 29 2 *\"\n    command: [\"true\"]\n");
    (0..20).map(job).fold("jobs:\n".to_owned(), |all, job| all + &job)
}

impl Replicas {
    /// On no ZooKeeper, in one state directory.
    pub fn on_one_host() -> Self {
        let first = Spec::new(PROGRAM, "solo").jobs(&jobs());
        let others = (0..2).map(|_| Spec::new(PROGRAM, "solo").beside(&first)).collect::<Vec<_>>();
        Self::start([first].into_iter().chain(others))
    }

    /// On ZooKeeper, each with directories of its own.
    pub fn on_zookeeper(connect: &str) -> Self {
        let timeout = format!("{}s", SESSION.as_secs());
        let spec =
            |_| Spec::new(PROGRAM, "node").jobs(&jobs()).zookeeper(connect).option("--session-timeout", &timeout);
        Self::start((0..3).map(spec))
    }

    fn start(specs: impl Iterator<Item = Spec>) -> Self {
        let mut replicas = Self { nodes: Vec::new(), leader: 0 };
        for spec in specs {
            replicas.nodes.push(spec.start());
            replicas.settle(replicas.nodes.len() - 1);
            // It may have to wait for what the nodes of the row before left in the queue.
            replicas.nodes[0].await_event("leader.elected", LONG);
        }
        replicas
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A node.
    pub fn node(&self, i: usize) -> &Node {
        &self.nodes[i]
    }

    /// Which node leads.
    pub fn leader(&self) -> usize {
        self.leader
    }

    /// Waits for the first election after an instant; how long after it that was.
    pub fn await_leader(&mut self, after: Timestamp) -> Duration {
        let first = || {
            let elected = |(i, node): (usize, &Node)| Some((*elections(node, after).first()?, i));
            self.nodes.iter().enumerate().filter_map(elected).min()
        };
        let (at, leader) = poll(LONG, first).expect("a node leads in the end");
        self.leader = leader;
        Duration::try_from(at.duration_since(after)).expect("it is later")
    }

    /// How many elections there were after an instant.
    pub fn elections(&self, after: Timestamp) -> usize {
        self.nodes.iter().map(|node| elections(node, after).len()).sum()
    }

    /// Starts a node that has ended again, and waits until it stands in the queue.
    pub fn restart(&mut self, i: usize) {
        self.start_again(i);
        self.settle(i);
    }

    /// Starts a node that has ended again.
    pub fn start_again(&mut self, i: usize) {
        let spec = self.nodes[i].spec().clone();
        let old = std::mem::replace(&mut self.nodes[i], spec.start());
        drop(old);
    }

    /// Waits until a node just started leads or follows.
    pub fn settle(&self, i: usize) {
        let stands = |event: &Event| ["election.following", "takeover.done"].contains(&event.name());
        let found = self.nodes[i].events().wait(0, LONG, stands);
        assert!(found.is_some(), "a node finds its place; its log:\n{}", self.nodes[i].events().tail());
    }
}

/// When an event was logged.
pub fn instant(event: &Event) -> Timestamp {
    event.text("timestamp").parse().expect("each line has its instant")
}

fn elections(node: &Node, after: Timestamp) -> Vec<Timestamp> {
    node.events().named("leader.elected").iter().map(instant).filter(|&at| at > after).collect()
}
