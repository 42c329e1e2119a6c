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

/// What is wrong with those ahead of this node, in a queue of these entries and its own candidate.
fn damaged(persistent: &[&str], of_sessions: &[&str]) -> Vec<String> {
    let server = Server::default();
    let context = server.context(ByHand::default());
    let own = format!("{}0000000009", context.me.prefix);
    {
        let mut tree = server.tree();
        tree.put(paths::LEADER, Vec::new());
        persistent.iter().for_each(|name| tree.put(&paths::under(paths::LEADER, name), Vec::new()));
        of_sessions.iter().for_each(|name| tree.put_ephemeral(&paths::under(paths::LEADER, name), OWNER + 1));
        tree.put_ephemeral(&paths::under(paths::LEADER, &own), OWNER);
    }
    let (look, _) = server.round_trips(look(context.clone()));
    let (ahead, _) = server.round_trips(read_ahead(&context));
    let looked = match look.unwrap() {
        Look::Behind(_, _, damaged) => damaged,
        Look::First(_) => Vec::new(),
        Look::Gone => panic!("it has a candidate"),
    };
    assert_eq!(looked, ahead.unwrap().damaged, "with or without a watch");
    looked.iter().map(ToString::to_string).collect()
}

/// Also those that do not wait for it directly: else only one node of many would say why nobody leads.
#[test]
fn every_node_behind_a_persistent_entry_that_is_first_says_that_nobody_can_lead_and_how_to_delete_it() {
    let entry = "x-0000000001";
    let how = "`deleteall /leader/x-0000000001` in zkCli.sh, with the nodes' connect string";
    let expected = format!("/leader/{entry}: {}: {how}", election::BLOCKED);
    for others in [&[][..], &["y-0000000002"]] {
        assert_eq!(damaged(&[entry], others).join("\n"), expected);
    }
    let [blocks, last] = &damaged(&[entry, "z-0000000003"], &["y-0000000002"])[..] else { panic!("two") };
    assert_eq!(*blocks, expected);
    assert!(last.starts_with("/leader/z-0000000003: it precedes this node"), "{last}");
}

#[test]
fn an_entry_that_does_no_harm_does_not_count_as_what_keeps_all_from_leading() {
    assert_eq!(damaged(&["config", "x-123"], &[]), [""; 0], "without a number it is no entry");
    assert_eq!(damaged(&["z-0000000010"], &[]), [""; 0], "behind this node");
    assert_eq!(damaged(&[], &["y-0000000002"]), [""; 0], "another client's, which goes with its session");
    let [last] = &damaged(&["z-0000000003"], &["y-0000000002"])[..] else { panic!("one") };
    assert!(!last.contains(election::BLOCKED), "somebody leads: {last}");
}

#[test]
fn with_runs_in_flight_it_is_one_more_to_find_their_owners() {
    let (snapshot, rounds) = opened(3, &[record("job-0", 60, &session_id(OWNER).0)], Proof::Lease);
    assert_eq!((snapshot.running.len(), rounds), (1, 4));
}
