//! How long a takeover takes in a large cluster on ZooKeeper.
//!
//! Three real nodes have all runs. All others are backends in this process: a hundred daemons on one machine would only
//! show that machine.

use std::iter::once;
use std::thread::sleep;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;

use crate::contender::{Contender, leave};
use crate::short::pick;
use crate::support::command::CRONKEEPER;
use crate::support::node::Spec;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};
use crate::table::Table;
use crate::{in_line, in_seconds};

/// The nodes that have runs, and their label.
const REAL: [&str; 3] = ["a", "b", "c"];

/// How large a cluster is.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    jobs: usize,
    /// Runs in flight of as many of the jobs. No other job is due.
    placed: usize,
}

/// From SIGTERM of the leader to the time at which the next one has taken over.
pub fn measure(ensemble: &Ensemble, trials: usize, table: &mut Table) {
    let jobs = pick(10_000, 50);
    let few = Size { nodes: REAL.len(), jobs, placed: 0 };
    let many = Size { nodes: pick(100, 5), jobs, placed: pick(1_000, 8) };
    for size in [few, Size { nodes: many.nodes, ..few }, Size { placed: many.placed, ..few }, many] {
        let Size { nodes, jobs, placed } = size;
        let row = format!("takeover: {nodes} nodes, {jobs} jobs, {placed} placed");
        if table.wants(&row) {
            // Whoever has resigned is not in the queue again, so each trial needs a cluster of its own.
            table.times(&row, (0..trials).map(|_| took(ensemble, size)).collect(), &[], &[]);
        }
    }
}

fn took(ensemble: &Ensemble, size: Size) -> Duration {
    let connect = format!("{}{}", ensemble.connect_string(), ensemble.chroot());
    let due = in_seconds(20);
    let idle = |n| format!("  idle-{n:05}: {{schedule: 'H H 29 2 *', command: ['true']}}\n");
    let command = "[/bin/sleep, '86400'], run_on: any, run_where: real";
    let placed = |n| format!("  placed-{n:05}: {{schedule: '@at {due}', command: {command}}}\n");
    let all = (size.placed..size.jobs).map(idle).chain((0..size.placed).map(placed));
    let file = once("jobs:\n".to_owned()).chain(all).collect::<String>();
    let spec = |name| Spec::new(CRONKEEPER, name).zookeeper(&connect).option("--label", "real").jobs(&file);
    let nodes = in_line(REAL.map(spec));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be had");
    let contenders = runtime.block_on(queued(&connect, size.nodes - REAL.len()));
    if size.placed > 0 {
        let early = Duration::try_from(due.duration_since(Timestamp::now()));
        sleep(early.expect("the nodes are in the queue before the runs are due"));
    }
    let count = |name: &str| nodes.iter().map(|node| node.events().count(name)).sum::<usize>();
    until("all runs have begun", || count("run.started") == size.placed);
    let at = Timestamp::now();
    nodes[0].signal(Signal::TERM);
    let done = nodes[1].await_event("takeover.done", LONG);
    assert_eq!((count("leader.elected"), count("run.finished")), (2, 0), "one takeover, which ends no run");
    runtime.block_on(leave(contenders));
    let done: Timestamp = done.text("timestamp").parse().expect("each line has its instant");
    Duration::try_from(done.duration_since(at)).unwrap_or_default()
}

async fn queued(connect: &str, count: usize) -> Vec<Contender> {
    let mut contenders = Vec::new();
    for number in 0..count {
        let mut contender = Contender::start(connect, number);
        contender.await_place().await;
        contenders.push(contender);
    }
    contenders
}
