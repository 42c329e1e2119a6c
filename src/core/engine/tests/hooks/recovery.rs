//! `on_recovery`: the first success after a failure, under any leader.

use super::*;
use crate::coordination::Request;
use crate::run::RunId;
use crate::term::SessionId;

/// A job that is due every second, and whose runs do not overlap.
fn every_second() -> Job {
    minutely_now()
}

/// Begins and ends one more run of the job under this leader, and returns the hooks that follow.
fn one_more(fixture: &mut Fixture, code: i32) -> Vec<String> {
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(code), None);
    fixture.accept_all();
    let requested = fixture.previous_reads();
    let mut hooks: Vec<String> =
        fixture.hooks().iter().map(|hook| hook.split(' ').next().unwrap().to_owned()).collect();
    hooks.extend(requested.iter().map(|_| "read".to_owned()));
    hooks
}

impl Fixture {
    /// The runs for which the previous outcome was read.
    fn previous_reads(&self) -> Vec<RunId> {
        let requested = self.commands.iter().filter_map(|command| match command {
            Command::Ask(Request::Ledger(ledger::Request::ReadBefore(run))) => Some(run.clone()),
            _ => None,
        });
        requested.collect()
    }

    fn was_before(&mut self, run: &str, outcome: Option<Outcome>) {
        self.handle(Event::Ledger(ledger::Event::Before(RunId::parse(run).unwrap(), outcome)));
    }
}

#[test]
fn a_leader_that_saw_the_failure_knows_the_recovery() {
    let mut fixture = Fixture::settled("10:00:00", vec![every_second()]);
    assert_eq!(one_more(&mut fixture, 1), ["on_failure"]);
    assert_eq!(one_more(&mut fixture, 1), ["on_failure"]);
    assert_eq!(one_more(&mut fixture, 0), ["on_recovery", "on_success"]);
    assert_eq!(one_more(&mut fixture, 0), ["on_success"]);
}

#[test]
fn a_new_leader_asks_the_ledger_once_and_knows_from_then_on() {
    for (before, expected) in [
        (Some(Outcome::Timeout), &["on_recovery a.20261120T100001Z success"][..]),
        (Some(Outcome::Success), &[]),
        (None, &[]),
    ] {
        let mut fixture = Fixture::settled("10:00:00", vec![every_second()]);
        assert_eq!(one_more(&mut fixture, 0), ["on_success", "read"]);
        fixture.was_before(RUN, before);
        assert_eq!(fixture.hooks(), expected, "{before:?}");
        fixture.was_before(RUN, before);
        assert!(fixture.hooks().is_empty(), "an answer that comes twice counts once");
        assert_eq!(one_more(&mut fixture, 0), ["on_success"]);
    }
}

#[test]
fn the_ledger_is_asked_about_one_run_after_the_other_and_again_under_a_new_session() {
    let jobs = ["a", "b"].map(|name| Job { hooks: hooks(), ..job(name, "1 0 10 * * *") });
    let mut fixture = Fixture::settled("10:00:00", jobs.to_vec());
    fixture.pass(1);
    fixture.accept_all();
    let tree_ids: Vec<TreeId> = fixture.starts().iter().map(|start| start.tree_id).collect();
    for tree_id in tree_ids {
        fixture.started(tree_id);
        fixture.ended(tree_id, Exit::Code(0), None);
    }
    fixture.accept_all();
    assert_eq!(fixture.previous_reads().iter().map(RunId::to_string).collect::<Vec<_>>(), [RUN]);
    fixture.commands.clear();
    let session = election::Event::Session { id: SessionId("b".into()), timeout: LEASE * 2 };
    fixture.handle(Event::Election(session));
    assert_eq!(fixture.previous_reads().iter().map(RunId::to_string).collect::<Vec<_>>(), [RUN]);
    fixture.commands.clear();
    fixture.was_before(RUN, Some(Outcome::Failure));
    assert_eq!(fixture.previous_reads().iter().map(RunId::to_string).collect::<Vec<_>>(), ["b.20261120T100001Z"]);
    assert_eq!(fixture.hooks(), [format!("on_recovery {RUN} success")]);
}

#[test]
fn what_another_node_ended_meanwhile_is_not_guessed() {
    let mut fixture = found(&minutely(), OwnerState::Alive);
    fixture.handle(Event::Ledger(ledger::Event::Run(RunId::parse("a.20261120T100000Z").unwrap(), None)));
    fixture.pass(30);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.ended(tree_id, Exit::Code(0), None);
    fixture.accept_all();
    assert_eq!(fixture.previous_reads().len(), 1);
    fixture.was_before("a.20261120T100100Z", Some(Outcome::Interrupted));
    assert_eq!(fixture.hooks(), ["on_success a.20261120T100100Z success", "on_recovery a.20261120T100100Z success"]);
}

#[test]
fn an_end_that_another_nodes_may_have_followed_is_not_taken_for_the_last() {
    let mut fixture = found(&Job { overlap: Overlap::Allow, ..every_second() }, OwnerState::Alive);
    let start = |fixture: &mut Fixture| {
        fixture.pass(1);
        fixture.accept_all();
        let tree_id = fixture.starts()[0].tree_id;
        fixture.started(tree_id);
        fixture.commands.clear();
        tree_id
    };
    let failed = start(&mut fixture);
    fixture.ended(failed, Exit::Code(1), None);
    let unanswered = fixture.commits();
    fixture.handle(Event::Ledger(ledger::Event::Run(RunId::parse("a.20261120T100000Z").unwrap(), None)));
    for (id, _) in unanswered {
        fixture.answer(id, Commit::Accepted);
    }
    fixture.commands.clear();
    let succeeded = start(&mut fixture);
    fixture.ended(succeeded, Exit::Code(0), None);
    fixture.accept_all();
    assert_eq!(fixture.previous_reads().len(), 1, "the other node's run may have succeeded in between");
}

#[test]
fn a_node_that_leads_no_more_asks_the_ledger() {
    let mut fixture = Fixture::settled("10:00:00", vec![every_second()]);
    assert_eq!(one_more(&mut fixture, 1), ["on_failure"]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.handle(Event::Election(election::Event::Over { term: Fixture::term(9), why: TermEnd::Resigned }));
    fixture.ended(tree_id, Exit::Code(0), None);
    fixture.accept_all();
    assert_eq!(fixture.previous_reads().len(), 1);
}
