//! The monitor beside a real engine: what is shown after any sequence of events.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;
use tokio::sync::watch;

use super::*;
use crate::archive::HistoryRetention;
use crate::config::{LoadError, Loaded};
use crate::metrics::{JobCounts, Metrics, Recorder};
use crate::status::sample::{job, queue};
use crate::status::{NodeState, Status};
use crate::test_records::{record, skip, success};
use cronkeeper_core::clock::Wake;
use cronkeeper_core::engine::Event;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{Drain, NodeControl, Outcome, RunEnd, RunId, Skip};
use cronkeeper_core::term::{CandidateName, FencingToken, NodeName, SessionId, Term, TermEnd};

/// A clock that shows the same time forever.
#[derive(Clone)]
struct Stopped(Now);

impl Clock for Stopped {
    fn now(&self) -> Now {
        self.0
    }

    async fn sleep_until(&self, _: Wake) {}
}

fn at(seconds: u64) -> Uptime {
    Uptime::ZERO + Duration::from_secs(seconds)
}

/// A node's monitor and engine, without the loop between them, and what they show.
struct Node {
    now: Now,
    monitor: Monitor,
    engine: Engine,
    status: watch::Receiver<Arc<Status>>,
    lease: watch::Receiver<Option<Uptime>>,
    metrics: Metrics,
}

impl Node {
    fn new(archive: Archive, jobs: JobSet) -> Self {
        let now = Now { wall: Timestamp::UNIX_EPOCH, up: Uptime::ZERO };
        let node = NodeName::new("host-a");
        let mut view = View::new(node.clone(), "zookeeper", "jobs.yaml".into(), &jobs, now);
        let engine = Engine::new(node, jobs);
        let (status, shown) = watch::channel(Arc::new(view.status(now, &engine)));
        let (lease, leased) = watch::channel(None);
        let metrics = Recorder::default();
        let recorded = metrics.metrics();
        let settings = MonitorSettings {
            notifier: Notifier::default(),
            watchdog: Watchdog::from_environment(),
            archive,
            output: OutputQueue::default(),
            hooks: NodeHooks::default(),
            view,
            shown: Shown {
                status,
                led: watch::Sender::default(),
                lease,
                jobs: watch::Sender::default(),
                turned: watch::channel(Uptime::ZERO).0,
                metrics,
            },
        };
        Self { now, monitor: Monitor::new(settings, now), engine, status: shown, lease: leased, metrics: recorded }
    }

    /// Passes an event of the election on, as the loop does.
    fn elect(&mut self, event: Election) {
        if let Election::Lease { .. } = event {
            self.engine.handle(self.now, Event::Election(event));
            self.monitor.on_lease(&self.engine);
        } else {
            self.monitor.on_election(self.now, &event, &self.engine);
            self.engine.handle(self.now, Event::Election(event));
        }
    }

    fn reload(&mut self, reloaded: Reloaded) {
        let event = match self.monitor.on_reloaded(self.now, reloaded, &self.engine) {
            Some(jobs) => Event::Loaded(jobs),
            None => Event::Rejected,
        };
        self.engine.handle(self.now, event);
        self.monitor.on_reload_done();
    }

    fn end_turn(&mut self) {
        self.monitor.on_turn_end(self.now, &self.engine, &Stopped(self.now));
    }
}

fn session() -> Election {
    Election::Session { id: SessionId("1".into()), timeout: Duration::from_secs(10) }
}

fn elected(token: i64, lease_until: Uptime) -> Election {
    Election::Elected { term: term(token), lease_until, snapshot: Box::default(), took: Duration::ZERO }
}

fn term(token: i64) -> Term {
    Term { token: FencingToken(token), candidate: CandidateName("c".into()) }
}

#[test]
fn a_renewal_of_the_lease_copies_no_status_that_an_open_page_holds() {
    let mut node = Node::new(Archive::off(), JobSet::default());
    for event in [session(), elected(1, at(8))] {
        node.elect(event);
    }
    node.now.up = at(1);
    node.end_turn();
    assert_eq!(*node.lease.borrow(), Some(at(8)));
    let open_page = Arc::clone(&node.status.borrow());
    node.elect(Election::Lease { until: at(9) });
    assert_eq!(*node.lease.borrow(), Some(at(9)));
    assert!(Arc::ptr_eq(&open_page, &node.status.borrow()));
}

/// What happens in a turn, if it can happen in the node's state.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A session begins, or expires.
    Session,
    /// The connection is lost, or is back.
    Connection,
    Unreachable,
    Follow,
    Lead,
    /// The term is over, and the node is out of the queue.
    Over,
    Lease,
    Stalled(bool),
    Damaged(usize),
    Drained(bool),
    /// This many of the sample's members are alive.
    Members(usize),
    /// A run of the job ended; the ledger accepted the end from this node.
    End {
        job: usize,
        accepted: bool,
    },
    Skip {
        job: usize,
        count: u64,
    },
    /// A file with these of the jobs is loaded; `None`: one that is rejected.
    Reload(Option<[bool; 2]>),
    /// Only time passes.
    Tick,
}

fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let fixed = prop::sample::select(vec![Session, Connection, Unreachable, Follow, Lead, Over, Lease, Tick]);
    prop_oneof![
        6 => fixed,
        1 => any::<bool>().prop_map(Stalled),
        1 => (0..3_usize).prop_map(Damaged),
        1 => any::<bool>().prop_map(Drained),
        1 => (0..3_usize).prop_map(Members),
        2 => (0..3_usize, any::<bool>()).prop_map(|(job, accepted)| End { job, accepted }),
        1 => (0..3_usize, 1..4_u64).prop_map(|(job, count)| Skip { job, count }),
        1 => any::<Option<[bool; 2]>>().prop_map(Reload),
    ]
}

/// The names of the jobs. No file defines the last.
const JOBS: [&str; 3] = ["backup", "load", "unknown"];

/// The jobs file with some of the first two jobs. None of them is due within the test.
fn loaded(defined: [bool; 2]) -> Loaded {
    let defined = JOBS.iter().zip(defined).filter(|(_, is_defined)| *is_defined);
    let jobs: String = defined.map(|(name, _)| format!("  {name}: {{schedule: '@yearly', command: x}}\n")).collect();
    let jobs = if jobs.is_empty() { " {}\n".to_owned() } else { format!("\n{jobs}") };
    let (set, warnings) = crate::config::parse("jobs.yaml", format!("jobs:{jobs}").as_bytes()).unwrap();
    Loaded { set, warnings, path: "jobs.yaml".into() }
}

/// A node, what must be shown of it, and how far its session has come.
struct Followed {
    node: Node,
    has_session: bool,
    is_connected: bool,
    /// The token of the last term, and whether it goes on.
    token: i64,
    leads: bool,
    /// Ends and skips so far, for occurrences of their own.
    records: i64,
    last: BTreeMap<JobName, RunId>,
    counts: BTreeMap<JobName, JobCounts>,
    archived: BTreeSet<RunId>,
    not_archived: BTreeSet<RunId>,
}

impl Followed {
    fn new(archive: Archive) -> Self {
        Self {
            node: Node::new(archive, loaded([true, true]).set),
            has_session: false,
            is_connected: false,
            token: 0,
            leads: false,
            records: 0,
            last: BTreeMap::new(),
            counts: BTreeMap::new(),
            archived: BTreeSet::new(),
            not_archived: BTreeSet::new(),
        }
    }

    /// Takes the step if it is possible.
    fn take(&mut self, step: Step) {
        match step {
            Step::Session if self.has_session => {
                self.end_term(TermEnd::SessionExpired);
                self.has_session = false;
                self.elect(Election::Expired { session: SessionId("1".into()) });
            }
            Step::Session => {
                (self.has_session, self.is_connected) = (true, true);
                self.elect(session());
            }
            Step::Connection if self.has_session => {
                self.is_connected = !self.is_connected;
                let session = SessionId("1".into());
                self.elect(match self.is_connected {
                    true => Election::Resumed { session },
                    false => Election::Suspended { session, error: None },
                });
            }
            Step::Unreachable if !self.has_session => {
                self.elect(Election::Unreachable { retry: Duration::ZERO, error: "refused".into() });
            }
            Step::Follow if self.can_be_queued() => self.elect(Election::Following {
                candidate: CandidateName("c".into()),
                predecessor: CandidateName("b".into()),
                predecessor_node: None,
                leader_node: Some(NodeName::new("host-b")),
            }),
            Step::Lead if self.can_be_queued() => {
                self.leads = true;
                self.token += 1;
                self.elect(elected(self.token, self.node.now.up + Duration::from_secs(8)));
            }
            Step::Over => self.end_term(TermEnd::Resigned),
            Step::Lease if self.has_session => {
                self.elect(Election::Lease { until: self.node.now.up + Duration::from_secs(9) });
            }
            Step::Stalled(is_stalled) => {
                self.elect(Election::Stalled(is_stalled.then(|| "taking over: not authorized".into())));
            }
            Step::Damaged(count) => {
                let all = vec!["/leader/x: cannot be read".to_owned(); count];
                self.elect(Election::Damaged { new: all.clone(), all });
            }
            Step::Drained(is_drained) => {
                let drain = Drain { by: "alice".into(), at: Timestamp::UNIX_EPOCH, reason: None };
                self.elect(Election::Wanted(NodeControl {
                    drained: is_drained.then_some(drain),
                    ..NodeControl::default()
                }));
            }
            Step::Members(count) => self.elect(Election::Members(queue().members.into_iter().take(count).collect())),
            Step::End { job, accepted } => self.end(JOBS[job], accepted),
            Step::Skip { job, count } => self.skip(JOBS[job], count),
            Step::Reload(Some(defined)) => self.load(defined),
            Step::Reload(None) => {
                self.node.reload(Err(LoadError::Invalid { problems: Vec::new(), warnings: Vec::new() }));
            }
            _ => {}
        }
    }

    fn can_be_queued(&self) -> bool {
        self.has_session && self.is_connected && !self.leads
    }

    fn elect(&mut self, event: Election) {
        self.node.elect(event);
    }

    fn end_term(&mut self, why: TermEnd) {
        if std::mem::take(&mut self.leads) {
            self.elect(Election::Over { term: term(self.token), why });
            self.elect(Election::Withdrawn);
        }
    }

    fn report(&mut self, report: Report) {
        self.node.monitor.on_report(self.node.now, report, &self.node.engine);
    }

    /// The counters of a job that the file defines.
    fn counted(&mut self, name: &JobName) -> Option<&mut JobCounts> {
        let is_defined = self.node.engine.jobs().jobs.contains_key(name);
        is_defined.then(|| self.counts.entry(name.clone()).or_default())
    }

    fn end(&mut self, name: &str, accepted: bool) {
        self.records += 1;
        let end: RunEnd = success(record(name, self.records * 60, "1"));
        let (run, ended_at) = (end.run.id(), end.ended_at);
        self.report(Report::Finished(Box::new(end.clone())));
        self.last.insert(job(name), run.clone());
        if !accepted {
            self.not_archived.insert(run);
            return;
        }
        self.report(Report::Recorded(Box::new(end)));
        self.archived.insert(run);
        if let Some(counts) = self.counted(&job(name)) {
            *counts.outcomes.entry(Outcome::Success.as_str()).or_default() += 1;
            counts.last_success = counts.last_success.max(Some(ended_at));
        }
    }

    fn skip(&mut self, name: &str, count: u64) {
        self.records += 1;
        let skip: Skip = skip(name, self.records * 60);
        let first = skip.first;
        if let Some(counts) = self.counted(&job(name)) {
            *counts.skips.entry(skip.reason.as_str()).or_default() += count;
        }
        self.report(Report::Skipped { skip, first, count });
    }

    fn load(&mut self, defined: [bool; 2]) {
        self.node.reload(Ok(loaded(defined)));
        let is_defined = |name: &JobName| self.node.engine.jobs().jobs.contains_key(name);
        self.last.retain(|name, _| is_defined(name));
        self.counts.retain(|name, _| is_defined(name));
    }

    /// Ends the turn, and checks what people see.
    fn check(&mut self) {
        let Node { now, .. } = self.node;
        self.node.end_turn();
        let next = self.node.monitor.next_at();
        assert!(next.is_none_or(|next| next > now.up), "the loop would turn again at once");
        let shown = Arc::clone(&self.node.status.borrow());
        let mut fresh = self.node.monitor.view.status(now, &self.node.engine);
        fresh.at = shown.at;
        if fresh != *shown {
            let latest = now.up + Duration::from_secs(1);
            assert!(
                next.is_some_and(|next| next <= latest),
                "{fresh:?}\nis not going to be shown instead of\n{shown:?}"
            );
        }
        self.check_status(&fresh);
        let lease = *self.node.lease.borrow();
        assert!(lease.is_none() || self.node.monitor.view.lease_until(&self.node.engine).is_some() || fresh != *shown);
        let counts = self.node.metrics.counts();
        assert_eq!((counts.elections, &counts.jobs), (0, &self.counts));
    }

    fn check_status(&self, status: &Status) {
        assert_eq!(status.ready, status.awaiting.is_none());
        let token = self.leads.then_some(FencingToken(self.token));
        assert_eq!(status.role.token, token);
        assert_eq!(
            matches!(status.state, NodeState::Leading | NodeState::TakingOver),
            self.leads,
            "{:?}",
            status.state
        );
        assert!(status.session.is_some() == self.has_session && (self.has_session || !status.ready));
        let summary = self.node.monitor.view.summary(&self.node.engine);
        assert!(!summary.contains('\n') && summary.contains("INVALID") != status.jobs_file.valid, "{summary}");
        let jobs: Vec<_> = status.jobs.iter().map(|job| &job.name).collect();
        assert!(jobs.into_iter().eq(self.node.engine.jobs().jobs.keys()));
        let last = status.jobs.iter().filter_map(|job| Some((&job.name, job.last.as_ref()?.run.clone())));
        let expected = self.last.iter().filter(|(name, _)| self.node.engine.jobs().jobs.contains_key(*name));
        assert!(last.eq(expected.map(|(name, run)| (name, run.clone()))));
        let json = serde_json::to_string(status).unwrap();
        let mut written = status.clone();
        // Only of use within the process.
        written.jobs.iter_mut().flat_map(|job| &mut job.last).for_each(|last| last.reported_at = None);
        written.members_at = None;
        assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), written);
    }
}

proptest! {
    #![proptest_config(crate::fuzz::proptest_config())]
    #[test]
    fn whatever_happens_is_shown_within_a_second_and_kept_once(
        steps in prop::collection::vec((step(), 0..1_500_u64), 0..40),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive::start(dir.path(), NodeName::new("n"), HistoryRetention::Unlimited).unwrap();
        let mut followed = Followed::new(archive.clone());
        for (step, millis) in steps {
            followed.node.now.up = followed.node.now.up + Duration::from_millis(millis);
            followed.node.now.wall += Duration::from_millis(millis);
            followed.take(step);
            followed.check();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for run in &followed.archived {
                let kept = archive.record(run.clone(), ()).await.unwrap();
                assert_eq!(kept.map(|kept| kept.id()), Some(run.clone()));
            }
            for run in &followed.not_archived {
                assert_eq!(archive.record(run.clone(), ()).await.unwrap(), None);
            }
        });
        archive.close(true);
    }
}
