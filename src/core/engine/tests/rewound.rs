//! A service that has forgotten what it acknowledged.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::engine::{Command, Event, Report, Start};
use crate::job::{Interrupted, Job, Misfire, OnLeaseEnd, Overlap, Retries};
use crate::ledger::{Change, Commit, CommitId, JobEntry, OwnerState, RunLookup, Running, Snapshot};
use crate::process::{Exit, Order};
use crate::run::{
    JobRecord, Nonce, Outcome, OverAttempt, OverAttempts, Owner, Recount, RunId, RunRecord, RunState, Version,
};
use crate::term::{FencingToken, NodeName, SessionId, TermEnd};
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
    let found = match found {
        Some(record) => RunLookup::InFlight(Box::new(record), start.version),
        None => RunLookup::Ended,
    };
    fixture.looked_up(&start.run.id(), found);
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
        assert!(notes_loss(&fixture));
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

/// The leader of a run that continues here.
fn running() -> (Fixture, Start) {
    let mut fixture = Fixture::settled("10:00:00", vec![kinds()[0].clone()]);
    fixture.pass(1);
    fixture.accept_all();
    let start = fixture.starts()[0].clone();
    fixture.started(start.tree_id);
    fixture.commands.clear();
    (fixture, start)
}

/// The servers may have lost something. These runs are in flight now; what there is of `run` is `found`.
fn servers_changed(fixture: &mut Fixture, in_flight: Vec<RunId>, run: &RunId, found: RunLookup) {
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Resumed { session }));
    assert!(fixture.commands.contains(&Command::Ask(Request::Ledger(ledger::Request::ReadInFlight))));
    fixture.handle(Event::Ledger(ledger::Event::InFlight(in_flight, None)));
    fixture.looked_up(run, found);
}

/// True if the next leader is to know that something is lost.
fn notes_loss(fixture: &Fixture) -> bool {
    fixture.commands.contains(&Command::Ask(Request::Ledger(ledger::Request::NoteLoss)))
}

/// Somebody may have removed it, and only it.
#[test]
fn a_run_that_is_gone_shows_that_commits_are_lost_if_its_jobs_mark_is_older() {
    for (mark, is_lost) in [("10:00:00", true), ("10:00:01", false)] {
        let job = kinds()[0].clone();
        let found = || RunLookup::Absent(Some(Box::new(entry(&job, at(mark), 1).1)));
        let (mut fixture, start) = running();
        servers_changed(&mut fixture, Vec::new(), &start.run.id(), found());
        assert_eq!(notes_loss(&fixture), is_lost, "in flight, {mark}");
        let (mut fixture, start) = ended(&job, Exit::Code(0));
        servers_changed(&mut fixture, Vec::new(), &start.run.id(), found());
        assert_eq!(notes_loss(&fixture), is_lost, "ended, {mark}");
    }
}

/// It is asked for again before the first answer, which may be older than what was written meanwhile.
#[test]
fn an_answer_that_is_older_than_the_end_of_the_run_shows_no_loss() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Resumed { session: session.clone() }));
    fixture.handle(Event::Ledger(ledger::Event::InFlight(Vec::new(), None)));
    assert!(fixture.commands.contains(&Command::Ask(Request::Ledger(ledger::Request::ReadAgain(run.clone())))));
    fixture.ended(start.tree_id, Exit::Code(0), None);
    assert!(matches!(&fixture.accept_all()[..], [Change::End { .. }]));
    fixture.handle(Event::Election(election::Event::Resumed { session }));
    fixture.handle(Event::Ledger(ledger::Event::InFlight(vec![run.clone()], None)));
    fixture.looked_up(&run, RunLookup::InFlight(Box::new(start.run.clone()), Version::FIRST));
    assert!(!notes_loss(&fixture), "{:?}", fixture.commands);
}

#[test]
fn a_run_that_the_service_has_lost_goes_on_and_is_restored() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(None));
    assert!(fixture.reports().contains(&Report::Rewound { run: run.clone(), outcome: None }));
    match &fixture.accept_all()[..] {
        [Change::Restore { run: restored, mark: None }] => {
            assert!(restored.is_same_attempt(&start.run), "{restored:?}")
        }
        other => panic!("{other:?}"),
    }
    fixture.ended(start.tree_id, Exit::Code(0), None);
    match &fixture.accept_all()[..] {
        [Change::End { at: Version::FIRST, end, .. }] => assert_eq!(end.outcome, Outcome::Success),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_run_that_is_still_there_needs_nothing() {
    let (mut fixture, start) = running();
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Resumed { session }));
    fixture.commands.clear();
    fixture.handle(Event::Ledger(ledger::Event::InFlight(vec![start.run.id()], None)));
    assert_eq!(fixture.commands, []);
}

#[test]
fn a_run_that_another_node_has_settled_is_not_restored() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Ended);
    assert!(fixture.reports().contains(&Report::Superseded { run, outcome: None }));
    let kill = Command::Order(Order::Kill { tree_id: start.tree_id });
    assert!(fixture.commands.contains(&kill), "{:?}", fixture.commands);
    assert!(fixture.accept_all().is_empty());
}

/// Somebody, who did not know of it, has begun the run meanwhile.
#[test]
fn a_run_that_cannot_be_restored_is_given_up() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(None));
    let commits = fixture.commits();
    let [(id, Change::Restore { .. })] = &commits[..] else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Superseded);
    let other = RunRecord { owner: Owner { node: NodeName::new("host-b"), ..start.run.owner.clone() }, ..start.run };
    let other = RunRecord { nonce: Nonce("other-1".into()), token: FencingToken(12), ..other };
    fixture.looked_up(&run, RunLookup::InFlight(Box::new(other), Version::FIRST));
    let kill = Command::Order(Order::Kill { tree_id: start.tree_id });
    assert!(fixture.commands.contains(&kill), "{:?}", fixture.commands);
}

/// A leader that has read the older mark must not begin the run.
#[test]
fn the_mark_moves_with_a_run_that_another_node_than_the_leader_restores() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
    let (_, old) = entry(&kinds()[0], at("10:00:00"), 4);
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(Some(Box::new(old))));
    match &fixture.accept_all()[..] {
        [Change::Restore { mark: Some((Version(4), record)), .. }] => {
            assert_eq!(record.last_scheduled, start.run.scheduled_at);
        }
        other => panic!("{other:?}"),
    }
}

/// It would silence the job again. A leader that has read the record moves over the run.
#[test]
fn the_mark_stays_if_a_recounted_record_lists_the_run_that_is_restored() {
    let (mut fixture, start) = running();
    let run = start.run.id();
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
    let (_, JobEntry { record, version }) = entry(&kinds()[0], at("10:00:00"), 4);
    let listed = vec![start.run.scheduled_at];
    let recount = Some(Box::new(Recount { by: "alice".into(), until: start.run.scheduled_at, listed }));
    let record = record.map(|record| JobRecord { recount, ..record });
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(Some(Box::new(JobEntry { record, version }))));
    let written = fixture.accept_all();
    assert!(matches!(&written[..], [Change::Restore { mark: None, .. }]), "{written:?}");
}

#[test]
fn runs_whose_begin_and_end_are_both_lost_are_recorded_again_and_nothing_else_follows() {
    let second = job("b", "1 0 10 * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![kinds()[0].clone(), second]);
    fixture.pass(1);
    fixture.accept_all();
    let starts = fixture.starts();
    for start in &starts {
        fixture.started(start.tree_id);
        fixture.ended(start.tree_id, Exit::Code(0), None);
        fixture.accept_all();
    }
    fixture.commands.clear();
    let [first, last] = &starts[..] else { panic!("{starts:?}") };
    servers_changed(&mut fixture, Vec::new(), &last.run.id(), RunLookup::Absent(None));
    fixture.looked_up(&first.run.id(), RunLookup::Absent(None));
    let written = fixture.accept_all();
    let ends = written.iter().filter(|change| matches!(change, Change::End { end, .. } if end.exit_code == Some(0)));
    assert_eq!((written.len(), ends.count()), (4, 2), "{written:?}");
    assert!(!fixture.reports().iter().any(|report| matches!(report, Report::Finished(_) | Report::Recorded(_))));
    fixture.pass(60);
    assert!(fixture.accept_all().is_empty() && fixture.starts().is_empty());
}

#[test]
fn what_was_written_before_an_end_that_is_there_is_not_looked_for() {
    let (mut fixture, start) = ended(&kinds()[0], Exit::Code(0));
    servers_changed(&mut fixture, Vec::new(), &start.run.id(), RunLookup::Ended);
    assert!(fixture.accept_all().is_empty());
    assert!(!fixture.reports().iter().any(|report| matches!(report, Report::Rewound { .. })));
}

#[test]
fn a_mark_never_goes_back_and_is_written_again() {
    let job = job("a", "* * * * * *");
    let mut fixture = Fixture::settled("10:00:00", vec![job.clone()]);
    for _ in 0..3 {
        fixture.pass(1);
        fixture.accept_all();
        let start = fixture.starts().pop().expect("it is due each second");
        fixture.started(start.tree_id);
        fixture.ended(start.tree_id, Exit::Code(0), None);
        fixture.accept_all();
        fixture.commands.clear();
    }
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Resumed { session }));
    let asked = Command::Ask(Request::Ledger(ledger::Request::ReadJob(job.name.clone())));
    assert!(fixture.commands.contains(&asked), "{:?}", fixture.commands);
    let (name, old) = entry(&job, at("10:00:01"), 1);
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(old), None)));
    let mark = at("10:00:03");
    let rewound = Report::MarkRewound { job: job.name.clone(), found: Some(at("10:00:01")), mark };
    assert!(fixture.reports().contains(&rewound), "{:?}", fixture.reports());
    assert!(notes_loss(&fixture));
    match &fixture.accept_all()[..] {
        [Change::Advance { at: Some(Version(1)), record, skip: None, .. }] => assert_eq!(record.last_scheduled, mark),
        other => panic!("{other:?}"),
    }
    assert!(fixture.starts().is_empty());
    fixture.pass(1);
    let next = begun(&fixture.accept_all());
    assert_eq!(next, ["a.20261120T100004Z"]);
}

/// A leader that knows that the occurrences until 10:00:03 are decided, in version 3 of the record.
fn counted() -> (Fixture, Job) {
    let job = Job { overlap: Overlap::Allow, ..job("a", "* * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![job.clone()]);
    for _ in 0..3 {
        fixture.pass(1);
        fixture.accept_all();
    }
    fixture.handle(Event::Election(election::Event::Resumed { session: SessionId("a".into()) }));
    fixture.commands.clear();
    (fixture, job)
}

/// The leader reads this mark in this version, and writes its own over it. `is_loss`: it takes this for a proof that
/// commits are lost.
fn its_mark_is_kept(fixture: &mut Fixture, job: &Job, (mark, version): (&str, i32), is_loss: bool) -> CommitId {
    let (name, found) = entry(job, at(mark), version);
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(found), None)));
    let rewound = Report::MarkRewound { job: job.name.clone(), found: Some(at(mark)), mark: at("10:00:03") };
    assert!(fixture.reports().contains(&rewound), "{:?}", fixture.reports());
    assert_eq!(notes_loss(fixture), is_loss);
    let commits = fixture.commits();
    match &commits[..] {
        [(id, Change::Advance { at: Some(Version(found)), record, skip: None, .. })] => {
            assert_eq!((*found, record.last_scheduled), (version, at("10:00:03")));
            *id
        }
        other => panic!("{other:?}"),
    }
}

/// Another node has restored its run of 10:00:01 and moved the mark with it, before the leader's write.
#[test]
fn a_mark_that_moves_with_an_earlier_run_while_the_leader_writes_its_own_again_skips_nothing() {
    let (mut fixture, job) = counted();
    let again = its_mark_is_kept(&mut fixture, &job, ("10:00:00", 0), true);
    fixture.commands.clear();
    fixture.answer(again, Commit::Superseded);
    its_mark_is_kept(&mut fixture, &job, ("10:00:01", 1), false);
    fixture.accept_all();
    fixture.pass(1);
    let changes = fixture.accept_all();
    assert_eq!((begun(&changes), skipped(&changes)), (vec!["a.20261120T100004Z".to_owned()], Vec::new()));
}

/// The service lost several writes, and other nodes have made as many since.
#[test]
fn a_mark_of_the_version_that_was_acknowledged_is_lost_if_it_is_an_earlier_one() {
    let (mut fixture, job) = counted();
    its_mark_is_kept(&mut fixture, &job, ("10:00:01", 3), true);
}

/// That proves no loss.
#[test]
fn a_mark_that_somebody_has_set_back_is_written_again() {
    let (mut fixture, job) = counted();
    its_mark_is_kept(&mut fixture, &job, ("10:00:01", 8), false);
}

/// The leader cannot compare what it has loaded meanwhile with the record that is lost, so it remembers: also while it does
/// not know yet that anything is lost.
#[test]
fn a_job_that_is_edited_while_its_mark_is_lost_does_not_fire_for_the_past() {
    for is_in_conflict in [true, false] {
        let (mut fixture, job) = counted();
        if is_in_conflict {
            fixture.pass(1);
            let commits = fixture.commits();
            fixture.answer(commits[0].0, Commit::Superseded);
        }
        let until = at("10:00:04.5").duration_since(fixture.now.wall).unsigned_abs();
        fixture.now.wall += until;
        fixture.now.up = fixture.now.up + until;
        let edited = Job { misfire: Misfire::RunAll, ..super::fixture::job("a", "*/4 * * * * *") };
        fixture.handle(Event::Loaded(set([edited])));
        for (id, _) in fixture.commits() {
            fixture.answer(id, Commit::Superseded);
        }
        fixture.commands.clear();
        let (name, found) = entry(&job, at("10:00:01"), 1);
        fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(found), None)));
        let edited = |report: &Report| matches!(report, Report::Edited { since, .. } if *since == at("10:00:03"));
        assert!(fixture.reports().iter().any(edited), "{is_in_conflict}: {:?}", fixture.reports());
        let mut changes = fixture.accept_all();
        fixture.pass_by(Duration::from_millis(100));
        changes.extend(fixture.accept_all());
        assert_eq!(begun(&changes), [""; 0], "{is_in_conflict}");
        assert_eq!(skipped(&changes), ["missed 2026-11-20T10:00:04Z 2026-11-20T10:00:04Z 1"], "{is_in_conflict}");
    }
}

/// Two jobs that are due at 10:00:01, whose runs have started.
fn two_running() -> (Fixture, Vec<Start>) {
    let mut fixture = Fixture::settled("10:00:00", vec![kinds()[0].clone(), job("b", "1 0 10 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    let starts = fixture.starts();
    starts.iter().for_each(|start| fixture.started(start.tree_id));
    fixture.commands.clear();
    (fixture, starts)
}

fn reconnect(fixture: &mut Fixture, meanwhile: impl FnOnce(&mut Fixture)) {
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Suspended { session: session.clone(), error: None }));
    meanwhile(fixture);
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Resumed { session }));
}

/// The old servers may have accepted it, and lost it since.
#[test]
fn an_end_that_was_answered_after_the_connection_was_lost_is_looked_for_too() {
    let (mut fixture, starts) = two_running();
    fixture.ended(starts[0].tree_id, Exit::Code(0), None);
    fixture.accept_all();
    fixture.ended(starts[1].tree_id, Exit::Code(0), None);
    reconnect(&mut fixture, |fixture| drop(fixture.accept_all()));
    for start in &starts {
        let asked = Command::Ask(Request::Ledger(ledger::Request::ReadAgain(start.run.id())));
        assert!(fixture.commands.contains(&asked), "{}: {:?}", start.run.id(), fixture.commands);
    }
}

#[test]
fn a_mark_that_was_answered_after_the_connection_was_lost_is_looked_for_too() {
    let mut fixture = Fixture::settled("10:00:00", vec![kinds()[0].clone(), job("b", "2 0 10 * * *")]);
    fixture.pass(1);
    fixture.accept_all();
    fixture.pass(1);
    reconnect(&mut fixture, |fixture| drop(fixture.accept_all()));
    for job in ["a", "b"] {
        let asked = Command::Ask(Request::Ledger(ledger::Request::ReadJob(name(job))));
        assert!(fixture.commands.contains(&asked), "{job}: {:?}", fixture.commands);
    }
}

/// A leader whose run another node has settled, and whose process is gone.
fn settled_by_another() -> (Fixture, Start) {
    let (mut fixture, start) = running();
    servers_changed(&mut fixture, Vec::new(), &start.run.id(), RunLookup::Ended);
    fixture.ended(start.tree_id, Exit::Signal { signal: 9, core: false }, None);
    fixture.commands.clear();
    (fixture, start)
}

#[test]
fn an_attempt_that_another_node_settled_is_not_started_again_though_the_service_has_lost_everything_about_it() {
    let (mut fixture, start) = settled_by_another();
    fixture.handle(Event::Ledger(ledger::Event::Run(start.run.id(), None)));
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::LeaseOver }));
    let snapshot = Box::new(Snapshot { jobs: [entry(&kinds()[0], at("10:00:00"), 1)].into(), ..Snapshot::default() });
    let (term, lease_until, took) = (Fixture::term(10), fixture.now.up + LEASE, Duration::ZERO);
    fixture.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Advance { skip: None, .. }]), "{changes:?}");
    assert!(fixture.starts().is_empty());
}

#[test]
fn how_a_settled_attempt_ended_here_is_recorded_once_nothing_else_is() {
    let (mut fixture, start) = settled_by_another();
    let run = start.run.id();
    fixture.handle(Event::Ledger(ledger::Event::Run(run.clone(), None)));
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(None));
    match &fixture.accept_all()[..] {
        [Change::Restore { .. }, Change::End { end, .. }] => {
            assert_eq!((end.run.id(), end.signal), (run, Some(9)));
        }
        other => panic!("{other:?}"),
    }
}

/// It may go on there.
#[test]
fn a_settled_attempt_ends_no_run_that_is_in_flight() {
    let (mut fixture, start) = settled_by_another();
    let run = start.run.id();
    fixture.handle(Event::Ledger(ledger::Event::Run(run.clone(), None)));
    let owner = Owner { node: NodeName::new("host-b"), session: SessionId("b".into()) };
    let other = RunRecord { owner, nonce: Nonce("other-1".into()), ..start.run.clone() };
    servers_changed(&mut fixture, vec![run.clone()], &run, RunLookup::InFlight(Box::new(other), Version::FIRST));
    assert!(fixture.accept_all().is_empty());
}

/// The service has lost the whole run before the leader began the next attempt.
#[test]
fn a_run_is_restored_if_its_next_attempt_cannot_be_begun_because_it_is_gone() {
    let job = Job { retries: Retries { limit: 1, ..Retries::default() }, ..kinds()[0].clone() };
    let (mut fixture, start) = ended(&job, Exit::Code(1));
    let run = start.run.id();
    fixture.pass(60);
    let next = fixture.commits();
    let [(id, Change::UpdateRun { .. })] = &next[..] else { panic!("{next:?}") };
    fixture.commands.clear();
    fixture.answer(*id, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(run.clone(), None)));
    let asked = Command::Ask(Request::Ledger(ledger::Request::ReadAgain(run.clone())));
    assert!(fixture.commands.contains(&asked), "{:?}", fixture.commands);
    fixture.looked_up(&run, RunLookup::Absent(None));
    let written = fixture.accept_all();
    assert!(matches!(&written[..], [Change::Restore { .. }, Change::UpdateRun { .. }]), "{written:?}");
}

#[test]
fn a_run_that_is_restored_while_its_next_attempt_is_due_gets_it() {
    let job = Job { retries: Retries { limit: 1, ..Retries::default() }, ..kinds()[0].clone() };
    let (mut fixture, start) = ended(&job, Exit::Code(1));
    let run = start.run.id();
    servers_changed(&mut fixture, Vec::new(), &run, RunLookup::Absent(None));
    let commits = fixture.commits();
    let [(id, Change::Restore { .. })] = &commits[..] else { panic!("{commits:?}") };
    fixture.pass(60);
    assert!(fixture.commits().is_empty());
    fixture.answer(*id, Commit::Accepted);
    fixture.accept_all();
    assert_eq!(fixture.starts().iter().map(|start| start.run.attempt).collect::<Vec<_>>(), [2]);
}

/// No node has had it yet.
#[test]
fn a_queued_run_that_is_gone_when_its_turn_comes_is_restored_and_begun() {
    let queue = Job { overlap: Overlap::Queue, ..job("a", "* * * * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![queue]);
    fixture.pass(1);
    fixture.accept_all();
    let first = fixture.starts()[0].clone();
    fixture.started(first.tree_id);
    fixture.pass(1);
    fixture.accept_all();
    fixture.ended(first.tree_id, Exit::Code(0), None);
    let commits = fixture.commits();
    let [(end, Change::End { .. })] = &commits[..] else { panic!("{commits:?}") };
    fixture.answer(*end, Commit::Accepted);
    let commits = fixture.commits();
    let begun = commits.iter().find_map(|(id, change)| match change {
        Change::UpdateRun { run, .. } => Some((*id, run.id())),
        _ => None,
    });
    let (id, run) = begun.expect("its turn has come");
    fixture.answer(id, Commit::Superseded);
    fixture.handle(Event::Ledger(ledger::Event::Run(run.clone(), None)));
    fixture.looked_up(&run, RunLookup::Absent(None));
    let written = fixture.accept_all();
    let restored =
        written.iter().filter(|change| matches!(change, Change::Restore { run: gone, .. } if gone.id() == run));
    assert_eq!(restored.count(), 1, "{written:?}");
    assert_eq!(fixture.starts().iter().filter(|start| start.run.id() == run).count(), 1);
}

/// An earlier process of this node had it, which nobody else knows.
#[test]
fn an_occurrence_that_the_journal_calls_over_is_not_begun_again_after_a_restart() {
    let job = kinds()[0].clone();
    let (_, start) = ended(&job, Exit::Code(0));
    let mut over = OverAttempts::default();
    over.remember(OverAttempt::of(&start.run, None));
    let mut fixture = Fixture::new("10:00:02", set([job.clone()]));
    fixture.handle(Event::Recovered { runs: Vec::new(), over });
    fixture.join();
    fixture.elect(10, Snapshot { jobs: [entry(&job, at("10:00:00"), 1)].into(), ..Snapshot::default() });
    let changes = fixture.accept_all();
    assert!(matches!(&changes[..], [Change::Advance { skip: None, .. }]), "{changes:?}");
    assert!(fixture.starts().is_empty());
}
