//! Tests of `recount` against a solo daemon: a clock that was ahead has left records of what is yet to come.

use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, params};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::fixture::{await_start, cli, cli_text, history, leading, node, of, status};
use crate::support::node::{Node, Spec};
use crate::support::{LONG, poll, until};

const YEAR: SignedDuration = SignedDuration::from_hours(365 * 24);

/// Stops a node of which the job `a` has run.
fn stopped(spec: &Spec) {
    let node = leading(spec);
    await_start(&node, 0, "a");
    node.await_where("run.finished", LONG, of("a"));
    node.signal(Signal::TERM);
    assert!(node.wait_exit(LONG).success());
}

/// Writes what the leader would have written had its clock been ahead: runs that have ended, and the mark of the last one.
fn decide_ahead(spec: &Spec, runs: &[Timestamp]) {
    let db = Connection::open(spec.state_dir().join("ledger.db")).unwrap();
    let text = |sql: &str| -> String { db.query_row(sql, [], |row| row.get(0)).unwrap() };
    let mut job: Value = serde_json::from_str(&text("SELECT record FROM jobs WHERE job = 'a'")).unwrap();
    let ended: Value = serde_json::from_str(&text("SELECT record FROM history WHERE kind = 'run' LIMIT 1")).unwrap();
    for at in runs {
        let mut record = ended.clone();
        (record["run"]["scheduled_at"], record["ended_at"]) = (json!(at), json!(at));
        let run = at.strftime("a.%Y%m%dT%H%M%SZ").to_string();
        db.execute(
            "INSERT INTO history (run, job, kind, at, version, record) VALUES (?1, 'a', 'run', ?2, 0, ?3)",
            params![run, at.as_microsecond(), record.to_string()],
        )
        .unwrap();
    }
    let mark = json!(runs.last().unwrap());
    (job["last_scheduled"], job["counted"]) = (mark.clone(), mark);
    db.execute("UPDATE jobs SET version = version + 1, record = ?1 WHERE job = 'a'", [job.to_string()]).unwrap();
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap()
}

/// The instants at which runs of `a` were due that this process has started.
fn started(node: &Node) -> Vec<Timestamp> {
    let starts = node.events().named("run.started").into_iter().filter(of("a"));
    starts.map(|start| start.text("scheduled_at").parse().unwrap()).collect()
}

fn error_of(spec: &Spec) -> Value {
    status(spec)["jobs"][0]["error"].clone()
}

/// A job of every second that has run in two of the seconds to come, from `ahead` seconds on, and in a year. It is
/// recounted; `None` if that was too late for the former.
fn recounted(ahead: i64) -> Option<(Spec, Node, [Timestamp; 2])> {
    let spec = node("recounted").jobs("jobs:\n  a: {schedule: '* * * * * *', command: 'true', overlap: allow}\n");
    stopped(&spec);
    let now = whole_second(Timestamp::now());
    let soon = [ahead, ahead + 1].map(|seconds| now + SignedDuration::from_secs(seconds));
    decide_ahead(&spec, &[soon[0], soon[1], now + YEAR]);
    let node = leading(&spec);
    node.await_where("job.mark_ahead", LONG, of("a"));
    assert!(error_of(&spec).as_str().is_some_and(|error| error.contains("is in the future")));
    assert_eq!(cli(&spec, &["status", "--check"]).status.code(), Some(1));
    assert_eq!(started(&node), []);
    let said = cli_text(&spec, &["recount", "a"]);
    assert!(said.starts_with("a counts from now; next due in "), "{said}");
    said.contains("; 3 occurrences until ").then_some((spec, node, soon))
}

#[test]
fn a_job_that_a_clock_ahead_has_silenced_runs_again_and_what_has_run_does_not() {
    let (spec, node, soon) = [15, 60, 180].into_iter().find_map(recounted).expect("a node starts within three minutes");
    let asked = node.await_where("operator.requested", LONG, of("a"));
    let done = node.await_where("job.recounted", LONG, of("a"));
    assert_eq!((asked.text("request"), asked.text("by"), done.number("listed")), ("recount", done.text("by"), Some(3)));
    await_start(&node, 0, "a");
    until("the error is gone", || error_of(&spec) == Value::Null);
    assert_eq!(cli(&spec, &["status", "--check"]).status.code(), Some(0));

    let again = cli(&spec, &["recount", "a"]);
    let text = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(again.status.code() == Some(1) && text.contains("is not in the future"), "{again:?}");
    assert_eq!(cli(&spec, &["recount", "b"]).status.code(), Some(2), "there is no such job");

    let is_after = |start: &str| start.parse::<Timestamp>().is_ok_and(|at| at > soon[1]);
    node.await_where("run.started", 4 * LONG, |start| is_after(start.text("scheduled_at")));
    let started = started(&node);
    assert!(!started.iter().any(|at| soon.contains(at)), "{started:?}");
    assert!(started.contains(&(soon[0] - SignedDuration::from_secs(1))), "{started:?}");
    let skips = history(&spec, "a").into_iter().filter(|record| record["kind"] == "skip");
    let is_about = |skip: &Value| {
        let at = |field: &str| skip[field].as_str().and_then(|at| at.parse::<Timestamp>().ok());
        soon.iter().any(|soon| at("first") <= Some(*soon) && Some(*soon) <= at("last"))
    };
    assert_eq!(skips.filter(is_about).count(), 0, "what has run is no skip");
}

#[test]
fn a_job_whose_history_was_trimmed_is_left_as_it_is() {
    let jobs = "jobs:\n  a: {schedule: '* * * * * *', command: 'true', history_limit: 5}\n";
    let spec = node("trimmed").jobs(jobs);
    stopped(&spec);
    let future = whole_second(Timestamp::now()) + YEAR;
    let runs: Vec<Timestamp> = (0..6).map(|seconds| future + SignedDuration::from_secs(seconds)).collect();
    decide_ahead(&spec, &runs);
    let db = Connection::open(spec.state_dir().join("ledger.db")).unwrap();
    db.execute("DELETE FROM history WHERE at < ?1", [future.as_microsecond()]).unwrap();
    drop(db);
    let node = leading(&spec);
    node.await_where("job.mark_ahead", LONG, of("a"));
    assert!(poll(LONG, || cli(&spec, &["status"]).status.success().then_some(())).is_some(), "the node answers");
    let refused = cli(&spec, &["recount", "a"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(
        text.contains("a is not recounted: its history does not reach back") && text.contains("another name"),
        "{text}"
    );
    assert!(error_of(&spec).is_string());
    assert_eq!(node.events().count("job.recounted"), 0);
}
