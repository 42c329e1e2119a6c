//! `cronkeeper release`, and a restart after a crash: what a dead process held is given up, in order, and nothing of it is lost.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::LONG;
use crate::support::command::{self, CRONKEEPER};
use crate::support::node::{Node, Spec};
use crate::support::proxy::Proxy;
use crate::support::scratch::Scratch;
use crate::support::zookeeper::shared;
use crate::support::{skipped, until};

/// Nobody listens there.
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
fn assert_gave_up(spec: &Spec, output: &Output) {
    let said = format!("what node `{}` held is given up\n", spec.name());
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

/// The part of a connect string behind the servers, so that others can be put before it.
fn chroot(connect: &str) -> &str {
    &connect[connect.find('/').unwrap()..]
}

/// A node that was killed while it ran the sleeper, and the run.
fn killed(spec: &Spec) -> (Node, String) {
    let node = spec.clone().jobs(SLEEPER).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    node.kill9();
    assert_eq!(node.await_no_job_processes(LONG), Vec::<u32>::new());
    (node, run)
}

#[tokio::test]
async fn what_a_killed_node_held_is_given_up_after_its_ends_are_written() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, run) = killed(&spec);
    assert_gave_up(&spec, &release(&spec, Some(&connect)));

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

/// A begin can be accepted and its node die before it hears of it: nothing was started, and nobody but this node can know that.
async fn begun_without_a_word(spec: &Spec, connect: &str, changes: Value) -> String {
    let (_killed, run) = killed(spec);
    let client = Client::connect(connect).await.unwrap();
    let (known, _) = client.get_data(&format!("/cronkeeper/running/{run}")).await.unwrap();
    let mut record: Value = serde_json::from_slice(&known).unwrap();
    record["scheduled_at"] = "2026-01-02T03:04:05Z".into();
    record["nonce"] = "another".into();
    record.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let unheard = "sleeper.20260102T030405Z".to_owned();
    let data = serde_json::to_vec(&record).unwrap();
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    client.create(&format!("/cronkeeper/running/{unheard}"), &data, &persistent).await.unwrap();
    unheard
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
async fn a_run_that_the_dead_node_never_heard_of_ends_by_release() {
    let connect = shared();
    let spec = spec(&connect);
    let run = begun_without_a_word(&spec, &connect, json!({})).await;
    assert_gave_up(&spec, &release(&spec, Some(&connect)));
    let end = history_of(&connect, &run).await.unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
    assert!(!is_in_flight(&connect, &run).await);
}

#[tokio::test]
async fn what_follows_the_ends_that_release_wrote_is_run_by_the_next_start_and_not_again() {
    let connect = shared();
    let spec = spec(&connect);
    let unheard = begun_without_a_word(&spec, &connect, json!({})).await;
    assert_gave_up(&spec, &release(&spec, Some(&connect)));
    let hooked = "jobs: {sleeper: {schedule: '@yearly', command: 'true', on_failure: 'true'}}";
    let again = spec.clone().jobs(hooked).start();
    again.await_where("hook.finished", LONG, |event| event.text("run") == unheard);
    again.await_where("hook.finished", LONG, |event| event.text("run") != unheard);
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
async fn a_restart_runs_what_follows_the_end_of_a_run_that_the_dead_node_never_heard_of() {
    let connect = shared();
    let spec = spec(&connect);
    let unheard = begun_without_a_word(&spec, &connect, json!({})).await;
    let hooked = "jobs: {sleeper: {schedule: '@yearly', command: 'true', on_failure: 'true'}}";
    let again = spec.clone().jobs(hooked).start();
    again.await_where("hook.finished", LONG, |event| event.text("run") == unheard);
}

#[tokio::test]
async fn a_run_that_the_dead_node_never_heard_of_ends_by_a_restart_also_where_it_was_cut_off() {
    let connect = shared();
    let spec = spec(&connect);
    let run = begun_without_a_word(&spec, &connect, json!({ "state": "cut-off" })).await;
    let again = spec.clone().jobs("jobs: {}").start();
    again.await_event("takeover.done", LONG);
    let end = history_of(&connect, &run).await.unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
}

#[tokio::test]
async fn a_run_that_is_to_be_begun_again_or_is_alive_elsewhere_is_left_to_the_leader() {
    for changes in [json!({ "on_loss": "rerun" }), json!({ "session": "0x7" }), json!({ "node": "other" })] {
        let connect = shared();
        let spec = spec(&connect);
        let run = begun_without_a_word(&spec, &connect, changes.clone()).await;
        assert_gave_up(&spec, &release(&spec, Some(&connect)));
        assert!(is_in_flight(&connect, &run).await, "{changes}");
    }
}

/// A run is put under each session that its node lives under; the notes of the node name the first.
#[tokio::test]
async fn an_end_is_sent_also_where_the_run_was_taken_over_from_an_earlier_session() {
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
    assert_gave_up(&spec, &release(&spec, Some(&connect)));
    assert_eq!(history_of(&connect, &run).await.unwrap()["outcome"], "success");
}

#[test]
fn after_a_clean_end_nothing_is_left_to_give_up() {
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
fn without_zookeeper_it_says_what_stays_and_is_no_failure() {
    let connect = shared();
    let spec = spec(&connect);
    let (_killed, _) = killed(&spec);
    let (code, out, err) = command::texts(&release(&spec, Some(&format!("{NOWHERE}{}", chroot(&connect)))));
    assert_eq!((code, out.as_str()), (Some(0), ""));
    let start = format!("cronkeeper: what node `{}` held in ZooKeeper stays until its session ends: ", spec.name());
    assert!(err.starts_with(&start) && err.ends_with("; the next start settles one run\n"), "{err}");
    assert_eq!(recorded_sessions(&spec), 1);
    assert_gave_up(&spec, &release(&spec, Some(&connect)));
}

#[test]
fn of_a_living_daemon_nothing_is_given_up() {
    let connect = shared();
    let spec = spec(&connect);
    let node = spec.start();
    node.await_event("leader.elected", LONG);
    let (code, out, err) = command::texts(&release(&spec, Some(&connect)));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    let holder = format!("process {} (node {})", node.pid(), spec.name());
    assert!(err.contains(&format!("is in use by {holder}: nothing is given up\nhint: ")), "{err}");
    assert_eq!(recorded_sessions(&spec), 1);
}

/// A run succeeds while its node is cut off, and the node dies before it can say so. `give_up` is what happens then.
fn a_success_only_the_dead_node_knew(give_up: impl Fn(&Spec, &str) -> Option<Node>) {
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
    let _again = give_up(&spec, &connect);

    other.await_event("takeover.done", LONG);
    // What is due after it runs there, once the takeover has settled what was before.
    other.await_event("run.finished", LONG);
    let again = other.events().named("run.started").into_iter().find(|event| event.text("run") == run);
    assert_eq!(again, None, "a run that had succeeded was begun again");
    let cut_off = other.events().named("run.cut_off");
    assert_eq!(cut_off, []);
}

#[test]
fn release_sends_an_end_before_the_leader_could_begin_the_run_again() {
    a_success_only_the_dead_node_knew(|spec, connect| {
        assert_gave_up(spec, &release(spec, Some(connect)));
        None
    });
}

#[test]
fn a_restart_sends_an_end_before_the_leader_could_begin_the_run_again() {
    a_success_only_the_dead_node_knew(|spec, _| Some(spec.start()));
}

/// A node whose daemon and warden are dead, while a child of its run lives; and the run.
fn outlived(spec: &Spec, jobs: &str) -> (Node, String) {
    let node = spec.clone().jobs(jobs).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    until("the job has its child", || node.job_processes().len() >= 3);
    // Stopped first, or it would see the warden go and end what is left itself.
    node.stop();
    kill_process(child_of(node.pid()), Signal::KILL).unwrap();
    node.kill9();
    until("a child is left alone", || !node.job_processes().is_empty());
    (node, run)
}

#[test]
fn on_one_host_the_processes_that_outlived_daemon_and_warden_are_killed() {
    let spec = Spec::new(CRONKEEPER, "solo");
    let (node, _) = outlived(&spec, "jobs: {parent: {schedule: '@every 1s', command: 'sleep 1000 & sleep 1000'}}");
    assert_quiet(&release(&spec, None));
    assert_eq!(node.job_processes(), Vec::<u32>::new());
}

/// Of a daemon the warden is the only child.
fn child_of(parent: u32) -> Pid {
    let wanted = parent.to_string();
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        behind_name.split_whitespace().nth(1) == Some(wanted.as_str())
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    Pid::from_raw(pids.find(is_child).expect("the warden lives")).unwrap()
}

/// What is to be given up within three seconds is not waited for any longer, also where a server is silent.
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
    assert!(err.contains("stays until its session ends"), "{err}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

/// The state directory as it is now, on another host or in another container.
fn copied(spec: &Spec) -> Scratch {
    let copy = Scratch::new("copy");
    for entry in std::fs::read_dir(spec.state_dir()).unwrap().map(Result::unwrap) {
        // The socket is no file.
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// A node that leads, runs the sleeper, and has its state directory copied; the run.
fn leader_and_copy(spec: &Spec) -> (Node, Scratch, String) {
    let node = spec.clone().jobs(SLEEPER).start();
    let run = node.await_event("run.started", LONG).text("run").to_owned();
    until("the process is noted", || {
        std::fs::read_to_string(spec.state_dir().join("journal")).unwrap().contains("\"started\"")
    });
    (node, copied(spec), run)
}

/// What a living node does is not touched by whoever has a copy of its state directory.
async fn assert_untouched(node: &Node, connect: &str, run: &str) {
    assert!(is_in_flight(connect, run).await);
    assert!(history_of(connect, run).await.is_none());
    assert_eq!(node.job_processes().len(), 1);
    for name in ["leader.lost", "leader.resigned", "run.finished", "run.superseded"] {
        assert_eq!(node.events().named(name), [], "{name}");
    }
}

#[tokio::test]
async fn with_a_copy_of_a_living_nodes_directory_nothing_of_it_is_given_up() {
    let connect = shared();
    let spec = spec(&connect);
    let (node, copy, run) = leader_and_copy(&spec);
    // The first call writes the journal anew: the second one must know all the same.
    for _ in 0..2 {
        assert_quiet(&release(&spec.clone().state(copy.path()), Some(&connect)));
    }
    assert_untouched(&node, &connect, &run).await;
}

/// As where a virtual machine was cloned, and given a name of its own.
#[tokio::test]
async fn a_node_on_a_copy_of_a_living_nodes_directory_follows_it_and_settles_nothing_of_it() {
    for boot in [None, Some("another-boot")] {
        let connect = shared();
        let spec = spec(&connect);
        let (node, copy, run) = leader_and_copy(&spec);
        boot.into_iter().for_each(|boot| set_boot(copy.path(), boot));
        let clone = self::spec(&connect).jobs(SLEEPER).state(copy.path()).start();
        clone.await_event("election.following", LONG);
        // What it would have to say of the run, it says before it asks for anything else; the skip comes later.
        let seen = node.events().len();
        node.await_after(seen, "run.skipped", LONG, |_| true);
        assert_untouched(&node, &connect, &run).await;
    }
}

/// As if the directory had been written in another boot of the kernel.
fn set_boot(state: &Path, boot: &str) {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for name in ["journal", "sessions.json"] {
        let text = std::fs::read_to_string(state.join(name)).unwrap();
        assert!(text.contains(own.trim()), "{name}: {text}");
        std::fs::write(state.join(name), text.replace(own.trim(), boot)).unwrap();
    }
}

#[tokio::test]
async fn after_a_boot_release_gives_nothing_up_and_the_node_ends_its_runs_once_its_name_is_free() {
    let connect = shared();
    let spec = Spec::new(CRONKEEPER, "node").zookeeper(&connect).option("--session-timeout", "4s");
    let (_killed, run) = killed(&spec);
    set_boot(&spec.state_dir(), "another-boot");
    assert_quiet(&release(&spec, Some(&connect)));
    let again = spec.clone().jobs("jobs: {}").start();
    let said = again.await_event("coordination.unreachable", LONG);
    assert!(said.text("message").contains("is still held by"), "{}", said.json());
    again.await_event("takeover.done", LONG);
    let end = history_of(&connect, &run).await.unwrap();
    assert_eq!((&end["outcome"], &end["reason"]), (&"interrupted".into(), &"node-died".into()));
}

/// Runs what stands behind it where no cgroups are found: others who start here kill what a dead daemon left in its cgroup.
const WITHOUT_CGROUPS: &str = r#"#!/bin/sh
exec unshare --mount --propagation private sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' sh "$@"
"#;

/// The same, as root who may not kill another user's processes.
const HARMLESS: [&str; 4] = ["setpriv", "--bounding-set=-kill", "--inh-caps=-kill", "--"];

/// What SIGKILL does not end sleeps uninterruptibly, as on a disk that is gone. Here it belongs to another user, which looks the
/// same to whoever kills it in vain.
#[tokio::test]
async fn while_a_process_does_not_die_nothing_is_given_up() {
    let scripts = Scratch::new("scripts");
    let script = |name: &str, text: &str| {
        let path = scripts.write(name, text);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let apart = script("apart", WITHOUT_CGROUPS);
    let can = Command::new(&apart).args(HARMLESS).arg("true").output().unwrap();
    if !can.status.success() {
        skipped(&format!("only root with all rights can be without one: {can:?}"));
        return;
    }
    let connect = shared();
    let program = script("cronkeeper", &WITHOUT_CGROUPS.replace("sh \"$@\"\n", &format!("sh {CRONKEEPER} \"$@\"\n")));
    let spec = Spec::new(&program, "node").zookeeper(&connect).option("--session-timeout", "10s");
    let jobs = "jobs: {parent: {schedule: '@every 1s', user: nobody, command: 'sleep 1000 & sleep 1000'}}";
    let (node, run) = outlived(&spec, jobs);
    let (code, out, err) = command::texts(&harmless(&apart, &command(&spec, Some(&connect))));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("does not die"), "{err}");
    let client = Client::connect(&connect).await.unwrap();
    assert_eq!(client.list_children("/leader").await.unwrap().len(), 1);
    assert!(is_in_flight(&connect, &run).await);
    assert_eq!(recorded_sessions(&spec), 1);

    assert_gave_up(&spec, &release(&spec, Some(&connect)));
    assert_eq!(node.job_processes(), Vec::<u32>::new());
}

fn harmless(apart: &str, command: &Command) -> Output {
    Command::new(apart).args(HARMLESS).arg(command.get_program()).args(command.get_args()).output().unwrap()
}
