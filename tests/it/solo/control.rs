//! Tests of `trigger`, `pause` and `resume` against a solo daemon.

use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};
use std::thread;

use serde_json::{Value, json};

use super::fixture::{
    Gate, PROGRAM, await_record, cli, cli_text, following, get, history, leading, node, post, status,
};
use crate::support::node::{Node, Spec};
use crate::support::process::Process;
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = r#""@at 2099-01-01T00:00:00Z""#;

fn spec(command: &str, more: &str) -> Spec {
    node("asked").jobs(&format!("jobs:\n  seldom: {{schedule: {SELDOM}, command: {command:?}{more}}}\n"))
}

/// Starts a node, and waits until it leads and serves its socket.
fn serving(spec: &Spec) -> Node {
    let node = leading(spec);
    until("it can be asked", || get(spec, "/healthz").is_some());
    node
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_triggered_run_ends_the_command_that_waits_with_its_own_exit_code() {
    let exits = [("exit 7", "", 7), ("kill -KILL $$", "", 137), ("sleep 600", ", timeout: 1s, kill_grace: 1s", 124)];
    for (command, more, expected) in exits {
        let spec = spec(command, more);
        let _node = serving(&spec);
        let output = cli(&spec, &["trigger", "seldom", "--wait"]);
        assert_eq!(output.status.code(), Some(expected), "{command}: {output:?}");
        let run = String::from_utf8(output.stdout).unwrap();
        let record = history(&spec, "seldom").remove(0);
        assert_eq!(record["run"], run.trim());
        assert!(record["triggered_by"].as_str().unwrap().contains(" on asked"), "{record}");
    }
}

#[test]
fn a_program_that_is_not_there_ends_it_with_127() {
    let spec = node("asked").jobs(&format!("jobs: {{seldom: {{schedule: {SELDOM}, command: [/no/such/program]}}}}\n"));
    let _node = serving(&spec);
    assert_eq!(said(&cli(&spec, &["trigger", "seldom", "--wait"])).0, Some(127));
}

#[test]
fn a_trigger_is_logged_where_it_was_asked_for_and_where_it_was_done() {
    let spec = spec("true", ", enabled: false");
    let node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]);
    let done = node.await_event("job.triggered", LONG);
    assert_eq!((done.text("job"), done.text("run")), ("seldom", run.trim()));
    assert!(done.text("by").starts_with("uid "), "{}", done.json());
    let asked = node.await_event("operator.requested", LONG);
    assert_eq!((asked.text("request"), asked.text("run"), asked.text("by")), ("trigger", run.trim(), done.text("by")));
    node.await_where("run.finished", LONG, |ended| ended.text("run") == run.trim());
}

#[test]
fn a_run_beside_another_is_skipped_and_the_command_that_waits_says_so() {
    let gate = Gate::new();
    let spec = spec(&gate.command(), "");
    let node = serving(&spec);
    let first = cli_text(&spec, &["trigger", "seldom"]);
    node.await_where("run.started", LONG, |started| started.text("run") == first.trim());
    let (code, err) = said(&cli(&spec, &["trigger", "seldom", "--wait"]));
    assert_eq!(code, Some(75));
    assert!(err.ends_with("was skipped: overlap\n"), "{err}");
    assert_eq!(err.matches("skipped").count(), 1, "{err}");
    gate.open();
}

#[test]
fn the_same_request_twice_is_one_run() {
    let spec = spec("true", ", overlap: allow");
    let node = serving(&spec);
    let request = json!({ "uuid": "6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d" });
    let ask = || post(&spec, "/v1/jobs/seldom/trigger", &request);
    let first = ask();
    assert_eq!((first.0, ask()), (200, first.clone()));
    let run = first.1["run"].as_str().unwrap().to_owned();
    node.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!(ask(), first, "also when it has ended");
    assert_eq!(cli(&spec, &["trigger", "seldom", "--wait"]).status.code(), Some(0));
    assert_eq!(history(&spec, "seldom").len(), 2);
}

#[test]
fn a_job_that_is_not_there_is_refused_with_the_nearest_name() {
    let spec = spec("true", "");
    let _node = serving(&spec);
    for command in ["trigger", "pause", "resume"] {
        let (code, err) = said(&cli(&spec, &[command, "seldon"]));
        assert_eq!((code, err.as_str()), (Some(2), "cronkeeper: there is no job `seldon`, did you mean `seldom`?\n"));
    }
}

#[test]
fn a_paused_job_runs_only_when_it_is_triggered_until_it_is_resumed() {
    let spec = node("asked").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}\n");
    let node = serving(&spec);
    node.await_event("run.finished", LONG);
    let seen = node.events().len();
    let text = cli_text(&spec, &["pause", "tick", "--reason", "new disks"]);
    assert!(text.starts_with("tick is paused by uid "), "{text}");

    node.await_after(seen, "job.paused", LONG, |paused| paused.text("reason") == "new disks");
    node.await_after(seen, "run.skipped", LONG, |skipped| skipped.text("reason") == "paused");
    let shown = &status(&spec)["jobs"][0]["paused"];
    assert_eq!((&shown["reason"], shown["by"].is_string()), (&json!("new disks"), true));
    assert!(cli_text(&spec, &["status"]).contains("new disks"));
    assert_eq!(cli(&spec, &["trigger", "tick", "--wait"]).status.code(), Some(0));

    assert_eq!(cli_text(&spec, &["resume", "tick"]), "tick has been resumed\n");
    let resumed = node.await_after(seen, "job.resumed", LONG, |_| true);
    assert!(resumed.text("by").starts_with("uid "));
    let seen = node.events().len();
    node.await_after(seen, "run.started", LONG, |started| !started.text("run").contains(".m"));
    assert_eq!(cli_text(&spec, &["resume", "tick"]), "tick was not paused\n");
    let passed = await_record(&spec, "tick", |record| record["reason"] == "paused");
    let begun = history(&spec, "tick").into_iter().filter(|record| record["kind"] == "run");
    let within = |record: &Value| {
        record["scheduled_at"].as_str() >= passed["first"].as_str()
            && record["scheduled_at"].as_str() <= passed["last"].as_str()
    };
    assert!(begun.filter(|run| run.get("triggered_by").is_none()).all(|run| !within(&run)), "nothing ran meanwhile");
}

#[test]
fn what_was_triggered_is_waited_for_while_another_node_takes_over() {
    let gate = Gate::new();
    let first = spec(&gate.command(), ", interrupted: rerun");
    let a = serving(&first);
    let b = following(&node("second").beside(&first));
    let asked = first.clone();
    let waiting = thread::spawn(move || cli(&asked, &["trigger", "seldom", "--wait"]));
    let run = a.await_event("run.started", LONG).text("run").to_owned();
    a.kill9();
    let again = b.await_where("run.started", LONG, |started| started.text("run") == run);
    assert_eq!(again.number("attempt"), Some(2));
    gate.open();
    let output = waiting.join().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn whoever_waits_for_a_run_that_waits_for_another_reads_so() {
    let gate = Gate::new();
    let spec = spec(&gate.command(), ", overlap: queue");
    let node = serving(&spec);
    let first = cli_text(&spec, &["trigger", "seldom"]);
    node.await_event("run.started", LONG);
    let mut waiting = Process::spawn(PROGRAM, |command| {
        command.args(["trigger", "seldom", "--wait", "--runtime-dir"]).arg(spec.runtime_dir());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    })
    .unwrap();
    let mut said = BufReader::new(waiting.take(|child| child.stderr.take())).lines();
    let line = said.next().unwrap().unwrap();
    assert!(line.ends_with(&format!("`: waits for {}", first.trim())), "{line}");
    gate.open();
    assert_eq!(waiting.wait_exit(LONG).and_then(|status| status.code()), Some(0));
}

#[test]
fn waiting_for_a_run_that_outlasts_the_pause_fails() {
    let spec = node("outlasted").jobs("jobs: {load: {schedule: '@every 1s', command: [sleep, '600']}}");
    let node = leading(&spec);
    node.await_event("run.started", LONG);
    let waited = cli(&spec, &["pause", "load", "--for", "1s", "--wait"]);
    let text = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(waited.status.code() == Some(1) && text.contains("the pause of load ended while 1 run"), "{waited:?}");
}

#[test]
fn a_pause_stays_when_the_leader_dies() {
    let first = node("asked").jobs("jobs: {tick: {schedule: '* * * * * *', command: 'true'}}\n");
    let a = serving(&first);
    let b = following(&node("second").beside(&first));
    cli_text(&first, &["pause", "tick"]);
    a.kill9();
    b.await_event("takeover.done", LONG);
    until("it can be asked", || get(&first, "/healthz").is_some());
    b.await_where("run.skipped", LONG, |skipped| skipped.text("reason") == "paused");
    assert!(b.events().named("run.started").is_empty());
    assert_eq!(cli_text(&first, &["resume", "tick"]), "tick has been resumed\n");
    b.await_event("run.started", LONG);
}

#[test]
fn a_killed_run_ends_as_by_its_timeout_and_says_by_whom() {
    let spec = spec("sleep 600", ", kill_grace: 2s, retries: {limit: 3}");
    let node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    node.await_where("run.started", LONG, |started| started.text("run") == run);
    assert_eq!(cli_text(&spec, &["kill", &run]), format!("{run} is being stopped\n"));
    let ended = node.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "operator"));
    assert!(ended.text("by").starts_with("uid "), "{}", ended.json());
    assert_eq!(ended.number("signal"), Some(15));
    assert!(node.events().named("run.retrying").is_empty());
    let (code, err) = said(&cli(&spec, &["kill", &run]));
    assert_eq!((code, err), (Some(2), format!("cronkeeper: run `{run}` is not in flight\n")));
}

#[test]
fn a_run_that_waits_for_another_attempt_is_killed_at_once() {
    let spec = spec("exit 3", ", retries: {limit: 3, delay: 1h, max_delay: 1h}");
    let node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "seldom"]).trim().to_owned();
    node.await_where("run.retrying", LONG, |retrying| retrying.text("run") == run);
    assert_eq!(cli_text(&spec, &["kill", &run]), format!("{run} ends without another attempt\n"));
    let ended = node.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    assert_eq!((ended.text("outcome"), ended.text("reason")), ("killed", "operator"));
}
