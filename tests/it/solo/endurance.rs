//! Repeated failovers with a job due every second: no occurrence runs twice, and none is lost.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::LONG;
use crate::support::node::{Node, Spec};
use crate::support::witness::{Mark, Witness};

use super::fixture::{await_starts, following, history, leading, node, of};

const FAILOVERS: usize = 10;

/// All history records of the job, collected before they are trimmed.
#[derive(Default)]
struct Account {
    runs: BTreeMap<Timestamp, Value>,
    skips: Vec<Value>,
}

impl Account {
    fn gather(&mut self, spec: &Spec) {
        for record in history(spec, "tick") {
            if record["kind"] == "run" {
                self.runs.insert(instant(&record["scheduled_at"]), record);
            } else {
                self.skips.push(record);
            }
        }
    }

    fn is_skipped(&self, at: Timestamp) -> bool {
        self.skips.iter().any(|skip| {
            assert_eq!(skip["reason"], "overlap", "{skip}");
            instant(&skip["first"]) <= at && at <= instant(&skip["last"])
        })
    }

    /// Checks that every second has a record, and that the record matches what the witness saw.
    fn assert_agrees_with(&self, witness: &Witness, may_be_interrupted: bool) {
        let entries = witness.entries();
        let seen = |mark: Mark| -> BTreeSet<Timestamp> {
            let marked = entries.iter().filter(|entry| entry.mark == mark);
            marked.map(|entry| entry.scheduled_at.parse().unwrap()).collect()
        };
        let (started, ended) = (seen(Mark::Start), seen(Mark::End));
        let (first, last) = (*self.runs.keys().next().unwrap(), *self.runs.keys().next_back().unwrap());
        let mut at = first;
        while at <= last {
            let outcome = self.runs.get(&at).map(|run| run["outcome"].as_str().unwrap());
            match outcome {
                Some("success") => assert!(started.contains(&at) && ended.contains(&at), "{at} did not run"),
                // Its program may have ended just before the node was killed that was to record it.
                Some("interrupted") => assert!(may_be_interrupted, "{at} was interrupted"),
                None => assert!(self.is_skipped(at) && !started.contains(&at), "{at} is lost"),
                Some(other) => panic!("{at}: {other}"),
            }
            at += SignedDuration::from_secs(1);
        }
        let unknown: Vec<_> = started.range(..=last).filter(|at| !self.runs.contains_key(at)).collect();
        assert!(unknown.is_empty(), "ran, and nobody knows: {unknown:?}");
    }
}

fn instant(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

fn ticking(witness: &Witness) -> Spec {
    let command = witness.command(&["sleep", "0.3"]);
    let job = format!("{{schedule: '* * * * * *', command: {command}, misfire: run-all, misfire_window: 5m}}");
    node("first").jobs(&format!("jobs: {{tick: {job}}}"))
}

/// Ends the leader repeatedly, sometimes during a run and sometimes between two.
fn fail_over(end: impl Fn(&Node), may_be_interrupted: bool) {
    let witness = Witness::new();
    let spec = ticking(&witness);
    let mut account = Account::default();
    let mut leader = leading(&spec);
    let mut follower = following(&node("second").beside(&spec));
    for round in 0..FAILOVERS {
        await_starts(&leader, "tick", 1);
        if round % 2 == 0 {
            leader.await_after(leader.events().len(), "run.finished", LONG, of("tick"));
        }
        account.gather(&spec);
        end(&leader);
        follower.await_event("takeover.done", LONG);
        let former = std::mem::replace(&mut leader, follower);
        let again = former.spec().clone();
        // Dropping it checks that none of its processes is left.
        drop(former);
        follower = following(&again);
    }
    await_starts(&leader, "tick", 2);
    account.gather(&spec);
    witness.assert_fine(&[]);
    account.assert_agrees_with(&witness, may_be_interrupted);
}

#[test]
fn ten_killed_leaders_lose_no_occurrence_and_run_none_twice() {
    fail_over(Node::kill9, true);
}

#[test]
fn ten_leaders_that_leave_in_order_interrupt_nothing() {
    let leave = |leader: &Node| {
        leader.signal(Signal::TERM);
        assert_eq!(leader.wait_exit(LONG).code(), Some(0));
    };
    fail_over(leave, false);
}
