//! Conditional writes, and trimming of the history.

use rusqlite::params;

use super::*;
use cronkeeper_core::election::Defined;
use cronkeeper_core::ledger::Filter;
use cronkeeper_core::run::RunEnd;

#[tokio::test]
async fn a_node_that_does_not_lead_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    assert_eq!(a.commit(advance("j", None, 10, None)).await, Commit::Fenced);
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
    assert!(answers.iter().all(|(answer, _)| *answer == Commit::Accepted), "{answers:?}");
    let left = store.trim([(JobName::parse("j").unwrap(), 20)].into_iter()).unwrap();
    assert_eq!(left, []);
    let kept = read::history(&Connection::open(&path).unwrap(), &Filter::default(), Window::of(1000)).unwrap().records;
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

#[tokio::test]
async fn what_an_earlier_version_has_written_to_the_history_says_how_runs_ended_last() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("ledger.db");
    drop(Store::open(&ledger).unwrap());
    let db = Connection::open(&ledger).unwrap();
    db.execute_batch("DROP TABLE last").unwrap();
    // The run that was due first has ended, and was written, last.
    for (second, took, outcome) in [(120, 0, Outcome::Success), (180, 0, Outcome::Killed), (60, 600, Outcome::Failure)]
    {
        let end = success(record("j", second, "s"));
        let end = RunEnd { outcome, ended_at: end.ended_at + Duration::from_secs(took), ..end };
        let text = serde_json::to_string(&HistoryRecord::Run(end.clone())).unwrap();
        let sql = "INSERT INTO history VALUES (?1, 'j', 'run', ?2, 0, ?3)";
        db.execute(sql, params![end.run.id().to_string(), end.ended_at.as_microsecond(), text]).unwrap();
    }
    db.execute("INSERT INTO history VALUES ('j.x', 'j', 'run', 0, 0, '{')", []).unwrap();
    drop(Store::open(&ledger).unwrap());
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let j = JobName::parse("j").unwrap();
    let last = a.solo.coordination.reader.lasts().await.unwrap().remove(&j).unwrap();
    assert_eq!((last.end.outcome, last.written.before), (Outcome::Failure, Some(Outcome::Killed)));
    assert_eq!(last.success, Some(success(record("j", 120, "s")).ended_at));
}

#[tokio::test]
async fn no_row_of_last_that_cannot_be_read_holds_up_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    for (job, what) in [("j", "'{'"), ("k", "x'ff00'"), ("l", "7")] {
        let run = a.begin(job, 60).await;
        db.execute(&format!("INSERT INTO last VALUES ('{job}', {what})"), []).unwrap();
        assert!(!a.solo.coordination.reader.lasts().await.unwrap().contains_key(&run.job), "it says nothing");
        assert_eq!(a.commit(end(&run, 0, false)).await, Commit::Accepted, "{job}");
    }
    let lasts = a.solo.coordination.reader.lasts().await.unwrap();
    assert_eq!(lasts.values().map(|last| last.end.outcome).collect::<Vec<_>>(), [Outcome::Success; 3]);
}

#[tokio::test]
async fn a_lowered_limit_trims_a_job_that_does_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut a = Node::start(dir.path(), "a").await;
    a.lead().await;
    let limit = |limit| {
        let history_limits = [(JobName::parse("j").unwrap(), limit)].into();
        election::Request::Define(Arc::new(Defined { history_limits, ..Defined::default() }))
    };
    a.request(limit(1_000));
    assert_eq!(a.commit(advance("j", None, 0, None)).await, Commit::Accepted);
    let db = Connection::open(dir.path().join("ledger.db")).unwrap();
    for n in 0..700 {
        let record = serde_json::to_string(&HistoryRecord::Run(success(record("j", n, "s")))).unwrap();
        let run = format!("j.{n}");
        db.execute("INSERT INTO history VALUES (?1, 'j', 'run', ?2, 0, ?3)", params![run, n, record]).unwrap();
    }
    a.request(limit(5));
    let count = || db.query_row("SELECT count(*) FROM history", [], |row| row.get::<_, i64>(0)).unwrap();
    while count() > 5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(count(), 5);
}
