//! Parameters of triggered runs, through the real program.

use std::process::Output;

use serde_json::{Value, json};

use super::fixture::{await_record, cli, cli_text, get, get_json, history, leading, node, post};
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

/// A job that is never due and takes the parameters `DAY` and `NOTE`. It writes what it finds into the file `found`.
fn spec(scratch: &Scratch, more: &str) -> Spec {
    let found = scratch.path().join("found");
    let command = format!(r#"printf '%s|' "$DAY" "$NOTE" "$CRONKEEPER_SCHEDULED_AT" >> {}"#, found.display());
    let keys = format!("environment: {{DAY: default}}, parameters: [DAY, NOTE], command: {command:?}{more}");
    node("asked").jobs(&format!("jobs: {{load: {{schedule: '@at 2099-01-01T00:00:00Z', {keys}}}}}\n"))
}

fn found(scratch: &Scratch) -> String {
    std::fs::read_to_string(scratch.path().join("found")).unwrap_or_default()
}

/// Starts a node, and waits until it leads and serves its socket.
fn serving(spec: &Spec) -> Node {
    let node = leading(spec);
    until("it can be asked", || get(spec, "/healthz").is_some());
    node
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const TIME: &str = "2026-11-19T02:30:00Z";

#[test]
fn a_value_of_any_text_and_the_time_arrive_unchanged_and_are_in_the_history() {
    let scratch = Scratch::new("found");
    let spec = spec(&scratch, "");
    let node = serving(&spec);
    let note = "it's \"quoted\",\n$HOME; `id` = \u{e9}";
    let arguments = ["trigger", "load", "--wait", "--scheduled-at", TIME, "--env", "DAY=", "--env"];
    let output = cli(&spec, &[&arguments[..], &[&format!("NOTE={note}")]].concat());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(found(&scratch), format!("|{note}|{TIME}|"));

    let record = history(&spec, "load").remove(0);
    assert_eq!(record["parameters"], json!({ "DAY": "", "NOTE": note }));
    assert_eq!(record["triggered_for"], TIME);
    assert_ne!(record["scheduled_at"], TIME, "the run keeps its own time");
    let run = record["run"].as_str().unwrap();
    assert_eq!(get_json(&spec, &format!("/v1/runs/{run}"))["record"]["parameters"]["NOTE"], note);
    let line = cli_text(&spec, &["history", "load"]);
    assert!(line.contains(r#", for 2026-11-19 02:30:00 UTC DAY="" NOTE="it's \"quoted\",\n$HOME"…"#), "{line}");
    for event in ["operator.requested", "job.triggered"] {
        let event = node.await_event(event, LONG);
        assert_eq!(event.text("parameters"), "DAY,NOTE");
        assert!(!event.json().to_string().contains("quoted"), "the log has names only");
    }
}

#[test]
fn what_the_job_does_not_list_and_a_time_to_come_are_refused_and_nothing_runs() {
    let scratch = Scratch::new("found");
    let spec = spec(&scratch, "");
    let _node = serving(&spec);
    let trigger = |more: &[&str]| refused(&cli(&spec, &[&["trigger", "load"], more].concat()));
    let said = trigger(&["--env", "PATH=/tmp"]);
    assert!(said.contains("job `load` does not take the parameter `PATH`: its key `parameters` lists `DAY`, `NOTE`"));
    assert!(trigger(&["--env", &format!("DAY={}", "x".repeat(1025))]).contains("more than 1024 bytes"));
    assert!(trigger(&["--scheduled-at", "2098-01-01"]).contains("is in the future"));
    assert!(trigger(&["--scheduled-at", "1969-12-31"]).contains("is before 1970"));
    assert_eq!(cli(&spec, &["trigger", "load", "--env", "DAY"]).status.code(), Some(2));
    let (code, answer) = post(&spec, "/v1/jobs/load/trigger", &json!({ "environment": { "DAY": "a\0b" } }));
    assert_eq!((code, answer["error"].as_str().unwrap().contains("NUL")), (400, true));
    assert_eq!((history(&spec, "load"), found(&scratch).as_str()), (vec![], ""));
}

#[test]
fn of_a_request_that_is_repeated_the_first_counts() {
    let scratch = Scratch::new("found");
    let spec = spec(&scratch, "");
    let _node = serving(&spec);
    let ask = |day: &str| {
        let uuid = "6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d";
        let body = json!({ "uuid": uuid, "environment": { "DAY": day }, "scheduled_at": TIME });
        post(&spec, "/v1/jobs/load/trigger", &body)
    };
    let first = ask("first");
    assert_eq!((first.0, ask("second")), (200, first.clone()));
    await_record(&spec, "load", |record| record["run"] == first.1["run"]);
    assert_eq!(ask("third"), first);
    assert_eq!((found(&scratch), history(&spec, "load").len()), (format!("first||{TIME}|"), 1));
}

#[test]
fn a_repeated_request_is_answered_although_the_job_no_longer_takes_its_parameters() {
    let scratch = Scratch::new("found");
    let spec = spec(&scratch, "");
    let node = serving(&spec);
    let ask =
        |uuid: &str| post(&spec, "/v1/jobs/load/trigger", &json!({ "uuid": uuid, "environment": { "DAY": "1" } }));
    let first = ask("6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d");
    assert_eq!(first.0, 200);
    spec.write_jobs("jobs: {load: {schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}}\n");
    node.signal(rustix::process::Signal::HUP);
    let lists = |found: &Value| found["jobs"][0]["parameters"].as_array().is_some_and(|names| !names.is_empty());
    until("the new file is in force", || !lists(&get_json(&spec, "/v1/jobs")));
    assert_eq!(ask("6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d"), first);
    assert_eq!(ask("6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3e").0, 400);
}

#[test]
fn retries_and_hooks_have_them_too_and_other_runs_do_not() {
    let scratch = Scratch::new("found");
    let more = r#"; [ $CRONKEEPER_ATTEMPT = 2 ]", retries: {limit: 1, delay: 100ms}, on_start: 'echo "start $DAY"', on_success: 'echo "end $DAY at $CRONKEEPER_SCHEDULED_AT"'"#;
    let file = scratch.path().join("found");
    let command = format!(r#"printf '%s|' \"$DAY\" >> {}"#, file.display());
    let keys = format!("environment: {{DAY: default}}, parameters: DAY, command: \"{command}{more}");
    let spec = node("asked").jobs(&format!("jobs: {{load: {{schedule: '@at 2099-01-01T00:00:00Z', {keys}}}}}\n"));
    let node = serving(&spec);
    let run = cli_text(&spec, &["trigger", "load", "--env", "DAY=1", "--scheduled-at", TIME]).trim().to_owned();
    let record = await_record(&spec, "load", |record| record["run"] == run);
    assert_eq!((&record["attempt"], &record["parameters"]["DAY"]), (&json!(2), &json!("1")));
    for line in ["start 1".to_owned(), format!("end 1 at {TIME}")] {
        node.await_where("run.output", LONG, |event| event.text("run") == run && event.text("line") == line);
    }
    let plain = cli_text(&spec, &["trigger", "load"]).trim().to_owned();
    let record = await_record(&spec, "load", |record| record["run"] == plain);
    assert!(record.get("parameters").is_none() && record.get("triggered_for").is_none(), "{record}");
    assert_eq!(found(&scratch), "1|1|default|default|");
}
