//! What a large cluster costs: packets, steps, watches and bytes, counted on virtual time.
//!
//! The ordinary run compares small clusters with others that have more jobs or more nodes. `CRONKEEPER_LONG=1` runs a
//! hundred nodes with a hundred thousand jobs, and prints what they cost.

use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;

use super::executor::Executor;
use super::facts::Fact;
use super::faults::Fault;
use super::jobs::Cast;
use super::ledger::ops;
use super::nodes::Nodes;
use super::transcript::Transcript;
use super::world::{Shared, Timing};

const T: Duration = Duration::from_secs(4);
/// How long costs are counted.
const WINDOW: Duration = Duration::from_secs(60);

/// The size of a cluster.
#[derive(Clone, Copy, Debug)]
struct Size {
    nodes: usize,
    jobs: usize,
    runs_a_second: usize,
}

/// What a cluster costs in a minute, and what its failover costs.
#[derive(Clone, Copy, Debug)]
struct Costs {
    runs: usize,
    /// Packets between nodes and servers, and among servers.
    packets: u64,
    /// Steps of the simulation: packets, timers and turns of tasks.
    steps: u64,
    /// Bytes of data in committed operations.
    bytes: usize,
    /// Watches at the end.
    watches: usize,
    /// From the leader's end until the next one has taken over, with the packets and steps in it.
    failover: Counted,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    took: Duration,
    packets: u64,
    steps: u64,
}

struct Cluster {
    executor: Executor<Nodes<true>>,
    steps: u64,
}

impl Cluster {
    fn start(size: Size) -> Self {
        let timing = Timing { tick: Duration::from_secs(1), session_timeout: T, sync_limit: 5 };
        let world = Shared::new(1, size.nodes, timing, Transcript::off());
        world.lock().env.network.calm();
        let nodes = Nodes::without_operators(1, size.nodes, Cast::mostly_idle(size.jobs, size.runs_a_second));
        let mut cluster = Self { executor: Executor::new(world, nodes), steps: 0 };
        cluster.run(Duration::from_secs(5), |_| {});
        for node in 0..size.nodes {
            cluster.executor.start(node);
        }
        // By then all have joined, and the leader has recorded each job.
        cluster.run(Duration::from_secs(60), |_| {});
        cluster
    }

    fn run(&mut self, time: Duration, mut each: impl FnMut(&Fact)) {
        let until = self.executor.now() + time;
        while let Some(facts) = self.executor.step(until) {
            self.steps += 1;
            facts.iter().for_each(&mut each);
        }
    }

    fn packets(&self) -> u64 {
        self.executor.world.lock().env.packets
    }

    /// Ends the leader's host and runs until another node leads.
    fn fail_over(&mut self, leader: usize) -> Counted {
        let (began, packets, steps) = (self.executor.now(), self.packets(), self.steps);
        self.executor.fault(Fault::Kill { node: leader, with_host: true });
        let limit = began + T * 10;
        loop {
            let facts = self.executor.step(limit).expect("another node leads soon");
            self.steps += 1;
            if facts.iter().any(|fact| matches!(fact, Fact::Elected { .. })) {
                let took = self.executor.now().since(began);
                return Counted { took, packets: self.packets() - packets, steps: self.steps - steps };
            }
        }
    }
}

fn costs(size: Size) -> Costs {
    let mut cluster = Cluster::start(size);
    let (packets, steps) = (cluster.packets(), cluster.steps);
    let (mut runs, mut bytes, mut leader) = (0, 0, None);
    cluster.run(WINDOW, |fact| match fact {
        Fact::Spawned(process) => {
            runs += 1;
            leader = Some(process.node);
        }
        Fact::Committed { txn, .. } => bytes += ops(txn).iter().map(data).sum::<usize>(),
        _ => {}
    });
    let watches = cluster.executor.world.lock().clients.watched("/").values().sum();
    let (packets, steps) = (cluster.packets() - packets, cluster.steps - steps);
    let failover = cluster.fail_over(leader.expect("runs need a leader"));
    Costs { runs, packets, steps, bytes, watches, failover }
}

fn data(op: &Op) -> usize {
    match op {
        Op::Create { data, .. } | Op::Set { data, .. } => data.len(),
        _ => 0,
    }
}

/// `more` is at most `factor` times `less`, with some room for chance.
fn assert_within(what: &str, less: u64, more: u64, factor: f64) {
    let most = less as f64 * factor * 1.15 + 50.0;
    assert!(more as f64 <= most, "{what}: {less} became {more}, more than {factor} times as many");
}

#[test]
fn twice_the_jobs_cost_no_more_for_as_many_runs_and_twice_the_nodes_at_most_twice() {
    let size = Size { nodes: 5, jobs: 1_000, runs_a_second: 10 };
    let one = costs(size);
    let expected = WINDOW.as_secs() as usize * size.runs_a_second;
    assert!(one.runs > expected * 8 / 10 && one.runs < expected * 12 / 10, "{one:?}");
    let jobs = costs(Size { jobs: 2_000, ..size });
    let each = |costs: &Costs, count: u64| count * 1_000 / costs.runs as u64;
    assert_within("packets of a thousand runs", each(&one, one.packets), each(&jobs, jobs.packets), 1.0);
    assert_within("steps of a thousand runs", each(&one, one.steps), each(&jobs, jobs.steps), 1.0);
    assert_within("bytes of a thousand runs", each(&one, one.bytes as u64), each(&jobs, jobs.bytes as u64), 1.0);
    assert_within("watches", one.watches as u64, jobs.watches as u64, 1.0);
    let nodes = costs(Size { nodes: 10, ..size });
    assert_within("packets", one.packets, nodes.packets, 2.0);
    assert_within("steps", one.steps, nodes.steps, 2.0);
    assert_within("watches", one.watches as u64, nodes.watches as u64, 2.0);
    assert_within("packets of a failover", one.failover.packets, nodes.failover.packets, 2.0);
    assert_within("steps of a failover", one.failover.steps, nodes.failover.steps, 2.0);
    assert!(nodes.failover.took < one.failover.took + T, "{:?} and {:?}", one.failover, nodes.failover);
}

/// What more nodes cost does not depend on the number of jobs: nothing grows with nodes times jobs.
#[test]
fn nodes_and_jobs_do_not_multiply() {
    let is_long = std::env::var_os("CRONKEEPER_LONG").is_some();
    let ([few_nodes, many_nodes], [few_jobs, many_jobs]) =
        if is_long { ([3, 100], [1_000, 100_000]) } else { ([3, 12], [600, 4_000]) };
    let costs = |nodes, jobs| {
        let size = Size { nodes, jobs, runs_a_second: 10 };
        let costs = costs(size);
        println!("{size:?}: {costs:?}");
        costs
    };
    let [small, with_nodes] = [costs(few_nodes, few_jobs), costs(many_nodes, few_jobs)];
    let [with_jobs, large] = [costs(few_nodes, many_jobs), costs(many_nodes, many_jobs)];
    let sum = |cost: fn(&Costs) -> u64| (cost(&with_nodes) + cost(&with_jobs)).saturating_sub(cost(&small));
    for (what, cost) in [
        ("packets", (|costs| costs.packets) as fn(&Costs) -> u64),
        ("steps", |costs| costs.steps),
        ("bytes", |costs| costs.bytes as u64),
        ("watches", |costs| costs.watches as u64),
    ] {
        assert_within(what, sum(cost), cost(&large), 1.1);
    }
}
