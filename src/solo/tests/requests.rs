//! Operators' requests and what the leader does with them.

use rusqlite::Connection;
use uuid::Uuid;

use super::*;
use crate::ledger::{Followed, OperatorRequests};
use crate::run::{Pause, Resume, TriggerRecord};
use crate::solo::store::Store;

fn pause(reason: &str) -> Pause {
    Pause { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: Some(reason.into()) }
}

fn request(uuid: u128) -> TriggerRecord {
    let (job, at) = (JobName::parse("j").unwrap(), Timestamp::from_second(60).unwrap());
    TriggerRecord { v: 1, uuid: Uuid::from_u128(uuid), job, by: "alice".into(), at }
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
async fn a_begin_that_a_pause_overtook_is_superseded() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    assert_eq!(a.commit(advance("j", None, 59, None)).await, Commit::Accepted);
    a.operator().pause(j(), Uuid::from_u128(1), pause("disks")).await.unwrap();
    let owner = Owner { node: a.name.clone(), session: a.session.clone() };
    let run = RunRecord { owner, ..record("j", 60, "") };
    assert_eq!(a.commit(begin(&run, Version::FIRST)).await, Commit::Superseded);
    // The pause has produced the version that the next change of the pipeline expects.
    assert_eq!(a.commit(begin(&run, Version(1))).await, Commit::Superseded);
    a.request_ledger(ledger::Request::ReadJob(j()));
    let read = a.until(|event| match event {
        Event::Ledger(ledger::Event::Job(_, entry, control)) => entry.zip(control),
        _ => None,
    });
    let (entry, control) = read.await;
    assert_eq!((entry.version, entry.record), (Version(1), Some(job_record(59))));
    assert_eq!(control.record.paused, pause("disks"));
    assert_eq!(a.commit(begin(&run, Version(1))).await, Commit::Accepted);
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
async fn a_trigger_leads_to_one_run_and_its_end_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let operator = a.operator();
    let id = operator.trigger(request(7)).await.unwrap();
    assert_eq!(operator.trigger(request(7)).await, Ok(id.clone()));
    let seq = id.trigger().unwrap();
    let requests = a.await_requests(|requests| requests.triggers.contains_key(&seq)).await;
    assert_eq!((requests.triggers.len(), requests.triggers[&seq].is_in_history), (1, false));
    let owner = Owner { node: a.name.clone(), session: a.session.clone() };
    let run = RunRecord { owner, trigger: Some(request(7).numbered(seq)), ..record("j", 60, "") };
    assert_eq!(a.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Accepted);
    assert_eq!(a.commit(Change::BeginTriggered { run: run.clone() }).await, Commit::Superseded);
    let (followed, answer) = futures_util::join!(operator.followed(id.clone()), a.commit(end(&run, 0, false)));
    let ended = Followed::Ended(Box::new(HistoryRecord::Run(success(run))));
    assert_eq!((followed, answer), (Ok(ended), Commit::Accepted));
    assert_eq!(operator.trigger(request(7)).await, Ok(id.clone()), "the uuid is known even after the run has ended");
    let other = operator.trigger(request(8)).await.unwrap();
    assert!(other.trigger() > id.trigger(), "numbers are never used again");
    assert_eq!(operator.followed(RunId::scheduled(j(), Timestamp::UNIX_EPOCH)).await, Ok(Followed::Gone));
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
