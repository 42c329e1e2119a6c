//! Output of jobs: it arrives line by line, is bounded, and delays no other tree.

use std::time::Duration;

use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Deadline, Exit, Notice, Order, TreeId};

use super::fixture::{Fixture, eventually, living, memory_kib};

#[tokio::test]
async fn a_grandchild_that_holds_the_pipe_delays_nothing_and_loses_nothing() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("(while :; do echo more; sleep 0.01; done) & echo last words; printf unfinished >&2");
    let ending = fixture.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    assert!(ending.leftovers >= 1);
    assert!(fixture.lines().contains(&"last words") && fixture.lines().contains(&"unfinished"));
    fixture.close().await;
}

#[tokio::test]
async fn a_job_that_closes_its_output_still_runs_to_its_end() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("exec >&- 2>&-; sleep 0.1; exit 5");
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(5));
    fixture.close().await;
}

#[tokio::test]
async fn a_hundred_megabytes_without_an_end_of_line_keep_the_warden_small() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("head -c 100000000 /dev/zero | tr '\\0' x");
    launch.max_output = 10_000_000;
    let ending = fixture.run(launch).await;
    let passed_on: usize = fixture.lines().iter().map(|line| line.len()).sum();
    assert_eq!((passed_on, ending.dropped_bytes, ending.tail.len()), (10_000_000, 90_000_000, 4_096));
    assert!(fixture.output.iter().all(|(_, line, _)| line.len() <= 64 << 10));
    let peak = memory_kib(fixture.warden.pid(), "VmHWM:");
    assert!(peak < 32 << 10, "{peak} KiB");
    fixture.close().await;
}

#[tokio::test]
async fn a_daemon_that_does_not_read_delays_the_job_and_does_not_grow_the_warden() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("yes | head -c 50000000; echo done >finished");
    launch.max_output = u64::MAX;
    let (tree_id, _) = fixture.start(launch).await;
    let pid = fixture.warden.pid();
    let mut launch = fixture.sh("exec sleep 1000");
    launch.deadline = Deadline::LeaseAnd(uptime() + Duration::from_secs(3));
    fixture.order_start(&launch);
    // The test reads nothing until the deadline of the second tree has passed.
    eventually("the other tree is killed", || living(&fixture.run).len() <= 3).await;
    assert!(!fixture.directory.path().join("finished").exists());
    assert!(memory_kib(pid, "VmHWM:") < 32 << 10);
    fixture.order(Order::Kill { tree_id });
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(fixture.notice().await, Notice::Ended(_)));
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_flood_of_one_job_does_not_silence_another() {
    let mut fixture = Fixture::new();
    let mut launch = fixture.sh("yes flood");
    launch.max_output = u64::MAX;
    fixture.start(launch).await;
    let launch = fixture.sh("echo received");
    fixture.order_start(&launch);
    while !matches!(fixture.notice().await, Notice::Output { lines, .. } if lines == ["received"]) {}
    fixture.order(Order::Kill { tree_id: TreeId(1) });
    let mut ended = 0;
    while ended < 2 {
        ended += usize::from(matches!(fixture.notice().await, Notice::Ended(_)));
    }
    fixture.close().await;
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_are_replaced() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("printf 'a\\377\\000b\\n'; head -c 3000 /dev/urandom; printf '\\344'");
    let ending = fixture.run(launch).await;
    assert_eq!(fixture.lines()[0], "a\u{fffd}\0b");
    assert!(ending.tail.starts_with("a\u{fffd}\0b\n"));
    fixture.close().await;
}
