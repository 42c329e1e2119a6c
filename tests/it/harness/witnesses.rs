//! The witness records what happened, and its checker detects violations.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::until;
use crate::support::witness::{Fault, Mark, Witness, faults};

fn run(witness: &Witness, run: &str, token: i64, command: &[&str]) -> Child {
    let argv: Vec<String> = serde_json::from_str(&witness.command(command)).unwrap();
    let environment = [
        ("CRONKEEPER_JOB", "backup"),
        ("CRONKEEPER_RUN_ID", run),
        ("CRONKEEPER_ATTEMPT", "1"),
        ("CRONKEEPER_SCHEDULED_AT", "2026-11-20T02:30:00Z"),
        ("CRONKEEPER_NODE", "a"),
        ("CRONKEEPER_FENCING_TOKEN", &token.to_string()),
    ];
    let mut shell = Command::new(&argv[0]);
    shell.args(&argv[1..]).envs(environment).stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn runs_one_after_the_other_are_fine_and_a_commands_code_is_passed_on() {
    let witness = Witness::new();
    assert_eq!(run(&witness, "backup.1", 5, &["sh", "-c", "exit 3"]).wait().unwrap().code(), Some(3));
    assert_eq!(run(&witness, "backup.2", 6, &[]).wait().unwrap().code(), Some(0));
    witness.assert_fine(&[]);
    let entries = witness.entries();
    let marks: Vec<Mark> = entries.iter().map(|entry| entry.mark).collect();
    assert_eq!(marks, [Mark::Start, Mark::End, Mark::Start, Mark::End]);
    assert_eq!((entries[0].run.as_str(), entries[0].token, entries[0].attempt), ("backup.1", 5, 1));
}

#[test]
fn an_attempt_seen_twice_is_a_fault() {
    let witness = Witness::new();
    run(&witness, "backup.1", 5, &[]).wait().unwrap();
    run(&witness, "backup.1", 5, &[]).wait().unwrap();
    assert!(matches!(faults(&witness.entries(), &[])[..], [Fault::Twice(_)]));
}

#[test]
fn an_older_leaders_run_after_a_newer_leaders_is_a_fault() {
    let witness = Witness::new();
    run(&witness, "backup.1", 6, &[]).wait().unwrap();
    run(&witness, "backup.2", 5, &[]).wait().unwrap();
    assert!(matches!(faults(&witness.entries(), &[])[..], [Fault::TokenWentBack { newest: 6, .. }]));
}

#[test]
fn a_process_left_of_a_killed_run_overlaps_with_the_next() {
    let witness = Witness::new();
    // `cat` lives as long as its input is open, even if its parent shell is killed.
    let mut first = run(&witness, "backup.1", 5, &["cat"]);
    let input = first.stdin.take();
    until("the first began", || !witness.entries().is_empty());
    kill_process(Pid::from_child(&first), Signal::KILL).unwrap();
    first.wait().unwrap();
    run(&witness, "backup.2", 5, &[]).wait().unwrap();
    let seen = faults(&witness.entries(), &[]);
    assert!(matches!(&seen[..], [Fault::Overlap(entry)] if entry.run == "backup.2"), "{seen:?}");
    assert!(faults(&witness.entries(), &["backup"]).is_empty());
    drop(input);
}
