//! A service that has forgotten what it acknowledged.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::{Command, Event, Report, Start};
use crate::job::{Interrupted, Job, OnLeaseEnd, Retries};
use crate::ledger::{Change, OwnerState, Running, Snapshot};
use crate::process::Exit;
use crate::run::{Outcome, RunRecord, RunState};
use crate::term::TermEnd;
use crate::{election, ledger};

/// Jobs that are due at 10:00:01 only, with both rules for runs that are lost.
fn kinds() -> [Job; 2] {
    let once = job("a", "1 0 10 * * *");
    [once.clone(), Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..once }]
}

/// A leader whose run has ended in this way, which the ledger has accepted.
fn ended(job: &Job, exit: Exit) -> (Fixture, Start) {
    let mut fixture = Fixture::settled("10:00:00", vec![job.clone()]);
    fixture.pass(1);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.ended(start.tree_id, exit, None);
    fixture.accept_all();
    fixture.commands.clear();
    (fixture, start)
}

/// The same process leads again, and finds this run in flight.
fn elected_again(fixture: &mut Fixture, job: &Job, record: RunRecord, start: &Start) {
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let running = vec![Running { record, version: start.version, owner: OwnerState::Alive }];
    let jobs = [entry(job, at("10:00:01"), 2)].into();
    let snapshot = Box::new(Snapshot { jobs, running, ..Snapshot::default() });
    let (term, lease_until, took) = (Fixture::term(10), fixture.now.up + LEASE, Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
}

/// The answer to the read that every such record leads to: the first may be older than the end.
fn read_again(fixture: &mut Fixture, start: &Start, found: Option<RunRecord>) {
    let run = start.run.id();
    let asked = Command::Ask(Request::Ledger(ledger::Request::ReadAgain(run.clone())));
    assert!(fixture.commands.contains(&asked), "{:?}", fixture.commands);
    let found = found.map(|record| (record, start.version));
    fixture.handle(Event::Ledger(ledger::Event::Again(run, found)));
}

#[test]
fn a_record_that_is_older_than_the_end_leads_to_nothing() {
    let job = kinds()[0].clone();
    let (mut fixture, start) = ended(&job, Exit::Code(0));
    elected_again(&mut fixture, &job, start.run.clone(), &start);
    read_again(&mut fixture, &start, None);
    assert!(!fixture.reports().iter().any(|report| matches!(report, Report::Rewound { .. })));
    assert!(fixture.accept_all().is_empty());
}

#[test]
fn an_end_that_the_service_has_lost_is_written_again_and_the_run_is_not_begun_again() {
    for job in kinds() {
        let (mut fixture, start) = ended(&job, Exit::Code(0));
        elected_again(&mut fixture, &job, start.run.clone(), &start);
        read_again(&mut fixture, &start, Some(start.run.clone()));
        let outcome = Some(Outcome::Success);
        assert!(fixture.reports().contains(&Report::Rewound { run: start.run.id(), outcome }));
        match &fixture.accept_all()[..] {
            [Change::End { at, end, as_leader: false }] => {
                assert_eq!((*at, end.outcome, end.exit_code), (start.version, Outcome::Success, Some(0)));
            }
            other => panic!("{other:?}"),
        }
        fixture.pass(60);
        assert!(fixture.accept_all().is_empty() && fixture.starts().is_empty());
    }
}

#[test]
fn a_retry_that_the_service_has_forgotten_to_expect_is_made_once() {
    let retries = Retries { limit: 1, ..Retries::default() };
    let job = Job { retries, interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..kinds()[0].clone() };
    let (mut fixture, start) = ended(&job, Exit::Code(1));
    elected_again(&mut fixture, &job, start.run.clone(), &start);
    read_again(&mut fixture, &start, Some(start.run.clone()));
    let released = fixture.accept_all();
    assert!(
        matches!(&released[..], [Change::ChangeOwner { run, .. }, ..] if run.state == RunState::Retrying),
        "{released:?}"
    );
    fixture.pass(60);
    fixture.accept_all();
    assert_eq!(fixture.starts().iter().map(|start| start.run.attempt).collect::<Vec<_>>(), [2]);
}

/// Its begin was never answered, so it had no process.
#[test]
fn a_run_that_this_process_never_started_is_still_begun() {
    let job = kinds()[0].clone();
    let mut fixture = Fixture::settled("10:00:00", vec![job.clone()]);
    fixture.pass(1);
    let commits = fixture.commits();
    let Change::Begin { run, .. } = commits[0].1.clone() else { panic!("{commits:?}") };
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let running = vec![Running { record: run, version: crate::run::Version::FIRST, owner: OwnerState::Alive }];
    let snapshot = Box::new(Snapshot { jobs: [entry(&job, at("10:00:01"), 2)].into(), running, ..Snapshot::default() });
    let (term, lease_until, took) = (Fixture::term(10), fixture.now.up + LEASE, Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    fixture.accept_all();
    assert_eq!(fixture.starts().iter().map(|start| start.run.attempt).collect::<Vec<_>>(), [2]);
}

#[test]
fn an_occurrence_is_not_begun_again_though_the_service_has_lost_its_mark() {
    let job = kinds()[0].clone();
    let (mut fixture, start) = ended(&job, Exit::Code(0));
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let snapshot = Box::new(Snapshot { jobs: [entry(&job, at("10:00:00"), 1)].into(), ..Snapshot::default() });
    let (term, lease_until, took) = (Fixture::term(10), fixture.now.up + LEASE, Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Advance { skip: None, .. }]), "{changes:?}");
    assert!(fixture.reports().contains(&Report::Rewound { run: start.run.id(), outcome: None }));
    assert!(fixture.starts().is_empty());
}
