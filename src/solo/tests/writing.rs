//! Conditional writes, and trimming of the history.

use super::*;

#[tokio::test]
async fn a_change_is_accepted_only_at_the_version_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    assert_eq!(a.commit(advance("j", Some(0), 10, None)).await, Commit::Superseded);
    assert_eq!(a.read_job("j").await, None);
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Superseded);
    assert_eq!(a.read_job("j").await.unwrap().version, Version(0));
    assert_eq!(a.commit(advance("j", Some(0), 20, None)).await, Commit::Accepted);
    let entry = a.read_job("j").await.unwrap();
    assert_eq!((entry.version, entry.record), (Version(1), Some(job_record(20))));
}

#[tokio::test]
async fn a_run_begins_once_and_ends_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    assert_eq!(a.commit(begin(&run, Version::FIRST)).await, Commit::Superseded);
    a.read_job("j").await;
    assert_eq!(a.commit(begin(&run, Version(1))).await, Commit::Superseded);
    a.read_job("j").await;
    // The refused begins have not moved the mark.
    assert_eq!(a.commit(advance("j", Some(1), 61, None)).await, Commit::Accepted);
    assert_eq!(a.commit(Change::UpdateRun { at: Version(0), run: run.clone() }).await, Commit::Accepted);
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Superseded);
    assert_eq!(a.commit(end(&run, 1, false)).await, Commit::Accepted);
    assert_eq!(a.commit(end(&run, 1, false)).await, Commit::Superseded);
    assert_eq!(a.history("j").await, [HistoryRecord::Run(success(run))]);
}

#[tokio::test]
async fn changes_requested_together_apply_in_order_and_fail_as_a_chain() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let ids = [None, Some(0), Some(0), Some(1)].map(|at| a.send(advance("j", at, 10, None)));
    let mut answers = Vec::new();
    for _ in ids {
        answers.push(
            a.until(|event| match event {
                Event::Ledger(ledger::Event::Answered { answer, .. }) => Some(answer),
                _ => None,
            })
            .await,
        );
    }
    assert_eq!(answers, [Commit::Accepted, Commit::Accepted, Commit::Superseded, Commit::Superseded]);
}

#[tokio::test]
async fn a_node_that_does_not_lead_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
}

#[tokio::test]
async fn neighbouring_skips_are_stored_as_one_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    assert_eq!(a.commit(advance("j", None, 60, Some(skip("j", 60, 1, None)))).await, Commit::Accepted);
    assert_eq!(a.commit(advance("j", Some(0), 61, Some(skip("j", 60, 2, Some(0))))).await, Commit::Accepted);
    assert_eq!(a.history("j").await, [HistoryRecord::Skip(skip("j", 60, 2, None).skip)]);
}

#[tokio::test]
async fn existing_or_trimmed_records_of_the_history_do_not_prevent_writes() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let run = a.begin("j", 60).await;
    Connection::open(dir.path().join("ledger.db"))
        .unwrap()
        .execute("INSERT INTO history VALUES (?1, 'j', 'run', 0, 7, '{}')", [run.id().to_string()])
        .unwrap();
    assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted);
    assert_eq!(a.history("j").await, [HistoryRecord::Run(success(run))]);
    assert_eq!(a.commit(advance("k", None, 60, Some(skip("k", 60, 1, None)))).await, Commit::Accepted);
    assert_eq!(a.commit(advance("k", Some(0), 61, Some(skip("k", 60, 2, None)))).await, Commit::Accepted);
    // Also when the record at that version was trimmed meanwhile.
    assert_eq!(a.commit(advance("k", Some(1), 90, Some(skip("k", 90, 1, Some(5))))).await, Commit::Accepted);
}

#[test]
fn the_newest_twenty_runs_and_the_newest_twenty_skips_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let mut store = Store::open(&path).unwrap();
    let (token, ..) = store.open_term(&[]).unwrap();
    let mut changes = vec![advance("j", None, 0, None)];
    for n in 0..30 {
        let run = record("j", 1000 + n, "s");
        changes.push(begin(&run, Version(2 * n as i32)));
        changes.push(end(&run, 0, true));
        changes.push(advance("j", Some(2 * n as i32 + 1), 2000 + n, Some(skip("j", 2000 + n, 1, None))));
    }
    let answers = store.commit(Some(token), &mut Pipelines::default(), &changes).unwrap();
    assert!(answers.iter().all(|answer| *answer == Commit::Accepted), "{answers:?}");
    store.trim([JobName::parse("j").unwrap()].iter()).unwrap();
    let kept = read::history(&Connection::open(&path).unwrap(), None, Window::of(1000)).unwrap().records;
    let seconds = |kind: fn(&HistoryRecord) -> Option<Timestamp>| {
        kept.iter().filter_map(kind).map(Timestamp::as_second).collect::<Vec<_>>()
    };
    let runs = seconds(|record| match record {
        HistoryRecord::Run(end) if end.outcome == Outcome::Success => Some(end.run.scheduled_at),
        _ => None,
    });
    let skips = seconds(|record| match record {
        HistoryRecord::Skip(skip) => Some(skip.first),
        HistoryRecord::Run(_) => None,
    });
    assert_eq!(runs, (1010..1030).rev().collect::<Vec<_>>());
    assert_eq!(skips, (2010..2030).rev().collect::<Vec<_>>());
}
