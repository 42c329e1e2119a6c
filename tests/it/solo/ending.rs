//! Orderly stops: resign, drain while the member is alive, and end runs that take too long.

use rustix::process::Signal;

use crate::support::LONG;
use crate::support::node::{Node, Spec};

use super::fixture::{Gate, await_end, await_run, await_start, following, leading, node, of};

/// A job that is due every second and ends when the gate is open.
fn gated(gate: &Gate) -> Spec {
    let command = gate.command();
    node("first").jobs(&format!("jobs: {{long: {{schedule: '* * * * * *', command: {command:?}}}}}"))
}

/// A job that is due every second and ignores SIGTERM.
fn stubborn(kill_grace: &str) -> Spec {
    let command = r#"trap "" TERM; while :; do sleep 0.05; done"#;
    let job = format!("{{schedule: '* * * * * *', command: {command:?}, kill_grace: {kill_grace}}}");
    node("first").jobs(&format!("jobs: {{long: {job}}}"))
}

fn assert_interrupted_by_drain(a: &Node, run: &str) {
    let ended = await_end(a, run);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("interrupted", "drain"));
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    assert_eq!(a.job_processes(), Vec::<u32>::new());
    let next = leading(&node("second").beside(a.spec()));
    let record = await_run(next.spec(), run);
    assert_eq!((&record["outcome"], &record["reason"]), (&"interrupted".into(), &"drain".into()));
}

fn the_follower_leads_while_the_former_leader_drains(signal: Signal) {
    let gate = Gate::new();
    let first = gated(&gate);
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "long");
    a.signal(signal);

    let draining = a.await_event("node.draining", LONG);
    assert_eq!((draining.number("runs"), draining.number("timeout_ms")), (Some(1), Some(30_000)));
    a.await_event("leader.resigned", LONG);
    b.await_event("leader.elected", LONG);
    let skipped = b.await_where("run.skipped", LONG, of("long"));
    assert_eq!(skipped.text("reason"), "overlap");
    assert!(b.events().named("run.started").is_empty());

    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    assert_eq!(a.await_event("node.stopped", LONG).text("reason"), "asked to");
    await_start(&b, 0, "long");
    let record = await_run(&first, &run);
    assert_eq!((&record["outcome"], &record["node"]), (&"success".into(), &a.name().into()));
}

#[test]
fn after_sigterm_the_follower_leads_while_the_former_leader_drains() {
    the_follower_leads_while_the_former_leader_drains(Signal::TERM);
}

#[test]
fn after_sigint_the_follower_leads_while_the_former_leader_drains() {
    the_follower_leads_while_the_former_leader_drains(Signal::INT);
}

#[test]
fn a_draining_node_that_is_killed_leaves_its_run_to_the_new_leader() {
    let first = gated(&Gate::new());
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "long");
    a.signal(Signal::TERM);
    b.await_where("run.skipped", LONG, of("long"));
    a.kill9();
    let settled = await_end(&b, &run);
    assert_eq!((settled.text("outcome"), settled.text("reason")), ("interrupted", "node-died"));
    assert_eq!(a.job_processes(), Vec::<u32>::new());
    await_start(&b, 0, "long");
}

#[test]
fn what_outlasts_the_drain_timeout_and_its_grace_is_killed() {
    let a = leading(&stubborn("300ms").option("--drain-timeout", "100ms"));
    let run = await_start(&a, 0, "long");
    a.signal(Signal::TERM);
    assert_eq!(await_end(&a, &run).number("signal"), Some(9));
    assert_interrupted_by_drain(&a, &run);
}

#[test]
fn a_run_that_obeys_sigterm_at_the_drain_timeout_has_its_grace() {
    let command = r#"trap "echo cleaned up; exit 7" TERM; while :; do sleep 0.05; done"#;
    let jobs = format!("jobs: {{long: {{schedule: '* * * * * *', command: {command:?}, kill_grace: 1m}}}}");
    let a = leading(&node("first").jobs(&jobs).option("--drain-timeout", "500ms"));
    let run = await_start(&a, 0, "long");
    a.signal(Signal::TERM);
    assert_eq!(await_end(&a, &run).number("exit_code"), Some(7));
    a.await_where("run.output", LONG, |event| event.text("line") == "cleaned up");
    assert_interrupted_by_drain(&a, &run);
}

#[test]
fn a_second_sigterm_kills_what_runs_and_ends() {
    let a = leading(&stubborn("1h").option("--drain-timeout", "1h"));
    let run = await_start(&a, 0, "long");
    a.signal(Signal::TERM);
    a.await_event("leader.resigned", LONG);
    assert!(a.events().named("run.finished").is_empty());
    a.signal(Signal::TERM);
    assert_interrupted_by_drain(&a, &run);
}

#[test]
fn a_follower_ends_at_once() {
    let first = node("first");
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    b.signal(Signal::TERM);
    assert_eq!(b.wait_exit(LONG).code(), Some(0));
    a.signal(Signal::INT);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
}
