//! Tests of the archive: what comes back, what is dropped or deleted, and what a damaged file does.

mod copying;

use std::os::unix::fs::PermissionsExt as _;

use jiff::Timestamp;
use proptest::prelude::*;
use rusqlite::Connection;
use tempfile::TempDir;

use super::store::Store;
use super::*;
use crate::test_records::{record, skip, success};
use cronkeeper_core::clock::system;
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::filter::{Ending, JobPattern, Position};
use cronkeeper_core::ledger::{Filter, Newest, Window};
use cronkeeper_core::run::{Outcome, Owner, RunEnd, RunRecord, Skip};
use cronkeeper_core::term::NodeName;

/// A run that ended this many seconds after 1970.
fn run(job: &str, second: i64, outcome: Outcome) -> HistoryRecord {
    let run = record(job, second, "s");
    let ended_at = Timestamp::from_second(second).unwrap();
    HistoryRecord::Run(RunEnd { outcome, ended_at, ..success(run) })
}

fn missed(job: &str, first: i64, count: u64) -> HistoryRecord {
    let decided_at = Timestamp::from_second(first).unwrap() + Duration::from_secs(count);
    HistoryRecord::Skip(Skip { count, decided_at, ..skip(job, first) })
}

fn own() -> NodeName {
    NodeName::new("n")
}

fn start(dir: &Path, retention: HistoryRetention) -> io::Result<Archive> {
    Archive::start(dir, own(), retention)
}

struct Fixture {
    archive: Archive,
    dir: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    /// An archive in a directory as it is: its thread looks at the file at once.
    fn at(dir: TempDir) -> Self {
        Self { archive: start(dir.path(), HistoryRetention::Unlimited).unwrap(), dir }
    }

    /// An archive whose thread has made the file already, and closed it.
    async fn idle() -> Self {
        let fixture = Self::new();
        assert_eq!(fixture.all().await, []);
        fixture
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    fn put(&self, records: impl IntoIterator<Item = HistoryRecord>) {
        records.into_iter().for_each(|record| self.archive.put(record));
    }

    async fn merged(&self, ledger: Newest, filter: Filter, window: Window) -> Merged {
        self.archive.merge(ledger, filter, window, ()).await
    }

    async fn all(&self) -> Vec<HistoryRecord> {
        let merged = self.merged(Newest::default(), Filter::default(), Window::of(10_000)).await;
        assert!(merged.error.is_none(), "{:?}", merged.error);
        merged.records
    }
}

#[tokio::test]
async fn what_was_put_comes_back_newest_first_and_after_a_restart() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.all().await, []);
    let records = [run("a", 10, Outcome::Success), run("b", 20, Outcome::Failure), missed("a", 30, 2)];
    fixture.put(records.clone());
    let newest_first: Vec<_> = records.into_iter().rev().collect();
    assert_eq!(fixture.all().await, newest_first);
    assert_eq!(std::fs::metadata(fixture.path()).unwrap().permissions().mode() & 0o777, 0o600);
    fixture.archive.close(true);
    fixture.archive = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    assert_eq!(fixture.all().await, newest_first);
}

#[tokio::test]
async fn a_growing_skip_record_stays_one_and_two_processes_share_the_file() {
    let fixture = Fixture::new();
    let other = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    fixture.put((1..5).map(|count| missed("a", 100, count)));
    other.put(run("b", 50, Outcome::Success));
    other.put(missed("a", 100, 2));
    other.close(true);
    assert_eq!(fixture.all().await, [missed("a", 100, 4), run("b", 50, Outcome::Success)]);
}

#[tokio::test]
async fn records_of_the_ledger_are_not_shown_twice() {
    let fixture = Fixture::new();
    let runs: Vec<_> = (0..40).map(|second| run("a", second, Outcome::Success)).collect();
    fixture.put(runs.clone());
    let ledger = Newest { records: runs[20..].iter().rev().cloned().collect(), ..Newest::default() };
    let merged = fixture.merged(ledger.clone(), Filter::default(), Window::of(100)).await;
    assert_eq!(merged.records, runs.iter().rev().cloned().collect::<Vec<_>>());
    assert!(merged.has_archived);
    let newest = fixture.merged(ledger, Filter::default(), Window::of(20)).await;
    assert!(!newest.has_archived && newest.records.len() == 20);
}

#[tokio::test]
async fn below_a_cut_ledger_nothing_is_shown() {
    let fixture = Fixture::new();
    fixture.put((0..40).map(|second| run("a", second, Outcome::Success)));
    let ledger = Newest { records: vec![run("b", 30, Outcome::Success)], is_cut: true, unreadable: 0 };
    let merged = fixture.merged(ledger, Filter::default(), Window::of(100)).await;
    assert!(merged.is_cut);
    assert!(merged.records.iter().all(|record| record.at().as_second() >= 30), "{merged:?}");
}

#[tokio::test]
async fn a_damaged_file_is_moved_aside_and_the_archive_begins_anew() {
    let fixture = Fixture::idle().await;
    std::fs::write(fixture.path(), "this is no database, and long enough to look like one".repeat(100)).unwrap();
    fixture.put([run("a", 10, Outcome::Success)]);
    assert_eq!(fixture.all().await, [run("a", 10, Outcome::Success)]);
    assert!(fixture.dir.path().join("archive.db.damaged").exists());
}

#[tokio::test]
async fn damage_that_a_reader_finds_is_repaired_too() {
    let fixture = Fixture::new();
    fixture.put((0..2_000).map(|second| run("a", second, Outcome::Success)));
    assert_eq!(fixture.all().await.len(), 2_000);
    let damaged = start(fixture.dir.path(), HistoryRetention::Unlimited).unwrap();
    // By then its thread has closed the file again.
    let (flushed, is_flushed) = oneshot::channel();
    damaged.0.as_ref().unwrap().items.try_send(Item::Flush(flushed)).unwrap();
    is_flushed.await.unwrap();
    fixture.archive.close(true);
    damage(&fixture.path());
    let merged = damaged.merge(Newest::default(), Filter::default(), Window::of(10_000), ()).await;
    assert!(merged.error.as_ref().is_some_and(store::ArchiveError::is_damage), "{merged:?}");
    damaged.put(run("a", 10, Outcome::Success));
    let merged = damaged.merge(Newest::default(), Filter::default(), Window::of(10_000), ()).await;
    assert_eq!((merged.records.len(), merged.error.is_none()), (1, true));
}

/// Overwrites all but the first pages, which have the schema.
fn damage(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let pages = 4 * 4_096;
    bytes[pages..].fill(0xa5);
    std::fs::write(path, bytes).unwrap();
}

#[tokio::test]
async fn an_archive_of_another_version_is_moved_aside() {
    let fixture = Fixture::idle().await;
    let db = Connection::open(fixture.path()).unwrap();
    db.pragma_update(None, "user_version", 77).unwrap();
    drop(db);
    fixture.put([run("a", 10, Outcome::Success)]);
    assert_eq!(fixture.all().await.len(), 1);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_harms_no_other() {
    let fixture = Fixture::new();
    fixture.put([run("a", 10, Outcome::Success), run("a", 11, Outcome::Success)]);
    assert_eq!(fixture.all().await.len(), 2);
    let db = Connection::open(fixture.path()).unwrap();
    db.execute("UPDATE records SET record = '{\"kind\":\"walk\"}' WHERE at = 10000000", []).unwrap();
    db.execute("UPDATE records SET job = x'ff00' WHERE at = 10000000", []).unwrap();
    assert_eq!(fixture.all().await, [run("a", 11, Outcome::Success)]);
}

#[tokio::test]
async fn a_link_in_place_of_the_file_is_not_followed() {
    let fixture = Fixture::idle().await;
    std::fs::remove_file(fixture.path()).unwrap();
    let elsewhere = fixture.dir.path().join("elsewhere");
    std::fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, fixture.path()).unwrap();
    fixture.put([run("a", 10, Outcome::Success)]);
    let merged = fixture.merged(Newest::default(), Filter::default(), Window::of(10)).await;
    assert!(merged.error.is_some() && merged.records.is_empty(), "{merged:?}");
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"");
}

#[test]
fn a_full_queue_drops_and_counts_without_waiting() {
    let (items, received) = mpsc::sync_channel(2);
    let archive = Archive::sending("/nowhere".into(), items, Arc::default());
    (0..5).for_each(|second| archive.put(run("a", second, Outcome::Success)));
    let shared = archive.0.as_ref().unwrap();
    assert_eq!(shared.losses.lock().unwrap().count, 3);
    assert!(!shared.doubt.is_none(), "the ledger has them");
    assert_eq!(received.try_iter().count(), 2);
    let begun = Instant::now();
    archive.put(run("a", 9, Outcome::Success));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn of_two_processes_that_find_the_file_damaged_the_second_leaves_the_new_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(NAME);
    std::fs::write(&path, "this is no database, and long enough to look like one".repeat(100)).unwrap();
    let mut second = Writer::new(path.clone(), own(), Arc::default(), Limits { after: None, most_bytes: MOST_BYTES });
    let seen = store::identity(&path);
    let Err(damage) = Store::open(&path) else { panic!("it is damaged") };
    let fixture = Fixture::at(dir);
    fixture.put([run("a", 10, Outcome::Success)]);
    assert_eq!(fixture.all().await.len(), 1);
    second.begin_anew(&damage, seen).unwrap();
    assert_eq!(fixture.all().await, [run("a", 10, Outcome::Success)]);
}

#[tokio::test]
async fn what_is_too_old_goes_although_nothing_is_written() {
    let fixture = Fixture::new();
    let now = system::now().wall.as_second();
    fixture.put((0..3_000).chain([now]).map(|second| run("a", second, Outcome::Success)));
    await_count(&fixture.archive, 3_001).await;
    fixture.archive.close(true);
    let retention = HistoryRetention::For(Duration::from_secs(86_400));
    await_count(&start(fixture.dir.path(), retention).unwrap(), 1).await;
}

#[tokio::test]
async fn without_an_archive_the_old_one_is_removed() {
    let fixture = Fixture::idle().await;
    std::fs::write(fixture.path(), "this is no database, and long enough to look like one".repeat(100)).unwrap();
    fixture.put([run("a", 10, Outcome::Success)]);
    assert_eq!(fixture.all().await.len(), 1);
    let dir = fixture.dir.path();
    start(dir, HistoryRetention::None).unwrap();
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    // Another process of the host, which keeps one, continues with a new file.
    fixture.put([run("a", 20, Outcome::Success)]);
    assert_eq!(fixture.all().await, [run("a", 20, Outcome::Success)]);
}

#[test]
fn an_archive_that_is_off_takes_everything_and_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let archive = start(dir.path(), HistoryRetention::None).unwrap();
    archive.put(run("a", 1, Outcome::Success));
    archive.close(true);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn old_records_are_deleted_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(&dir.path().join(NAME)).unwrap();
    let records: Vec<_> = (0..50).map(|second| run("a", second, Outcome::Success)).collect();
    store.write(&records, None).unwrap();
    assert_eq!(store.delete_before(30_000_000, 20).unwrap(), 20);
    assert_eq!(store.delete_before(30_000_000, 20).unwrap(), 10);
    assert_eq!(store.delete_before(30_000_000, 20).unwrap(), 0);
    assert_eq!(store.delete_oldest(5).unwrap(), 5);
    let oldest: i64 = store.db.query_row("SELECT min(at) FROM records", [], |row| row.get(0)).unwrap();
    assert_eq!(oldest, 35_000_000);
}

#[tokio::test]
async fn records_older_than_the_retention_go_and_younger_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let archive = start(dir.path(), HistoryRetention::For(Duration::from_secs(86_400))).unwrap();
    let now = system::now().wall.as_second();
    (0..2_500).for_each(|second| archive.put(run("a", second, Outcome::Success)));
    archive.put(run("a", now, Outcome::Success));
    await_count(&archive, 1).await;
}

#[tokio::test]
async fn the_oldest_records_go_when_the_file_is_too_large() {
    let dir = tempfile::tempdir().unwrap();
    let archive = Archive::start_with(dir.path(), own(), HistoryRetention::Unlimited, 1 << 20).unwrap();
    for second in 0..3_000 {
        archive.put(run("a", second, Outcome::Success));
    }
    let newest_alone_stay = async {
        loop {
            let merged = archive.merge(Newest::default(), Filter::default(), Window::of(5_000), ()).await;
            let has_newest = merged.records.first().is_some_and(|newest| newest.at().as_second() == 2_999);
            if has_newest && merged.records.len() < 3_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), newest_alone_stay).await.unwrap();
}

async fn await_count(archive: &Archive, count: usize) {
    let counted = async {
        while archive.merge(Newest::default(), Filter::default(), Window::of(10_000), ()).await.records.len() != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.unwrap();
}

fn any_record() -> impl Strategy<Value = HistoryRecord> {
    let (jobs, nodes) = (prop::sample::select(vec!["a", "b", "b2"]), prop::sample::select(vec!["n", "m"]));
    let endings = prop::sample::select(Ending::ALL.to_vec());
    let on = prop::option::of(prop::sample::select(vec!["n", "m"]).prop_map(NodeName::new));
    (jobs, 0..30_i64, endings, nodes, on).prop_map(|(job, second, ending, node, on)| match ending {
        Ending::Skipped => HistoryRecord::Skip(Skip { node: NodeName::new(node), on, ..skip(job, second) }),
        Ending::Run(outcome) => {
            let owner = Owner { node: NodeName::new(node), ..record(job, second, "s").owner };
            let end = success(RunRecord { owner, ..record(job, second, "s") });
            let ended_at = Timestamp::from_second(second / 2).unwrap();
            HistoryRecord::Run(RunEnd { outcome, ended_at, ..end })
        }
    })
}

fn any_filter() -> impl Strategy<Value = Filter> {
    let second = || prop::option::of((0..30_i64).prop_map(|second| Timestamp::from_second(second).unwrap()));
    let job = prop::option::of(prop::sample::select(vec!["a", "b"]).prop_map(|job| JobName::parse(job).unwrap()));
    let patterns = prop::sample::select(vec!["a", "b*", "?2", "*"]).prop_map(|text| JobPattern::parse(text).unwrap());
    let endings = prop::sample::subsequence(Ending::ALL.to_vec(), 0..3);
    let node = prop::option::of(prop::sample::select(vec!["n", "m"]).prop_map(NodeName::new));
    let before = prop::option::of(any_record().prop_map(|record| Position::of(&record)));
    (job, prop::collection::vec(patterns, 0..2), endings, node, second(), second(), before).prop_map(
        |(job, jobs, endings, node, since, until, before)| Filter { job, jobs, endings, node, since, until, before },
    )
}

/// Each record once, by its run and kind.
fn distinct(records: Vec<HistoryRecord>) -> Vec<HistoryRecord> {
    let mut seen = std::collections::HashSet::new();
    let identity = |record: &HistoryRecord| {
        let Position { run, kind, .. } = Position::of(record);
        (run, kind)
    };
    records.into_iter().filter(|record| seen.insert(identity(record))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..crate::fuzz::proptest_config() })]
    #[test]
    fn page_by_page_the_merge_shows_each_wanted_record_once_and_in_order(
        records in prop::collection::vec(any_record(), 0..60), filter in any_filter(), limit in 1_usize..8, shared in 0_usize..60
    ) {
        let records = distinct(records);
        let mut wanted: Vec<_> = records.iter().filter(|record| filter.matches(record)).cloned().collect();
        wanted.sort_by_key(|record| std::cmp::Reverse(Position::of(record)));
        // Some records are in the ledger only, some in the archive only, and some in both.
        let (ledger, archived) = (&records[..records.len() * 2 / 3], &records[shared.min(records.len() / 2)..]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let shown = runtime.block_on(async {
            let fixture = Fixture::new();
            fixture.put(archived.iter().cloned());
            let (mut shown, mut filter) = (Vec::new(), filter.clone());
            loop {
                let mut found: Vec<_> = ledger.iter().filter(|record| filter.matches(record)).cloned().collect();
                found.sort_by_key(|record| std::cmp::Reverse(Position::of(record)));
                found.truncate(limit);
                let newest = Newest { records: found, ..Newest::default() };
                let page = fixture.merged(newest, filter.clone(), Window::of(limit)).await.records;
                let Some(last) = page.last().map(Position::of) else { break shown };
                filter.before = Some(last);
                shown.extend(page);
            }
        });
        prop_assert_eq!(shown, wanted);
    }
}
