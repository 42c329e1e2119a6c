//! Benchmark of placed runs when a host dies: `cargo bench --bench placed -- [--service NAME] [TRIALS] [WORD]`.
//!
//! On nodes of a real service, with sessions of 4 s, it measures how late runs of `run_on: any` begin when a node dies
//! while some hundred of them are being placed, and when the leader dies after it has placed them and before they are
//! due; and, on ZooKeeper, how long a takeover takes with a thousand of them in flight in a cluster of a hundred nodes.
//! Slowness is only printed. The run fails if a job ran twice, if one neither ran nor was skipped, or if the leader placed
//! another run on a node that it knows does not answer. With a word, it measures only the rows whose name contains it.
//!
//! ```text
//! deaths     a node dies, or the leader
//! takeover   many nodes, jobs and placed runs
//! ```

#[path = "shared/contender.rs"]
mod contender;
#[path = "placed/deaths.rs"]
mod deaths;
#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;
#[path = "placed/takeover.rs"]
mod takeover;

use std::process::ExitCode;

use jiff::Timestamp;

use self::service::Service;
use self::short::pick;
use self::support::node::{Node, Spec};
use self::table::Table;

fn main() -> ExitCode {
    let words = service::words();
    let trials = words.iter().find_map(|word| word.parse().ok()).unwrap_or(pick(10, 1)).max(1);
    let mut table = Table::new(words.into_iter().find(|word| word.parse::<usize>().is_err()));
    let servers = Service::start();
    deaths::of_a_node(&servers, trials.min(5), &mut table);
    deaths::of_the_leader(&servers, trials, &mut table);
    if let Service::ZooKeeper(ensemble) = &servers {
        takeover::measure(ensemble, trials, &mut table);
    }
    table.verdict()
}

/// An instant of whole seconds, some time from now.
fn in_seconds(seconds: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + seconds).expect("an instant of this century")
}

/// Starts nodes, each when the one before is in the queue. So the first leads.
fn in_line(specs: impl IntoIterator<Item = Spec>) -> Vec<Node> {
    let in_queue = |spec: Spec| {
        // In the short form a session outlives whatever else the machine does.
        let spec = spec.option("--session-timeout", pick("4s", "10s")).option("--log", "cronkeeper=debug,warn");
        let node = spec.start();
        node.await_in_queue();
        node
    };
    specs.into_iter().map(in_queue).collect()
}
