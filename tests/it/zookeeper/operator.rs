//! Requests that an operator writes at one node and the leader carries out at another.

use cronkeeper_core::election::Request;
use cronkeeper_core::ledger::{Change, Commit};
use cronkeeper_core::run::{Pause, RunRecord, TriggerRecord};
use jiff::Timestamp;
use uuid::Uuid;

use super::fixture::{Fixture, end, first_mark, job, leader, run};
use crate::support::zookeeper::shared;

fn pause(reason: &str) -> Pause {
    Pause { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()), until: None }
}

fn request(name: &str, uuid: u128) -> TriggerRecord {
    let at = Timestamp::from_second(60).unwrap();
    TriggerRecord::new(Uuid::from_u128(uuid), job(name), "alice".into(), at)
}

/// The leader, and a follower that takes the requests.
async fn two(connect: &str) -> (Fixture, cronkeeper_core::term::Term, cronkeeper_core::term::SessionId, Fixture) {
    let (leader, term, session) = leader(connect).await;
    let mut follower = Fixture::start(connect, "b");
    follower.ask(Request::Campaign);
    follower.following(Some("a")).await;
    (leader, term, session, follower)
}

#[tokio::test]
async fn a_job_that_nobody_decided_on_can_be_paused() {
    let connect = shared();
    let (mut leader, _, _, follower) = two(&connect).await;
    follower.operator().pause(job("new"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    assert_eq!(leader.commit(first_mark("new", "1")).await, Commit::Superseded);
}

#[tokio::test]
async fn a_uuid_in_the_history_is_known_to_the_next_leader() {
    let connect = shared();
    let (mut leader, term, session, mut follower) = two(&connect).await;
    let id = follower.operator().trigger(request("backup", 7)).await.unwrap();
    let trigger = Some(request("backup", 7).numbered(id.trigger().unwrap()));
    let run = RunRecord { trigger, ..run("backup", 60, "a", &session, term.token) };
    leader.commit(Change::BeginTriggered { run: run.clone() }).await;
    leader.commit(end(0, &run)).await;
    // Written as by a second node that did not know of the first request.
    let admin = super::fixture::admin(&connect).await;
    let options = zookeeper_client::CreateMode::PersistentSequential.with_acls(zookeeper_client::Acls::anyone_all());
    let again = serde_json::to_vec(&request("backup", 7)).unwrap();
    admin.create("/cronkeeper/triggers/", &again, &options).await.unwrap();
    leader.crash();
    let (_, snapshot) = follower.elected().await;
    let triggers: Vec<_> = snapshot.requests.triggers.values().map(|entry| entry.is_in_history).collect();
    assert_eq!(triggers, [true]);
}
