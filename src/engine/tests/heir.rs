//! Who leads better than this node, and how long that takes.

use std::time::Duration;

use super::rig::*;
use crate::coordination::Request;
use crate::election::{self, Member, Published, Unappointable};
use crate::engine::heir::{SETTLED, Unfit};
use crate::engine::{Command, Event, Report};
use crate::job::{Digest, Job};
use crate::term::NodeName;
use crate::warden::wire::{Notice, StartFailure, Step};

const SURVEY: Duration = Duration::from_secs(15);

fn quiet() -> Job {
    job("a", "0 0 0 1 1 *")
}

fn member(node: &str, prefer: u32) -> Member {
    Member {
        v: 1,
        node: NodeName::new(node),
        host: node.into(),
        pid: 1,
        version: "0.1.0".into(),
        started_at: at("09:00:00"),
        session_timeout_ms: None,
        published: Published { digest: set([]).digest, tzdata: String::new(), prefer, ..Published::default() },
    }
}

/// Surveys for `time`; whom the node appointed, and after how long.
fn appointed(rig: &mut Rig, members: &[Member], time: Duration) -> Option<(Duration, Option<NodeName>)> {
    let mut passed = Duration::ZERO;
    while passed <= time {
        rig.tell(Event::Election(election::Event::Members(members.to_vec())));
        let given = rig.take().into_iter().find_map(|command| match command {
            Command::Ask(Request::Election(election::Request::Appoint(to))) => Some(Some(to)),
            Command::Ask(Request::Election(election::Request::Resign)) => Some(None),
            _ => None,
        });
        if let Some(to) = given {
            return Some((passed, to));
        }
        rig.pass(SURVEY.as_secs());
        passed += SURVEY;
    }
    None
}

#[test]
fn a_heavier_node_leads_once_it_was_fit_for_a_while() {
    let mut rig = Rig::settled("10:00:00", vec![quiet()]);
    let members = [member("host-a", 0), member("host-b", 1), member("host-c", 2)];
    assert_eq!(appointed(&mut rig, &members, SETTLED), Some((SETTLED, Some(NodeName::new("host-c")))));
}

#[test]
fn a_node_that_is_not_heavier_or_has_other_jobs_or_an_invalid_file_is_no_heir() {
    let mut rig = Rig::settled("10:00:00", vec![quiet()]);
    let mut other_jobs = member("host-c", 2);
    other_jobs.published.digest = Digest::of(b"other");
    let mut invalid = member("host-d", 2);
    invalid.published.jobs_invalid = true;
    let members = [member("host-a", 0), member("host-b", 0), other_jobs, invalid];
    assert_eq!(appointed(&mut rig, &members, SETTLED * 4), None);
}

#[test]
fn a_heavier_node_that_was_started_anew_has_to_be_fit_anew() {
    let mut rig = Rig::settled("10:00:00", vec![quiet()]);
    let first = [member("host-b", 1)];
    assert_eq!(appointed(&mut rig, &first, SETTLED - SURVEY), None);
    let again = [Member { started_at: at("10:00:01"), ..member("host-b", 1) }];
    assert_eq!(appointed(&mut rig, &again, SETTLED).map(|(after, _)| after), Some(SETTLED));
}

#[test]
fn who_does_not_keep_leadership_waits_twice_as_long_for_it() {
    let mut rig = Rig::settled("10:00:00", vec![quiet()]);
    let members = [member("host-b", 1)];
    assert_eq!(appointed(&mut rig, &members, SETTLED * 9).map(|(after, _)| after), Some(SETTLED));
    let why = Unappointable::NotQueued;
    rig.tell(Event::Election(election::Event::NotAppointed { to: NodeName::new("host-b"), why }));
    assert_eq!(appointed(&mut rig, &members, SETTLED * 9).map(|(after, _)| after), Some(SETTLED * 2));
}

#[test]
fn a_leader_whose_jobs_file_is_invalid_gives_way_to_one_whose_file_is_not() {
    let mut rig = Rig::settled("10:00:00", vec![quiet()]);
    rig.tell(Event::Rejected);
    let mut edited = member("host-b", 0);
    edited.published.digest = Digest::of(b"the new jobs");
    let mut invalid = member("host-c", 7);
    invalid.published.jobs_invalid = true;
    assert_eq!(appointed(&mut rig, &[invalid.clone()], SETTLED * 4), None, "there it is no better");
    let given = appointed(&mut rig, &[invalid, edited], SETTLED);
    assert_eq!(given, Some((SETTLED, Some(NodeName::new("host-b")))));
}

/// Has a job of every second fail to start for want of processes, until leadership is given up or `seconds` have passed.
fn starve(rig: &mut Rig, seconds: u64) -> bool {
    for _ in 0..seconds {
        rig.commands.clear();
        rig.pass(1);
        rig.accept_all();
        for start in rig.starts() {
            let why = StartFailure::Step { step: Step::Fork, errno: 11 };
            rig.tell(Event::Warden(Notice::NotStarted { slot: start.slot, why }));
            let gives_up = rig.commands.contains(&Command::Tell(Report::GivingUp { to: None, why: Unfit::NoStarts }));
            rig.accept_all();
            if gives_up {
                return true;
            }
        }
    }
    false
}

#[test]
fn a_leader_that_cannot_start_processes_gives_way_but_not_again_and_again() {
    let mut rig = Rig::settled("10:00:00", vec![job("a", "* * * * * *")]);
    assert!(!starve(&mut rig, 10), "there is nobody else");
    rig.tell(Event::Election(election::Event::Members(vec![member("host-b", 0)])));
    assert!(starve(&mut rig, 10));
    rig.tell(Event::Election(election::Event::Withdrawn));
    assert!(!starve(&mut rig, 50), "within a minute");
    assert!(starve(&mut rig, 20));
}
