//! Commands that query a daemon: `status`, `history` and others, with and without one.

use serde_json::Value;

use super::{WorkingDirectory, assert_printed, transcript};
use crate::support::LONG;
use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::node::Spec;
use crate::support::until;
use crate::support::zookeeper::shared;

fn json(line: &[&str]) -> Vec<Value> {
    let (code, out, err) = texts(&run(line));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    serde_json::Deserializer::from_str(&out).into_iter().map(|value| value.expect("JSON")).collect()
}

#[test]
fn without_a_daemon_the_error_names_the_socket() {
    let context = WorkingDirectory::new();
    let commands: [&[&str]; 5] =
        [&["status"], &["history"], &["trigger", "backup", "--wait"], &["pause", "backup"], &["resume", "backup"]];
    for command in commands {
        assert_printed(
            &context.enter(&[command, &["--runtime-dir", "run"]].concat()),
            "
        | cronkeeper: no daemon can be reached: run/api.sock: No such file or directory (os error 2)
        | hint: is `cronkeeper run` running here? `--runtime-dir` names the directory of its socket
        exit 69",
        );
    }
    let printed = transcript(context.line(&["status"]).env("RUNTIME_DIRECTORY", "named/by/systemd"));
    assert_printed(
        &printed,
        "
        | cronkeeper: no daemon can be reached: named/by/systemd/api.sock: No such file or directory (os error 2)
        | hint: is `cronkeeper run` running here? `--runtime-dir` names the directory of its socket
        exit 69",
    );
}

/// A node with one job that runs every second and fails.
fn spec() -> Spec {
    Spec::new(CRONKEEPER, "asked").jobs(
        "jobs: {greet: {schedule: '@every 1s', description: Says hello, command: 'echo hello; exit 3', overlap: skip}}",
    )
}

#[test]
fn a_leader_and_its_follower_on_one_host_are_shown() {
    let spec = spec();
    let leader = spec.start();
    let ended = leader.await_event("run.finished", LONG);
    let other = Spec::new(CRONKEEPER, "other").beside(&spec);
    let follower = other.start();
    follower.await_event("election.following", LONG);
    let runtime = spec.runtime_dir();
    until("the leader serves the socket", || runtime.join("api.sock").exists());
    let runtime = runtime.to_str().unwrap();

    let status = &json(&["status", "--json", "--runtime-dir", runtime])[0];
    assert_eq!(status["node"], leader.name());
    assert_eq!(
        (&status["backend"], &status["state"], &status["ready"]),
        (&"solo".into(), &"leading".into(), &true.into())
    );
    let queue: Vec<_> =
        status["queue"].as_array().unwrap().iter().map(|place| place["node"].as_str().unwrap()).collect();
    assert_eq!(queue, [leader.name(), follower.name()]);
    assert_eq!(status["jobs"][0]["last"]["outcome"], "failure");

    for part in [
        "LEADER   <leader> (this node) for ",
        "NODE     <leader>, leading; solo, version ",
        "<follower>",
        // Not while the end of a run is not recorded yet.
        "! greet  failure, exit 3  <leader>",
    ] {
        until(part, || {
            let (code, out, err) = texts(&run(&["status", "--runtime-dir", runtime]));
            assert_eq!((code, err.as_str()), (Some(0), ""));
            out.replace(leader.name(), "<leader>").replace(follower.name(), "<follower>").contains(part)
        });
    }

    let run_id = ended.text("run");
    let records = json(&["history", "greet", "-n", "1000", "--json", "--runtime-dir", runtime]);
    let record = records.iter().find(|record| record["run"] == run_id).expect("the first run is kept");
    assert_eq!((&record["outcome"], &record["exit_code"]), (&"failure".into(), &3.into()));
    let (code, out, _) = texts(&run(&["history", "greet", "-n", "1000", "--runtime-dir", runtime]));
    assert_eq!(code, Some(0));
    assert!(out.starts_with("DUE (UTC)") && out.contains(run_id), "{out}");
    let (code, out, _) = texts(&run(&["history", "greet", "--output", "-n", "1000", "--runtime-dir", runtime]));
    assert_eq!(code, Some(0));
    assert!(out.contains(run_id) && out.contains("failure, exit 3") && out.contains("hello"), "{out}");
}

#[test]
fn a_follower_on_zookeeper_shows_its_own_status_and_the_leaders_history() {
    let connect = shared();
    let spec = spec().zookeeper(&connect);
    let leader = spec.start();
    leader.await_event("leader.elected", LONG);
    let other = Spec::new(CRONKEEPER, "follower").zookeeper(&connect);
    other.write_jobs(&std::fs::read_to_string(spec.jobs_file()).unwrap());
    let follower = other.start();
    follower.await_event("election.following", LONG);
    let ended = leader.await_event("run.finished", LONG);
    let runtime = other.runtime_dir();
    let runtime = runtime.to_str().unwrap();

    // The status may be a quarter of a second behind the log.
    let shown = || {
        let status = json(&["status", "--json", "--runtime-dir", runtime]).remove(0);
        (status["state"] == "following").then_some(status)
    };
    let status = crate::support::poll(LONG, shown).expect("the follower's status reports that it follows");
    assert_eq!(status["node"], follower.name());
    assert_eq!(status["role"]["leader_node"], leader.name());
    assert_eq!(status["role"]["predecessor_node"], leader.name());
    let (code, out, _) = texts(&run(&["status", "--runtime-dir", runtime]));
    let out = out.replace(leader.name(), "<leader>").replace(follower.name(), "<follower>");
    assert_eq!(code, Some(0));
    for part in ["LEADER   <leader>\n", "NODE     <follower>, following", "SESSION  0x"] {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }

    let is_there = || {
        let records = json(&["history", "--json", "--runtime-dir", runtime]);
        records.iter().any(|record| record["run"] == ended.text("run")).then_some(())
    };
    crate::support::poll(LONG, is_there).expect("what the leader ran is in the follower's history");
}

#[test]
fn an_unknown_job_is_an_error() {
    let spec = spec();
    let _node = spec.start();
    let runtime = spec.runtime_dir();
    until("the leader serves the socket", || runtime.join("api.sock").exists());
    let printed = WorkingDirectory::new().enter(&["history", "gret", "--runtime-dir", runtime.to_str().unwrap()]);
    assert_printed(
        &printed,
        "
        | cronkeeper: there is no job `gret`, did you mean `greet`?
        exit 2",
    );
}
