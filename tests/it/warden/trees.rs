//! The tree of a run without a cgroup: told apart, stopped and killed whole, whatever its processes do to be forgotten.

use std::fs;

use cronkeeper::warden::recover::start_time;
use cronkeeper::warden::wire::{EndedBy, Exit, Notice, Order};

use super::bench::{Bench, eventually, is_root, living, state};

#[tokio::test]
async fn exit_codes_and_signals_are_told_apart() {
    let mut bench = Bench::new();
    let launch = bench.sh("exit 7");
    assert_eq!(bench.run(launch).await.exit, Exit::Code(7));
    let launch = bench.sh("kill -9 $$");
    let ending = bench.run(launch).await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, None));
    let launch = bench.sh("kill -40 $$");
    assert!(matches!(bench.run(launch).await.exit, Exit::Signal { signal: 40, .. }));
    bench.close().await;
}

#[tokio::test]
async fn a_tree_that_ignores_sigterm_is_killed_after_its_grace() {
    let mut bench = Bench::new();
    let launch = bench
        .sh("trap '' TERM; (trap '' TERM; sleep 1000; sleep 1000) & sleep 1000 & echo ready; wait; wait; sleep 1000");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    bench.order(Order::Stop { slot, grace_ms: 200 });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    bench.close().await;
}

#[tokio::test]
async fn a_stop_is_heard_by_the_whole_tree_also_where_it_is_stopped() {
    let mut bench = Bench::new();
    let launch = bench.sh("setsid sh -c 'trap \"echo child; exit\" TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done' & trap 'wait; exit 3' TERM; wait");
    let (slot, pid) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("the child stops", || living(&bench.run).iter().any(|&it| it != pid && state(it) == Some('T'))).await;
    bench.order(Order::Stop { slot, grace_ms: 60_000 });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Code(3), Some(EndedBy::Order)));
    assert!(bench.lines().contains(&"child"));
    bench.close().await;
}

#[tokio::test]
async fn a_daemon_that_forked_twice_and_left_the_session_dies_with_its_run() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &); exit 0");
    let ending = bench.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    assert!(ending.leftovers >= 1, "{ending:?}");
    bench.close().await;
}

#[tokio::test]
async fn one_that_also_cleared_its_environment_dies_with_its_run() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); exit 0");
    let ending = bench.run(launch).await;
    let pid: i32 = fs::read_to_string(bench.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((ending.exit, start_time(pid)), (Exit::Code(0), None));
    bench.close().await;
}

#[tokio::test]
async fn one_of_which_it_is_unclear_whose_it_is_dies_with_the_last_that_could_own_it() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::without_audit();
    let launch = bench.sh("echo ready; sleep 1000");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    // Start times count in hundredths of a second: it must be younger than both by more than that.
    let launch = bench.sh("sleep 0.05; (setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); until grep -q sleep /proc/$(cat pid)/comm; do :; done");
    bench.run(launch).await;
    let pid: i32 = fs::read_to_string(bench.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert!(start_time(pid).is_some());
    bench.order(Order::Kill { slot });
    assert_eq!(bench.end().await.slot, slot);
    assert_eq!(start_time(pid), None);
    bench.close().await;
}

#[tokio::test]
async fn an_orphan_of_one_run_outlives_the_end_of_another() {
    let mut bench = Bench::new();
    let launch = bench.sh("(setsid sh -c 'echo orphan; sleep 1000' &); echo ready; read never </dev/zero");
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    bench.line("orphan").await;
    let mut launch = bench.sh("exit 0");
    launch.environment[1].1 = format!("another-{}", bench.run);
    let other = bench.run(launch).await;
    assert_eq!((other.exit, other.leftovers), (Exit::Code(0), 0));
    assert!(living(&bench.run).len() >= 2);
    bench.order(Order::Kill { slot });
    assert_eq!(bench.end().await.slot, slot);
    bench.close().await;
}

#[tokio::test]
async fn a_tree_that_stopped_itself_can_be_killed() {
    let mut bench = Bench::new();
    let launch = bench.sh("sleep 1000 & echo ready; kill -STOP 0");
    let (slot, pid) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("it stops", || state(pid) == Some('T')).await;
    bench.order(Order::Kill { slot });
    let ending = bench.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    bench.close().await;
}

#[tokio::test]
async fn a_fork_storm_is_outrun() {
    let mut bench = Bench::new();
    // Each leaves session and parent behind at once; at most some dozens live at a time.
    let storm =
        bench.file("storm", "echo 1 >>\"$COUNT\"\n[ -e stop ] || setsid -f \"$0\" >/dev/null 2>&1\nsleep 0.2\n", 0o755);
    let mut launch = bench.sh("for i in 1 2 3 4 5; do setsid -f ./storm >/dev/null 2>&1; done; echo ready; sleep 1000");
    let count = bench.directory.path().join("count");
    launch.environment.push(("COUNT".into(), count.to_str().unwrap().into()));
    let (slot, _) = bench.start(launch).await;
    bench.line("ready").await;
    eventually("the storm rages", || fs::metadata(&count).is_ok_and(|count| count.len() > 100)).await;
    bench.order(Order::Kill { slot });
    bench.end().await;
    // Also what is in no session and no memory of the warden would have written this on.
    let size = fs::metadata(&count).unwrap().len();
    assert_eq!(living(&bench.run), [0; 0]);
    assert_eq!(fs::metadata(&count).unwrap().len(), size);
    drop(storm);
    bench.close().await;
}

#[tokio::test]
async fn many_short_jobs_leave_nothing_behind() {
    let mut bench = Bench::new();
    for _ in 0..200 {
        let launch = bench.launch(&["true"]);
        bench.order(Order::Start(Box::new(launch)));
    }
    let mut ended = 0;
    while ended < 200 {
        match bench.notice().await {
            Notice::Ended(ending) => {
                assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 0));
                ended += 1;
            }
            Notice::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    bench.close().await;
}
