//! Many jobs due at one instant, with the shortest recommended session: each runs once, and the leader keeps its term.

use crate::support::burst::Burst;
use crate::support::node::Node;
use crate::support::until;
use crate::support::zookeeper::Ensemble;

use super::cluster::{Place, usual};

/// Two nodes that receive the jobs some time before they are due.
fn in_time(ensemble: &Ensemble, jobs: usize) -> (Place, Burst, Vec<Node>) {
    for seconds in [10, 20, 40] {
        let place = Place::on(ensemble);
        let burst = Burst::new(jobs, seconds);
        let nodes: Vec<Node> = ["a", "b"].map(|name| usual(place.node(name)).jobs(&burst.yaml()).start()).into();
        if burst.await_held(&nodes) {
            return (place, burst, nodes);
        }
    }
    panic!("two nodes need more than 40 s to start with {jobs} jobs");
}

fn all_run_once(jobs: usize) {
    // An ensemble of its own, so that other tests' servers do not compete for the disk.
    let ensemble = Ensemble::start(1);
    let (place, burst, nodes) = in_time(&ensemble, jobs);
    burst.await_ends(&nodes);
    let faults = burst.faults(&nodes);
    assert!(faults.is_empty(), "{faults:#?}");
    let run = |name: &str| format!("{name}.{}", burst.at().strftime("%Y%m%dT%H%M%SZ"));
    for name in burst.names() {
        until("each end is in the ledger", || !place.history(&name).is_empty());
        let history = place.history(&name);
        let outcomes: Vec<_> = history.iter().map(|(run, record)| (run.clone(), &record["outcome"])).collect();
        assert_eq!(outcomes, [(run(&name), &"success".into())]);
    }
}

#[test]
fn three_hundred_jobs_of_one_instant_all_run_once() {
    all_run_once(300);
}

#[test]
fn two_thousand_jobs_of_one_instant_all_run_once() {
    all_run_once(2_000);
}
