//! `on_start`: once per run, when its program has begun for the first time, whichever node has the next attempt.

use super::*;
use crate::job::Interrupted;

const START: &str = "on_start a.20261120T100001Z attempt 1";

/// A job that is due once, with all hooks.
fn with_start() -> Job {
    Job { hooks: all_hooks(), ..job("a", "1 0 10 * * *") }
}

/// A leader that has ordered the start of the run of `job`, due at 10:00:01.
fn ordered(job: Job) -> (Fixture, TreeId) {
    let mut fixture = Fixture::settled("10:00:00", vec![job]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.commands.retain(|command| !matches!(command, Command::Start(_)));
    (fixture, tree_id)
}

#[test]
fn it_follows_the_start_of_the_program_and_not_the_order() {
    let (mut fixture, tree_id) = ordered(with_start());
    assert!(fixture.hooks().is_empty());
    fixture.started(tree_id);
    assert_eq!(fixture.hooks(), [START]);
}

#[test]
fn a_run_whose_program_never_began_has_none() {
    let (mut fixture, tree_id) = ordered(with_start());
    let why = StartFailure::Step { step: StartStep::Exec, errno: 2 };
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
    assert_eq!(fixture.hooks_of_all(), [format!("on_failure {RUN} failure")]);
}

#[test]
fn further_attempts_have_none() {
    let retries = Retries { limit: 2, delay: Duration::from_secs(1), ..Retries::default() };
    let (mut fixture, mut tree_id) = ordered(Job { retries, ..with_start() });
    fixture.started(tree_id);
    let start = fixture.calls().remove(0);
    fixture.ended(start.tree_id, Exit::Code(0), None);
    for _ in 0..2 {
        fixture.ended(tree_id, Exit::Code(1), None);
        fixture.accept_all();
        fixture.pass(5);
        fixture.accept_all();
        tree_id = fixture.starts()[0].tree_id;
        fixture.started(tree_id);
        assert!(fixture.hooks().is_empty());
    }
}

#[test]
fn an_attempt_that_never_had_a_process_was_not_the_first() {
    let (mut fixture, tree_id) = ordered(with_start());
    let why = StartFailure::Step { step: StartStep::Fork, errno: 11 };
    fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
    fixture.accept_all();
    fixture.pass(60);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    assert!(fixture.hooks().is_empty());
    fixture.started(tree_id);
    assert_eq!(fixture.hooks(), ["on_start a.20261120T100001Z attempt 2"]);
}

#[test]
fn an_attempt_that_failed_before_its_program_was_not_the_first() {
    let retries = Retries { limit: 3, delay: Duration::from_secs(1), ..Retries::default() };
    let (mut fixture, mut tree_id) = ordered(Job { retries, ..with_start() });
    let file = FileProblem { index: 0, fault: FileFault::System };
    for step in [StartStep::Environment(file), StartStep::Limits] {
        let why = StartFailure::Step { step, errno: 2 };
        fixture.handle(Event::Warden(Notice::NotStarted { tree_id, why }));
        fixture.accept_all();
        fixture.pass(10);
        fixture.accept_all();
        tree_id = fixture.starts()[0].tree_id;
        assert!(fixture.hooks().is_empty());
    }
    fixture.started(tree_id);
    let start = fixture.calls().remove(0);
    assert_eq!(in_words(&start), "on_start a.20261120T100001Z attempt 3");
    fixture.ended(start.tree_id, Exit::Code(0), None);
    fixture.ended(tree_id, Exit::Code(1), None);
    fixture.accept_all();
    fixture.pass(20);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    assert!(fixture.hooks().is_empty(), "once");
    fixture.ended(tree_id, Exit::Code(0), None);
    assert_eq!(fixture.hooks_of_all(), ["on_success a.20261120T100001Z success"]);
}

#[test]
fn a_run_that_another_node_had_begun_has_none_here() {
    let rerun = Job { interrupted: Interrupted::Rerun, on_lease_end: OnLeaseEnd::Kill, ..minutely() };
    let mut fixture = found(&Job { hooks: all_hooks(), ..rerun }, OwnerState::Dead);
    fixture.accept_all();
    let start = fixture.starts().remove(0);
    assert_eq!(start.run.attempt, 2);
    fixture.started(start.tree_id);
    assert!(fixture.hooks().is_empty());
}

#[test]
fn the_hooks_of_the_end_wait_for_it_and_no_other_hook_or_run_does() {
    let other = Job { hooks: hooks(), ..job("b", "2 0 10 * * *") };
    let mut fixture = Fixture::settled("10:00:00", vec![with_start(), other]);
    fixture.pass(1);
    let (_, tree_ids) = fixture.start_all();
    let start = fixture.calls().remove(0);
    fixture.started(start.tree_id);
    fixture.ended(tree_ids[0], Exit::Code(1), None);
    fixture.accept_all();
    assert_eq!((fixture.hooks(), fixture.engine.own_runs()), (vec![], 0));
    fixture.pass(1);
    let (_, tree_ids) = fixture.start_all();
    fixture.ended(tree_ids[0], Exit::Code(1), None);
    assert_eq!(fixture.hooks_of_all(), ["on_failure b.20261120T100002Z failure"]);
    fixture.ended(start.tree_id, Exit::Code(0), None);
    assert_eq!(fixture.hooks(), [format!("on_failure {RUN} failure")]);
}
