//! The servers' clock, read by a node's own writes. Servers and nodes share this machine's clock, so they must agree.

use cronkeeper_core::clock::Clock;
use cronkeeper_core::clock::server::ServerTime;
use cronkeeper_core::coordination::Event as BackendEvent;
use cronkeeper_core::election::{Event, Request};
use jiff::SignedDuration;

use super::fixture::{Fixture, System, admin};
use crate::support::zookeeper::shared;

/// Asserts that the time is right, to the accuracy that its round trip allows.
fn assert_is_now(time: ServerTime) {
    let before = System.now();
    assert_eq!(time.skew(before), SignedDuration::ZERO, "{time:?} at {before:?}");
    let hour = SignedDuration::from_hours(1);
    let ahead = cronkeeper_core::clock::Now { wall: before.wall + hour, ..before };
    let seen = time.skew(ahead);
    assert!(
        seen <= hour && seen + SignedDuration::try_from(time.took()).unwrap() >= hour - SignedDuration::from_millis(2),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_leader_knows_the_servers_time_before_it_leads() {
    let (fixture, ..) = Fixture::leading(&shared(), "a").await;
    let position_of = |wanted: fn(&Event) -> bool| {
        fixture.seen.iter().position(|event| matches!(event, BackendEvent::Election(event) if wanted(event)))
    };
    let time = position_of(|event| matches!(event, Event::Time(_))).expect("a reading");
    assert!(time < position_of(|event| matches!(event, Event::Elected { .. })).expect("elected"));
    if let BackendEvent::Election(Event::Time(time)) = &fixture.seen[time] {
        assert_is_now(*time);
    }
}

#[tokio::test]
async fn a_node_that_waits_in_the_queue_asks_for_the_time_and_its_members_stay_as_they_are() {
    let connect = shared();
    let (_leader, ..) = Fixture::leading(&connect, "a").await;
    let mut follower = Fixture::start(&connect, "b");
    follower.ask(Request::Campaign);
    let time = follower.election("the time", |event| match event {
        Event::Time(time) => Some(*time),
        _ => None,
    });
    assert_is_now(time.await);
    let (_, stat) = admin(&connect).await.get_data("/cronkeeper/nodes/b").await.unwrap();
    assert_eq!(stat.version, 0);
}
