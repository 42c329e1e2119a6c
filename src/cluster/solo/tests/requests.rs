//! Operators' requests and what the leader does with them.

use rusqlite::Connection;
use uuid::Uuid;

use super::*;
use crate::solo::store::Store;
use cronkeeper_core::ledger::OperatorRequests;
use cronkeeper_core::run::{Pause, Resume, TriggerRecord};

fn pause(reason: &str) -> Pause {
    Pause { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()), until: None }
}

fn request(uuid: u128) -> TriggerRecord {
    let (job, at) = (JobName::parse("j").unwrap(), Timestamp::from_second(60).unwrap());
    TriggerRecord::new(Uuid::from_u128(uuid), job, "alice".into(), at)
}

impl Node {
    async fn await_requests(&mut self, wanted: impl Fn(&OperatorRequests) -> bool) -> OperatorRequests {
        self.until(|event| match event {
            Event::Ledger(ledger::Event::OperatorRequests(requests)) if wanted(&requests) => Some(requests),
            _ => None,
        })
        .await
    }

    fn operator(&self) -> Arc<dyn ledger::Operator> {
        self.solo.coordination.operator.clone()
    }
}

fn j() -> JobName {
    JobName::parse("j").unwrap()
}

#[tokio::test]
async fn the_leader_receives_a_pause_and_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let operator = a.operator();
    operator.pause(j(), Uuid::from_u128(1), pause("disks")).await.unwrap();
    a.await_requests(|requests| requests.control.contains_key(&j())).await;
    let resume = Resume { by: "bob".into(), at: Timestamp::UNIX_EPOCH };
    let id = operator.request_resume(j(), resume.clone()).await.unwrap();
    assert_eq!(id, Some(Uuid::from_u128(1)));
    a.await_requests(|requests| requests.control.values().any(|entry| entry.record.resume.is_some())).await;
    let lift = |control| {
        let skip = Some(skip("j", 60, 1, None));
        Change::Resume { job: j(), control: Version(control), mark: Some((Some(Version(0)), job_record(60))), skip }
    };
    assert_eq!(a.commit(lift(0)).await, Commit::Superseded);
    a.request_ledger(ledger::Request::ReadJob(j()));
    assert_eq!(a.history("j").await.len(), 0, "a refused change writes nothing");
    let (done, answer) = futures_util::join!(operator.resumed(j(), Uuid::from_u128(1)), a.commit(lift(1)));
    assert_eq!((done, answer), (Ok(()), Commit::Accepted));
    assert_eq!(a.history("j").await.len(), 1);
    assert_eq!(operator.request_resume(j(), resume).await, Ok(None));
}

#[tokio::test]
async fn a_skipped_trigger_leaves_a_record_by_which_the_next_leader_knows_the_uuid() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let id = a.operator().trigger(request(7)).await.unwrap();
    let seq = id.trigger().unwrap();
    let mut skip = skip("j", 60, 1, None).skip;
    skip.trigger = Some(request(7).numbered(seq));
    let drop_trigger = Change::DropTrigger { job: j(), seq, skip: Some(skip), links: Vec::new() };
    assert_eq!(a.commit(drop_trigger.clone()).await, Commit::Accepted);
    assert_eq!(a.commit(drop_trigger).await, Commit::Superseded);
    assert_eq!(a.history("j").await.iter().map(HistoryRecord::id).collect::<Vec<_>>(), [id]);
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    let again = serde_json::to_string(&request(7)).unwrap();
    db.execute("INSERT INTO triggers (record) VALUES (?1)", [again]).unwrap();
    drop(a);
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    let known: Vec<_> = snapshot.requests.triggers.values().map(|entry| entry.is_in_history).collect();
    assert_eq!(known, [true]);
}

#[test]
fn a_ledger_of_the_first_version_is_upgraded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    drop(Store::open(&path).unwrap());
    let db = Connection::open(&path).unwrap();
    db.execute_batch("DROP TABLE control; DROP TABLE triggers; PRAGMA user_version = 1;").unwrap();
    drop(db);
    assert_eq!(Store::open(&path).unwrap().requests().unwrap(), OperatorRequests::default());
}
