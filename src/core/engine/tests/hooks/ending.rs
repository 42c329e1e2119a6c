//! Hooks of a node that ends: it waits for them as for runs, and not longer.

use super::*;
use crate::coordination::Request;

const MINUTE: Duration = Duration::from_secs(60);

impl Fixture {
    fn leaves(&self) -> bool {
        self.commands.iter().any(|one| matches!(one, Command::Ask(Request::Election(election::Request::Leave))))
    }

    fn draining(&mut self, timeout: Duration) {
        self.handle(Event::Drain { timeout });
        self.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
        self.handle(Event::Election(election::Event::Withdrawn));
    }
}

#[test]
fn a_node_that_drains_waits_for_its_hooks() {
    let (mut fixture, HookStart { tree_id, .. }) = failed();
    fixture.started(tree_id);
    fixture.draining(MINUTE);
    assert!(!fixture.leaves());
    assert_eq!(fixture.engine.wake(fixture.now).up, Some(fixture.now.up + MINUTE), "and does not turn in vain");
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(fixture.leaves());
}

#[test]
fn the_hook_of_a_run_that_ends_while_the_node_drains_is_run() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.draining(MINUTE);
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    assert!(!fixture.leaves());
    let HookStart { tree_id, .. } = fixture.calls().remove(0);
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    assert!(fixture.leaves());
}

#[test]
fn what_the_drain_timeout_finds_running_is_killed() {
    let (mut fixture, HookStart { tree_id, .. }) = failed();
    fixture.started(tree_id);
    fixture.draining(MINUTE / 4);
    fixture.pass_cut_off(14);
    assert!(!fixture.leaves());
    fixture.pass_cut_off(1);
    assert!(fixture.leaves() && fixture.commands.contains(&Command::Order(Order::Kill { tree_id })));
    assert_eq!(fixture.finished(), [("on_failure", HookOutcome::Killed)]);
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    assert_eq!(fixture.finished().len(), 1, "it is reported once");
}

#[test]
fn the_hook_of_a_run_that_the_drain_timeout_ended_has_its_moment() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.draining(Duration::from_secs(3));
    fixture.pass_cut_off(3);
    fixture.ended(tree_id, Exit::Signal { signal: 15, core: false }, Some(EndedBy::Order));
    fixture.accept_all();
    let HookStart { tree_id, .. } = fixture.calls().remove(0);
    fixture.started(tree_id);
    fixture.pass_cut_off(3);
    assert!(!fixture.leaves());
    fixture.pass_cut_off(20);
    assert!(fixture.leaves());
    assert_eq!(fixture.finished(), [("on_failure", HookOutcome::Killed)]);
}

#[test]
fn a_node_that_is_ordered_to_end_at_once_runs_no_hooks() {
    let (mut fixture, tree_id) = running_one(once());
    fixture.handle(Event::Stop);
    fixture.handle(Event::Election(election::Event::Withdrawn));
    fixture.ended(tree_id, Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order));
    fixture.accept_all();
    assert_eq!(fixture.finished(), [("on_failure", HookOutcome::Dropped)], "and reports it");
    assert!(fixture.leaves() && fixture.hooks().is_empty());
}
