//! Many jobs due at one instant: each runs once, and the leader keeps its term.
//!
//! That it keeps its term with shorter sessions too is measured in `benches/burst.rs`: on a machine with other work, a
//! session of 4 s may end by that work alone.

use crate::support::burst::Burst;
use crate::support::node::Node;
use crate::support::until;
use crate::support::zookeeper::Ensemble;

use super::cluster::Place;

const SESSION: &str = "10s";

/// Two nodes that receive the jobs some time before they are due.
fn in_time(ensemble: &Ensemble, jobs: usize) -> (Place, Burst, Vec<Node>) {
    for seconds in [10, 20, 40] {
        let place = Place::on(ensemble);
        let burst = Burst::new(jobs, seconds);
        let spec = |name| place.node(name).option("--session-timeout", SESSION).jobs(&burst.yaml());
        let nodes: Vec<Node> = ["a", "b"].map(|name| spec(name).start()).into();
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
