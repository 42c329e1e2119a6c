//! Tests of takeovers, of who leads, and of leaving.

use std::sync::Arc;

use super::*;
use crate::recipes::context::json;
use crate::recipes::reader;
use crate::recipes::tests_support::{ByHand, OWNER, Right, Server, member};
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

/// A queue of host-b, host-c and this node, in which nobody has led yet.
struct InLine {
    server: Server,
    context: SessionContext<Server, ByHand>,
}

/// The first entry of that queue, and the second.
const AHEAD: [(&str, &str); 2] = [("x-0000000001", "host-b"), ("x-0000000002", "host-c")];

impl InLine {
    fn new() -> Self {
        let server = Server::default();
        let context = server.context(ByHand::default());
        {
            let mut tree = server.tree();
            tree.put(paths::LEADER, Vec::new());
            for (number, (name, node)) in (1..).zip(AHEAD) {
                tree.put_ephemeral_with(&paths::under(paths::LEADER, name), entry_of(node), OWNER + number);
            }
            tree.put_ephemeral(&paths::under(paths::LEADER, &format!("{}0000000009", context.me.prefix)), OWNER);
        }
        Self { server, context }
    }

    /// The opening write of a term of this node.
    fn open(&self, node: &str) {
        self.server.tree().put(paths::LEADER, entry_of(node));
    }

    /// Who leads, as each kind of reader reads it.
    fn leader(&self) -> Option<String> {
        let look = match self.server.round_trips(look(self.context.clone())).0.unwrap() {
            Look::Behind(behind, ..) => behind.leader_node().cloned(),
            Look::First(_) | Look::Gone => panic!("others are ahead"),
        };
        let ahead = self.server.round_trips(read_ahead(&self.context)).0.unwrap().behind.unwrap();
        assert_eq!(ahead.first_node, Some(NodeName::new("host-b")), "whoever leads");
        let observed = self.server.round_trips(observe(&self.context)).0.unwrap().leader;
        let queue = self.server.round_trips(reader::queue(&self.server)).0.unwrap();
        assert_eq!(queue.candidates.len(), 3);
        for other in [ahead.leader_node(), observed.as_ref(), queue.leader.as_ref()] {
            assert_eq!(other, look.as_ref());
        }
        look.map(|node| node.to_string())
    }
}

fn entry_of(node: &str) -> Vec<u8> {
    format!(r#"{{"v":1,"node":"{node}","pid":7}}"#).into()
}

#[test]
fn the_first_candidate_leads_once_it_has_opened_a_term() {
    let queue = InLine::new();
    assert_eq!(queue.leader(), None, "nobody has led");
    queue.open("host-a");
    assert_eq!(queue.leader(), None, "another has led before");
    queue.open("host-b");
    assert_eq!(queue.leader().as_deref(), Some("host-b"));
    queue.open("host-c");
    assert_eq!(queue.leader(), None, "the second cannot lead before the first is gone");
}

#[test]
fn a_term_of_an_earlier_candidate_does_not_make_a_node_the_leader() {
    let queue = InLine::new();
    queue.open("host-b");
    let first = paths::under(paths::LEADER, AHEAD[0].0);
    queue.server.tree().remove(&first);
    queue.server.tree().put_ephemeral_with(&first, entry_of("host-b"), OWNER + 1);
    assert_eq!(queue.leader(), None, "it is back, and has not led since");
}

#[test]
fn a_leader_that_may_not_write_to_the_queue_says_in_its_member_that_it_leads() {
    let queue = InLine::new();
    let (mut leader, path) = (member("host-b"), paths::member(&NodeName::new("host-b")));
    queue.server.tree().put(&path, json(&leader));
    assert_eq!(queue.leader(), None);
    leader.opened = Some(CandidateName(AHEAD[1].0.into()));
    queue.server.tree().put(&path, json(&leader));
    assert_eq!(queue.leader(), None, "with another candidate");
    leader.opened = Some(CandidateName(AHEAD[0].0.into()));
    queue.server.tree().put(&path, json(&leader));
    assert_eq!(queue.leader().as_deref(), Some("host-b"));
}

/// host-a is a member with a place, and about to leave. Its process has started at second 0.
fn leaving() -> (Server, SessionContext<Server, ByHand>) {
    let server = Server::default();
    let context = server.context(ByHand::default());
    {
        let mut tree = server.tree();
        tree.put(paths::LEADER, Vec::new());
        tree.put_ephemeral(&context.member(), OWNER);
        tree.put(&paths::place(&context.me.node), json(&Place::default()));
    }
    (server, context)
}

/// What a node writes that leaves because it was asked to stop.
fn asked_to_stop() -> Option<Place> {
    Some(Place { stopped: Some(Timestamp::UNIX_EPOCH), ..Place::default() })
}

/// Which nodes a survey finds stopped after host-a was alive, with a process that had started at this second.
fn found_stopped(server: &Server, context: &SessionContext<Server, ByHand>, started_at: i64) -> Vec<NodeName> {
    let started_at = Timestamp::from_second(started_at).unwrap();
    let wanted = Surveyed { alive: [(NodeName::new("host-a"), started_at)].into(), ..Surveyed::default() };
    server.round_trips(survey(context.clone(), wanted)).0.unwrap().stopped
}

#[test]
fn a_node_that_leaves_because_it_was_asked_to_stop_is_not_taken_for_dead() {
    let (server, context) = leaving();
    server.round_trips(leave(context.clone(), asked_to_stop())).0.unwrap();
    assert!(!server.tree().has(&context.member()));
    assert_eq!(found_stopped(&server, &context, 0), [NodeName::new("host-a")]);
    assert_eq!(found_stopped(&server, &context, 60), [], "of a later process it says nothing");
}

#[test]
fn a_node_that_dies_or_leaves_for_another_reason_was_not_stopped() {
    let (server, context) = leaving();
    server.tree().remove(&context.member());
    assert_eq!(found_stopped(&server, &context, 0), [], "its session has ended");
    let (server, context) = leaving();
    server.round_trips(leave(context.clone(), None)).0.unwrap();
    assert!(!server.tree().has(&context.member()));
    assert_eq!(found_stopped(&server, &context, 0), []);
}

#[test]
fn a_node_leaves_although_it_cannot_write_that_it_was_asked_to() {
    let (server, context) = leaving();
    server.tree().remove(&paths::place(&context.me.node));
    server.round_trips(leave(context.clone(), asked_to_stop())).0.unwrap();
    assert!(!server.tree().has(&context.member()), "without a place");
    assert!(!server.tree().has(&paths::place(&context.me.node)), "it was forgotten, and stays so");
    let (server, context) = leaving();
    server.tree().close(&paths::place(&context.me.node), Right::Write);
    server.round_trips(leave(context.clone(), asked_to_stop())).0.unwrap();
    assert!(!server.tree().has(&context.member()), "without the right to write it");
}

/// Nobody reads who leads from anything else, so a leader restores it.
#[test]
fn a_leader_finds_that_its_opening_write_is_lost() {
    let server = Server::default();
    let mut context = server.context(ByHand::default());
    Arc::get_mut(&mut context.me).expect("nobody shares it").candidate_data = entry_of("host-a");
    server.tree().put(paths::LEADER, entry_of("host-a"));
    let stat = || Session::stat(&server, paths::LEADER);
    let token = server.round_trips(stat()).0.unwrap().unwrap().changed.token();
    let is_opened = |token: i64| {
        let wanted = Surveyed { opened: Some(FencingToken(token)), ..Surveyed::default() };
        server.round_trips(survey(context.clone(), wanted)).0.unwrap().is_opened
    };
    assert!(is_opened(token.0 - 1));
    assert!(!is_opened(token.0), "it is that of an earlier term of this process");
    server.tree().put(paths::LEADER, entry_of("host-b"));
    assert!(!is_opened(token.0 - 1), "it is that of another");
    assert!(server.round_trips(survey(context.clone(), Surveyed::default())).0.unwrap().is_opened, "nobody has asked");
}
