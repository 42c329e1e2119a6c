//! Succession: of two nodes the second follows, and leads when the first is gone.

use crate::support::node::{Node, Spec};
use crate::support::witness::Witness;
use crate::support::{LONG, until};

use super::fixture::{await_end, await_run, await_start, following, leading, node, of};

/// A process tree that only SIGKILL ends, in a session of its own.
const STUBBORN: &str = r#"trap "" TERM; setsid sh -c "sleep 1000" & sleep 1000"#;

#[test]
fn the_second_leads_when_the_first_is_killed_and_settles_its_runs_once_they_are_dead() {
    let first = node("first").jobs(&format!(
        r#"
jobs:
  lost: {{schedule: "* * * * * *", command: {STUBBORN:?}}}
  again: {{schedule: "* * * * * *", command: {STUBBORN:?}, interrupted: rerun}}
"#
    ));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let (lost, again) = (await_start(&a, 0, "lost"), await_start(&a, 0, "again"));
    let token = a.await_event("leader.elected", LONG).number("token").unwrap();
    a.kill9();

    let elected = b.await_event("leader.elected", LONG);
    assert!(elected.number("token").unwrap() > token);
    let ended = await_end(&b, &lost);
    assert_eq!(a.job_processes(), Vec::<u32>::new());
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("interrupted", "node-died"));
    let rerun = b.await_where("run.started", LONG, |event| event.text("run") == again);
    assert_eq!(rerun.number("attempt"), Some(2));
    let next = await_start(&b, 0, "lost");
    assert!(next > lost);
    let record = await_run(&first, &lost);
    assert_eq!((&record["outcome"], &record["node"]), (&"interrupted".into(), &a.name().into()));
}

#[test]
fn each_of_three_waits_for_the_one_before_it() {
    let first = node("first");
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let c = following(&node("third").beside(&first));
    let behind = c.await_event("election.following", LONG);
    assert_eq!((behind.text("predecessor_node"), behind.text("leader_node")), (b.name(), a.name()));

    b.kill9();
    let moved_up = c.await_where("election.following", LONG, |event| event.text("predecessor_node") == a.name());
    assert_eq!(moved_up.text("leader_node"), a.name());
    assert!(c.events().named("leader.elected").is_empty());
    a.kill9();
    c.await_event("leader.elected", LONG);
}

#[test]
fn a_follower_learns_of_a_new_leader_two_places_ahead() {
    let first = node("first");
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let c = following(&node("third").beside(&first));
    a.kill9();
    let following = c.await_where("election.following", LONG, |event| event.text("leader_node") == b.name());
    assert_eq!(following.text("predecessor_node"), b.name());
}

#[test]
fn a_stopped_leader_leads_on_for_its_lock_is_held() {
    let witness = Witness::new();
    let command = witness.command(&[]);
    let first = node("first").jobs(&format!("jobs: {{tick: {{schedule: '* * * * * *', command: {command}}}}}"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    await_start(&a, 0, "tick");
    a.stop();
    // A node that joins now sees that the stopped one leads. By then the second node would have noticed if it did not.
    let c = following(&node("third").beside(&first));
    assert_eq!(c.await_event("election.following", LONG).text("leader_node"), a.name());
    let seen = a.events().len();
    a.cont();
    a.await_after(seen, "run.finished", LONG, of("tick"));
    assert!(b.events().named("leader.elected").is_empty());
    assert!(a.events().named("leader.lost").is_empty());
    witness.assert_fine(&[]);
}

#[test]
fn a_restart_goes_on_with_the_ledger() {
    let witness = Witness::new();
    let command = witness.command(&[]);
    let spec = node("only").jobs(&format!("jobs: {{tick: {{schedule: '* * * * * *', command: {command}}}}}"));
    let a = leading(&spec);
    let run = await_start(&a, 0, "tick");
    await_end(&a, &run);
    await_run(&spec, &run);
    let token = a.await_event("leader.elected", LONG).number("token").unwrap();
    a.kill9();
    drop(a);
    let again = leading(&spec);
    assert!(again.await_event("leader.elected", LONG).number("token").unwrap() > token);
    assert!(await_start(&again, 0, "tick") > run);
    assert_eq!(await_run(&spec, &run)["outcome"], "success");
    witness.assert_fine(&[]);
}

#[test]
fn of_many_started_at_once_one_leads_after_the_other() {
    let first = node("first");
    let specs: Vec<_> = (0..5).map(|n| node(&format!("other{n}")).beside(&first)).collect();
    let mut nodes: Vec<_> = std::iter::once(&first).chain(&specs).map(Spec::start).collect();
    let mut tokens = Vec::new();
    while !nodes.is_empty() {
        // Former leaders have been removed from the list, so it must contain exactly one leader.
        let leads = |node: &Node| !node.events().named("leader.elected").is_empty();
        until("one leads", || nodes.iter().any(leads));
        let at = nodes.iter().position(leads).unwrap();
        let leader = nodes.swap_remove(at);
        assert!(!nodes.iter().any(leads));
        tokens.push(leader.await_event("leader.elected", LONG).number("token").unwrap());
        for other in &nodes {
            other.await_where("election.following", LONG, |_| true);
        }
        leader.kill9();
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert_eq!(tokens.len(), 6);
}
