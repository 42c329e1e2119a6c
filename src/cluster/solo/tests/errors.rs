//! Full disks, and damaged or removed files.

use super::*;
use cronkeeper_core::ledger::OperatorRequests;

#[tokio::test]
async fn a_damaged_record_is_reported_and_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let good = a.begin_recorded("good", 60).await;
    a.begin("bad", 60).await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute("UPDATE running SET record = '{' WHERE run LIKE 'bad%'", []).unwrap();
    drop(a);
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.running.iter().map(|run| run.record.clone()).collect::<Vec<_>>(), [good]);
    assert_eq!(snapshot.damaged.len(), 1);
    assert!(snapshot.damaged[0].starts_with("running/bad.19700101T000100Z"), "{:?}", snapshot.damaged);
}

#[tokio::test]
async fn of_a_job_whose_record_is_damaged_the_newest_decided_occurrence_is_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.begin_recorded("fine", 60).await;
    let run = a.begin_recorded("bad", 60).await;
    a.commit(end(&run, 1, true)).await;
    Connection::open(dir.path().join("ledger.db"))
        .unwrap()
        .execute("UPDATE jobs SET record = '{' WHERE job = 'bad'", [])
        .unwrap();
    drop(a);
    let mut b = Node::start(dir.path(), "b").await;
    let (_, snapshot) = b.lead().await;
    assert_eq!(snapshot.decided, [(run.job.clone(), run.scheduled_at)].into());
}

#[test]
fn a_file_that_is_not_a_ledger_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    std::fs::write(&path, "this is not a database, but long enough to be read as one".repeat(40)).unwrap();
    let refused = Store::open(&path).unwrap_err();
    assert!(refused.is_lasting() && refused.to_string().contains("not a database"), "{refused}");
}

#[test]
fn a_ledger_of_a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    drop(Store::open(&path).unwrap());
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 3).unwrap();
    let refused = Store::open(&path).unwrap_err();
    assert!(matches!(refused, StoreError::Format { found: 3, known: 2 }));
}

#[test]
fn a_ledger_is_opened_while_another_process_is_stopped_in_the_middle_of_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    drop(Store::open(&path).unwrap());
    let stopped = Connection::open(&path).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE; UPDATE term SET token = 7").unwrap();
    assert_eq!(Store::open(&path).unwrap().requests().unwrap(), OperatorRequests::default());
}

#[test]
fn a_group_of_changes_is_written_as_a_whole_or_not_at_all_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(&dir.path().join("ledger.db")).unwrap();
    let (token, ..) = store.open_term(&[]).unwrap();
    let changes: Vec<_> = (0..2000).map(|n| advance(&format!("j{n}"), None, 10, None)).collect();
    store.limit_pages(Some(20));
    let full = store.commit(Some(token), &mut Pipelines::default(), &changes).unwrap_err();
    assert!(!full.is_lasting() && full.to_string().contains("full"), "{full}");
    assert_eq!(store.job(&JobName::parse("j0").unwrap()).unwrap(), None);
    store.limit_pages(None);
    let answers = store.commit(Some(token), &mut Pipelines::default(), &changes).unwrap();
    assert!(answers.iter().all(|(answer, _)| *answer == Commit::Accepted));
}

#[tokio::test]
async fn a_commit_that_cannot_be_written_yet_is_answered_once_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    // Another connection holds the write lock for longer than the backend waits for it.
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sent = a.send(advance("j", None, 10, None));
    a.until(|event| match event {
        Event::Election(election::Event::Suspended { .. }) => Some(()),
        Event::Ledger(ledger::Event::Answered { .. }) => panic!("answered without being written"),
        _ => None,
    })
    .await;
    db.execute_batch("ROLLBACK").unwrap();
    let answer = a.until(|event| match event {
        Event::Ledger(ledger::Event::Answered { id, answer, .. }) if id == sent => Some(answer),
        _ => None,
    });
    assert_eq!(answer.await, Commit::Accepted);
    a.until(|event| matches!(event, Event::Election(election::Event::Resumed { .. })).then_some(())).await;
}

#[tokio::test]
async fn an_unusable_ledger_ends_the_term_and_fails_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    Connection::open(dir.path().join("ledger.db")).unwrap().execute_batch("DROP TABLE jobs").unwrap();
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Unknown);
    a.until(|event| matches!(event, Event::Election(election::Event::Over { .. })).then_some(())).await;
    let failure = a.until(|event| match event {
        Event::Election(election::Event::Failed(failure)) => Some(failure),
        _ => None,
    });
    assert!(matches!(failure.await, Failure::StateDir(_)));
    a.send(advance("j", None, 20, None));
    a.request(election::Request::Leave);
    let after = tokio::time::timeout(LONG, a.solo.coordination.events.recv()).await.expect("the backend ends");
    assert_eq!(after, None, "after `Failed` no further event comes");
}

#[tokio::test]
async fn a_node_whose_member_files_were_removed_commits_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    std::fs::remove_dir_all(dir.path().join("members")).unwrap();
    let sent = a.send(advance("j", None, 10, None));
    // The commit has no answer if the loss was noticed before it came.
    let answer = a.until(|event| match event {
        Event::Ledger(ledger::Event::Answered { id, answer, .. }) if id == sent => Some(Some(answer)),
        Event::Election(election::Event::Failed(_)) => Some(None),
        _ => None,
    });
    assert!(matches!(answer.await, None | Some(Commit::Unknown)));
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    let jobs: i64 = db.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).unwrap();
    assert_eq!(jobs, 0);
}

#[tokio::test]
async fn a_node_whose_lock_file_is_removed_notices_before_the_next_poll() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    std::fs::remove_file(dir.path().join(format!("members/a@{}.lock", a.session))).unwrap();
    let over = a.until(|event| matches!(event, Event::Election(election::Event::Over { .. })).then_some(()));
    tokio::time::timeout(Duration::from_secs(10), over).await.expect("it does not wait for a commit or a poll");
}

#[tokio::test]
async fn reads_are_still_answered_to_a_node_that_resigns_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    a.send(advance("k", None, 10, None));
    a.until(|event| matches!(event, Event::Election(election::Event::Suspended { .. })).then_some(())).await;
    a.request_ledger(ledger::Request::ReadRun(run.id()));
    a.request(election::Request::Resign);
    a.until(|event| matches!(event, Event::Election(election::Event::Withdrawn)).then_some(())).await;
    assert_eq!(a.run_event(&run.id()).await, Some((run, Version::FIRST)));
}

#[tokio::test]
async fn a_panic_in_background_work_ends_the_backend() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    a.begin_recorded("j", 60).await;
    drop(a);
    let mut b = Node::start_with(dir.path(), "b", Arc::new(|_| panic!("a bug"))).await;
    b.request(election::Request::Campaign);
    let end = async { while b.solo.coordination.events.recv().await.is_some() {} };
    tokio::time::timeout(LONG, end).await.expect("the channel of events closes");
}
