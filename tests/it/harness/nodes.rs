//! Nodes: tests can wait for their events, and leftover processes of jobs fail the test.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::Signal;

use crate::support::LONG;
use crate::support::node::Spec;
use crate::support::scratch::Scratch;

/// A stand-in for the daemon: takes its name from the arguments, logs some events, and ends with 0 on SIGTERM.
const DAEMON: &str = r#"#!/bin/sh
[ "$1 $2 $3 $4" = "run --log-format json --node" ] || exit 2
node=$5
say() { printf '{"event":"%s","node":"%s","token":%s,"jobs_file":"%s"}\n' "$1" "$node" "$2" "$7" >&2; }
trap 'say node.stopped 0; exit 0' TERM
echo 'no JSON' >&2
say leader.elected 7
[ -z "$LEAVES_A_JOB" ] || CRONKEEPER_NODE=$node setsid sleep 1000 </dev/null >/dev/null 2>&1 &
say run.started 7
say leader.elected 8
while :; do sleep 0.1; done
"#;

fn daemon() -> (Scratch, String) {
    let dir = Scratch::new("daemon");
    let program = dir.program("daemon", DAEMON).to_str().unwrap().to_owned();
    (dir, program)
}

#[test]
fn events_are_found_by_name_by_field_and_by_place() {
    let (_dir, program) = daemon();
    let node = Spec::new(&program, "a").start();
    let first = node.await_event("leader.elected", LONG);
    assert_eq!((first.number("token"), first.text("node")), (Some(7), node.name()));
    node.await_where("leader.elected", LONG, |event| event.number("token") == Some(8));
    let seen = node.events().len();
    node.signal(Signal::TERM);
    node.await_after(seen, "node.stopped", LONG, |_| true);
    assert_eq!(node.wait_exit(LONG).code(), Some(0));
    assert_eq!(node.events().named("leader.elected").len(), 2);
}

#[test]
fn a_killed_node_can_be_started_again_with_its_name() {
    let (_dir, program) = daemon();
    let node = Spec::new(&program, "a").start();
    node.stop();
    node.kill9();
    assert_eq!(node.wait_exit(LONG).code(), None);
    let again = node.spec().clone().start();
    assert_eq!(again.await_event("leader.elected", LONG).text("node"), node.name());
}

#[test]
fn a_log_that_ends_without_the_event_is_not_waited_for() {
    let (_dir, program) = daemon();
    let node = Spec::new(&program, "a").start();
    node.await_event("run.started", LONG);
    node.kill9();
    let waited = catch_unwind(AssertUnwindSafe(|| node.await_event("never.happens", LONG * 60)));
    assert!(waited.is_err());
}

#[test]
fn a_job_left_behind_is_found_and_fails_the_test() {
    let (_dir, program) = daemon();
    let node = Spec::new(&program, "a").env("LEAVES_A_JOB", "yes").start();
    let name = node.name().to_owned();
    node.await_event("run.started", LONG);
    crate::support::until("the job runs", || node.job_processes().len() == 1);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(node)));
    let complaint = *dropped.unwrap_err().downcast::<String>().unwrap();
    assert!(complaint.starts_with(&format!("{name} left processes of jobs behind")));
}
