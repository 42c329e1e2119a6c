//! A job that runs every second, over one failover after the other: no run happens twice, none is lost without a
//! record.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use super::cluster::{Place, again, in_line, is_long, job, jobs, run_id, token, usual};
use crate::support::node::{Event, Node};
use crate::support::witness::{Mark, Witness};
use crate::support::{LONG, until};

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGTERM, and a restart.
    Stop,
    /// SIGKILL, and an immediate restart.
    Restart,
    /// SIGKILL, and a restart once the next node leads.
    Loss,
    /// SIGSTOP until the next node leads.
    Hang,
}

const FAULTS: [Fault; 4] = [Fault::Stop, Fault::Restart, Fault::Loss, Fault::Hang];

/// Applies the fault to the leading node and returns the next leader.
fn inject(fault: Fault, line: &mut VecDeque<Node>) {
    let leader = line.pop_front().expect("there are nodes");
    let next = &line[0];
    let seen = next.events().len();
    let await_next = || next.await_after(seen, "takeover.done", LONG, |_| true);
    let returned = match fault {
        Fault::Stop => {
            leader.signal(Signal::TERM);
            leader.wait_exit(LONG);
            await_next();
            again(leader)
        }
        Fault::Restart => {
            leader.kill9();
            let restarted = again(leader);
            await_next();
            restarted
        }
        Fault::Loss => {
            leader.kill9();
            await_next();
            again(leader)
        }
        Fault::Hang => {
            let seen = leader.events().len();
            leader.stop();
            await_next();
            leader.cont();
            leader.await_after(seen, "node.stood_still", LONG, |_| true);
            leader.await_after(seen, "election.following", LONG, |_| true);
            assert_standstill_is_told_first(&leader, seen);
            leader
        }
    };
    returned.await_event("election.following", LONG);
    line.push_back(returned);
}

/// Whoever reads the log learns why the session is gone before they learn that it is.
fn assert_standstill_is_told_first(node: &Node, seen: usize) {
    let is_due_to_it = |event: &Event| {
        let name = event.name();
        name.starts_with("coordination.") || ["leader.lost", "run.outlived", "warden.silent"].contains(&name)
    };
    let all = node.events().all();
    let reported = all[seen..].iter().filter(|event| event.name() == "node.stood_still" || is_due_to_it(event));
    let names: Vec<&str> = reported.map(Event::name).collect();
    assert_eq!(names.first(), Some(&"node.stood_still"), "{names:?}");
    assert!(names.contains(&"coordination.expired"), "{names:?}");
}

#[test]
fn a_job_of_every_second_is_run_once_for_every_second_over_many_failovers() {
    let place = Place::shared();
    let witness = Witness::new();
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), "misfire: run-all\nmisfire_window: 5m")]);
    let specs = ["a", "b", "c"].map(|name| usual(place.node(name)).jobs(&file));
    let mut line = VecDeque::from(in_line(specs));
    let mut tokens = vec![token(&line[0])];
    // The history keeps only the newest records, so it is read after each fault.
    let mut ledger = BTreeMap::new();
    for fault in FAULTS.repeat(if is_long() { 5 } else { 1 }) {
        await_a_run(&witness, token(&line[0]));
        ledger.extend(place.history("tick"));
        inject(fault, &mut line);
        tokens.push(token(&line[0]));
        ledger.extend(place.history("tick"));
    }
    await_a_run(&witness, token(&line[0]));
    ledger.extend(place.history("tick"));

    witness.assert_fine(&[]);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert_none_is_lost(&witness, &ledger);
    assert_nonces_differ(&ledger);
}

/// Each process draws the random part of its nonces: in a copy of a process, all the rest may be the same.
fn assert_nonces_differ(ledger: &BTreeMap<String, Value>) {
    let nonces: Vec<&str> = ledger.values().filter_map(|record| record["run"]["nonce"].as_str()).collect();
    let drawn: BTreeSet<&str> = nonces.iter().filter_map(|nonce| nonce.rsplit('-').next()).collect();
    assert!(drawn.iter().all(|part| part.len() == 16 && u64::from_str_radix(part, 16).is_ok()), "{nonces:?}");
    let writers: BTreeSet<&str> = ledger.values().filter_map(|record| record["run"]["node"].as_str()).collect();
    assert!(writers.len() > 1 && drawn.len() == nonces.len(), "{writers:?}: {nonces:?}");
}

/// Waits until all missed occurrences are made up for, and a run of this term has ended.
fn await_a_run(witness: &Witness, token: i64) {
    until("the leader is up to date", || {
        let now = Timestamp::now();
        let is_new = |at: &str| at.parse::<Timestamp>().is_ok_and(|at| now.duration_since(at).as_secs() <= 2);
        witness
            .entries()
            .iter()
            .any(|entry| entry.mark == Mark::End && entry.token == token && is_new(&entry.scheduled_at))
    });
}

fn assert_none_is_lost(witness: &Witness, ledger: &BTreeMap<String, Value>) {
    let instant = |text: &str| text.parse::<Timestamp>().expect("it is a time").as_second();
    let entries = witness.entries();
    let of = |mark: Mark| entries.iter().filter(move |entry| entry.mark == mark);
    let ended: BTreeSet<i64> = of(Mark::End).map(|entry| instant(&entry.scheduled_at)).collect();
    let (first, last) = (ended.first().expect("some ended"), ended.last().expect("some ended"));
    let lost: Vec<(String, Option<&Value>)> = (*first..=*last)
        .filter(|second| !ended.contains(second))
        .map(|second| run_id("tick", Timestamp::from_second(second).expect("it is a time")))
        .map(|run| (run.clone(), ledger.get(&run).map(|record| record.get("outcome").unwrap_or(&record["reason"]))))
        .collect();
    // On a loaded machine a run takes longer than the second until the next.
    let explanations = ["interrupted", "abandoned", "overlap"];
    let is_explained = |said: &Option<&Value>| said.is_some_and(|said| explanations.iter().any(|one| said == one));
    assert!(lost.iter().all(|(_, said)| is_explained(said)), "neither run nor explained: {lost:?}");
}
