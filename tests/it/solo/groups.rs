//! Many runs that wait for one place in a concurrency group.

use std::time::Duration;

use crate::support::burst::Burst;
use crate::support::node::Node;
use crate::support::process::processor_time;
use crate::support::until;

use super::fixture::{node, status};

/// A node that has loaded the jobs some time before they are due.
fn in_time(jobs: usize) -> (Burst, [Node; 1]) {
    for seconds in [8, 16, 32] {
        let burst = Burst::new(jobs, seconds).grouped();
        let nodes = [node("only").jobs(&burst.yaml()).start()];
        if burst.await_held(&nodes) {
            return (burst, nodes);
        }
    }
    panic!("a node needs more than 32 s to start with {jobs} jobs");
}

/// CPU time of the daemon from the time at which `count` jobs are due until the last has run.
fn used(jobs: usize) -> Duration {
    let (burst, nodes) = in_time(jobs);
    let before = processor_time(nodes[0].pid());
    until("the jobs wait", || {
        let status = status(nodes[0].spec());
        let runs =
            status["runs"].as_array().map_or(0, |runs| runs.iter().filter(|run| run["state"] == "queued").count());
        runs >= jobs
    });
    burst.release();
    burst.await_ends(&nodes);
    let faults = burst.faults(&nodes);
    assert!(faults.is_empty(), "{faults:#?}");
    processor_time(nodes[0].pid()) - before
}

#[test]
fn a_thousand_that_wait_for_one_place_all_run_once_and_cost_four_times_what_a_quarter_of_them_costs() {
    let (few, many) = (used(250), used(1_000));
    // Checking every waiting run whenever one ends would make it sixteen times as much.
    assert!(many < few * 8, "250 need {few:?}, 1000 need {many:?}");
}
