//! Trees that end without an order: by the lease, by the end of the daemon, by the end of the warden.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cronkeeper::warden::handle::WardenGone;
use cronkeeper::warden::recover::{kill_leftovers, start_time};
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Deadline, EndedBy, Exit, Launch, Notice, Order, Recorded};
use cronkeeper_core::run::Traces;

use super::fixture::{Fixture, TIMEOUT, children, descendants, eventually, is_root, living, nobody, state};
use crate::support::command::command;

#[tokio::test]
async fn the_lease_kills_while_the_daemon_is_silent() {
    let mut fixture = Fixture::new();
    fixture.order(Order::Lease { until: uptime() + Duration::from_secs(3) });
    let mut launch = fixture.sh("trap '' TERM; setsid sleep 1000 & sleep 1000");
    launch.deadline = Deadline::Lease;
    fixture.start(launch).await;
    let ending = fixture.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Deadline)));
    fixture.close().await;
}

#[tokio::test]
async fn a_renewed_lease_keeps_a_tree_and_an_ended_one_kills_it_at_once() {
    let mut fixture = Fixture::new();
    fixture.order(Order::Lease { until: Uptime::NEVER });
    let mut launch = fixture.sh("echo ready; sleep 1000");
    launch.deadline = Deadline::Lease;
    fixture.start(launch).await;
    fixture.line("ready").await;
    fixture.order(Order::Lease { until: Uptime::ZERO });
    assert_eq!(fixture.end().await.ended_by, Some(EndedBy::Deadline));
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_with_lease_and_instant_goes_on_after_the_lease_until_its_instant() {
    let mut fixture = Fixture::new();
    let keep_until = uptime() + Duration::from_secs(3);
    let mut launch = fixture.sh("sleep 1000");
    launch.deadline = Deadline::LeaseAnd(keep_until);
    fixture.start(launch).await;
    let ending = fixture.end().await;
    assert!(ending.at >= keep_until);
    assert_eq!(ending.ended_by, Some(EndedBy::Deadline));
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_with_an_instant_of_its_own_is_killed_then_and_not_at_lease_end() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("trap '' TERM; while :; do sleep 1; done");
    let at = uptime() + Duration::from_millis(400);
    launch.deadline = Deadline::At(at);
    fixture.order(Order::Lease { until: Uptime::ZERO });
    let ending = fixture.run(launch).await;
    assert_eq!((ending.ended_by, ending.at >= at), (Some(EndedBy::Deadline), true));
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_is_killed_at_its_time_limit() {
    let limit = Duration::from_millis(400);
    let mut fixture = Fixture::new();
    let launch = Launch { time_limit: Some(limit), ..fixture.sh("trap '' TERM; while :; do sleep 1; done") };
    let ordered = uptime();
    let ending = fixture.run(launch).await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::TimeLimit)));
    assert!(ending.at >= ordered + limit);
    fixture.close().await;
}

#[tokio::test]
async fn all_trees_die_with_the_daemon() {
    let mut fixture = Fixture::new();
    for script in [
        "trap '' TERM HUP; setsid sleep 1000 & echo ready; sleep 1000",
        "(setsid sleep 1000 &); echo ready; sleep 1000",
    ] {
        let launch = fixture.sh(script);
        fixture.start(launch).await;
        fixture.line("ready").await;
        fixture.output.clear();
    }
    let closed = tokio::time::timeout(TIMEOUT, fixture.warden.close()).await.expect("an end in time").unwrap();
    assert!(closed.status.success());
    assert_eq!(living(&fixture.run), [0; 0]);
}

/// Otherwise `pkill -9 cronkeeper`, or `killall`, would kill the daemon and the only process that ends its trees.
#[tokio::test]
async fn neither_the_warden_nor_a_held_process_is_named_like_the_daemon() {
    let mut fixture = Fixture::new();
    let launch = fixture.launch(&["true"]);
    fixture.order_start(&Launch { not_before: Some(uptime() + Duration::from_secs(600)), ..launch });
    let Notice::Held { pid, .. } = fixture.notice().await else { panic!("it is held") };
    let name = |pid: i32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    for pid in [fixture.warden.watcher().cast_signed(), fixture.warden.pid().cast_signed(), pid] {
        for file in ["comm", "cmdline"] {
            let name = name(pid, file);
            assert!(name.starts_with("job-wa") && !name.contains("cronkeeper"), "{file}: {name}");
        }
    }
    // Nor are the two named alike: `pkill -9 job-warden` leaves the watcher.
    eventually("it has its name", || name(fixture.warden.watcher().cast_signed(), "comm") == "job-watcher\n").await;
    assert_eq!(name(fixture.warden.pid().cast_signed(), "comm"), "job-warden\n");
}

#[tokio::test]
async fn an_undecodable_start_or_order_kills_all_trees() {
    for is_order in [false, true] {
        let (first, second) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (stdin, stdout) = (OwnedFd::from(first.1), OwnedFd::from(second.1));
        let warden = command(&["warden"]).stdin(stdin).stdout(stdout).spawn();
        // The warden waits for this byte, with or without the file for its notes.
        (&first.0).write_all(&[0]).unwrap();
        let mut daemon = if is_order { &second.0 } else { &first.0 };
        daemon.write_all(&[3, 0, 0, 0, b'{', b'"', b'x']).unwrap();
        assert!(warden.unwrap().wait().unwrap().success());
    }
}

#[tokio::test]
async fn signals_from_a_terminal_or_a_shutdown_do_not_end_it() {
    let mut fixture = Fixture::new();
    let warden = rustix::process::Pid::from_raw(i32::try_from(fixture.warden.pid()).unwrap()).unwrap();
    for signal in [
        rustix::process::Signal::INT,
        rustix::process::Signal::TERM,
        rustix::process::Signal::HUP,
        rustix::process::Signal::QUIT,
    ] {
        rustix::process::kill_process(warden, signal).unwrap();
    }
    let launch = fixture.sh("exit 0");
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(0));
    fixture.close().await;
}

#[tokio::test]
async fn a_job_of_another_user_dies_with_the_warden() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::new();
    let mut launch = fixture.launch(&["sleep", "1000"]);
    launch.user = Some(nobody());
    launch.directory = "/".into();
    let (_, main) = fixture.start(launch).await;
    let warden = rustix::process::Pid::from_raw(i32::try_from(fixture.warden.pid()).unwrap()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    eventually("it dies", || !living(&fixture.run).contains(&main)).await;
    fixture.warden.close().await.unwrap();
}

#[tokio::test]
async fn when_the_warden_is_killed_the_watcher_kills_what_it_has_left() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("setsid sleep 1000 & (setsid env -i sh -c 'sleep 1000 & wait' &); echo ready; sleep 1000");
    fixture.start(launch).await;
    fixture.line("ready").await;
    let of_warden = fixture.warden.pid();
    eventually("all have begun", || descendants(&children(of_warden)).len() >= 5).await;
    let all = descendants(&children(of_warden));
    let warden = rustix::process::Pid::from_raw(fixture.warden.pid().cast_signed()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    assert!(matches!(tokio::time::timeout(TIMEOUT, fixture.warden.notice()).await, Ok(Err(WardenGone::Closed))));
    fixture.warden.close().await.unwrap();
    assert!(all.iter().all(|&pid| matches!(state(pid), None | Some('Z'))), "{all:?}");
}

#[tokio::test]
async fn without_its_watcher_a_warden_goes_on_and_is_waited_for() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("trap '' TERM; setsid sleep 1000 & echo ready; sleep 1000");
    fixture.start(launch).await;
    fixture.line("ready").await;
    let watcher = rustix::process::Pid::from_raw(fixture.warden.watcher().cast_signed()).unwrap();
    rustix::process::kill_process(watcher, rustix::process::Signal::KILL).unwrap();
    let again = fixture.sh("exit 0");
    assert_eq!(fixture.run(again).await.exit, Exit::Code(0));
    fixture.warden.close().await.unwrap();
    assert_eq!(living(&fixture.run), [0; 0]);
}

/// Else their occurrences would be lost: the daemon has recorded all of them as started.
#[tokio::test]
async fn of_a_dead_warden_it_is_known_which_programs_never_began() {
    for is_stopped in [true, false] {
        let mut fixture = Fixture::new();
        // Without a child, which would outlive it.
        let began = fixture.launch(&["sleep", "1000"]);
        let held = fixture.launch(&["true"]);
        let held = Launch { not_before: Some(uptime() + Duration::from_secs(600)), ..held };
        let unread = fixture.launch(&["true"]);
        let [began_id, held_id, unread_id] = [&began, &held, &unread].map(|launch| launch.tree_id);
        fixture.start(began).await;
        fixture.order_start(&held);
        assert!(matches!(fixture.notice().await, Notice::Held { .. }));
        if is_stopped {
            fixture.stop();
            fixture.order_start(&unread);
        }
        fixture.warden.kill().unwrap();
        let closed = tokio::time::timeout(TIMEOUT, fixture.warden.close()).await.expect("an end in time").unwrap();
        assert!(!closed.is_unbegun(began_id) && closed.is_unbegun(held_id) && closed.is_unbegun(unread_id));
    }
}

/// Otherwise its daemon would wait for a warden that is dead, and for a watcher that cannot tell.
#[tokio::test]
async fn a_warden_and_a_watcher_that_are_stopped_can_be_killed() {
    let mut fixture = Fixture::new();
    for pid in [fixture.warden.watcher(), fixture.warden.pid()] {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }
    fixture.warden.kill().unwrap();
    assert!(matches!(tokio::time::timeout(TIMEOUT, fixture.warden.notice()).await, Ok(Err(WardenGone::Closed))));
    fixture.warden.close().await.unwrap();
}

#[tokio::test]
async fn when_watcher_and_warden_are_killed_the_main_processes_die_and_the_others_are_found() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("setsid sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &); echo ready; sleep 1000");
    let (_, main) = fixture.start(launch).await;
    fixture.line("ready").await;
    let started = start_time(main);
    // The watcher first: otherwise it would kill the others.
    for pid in [fixture.warden.watcher(), fixture.warden.pid()] {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    loop {
        match tokio::time::timeout(TIMEOUT, fixture.warden.notice()).await.expect("news in time") {
            Ok(_) => {}
            Err(WardenGone::Closed) => break,
            Err(other) => panic!("{other}"),
        }
    }
    eventually("the main process dies", || !living(&fixture.run).contains(&main)).await;
    let recorded = [Recorded { run: fixture.run.clone(), main: Some((main, started)), traces: Traces::default() }];
    assert_eq!(kill_leftovers(&recorded, "another node", TIMEOUT).unwrap(), []);
    assert!(!living(&fixture.run).is_empty());
    assert_eq!(kill_leftovers(&recorded, "bench", TIMEOUT).unwrap(), []);
    assert_eq!(living(&fixture.run), [0; 0]);
    fixture.warden.close().await.unwrap();
}

#[tokio::test]
async fn a_recorded_process_whose_pid_is_used_again_is_left_alone() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("echo ready; sleep 1000");
    let (tree_id, main) = fixture.start(launch).await;
    fixture.line("ready").await;
    let other = |start| {
        [Recorded { run: "other.20261120T023000Z".into(), main: Some((main, start)), traces: Traces::default() }]
    };
    let wrong = start_time(main).map(|start| start - 1);
    assert_eq!(kill_leftovers(&other(wrong), "bench", TIMEOUT).unwrap(), []);
    assert!(start_time(main).is_some());
    assert_eq!(kill_leftovers(&other(start_time(main)), "bench", TIMEOUT).unwrap(), []);
    assert_eq!(fixture.end().await.tree_id, tree_id);
    fixture.close().await;
}
