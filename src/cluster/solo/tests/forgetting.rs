//! Removal of the records of jobs that no member's files define any more.

use std::collections::BTreeSet;

use super::*;
use cronkeeper_core::election::{Defined, Published};
use cronkeeper_core::run::RunEnd;

const DAY: Duration = Duration::from_secs(86_400);

struct Fixture {
    store: Store,
    token: FencingToken,
    now: Timestamp,
    _dir: tempfile::TempDir,
}

impl Fixture {
    /// Opens a term in which the jobs `kept` and `old` have ended three runs each.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("ledger.db")).unwrap();
        let (token, ..) = store.open_term(&[]).unwrap();
        let mut fixture = Self { store, token, now: Timestamp::UNIX_EPOCH + DAY * 100, _dir: dir };
        for job in ["kept", "old"] {
            fixture.commit(advance(job, None, 0, None));
            for (at, second) in (1..4).enumerate() {
                let run = record(job, second, "s");
                fixture.commit(begin(&run, Version(i32::try_from(at).unwrap())));
                fixture.commit(end(&run, 0, false));
            }
        }
        fixture
    }

    fn commit(&mut self, change: Change) {
        let answers = self.store.commit(Some(self.token), &mut Pipelines::default(), [&change]).unwrap();
        assert!(matches!(answers[..], [(Commit::Accepted, _)]), "{answers:?}");
    }

    fn forget(&mut self, defined: &[&str]) -> Vec<(String, usize)> {
        let defined: BTreeSet<JobName> = defined.iter().map(|name| JobName::parse(name).unwrap()).collect();
        let forgotten = self.store.forget(self.token, &defined, self.now, DAY * 30).unwrap();
        forgotten.into_iter().map(|(job, records)| (job.to_string(), records)).collect()
    }

    fn has(&self, job: &str) -> bool {
        self.store.job(&JobName::parse(job).unwrap()).unwrap().is_some()
    }
}

#[test]
fn a_job_that_is_gone_is_forgotten_after_the_configured_time_and_not_before() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.forget(&["kept"]), [], "the time counts from when it was first found gone");
    fixture.now += DAY * 29;
    assert_eq!(fixture.forget(&["kept"]), []);
    fixture.now += DAY;
    assert_eq!(fixture.forget(&["kept"]), [("old".to_owned(), 3)]);
    assert!(fixture.has("kept") && !fixture.has("old"));
    let old = fixture.store.last_success(&JobName::parse("old").unwrap()).unwrap();
    assert_eq!(old, LastSuccess::Never, "a new job of that name has never run");
    fixture.now += DAY * 100;
    assert_eq!(fixture.forget(&["kept"]), []);
}

#[test]
fn the_time_starts_again_for_a_job_that_came_back() {
    let mut fixture = Fixture::new();
    fixture.forget(&["kept"]);
    fixture.now += DAY * 20;
    fixture.forget(&["kept", "old"]);
    fixture.now += DAY * 20;
    assert_eq!(fixture.forget(&["kept"]), []);
    fixture.now += DAY * 30;
    assert_eq!(fixture.forget(&["kept"]).len(), 1);
}

#[test]
fn a_job_with_a_run_in_flight_or_later_history_is_kept() {
    let mut fixture = Fixture::new();
    fixture.forget(&["kept"]);
    fixture.now += DAY * 30;
    let run = record("old", 10, "s");
    fixture.commit(begin(&run, Version(3)));
    assert_eq!(fixture.forget(&["kept"]), []);
    let ended = RunEnd { ended_at: fixture.now, ..success(run) };
    fixture.commit(Change::End { at: Version(0), end: ended, as_leader: false });
    fixture.now += DAY * 29;
    assert_eq!(fixture.forget(&["kept"]), []);
    fixture.now += DAY * 2;
    assert_eq!(fixture.forget(&["kept"]), [("old".to_owned(), 4)]);
}

#[test]
fn a_leader_of_another_term_forgets_nothing() {
    let mut fixture = Fixture::new();
    fixture.forget(&["kept"]);
    fixture.now += DAY * 40;
    fixture.store.open_term(&[]).unwrap();
    assert_eq!(fixture.forget(&["kept"]), []);
    assert!(fixture.has("old"));
}

fn publish(node: &Node, jobs: &[&str]) {
    let digest = Digest::of(jobs.concat().as_bytes());
    let names = jobs.iter().map(|name| JobName::parse(name).unwrap()).collect();
    node.request(election::Request::Define(Arc::new(Defined {
        digest: digest.clone(),
        jobs: names,
        ..Defined::default()
    })));
    node.request(election::Request::Publish(Published { digest, ..Published::default() }));
}

#[tokio::test]
async fn only_jobs_that_no_member_defines_are_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let after = Some(Duration::from_secs(1));
    let mut a = Node::start_forgetting(dir.path(), "a", Arc::new(|_| Ok(BTreeSet::new())), after).await;
    let b = Node::start_forgetting(dir.path(), "b", Arc::new(|_| Ok(BTreeSet::new())), after).await;
    a.lead().await;
    for job in ["old", "other"] {
        assert_eq!(a.commit(advance(job, None, 10, None)).await, Commit::Accepted);
    }
    publish(&b, &["other"]);
    publish(&a, &["other"]);
    let forgotten = a.until(|event| match event {
        Event::Ledger(ledger::Event::Forgotten { job, records }) => Some((job.to_string(), records)),
        _ => None,
    });
    assert_eq!(forgotten.await, ("old".to_owned(), 0));
    assert!(a.read_job("old").await.is_none() && a.read_job("other").await.is_some());
}
