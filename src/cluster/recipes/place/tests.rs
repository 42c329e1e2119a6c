//! Tests of the number of round trips per takeover.

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::{ByHand, OWNER, Server};
use crate::test_records::record;
use crate::zookeeper::session_id;
use cronkeeper_core::run::RunRecord;

fn candidate() -> CandidateName {
    CandidateName("_c_1-lock-0000000001".into())
}

/// Opens a term on a ledger with these jobs and runs. Returns the snapshot and the number of round trips.
fn opened(jobs: usize, runs: &[RunRecord], proof: Proof) -> (Snapshot, usize) {
    let server = Server::default();
    let context = server.context(ByHand::default());
    {
        let mut tree = server.tree();
        tree.put_ephemeral(&paths::candidate(&candidate()), OWNER);
        tree.put_ephemeral(&context.member(), OWNER);
        let record = json(&crate::recipes::transaction::tests::mark(0, "1-0"));
        (0..jobs).for_each(|n| tree.put(&paths::under(paths::JOBS, &format!("job-{n}")), record.clone()));
        runs.iter().for_each(|run| tree.put(&paths::running(&run.id()), json(run)));
    }
    let opening = open(context, candidate(), BTreeSet::new(), proof, OpenAt::Queue);
    let (opened, rounds) = server.round_trips(opening);
    let opened = opened.unwrap_or_else(|error| panic!("{error:?}")).expect("the candidate is there");
    assert_eq!(opened.written.is_some(), proof == Proof::Write);
    (*opened.snapshot, rounds)
}

#[test]
fn a_takeover_is_three_round_trips_whatever_the_number_of_jobs() {
    for proof in [Proof::Lease, Proof::Write] {
        assert_eq!(opened(0, &[], proof).1, 2);
        let (snapshot, rounds) = opened(1_200, &[], proof);
        assert_eq!((snapshot.jobs.len(), rounds), (1_200, 3));
    }
}

#[test]
fn with_runs_in_flight_it_is_one_more_to_find_their_owners() {
    let (snapshot, rounds) = opened(3, &[record("job-0", 60, &session_id(OWNER).0)], Proof::Lease);
    assert_eq!((snapshot.running.len(), rounds), (1, 4));
}
