//! Trees that the warden should have killed, and has not said to be dead.

use std::time::Duration;

use super::rig::*;
use crate::clock::Uptime;
use crate::election;
use crate::engine::{Command, Event};
use crate::job::{Interrupted, Job, OnLeaseEnd};
use crate::ledger::{Change, Commit};
use crate::run::RunState;
use crate::term::{SessionId, TermEnd};
use crate::warden::wire::{Deadline, EndedBy, Exit, Order, Slot};

const SIGKILL: Exit = Exit::Signal { signal: 9, core: false };

fn rerun() -> Job {
    let mut job = job("a", "1 0 10 * * *");
    (job.interrupted, job.on_lease_end) = (Interrupted::Rerun, OnLeaseEnd::Kill);
    job
}

/// What the daemon is to kill itself.
fn ended_here(rig: &mut Rig) -> Vec<Slot> {
    let ended = rig.take().into_iter().filter_map(|command| match command {
        Command::EndTrees(slots) => Some(slots),
        _ => None,
    });
    ended.flatten().collect()
}

#[test]
fn what_outlives_the_lease_is_killed_by_the_daemon_a_twentieth_of_the_session_later_and_once() {
    let (mut rig, slot) = running_one(rerun());
    rig.pass_cut_off(5);
    assert_eq!(ended_here(&mut rig), [], "the warden has time");
    let wake = rig.engine.wake(rig.now).up;
    assert_eq!(wake, Some(rig.now.up + LEASE / 10), "of twice the lease a twentieth");
    rig.pass_cut_off(1);
    assert!(rig.commands.contains(&Command::Order(Order::Kill { slot })), "the warden is to know of it");
    assert_eq!(ended_here(&mut rig), [slot]);
    rig.pass_cut_off(10);
    assert_eq!(ended_here(&mut rig), []);
}

#[test]
fn what_the_warden_has_ended_in_time_is_left_to_it() {
    let (mut rig, slot) = running_one(rerun());
    rig.pass_cut_off(5);
    rig.ended(slot, SIGKILL, Some(EndedBy::Deadline));
    rig.pass_cut_off(10);
    assert_eq!(ended_here(&mut rig), []);
}

#[test]
fn a_run_that_is_kept_while_cut_off_is_killed_before_the_next_of_its_job() {
    let (mut rig, slot) = running_one(job("a", "1,21 0 10 * * *"));
    rig.pass_cut_off(18);
    assert_eq!(ended_here(&mut rig), []);
    rig.pass_cut_off(2);
    assert_eq!(ended_here(&mut rig), [slot]);
}

/// Found by the simulation: the new session's lease kept a process alive whose run the next leader had ended at its time.
#[test]
fn a_kept_run_goes_by_its_time_alone_until_the_ledger_has_it_under_the_new_session() {
    let (mut rig, slot) = running_one(job("a", "1,21 0 10 * * *"));
    let keep_until = rig.now.up + Duration::from_secs(19);
    let deadlines = |rig: &mut Rig| -> Vec<Deadline> {
        let orders = rig.take().into_iter().filter_map(|command| match command {
            Command::Order(Order::Deadline { slot: of, deadline }) if of == slot => Some(deadline),
            _ => None,
        });
        orders.collect()
    };
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::SessionExpired }));
    rig.tell(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    assert_eq!(deadlines(&mut rig), [Deadline::At(keep_until)]);
    let session = election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 };
    rig.tell(Event::Election(session));
    let asked = rig.commits();
    let [(id, Change::Reown { .. })] = asked.as_slice() else { panic!("{asked:?}") };
    rig.commands.clear();
    rig.tell(Event::Election(election::Event::Lease { until: rig.now.up + LEASE * 2 }));
    rig.answer(*id, Commit::Accepted);
    assert_eq!(deadlines(&mut rig), [Deadline::LeaseAnd(keep_until)], "now the lease protects it");
}

#[test]
fn a_kept_run_that_the_ledger_does_not_have_back_in_time_is_killed_under_a_new_lease() {
    let (mut rig, slot) = running_one(job("a", "1,21 0 10 * * *"));
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::SessionExpired }));
    rig.tell(Event::Election(election::Event::Expired { session: SessionId("a".into()) }));
    let session = election::Event::Session { id: SessionId("a2".into()), timeout: LEASE * 2 };
    rig.tell(Event::Election(session));
    rig.tell(Event::Election(election::Event::Lease { until: rig.now.up + LEASE * 100 }));
    rig.commands.clear();
    rig.pass_cut_off(20);
    assert_eq!(ended_here(&mut rig), [slot]);
}

#[test]
fn a_lease_that_is_taken_away_ends_now() {
    let (mut rig, slot) = running_one(rerun());
    let over = |until| Event::Election(election::Event::Lease { until });
    rig.tell(over(Uptime::ZERO));
    assert_eq!(ended_here(&mut rig), []);
    rig.pass_cut_off(1);
    assert_eq!(ended_here(&mut rig), [slot]);
}

#[test]
fn what_an_order_was_to_kill_is_killed_too() {
    let (mut rig, slot) = running_one(rerun());
    let over = election::Event::Over { term: Rig::term(9), why: TermEnd::EntryGone };
    rig.tell(Event::Election(over));
    assert!(rig.take().contains(&Command::Order(Order::Kill { slot })));
    rig.pass(1);
    assert_eq!(ended_here(&mut rig), [slot], "though the lease goes on");
}

#[test]
fn what_the_daemon_killed_was_interrupted_whatever_the_warden_makes_of_it() {
    let (mut rig, slot) = running_one(rerun());
    rig.pass_cut_off(6);
    rig.commands.clear();
    rig.ended(slot, SIGKILL, None);
    let asked = rig.commits();
    let [(_, Change::Reown { run, .. })] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(run.state, RunState::Retrying, "it is to be begun again");
}

#[test]
fn what_ended_by_itself_before_it_was_killed_keeps_its_end() {
    let (mut rig, slot) = running_one(rerun());
    rig.pass_cut_off(6);
    rig.commands.clear();
    rig.ended(slot, Exit::Code(0), None);
    let is_end = |command: &Command| matches!(command, Command::KeepEnd { end, .. } if end.exit_code == Some(0));
    assert!(rig.commands.iter().any(is_end), "{:?}", rig.commands);
}
