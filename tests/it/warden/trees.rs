//! Trees of runs without a cgroup: identified, stopped and killed whole, whatever their processes do to escape.

use std::fs;

use cronkeeper::warden::recover::start_time;
use cronkeeper_core::process::{EndedBy, Exit, Notice, Order};

use super::fixture::{Fixture, eventually, is_root, living, replace, state};

#[tokio::test]
async fn exit_codes_and_signals_are_distinguished() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("exit 7");
    assert_eq!(fixture.run(launch).await.exit, Exit::Code(7));
    let launch = fixture.sh("kill -9 $$");
    let ending = fixture.run(launch).await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, None));
    let launch = fixture.sh("kill -40 $$");
    assert!(matches!(fixture.run(launch).await.exit, Exit::Signal { signal: 40, .. }));
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_that_ignores_sigterm_is_killed_after_its_grace() {
    let mut fixture = Fixture::new();
    let launch = fixture
        .sh("trap '' TERM; (trap '' TERM; sleep 1000; sleep 1000) & sleep 1000 & echo ready; wait; wait; sleep 1000");
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    fixture.order(Order::Stop { tree_id, grace_ms: 200 });
    let ending = fixture.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    fixture.close().await;
}

#[tokio::test]
async fn a_stop_reaches_the_whole_tree_even_if_it_is_stopped() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("setsid sh -c 'trap \"echo child; exit\" TERM; echo ready; kill -STOP $$; while :; do sleep 0.01; done' & trap 'wait; exit 3' TERM; wait");
    let (tree_id, pid) = fixture.start(launch).await;
    fixture.line("ready").await;
    eventually("the child stops", || living(&fixture.run).iter().any(|&it| it != pid && state(it) == Some('T'))).await;
    fixture.order(Order::Stop { tree_id, grace_ms: 60_000 });
    let ending = fixture.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Code(3), Some(EndedBy::Order)));
    assert!(fixture.lines().contains(&"child"));
    fixture.close().await;
}

#[tokio::test]
async fn a_daemon_that_forked_twice_and_left_the_session_dies_with_its_run() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("(setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &); exit 0");
    let ending = fixture.run(launch).await;
    assert_eq!(ending.exit, Exit::Code(0));
    assert!(ending.leftovers >= 1, "{ending:?}");
    fixture.close().await;
}

#[tokio::test]
async fn a_daemon_that_also_cleared_its_environment_dies_with_its_run() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("(setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); exit 0");
    let ending = fixture.run(launch).await;
    let pid: i32 = fs::read_to_string(fixture.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert_eq!((ending.exit, start_time(pid)), (Exit::Code(0), None));
    fixture.close().await;
}

#[tokio::test]
async fn an_orphan_of_unclear_owner_dies_with_the_last_possible_one() {
    if !is_root() {
        return;
    }
    let mut fixture = Fixture::without_audit();
    let launch = fixture.sh("echo ready; sleep 1000");
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    // Start times have a resolution of a hundredth of a second: the orphan must be younger than both by more than that.
    let launch = fixture.sh("sleep 0.05; (setsid env -i sleep 1000 >/dev/null 2>&1 & echo $! >pid); until grep -q sleep /proc/$(cat pid)/comm; do :; done");
    fixture.run(launch).await;
    let pid: i32 = fs::read_to_string(fixture.directory.path().join("pid")).unwrap().trim().parse().unwrap();
    assert!(start_time(pid).is_some());
    fixture.order(Order::Kill { tree_id });
    assert_eq!(fixture.end().await.tree_id, tree_id);
    assert_eq!(start_time(pid), None);
    fixture.close().await;
}

#[tokio::test]
async fn an_orphan_of_one_run_is_left_at_the_end_of_another() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("(setsid sh -c 'echo orphan; sleep 1000' &); echo ready; read never </dev/zero");
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    fixture.line("orphan").await;
    let mut launch = fixture.sh("exit 0");
    replace(&mut launch.environment, "CRONKEEPER_RUN_ID", &format!("another-{}", fixture.run));
    let other = fixture.run(launch).await;
    assert_eq!((other.exit, other.leftovers), (Exit::Code(0), 0));
    assert!(living(&fixture.run).len() >= 2);
    fixture.order(Order::Kill { tree_id });
    assert_eq!(fixture.end().await.tree_id, tree_id);
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_that_stopped_itself_can_be_killed() {
    let mut fixture = Fixture::new();
    let launch = fixture.sh("sleep 1000 & echo ready; kill -STOP 0");
    let (tree_id, pid) = fixture.start(launch).await;
    fixture.line("ready").await;
    eventually("it stops", || state(pid) == Some('T')).await;
    fixture.order(Order::Kill { tree_id });
    let ending = fixture.end().await;
    assert_eq!((ending.exit, ending.ended_by), (Exit::Signal { signal: 9, core: false }, Some(EndedBy::Order)));
    fixture.close().await;
}

#[tokio::test]
async fn a_fork_storm_is_killed() {
    let mut fixture = Fixture::new();
    // Each process leaves session and parent at once; some dozens are alive at a time.
    let forker = fixture.file(
        "forker",
        "echo 1 >>\"$COUNT\"\n[ -e stop ] || setsid -f \"$0\" >/dev/null 2>&1\nsleep 0.2\n",
        0o755,
    );
    let mut launch =
        fixture.sh("for i in 1 2 3 4 5; do setsid -f ./forker >/dev/null 2>&1; done; echo ready; sleep 1000");
    let count = fixture.directory.path().join("count");
    launch.environment.push_variable("COUNT", count.to_str().unwrap());
    let (tree_id, _) = fixture.start(launch).await;
    fixture.line("ready").await;
    eventually("the processes fork without end", || fs::metadata(&count).is_ok_and(|count| count.len() > 100)).await;
    fixture.order(Order::Kill { tree_id });
    fixture.end().await;
    // A process that escaped every check would still write to this file.
    let size = fs::metadata(&count).unwrap().len();
    assert_eq!(living(&fixture.run), [0; 0]);
    assert_eq!(fs::metadata(&count).unwrap().len(), size);
    drop(forker);
    fixture.close().await;
}

#[tokio::test]
async fn many_short_jobs_leave_nothing_behind() {
    let mut fixture = Fixture::new();
    for _ in 0..200 {
        let launch = fixture.launch(&["true"]);
        fixture.order_start(&launch);
    }
    let mut ended = 0;
    while ended < 200 {
        match fixture.notice().await {
            Notice::Ended(ending) => {
                assert_eq!((ending.exit, ending.leftovers), (Exit::Code(0), 0));
                ended += 1;
            }
            Notice::Started { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    fixture.close().await;
}
