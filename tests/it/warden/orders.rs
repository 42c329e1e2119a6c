//! Orders that do not wait for starts, and starts that they overtake.

use std::collections::BTreeSet;
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::process::{Deadline, EndedBy, Exit, Notice, Order, StartFailure};

use super::fixture::{Fixture, eventually, state};

const MANY: usize = 1_000;

#[tokio::test]
async fn orders_do_not_wait_for_starts_however_many_there_are() {
    let mut fixture = Fixture::new();
    fixture.stop();
    let launches: Vec<_> = (0..MANY).map(|_| fixture.launch(&["true"])).collect();
    launches.into_iter().for_each(|launch| fixture.order_start(&launch));
    fixture.order(Order::Ping);
    fixture.go_on();
    assert_eq!(fixture.notice().await, Notice::Pong);
    let mut ended = 0;
    while ended < MANY {
        ended += usize::from(matches!(fixture.notice().await, Notice::Ended(_)));
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_tree_that_is_ended_before_its_start_is_not_started() {
    let mut fixture = Fixture::new();
    fixture.stop();
    let launches = [(); 4].map(|()| fixture.sh("exit 7"));
    let tree_ids = launches.each_ref().map(|launch| launch.tree_id);
    launches.into_iter().for_each(|launch| fixture.order_start(&launch));
    fixture.order(Order::Kill { tree_id: tree_ids[0] });
    fixture.order(Order::Stop { tree_id: tree_ids[1], grace_ms: 60_000 });
    fixture.order(Order::Deadline { tree_id: tree_ids[2], deadline: Deadline::At(uptime()) });
    fixture.go_on();
    for of in &tree_ids[..3] {
        assert_eq!(fixture.notice().await, Notice::NotStarted { tree_id: *of, why: StartFailure::TooLate });
    }
    let ending = fixture.end_of_start().await;
    assert_eq!((ending.tree_id, ending.exit, ending.ended_by), (tree_ids[3], Exit::Code(7), None));
    fixture.close().await;
}

#[tokio::test]
async fn a_kill_is_never_lost_wherever_it_meets_its_start() {
    let mut fixture = Fixture::new();
    for _ in 0..MANY / 10 {
        let launches = [(); 10].map(|()| fixture.launch(&["sleep", "1000"]));
        let tree_ids = launches.each_ref().map(|launch| launch.tree_id);
        launches.into_iter().for_each(|launch| fixture.order_start(&launch));
        tree_ids.into_iter().for_each(|tree_id| fixture.order(Order::Kill { tree_id }));
    }
    let (mut over, mut started) = (0, BTreeSet::new());
    while over < MANY {
        over += match fixture.notice().await {
            Notice::Ended(ending) => {
                assert!(started.remove(&ending.tree_id), "an end without a start: {ending:?}");
                usize::from(ending.ended_by == Some(EndedBy::Order))
            }
            Notice::NotStarted { why: StartFailure::TooLate, .. } => 1,
            Notice::Started { tree_id, .. } => usize::from(!started.insert(tree_id)),
            other => panic!("{other:?}"),
        };
    }
    fixture.close().await;
}

#[tokio::test]
async fn a_deadline_that_overtakes_its_start_is_the_one_that_counts() {
    let mut fixture = Fixture::new();
    fixture.stop();
    let mut launch = fixture.launch(&["sleep", "1000"]);
    launch.deadline = Deadline::Lease;
    let (tree_id, at) = (launch.tree_id, uptime() + Duration::from_millis(300));
    fixture.order(Order::Lease { until: Uptime::NEVER });
    fixture.order_start(&launch);
    fixture.order(Order::Deadline { tree_id, deadline: Deadline::At(uptime() + Duration::from_secs(600)) });
    fixture.order(Order::Deadline { tree_id, deadline: Deadline::At(at) });
    // The new deadline counts: the lease ends before the start is read, but does not kill the tree any more.
    fixture.order(Order::Lease { until: Uptime::ZERO });
    fixture.go_on();
    let ending = fixture.end_of_start().await;
    assert_eq!((ending.ended_by, ending.at >= at), (Some(EndedBy::Deadline), true));
    fixture.close().await;
}

#[tokio::test]
async fn a_process_that_ended_before_the_warden_killed_it_ended_by_itself() {
    for by_order in [true, false] {
        let mut fixture = Fixture::new();
        fixture.order(Order::Lease { until: uptime() + Duration::from_secs(600) });
        let mut launch = fixture.sh("until [ -e go ]; do sleep 0.01; done");
        launch.deadline = Deadline::Lease;
        let (tree_id, main) = fixture.start(launch).await;
        fixture.stop();
        fixture.file("go", "", 0o644);
        eventually("it ends", || state(main) == Some('Z')).await;
        fixture.order(if by_order { Order::Kill { tree_id } } else { Order::Lease { until: Uptime::ZERO } });
        fixture.go_on();
        let ending = fixture.end().await;
        assert_eq!((ending.exit, ending.ended_by), (Exit::Code(0), None));
        fixture.close().await;
    }
}
