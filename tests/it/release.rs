//! `cronkeeper release` and a restart after a crash: they release what the dead process held, in order, and lose
//! nothing.

mod copies;
mod overdue;

use std::process::{Command, Output};
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::{Value, json};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::LONG;
use crate::support::command::{self, CRONKEEPER};
use crate::support::node::{Node, Spec};
use crate::support::proxy::Proxy;
use crate::support::scratch::Scratch;
use crate::support::until;
use crate::support::zookeeper::shared;

/// An address that no server listens on.
const NOWHERE: &str = "127.0.0.1:1";

const SLEEPER: &str = "jobs: {sleeper: {schedule: '@every 1s', command: [sleep, '1000']}}";

fn spec(connect: &str) -> Spec {
    Spec::new(CRONKEEPER, "node").zookeeper(connect).option("--session-timeout", "10s")
}

fn release(spec: &Spec, connect: Option<&str>) -> Output {
    command(spec, connect).output().unwrap()
}

fn command(spec: &Spec, connect: Option<&str>) -> Command {
    let state = spec.state_dir();
    let mut line = vec!["release", "--node", spec.name(), "--state-dir", state.to_str().unwrap()];
    line.extend(connect.into_iter().flat_map(|connect| ["--zookeeper", connect]));
    command::command(&line)
}

#[track_caller]
fn assert_released(spec: &Spec, output: &Output) {
    let said = format!("released everything that node `{}` held\n", spec.name());
    assert_eq!(command::texts(output), (Some(0), said, String::new()));
}

#[track_caller]
fn assert_quiet(output: &Output) {
    assert_eq!(command::texts(output), (Some(0), String::new(), String::new()));
}

fn recorded_sessions(spec: &Spec) -> usize {
    let text = std::fs::read_to_string(spec.state_dir().join("sessions.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["sessions"].as_array().unwrap().len()
}

/// The chroot of a connect string, so that other servers can be put before it.
fn chroot(connect: &str) -> &str {
    &connect[connect.find('/').unwrap()..]
}

/// Kills a node while it runs the sleeper; returns the node and the run.
fn killed(spec: &Spec) -> (Node, String) {
    let node = spec.clone().jobs(SLEEPER).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    node.kill9();
    assert_eq!(node.await_no_job_processes(LONG), Vec::<u32>::new());
    (node, run)
}

#[tokio::test]
async fn what_a_killed_node_held_is_released_after_its_ends_are_written() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, run) = killed(&spec);
    assert_released(&spec, &release(&spec, Some(&connect)));

    let client = Client::connect(&connect).await.unwrap();
    for folder in ["/leader", "/cronkeeper/nodes", "/cronkeeper/running"] {
        assert_eq!(client.list_children(folder).await.unwrap(), Vec::<String>::new(), "{folder}");
    }
    let (end, written) = client.get_data(&format!("/cronkeeper/history/sleeper/{run}")).await.unwrap();
    let end: Value = serde_json::from_slice(&end).unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
    let removed = client.check_stat("/leader").await.unwrap().unwrap().pzxid;
    assert!(written.czxid < removed, "the end was written before the candidate went");

    assert_eq!(recorded_sessions(&spec), 0);
    assert_quiet(&release(&spec, Some(&format!("{NOWHERE}{}", chroot(&connect)))));
    let again = spec.clone().jobs("jobs: {}").start();
    again.await_event("takeover.done", LONG);
    again.signal(Signal::TERM);
    again.wait_exit(LONG);
    assert_eq!(again.events().named("run.superseded"), [], "its end was its own");
    assert_eq!(recorded_sessions(&spec), 0);
}

/// Deletes a path with all that is below it.
async fn delete_all(client: &Client, path: &str) {
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.last().cloned() {
        match client.list_children(&path).await.unwrap() {
            children if children.is_empty() => {
                client.delete(&path, None).await.unwrap();
                left.pop();
            }
            children => left.extend(children.iter().map(|child| format!("{path}/{child}"))),
        }
    }
}

#[tokio::test]
async fn a_chroot_that_does_not_exist_is_an_error_of_the_settings() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    let (servers, chroot) = connect.split_at(connect.find('/').unwrap());
    delete_all(&Client::connect(servers).await.unwrap(), chroot).await;
    let (code, _, err) = command::texts(&release(&spec, Some(&connect)));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("nothing was released") && err.contains(&format!("create `{chroot}`")), "{err}");
}

/// Whoever may write there may put anything in its place.
#[tokio::test]
async fn what_is_no_cluster_id_is_named_in_a_few_words_and_never_taken_for_one() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    let client = Client::connect(&connect).await.unwrap();
    let (id, _) = client.get_data("/cronkeeper/cluster").await.unwrap();
    for (foreign, why) in [(vec![b'x'; 900_000], "it has 900000 bytes"), (b"pear".to_vec(), "`pear` is no UUID")] {
        client.set_data("/cronkeeper/cluster", &foreign, None).await.unwrap();
        let (code, _, err) = command::texts(&release(&spec, Some(&connect)));
        assert_eq!(code, Some(0), "{err}");
        assert!(err.contains(&format!("/cronkeeper/cluster holds no cluster id: {why}")), "{err}");
        assert!(err.contains("keeps what it holds in ZooKeeper until its session ends") && err.len() < 1_000, "{err}");
    }
    client.set_data("/cronkeeper/cluster", &id, None).await.unwrap();
    assert_released(&spec, &release(&spec, Some(&connect)));
}

/// Writes a begin that the ledger accepted but whose node died before it learned of it.
///
/// Nothing was started, and only the next process of the node can prove that.
async fn begin_without_result(spec: &Spec, connect: &str, changes: Value) -> String {
    begin_at_without_result(spec, connect, "2026-01-02T03:04:05Z".parse().unwrap(), changes).await
}

async fn begin_at_without_result(spec: &Spec, connect: &str, at: Timestamp, changes: Value) -> String {
    let (_killed, run) = killed(spec);
    let client = Client::connect(connect).await.unwrap();
    let (known, _) = client.get_data(&format!("/cronkeeper/running/{run}")).await.unwrap();
    let mut record: Value = serde_json::from_slice(&known).unwrap();
    record["scheduled_at"] = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    record["nonce"] = "another".into();
    record.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let begun = format!("sleeper.{}", at.strftime("%Y%m%dT%H%M%SZ"));
    let data = serde_json::to_vec(&record).unwrap();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(&format!("/cronkeeper/running/{begun}"), &data, &persistent).await.unwrap();
    begun
}

async fn history_of(connect: &str, run: &str) -> Option<Value> {
    let client = Client::connect(connect).await.unwrap();
    let found = client.get_data(&format!("/cronkeeper/history/sleeper/{run}")).await.ok()?;
    Some(serde_json::from_slice(&found.0).unwrap())
}

async fn is_in_flight(connect: &str, run: &str) -> bool {
    let client = Client::connect(connect).await.unwrap();
    client.check_stat(&format!("/cronkeeper/running/{run}")).await.unwrap().is_some()
}

#[tokio::test]
async fn release_returns_a_run_whose_begin_the_dead_node_did_not_learn_of() {
    let connect = shared();
    let spec = spec(&connect);
    let run = begin_without_result(&spec, &connect, json!({})).await;
    assert_released(&spec, &release(&spec, Some(&connect)));
    assert_eq!(history_of(&connect, &run).await, None);
    let client = Client::connect(&connect).await.unwrap();
    let (record, _) = client.get_data(&format!("/cronkeeper/running/{run}")).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&record).unwrap()["state"], "unstarted");
}

#[tokio::test]
async fn a_run_whose_begin_the_dead_node_did_not_learn_of_is_started_once_by_the_next_leader() {
    for restart in [true, false] {
        let connect = shared();
        let spec = spec(&connect);
        let minute_ago = Timestamp::now() - Duration::from_secs(60);
        let run = begin_at_without_result(&spec, &connect, minute_ago, json!({})).await;
        if !restart {
            assert_released(&spec, &release(&spec, Some(&connect)));
        }
        let late = "jobs: {sleeper: {schedule: '@yearly', command: 'true', misfire_window: 1h}}";
        let again = if restart { spec.clone() } else { self::spec(&connect) }.jobs(late).start();
        let started = again.await_where("run.started", LONG, |event| event.text("run") == run);
        assert_eq!(started.number("attempt"), Some(2));
        let end = again.await_where("run.finished", LONG, |event| event.text("run") == run);
        assert_eq!(end.text("outcome"), "success");
        let starts = again.events().named("run.started").into_iter().filter(|event| event.text("run") == run).count();
        assert_eq!(starts, 1);
    }
}

#[tokio::test]
async fn hooks_for_the_ends_that_release_wrote_run_once_at_the_next_start() {
    let connect = shared();
    let spec = spec(&connect);
    let begun = begin_without_result(&spec, &connect, json!({})).await;
    assert_released(&spec, &release(&spec, Some(&connect)));
    let hooked = "jobs: {sleeper: {schedule: '@yearly', command: 'true', on_failure: 'true', on_missed: 'true'}}";
    let again = spec.clone().jobs(hooked).start();
    again.await_where("hook.finished", LONG, |event| event.text("run") == begun);
    again.await_where("hook.finished", LONG, |event| event.text("run") != begun);
    again.signal(Signal::TERM);
    again.wait_exit(LONG);
    assert_eq!(again.events().named("run.superseded"), []);
    assert_eq!(again.events().named("hook.finished").len(), 2);
    drop(again);

    let third = spec.clone().start();
    third.await_event("takeover.done", LONG);
    third.signal(Signal::TERM);
    third.wait_exit(LONG);
    assert_eq!(third.events().named("hook.finished"), []);
}

#[tokio::test]
async fn a_restart_runs_the_hooks_of_a_run_that_nobody_could_start() {
    let connect = shared();
    let spec = spec(&connect);
    let begun = begin_without_result(&spec, &connect, json!({})).await;
    let hooked = "jobs: {sleeper: {schedule: '@yearly', command: 'true', on_failure: 'true', on_missed: 'true'}}";
    let again = spec.clone().jobs(hooked).start();
    again.await_where("hook.finished", LONG, |event| event.text("run") == begun);
}

#[tokio::test]
async fn past_its_window_a_run_whose_begin_the_dead_node_did_not_learn_of_is_missed() {
    let connect = shared();
    let spec = spec(&connect);
    let run = begin_without_result(&spec, &connect, json!({ "state": "cut-off" })).await;
    let again = spec.clone().jobs("jobs: {}").start();
    again.await_event("takeover.done", LONG);
    let skip = history_of(&connect, &run).await.unwrap();
    assert_eq!((&skip["kind"], &skip["reason"]), (&"skip".into(), &"missed".into()));
    assert!(!is_in_flight(&connect, &run).await);
}

/// A leader has marked the run after the session of the dead node was over.
#[tokio::test]
async fn release_ends_a_run_that_is_cut_off() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, run) = killed(&spec);
    let client = Client::connect(&connect).await.unwrap();
    let path = format!("/cronkeeper/running/{run}");
    let (known, _) = client.get_data(&path).await.unwrap();
    let mut record: Value = serde_json::from_slice(&known).unwrap();
    record["state"] = "cut-off".into();
    client.set_data(&path, &serde_json::to_vec(&record).unwrap(), None).await.unwrap();
    assert_released(&spec, &release(&spec, Some(&connect)));
    let end = history_of(&connect, &run).await.unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
    assert!(!is_in_flight(&connect, &run).await);
}

#[tokio::test]
async fn a_run_to_be_repeated_or_alive_elsewhere_is_left_to_the_leader() {
    for changes in [json!({ "on_loss": "rerun" }), json!({ "session": "0x7" }), json!({ "node": "other" })] {
        let connect = shared();
        let spec = spec(&connect);
        let run = begin_without_result(&spec, &connect, changes.clone()).await;
        assert_released(&spec, &release(&spec, Some(&connect)));
        assert!(is_in_flight(&connect, &run).await, "{changes}");
    }
}

/// A run is recorded under each session that its node has; the node's journal names the first one.
#[tokio::test]
async fn an_end_is_sent_even_if_the_run_was_taken_over_from_an_earlier_session() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, run) = killed(&spec);
    let journal = spec.state_dir().join("journal");
    let client = Client::connect(&connect).await.unwrap();
    let (record, _) = client.get_data(&format!("/cronkeeper/running/{run}")).await.unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let success = json!({ "ended": { "version": 0, "end": {
        "v": 1, "run": record, "outcome": "success", "exit_code": 0, "ended_at": "2026-01-02T03:04:06Z",
    } } });
    let notes = format!("{}{success}\n", std::fs::read_to_string(&journal).unwrap());
    std::fs::write(&journal, notes.replace(record["session"].as_str().unwrap(), "0x7")).unwrap();
    assert_released(&spec, &release(&spec, Some(&connect)));
    assert_eq!(history_of(&connect, &run).await.unwrap()["outcome"], "success");
}

#[test]
fn what_another_node_held_is_not_released() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    let state = spec.state_dir();
    let release = |more: &[&str]| {
        let line = ["release", "--zookeeper", &connect, "--state-dir", state.to_str().unwrap()];
        command::command(&[&line, more].concat()).output().unwrap()
    };
    let (code, out, err) = command::texts(&release(&["--node", "other"]));
    assert_eq!((code, out.as_str()), (Some(78), ""));
    assert!(err.contains(&format!("belongs to node `{}`, not to `other`: correct --node", spec.name())), "{err}");
    assert_eq!(recorded_sessions(&spec), 1);
    // Without a name, the directory knows it.
    assert_released(&spec, &release(&[]));
    assert_eq!(recorded_sessions(&spec), 0);
}

#[test]
fn a_state_directory_that_no_daemon_has_used_is_named() {
    let state = Scratch::new("unused");
    let line = ["release", "--zookeeper", NOWHERE, "--node", "a", "--state-dir", state.path().to_str().unwrap()];
    let (code, _, err) = command::texts(&command::command(&line).output().unwrap());
    assert!(code == Some(0) && err.contains(state.path().to_str().unwrap()), "{code:?} {err}");
}

#[test]
fn settings_that_are_wrong_for_ever_are_refused_even_if_nothing_is_to_be_released() {
    let state = Scratch::new("state");
    let missing = state.path().join("ca.pem");
    let line = ["release", "--zookeeper", NOWHERE, "--node", "a", "--zookeeper-ca", missing.to_str().unwrap()];
    let line = [&line[..], &["--state-dir", state.path().to_str().unwrap()]].concat();
    let (code, out, err) = command::texts(&command::command(&line).output().unwrap());
    assert_eq!((code, out.as_str()), (Some(78), ""), "{err}");
    assert!(err.contains(missing.to_str().unwrap()), "{err}");
}

#[test]
fn after_a_clean_end_nothing_is_left_to_release() {
    let connect = shared();
    let spec = spec(&connect);
    let node = spec.start();
    node.await_event("leader.elected", LONG);
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit(LONG).code(), Some(0));
    assert_eq!(recorded_sessions(&spec), 0);
    assert_quiet(&release(&spec, Some(&format!("{NOWHERE}{}", chroot(&connect)))));
}

#[test]
fn without_zookeeper_it_reports_what_stays_and_succeeds() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    let (code, out, err) = command::texts(&release(&spec, Some(&format!("{NOWHERE}{}", chroot(&connect)))));
    assert_eq!((code, out.as_str()), (Some(0), ""));
    let start = format!("cronkeeper: node `{}` keeps what it holds in ZooKeeper until its session ends: ", spec.name());
    assert!(err.starts_with(&start) && err.ends_with("; the next start settles one run\n"), "{err}");
    assert_eq!(recorded_sessions(&spec), 1);
    assert_released(&spec, &release(&spec, Some(&connect)));
}

#[test]
fn nothing_of_a_living_daemon_is_released() {
    let connect = shared();
    let spec = spec(&connect);
    let node = spec.start();
    node.await_event("leader.elected", LONG);
    let (code, out, err) = command::texts(&release(&spec, Some(&connect)));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let holder = format!("process {} (node {})", node.pid(), spec.name());
    assert!(err.contains(&format!("is in use by {holder}: nothing was released\nhint: ")), "{err}");
    assert_eq!(recorded_sessions(&spec), 1);
}

/// A run succeeds while its node is cut off, and the node dies before it can report that. `release_by` is the next
/// step.
fn a_success_that_only_the_dead_node_knew(release_by: impl Fn(&Spec, &str) -> Option<Node>) {
    let connect = shared();
    let (server, chroot) = connect.split_at(connect.find('/').unwrap());
    let proxy = Proxy::to(server.parse().unwrap());
    let flag = Scratch::new("flag");
    let done = flag.path().join("done");
    let jobs = format!(
        "jobs: {{waiter: {{schedule: '@every 1s', interrupted: rerun, \
         command: 'until [ -e {} ]; do sleep 0.1; done'}}}}",
        done.display()
    );
    let spec = spec(&format!("{}{chroot}", proxy.connect_string())).jobs(&jobs);
    let node = spec.start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    let other = self::spec(&connect).jobs(&jobs).start();
    other.await_event("election.following", LONG);

    proxy.part();
    node.await_event("coordination.suspended", LONG);
    flag.write("done", "");
    let end = node.await_event("run.finished", LONG);
    assert_eq!((end.text("run"), end.text("outcome")), (run.as_str(), "success"));
    node.kill9();
    proxy.pass();
    let _again = release_by(&spec, &connect);

    other.await_event("takeover.done", LONG);
    // The other node runs what is due next, once its takeover has settled everything before.
    other.await_event("run.finished", LONG);
    let again = other.events().named("run.started").into_iter().find(|event| event.text("run") == run);
    assert_eq!(again, None, "a run that had succeeded was begun again");
    let cut_off = other.events().named("run.cut_off");
    assert_eq!(cut_off, []);
}

#[test]
fn release_sends_an_end_before_the_leader_could_begin_the_run_again() {
    a_success_that_only_the_dead_node_knew(|spec, connect| {
        assert_released(spec, &release(spec, Some(connect)));
        None
    });
}

#[test]
fn a_restart_sends_an_end_before_the_leader_could_begin_the_run_again() {
    a_success_that_only_the_dead_node_knew(|spec, _| Some(spec.start()));
}

/// If a server does not respond, `release` stops waiting after three seconds.
#[test]
fn a_silent_server_is_not_waited_for() {
    let connect = shared();
    let (server, chroot) = connect.split_at(connect.find('/').unwrap());
    let proxy = Proxy::to(server.parse().unwrap());
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    proxy.swallow_requests();
    let begun = std::time::Instant::now();
    let (code, _, err) = command::texts(&release(&spec, Some(&format!("{}{chroot}", proxy.connect_string()))));
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("until its session ends"), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
