//! Scrapes of nodes that run jobs, fail, and lead one after the other.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use super::{assert_clean, await_value, scrape};
use crate::failover::cluster::{Place, in_line, usual};
use crate::solo::fixture::{await_end, await_start, cli_text, following, leading, node};
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::{LONG, until};

const FAIL: &str = "{schedule: '* * * * * *', command: 'exit 3'}";
const FINE: &str = "{schedule: '@at 2099-01-01T00:00:00Z', command: 'true'}";
const GATED: &str = "{schedule: '@at 2099-01-01T00:00:00Z', command: 'sleep 1000'}";

#[test]
fn runs_are_counted_by_outcome_and_a_removed_job_leaves() {
    let spec = node("only").jobs(&format!("jobs: {{fail: {FAIL}, fine: {FINE}, gated: {GATED}}}"));
    let a = leading(&spec);
    let first = scrape(&spec);
    assert_clean(&first);
    assert_eq!((first.value("leader"), first.value("ready")), (Some(1.0), Some(1.0)));
    assert_eq!((first.value("queue_position"), first.value("members")), (Some(1.0), Some(1.0)));
    assert_eq!((first.value("jobs"), first.value("jobs_config_valid")), (Some(3.0), Some(1.0)));
    assert_eq!(first.value("last_success_timestamp_seconds{job=\"fine\"}"), None);

    cli_text(&spec, &["trigger", "fine", "--wait"]);
    cli_text(&spec, &["trigger", "gated"]);
    await_value(&spec, "runs_total{job=\"fail\",outcome=\"failure\"}", |count| count >= 2.0);
    await_value(&spec, "runs_total{job=\"fine\",outcome=\"success\"}", |count| count == 1.0);
    await_value(&spec, "last_success_timestamp_seconds{job=\"fine\"}", |at| at > 1.7e9);
    await_value(&spec, "running{job=\"gated\"}", |count| count == 1.0);
    let now = scrape(&spec);
    assert_clean(&now);
    assert!(now.value("next_run_timestamp_seconds{job=\"fail\"}").is_some(), "{}", now.text);
    let timed = ["run_duration_seconds_count", "run_lateness_seconds_count", "commit_duration_seconds_count"];
    assert!(timed.iter().all(|histogram| now.value(histogram) >= Some(2.0)), "{}", now.text);

    spec.write_jobs(&format!("jobs: {{fine: {FINE}, gated: {{schedule: nonsense, command: x}}}}"));
    a.await_event("jobs.rejected", LONG);
    await_value(&spec, "jobs_config_valid", |valid| valid == 0.0);
    assert!(scrape(&spec).text.contains("job=\"fail\""), "its jobs stay in use");
    spec.write_jobs(&format!("jobs: {{fine: {FINE}}}"));
    await_value(&spec, "jobs", |jobs| jobs == 1.0);
    until("the removed job has no series", || !scrape(&spec).text.contains("job=\"fail\""));
    let now = scrape(&spec);
    assert_eq!(now.value("runs_total{job=\"fine\",outcome=\"success\"}"), Some(1.0));
    assert_eq!(now.value("running{job=\"gated\"}"), Some(1.0), "a run in flight is shown until it ends: {}", now.text);
}

/// An address of this host that nobody else uses, and its port.
const AT: &str = "127.93.18.7:7475";

#[test]
fn prometheus_needs_no_token_on_tcp_and_gets_openmetrics() {
    let spec = node("listening").option("--listen", AT).jobs(&format!("jobs: {{fail: {FAIL}}}"));
    let a = leading(&spec);
    await_end(&a, &await_start(&a, 0, "fail"));
    // The end counts once the ledger has it.
    await_value(&spec, "runs_total{job=\"fail\",outcome=\"failure\"}", |count| count >= 1.0);
    let mut stream = TcpStream::connect(AT).expect("it listens");
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {AT}\r\nAccept: {accept}\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{answer}");
    assert!(answer.ends_with("# EOF\n") && answer.contains("cronkeeper_runs_total{job=\"fail\""), "{answer}");
}

const SUCCESS: &str = "last_success_timestamp_seconds{job=\"turns\"}";

/// A job that succeeds while a file does not exist.
fn turning(failing: &Path) -> String {
    let command = format!("test ! -e {}", failing.display());
    format!("jobs: {{turns: {{schedule: '@at 2099-01-01T00:00:00Z', command: '{command}'}}}}")
}

/// Lets the job succeed, and then fail. Returns the time of the success.
fn succeed_and_fail(leader: &Spec, failing: &Path) -> f64 {
    // Its socket is served shortly after it leads.
    await_value(leader, "leader", |leads| leads == 1.0);
    cli_text(leader, &["trigger", "turns", "--wait"]);
    std::fs::write(failing, "").expect("it can be written");
    cli_text(leader, &["trigger", "turns"]);
    await_value(leader, "runs_total{job=\"turns\",outcome=\"failure\"}", |count| count == 1.0);
    await_value(leader, SUCCESS, |at| at > 1.7e9)
}

#[test]
fn on_one_host_the_next_process_knows_the_last_success_behind_newer_failures() {
    let mark = Scratch::new("mark");
    let failing = mark.path().join("failing");
    let first = node("first").jobs(&turning(&failing));
    let a = leading(&first);
    let second = node("second").beside(&first);
    let b = following(&second);
    let seen = succeed_and_fail(&first, &failing);
    a.kill9();
    b.await_event("takeover.done", LONG);
    await_value(&second, "leadership_changes_total", |terms| terms == 1.0);
    assert_eq!(await_value(&second, SUCCESS, |_| true), seen);
}

#[test]
fn after_a_failover_the_new_leader_knows_the_last_success_behind_newer_failures() {
    let place = Place::shared();
    let mark = Scratch::new("mark");
    let failing = mark.path().join("failing");
    let specs = ["a", "b"].map(|name| usual(place.node(name)).jobs(&turning(&failing)));
    let [a, b] = in_line(specs.clone());
    let [on_a, on_b] = &specs;

    let seen = succeed_and_fail(on_a, &failing);
    // The status of a node follows its events with a delay.
    await_value(on_b, "queue_position", |place| place == 2.0);
    let (leader, follower) = (scrape(on_a), scrape(on_b));
    assert_clean(&leader);
    assert_clean(&follower);
    assert_eq!((leader.value("leader"), follower.value("leader")), (Some(1.0), Some(0.0)));
    assert_eq!((leader.value("queue_position"), follower.value("queue_position")), (Some(1.0), Some(2.0)));
    assert_eq!((leader.value("members"), follower.value("members")), (Some(2.0), Some(2.0)));
    assert_eq!(follower.value("leadership_changes_total"), Some(0.0));
    assert_eq!((follower.value(SUCCESS), follower.value("fencing_token")), (None, None));
    assert!(leader.value("session_lease_seconds") > Some(0.0), "{}", leader.text);

    a.kill9();
    b.await_event("takeover.done", LONG);
    await_value(on_b, "leader", |leads| leads == 1.0);
    assert_eq!(await_value(on_b, SUCCESS, |_| true), seen);
    let leader_again = scrape(on_b);
    assert_clean(&leader_again);
    assert_eq!(leader_again.value("leadership_changes_total"), Some(1.0));
    assert!(leader_again.value("fencing_token") > leader.value("fencing_token"));
    assert_eq!(leader_again.value("runs_total{job=\"turns\",outcome=\"success\"}"), None, "each node counts its own");
}
