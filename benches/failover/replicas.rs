//! Three nodes, one of which leads, and the notes of their supervisor.

use std::time::Duration;

use jiff::Timestamp;

use crate::beliefs::{self, Account};
use crate::support::command::CRONKEEPER;
use crate::support::node::{Event, Node, Spec};
use crate::support::proxy::Proxy;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll};

/// Longest wait for a node to lead. Only a mistake takes so long: what is measured is the time that it takes.
const PATIENCE: Duration = LONG.saturating_mul(5);
/// Number of nodes in a cluster.
const NODES: usize = 3;

/// Nodes, counted from 0.
pub struct Replicas {
    posts: Vec<Post>,
    witness: Witness,
    /// Of processes that are gone.
    past: Vec<Account>,
}

/// A node's place in the cluster, and the process that runs there now.
struct Post {
    node: Node,
    /// The link to each server; none if the server is reached directly.
    lines: Vec<Proxy>,
    stops: Vec<Timestamp>,
    ended: Option<Timestamp>,
}

/// Enough jobs to give a takeover something to read, none of which is due; and one that reports each second what it
/// sees.
fn jobs(witness: &Witness) -> String {
    let job = |n| format!("  job-{n:02}:\n    schedule: \"0 0 29 2 *\"\n    command: [\"true\"]\n");
    let witness_job =
        format!("jobs:\n  witness:\n    schedule: \"@every 1s\"\n    command: {}\n", witness.command(&[]));
    (0..20).map(job).fold(witness_job, |all, job| all + &job)
}

impl Replicas {
    /// Starts a cluster without ZooKeeper, in one state directory.
    pub fn on_one_host() -> Self {
        let witness = Witness::new();
        let first = Spec::new(CRONKEEPER, "solo").jobs(&jobs(&witness));
        let others = (1..NODES).map(|_| Spec::new(CRONKEEPER, "solo").beside(&first)).collect::<Vec<_>>();
        Self::start([first].into_iter().chain(others).map(|spec| (spec, Vec::new())), witness)
    }

    /// Starts a cluster on ZooKeeper, each node with its own directories.
    pub fn on_zookeeper(ensemble: &Ensemble, session: Duration) -> Self {
        let connect = format!("{}{}", ensemble.connect_string(), ensemble.chroot());
        Self::on(&["--zookeeper".to_owned(), connect], session)
    }

    /// Starts a cluster in the place that this option names, each node with its own directories.
    pub fn on(place: &[String; 2], session: Duration) -> Self {
        let witness = Witness::new();
        let specs: Vec<_> = (0..NODES).map(|_| (spec(&witness, place, session), Vec::new())).collect();
        Self::start(specs.into_iter(), witness)
    }

    /// The same, each node with its own link to each server.
    pub fn behind_lines(ensemble: &Ensemble, session: Duration) -> Self {
        let (witness, chroot) = (Witness::new(), ensemble.chroot());
        let behind = |_| {
            let lines: Vec<Proxy> = (0..ensemble.len()).map(|i| Proxy::to(ensemble.address_of(i))).collect();
            let servers: Vec<String> = lines.iter().map(Proxy::connect_string).collect();
            (spec(&witness, &["--zookeeper".to_owned(), format!("{}{chroot}", servers.join(","))], session), lines)
        };
        let specs: Vec<_> = (0..NODES).map(behind).collect();
        Self::start(specs.into_iter(), witness)
    }

    fn start(specs: impl Iterator<Item = (Spec, Vec<Proxy>)>, witness: Witness) -> Self {
        let mut replicas = Self { posts: Vec::new(), witness, past: Vec::new() };
        for (spec, lines) in specs {
            replicas.posts.push(Post { node: spec.start(), lines, stops: Vec::new(), ended: None });
            replicas.settle(replicas.posts.len() - 1);
        }
        replicas
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.posts.iter().map(|post| &post.node)
    }

    pub fn node(&self, i: usize) -> &Node {
        &self.posts[i].node
    }

    /// Index of the node that leads now, once one does. On a busy machine a term may end by itself between two trials:
    /// whoever ended the node that led before would wait for an election that does not come.
    pub fn leader(&self) -> usize {
        let leads = |(i, post): (usize, &Post)| Some((post.leads_since()?, i));
        let newest = || self.posts.iter().enumerate().filter_map(leads).max();
        let (_, leader) = poll(PATIENCE, newest).unwrap_or_else(|| panic!("a node leads in the end{}", self.logs()));
        leader
    }

    /// Waits for the first election after an instant; returns how long after.
    pub fn await_leader(&self, after: Timestamp) -> Duration {
        let first = || self.nodes().flat_map(|node| elections(node, after)).min();
        let at = poll(PATIENCE, first).unwrap_or_else(|| panic!("a node is elected in the end{}", self.logs()));
        since(at, after)
    }

    /// What the nodes have logged last.
    fn logs(&self) -> String {
        self.posts.iter().map(|post| format!("\n{}:\n{}", post.node.name(), post.node.events().tail())).collect()
    }

    /// Number of elections after an instant.
    pub fn elections(&self, after: Timestamp) -> usize {
        self.nodes().map(|node| elections(node, after).len()).sum()
    }

    /// Restarts a node that has ended, and waits until it is in the queue.
    pub fn restart(&mut self, i: usize) {
        self.start_again(i);
        self.settle(i);
    }

    /// Restarts a node that has ended.
    pub fn start_again(&mut self, i: usize) {
        let post = &mut self.posts[i];
        let again = post.node.spec().start();
        self.past.push(post.account());
        (post.node, post.stops, post.ended) = (again, Vec::new(), None);
    }

    /// Waits until a freshly started node leads or follows.
    pub fn settle(&self, i: usize) {
        self.node(i).await_in_queue();
    }

    /// Waits until a node follows again.
    pub fn await_following(&self, i: usize, after: Timestamp) {
        self.node(i).await_where("election.following", LONG, |event| instant(event) > after);
    }

    /// Kills a node's daemon, and notes the time of the kill, because on one host the kernel releases the lock before
    /// anybody sees the process dead.
    pub fn kill(&mut self, i: usize) {
        let post = &mut self.posts[i];
        post.ended = Some(Timestamp::now());
        post.node.kill9();
    }

    /// Stops a node with SIGSTOP.
    pub fn stop(&mut self, i: usize) {
        let post = &mut self.posts[i];
        post.node.stop();
        post.stops.push(Timestamp::now());
    }

    /// From now on nothing passes between a node and any server, and neither side is notified.
    pub fn part(&self, i: usize) {
        for line in &self.posts[i].lines {
            line.swallow_requests();
            line.swallow_replies();
        }
    }

    /// Lets a node reach the servers again. The kernel would retransmit lost data; here the links are new instead.
    pub fn heal(&self, i: usize) {
        for line in &self.posts[i].lines {
            line.pass();
            line.cut();
        }
    }

    /// All violations since the cluster was started.
    pub fn faults(&self) -> Vec<String> {
        let mut accounts = self.past.clone();
        accounts.extend(self.posts.iter().map(Post::account));
        beliefs::broken(&accounts, &self.witness.entries())
    }
}

fn spec(witness: &Witness, place: &[String; 2], session: Duration) -> Spec {
    let timeout = format!("{}s", session.as_secs());
    Spec::new(CRONKEEPER, "node").jobs(&jobs(witness)).on_service(place).option("--session-timeout", &timeout)
}

impl Post {
    /// When the process that runs here was elected; `None` if it does not lead.
    fn leads_since(&self) -> Option<Timestamp> {
        let events = self.node.events();
        let newest = |name| events.named(name).iter().map(instant).max();
        let over = newest("leader.lost").max(newest("leader.resigned"));
        newest("leader.elected").filter(|&at| self.ended.is_none() && Some(at) > over)
    }

    fn account(&self) -> Account {
        let (node, stops) = (self.node.name().to_owned(), self.stops.clone());
        Account { node, log: self.node.log(), stops, ended: self.ended }
    }
}

/// The time at which an event was logged.
pub fn instant(event: &Event) -> Timestamp {
    event.text("timestamp").parse().expect("each line has its instant")
}

/// How long after another an instant was; none if it was before.
pub fn since(at: Timestamp, before: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(before)).unwrap_or_default()
}

fn elections(node: &Node, after: Timestamp) -> Vec<Timestamp> {
    node.events().named("leader.elected").iter().map(instant).filter(|&at| at > after).collect()
}
