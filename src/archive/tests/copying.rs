//! Tests of what is copied from the ledger: what a killed process or a lost answer left there.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::*;
use cronkeeper_core::coordination::{ReadError, ReadFuture, Reader};
use cronkeeper_core::election::{Defined, Queue};
use cronkeeper_core::job::JobSet;
use cronkeeper_core::ledger::{Gathering, Last, Snapshot};
use cronkeeper_core::run::RunId;

/// A ledger that has some records, at first cannot be read, and lost what is older than this.
#[derive(Default)]
struct Ledger {
    records: Vec<HistoryRecord>,
    failures: AtomicUsize,
    complete_since: Option<Timestamp>,
}

fn never<T>() -> ReadFuture<'static, T> {
    Box::pin(async { Err(ReadError("nobody asks for it".to_owned())) })
}

impl Reader for Ledger {
    fn queue(&self) -> ReadFuture<'_, Queue> {
        never()
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        never()
    }

    fn record(&self, _: RunId) -> ReadFuture<'_, Option<HistoryRecord>> {
        never()
    }

    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest> {
        Box::pin(async move {
            let failed = self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if failed.is_ok() {
                return Err(ReadError("away".to_owned()));
            }
            let mut gathering = Gathering::new(window);
            gathering.extend(self.records.iter().filter(|record| filter.matches(record)).map(|it| (it.clone(), 100)));
            Ok(gathering.newest())
        })
    }

    fn history_since(
        &self,
        filter: Filter,
        window: Window,
        _: Arc<Defined>,
    ) -> ReadFuture<'_, (Newest, Option<Timestamp>)> {
        Box::pin(async move { Ok((self.history(filter, window).await?, self.complete_since)) })
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>> {
        never()
    }
}

fn of(node: &str, record: HistoryRecord) -> HistoryRecord {
    match record {
        HistoryRecord::Run(mut end) => {
            end.run.owner.node = NodeName::new(node);
            HistoryRecord::Run(end)
        }
        HistoryRecord::Skip(skip) => HistoryRecord::Skip(Skip { node: NodeName::new(node), ..skip }),
    }
}

fn unseen(record: HistoryRecord) -> HistoryRecord {
    match record {
        HistoryRecord::Run(end) => HistoryRecord::Run(RunEnd { duration_ms: None, ..end }),
        HistoryRecord::Skip(_) => record,
    }
}

impl Archive {
    /// Copies until there is no doubt any more.
    async fn copy_from(&self, ledger: Ledger) {
        let (_jobs, jobs) = watch::channel(Arc::new(JobSet::default()));
        let copying = tokio::spawn(self.clone().keep_complete(own(), Arc::new(ledger), jobs));
        let shared = self.0.as_ref().unwrap();
        let mut doubt = shared.doubt.watch();
        tokio::time::timeout(Duration::from_secs(60), doubt.wait_for(Option::is_none)).await.unwrap().unwrap();
        copying.abort();
    }

    fn has_doubt(&self) -> bool {
        !self.0.as_ref().unwrap().doubt.is_none()
    }
}

#[tokio::test]
async fn what_a_killed_process_did_not_write_is_copied_at_the_next_start() {
    let mut fixture = Fixture::new();
    let base = system::now().wall.as_second() - 60;
    let kept = of("n", run("a", base, Outcome::Success));
    fixture.put([kept.clone()]);
    assert_eq!(fixture.all().await.len(), 1);
    // It is dropped as by a kill: nobody closes it.
    fixture.archive = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    let mine = [of("n", run("a", base + 1, Outcome::Failure)), of("n", missed("b", base + 2, 3))];
    let settled = of("other", unseen(run("a", base + 3, Outcome::Interrupted)));
    let others = [of("other", run("a", base + 4, Outcome::Success)), of("other", missed("c", base + 2, 3))];
    let older = of("n", run("a", base - 3_600, Outcome::Success));
    let records = [kept.clone(), older].into_iter().chain(mine.clone()).chain([settled.clone()]).chain(others);
    assert_eq!(fixture.all().await.len(), 1);
    assert!(fixture.archive.has_doubt());
    fixture.archive.copy_from(Ledger { records: records.collect(), failures: 1.into(), ..Ledger::default() }).await;
    let [failed, missed] = mine;
    assert_eq!(fixture.all().await, [missed, settled, failed, kept], "its own, and what it may have settled");
    fixture.archive.close(true);
    fixture.archive = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    assert_eq!(fixture.all().await.len(), 4);
    assert!(!fixture.archive.has_doubt(), "the process before ended in order");
}

#[tokio::test]
async fn a_process_that_ends_with_a_doubt_leaves_it_to_the_next() {
    for (has_left, has_doubt) in [(true, true), (false, false), (true, false)] {
        let fixture = Fixture::new();
        assert_eq!(fixture.all().await, []);
        assert!(!fixture.archive.has_doubt(), "a new file");
        if has_doubt {
            fixture.archive.doubt(system::now().wall);
        }
        fixture.archive.close(has_left);
        let next = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
        let read = next.merge(Newest::default(), Filter::default(), Window::of(1), ()).await;
        assert_eq!(read.records, []);
        assert_eq!(next.has_doubt(), has_doubt || !has_left);
    }
}

#[tokio::test]
async fn a_long_ledger_is_read_to_its_end_and_nothing_is_written_twice() {
    let fixture = Fixture::new();
    let records: Vec<_> = (0..12_000).map(|second| of("n", run("a", second, Outcome::Success))).collect();
    fixture.put(records[..3_000].to_vec());
    fixture.archive.doubt(Timestamp::UNIX_EPOCH);
    fixture.archive.copy_from(Ledger { records, ..Ledger::default() }).await;
    let db = Connection::open(fixture.path()).unwrap();
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let counts = ["SELECT count(*) FROM records", "SELECT count(DISTINCT run) FROM records"].map(count);
    assert_eq!(counts, [12_000, 12_000]);
}

#[tokio::test]
async fn a_killed_process_that_had_written_nothing_looks_for_what_is_newer_than_its_note() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.all().await, []);
    fixture.archive = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    assert_eq!(fixture.all().await, []);
    let now = system::now().wall.as_second();
    let [old, new] = [now - 3_600, now].map(|second| of("n", run("a", second, Outcome::Success)));
    fixture.archive.copy_from(Ledger { records: vec![old, new.clone()], ..Ledger::default() }).await;
    assert_eq!(fixture.all().await, [new]);
}
