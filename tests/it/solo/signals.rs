//! The signals that do not end the daemon.

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::LONG;

use super::fixture::{Gate, await_end, await_start, following, leading, node, of};

/// A child inherits the mask of the thread that starts it.
#[test]
fn a_daemon_that_was_started_with_signals_blocked_receives_them() {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK).unwrap();
    let a = node("only").start();
    before.thread_set_mask().unwrap();
    a.await_event("takeover.done", LONG);
    a.signal(Signal::TERM);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
}

#[test]
fn sigusr1_logs_the_state() {
    let a = leading(&node("first").jobs("jobs: {j: {schedule: '@yearly', command: 'true'}}"));
    a.signal(Signal::USR1);
    let logged = a.await_event("node.state", LONG);
    let state: Value = serde_json::from_str(logged.text("state")).unwrap();
    assert_eq!((&state["state"], &state["jobs"][0]["name"]), (&"leading".into(), &"j".into()));
}

#[test]
fn sigusr2_hands_over_and_the_node_follows_while_its_run_goes_on() {
    let gate = Gate::new();
    let command = gate.command();
    let first = node("first").jobs(&format!("jobs: {{long: {{schedule: '* * * * * *', command: {command:?}}}}}"));
    let a = leading(&first);
    let b = following(&node("second").beside(&first));
    let run = await_start(&a, 0, "long");
    a.signal(Signal::USR2);
    b.await_event("leader.elected", LONG);
    let follows = a.await_event("election.following", LONG);
    assert_eq!((follows.text("predecessor_node"), follows.text("leader_node")), (b.name(), b.name()));
    assert_eq!(b.await_where("run.skipped", LONG, of("long")).text("reason"), "overlap");
    gate.open();
    assert_eq!(await_end(&a, &run).text("outcome"), "success");
    await_start(&b, 0, "long");
}

#[test]
fn sigusr2_to_the_only_node_makes_it_lead_again() {
    let a = leading(&node("only"));
    let token = a.await_event("leader.elected", LONG).number("token").unwrap();
    a.signal(Signal::USR2);
    let asked = a.await_event("operator.requested", LONG);
    assert_eq!((asked.text("request"), asked.text("by")), ("handover", "SIGUSR2"));
    a.await_event("leader.resigned", LONG);
    a.await_where("leader.elected", LONG, |event| event.number("token") > Some(token));
}

#[test]
fn sighup_reads_the_jobs_again_changed_or_not() {
    let spec = node("only");
    let a = leading(&spec);
    let seen = a.events().len();
    a.signal(Signal::HUP);
    let logged = a.await_after(seen, "jobs.loaded", LONG, |_| true);
    assert_eq!(
        (logged.number("added"), logged.number("changed"), logged.number("removed")),
        (Some(0), Some(0), Some(0))
    );
}
