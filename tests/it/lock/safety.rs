//! The end of a lock: nothing of the command outlives it, whatever ends first.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use zookeeper_client::{Client as ZooKeeper, CreateMode};

use super::fixture::{Client, printed};
use crate::support::cgroup::OwnCgroup;
use crate::support::process::{stop_all, watcher_and_warden_of};
use crate::support::scratch::Scratch;
use crate::support::until;
use crate::support::zookeeper::{Ensemble, shared};

/// A script that leaves a process behind, in a session of its own, and prints its pid.
const DAEMON: &str = "setsid sh -c 'echo daemon $$; exec sleep 1000' & read line; exit 3";

fn pid_in(line: &str) -> i32 {
    line.split(' ').next_back().and_then(|pid| pid.parse().ok()).expect("a pid is a number")
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn what_the_command_left_behind_is_dead_before_the_lock_is_free() {
    let connect = shared();
    let first = Client::start_with(&connect, &["/locks/a"], DAEMON);
    let daemon = pid_in(&first.await_line("daemon"));
    let second = Client::start_with(&connect, &["/locks/a"], &format!("kill -0 {daemon} 2>&1 || echo it is dead"));
    assert!(is_alive(daemon));
    first.finish();
    second.await_line("it is dead");
    first.await_line("1 of its processes outlived the command");
    assert_eq!(first.await_exit(), Some(3));
}

#[test]
fn the_death_of_the_client_kills_the_command() {
    let connect = shared();
    let first = Client::start_with(&connect, &["/locks/a"], DAEMON);
    let daemon = pid_in(&first.await_line("daemon"));
    let second = Client::start(&connect, &["/locks/a"]);
    first.process().kill();
    until("the command is dead", || !is_alive(daemon));
    second.await_held();
    second.release();
}

#[test]
fn the_death_of_the_warden_kills_the_command_before_the_lock_is_free() {
    let connect = shared();
    let first = Client::start_with(&connect, &["/locks/a"], DAEMON);
    let daemon = pid_in(&first.await_line("daemon"));
    let second = Client::start_with(&connect, &["/locks/a"], &format!("kill -0 {daemon} 2>&1 || echo it is dead"));
    let [_, warden] = watcher_and_warden_of(first.process().pid()).expect("the client has a warden");
    kill_process(Pid::from_raw(warden.cast_signed()).unwrap(), Signal::KILL).unwrap();
    second.await_line("it is dead");
    first.await_line("the warden was killed, and the command with it");
    assert_eq!(first.await_exit(), Some(137));
}

/// A script whose child has nothing in common with the warden but its descent: a plain child of a command string.
const WITH_CHILD: &str = "sh -c 'echo child $$; exec sleep 1000'; true";

/// Kills processes of a client while it is stopped, so that it cannot clean up after the first.
fn kill_together(client: &Client, others: &[u32]) {
    stop_all(&[others, &[client.process().pid()]].concat());
    let pid = |pid: &u32| Pid::from_raw(pid.cast_signed()).unwrap();
    others.iter().for_each(|other| kill_process(pid(other), Signal::KILL).unwrap());
    client.process().kill();
}

#[test]
fn the_death_of_client_and_warden_kills_the_command_before_the_lock_is_free() {
    let (connect, dir) = (shared(), Scratch::new("together"));
    let file = dir.path().join("a.lock").display().to_string();
    for (connect, lock) in [(connect.as_str(), &["/locks/a"][..]), ("", &["--file", &file])] {
        let first = Client::start_with(connect, lock, WITH_CHILD);
        let child = pid_in(&first.await_line("child"));
        let second = Client::start_with(connect, lock, &format!("kill -0 {child} 2>&1 || echo it is dead"));
        assert!(second.waits());
        let [_, warden] = watcher_and_warden_of(first.process().pid()).expect("it has a warden");
        kill_together(&first, &[warden]);
        second.await_line("it is dead");
        assert_eq!(second.await_exit(), Some(0), "{lock:?}");
    }
}

#[test]
fn a_file_stays_locked_while_a_process_runs_that_nobody_is_left_to_kill() {
    let dir = Scratch::new("flock");
    let file = dir.path().join("a.lock").display().to_string();
    // Without a cgroup of its own, a daemon of another test could find the dead client's and kill the child.
    let apart = OwnCgroup::if_possible();
    let first = Client::start_as(OwnCgroup::program(apart.as_ref()), "", &["--file", &file], WITH_CHILD);
    let child = pid_in(&first.await_line("child"));
    let own = watcher_and_warden_of(first.process().pid()).expect("it has a warden");
    kill_together(&first, &own);
    until("all are dead", || !own.iter().any(|pid| is_alive(pid.cast_signed())));
    assert!(is_alive(child), "nobody could kill it");
    let flock = || Command::new("flock").args(["-n", &file, "true"]).status().unwrap().code();
    assert_eq!(flock(), Some(1), "as if it had been started by flock(1)");
    assert_eq!(printed("", &["lock", "--timeout", "0s", "--file", &file, "--", "true"]).0, Some(75));
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    until("it is free", || flock() == Some(0));
}

#[test]
fn a_command_has_the_locked_file_open_for_reading_and_nothing_else() {
    let dir = Scratch::new("inherited");
    let file = dir.path().join("a.lock").display().to_string();
    let script = "ls -l /proc/$$/fd; cat /proc/$$/fdinfo/10; echo done";
    let client = Client::start_with("", &["--file", &file], script);
    let lines: Vec<String> =
        std::iter::repeat_with(|| client.await_line("")).take_while(|line| line != "done").collect();
    let open = lines.iter().filter_map(|line| line.split_once(" -> ")?.0.rsplit(' ').next());
    assert_eq!(open.collect::<BTreeSet<_>>(), ["0", "1", "10", "2"].into(), "{lines:?}");
    assert!(lines.iter().any(|line| line.ends_with(&format!(" 10 -> {file}"))), "{lines:?}");
    let flags = lines.iter().find_map(|line| line.strip_prefix("flags:")).expect("it is open");
    assert!(flags.trim().ends_with('0'), "for reading only: {flags}");
    assert_eq!(client.await_exit(), Some(0));
}

#[test]
fn a_stopped_command_gets_a_signal_too() {
    let client = Client::start_with(&shared(), &["/locks/a"], "echo held; kill -STOP $$");
    client.await_line("held");
    client.process().signal(Signal::INT);
    assert_eq!(client.await_exit(), Some(130));
}

#[test]
fn a_stopped_client_loses_its_command_before_another_holds_the_lock() {
    let connect = shared();
    let first = Client::start_with(&connect, &["/locks/a"], DAEMON);
    let daemon = pid_in(&first.await_line("daemon"));
    let second = Client::start_with(&connect, &["/locks/a"], &format!("kill -0 {daemon} 2>&1 || echo it is dead"));
    first.process().stop();
    second.await_line("it is dead");
    first.process().signal(Signal::CONT);
    first.await_line("the lock is lost");
    assert_eq!(first.await_exit(), Some(137));
}

#[test]
fn the_end_of_the_hold_comes_while_the_client_is_stopped() {
    let (connect, dir) = (shared(), Scratch::new("hold"));
    let file = dir.path().join("a.lock").display().to_string();
    let ways: [(&str, &[&str]); 3] = [
        (&connect, &["--session-timeout", "40s", "/locks/a"]),
        (&connect, &["--session-timeout", "40s", "--on-lease-end", "warn", "/locks/b"]),
        ("", &["--file", &file]),
    ];
    for (connect, options) in ways {
        let client =
            Client::start_with(connect, &[&["--hold", "1s"], options].concat(), "echo command $$; exec sleep 1000");
        let command = pid_in(&client.await_line("command"));
        client.process().stop();
        until("the command is dead", || !is_alive(command));
        client.process().signal(Signal::CONT);
        client.await_line("its `--hold` of 1s is over");
        assert_eq!(client.await_exit(), Some(124), "{options:?}");
    }
}

#[test]
fn without_servers_the_command_is_killed_when_the_lease_ends() {
    let ensemble = Ensemble::start(1);
    let client = Client::start(&ensemble.connect_string(), &["/locks/a"]);
    client.await_held();
    ensemble.pause(0);
    client.await_line("the lock is lost");
    assert_eq!(client.await_exit(), Some(137));
    ensemble.cont(0);
}

#[test]
fn with_warn_the_command_is_told_and_goes_on() {
    let ensemble = Ensemble::start(1);
    let script = "trap 'echo asked' TERM; echo held; while ! read line; do :; done; echo went on";
    let client = Client::start_with(&ensemble.connect_string(), &["--on-lease-end", "warn", "/locks/a"], script);
    client.await_line("held");
    ensemble.pause(0);
    client.await_line("the command continues");
    client.await_line("asked");
    ensemble.cont(0);
    client.finish();
    client.await_line("went on");
    assert_eq!(client.await_exit(), Some(0));
}

#[test]
fn short_troubles_of_the_servers_do_not_end_a_lock() {
    // Each trouble ends well within the session, however busy the machine is.
    let ensemble = Ensemble::builder(3).tick(Duration::from_secs(3)).start();
    let client = Client::start(&ensemble.connect_string(), &["--session-timeout", "60s", "/locks/a"]);
    client.await_held();
    for server in 0..3 {
        ensemble.kill(server);
        ensemble.restart(server);
        ensemble.await_healed();
    }
    client.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_somebody_deletes_ends_the_command_at_once() {
    let connect = shared();
    let client = Client::start(&connect, &["/locks/a"]);
    client.await_held();
    let zookeeper = ZooKeeper::connect(&connect).await.unwrap();
    let entry = zookeeper.list_children("/locks/a").await.unwrap().remove(0);
    zookeeper.delete(&format!("/locks/a/{entry}"), None).await.unwrap();
    client.await_line(&format!("somebody deleted `/locks/a/{entry}`"));
    assert_eq!(client.await_exit(), Some(137));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_client_whose_entry_is_deleted_queues_again() {
    let connect = shared();
    let holder = Client::start(&connect, &["/locks/a"]);
    holder.await_held();
    let waiting = Client::start(&connect, &["/locks/a"]);
    let zookeeper = ZooKeeper::connect(&connect).await.unwrap();
    let all = || async { zookeeper.list_children("/locks/a").await.unwrap() };
    while all().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = all().await.into_iter().max_by_key(|name| name[name.len() - 10..].to_owned()).unwrap();
    zookeeper.delete(&format!("/locks/a/{last}"), None).await.unwrap();
    holder.release();
    waiting.await_held();
    waiting.release();
}

#[test]
fn signals_go_to_the_command_and_the_second_kills_it() {
    let connect = shared();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo held; while :; do sleep 0.05; done");
        let client = Client::start_with(&connect, &["/locks/a"], &script);
        client.await_line("held");
        client.process().signal(signal);
        client.await_line(&format!("got {name}"));
        assert_eq!(client.await_exit(), Some(5), "{name}");
    }
    let stubborn = "trap 'echo got it' INT; trap '' TERM; echo held; while :; do sleep 0.05; done";
    let client = Client::start_with(&connect, &["/locks/a"], stubborn);
    client.await_line("held");
    client.process().signal(Signal::INT);
    client.await_line("got it");
    client.process().signal(Signal::INT);
    assert_eq!(client.await_exit(), Some(137));
}

#[test]
fn a_signal_ends_waiting_and_leaves_nothing_behind() {
    let connect = shared();
    let holder = Client::start(&connect, &["/locks/a"]);
    holder.await_held();
    let waiting = Client::start(&connect, &["/locks/a"]);
    let entries = || printed(&connect, &["locks", "--json"]).1.matches("\"role\"").count();
    until("it waits", || entries() == 2);
    waiting.process().signal(Signal::TERM);
    assert_eq!(waiting.await_exit(), Some(143));
    assert_eq!(entries(), 1);
    holder.release();
}

#[test]
fn a_stop_key_does_not_stop_the_client() {
    let connect = shared();
    let client = Client::start(&connect, &["/locks/a"]);
    client.await_held();
    client.process().signal(Signal::TSTP);
    client.release();
}

#[test]
fn a_holder_is_asked_to_release_and_its_command_gets_the_signal_of_its_choice() {
    let connect = shared();
    let script = "trap 'echo asked; exit 0' USR2; echo held; while :; do sleep 0.05; done";
    let notified = Client::start(&connect, &["/locks/notified"]);
    notified.await_held();
    let asked = Client::start_with(&connect, &["--on-revoke", "USR2", "/locks/a"], script);
    asked.await_line("held");
    assert_eq!(
        printed(&connect, &["lock", "--revoke", "/locks/notified"]),
        (Some(0), "asked 1 holder to release".into())
    );
    notified.await_line("somebody asks to release the lock");
    until("the holder has noticed", || printed(&connect, &["locks", "/locks/notified"]).1.contains("asked to release"));
    let (_, text) = printed(&connect, &["locks", "/locks/notified"]);
    assert!(text.contains("sh") && text.contains("holds, asked to release"), "it still says who: {text}");
    notified.release();
    assert_eq!(printed(&connect, &["lock", "--revoke", "/locks/a"]).0, Some(0));
    asked.await_line("asked");
    assert_eq!(asked.await_exit(), Some(0));
    assert_eq!(
        printed(&connect, &["lock", "--revoke", "/locks/a"]),
        (Some(1), "cronkeeper: nobody holds `/locks/a`".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_children_of_a_lock_do_not_count() {
    let connect = shared();
    let zookeeper = ZooKeeper::connect(&connect).await.unwrap();
    let open = CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    for path in ["/locks", "/locks/a", "/locks/a/config", "/locks/a/lock-12"] {
        zookeeper.create(path, b"", &open).await.unwrap();
    }
    let client = Client::start(&connect, &["/locks/a"]);
    client.await_held();
    client.release();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_entry_ahead_is_named_by_whoever_waits_for_it_or_does_not() {
    let connect = shared();
    let zookeeper = ZooKeeper::connect(&connect).await.unwrap();
    let open = CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    for path in ["/locks", "/locks/a", "/locks/a/x-lock-0000000000"] {
        zookeeper.create(path, b"", &open).await.unwrap();
    }
    let why = "`/locks/a/x-lock-0000000000`: it is ahead in the queue of a lock and is not ephemeral";
    let (code, said) = printed(&connect, &["lock", "--timeout", "0s", "/locks/a", "--", "true"]);
    assert!(code == Some(75) && said.contains(why), "{code:?} {said}");
    let waiting = Client::start(&connect, &["/locks/a"]);
    waiting.await_line(why);
    zookeeper.delete("/locks/a/x-lock-0000000000", None).await.unwrap();
    waiting.await_held();
    waiting.release();

    zookeeper.create("/locks/s", b"1", &open).await.unwrap();
    for path in ["/locks/s/locks", "/locks/s/leases", "/locks/s/leases/x-lease-0000000000"] {
        zookeeper.create(path, b"", &open).await.unwrap();
    }
    let (code, said) = printed(&connect, &["lock", "--timeout", "0s", "--permits", "1", "/locks/s", "--", "true"]);
    assert!(code == Some(75) && said.contains("`/locks/s/leases/x-lease-0000000000`: it is ahead"), "{code:?} {said}");
}

#[test]
fn a_file_is_locked_as_flock_locks_it_and_its_command_dies_with_the_client() {
    let dir = Scratch::new("file-lock");
    let file = dir.path().join("backup.lock").display().to_string();
    let first = Client::start_with("", &["--file", &file], DAEMON);
    let daemon = pid_in(&first.await_line("daemon"));
    let (code, text) = printed("", &["lock", "--timeout", "0s", "--file", &file, "--", "true"]);
    assert_eq!((code, text), (Some(75), format!("cronkeeper: `{file}` was not free at once")));
    let flock = |options: &[&str]| Command::new("flock").args(options).args([&file, "true"]).status().unwrap();
    assert_eq!(flock(&["-n"]).code(), Some(1));
    let second = Client::start_with("", &["--file", &file], &format!("kill -0 {daemon} 2>&1 || echo it is dead"));
    first.process().kill();
    second.await_line("it is dead");
    assert_eq!(second.await_exit(), Some(0));
    assert_eq!(flock(&["-n"]).code(), Some(0));
}
