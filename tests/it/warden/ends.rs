//! What ends a tree that nobody asked to end: its lease, the end of the daemon, and that of the warden.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cronkeeper::clock::Uptime;
use cronkeeper::clock::system::uptime;
use cronkeeper::run::Traces;
use cronkeeper::warden::handle::WardenGone;
use cronkeeper::warden::recover::{Recorded, kill_leftovers, start_time};
use cronkeeper::warden::wire::{Deadline, EndedBy, Exit, Order};

use super::bench::{Bench, PATIENCE, eventually, is_root, living, nobody};
use crate::support::command::command;

#[tokio::test]
async fn the_lease_kills_while_the_daemon_is_silent() {
    let mut bench = Bench::new();
    bench.order(Order::Lease { until: uptime() + Duration::from_secs(3) });
    let mut launch = bench.sh("trap '' TERM; setsid sleep 1000 & sleep 1000");
    launch.deadline = Deadline::Lease;
    bench.start(launch).await;
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Deadline)));
    bench.close().await;
}

#[tokio::test]
async fn a_renewed_lease_keeps_and_an_ended_one_kills_at_once() {
    let mut bench = Bench::new();
    bench.order(Order::Lease { until: Uptime::NEVER });
    let mut launch = bench.sh("echo ready; sleep 1000");
    launch.deadline = Deadline::Lease;
    bench.start(launch).await;
    bench.line("ready").await;
    bench.order(Order::Lease { until: Uptime::ZERO });
    assert_eq!(bench.end().await.ended_by, Some(EndedBy::Deadline));
    bench.close().await;
}

#[tokio::test]
async fn a_kept_tree_outlives_the_lease_until_its_own_instant() {
    let mut bench = Bench::new();
    let keep_until = uptime() + Duration::from_secs(3);
    let mut launch = bench.sh("sleep 1000");
    launch.deadline = Deadline::LeaseAnd(keep_until);
    bench.start(launch).await;
    let ending = bench.end().await;
    assert!(ending.at >= keep_until);
    assert_eq!(ending.ended_by, Some(EndedBy::Deadline));
    bench.close().await;
}

#[tokio::test]
async fn a_tree_with_an_instant_of_its_own_is_killed_then_and_not_at_lease_end() {
    let mut bench = Bench::new();
    let mut launch = bench.sh("trap '' TERM; while :; do sleep 1; done");
    let at = uptime() + Duration::from_millis(400);
    launch.deadline = Deadline::At(at);
    bench.order(Order::Lease { until: Uptime::ZERO });
    let ending = bench.run(launch).await;
    assert_eq!((ending.ended_by, ending.at >= at), (Some(EndedBy::Deadline), true));
    bench.close().await;
}

#[tokio::test]
async fn all_dies_with_the_daemon() {
    let mut bench = Bench::new();
    for script in [
        "trap '' TERM HUP; setsid sleep 1000 & echo ready; sleep 1000",
        "(setsid sleep 1000 &); echo ready; sleep 1000",
    ] {
        let launch = bench.sh(script);
        bench.start(launch).await;
        bench.line("ready").await;
        bench.output.clear();
    }
    let status = tokio::time::timeout(PATIENCE, bench.warden.close()).await.expect("an end in time").unwrap();
    assert!(status.success());
    assert_eq!(living(&bench.run), [0; 0]);
}

#[tokio::test]
async fn nonsense_from_the_daemon_ends_all() {
    for is_urgent in [false, true] {
        let (first, second) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let (stdin, stdout) = (OwnedFd::from(first.1), OwnedFd::from(second.1));
        let warden = command(&["warden"]).stdin(stdin).stdout(stdout).spawn();
        let mut daemon = if is_urgent { &second.0 } else { &first.0 };
        daemon.write_all(&[3, 0, 0, 0, b'{', b'"', b'x']).unwrap();
        assert!(warden.unwrap().wait().unwrap().success());
    }
}

#[tokio::test]
async fn signals_from_a_terminal_or_a_shutdown_do_not_end_it() {
    let mut bench = Bench::new();
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    for signal in [
        rustix::process::Signal::INT,
        rustix::process::Signal::TERM,
        rustix::process::Signal::HUP,
        rustix::process::Signal::QUIT,
    ] {
        rustix::process::kill_process(warden, signal).unwrap();
    }
    let launch = bench.sh("exit 0");
    assert_eq!(bench.run(launch).await.exit, Exit::Code(0));
    bench.close().await;
}

#[tokio::test]
async fn a_job_of_another_user_dies_with_the_warden() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let mut launch = bench.launch(&["sleep", "1000"]);
    launch.user = Some(nobody());
    launch.directory = "/".into();
    let (_, main) = bench.start(launch).await;
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    eventually("it dies", || !living(&bench.run).contains(&main)).await;
    bench.warden.close().await.unwrap();
}

#[tokio::test]
async fn when_the_warden_is_killed_the_main_processes_die_and_the_rest_is_found() {
    let mut bench = Bench::new();
    let launch = bench.sh("setsid sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &); echo ready; sleep 1000");
    let (_, main) = bench.start(launch).await;
    bench.line("ready").await;
    let started = start_time(main);
    let warden = rustix::process::Pid::from_raw(i32::try_from(bench.warden.pid()).unwrap()).unwrap();
    rustix::process::kill_process(warden, rustix::process::Signal::KILL).unwrap();
    loop {
        match tokio::time::timeout(PATIENCE, bench.warden.notice()).await.expect("news in time") {
            Ok(_) => {}
            Err(WardenGone::Closed) => break,
            Err(other) => panic!("{other}"),
        }
    }
    eventually("the main process dies", || !living(&bench.run).contains(&main)).await;
    let recorded = [Recorded { run: bench.run.clone(), main: Some((main, started)), traces: Traces::default() }];
    assert_eq!(kill_leftovers(&recorded, "another node", PATIENCE).unwrap(), []);
    assert!(!living(&bench.run).is_empty());
    assert_eq!(kill_leftovers(&recorded, "bench", PATIENCE).unwrap(), []);
    assert_eq!(living(&bench.run), [0; 0]);
    bench.warden.close().await.unwrap();
}

#[tokio::test]
async fn a_recorded_process_whose_pid_is_used_again_is_left_alone() {
    let mut bench = Bench::new();
    let launch = bench.sh("echo ready; sleep 1000");
    let (slot, main) = bench.start(launch).await;
    bench.line("ready").await;
    let other = |start| {
        [Recorded { run: "other.20261120T023000Z".into(), main: Some((main, start)), traces: Traces::default() }]
    };
    let wrong = start_time(main).map(|start| start - 1);
    assert_eq!(kill_leftovers(&other(wrong), "bench", PATIENCE).unwrap(), []);
    assert!(start_time(main).is_some());
    assert_eq!(kill_leftovers(&other(start_time(main)), "bench", PATIENCE).unwrap(), []);
    assert_eq!(bench.end().await.slot, slot);
    bench.close().await;
}
