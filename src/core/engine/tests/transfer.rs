//! Handover to a better leader, and the time until it happens.

use std::time::Duration;

use super::fixture::*;
use crate::coordination::Request;
use crate::election::{self, Member, Published, TransferError};
use crate::engine::Unfit;
use crate::engine::transfer::SETTLED;
use crate::engine::{Command, Event, Report};
use crate::job::{Digest, Job};
use crate::process::{FileFault, FileProblem, Notice, StartFailure, StartStep};
use crate::term::NodeName;

const SURVEY: Duration = Duration::from_secs(15);

fn quiet() -> Job {
    job("a", "0 0 0 1 1 *")
}

pub(super) fn member(node: &str, priority: u32) -> Member {
    Member {
        v: 1,
        node: NodeName::new(node),
        host: node.into(),
        pid: 1,
        version: "0.1.0".into(),
        started_at: at("09:00:00"),
        session_timeout_ms: None,
        published: Published { digest: set([]).digest, tzdata: String::new(), priority, ..Published::default() },
        opened: None,
        session: None,
    }
}

/// Reports the members for `time`. Returns the node that leadership was handed to, and after how long.
fn transferred(fixture: &mut Fixture, members: &[Member], time: Duration) -> Option<(Duration, Option<NodeName>)> {
    let mut passed = Duration::ZERO;
    while passed <= time {
        fixture.handle(Event::Election(election::Event::Members(members.to_vec())));
        let given = fixture.take().into_iter().find_map(|command| match command {
            Command::Ask(Request::Election(election::Request::Transfer(to))) => Some(Some(to)),
            Command::Ask(Request::Election(election::Request::Resign)) => Some(None),
            _ => None,
        });
        if let Some(to) = given {
            return Some((passed, to));
        }
        fixture.pass(SURVEY.as_secs());
        passed += SURVEY;
    }
    None
}

#[test]
fn a_preferred_node_leads_once_it_was_fit_for_a_while() {
    let mut fixture = Fixture::settled("10:00:00", vec![quiet()]);
    let members = [member("host-a", 0), member("host-b", 1), member("host-c", 2)];
    assert_eq!(transferred(&mut fixture, &members, SETTLED), Some((SETTLED, Some(NodeName::new("host-c")))));
}

#[test]
fn a_node_that_is_not_preferred_or_drained_or_has_other_jobs_or_an_invalid_file_is_no_successor() {
    let mut fixture = Fixture::settled("10:00:00", vec![quiet()]);
    let mut other_jobs = member("host-c", 2);
    other_jobs.published.digest = Digest::of(b"other");
    let mut invalid = member("host-d", 2);
    invalid.published.jobs_invalid = true;
    let mut drained = member("host-e", 2);
    drained.published.drained = true;
    let members = [member("host-a", 0), member("host-b", 0), other_jobs, invalid, drained];
    assert_eq!(transferred(&mut fixture, &members, SETTLED * 4), None);
}

#[test]
fn a_preferred_node_that_was_started_anew_has_to_be_fit_anew() {
    let mut fixture = Fixture::settled("10:00:00", vec![quiet()]);
    let first = [member("host-b", 1)];
    assert_eq!(transferred(&mut fixture, &first, SETTLED - SURVEY), None);
    let again = [Member { started_at: at("10:00:01"), ..member("host-b", 1) }];
    assert_eq!(transferred(&mut fixture, &again, SETTLED).map(|(after, _)| after), Some(SETTLED));
}

#[test]
fn who_does_not_keep_leadership_waits_twice_as_long_for_it() {
    let mut fixture = Fixture::settled("10:00:00", vec![quiet()]);
    let members = [member("host-b", 1)];
    assert_eq!(transferred(&mut fixture, &members, SETTLED * 9).map(|(after, _)| after), Some(SETTLED));
    let why = TransferError::NotQueued;
    fixture.handle(Event::Election(election::Event::NotTransferred { to: NodeName::new("host-b"), why }));
    assert_eq!(transferred(&mut fixture, &members, SETTLED * 9).map(|(after, _)| after), Some(SETTLED * 2));
}

#[test]
fn a_leader_whose_jobs_file_is_invalid_gives_way_to_one_whose_file_is_not() {
    let mut fixture = Fixture::settled("10:00:00", vec![quiet()]);
    fixture.handle(Event::Rejected);
    let mut edited = member("host-b", 0);
    edited.published.digest = Digest::of(b"the new jobs");
    let mut invalid = member("host-c", 7);
    invalid.published.jobs_invalid = true;
    assert_eq!(transferred(&mut fixture, &[invalid.clone()], SETTLED * 4), None, "there it is no better");
    let given = transferred(&mut fixture, &[invalid, edited], SETTLED);
    assert_eq!(given, Some((SETTLED, Some(NodeName::new("host-b")))));
}

/// Lets the starts of a job fail every second for lack of processes, until leadership is given up or `seconds` have
/// passed.
fn starve(fixture: &mut Fixture, seconds: u64) -> bool {
    fail_starts(fixture, seconds, StartStep::Fork, 11)
}

/// The same with any failure.
fn fail_starts(fixture: &mut Fixture, seconds: u64, step: StartStep, errno: i32) -> bool {
    for _ in 0..seconds {
        fixture.commands.clear();
        fixture.pass(1);
        fixture.accept_all();
        for start in fixture.starts() {
            let why = StartFailure::Step { step, errno };
            fixture.handle(Event::Warden(Notice::NotStarted { tree_id: start.tree_id, why }));
            let gives_up =
                fixture.commands.contains(&Command::Report(Report::GivingUp { to: None, why: Unfit::NoStarts }));
            fixture.accept_all();
            if gives_up {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_leader_that_cannot_start_processes_gives_way_but_not_again_and_again() {
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    assert!(!starve(&mut fixture, 10), "there is nobody else");
    let mut drained = member("host-b", 0);
    drained.published.drained = true;
    fixture.handle(Event::Election(election::Event::Members(vec![drained])));
    assert!(!starve(&mut fixture, 10), "there is nobody else who may lead");
    fixture.handle(Event::Election(election::Event::Members(vec![member("host-b", 0)])));
    assert!(starve(&mut fixture, 10));
    fixture.handle(Event::Election(election::Event::Withdrawn));
    assert!(!starve(&mut fixture, 50), "within a minute");
    assert!(starve(&mut fixture, 20));
}

#[test]
fn no_error_of_a_file_that_a_job_is_given_makes_the_leader_give_way() {
    let file = FileProblem { index: 0, fault: FileFault::System };
    for step in [StartStep::Environment(file), StartStep::Secret(file)] {
        // ENOMEM, EAGAIN of a lease on the file, EIO of a file server.
        for errno in [12, 11, 5] {
            let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
            fixture.handle(Event::Election(election::Event::Members(vec![member("host-b", 0)])));
            assert!(!fail_starts(&mut fixture, 10, step, errno), "{step:?} {errno}");
        }
    }
    let mut fixture = Fixture::settled("10:00:00", vec![job("a", "* * * * * *")]);
    fixture.handle(Event::Election(election::Event::Members(vec![member("host-b", 0)])));
    assert!(fail_starts(&mut fixture, 10, StartStep::Exec, 5), "but a disk that fails does");
}
