//! Hooks of a node that ends: waited for as runs are, and no longer.

use super::*;
use crate::coordination::Request;

const MINUTE: Duration = Duration::from_secs(60);

impl Rig {
    fn leaves(&self) -> bool {
        self.commands.iter().any(|one| matches!(one, Command::Ask(Request::Election(election::Request::Leave))))
    }

    fn draining(&mut self, timeout: Duration) {
        self.tell(Event::Drain { timeout });
        self.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::Resigned }));
        self.tell(Event::Election(election::Event::Withdrawn));
    }
}

#[test]
fn a_node_that_drains_waits_for_its_hooks() {
    let (mut rig, HookStart { slot, .. }) = failed();
    rig.started(slot);
    rig.draining(MINUTE);
    assert!(!rig.leaves());
    assert_eq!(rig.engine.wake(rig.now).up, Some(rig.now.up + MINUTE), "and does not turn in vain");
    rig.ended(slot, Exit::Code(0), None);
    assert!(rig.leaves());
}

#[test]
fn the_hook_of_a_run_that_ends_while_the_node_drains_is_run() {
    let (mut rig, slot) = running_one(once());
    rig.draining(MINUTE);
    rig.ended(slot, Exit::Code(1), None);
    rig.accept_all();
    assert!(!rig.leaves());
    let HookStart { slot, .. } = rig.calls().remove(0);
    rig.started(slot);
    rig.ended(slot, Exit::Code(0), None);
    assert!(rig.leaves());
}

#[test]
fn what_the_drain_timeout_finds_running_is_killed() {
    let (mut rig, HookStart { slot, .. }) = failed();
    rig.started(slot);
    rig.draining(MINUTE / 4);
    rig.pass_cut_off(14);
    assert!(!rig.leaves());
    rig.pass_cut_off(1);
    assert!(rig.leaves() && rig.commands.contains(&Command::Order(Order::Kill { slot })));
    assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::Killed)]);
    rig.ended(slot, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    assert_eq!(rig.finished().len(), 1, "it is told once");
}

#[test]
fn the_hook_of_a_run_that_the_drain_timeout_ended_has_its_moment() {
    let (mut rig, slot) = running_one(once());
    rig.draining(Duration::from_secs(3));
    rig.pass_cut_off(3);
    rig.ended(slot, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    rig.accept_all();
    let HookStart { slot, .. } = rig.calls().remove(0);
    rig.started(slot);
    rig.pass_cut_off(3);
    assert!(!rig.leaves());
    rig.pass_cut_off(20);
    assert!(rig.leaves());
    assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::Killed)]);
}

#[test]
fn a_node_that_is_told_to_end_at_once_runs_no_hooks() {
    let (mut rig, slot) = running_one(once());
    rig.tell(Event::Stop);
    rig.tell(Event::Election(election::Event::Withdrawn));
    rig.ended(slot, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    rig.accept_all();
    assert_eq!(rig.finished(), [(Hook::Failure, HookOutcome::Dropped)], "and says so");
    assert!(rig.leaves() && rig.hooks().is_empty());
}
