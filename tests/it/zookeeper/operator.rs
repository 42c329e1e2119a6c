//! Requests that an operator writes at one node and the leader carries out at another.

use cronkeeper_cluster::recipes::LedgerReader;
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::session::{Aside, ConnectionSettings};
use cronkeeper_core::election::Request;
use cronkeeper_core::ledger::{Change, Commit, Operator as _, OperatorError};
use cronkeeper_core::run::{Drain, Pause, Resume, RunRecord, TriggerRecord};
use cronkeeper_core::term::NodeName;
use jiff::Timestamp;
use tokio::time::{Duration, sleep};
use uuid::Uuid;

use super::fixture::{Fixture, admin, end, first_mark, job, lasting_leader, leader, run};
use crate::support::LONG;
use crate::support::proxy::{At, Proxy, opcode};
use crate::support::zookeeper::{Ensemble, shared};

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
    let admin = admin(&connect).await;
    let options = zookeeper_client::CreateMode::PersistentSequential.with_acls(zookeeper_client::Acls::anyone_all());
    let again = serde_json::to_vec(&request("backup", 7)).unwrap();
    admin.create("/cronkeeper/triggers/", &again, &options).await.unwrap();
    leader.crash();
    let (_, snapshot) = follower.elected().await;
    let triggers: Vec<_> = snapshot.requests.triggers.values().map(|entry| entry.is_in_history).collect();
    assert_eq!(triggers, [true]);
}

/// Requests over a connection that can be cut, to servers that have a cluster.
struct Line {
    _ensemble: Ensemble,
    _leader: Fixture,
    direct: String,
    proxy: Proxy,
    operator: LedgerReader<Znodes<Aside>>,
}

async fn line() -> Line {
    let ensemble = Ensemble::start(1);
    let proxy = Proxy::to(ensemble.address_of(0));
    let direct = ensemble.connect_string();
    let (leader, ..) = lasting_leader(&direct).await;
    let operator = operator_at(proxy.connect_string()).await;
    Line { _ensemble: ensemble, _leader: leader, direct, proxy, operator }
}

async fn operator_at(connect: String) -> LedgerReader<Znodes<Aside>> {
    // No session may end while a test waits for its connection.
    let settings = ConnectionSettings { connect, session_timeout: LONG, ..ConnectionSettings::default() };
    let operator = LedgerReader::new(Znodes(Aside::new(settings).expect("plain settings are good")));
    operator.pauses().await.expect("the servers serve");
    operator
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_is_answered_as_if_it_had_been_written_once() {
    let line = line().await;
    let operator = &line.operator;
    let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let resume = Resume { by: "alice".into(), at: Timestamp::UNIX_EPOCH };
    let drain = |reason: &str| Drain { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()) };
    let cut = || line.proxy.cut_at(At::ReplyTo(opcode::MULTI));

    cut();
    assert_eq!(operator.pause(job("a"), a, pause("disks")).await, Ok(None));
    cut();
    assert_eq!(operator.pause(job("a"), b, pause("more disks")).await, Ok(Some(pause("disks"))));
    cut();
    let both = operator.pause_all(vec![(job("a"), b), (job("b"), b)], pause("all")).await.expect("both are paused");
    assert_eq!(both.done, [(job("a"), Some(pause("more disks"))), (job("b"), None)].into());
    cut();
    assert_eq!(operator.request_resume(job("a"), resume.clone()).await, Ok(Some(a)));
    cut();
    let both = operator.request_resumes(vec![job("a"), job("b"), job("c")], resume).await.expect("they are asked");
    assert_eq!(both.done, [(job("a"), Some(a)), (job("b"), Some(b)), (job("c"), None)].into());
    cut();
    let run = operator.trigger(request("a", 7)).await.expect("it is requested");
    assert_eq!(operator.triggered(job("a"), Uuid::from_u128(7)).await, Ok(Some(run)));
    assert_eq!(admin(&line.direct).await.list_children("/cronkeeper/triggers").await.unwrap().len(), 1);
    cut();
    assert_eq!(operator.drain(NodeName::new("a"), drain("disks")).await, Ok(None));
    cut();
    assert_eq!(operator.drain(NodeName::new("a"), drain("more disks")).await, Ok(Some(drain("disks"))));
    assert!(line.proxy.await_cuts(8, LONG));
}

/// A client that hears that nothing was written continues as if the job would run.
#[tokio::test]
async fn a_request_without_an_answer_is_reported_as_unclear_and_one_that_was_never_sent_as_unwritten() {
    let line = line().await;
    line.proxy.cut_at(At::ReplyTo(opcode::MULTI));
    line.proxy.refuse();
    let paused = line.operator.pause(job("a"), Uuid::from_u128(1), pause("disks")).await;
    assert!(matches!(paused, Err(OperatorError::Unclear(_))), "{paused:?}");
    let is_paused = admin(&line.direct).await.check_stat("/cronkeeper/control/a").await.unwrap().is_some();
    assert!(is_paused, "the servers have it");
    let paused = line.operator.pause(job("b"), Uuid::from_u128(1), pause("disks")).await;
    assert!(matches!(paused, Err(OperatorError::Unwritten(_))), "{paused:?}");
}

#[tokio::test]
async fn what_somebody_else_has_asked_for_since_is_not_taken_back_by_another_try() {
    let line = line().await;
    let (id, other) = (Uuid::from_u128(1), operator_at(line.direct.clone()).await);
    assert_eq!(other.pause(job("a"), id, pause("disks")).await, Ok(None));
    line.proxy.cut_at(At::ReplyTo(opcode::MULTI));
    line.proxy.refuse();
    let resume = Resume { by: "alice".into(), at: Timestamp::UNIX_EPOCH };
    let since = async {
        while !line.proxy.await_cuts(1, Duration::ZERO) {
            sleep(Duration::from_millis(10)).await;
        }
        other.pause(job("a"), id, pause("bob needs it")).await.expect("it is paused again");
        line.proxy.pass();
    };
    let (asked, ()) = tokio::join!(line.operator.request_resume(job("a"), resume), since);
    assert!(matches!(asked, Err(OperatorError::Unclear(_))), "{asked:?}");
    let paused = other.pauses().await.expect("the servers serve").remove(&job("a")).expect("it is paused").record;
    assert_eq!((paused.paused.reason.as_deref(), paused.resume), (Some("bob needs it"), None));
}
