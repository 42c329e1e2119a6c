//! `cronkeeper check --diff` against a running node.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::fixture::{PROGRAM, leading, node, status};
use crate::support::node::Spec;

const JOBS: &str = "jobs:\n  a: {schedule: '0 2 * * *', command: x, environment: {TOKEN: hunter2}}\n  b: {schedule: '@yearly', command: [y, z]}\n";

/// Checks this text, given on the standard input.
fn check(spec: &Spec, jobs: &str, options: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["check", "-", "--diff"]).args(options).arg("--runtime-dir").arg(spec.runtime_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(jobs.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_a_file_would_change_is_shown_key_by_key() {
    let spec = node("only").jobs(JOBS);
    let a = leading(&spec);
    assert_eq!(status(&spec)["node"], a.name());
    let same = check(&spec, JOBS, &[]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(text(&same.stdout).starts_with("0 added, 0 removed, 0 altered, compared with the jobs of "), "{same:?}");

    let new = JOBS.replace("0 2 * * *", "0 3 * * *").replace("hunter2", "hunter3").replace("b:", "c:");
    let changed = check(&spec, &new, &[]);
    assert_eq!(changed.status.code(), Some(1), "{changed:?}");
    let printed = text(&changed.stdout);
    for line in ["+ c", "- b", "~ a", "    schedule: 0 2 * * * -> 0 3 * * *", "    environment.TOKEN: differs"] {
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
    assert!(printed.contains("1 added, 1 removed, 1 altered") && !printed.contains("hunter"), "{printed}");

    let document = check(&spec, &new, &["--json", "--portable"]);
    assert_eq!(document.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!((&document["valid"], &document["diff"]["added"][0]["job"]), (&true.into(), &"c".into()));
    assert_eq!(document["diff"]["leader"], a.name());
    assert!(document["digest"].is_null(), "the digest of the standard input says nothing");

    let wrong = check(&spec, "jobs: {a: {schedule: x}}", &[]);
    assert_eq!(wrong.status.code(), Some(78));
    assert!(text(&wrong.stderr).starts_with("-:1:8: "), "{wrong:?}");
    drop(a);
    assert_eq!(check(&spec, JOBS, &[]).status.code(), Some(69));
}
