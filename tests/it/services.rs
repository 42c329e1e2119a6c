//! Nodes and clients of locks on the services that the cluster keeps its sessions on by itself: one suite for all.

use std::process::Stdio;

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use crate::lock::orders::{CLIENTS, ORDERS, Shop, seller};
use crate::support::command::{CRONKEEPER, command, run, texts};
use crate::support::etcd as etcd_servers;
use crate::support::node::{Node, Spec};
use crate::support::postgres as postgres_servers;
use crate::support::process::Process;
use crate::support::redis as redis_servers;
use crate::support::witness::Witness;
use crate::support::{LONG, until};

/// As in the tests on ZooKeeper: shorter ones a loaded machine does not keep.
const TIMEOUT: &str = "4s";

/// The place of a cluster in a service.
struct Place {
    option: &'static str,
    variable: &'static str,
    connect: String,
    /// Removed from its server when the test ends.
    _database: Option<postgres_servers::Database<'static>>,
}

fn in_postgres() -> Place {
    let database = postgres_servers::shared().database();
    let connect = database.connect_string();
    Place { option: "--postgres", variable: "CRONKEEPER_POSTGRES", connect, _database: Some(database) }
}

fn in_etcd() -> Place {
    let connect = etcd_servers::shared().place();
    Place { option: "--etcd", variable: "CRONKEEPER_ETCD", connect, _database: None }
}

fn in_redis() -> Place {
    let connect = redis_servers::shared().place();
    Place { option: "--redis", variable: "CRONKEEPER_REDIS", connect, _database: None }
}

/// Makes a test of each function on each service.
macro_rules! on_every_service {
    ($($test:ident),+ $(,)?) => {
        mod postgres {
            $(#[test] fn $test() { super::$test(&super::in_postgres()); })+
        }
        mod etcd {
            $(#[test] fn $test() { super::$test(&super::in_etcd()); })+
        }
        mod redis {
            $(#[test] fn $test() { super::$test(&super::in_redis()); })+
        }
    };
}

on_every_service!(
    when_the_leader_dies_the_next_one_leads_and_no_occurrence_is_doubled_or_lost,
    a_leader_that_is_asked_to_stop_is_followed_at_once,
    fifteen_clients_sell_each_of_ten_orders_once_even_if_some_are_killed,
    locks_latches_and_barriers_are_in_the_service,
    a_holder_that_is_asked_to_release_is_told,
    check_says_that_a_node_could_use_it,
);

#[test]
fn two_services_are_named_as_they_were_given() {
    for command in [&["check", "--service"][..], &["run", "--jobs", "/nowhere"], &["locks"], &["release"]] {
        let with = |line: &[&str], variables: &[(&str, &str)]| {
            let output = crate::support::command::command(line).envs(variables.iter().copied()).output();
            texts(&output.expect("the program can be started"))
        };
        let variables = [("CRONKEEPER_POSTGRES", "host=a password=secret"), ("CRONKEEPER_REDIS", "redis://b")];
        let (code, _, err) = with(command, &variables);
        assert_eq!(code, Some(2), "{command:?}: {err}");
        let said = "cronkeeper: `CRONKEEPER_POSTGRES` and `CRONKEEPER_REDIS` name two services; keep one\n";
        assert_eq!(err, said, "{command:?}");
        let (code, _, err) = with(&[command, &["--etcd", "http://b"]].concat(), &variables[..1]);
        assert_eq!(code, Some(2), "{command:?}: {err}");
        assert!(err.contains("`CRONKEEPER_POSTGRES` and `--etcd` name two services; keep one"), "{err}");
        let (code, _, err) = with(&[command, &["--zookeeper", "z", "--etcd", "http://b"]].concat(), &[]);
        assert_eq!(code, Some(2), "{command:?}: {err}");
        assert!(err.contains("`--zookeeper` and `--etcd` name two services; keep one"), "{err}");
    }
}

#[test]
fn release_without_the_service_names_the_option_to_add() {
    let place = in_etcd();
    let node = place.node("a", "jobs: {}\n");
    node.await_event("leader.elected", LONG);
    node.signal(Signal::TERM);
    node.wait_exit(LONG);
    let state = node.spec().state_dir();
    let (code, _, err) = texts(&run(&["release", "--state-dir", state.to_str().expect("the path is text")]));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("but no service is named: add --etcd (CRONKEEPER_ETCD)"), "{err}");
}

#[test]
fn an_option_that_a_command_lacks_is_not_taken_for_a_job() {
    let (code, _, err) = texts(&run(&["next", "--drain-timeout", "5s"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("unexpected argument '--drain-timeout'") && !err.contains("tip:"), "{err}");
    let (code, _, err) = texts(&run(&["lock", "--unknown"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("tip:"), "{err}");
}

impl Place {
    fn node(&self, name: &str, jobs: &str) -> Node {
        let spec = Spec::new(CRONKEEPER, name).on_service(&[self.option.to_owned(), self.connect.clone()]);
        let spec = spec.env("CRONKEEPER_ACCEPT_REWIND", "true");
        spec.option("--session-timeout", TIMEOUT).jobs(jobs).start()
    }

    /// What a command prints that uses the service.
    fn call(&self, line: &[&str]) -> String {
        let (code, out, err) = self.try_to_call(line);
        assert_eq!(code, Some(0), "{line:?}: {err}");
        out
    }

    fn try_to_call(&self, line: &[&str]) -> (Option<i32>, String, String) {
        let service = [self.option, &self.connect, "--accept-rewind"];
        texts(&run(&[&line[..1], &service, &line[1..]].concat()))
    }

    /// Starts a command that uses the service.
    fn begin(&self, line: &[&str]) -> Process {
        Process::spawn(CRONKEEPER, |spawned| {
            spawned.args(command(line).get_args()).env(self.variable, &self.connect);
            spawned.env("CRONKEEPER_ACCEPT_REWIND", "true");
            spawned.env("CRONKEEPER_SESSION_TIMEOUT", TIMEOUT).env_remove("CRONKEEPER_LONG");
            spawned.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        })
        .expect("cronkeeper can be started")
    }
}

fn when_the_leader_dies_the_next_one_leads_and_no_occurrence_is_doubled_or_lost(place: &Place) {
    let witness = Witness::new();
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let a = place.node("a", &jobs);
    a.await_event("leader.elected", LONG);
    let b = place.node("b", &jobs);
    b.await_event("election.following", LONG);
    until("the first leader's jobs run", || witness.entries().len() > 2);
    a.kill9();
    b.await_event("leader.elected", LONG);
    let seen = witness.entries().len();
    until("the next leader's jobs run", || witness.entries().len() > seen + 2);
    let runtime = b.spec().runtime_dir();
    let runtime = runtime.to_str().expect("the path is text");
    // While a run is in flight, a later occurrence may be skipped already.
    until("each second between the first and the last has its run or its skip", || {
        let (code, out, err) = texts(&run(&["history", "tick", "-n", "1000", "--json", "--runtime-dir", runtime]));
        assert!(code.is_some_and(|code| code < 2), "{err}");
        is_whole(&out)
    });
    b.signal(Signal::TERM);
    assert_eq!(b.wait_exit(LONG).code(), Some(0));
    witness.assert_fine(&[]);
}

/// True if the records of a job of every second have each second between the first and the last.
fn is_whole(records: &str) -> bool {
    let time = |value: &Value| value.as_str().and_then(|text| text.parse::<Timestamp>().ok()).map(Timestamp::as_second);
    let (mut counted, mut first, mut last) = (0, i64::MAX, i64::MIN);
    for record in records.lines() {
        let record: Value = serde_json::from_str(record).expect("it is JSON");
        let due = time(&record["scheduled_at"]);
        let (from, to) = (time(&record["first"]).or(due), time(&record["last"]).or(due));
        (first, last) = (first.min(from.expect("it has a time")), last.max(to.expect("it has a time")));
        counted += record["count"].as_i64().unwrap_or(1);
    }
    counted > 0 && counted == last - first + 1
}

fn a_leader_that_is_asked_to_stop_is_followed_at_once(place: &Place) {
    let a = place.node("a", "jobs: {}\n");
    a.await_event("leader.elected", LONG);
    let b = place.node("b", "jobs: {}\n");
    b.await_event("election.following", LONG);
    a.signal(Signal::TERM);
    assert_eq!(a.wait_exit(LONG).code(), Some(0));
    b.await_event("leader.elected", LONG);
}

fn fifteen_clients_sell_each_of_ten_orders_once_even_if_some_are_killed(place: &Place) {
    let shop = Shop::open();
    let sell = seller(&shop.path());
    let client = || {
        let line = ["lock", "/locks/orders", "--"].into_iter().chain(sell.iter().map(String::as_str));
        place.begin(&line.collect::<Vec<_>>())
    };
    for killed in [&[][..], &[3, 8]] {
        shop.restock();
        let clients: Vec<Process> = (0..CLIENTS).map(|_| client()).collect();
        killed.iter().for_each(|&i: &usize| clients[i].signal(Signal::KILL));
        for client in &clients {
            assert!(client.wait_exit(LONG).is_some(), "a client waits forever");
        }
        let sold = shop.sold();
        let mut distinct = sold.clone();
        distinct.dedup();
        assert_eq!(sold, distinct, "an order was sold twice");
        // Thirteen are left to sell ten orders; one that was killed may have sold one that it did not note.
        assert!((ORDERS - killed.len()..=ORDERS).contains(&sold.len()), "{sold:?}");
    }
}

fn locks_latches_and_barriers_are_in_the_service(place: &Place) {
    let listed = place.call(&[
        "lock",
        "/locks/a",
        "--",
        CRONKEEPER,
        "locks",
        place.option,
        &place.connect,
        "--accept-rewind",
        "--json",
    ]);
    assert!(listed.contains(r#""path":"/locks/a""#), "{listed}");
    assert_eq!(place.call(&["latch", "/latches/a", "--count", "2", "down"]), "1 to go\n");
    place.call(&["latch", "/latches/a", "--count", "2", "down"]);
    place.call(&["latch", "/latches/a", "--count", "2"]);
    place.call(&["barrier", "/barriers/a", "--parties", "1"]);
}

fn a_holder_that_is_asked_to_release_is_told(place: &Place) {
    let revoke = ["lock", "--revoke", "/locks/asked"];
    let (code, out, err) = place.try_to_call(&revoke);
    assert_eq!(code, Some(1), "nobody holds it: {out}{err}");
    let holder = place.begin(&["lock", "--on-revoke", "TERM", "/locks/asked", "--", "sleep", "600"]);
    until("it is held", || place.call(&["locks", "--json"]).contains("/locks/asked"));
    place.call(&revoke);
    let ended = holder.wait_exit(LONG).and_then(|status| status.code());
    assert_eq!(ended, Some(128 + 15), "its command gets the signal");
}

fn check_says_that_a_node_could_use_it(place: &Place) {
    let said = place.call(&["check", "--service"]);
    assert!(said.contains("acknowledged commits") || said.contains("each commit is on"), "{said}");
}
