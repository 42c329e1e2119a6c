//! Requests that an operator writes at one node and the leader carries out at another.

use cronkeeper::election::Request;
use cronkeeper::ledger::{self, Change, Commit, Event, Followed, OperatorRequests};
use cronkeeper::run::{Pause, Resume, RunRecord, TriggerRecord, Version};
use jiff::Timestamp;
use uuid::Uuid;

use super::fixture::{Fixture, begin, end, first_mark, job, leader, mark, run};
use crate::support::zookeeper::shared;

fn pause(reason: &str) -> Pause {
    Pause { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()) }
}

fn request(name: &str, uuid: u128) -> TriggerRecord {
    let at = Timestamp::from_second(60).unwrap();
    TriggerRecord { v: 1, uuid: Uuid::from_u128(uuid), job: job(name), by: "alice".into(), at }
}

async fn await_requests(fixture: &mut Fixture, wanted: impl Fn(&OperatorRequests) -> bool) -> OperatorRequests {
    fixture
        .ledger("requests", |event| match event {
            Event::OperatorRequests(requests) if wanted(requests) => Some(requests.clone()),
            _ => None,
        })
        .await
}

/// The leader, and a follower that takes the requests.
async fn two(connect: &str) -> (Fixture, cronkeeper::term::Term, cronkeeper::term::SessionId, Fixture) {
    let (leader, term, session) = leader(connect).await;
    let mut follower = Fixture::start(connect, "b");
    follower.ask(Request::Campaign);
    follower.following(Some("a")).await;
    (leader, term, session, follower)
}

#[tokio::test]
async fn a_begin_in_flight_fails_on_a_pause_and_the_job_is_read_with_it() {
    let connect = shared();
    let (mut leader, term, session, follower) = two(&connect).await;
    leader.commit(first_mark("backup", "1")).await;
    follower.operator().pause(job("backup"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    let run = run("backup", 60, "a", &session, term.token);
    assert_eq!(leader.commit(begin(0, &run)).await, Commit::Superseded);
    leader.ask_ledger(cronkeeper::ledger::Request::ReadJob(job("backup")));
    let (entry, control) = leader
        .ledger("the job", |event| match event {
            Event::Job(_, entry, control) => Some((entry.clone(), control.clone())),
            _ => None,
        })
        .await;
    let (entry, control) = (entry.unwrap(), control.unwrap());
    assert_eq!((entry.version, entry.record), (Version(1), Some(mark(0, "1"))), "the record stands as it stood");
    assert_eq!((control.version, control.record.paused), (Version(0), pause("disks")));
}

#[tokio::test]
async fn the_leader_is_notified_of_a_pause_and_ends_it_when_asked_to() {
    let connect = shared();
    let (mut leader, _, _, follower) = two(&connect).await;
    leader.commit(first_mark("backup", "1")).await;
    let operator = follower.operator();
    operator.pause(job("backup"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    operator.pause(job("backup"), Uuid::from_u128(2), pause("more disks")).await.unwrap();
    let requests =
        await_requests(&mut leader, |requests| requests.control.values().any(|entry| entry.version == Version(1)))
            .await;
    let control = &requests.control[&job("backup")];
    assert_eq!((control.record.id, &control.record.paused), (Uuid::from_u128(1), &pause("more disks")));

    let resume = Resume { by: "bob".into(), at: Timestamp::UNIX_EPOCH };
    let id = operator.request_resume(job("backup"), resume.clone()).await.unwrap();
    assert_eq!(id, Some(Uuid::from_u128(1)));
    await_requests(&mut leader, |requests| requests.control.values().any(|entry| entry.record.resume.is_some())).await;
    let at = Version(2);
    let lift =
        |control| Change::Resume { job: job("backup"), control, mark: Some((Some(at), mark(120, "2"))), skip: None };
    assert_eq!(leader.commit(lift(Version(1))).await, Commit::Superseded);
    leader.ask_ledger(ledger::Request::ReadJob(job("backup")));
    let done = operator.resumed(job("backup"), Uuid::from_u128(1));
    let (done, answer) = futures_util::join!(done, leader.commit(lift(Version(2))));
    assert_eq!((done, answer), (Ok(()), Commit::Accepted));
    assert_eq!(operator.request_resume(job("backup"), resume).await, Ok(None));
}

#[tokio::test]
async fn a_job_that_nobody_decided_on_can_be_paused() {
    let connect = shared();
    let (mut leader, _, _, follower) = two(&connect).await;
    follower.operator().pause(job("new"), Uuid::from_u128(1), pause("disks")).await.unwrap();
    assert_eq!(leader.commit(first_mark("new", "1")).await, Commit::Superseded);
}

#[tokio::test]
async fn a_trigger_becomes_a_run_and_its_end_is_reported_to_whoever_waits() {
    let connect = shared();
    let (mut leader, term, session, follower) = two(&connect).await;
    let operator = follower.operator();
    let id = operator.trigger(request("backup", 7)).await.unwrap();
    assert_eq!(operator.trigger(request("backup", 7)).await, Ok(id.clone()), "the same request again");
    let seq = id.trigger().unwrap();
    let requests = await_requests(&mut leader, |requests| requests.triggers.contains_key(&seq)).await;
    assert_eq!(requests.triggers.len(), 1);
    assert_eq!(requests.triggers[&seq].record, request("backup", 7));

    let trigger = Some(request("backup", 7).numbered(seq));
    let run = RunRecord { trigger, ..run("backup", 60, "a", &session, term.token) };
    assert_eq!(run.id(), id);
    assert_eq!(leader.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Accepted);
    assert_eq!(leader.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Superseded);
    assert_eq!(operator.trigger(request("backup", 7)).await, Ok(id.clone()), "it runs");
    let (followed, answer) = futures_util::join!(operator.followed(id.clone()), leader.commit(end(0, &run)));
    let Ok(Followed::Ended(record)) = followed else { panic!("{followed:?}") };
    assert_eq!((answer, record.id()), (Commit::Accepted, id.clone()));
    assert_eq!(operator.trigger(request("backup", 7)).await, Ok(id), "it has ended");
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

#[tokio::test]
async fn a_run_that_nobody_knows_of_is_gone() {
    let connect = shared();
    let (_leader, term, session, follower) = two(&connect).await;
    let run = run("backup", 60, "a", &session, term.token);
    assert_eq!(follower.operator().followed(run.id()).await, Ok(Followed::Gone));
}
