//! Operators' requests to any node: run now, pause, resume.

use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};
use std::thread;

use jiff::Timestamp;
use serde_json::json;

use super::cluster::{Lines, Place, await_begun, in_line, job, jobs, node, shared, usual};
use crate::solo::fixture::Gate;
use crate::support::command::{CRONKEEPER, run};
use crate::support::node::{Node, Spec};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::{LONG, poll, until};

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";

fn two(place: &Place, file: &str) -> [Node; 2] {
    in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(file)))
}

fn instant(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

pub fn ask(spec: &Spec, line: &[&str]) -> Output {
    let directory = spec.runtime_dir();
    let whom = ["--runtime-dir", directory.to_str().unwrap()];
    run(&[line, &whom].concat())
}

pub fn asked(spec: &Spec, line: &[&str]) -> String {
    let output = ask(spec, line);
    assert!(output.status.success(), "{CRONKEEPER} {line:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_follower_triggers_what_the_leader_runs_and_the_command_ends_as_it_does() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [leader, follower] =
        two(&place, &jobs(&[job("seldom", SELDOM, &witness.command(&["sh", "-c", "exit 7"]), "")]));
    let output = ask(follower.spec(), &["trigger", "seldom", "--wait"]);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    let triggered = leader.await_event("job.triggered", LONG);
    assert!(triggered.text("by").ends_with(&format!(" on {}", follower.name())), "{}", triggered.json());
    let run = String::from_utf8(output.stdout).unwrap();
    // The test's own client may ask a server that is behind.
    let record = place.await_end(run.trim());
    assert_eq!((&record["outcome"], &record["run"]["node"]), (&"failure".into(), &leader.name().into()));
    assert!(place.zk.children(&place.path("/cronkeeper/triggers")).is_empty());
    witness.assert_fine(&[]);
}

#[test]
fn a_trigger_that_its_leader_did_not_live_to_see_is_run_by_the_next() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [leader, follower] = two(&place, &jobs(&[job("seldom", SELDOM, &witness.command(&["true"]), "")]));
    // This node is stopped, so it cannot receive the request.
    leader.stop();
    let run = asked(follower.spec(), &["trigger", "seldom"]);
    leader.kill9();
    follower.await_event("takeover.done", LONG);
    let ended = follower.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!(ended.text("outcome"), "success");
    witness.assert_fine(&[]);
}

#[test]
fn the_command_that_waits_sees_a_change_of_the_leader_through() {
    let (place, witness) = (Place::shared(), Witness::new());
    let slow = job("seldom", SELDOM, &witness.command(&["sleep", "1"]), "interrupted: rerun\non_lease_end: kill");
    let [leader, follower] = two(&place, &jobs(&[slow]));
    let spec = follower.spec().clone();
    let waiting = thread::spawn(move || ask(&spec, &["trigger", "seldom", "--wait"]));
    await_begun(&witness, "seldom", 1);
    leader.kill9();
    await_begun(&witness, "seldom", 2);
    let output = waiting.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    witness.assert_fine(&[]);
}

#[test]
fn a_run_that_is_begun_again_on_another_node_keeps_the_parameters_of_its_trigger() {
    let (place, witness, scratch) = (Place::shared(), Witness::new(), Scratch::new("found"));
    let found = scratch.path().join("found");
    let script = format!(r#"echo "$DAY at $CRONKEEPER_SCHEDULED_AT" >> {}; exec sleep 3"#, found.display());
    let command = witness.command(&["sh", "-c", &script]);
    let load = job("load", SELDOM, &command, "interrupted: rerun\non_lease_end: kill\nparameters: [DAY]");
    let [leader, follower] = two(&place, &jobs(&[load]));
    let time = "2026-11-01T00:00:00Z";
    let run = asked(follower.spec(), &["trigger", "load", "--env", "DAY=the 'first'", "--scheduled-at", time]);
    await_begun(&witness, "load", 1);
    until("the program has written", || found.exists());
    leader.kill9();
    await_begun(&witness, "load", 2);
    until("its end is written", || place.history("load").contains_key(&run));
    let end = place.history("load").remove(&run).expect("it was there");
    assert_eq!((&end["run"]["attempt"], &end["run"]["v"]), (&2.into(), &2.into()));
    assert_eq!(end["run"]["parameters"], json!({ "DAY": "the 'first'" }));
    let line = format!("the 'first' at {time}\n");
    assert_eq!(std::fs::read_to_string(&found).unwrap(), line.repeat(2));
    witness.assert_fine(&[]);
}

#[test]
fn a_pause_by_a_follower_holds_from_the_moment_the_command_returns() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [leader, follower] = two(&place, &jobs(&[job("tick", "* * * * * *", &witness.command(&["true"]), "")]));
    await_begun(&witness, "tick", 1);
    for _ in 0..3 {
        let seen = leader.events().len();
        asked(follower.spec(), &["pause", "tick", "--reason", "disks"]);
        let paused = Timestamp::now();
        leader.await_after(seen, "run.skipped", LONG, |skipped| skipped.text("reason") == "paused");
        let shown = serde_json::from_str::<serde_json::Value>(&asked(follower.spec(), &["status", "--json"])).unwrap();
        assert_eq!(shown["jobs"][0]["paused"]["reason"], json!("disks"), "{shown}");
        let resumed = Timestamp::now();
        asked(follower.spec(), &["resume", "tick"]);
        leader.await_after(seen, "run.started", LONG, |started| instant(started.text("scheduled_at")) > resumed);
        let begun = place.history("tick").into_values().filter(|record| record["kind"] == "run");
        let begun: Vec<_> = begun.map(|record| instant(record["run"]["scheduled_at"].as_str().unwrap())).collect();
        let between = begun.iter().find(|&&at| at > paused && at < resumed);
        assert_eq!(between, None, "paused at {paused}, resumed at {resumed}");
    }
    witness.assert_fine(&[]);
}

/// Until the servers are back nobody knows what runs, and then the jobs are not paused any more.
#[test]
fn waiting_within_a_pause_ends_with_it_though_the_servers_stay_away() {
    let (place, gate) = (Place::shared(), Gate::new());
    let lines = Lines::new(shared(), &place);
    let file = jobs(&[job("seldom", SELDOM, &format!("{:?}", gate.command()), "")]);
    let [only] = in_line([usual(node("a", &lines.connect())).jobs(&file)]);
    let run = asked(only.spec(), &["trigger", "seldom"]);
    only.await_where("run.started", LONG, |started| started.text("run") == run);
    let mut waiting = Process::spawn(CRONKEEPER, |command| {
        command.args(["pause", "seldom", "--for", "10s", "--wait", "--runtime-dir"]).arg(only.spec().runtime_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    })
    .unwrap();
    let mut said = BufReader::new(waiting.take(|child| child.stderr.take())).lines().map(Result::unwrap);
    assert!(said.next().unwrap().contains("waiting for 1 run"));
    lines.part();
    gate.open();
    only.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    let status = waiting.wait_exit(LONG).expect("it ends before the servers are back");
    let said: Vec<String> = said.collect();
    assert_eq!(status.code(), Some(1), "{said:?}");
    assert!(said.iter().any(|line| line.contains("the pause of seldom ended")), "{said:?}");
}

#[test]
fn a_resume_that_no_leader_receives_is_reported_open_and_done_by_the_next() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [leader, follower] = two(&place, &jobs(&[job("seldom", SELDOM, &witness.command(&["true"]), "")]));
    asked(follower.spec(), &["pause", "seldom"]);
    leader.stop();
    let spec = follower.spec().clone();
    let waiting = thread::spawn(move || ask(&spec, &["resume", "seldom"]));
    let control = place.path("/cronkeeper/control/seldom");
    let is_asked = || place.zk.json(&control).is_some_and(|record| record["resume"].is_object());
    until("the request is written", is_asked);
    leader.kill9();
    follower.await_event("job.resumed", LONG);
    let output = waiting.join().unwrap();
    assert!(output.status.success() || output.status.code() == Some(69), "{output:?}");
    assert!(poll(LONG, || place.zk.json(&control).is_none().then_some(())).is_some());
    witness.assert_fine(&[]);
}

#[test]
fn any_node_can_end_a_run_that_a_draining_one_still_has() {
    let (place, witness) = (Place::shared(), Witness::new());
    let file = jobs(&[job("seldom", SELDOM, &witness.command(&["sleep", "600"]), "")]);
    let [leader, follower] =
        in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m").jobs(&file)));
    let run = asked(follower.spec(), &["trigger", "seldom"]);
    await_begun(&witness, "seldom", 1);
    leader.signal(rustix::process::Signal::TERM);
    follower.await_event("takeover.done", LONG);
    until("the other's status says that it drains", || {
        let status = asked(follower.spec(), &["status"]);
        status.lines().any(|line| line.starts_with(leader.name()) && line.ends_with("stopping"))
    });
    assert_eq!(asked(follower.spec(), &["kill", &run]), format!("{run} is being stopped"));
    let ended = leader.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "operator"));
    assert!(ended.text("by").ends_with(&format!(" on {}", follower.name())), "{}", ended.json());
    assert_eq!(leader.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
}

/// A follower that leaves the queue still receives what others request for its runs.
#[test]
fn any_node_can_end_a_run_that_a_former_leader_has_and_drains_later() {
    let (place, witness) = (Place::shared(), Witness::new());
    let file = jobs(&[job("seldom", SELDOM, &witness.command(&["sleep", "600"]), "")]);
    let [former, leader] =
        in_line(["a", "b"].map(|name| usual(place.node(name)).option("--drain-timeout", "2m").jobs(&file)));
    let run = asked(leader.spec(), &["trigger", "seldom"]);
    await_begun(&witness, "seldom", 1);
    asked(former.spec(), &["handover", "--to", leader.name()]);
    leader.await_event("takeover.done", LONG);
    former.await_event("election.following", LONG);
    former.signal(rustix::process::Signal::TERM);
    until("the other's status says that it drains", || {
        let status = asked(leader.spec(), &["status"]);
        status.lines().any(|line| line.starts_with(former.name()) && line.ends_with("stopping"))
    });
    assert_eq!(asked(leader.spec(), &["kill", &run]), format!("{run} is being stopped"));
    let ended = former.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "operator"));
    assert_eq!(former.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
}

#[test]
fn a_cut_off_run_ends_by_force() {
    let (place, witness) = (Place::shared(), Witness::new());
    let [leader, follower] = two(&place, &jobs(&[job("seldom", SELDOM, &witness.command(&["sleep", "600"]), "")]));
    let run = asked(follower.spec(), &["trigger", "seldom"]);
    await_begun(&witness, "seldom", 1);
    leader.kill9();
    follower.await_event("run.cut_off", LONG);
    until("status says so", || asked(follower.spec(), &["status"]).contains("CUT OFF"));
    let failing = asked(follower.spec(), &["status", "--failing"]);
    assert!(failing.contains("FAILING  1 of 1 job") && failing.contains("\n! seldom "), "{failing}");
    until("the check is fine", || ask(follower.spec(), &["status", "--check"]).status.success());
    assert!(asked(follower.spec(), &["kill", &run]).ends_with("--force abandons it now"));
    assert!(place.running(&run).is_some());
    assert_eq!(asked(follower.spec(), &["kill", &run, "--force"]), format!("{run} is being abandoned"));
    let ended = follower.await_event("run.finished", LONG);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "operator"));
    // The server that answers may lag behind.
    until("the run is gone from the ledger", || place.running(&run).is_none());
}
