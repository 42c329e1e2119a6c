//! Many jobs due in the same second.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::support::node::{Node, Spec};
use crate::support::witness::{Mark, Witness};
use crate::support::{LONG, poll};

use super::fixture::{leading, node};

const JOBS: usize = 500;

/// Gives a leader its jobs, all due once at the same time. Returns false if it loaded them too late.
fn load(spec: &Spec, a: &Node, witness: &Witness, ahead: SignedDuration) -> bool {
    let at = Timestamp::now() + ahead;
    let at = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let command = witness.command(&[]);
    let job = |n| format!("  j{n}: {{schedule: '@at {at}', command: {command}}}\n");
    let seen = a.events().len();
    spec.write_jobs(&format!("jobs:\n{}", (0..JOBS).map(job).collect::<String>()));
    let loaded = a.events().wait(seen, LONG, |event| ["jobs.loaded", "jobs.rejected"].contains(&event.name())).unwrap();
    loaded.name() == "jobs.loaded" && loaded.text("timestamp") < at.as_str()
}

#[test]
fn five_hundred_jobs_of_one_second_all_start_once() {
    let witness = Witness::new();
    let spec = node("only");
    let a = leading(&spec);
    let loaded = [4, 10, 20].into_iter().find(|&ahead| load(&spec, &a, &witness, SignedDuration::from_secs(ahead)));
    assert!(loaded.is_some(), "reading 500 jobs takes longer than 20 s");
    let finished = || a.events().named("run.finished");
    poll(LONG, || (finished().len() >= JOBS).then_some(()));

    let mut starts = BTreeMap::new();
    for entry in witness.entries().iter().filter(|entry| entry.mark == Mark::Start) {
        *starts.entry(entry.job.clone()).or_insert(0) += 1;
    }
    assert_eq!(starts.len(), JOBS, "not all started; the log:\n{}", a.events().tail());
    assert!(starts.values().all(|&count| count == 1));
    assert!(finished().iter().all(|end| end.text("outcome") == "success"));
    let started = a.events().named("run.started");
    let lateness: Vec<i64> = started.iter().filter_map(|start| start.number("lateness_ms")).collect();
    assert_eq!(lateness.len(), JOBS);
    eprintln!("the last of {JOBS} started {} ms late", lateness.iter().max().unwrap());
}
