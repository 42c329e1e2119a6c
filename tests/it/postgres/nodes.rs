//! Nodes and clients of locks in one database.

use std::process::Stdio;

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::command::{CRONKEEPER, command, run, texts};
use crate::support::node::Spec;
use crate::support::postgres::{Database, Pool, shared};
use crate::support::process::Process;
use crate::support::scratch::Scratch;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// As in the tests on ZooKeeper: shorter ones a loaded machine does not keep.
const TIMEOUT: &str = "4s";

fn node(database: &Database<'_>, name: &str, jobs: &str) -> Spec {
    let spec = Spec::new(CRONKEEPER, name).postgres(&database.connect_string());
    spec.option("--session-timeout", TIMEOUT).jobs(jobs)
}

#[test]
fn when_the_leader_dies_the_next_one_leads_and_no_occurrence_is_doubled_or_lost() {
    let (database, witness) = (shared().database(), Witness::new());
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let a = node(&database, "a", &jobs).start();
    a.await_event("leader.elected", LONG);
    let b = node(&database, "b", &jobs).start();
    b.await_event("election.following", LONG);
    until("the first leader's jobs run", || witness.entries().len() > 2);
    a.kill9();
    b.await_event("leader.elected", LONG);
    let seen = witness.entries().len();
    until("the next leader's jobs run", || witness.entries().len() > seen + 2);
    b.signal(Signal::TERM);
    assert_eq!(b.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
    // Each second between the first and the last has its run or its skip.
    let records = "SELECT convert_from(data, 'UTF8') FROM cronkeeper.record \
                   WHERE parent = '/cronkeeper/history/tick' AND data <> ''";
    let records: Vec<Value> =
        database.sql(records).lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let time = |text: &Value| text.as_str().and_then(|text| text.parse::<Timestamp>().ok()).map(Timestamp::as_second);
    let (mut counted, mut first, mut last) = (0, i64::MAX, i64::MIN);
    for record in &records {
        let run = time(&record["run"]["scheduled_at"]).or(time(&record["scheduled_at"]));
        let (from, to) = (time(&record["first"]).or(run), time(&record["last"]).or(run));
        (first, last) = (first.min(from.expect("it has a time")), last.max(to.expect("it has a time")));
        counted += record["count"].as_i64().unwrap_or(1);
    }
    assert_eq!(counted, last - first + 1, "{records:#?}");
    let in_flight = "SELECT count(*) FROM cronkeeper.record WHERE parent = '/cronkeeper/running'";
    assert_eq!(database.sql(in_flight), "0");
}

#[test]
fn a_leader_that_is_asked_to_stop_is_followed_at_once() {
    let database = shared().database();
    let a = node(&database, "a", "jobs: {}\n").start();
    a.await_event("leader.elected", LONG);
    let b = node(&database, "b", "jobs: {}\n").start();
    b.await_event("election.following", LONG);
    a.signal(Signal::TERM);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    b.await_event("leader.elected", LONG);
}

#[test]
fn a_pool_that_gives_each_transaction_another_connection_does_no_harm() {
    let (database, witness) = (shared().database(), Witness::new());
    let pool = Pool::of(shared());
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let node = |name| {
        let spec = Spec::new(CRONKEEPER, name).postgres(&pool.connect_string(&database)).jobs(&jobs);
        spec.option("--session-timeout", TIMEOUT).start()
    };
    let a = node("a");
    a.await_event("leader.elected", LONG);
    let b = node("b");
    b.await_event("election.following", LONG);
    until("the first leader's jobs run", || witness.entries().len() > 2);
    a.signal(Signal::TERM);
    b.await_event("leader.elected", LONG);
    let seen = witness.entries().len();
    until("the next leader's jobs run", || witness.entries().len() > seen + 2);
    witness.assert_fine(&[]);
}

#[test]
fn one_client_at_a_time_holds_a_lock_even_if_one_is_killed() {
    let (database, dir) = (shared().database(), Scratch::new("lock"));
    let file = dir.path().join("holders");
    // Says when it holds the lock; two at once would show.
    let hold = format!("echo begin >>{0}; sleep 0.05; echo end >>{0}", file.display());
    let client = || {
        let line = ["lock", "/locks/orders", "--", "sh", "-c", &hold];
        Process::spawn(CRONKEEPER, |spawned| {
            spawned.args(command(&line).get_args()).env("CRONKEEPER_POSTGRES", database.connect_string());
            spawned
                .env("CRONKEEPER_ACCEPT_REWIND", "true")
                .env("CRONKEEPER_SESSION_TIMEOUT", TIMEOUT)
                .env_remove("CRONKEEPER_LONG");
            spawned.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })
        .expect("cronkeeper can be started")
    };
    let clients: Vec<Process> = (0..12).map(|_| client()).collect();
    clients[3].signal(Signal::KILL);
    for client in &clients {
        assert!(client.wait_exit(LONG).is_some(), "a client waits forever");
    }
    let lines = std::fs::read_to_string(&file).expect("somebody held it");
    let mut lines = lines.lines().peekable();
    let mut holders = 0;
    while let Some(line) = lines.next() {
        assert_eq!(line, "begin");
        // Who was killed did not get to its end.
        if lines.next_if_eq(&"end").is_some() {
            holders += 1;
        }
    }
    assert!((11..=12).contains(&holders), "{holders}");
}

#[test]
fn locks_latches_and_barriers_are_in_the_database() {
    let database = shared().database();
    let connect = database.connect_string();
    let call = |line: &[&str]| {
        let (code, out, err) =
            texts(&run(&[&line[..1], &["--postgres", &connect, "--accept-rewind"], &line[1..]].concat()));
        assert_eq!(code, Some(0), "{line:?}: {err}");
        out
    };
    let listed =
        call(&["lock", "/locks/a", "--", CRONKEEPER, "locks", "--postgres", &connect, "--accept-rewind", "--json"]);
    assert!(listed.contains(r#""path":"/locks/a""#), "{listed}");
    assert_eq!(call(&["latch", "/latches/a", "--count", "2", "down"]), "1 to go\n");
    call(&["latch", "/latches/a", "--count", "2", "down"]);
    call(&["latch", "/latches/a", "--count", "2"]);
    call(&["barrier", "/barriers/a", "--parties", "1"]);
}
