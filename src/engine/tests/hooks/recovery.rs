//! The first success after a failure, whoever leads then.

use super::*;
use crate::coordination::Request;
use crate::run::RunId;
use crate::term::SessionId;

/// Due every second, one run after the other.
fn every_second() -> Job {
    minutely_now()
}

/// One more run of the job, begun and ended by this leader; the hooks that follow.
fn one_more(rig: &mut Rig, code: i32) -> Vec<String> {
    rig.pass(1);
    rig.accept_all();
    let slot = rig.starts()[0].slot;
    rig.started(slot);
    rig.ended(slot, Exit::Code(code), None);
    rig.accept_all();
    let asked = rig.asked_before();
    let mut hooks: Vec<String> = rig.hooks().iter().map(|hook| hook.split(' ').next().unwrap().to_owned()).collect();
    hooks.extend(asked.iter().map(|_| "asked".to_owned()));
    hooks
}

impl Rig {
    /// The runs about which it was asked what was before them.
    fn asked_before(&self) -> Vec<RunId> {
        let asked = self.commands.iter().filter_map(|command| match command {
            Command::Ask(Request::Ledger(ledger::Request::ReadBefore(run))) => Some(run.clone()),
            _ => None,
        });
        asked.collect()
    }

    fn was_before(&mut self, run: &str, outcome: Option<Outcome>) {
        self.tell(Event::Ledger(ledger::Event::Before(RunId::parse(run).unwrap(), outcome)));
    }
}

#[test]
fn a_leader_that_saw_the_failure_knows_the_recovery() {
    let mut rig = Rig::settled("10:00:00", vec![every_second()]);
    assert_eq!(one_more(&mut rig, 1), ["on_failure"]);
    assert_eq!(one_more(&mut rig, 1), ["on_failure"]);
    assert_eq!(one_more(&mut rig, 0), ["on_success", "on_recovery"]);
    assert_eq!(one_more(&mut rig, 0), ["on_success"]);
}

#[test]
fn a_new_leader_asks_the_ledger_once_and_knows_from_then_on() {
    for (before, expected) in [
        (Some(Outcome::Timeout), &["on_recovery a.20261120T100001Z success"][..]),
        (Some(Outcome::Success), &[]),
        (None, &[]),
    ] {
        let mut rig = Rig::settled("10:00:00", vec![every_second()]);
        assert_eq!(one_more(&mut rig, 0), ["on_success", "asked"]);
        rig.was_before(RUN, before);
        assert_eq!(rig.hooks(), expected, "{before:?}");
        rig.was_before(RUN, before);
        assert!(rig.hooks().is_empty(), "an answer that comes twice is heard once");
        assert_eq!(one_more(&mut rig, 0), ["on_success"]);
    }
}

#[test]
fn the_ledger_is_asked_about_one_run_after_the_other_and_again_under_a_new_session() {
    let jobs = ["a", "b"].map(|name| Job { hooks: hooks(), ..job(name, "1 0 10 * * *") });
    let mut rig = Rig::settled("10:00:00", jobs.to_vec());
    rig.pass(1);
    rig.accept_all();
    let slots: Vec<Slot> = rig.starts().iter().map(|start| start.slot).collect();
    for slot in slots {
        rig.ended(slot, Exit::Code(0), None);
    }
    rig.accept_all();
    assert_eq!(rig.asked_before().iter().map(RunId::to_string).collect::<Vec<_>>(), [RUN]);
    rig.commands.clear();
    let session = election::Event::Session { id: SessionId("b".into()), timeout: LEASE * 2 };
    rig.tell(Event::Election(session));
    assert_eq!(rig.asked_before().iter().map(RunId::to_string).collect::<Vec<_>>(), [RUN]);
    rig.commands.clear();
    rig.was_before(RUN, Some(Outcome::Failure));
    assert_eq!(rig.asked_before().iter().map(RunId::to_string).collect::<Vec<_>>(), ["b.20261120T100001Z"]);
    assert_eq!(rig.hooks(), [format!("on_recovery {RUN} success")]);
}

#[test]
fn what_another_node_ended_meanwhile_is_not_guessed() {
    let mut rig = found(&minutely(), OwnerState::Alive);
    rig.tell(Event::Ledger(ledger::Event::Run(RunId::parse("a.20261120T100000Z").unwrap(), None)));
    rig.pass(30);
    rig.accept_all();
    let slot = rig.starts()[0].slot;
    rig.ended(slot, Exit::Code(0), None);
    rig.accept_all();
    assert_eq!(rig.asked_before().len(), 1);
    rig.was_before("a.20261120T100100Z", Some(Outcome::Interrupted));
    assert_eq!(rig.hooks(), ["on_success a.20261120T100100Z success", "on_recovery a.20261120T100100Z success"]);
}

#[test]
fn a_node_that_leads_no_more_asks_the_ledger() {
    let mut rig = Rig::settled("10:00:00", vec![every_second()]);
    assert_eq!(one_more(&mut rig, 1), ["on_failure"]);
    rig.pass(1);
    rig.accept_all();
    let slot = rig.starts()[0].slot;
    rig.started(slot);
    rig.tell(Event::Election(election::Event::Over { term: Rig::term(9), why: TermEnd::Resigned }));
    rig.ended(slot, Exit::Code(0), None);
    rig.accept_all();
    assert_eq!(rig.asked_before().len(), 1);
}
