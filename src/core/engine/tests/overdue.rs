//! Trees that the warden should have killed, and has not reported as dead.

use std::time::Duration;

use super::fixture::*;
use crate::clock::Uptime;
use crate::election;
use crate::engine::{Command, Event};
use crate::job::{Interrupted, Job, OnLeaseEnd};
use crate::ledger::{Change, Commit};
use crate::process::{Deadline, EndedBy, Exit, Order, TreeId};
use crate::run::RunState;
use crate::term::{SessionId, TermEnd};

const SIGKILL: Exit = Exit::Signal { signal: 9, core: false };

fn rerun() -> Job {
    let mut job = job("a", "1 0 10 * * *");
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    job
}

/// The trees that the daemon must kill itself.
fn ended_here(fixture: &mut Fixture) -> Vec<TreeId> {
    let ended = fixture.take().into_iter().filter_map(|command| match command {
        Command::EndTrees(tree_ids) => Some(tree_ids),
        _ => None,
    });
    ended.flatten().collect()
}

#[test]
fn what_is_alive_after_the_lease_is_killed_by_the_daemon_a_twentieth_of_the_session_later_and_once() {
    let (mut fixture, tree_id) = running_one(rerun());
    fixture.pass_cut_off(5);
    assert_eq!(ended_here(&mut fixture), [], "the warden has time");
    let wake = fixture.engine.wake(fixture.now).up;
    assert_eq!(wake, Some(fixture.now.up + LEASE / 10), "of twice the lease a twentieth");
    fixture.pass_cut_off(1);
    assert!(fixture.commands.contains(&Command::Order(Order::Kill { tree_id })), "the warden is to know of it");
    assert_eq!(ended_here(&mut fixture), [tree_id]);
    fixture.pass_cut_off(10);
    assert_eq!(ended_here(&mut fixture), []);
}

#[test]
fn what_the_warden_has_ended_in_time_is_left_to_it() {
    let (mut fixture, tree_id) = running_one(rerun());
    fixture.pass_cut_off(5);
    fixture.ended(tree_id, SIGKILL, Some(EndedBy::Deadline));
    fixture.pass_cut_off(10);
    assert_eq!(ended_here(&mut fixture), []);
}

#[test]
fn a_run_that_is_kept_while_cut_off_is_killed_before_the_next_of_its_job() {
    let (mut fixture, tree_id) = running_one(job("a", "1,21 0 10 * * *"));
    fixture.pass_cut_off(18);
    assert_eq!(ended_here(&mut fixture), []);
    fixture.pass_cut_off(2);
    assert_eq!(ended_here(&mut fixture), [tree_id]);
}

/// Found by the simulation: the new session's lease kept a process alive although the next leader had ended its run at
/// its deadline.
#[test]
fn a_kept_run_goes_by_its_time_alone_until_the_ledger_has_it_under_the_new_session() {
    let (mut fixture, tree_id) = running_one(job("a", "1,21 0 10 * * *"));
    let keep_until = fixture.now.up + Duration::from_secs(19);
    let deadlines = |fixture: &mut Fixture| -> Vec<Deadline> {
        let orders = fixture.take().into_iter().filter_map(|command| match command {
            Command::Order(Order::Deadline { tree_id: of, deadline }) if of == tree_id => Some(deadline),
            _ => None,
        });
        orders.collect()
    };
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.handle(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    assert_eq!(deadlines(&mut fixture), [Deadline::At(keep_until)]);
    let session = election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 };
    fixture.handle(Event::Election(session));
    let requested = fixture.commits();
    let [(id, Change::ChangeOwner { .. })] = requested.as_slice() else { panic!("{requested:?}") };
    fixture.commands.clear();
    fixture.handle(Event::Election(election::Event::Lease { until: fixture.now.up + LEASE * 2 }));
    fixture.answer(*id, Commit::Accepted);
    assert_eq!(deadlines(&mut fixture), [Deadline::LeaseAnd(keep_until)], "now the lease protects it");
}

#[test]
fn a_kept_run_that_the_ledger_does_not_have_back_in_time_is_killed_under_a_new_lease() {
    let (mut fixture, tree_id) = running_one(job("a", "1,21 0 10 * * *"));
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::SessionExpired }));
    fixture.handle(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    let session = election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 };
    fixture.handle(Event::Election(session));
    fixture.handle(Event::Election(election::Event::Lease { until: fixture.now.up + LEASE * 100 }));
    fixture.commands.clear();
    fixture.pass_cut_off(20);
    assert_eq!(ended_here(&mut fixture), [tree_id]);
}

#[test]
fn a_lease_that_is_taken_away_ends_now() {
    let (mut fixture, tree_id) = running_one(rerun());
    let over = |until| Event::Election(election::Event::Lease { until });
    fixture.handle(over(Uptime::ZERO));
    assert_eq!(ended_here(&mut fixture), []);
    fixture.pass_cut_off(1);
    assert_eq!(ended_here(&mut fixture), [tree_id]);
}

#[test]
fn what_an_order_was_to_kill_is_killed_too() {
    let (mut fixture, tree_id) = running_one(rerun());
    let over = election::Event::Over { term: Fixture::term(9), why: TermEnd::EntryGone };
    fixture.handle(Event::Election(over));
    assert!(fixture.take().contains(&Command::Order(Order::Kill { tree_id })));
    fixture.pass(1);
    assert_eq!(ended_here(&mut fixture), [tree_id], "though the lease goes on");
}

#[test]
fn what_the_daemon_killed_was_interrupted_whatever_the_warden_makes_of_it() {
    let (mut fixture, tree_id) = running_one(rerun());
    fixture.pass_cut_off(6);
    fixture.commands.clear();
    fixture.ended(tree_id, SIGKILL, None);
    let requested = fixture.commits();
    let [(_, Change::ChangeOwner { run, .. })] = requested.as_slice() else { panic!("{requested:?}") };
    assert_eq!(run.state, RunState::Retrying, "it is to be begun again");
}

#[test]
fn what_ended_by_itself_before_it_was_killed_keeps_its_end() {
    let (mut fixture, tree_id) = running_one(rerun());
    fixture.pass_cut_off(6);
    fixture.commands.clear();
    fixture.ended(tree_id, Exit::Code(0), None);
    let is_end = |command: &Command| matches!(command, Command::KeepEnd { end, .. } if end.exit_code == Some(0));
    assert!(fixture.commands.iter().any(is_end), "{:?}", fixture.commands);
}
