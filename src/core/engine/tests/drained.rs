//! Nodes that operators drain, and handovers that they request at another node.

use uuid::Uuid;

use super::fixture::*;
use crate::coordination::Request;
use crate::election::{self, Request as Asked};
use crate::engine::{Command, Event, Report};
use crate::ledger::Snapshot;
use crate::process::Exit;
use crate::run::{Drain, HandoverRequest, NodeControl};
use crate::term::{NodeName, TermEnd};

fn drain() -> Drain {
    Drain { by: "alice".into(), at: at("10:00:00"), reason: Some("disks".into()) }
}

impl Fixture {
    fn drained(&mut self, drained: Option<Drain>) {
        let wanted = NodeControl { drained, ..NodeControl::default() };
        self.handle(Event::Election(election::Event::Wanted(wanted)));
    }

    fn withdrawn(&mut self) {
        self.handle(Event::Election(election::Event::Withdrawn));
    }

    fn over(&mut self) {
        let over = election::Event::Over { term: Self::term(9), why: TermEnd::Resigned };
        self.handle(Event::Election(over));
    }

    /// What was requested of the election since the commands were last taken.
    fn asked(&mut self) -> Vec<Asked> {
        let asked = self.take().into_iter().filter_map(|command| match command {
            Command::Ask(Request::Election(request)) => Some(request),
            _ => None,
        });
        asked.collect()
    }

    fn requested(&mut self, id: u128, token: i64, to: Option<&str>) {
        let handover = HandoverRequest {
            id: Uuid::from_u128(id),
            candidate: Self::term(token).candidate,
            to: to.map(NodeName::new),
            by: "bob on host-b".into(),
            at: at("10:00:00"),
        };
        let wanted = NodeControl { handover: Some(handover), ..NodeControl::default() };
        self.handle(Event::Election(election::Event::Wanted(wanted)));
    }
}

#[test]
fn a_drained_leader_resigns_and_starts_nothing_while_its_runs_go_on() {
    let (mut fixture, tree_id) = running_one(job("a", "* * * * * *"));
    fixture.drained(Some(drain()));
    let first = fixture.reports();
    assert!(matches!(&first[..], [Report::Drained { drain, runs: 1, .. }] if drain.by == "alice"), "{first:?}");
    assert!(fixture.asked().contains(&Asked::Resign));
    fixture.pass(1);
    assert!(fixture.accept_all().is_empty(), "it decides nothing any more");
    fixture.over();
    fixture.withdrawn();
    assert!(fixture.engine.is_drained() && !fixture.engine.is_ending());
    assert_eq!(fixture.engine.own_runs(), 1);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(fixture.accept_all().len(), 1, "the end of its run");
    assert!(!fixture.asked().contains(&Asked::Campaign));
    fixture.drained(None);
    assert!(fixture.reports().contains(&Report::Undrained { drain: drain() }));
    assert_eq!(fixture.asked(), [Asked::Campaign]);
}

#[test]
fn the_same_request_read_again_changes_nothing_and_another_one_is_reported() {
    let mut fixture = Fixture::settled("10:00:00", vec![]);
    fixture.drained(Some(drain()));
    fixture.take();
    fixture.drained(Some(drain()));
    assert!(fixture.take().is_empty());
    fixture.drained(Some(Drain { by: "bob".into(), ..drain() }));
    assert!(matches!(&fixture.reports()[..], [Report::Drained { .. }]));
    assert!(fixture.asked().is_empty());
}

#[test]
fn a_node_undrained_before_it_was_out_joins_again_once_it_is() {
    let mut fixture = Fixture::settled("10:00:00", vec![]);
    fixture.drained(Some(drain()));
    fixture.drained(None);
    assert_eq!(fixture.asked(), [Asked::Resign]);
    fixture.withdrawn();
    assert_eq!(fixture.asked(), [Asked::Campaign]);
}

#[test]
fn a_node_that_is_drained_while_it_hands_over_does_not_come_back() {
    let mut fixture = Fixture::settled("10:00:00", vec![]);
    fixture.handle(Event::HandOver { to: None });
    fixture.drained(Some(drain()));
    fixture.take();
    fixture.withdrawn();
    fixture.withdrawn();
    assert!(fixture.asked().is_empty());
}

#[test]
fn a_node_that_is_elected_when_it_was_drained_begins_nothing() {
    let due = job("a", "* * * * * *");
    let mut fixture = Fixture::new("10:00:05", set([due.clone()]));
    fixture.join();
    fixture.drained(Some(drain()));
    fixture.elect(9, Snapshot { jobs: [entry(&due, at("10:00:00"), 0)].into(), ..Snapshot::default() });
    fixture.pass(1);
    assert!(fixture.accept_all().is_empty() && fixture.starts().is_empty());
}

#[test]
fn a_drained_node_that_ends_leaves_in_order() {
    let mut fixture = Fixture::settled("10:00:00", vec![]);
    fixture.drained(Some(drain()));
    fixture.withdrawn();
    fixture.handle(Event::Drain { timeout: LEASE });
    fixture.withdrawn();
    assert!(fixture.asked().contains(&Asked::Leave));
}

#[test]
fn a_handover_that_another_node_wrote_is_done_once_and_only_in_the_term_that_it_names() {
    let mut fixture = Fixture::settled("10:00:00", vec![]);
    fixture.requested(1, 8, None);
    assert!(fixture.asked().is_empty(), "it was for an earlier term");
    fixture.requested(2, 9, Some("host-b"));
    assert_eq!(fixture.asked(), [Asked::Transfer(NodeName::new("host-b"))]);
    let why = election::TransferError::NotQueued;
    fixture.handle(Event::Election(election::Event::NotTransferred { to: NodeName::new("host-b"), why }));
    fixture.requested(2, 9, Some("host-b"));
    assert!(fixture.asked().is_empty(), "it was decided on");
    fixture.requested(3, 9, None);
    assert_eq!(fixture.asked(), [Asked::Resign]);
}
