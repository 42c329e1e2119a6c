//! Tests of removing jobs that are gone, and of leaving others alone.

use futures_util::FutureExt;

use super::*;
use crate::recipes::context::MOST_DELETES;
use crate::recipes::context::json;
use crate::recipes::tests_support::{ByHand, Right, Server};
use crate::recipes::transaction::tests::{at, mark, name};
use crate::test_records::{record, success};
use cronkeeper_core::election::Published;
use cronkeeper_core::job::Digest;
use cronkeeper_core::ledger::Last;
use cronkeeper_core::run::{HistoryRecord, TriggerRecord, TriggerSeq};
use cronkeeper_core::term::NodeName;

const CANDIDATE: &str = "/leader/_c_1-lock-0000000001";
const DAY: Duration = Duration::from_secs(86_400);

struct Fixture {
    server: Server,
    defined: Arc<Defined>,
    behind: Option<JobName>,
}

impl Fixture {
    /// A leader whose jobs file has only the job `kept`.
    fn new() -> Self {
        let server = Server::default();
        server.tree().put(CANDIDATE, "");
        let defined = Defined { digest: Digest::of(b"now"), jobs: [name("kept")].into(), ..Defined::default() };
        let fixture = Self { server, defined: Arc::new(defined), behind: None };
        fixture.member("host-a", b"now");
        fixture
    }

    fn member(&self, node: &str, jobs: &[u8]) {
        let published = Published { digest: Digest::of(jobs), ..Published::default() };
        let node = NodeName::new(node);
        let member = Member {
            v: 1,
            host: node.to_string(),
            node: node.clone(),
            pid: 1,
            version: "0".into(),
            started_at: at(0),
            session_timeout_ms: None,
            published,
            opened: None,
            session: None,
        };
        self.server.tree().put(&paths::member(&node), json(&member));
    }

    /// Writes a job's mark, its pause, and this many history records.
    fn put(&self, job: &str, records: i64) {
        let job = name(job);
        let mut tree = self.server.tree();
        tree.put(&paths::job(&job), json(&mark(60, "1-1")));
        tree.put(&paths::control(&job), "a pause");
        tree.put(&paths::job_history(&job), "");
        for second in 0..records {
            let end = success(record(job.as_str(), second, "0x1"));
            tree.put(&paths::last(&job), json(&Last::after(None, &end, at(second))));
            tree.put(&paths::history(&end.run.id()), json(&HistoryRecord::Run(end)));
        }
    }

    fn pass(&self, time: Duration) {
        self.server.tree().time_ms += i64::try_from(time.as_millis()).unwrap();
    }

    fn try_look(&mut self) -> Result<ForgetLook, SessionError> {
        let order = ForgetOrder {
            fence: CANDIDATE.into(),
            defined: self.defined.clone(),
            after: ForgetAfter { jobs: Some(DAY * 30), nodes: Some(DAY) },
            now_ms: self.server.tree().time_ms,
            behind: self.behind.take(),
        };
        look(self.server.context(ByHand::default()), order).now_or_never().unwrap()
    }

    fn look(&mut self) -> Vec<(String, usize)> {
        let look = self.try_look().unwrap();
        self.behind = look.behind;
        look.jobs.into_iter().map(|(job, records)| (job.to_string(), records)).collect()
    }

    /// All paths that contain a job's name.
    fn of(&self, job: &str) -> Vec<String> {
        let mut paths = self.server.tree().below(paths::ROOT);
        paths.retain(|path| path.contains(job));
        paths
    }
}

#[test]
fn a_job_that_is_gone_from_every_file_is_forgotten_after_its_time_and_not_before() {
    let mut fixture = Fixture::new();
    fixture.put("kept", 25);
    fixture.put("old", 250);
    let kept = fixture.of("kept");
    fixture.pass(DAY * 100);
    assert_eq!(fixture.look(), [], "its time counts from the note that it is gone");
    fixture.pass(DAY * 30 - Duration::from_secs(1));
    assert_eq!(fixture.look(), []);
    assert!(fixture.of("old").len() > 250);
    fixture.pass(Duration::from_secs(1));
    assert_eq!(fixture.look(), [("old".to_owned(), 250)]);
    assert_eq!((fixture.of("old"), fixture.of("kept")), (vec![], kept));
    assert!(fixture.server.tree().multis.iter().all(|&ops| ops <= MOST_DELETES + 1));
    assert_eq!(fixture.look(), []);
}

#[test]
fn while_a_node_has_other_jobs_or_cannot_be_read_nothing_is_removed() {
    let mut fixture = Fixture::new();
    fixture.put("old", 3);
    fixture.member("host-b", b"before");
    assert_eq!(fixture.look(), []);
    assert!(!fixture.server.tree().has("/cronkeeper/gone/old"), "host-b may have it");
    fixture.member("host-b", b"now");
    fixture.look();
    fixture.pass(DAY * 40);
    fixture.member("host-b", b"before");
    assert_eq!(fixture.look(), []);
    fixture.server.tree().put("/cronkeeper/nodes/host-b", "garbage");
    assert_eq!(fixture.look(), []);
    fixture.server.tree().remove("/cronkeeper/nodes/host-b");
    assert_eq!(fixture.look(), [("old".to_owned(), 3)]);
}

#[test]
fn a_node_that_is_gone_is_forgotten_after_its_time_unless_it_comes_back() {
    let mut fixture = Fixture::new();
    for node in ["host-a", "host-b", "host-c"] {
        fixture.server.tree().put(&paths::place(&NodeName::new(node)), "a place");
        fixture.server.tree().put(&paths::offers(&NodeName::new(node)), "");
    }
    let nodes = |fixture: &mut Fixture| fixture.try_look().unwrap().nodes;
    assert_eq!(nodes(&mut fixture), []);
    fixture.pass(DAY - Duration::from_secs(1));
    fixture.member("host-c", b"another file");
    assert_eq!(nodes(&mut fixture), []);
    fixture.server.tree().remove("/cronkeeper/nodes/host-c");
    assert_eq!(nodes(&mut fixture), [], "its time begins anew");
    fixture.pass(Duration::from_secs(1));
    assert_eq!(nodes(&mut fixture), [NodeName::new("host-b")]);
    assert_eq!(fixture.of("host-b"), Vec::<String>::new());
    // An offer that nobody has taken back is in the way of nothing.
    fixture.server.tree().put("/cronkeeper/offers/host-c/a-run", "");
    fixture.pass(DAY);
    assert_eq!(nodes(&mut fixture), [NodeName::new("host-c")]);
    assert_eq!(fixture.of("host-c"), ["/cronkeeper/offers/host-c", "/cronkeeper/offers/host-c/a-run"]);
    assert_eq!(
        fixture.of("host-a"),
        [paths::NODES, paths::OFFERS, paths::PLACES].map(|folder| format!("{folder}/host-a"))
    );
    assert_eq!(nodes(&mut fixture), []);
}

#[test]
fn a_job_that_came_back_and_went_again_is_noted_again() {
    let mut fixture = Fixture::new();
    fixture.put("old", 3);
    fixture.look();
    fixture.pass(DAY * 20);
    let before = std::mem::replace(
        &mut fixture.defined,
        Arc::new(Defined {
            digest: Digest::of(b"now"),
            jobs: [name("kept"), name("old")].into(),
            ..Defined::default()
        }),
    );
    fixture.look();
    assert!(!fixture.server.tree().has("/cronkeeper/gone/old"));
    fixture.defined = before;
    fixture.look();
    fixture.pass(DAY * 20);
    assert_eq!(fixture.look(), []);
    fixture.pass(DAY * 10);
    assert_eq!(fixture.look(), [("old".to_owned(), 3)]);
}

#[test]
fn a_record_newer_than_the_note_restarts_the_time() {
    for path in ["/cronkeeper/jobs/old", "/cronkeeper/control/old", "/cronkeeper/history/old/old.19700101T000002Z"] {
        let mut fixture = Fixture::new();
        fixture.put("old", 3);
        fixture.look();
        fixture.pass(DAY * 20);
        fixture.server.tree().put(path, "written");
        fixture.pass(DAY * 20);
        assert_eq!(fixture.look(), [], "{path}");
        fixture.pass(DAY * 10);
        assert_eq!(fixture.look().len(), 1, "{path}");
    }
}

#[test]
fn a_job_that_runs_or_is_wanted_is_left_alone() {
    let mut fixture = Fixture::new();
    fixture.put("old", 3);
    fixture.look();
    fixture.pass(DAY * 40);
    let run = record("old", 60, "0x1");
    fixture.server.tree().put(&paths::running(&run.id()), json(&run));
    assert_eq!(fixture.look(), []);
    fixture.server.tree().remove(&paths::running(&run.id()));
    let uuid = uuid::Uuid::from_u128(7);
    let request = TriggerRecord::new(uuid, name("old"), "root".into(), at(60));
    fixture.server.tree().put(&paths::trigger(TriggerSeq(7)), json(&request));
    assert_eq!(fixture.look(), []);
    fixture.server.tree().remove(&paths::trigger(TriggerSeq(7)));
    assert_eq!(fixture.look().len(), 1);
}

#[test]
fn a_leader_whose_candidate_is_gone_removes_nothing() {
    let mut fixture = Fixture::new();
    fixture.put("old", 3);
    fixture.look();
    fixture.pass(DAY * 40);
    fixture.server.tree().remove(CANDIDATE);
    let before = fixture.of("old");
    assert!(matches!(fixture.try_look(), Err(SessionError::Again(_))));
    assert_eq!(fixture.of("old"), before);
}

#[test]
fn thousands_of_jobs_are_removed_some_at_a_time() {
    let mut fixture = Fixture::new();
    for number in 0..250 {
        fixture.put(&format!("old-{number:03}"), 2);
    }
    (0..3).for_each(|_| drop(fixture.look()));
    fixture.pass(DAY * 30);
    let looks: Vec<_> = (0..4).map(|_| fixture.look().len()).collect();
    assert_eq!((looks, fixture.of("old")), (vec![100, 100, 50, 0], vec![]));
}

#[test]
fn a_job_that_must_not_be_removed_does_not_affect_the_others() {
    let mut fixture = Fixture::new();
    fixture.put("bad", 3);
    fixture.put("old", 3);
    fixture.look();
    fixture.pass(DAY * 40);
    for right in [Right::Read, Right::Write] {
        fixture.server.tree().close("/cronkeeper/history/bad", right);
    }
    assert_eq!(fixture.look(), [("old".to_owned(), 3)]);
    assert!(fixture.server.tree().has("/cronkeeper/jobs/bad"));
}
