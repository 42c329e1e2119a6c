//! Orders that wait for no start, and what becomes of a start that they overtake.

use std::time::Duration;

use cronkeeper::clock::Uptime;
use cronkeeper::clock::system::uptime;
use cronkeeper::warden::wire::{Deadline, EndedBy, Exit, Notice, Order, StartFailure};

use super::bench::{Bench, eventually, state};

const MANY: usize = 1_000;

#[tokio::test]
async fn what_is_urgent_waits_for_no_start_however_many_are_ordered() {
    let mut bench = Bench::new();
    bench.stop();
    let launches: Vec<_> = (0..MANY).map(|_| bench.launch(&["true"])).collect();
    launches.into_iter().for_each(|launch| bench.order(Order::Start(Box::new(launch))));
    bench.order(Order::Ping);
    bench.go_on();
    assert_eq!(bench.notice().await, Notice::Pong);
    let mut ended = 0;
    while ended < MANY {
        ended += usize::from(matches!(bench.notice().await, Notice::Ended(_)));
    }
    bench.close().await;
}

#[tokio::test]
async fn what_is_to_end_before_it_began_is_not_started() {
    let mut bench = Bench::new();
    bench.stop();
    let launches = [(); 4].map(|()| bench.sh("exit 7"));
    let slots = launches.each_ref().map(|launch| launch.slot);
    launches.into_iter().for_each(|launch| bench.order(Order::Start(Box::new(launch))));
    bench.order(Order::Kill { slot: slots[0] });
    bench.order(Order::Stop { slot: slots[1], grace_ms: 60_000 });
    bench.order(Order::Deadline { slot: slots[2], deadline: Deadline::At(uptime()) });
    bench.go_on();
    for of in &slots[..3] {
        assert_eq!(bench.notice().await, Notice::NotStarted { slot: *of, why: StartFailure::TooLate });
    }
    let ending = bench.end_of_start().await;
    assert_eq!((ending.slot, ending.exit, ending.ended_by), (slots[3], Exit::Code(7), None));
    bench.close().await;
}

#[tokio::test]
async fn a_deadline_that_overtakes_its_start_is_the_one_that_counts() {
    let mut bench = Bench::new();
    bench.stop();
    let mut launch = bench.launch(&["sleep", "1000"]);
    launch.deadline = Deadline::Lease;
    let (slot, at) = (launch.slot, uptime() + Duration::from_millis(300));
    bench.order(Order::Lease { until: Uptime::NEVER });
    bench.order(Order::Start(Box::new(launch)));
    bench.order(Order::Deadline { slot, deadline: Deadline::At(uptime() + Duration::from_secs(600)) });
    bench.order(Order::Deadline { slot, deadline: Deadline::At(at) });
    // The new deadline is kept, and the lease, which ends before the start is read, kills no more.
    bench.order(Order::Lease { until: Uptime::ZERO });
    bench.go_on();
    let ending = bench.end_of_start().await;
    assert_eq!((ending.ended_by, ending.at >= at), (Some(EndedBy::Deadline), true));
    bench.close().await;
}

#[tokio::test]
async fn who_ended_before_the_warden_got_to_it_ended_by_itself() {
    for by_order in [true, false] {
        let mut bench = Bench::new();
        bench.order(Order::Lease { until: uptime() + Duration::from_secs(600) });
        let mut launch = bench.sh("until [ -e go ]; do sleep 0.01; done");
        launch.deadline = Deadline::Lease;
        let (slot, main) = bench.start(launch).await;
        bench.stop();
        bench.file("go", "", 0o644);
        eventually("it ends", || state(main) == Some('Z')).await;
        bench.order(if by_order { Order::Kill { slot } } else { Order::Lease { until: Uptime::ZERO } });
        bench.go_on();
        let ending = bench.end().await;
        assert_eq!((ending.exit, ending.ended_by), (Exit::Code(0), None));
        bench.close().await;
    }
}
