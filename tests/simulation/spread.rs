//! What placed jobs gain from more nodes, and what they cost, counted on virtual time.
//!
//! `CRONKEEPER_LONG=1` runs five thousand jobs at once instead of one thousand, and prints what they cost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::job::RunOn;

use super::executor::Executor;
use super::facts::Fact;
use super::jobs::Cast;
use super::ledger::{below, ops, written};
use super::nodes::Nodes;
use super::transcript::Transcript;
use super::world::{Shared, Timing};

const RUNNING: &str = "/cronkeeper/running";
/// How long a warden needs to start a process, on a slow host and on a fast one.
const SLOW: Duration = Duration::from_millis(4);
const FAST: Duration = Duration::from_micros(250);
/// Most attempts of a node that it has not accepted.
const MOST_OPEN: usize = 128;
/// What a node accepts at once: what waits for room gets it where there is some.
const AT_ONCE: usize = 64;

/// What became of jobs that were due at once.
#[derive(Debug, Default)]
struct Burst {
    /// From the first start to the last.
    took: Duration,
    /// From the first placing to the last acceptance.
    accepted_within: Duration,
    starts: BTreeMap<usize, usize>,
    most_open: usize,
    /// Transactions that place something.
    placings: usize,
    /// Until the last start.
    packets: u64,
    steps: u64,
}

/// So many jobs that are due at once, each of them on one of so many nodes, or on every one.
fn burst(jobs: usize, run_on: RunOn, nodes: usize, start: Duration) -> Burst {
    let timing = Timing { tick: Duration::from_secs(1), session_timeout: Duration::from_secs(4), sync_limit: 5 };
    let world = Shared::new(1, nodes, timing, Transcript::off());
    world.lock().env.network.calm();
    let cast = Cast::burst(jobs).placed(run_on);
    let mut executor = Executor::new(world, Nodes::without_operators(1, nodes, cast));
    executor.world.lock().wardens.slow(Some(start));
    (0..nodes).for_each(|node| executor.start(node));
    let runs = if run_on == RunOn::Every { jobs * nodes } else { jobs };
    let (mut burst, mut open, mut started) = (Burst::default(), BTreeMap::new(), BTreeSet::new());
    let (mut first_start, mut first_placing, mut packets) = (None, None, 0);
    let limit = executor.now() + Duration::from_secs(110);
    while started.len() < runs {
        let facts = executor.step(limit).expect("all are started before they are due again");
        let now = executor.now();
        burst.steps += u64::from(first_placing.is_some());
        for fact in facts {
            match fact {
                Fact::Spawned(process) => {
                    assert!(started.insert((process.run, process.node)), "one is started twice");
                    *burst.starts.entry(process.node).or_default() += 1;
                    burst.took = now.since(*first_start.get_or_insert(now));
                }
                Fact::Committed { txn, .. } => {
                    let placed: Vec<&str> = ops(&txn).iter().filter_map(node_of_offer).collect();
                    burst.placings += usize::from(!placed.is_empty());
                    if !placed.is_empty() && first_placing.is_none() {
                        first_placing = Some(now);
                        packets = executor.world.lock().env.packets;
                    }
                    for node in placed {
                        *open.entry(node.to_owned()).or_insert(0) += 1;
                    }
                    for node in ops(&txn).iter().filter_map(node_of_answer) {
                        *open.entry(node.to_owned()).or_insert(0) -= 1;
                        burst.accepted_within = now.since(first_placing.expect("it was placed"));
                    }
                    burst.most_open = open.values().copied().max().unwrap_or_default().max(burst.most_open);
                }
                _ => {}
            }
        }
    }
    burst.packets = executor.world.lock().env.packets - packets;
    println!("{jobs} jobs, {run_on:?}, {nodes} nodes: {burst:?}");
    burst
}

/// The node that an operation offers a run to.
fn node_of_offer(op: &Op) -> Option<&str> {
    let Op::Create { path, .. } = op else { return None };
    offer(path)
}

/// The node whose offer an operation removes.
fn node_of_answer(op: &Op) -> Option<&str> {
    let Op::Delete { path, .. } = op else { return None };
    offer(path)
}

fn offer(path: &str) -> Option<&str> {
    path.strip_prefix("/cronkeeper/offers/")?.split_once('/').map(|(node, _)| node)
}

impl Burst {
    /// By how many more runs one node has started than another.
    fn unevenness(&self) -> usize {
        let most = self.starts.values().max().copied().unwrap_or_default();
        most - self.starts.values().min().copied().unwrap_or_default()
    }
}

fn jobs() -> usize {
    if std::env::var_os("CRONKEEPER_LONG").is_some() { 5_000 } else { 1_000 }
}

#[test]
fn five_nodes_take_a_burst_in_a_fifth_of_the_time_and_each_the_same_part_of_it() {
    let jobs = jobs();
    let [one, five] = [1, 5].map(|nodes| burst(jobs, RunOn::Any, nodes, SLOW));
    assert!(five.took.as_secs_f64() <= 0.23 * one.took.as_secs_f64(), "{:?} and {:?}", five.took, one.took);
    assert!(five.unevenness() <= AT_ONCE, "{five:?}");
    assert!(one.most_open <= MOST_OPEN && five.most_open <= MOST_OPEN, "{} and {}", one.most_open, five.most_open);
}

/// What nobody waits for is spread evenly, and what a burst costs grows with its runs and with the nodes, and not with their product.
#[test]
fn a_burst_is_spread_evenly_and_runs_and_nodes_do_not_multiply() {
    let few = 1_000;
    let fitting = burst(MOST_OPEN * 4, RunOn::Any, 5, FAST);
    assert!(fitting.unevenness() <= 1, "nobody waits for room: {fitting:?}");
    let [small, with_nodes] = [5, 15].map(|nodes| burst(few, RunOn::Any, nodes, FAST));
    let [with_runs, large] = [5, 15].map(|nodes| burst(few * 2, RunOn::Any, nodes, FAST));
    for (what, cost) in [("steps", (|burst| burst.steps) as fn(&Burst) -> u64), ("packets", |burst| burst.packets)] {
        let sum = (cost(&with_nodes) + cost(&with_runs)).saturating_sub(cost(&small));
        let most = sum as f64 * 1.25 + 100.0;
        assert!(cost(&large) as f64 <= most, "{what}: {} of {sum}", cost(&large));
        assert!(cost(&with_runs) as f64 <= cost(&small) as f64 * 3.0, "{what}: {with_runs:?}, {small:?}");
    }
}

#[test]
fn every_node_accepts_its_shares_soon() {
    let nodes = if std::env::var_os("CRONKEEPER_LONG").is_some() { 100 } else { 20 };
    let burst = burst(10, RunOn::Every, nodes, FAST);
    assert_eq!(burst.starts.values().copied().collect::<BTreeSet<_>>(), BTreeSet::from([10]));
    assert!(burst.accepted_within <= Duration::from_millis(300), "{burst:?}");
    // Twenty shares fit a commit.
    assert!(burst.placings <= 10 * nodes.div_ceil(20), "{burst:?}");
}

/// What a run costs the store: transactions, operations and bytes.
#[test]
fn a_placed_run_costs_one_write_more_than_one_of_the_leader() {
    let cost = |cast: Cast| {
        let timing = Timing { tick: Duration::from_secs(1), session_timeout: Duration::from_secs(4), sync_limit: 5 };
        let world = Shared::new(1, 3, timing, Transcript::off());
        world.lock().env.network.calm();
        world.lock().wardens.slow(Some(FAST));
        let mut executor = Executor::new(world, Nodes::without_operators(1, 3, cast));
        (0..3).for_each(|node| executor.start(node));
        let limit = executor.now() + Duration::from_secs(120);
        let begun = executor.now() + Duration::from_secs(60);
        let (mut runs, mut writes, mut operations, mut bytes) = (0, 0, 0, 0);
        while let Some(facts) = executor.step(limit) {
            for fact in facts.iter().filter(|_| executor.now() >= begun) {
                match fact {
                    Fact::Spawned(_) => runs += 1,
                    Fact::Committed { txn, .. } => {
                        let records = ops(txn).iter().filter(|op| is_of_a_run(op)).count();
                        writes += records;
                        operations += ops(txn).len();
                        bytes += ops(txn).iter().map(data).sum::<usize>();
                    }
                    _ => {}
                }
            }
        }
        let each = |count: usize| count as f64 / f64::from(runs);
        println!(
            "{runs} runs: {:.1} writes, {:.1} operations, {:.0} bytes each",
            each(writes),
            each(operations),
            each(bytes)
        );
        [each(writes), each(operations), each(bytes)]
    };
    let cast = || Cast::mostly_idle(600, 10);
    let [own, placed] = [cast(), cast().placed(RunOn::Any)].map(cost);
    assert!(placed[0] <= own[0] + 1.1 && placed[1] <= own[1] + 4.0 && placed[2] <= 1_750.0, "{own:?}, {placed:?}");
}

/// True for a write of a run's record.
fn is_of_a_run(op: &Op) -> bool {
    let removed = matches!(op, Op::Delete { path, .. } if below(path, RUNNING).is_some());
    removed || written(op, RUNNING).is_some()
}

fn data(op: &Op) -> usize {
    match op {
        Op::Create { data, .. } | Op::Set { data, .. } => data.len(),
        Op::Check { .. } | Op::Delete { .. } => 0,
    }
}
