//! How the loop ends, and in which order it takes events. The simulation covers the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use uuid::Uuid;

use super::*;
use crate::coordination::{ReadError, ReadFuture, Reader, Service, channels};
use crate::election::Queue;
use crate::job::{ChannelName, JobName, JobSet};
use crate::ledger::{
    ChannelEntry, Commit, CommitId, ControlEntry, Each, Filter, Followed, Last, Newest, Operator, OperatorError,
    OperatorFuture, Outbox, Snapshot, Window,
};
use crate::process::{self, NotSent, Order, Recorded};
use crate::run::journal::{JournalEntry, JournalState, RecoveredRun};
use crate::run::{
    ChannelRecord, Drain, HandoverRequest, HistoryRecord, KillRequest, NotRecounted, Notice, NoticeKey, Outcome, Pause,
    RecountRequest, Recounted, Resume, RunEnd, RunId, RunState, Traces, TriggerRecord, Version,
};
use crate::term::NodeName;
use crate::test_records::record;

/// A timeout that even a busy machine does not reach.
const LONG: Duration = Duration::from_secs(60);

/// A clock on which every sleep ends at once, and moves the time to its end.
#[derive(Clone)]
struct Flying {
    up: Arc<Mutex<Uptime>>,
    /// If set, every reading of the clock sends one more event.
    flood: Arc<Mutex<Option<mpsc::UnboundedSender<BackendEvent>>>>,
}

impl Clock for Flying {
    fn now(&self) -> Now {
        if let Some(events) = &*self.flood.lock().unwrap() {
            let _ = events.send(answer());
        }
        Now { wall: Timestamp::UNIX_EPOCH, up: *self.up.lock().unwrap() }
    }

    async fn sleep_until(&self, wake: Wake) {
        tokio::task::yield_now().await;
        let mut now = self.up.lock().unwrap();
        *now = wake.up.map_or(*now, |up| up.max(*now));
    }
}

/// An event that changes nothing.
fn answer() -> BackendEvent {
    BackendEvent::Ledger(crate::ledger::Event::Answered {
        id: CommitId(0),
        answer: Commit::Unknown,
        before: None,
        token: None,
    })
}

/// Processes that send no notices; only the end of the warden is reported.
struct SilentProcesses {
    /// The processes die when they are killed.
    die: bool,
    is_warden_gone: Arc<AtomicBool>,
    leases: Arc<Mutex<Vec<Uptime>>>,
    closed: Arc<AtomicBool>,
    killed: Arc<AtomicBool>,
    unbegun: Vec<TreeId>,
}

impl Processes for SilentProcesses {
    fn begins_file(&self) -> Option<&str> {
        None
    }

    fn start(&mut self, _: &Launch) -> Result<(), NotSent> {
        Ok(())
    }

    fn send(&mut self, order: Order) -> Result<(), NotSent> {
        if let Order::Lease { until } = order {
            self.leases.lock().unwrap().push(until);
        }
        Ok(())
    }

    async fn notice(&mut self) -> Result<process::Notice, WardenGone> {
        if self.is_warden_gone.load(Ordering::Relaxed) {
            return Err(WardenGone);
        }
        std::future::pending().await
    }

    fn start_time(&self, _: i32) -> Option<u64> {
        None
    }

    fn kill_trees(&mut self, _: Vec<Recorded>, _: &NodeName) {}

    fn kill_warden(&mut self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    async fn close(self, trees: Vec<TreeId>) -> Vec<TreeId> {
        self.closed.store(true, Ordering::Relaxed);
        if !self.die {
            std::future::pending::<()>().await;
        }
        trees.into_iter().filter(|tree_id| self.unbegun.contains(tree_id)).collect()
    }
}

struct NoReader;

impl Reader for NoReader {
    fn queue(&self) -> ReadFuture<'_, Queue> {
        Box::pin(async { Err(ReadError("nothing here".into())) })
    }

    fn snapshot(&self) -> ReadFuture<'_, Snapshot> {
        Box::pin(async { Err(ReadError("nothing here".into())) })
    }

    fn record(&self, _: RunId) -> ReadFuture<'_, Option<HistoryRecord>> {
        Box::pin(async { Err(ReadError("nothing here".into())) })
    }

    fn history(&self, _: Filter, _: Window) -> ReadFuture<'_, Newest> {
        Box::pin(async { Err(ReadError("nothing here".into())) })
    }

    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>> {
        Box::pin(async { Err(ReadError("nothing here".into())) })
    }
}

impl Operator for NoReader {
    fn pause(&self, _: JobName, _: Uuid, _: Pause) -> OperatorFuture<'_, Option<Pause>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn pause_all(&self, _: Vec<(JobName, Uuid)>, _: Pause) -> OperatorFuture<'_, Each<Option<Pause>>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn pauses(&self) -> OperatorFuture<'_, BTreeMap<JobName, ControlEntry>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn request_resumes(&self, _: Vec<JobName>, _: Resume) -> OperatorFuture<'_, Each<Option<Uuid>>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn drain(&self, _: NodeName, _: Drain) -> OperatorFuture<'_, Option<Drain>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn undrain(&self, _: NodeName) -> OperatorFuture<'_, Option<Drain>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn request_handover(&self, _: NodeName, _: HandoverRequest) -> OperatorFuture<'_, ()> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn request_resume(&self, _: JobName, _: Resume) -> OperatorFuture<'_, Option<Uuid>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn resumed(&self, _: JobName, _: Uuid) -> OperatorFuture<'_, ()> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn recount(&self, _: JobName, _: RecountRequest) -> OperatorFuture<'_, Result<Recounted, NotRecounted>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn forget_node(&self, _: NodeName) -> OperatorFuture<'_, crate::ledger::ForgetNode> {
        unimplemented!()
    }

    fn trigger(&self, _: TriggerRecord) -> OperatorFuture<'_, RunId> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn triggered(&self, _: JobName, _: Uuid) -> OperatorFuture<'_, Option<RunId>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn kill(&self, _: RunId, _: KillRequest) -> OperatorFuture<'_, Option<RunState>> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }

    fn followed(&self, _: RunId) -> OperatorFuture<'_, Followed> {
        Box::pin(async { Err(OperatorError::Unwritten("nothing here".into())) })
    }
}

impl Outbox for NoReader {
    fn keys(&self) -> OperatorFuture<'_, BTreeSet<NoticeKey>> {
        unimplemented!()
    }

    fn notices(&self, _: BTreeSet<NoticeKey>) -> OperatorFuture<'_, BTreeMap<NoticeKey, Result<Notice, String>>> {
        unimplemented!()
    }

    fn add(&self, _: Notice) -> OperatorFuture<'_, ()> {
        unimplemented!()
    }

    fn remove(&self, _: BTreeSet<NoticeKey>) -> OperatorFuture<'_, ()> {
        unimplemented!()
    }

    fn channel(&self, _: ChannelName) -> OperatorFuture<'_, ChannelEntry> {
        unimplemented!()
    }

    fn put_channel(&self, _: ChannelName, _: ChannelRecord, _: Option<Version>) -> OperatorFuture<'_, Option<Version>> {
        unimplemented!()
    }
}

struct NoLauncher;

impl Launcher for NoLauncher {
    fn launch(&self, _: &Start) -> Option<Launch> {
        None
    }

    fn hook(&self, _: &HookStart) -> Option<Launch> {
        None
    }
}

/// A journal in memory.
#[derive(Clone, Default)]
struct MemoryJournal(Arc<Mutex<JournalState>>);

impl Journal for MemoryJournal {
    fn store(&mut self, entry: JournalEntry) -> io::Result<()> {
        self.0.lock().unwrap().take(entry);
        Ok(())
    }

    fn open_runs(&self) -> Vec<RecoveredRun> {
        self.0.lock().unwrap().recovered().runs
    }
}

struct NoObserver;

impl Observer for NoObserver {
    type Reloaded = ();

    fn on_reloaded(&mut self, _: Now, (): (), _: &Engine) -> Option<JobSet> {
        None
    }
}

enum Models {}

impl Ports for Models {
    type Clock = Flying;
    type Processes = SilentProcesses;
    type Journal = MemoryJournal;
    type Launcher = NoLauncher;
    type Observer = NoObserver;
}

struct Fixture {
    event_loop: EventLoop<Models>,
    service: Service,
    clock: Flying,
    closed: Arc<AtomicBool>,
    killed: Arc<AtomicBool>,
    is_warden_gone: Arc<AtomicBool>,
    leases: Arc<Mutex<Vec<Uptime>>>,
    journal: MemoryJournal,
}

fn fixture(die: bool) -> Fixture {
    let clock = Flying { up: Arc::new(Mutex::new(Uptime::ZERO)), flood: Arc::default() };
    let (coordination, service) = channels(Arc::new(NoReader));
    let (closed, killed, is_warden_gone) = <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let leases = Arc::<Mutex<Vec<Uptime>>>::default();
    let journal = MemoryJournal::default();
    let event_loop = EventLoop::new(Parts {
        engine: Engine::new(NodeName::new("a"), JobSet::default()),
        clock: clock.clone(),
        coordination,
        processes: SilentProcesses {
            die,
            is_warden_gone: is_warden_gone.clone(),
            leases: leases.clone(),
            closed: closed.clone(),
            killed: killed.clone(),
            unbegun: Vec::new(),
        },
        journal: journal.clone(),
        launcher: NoLauncher,
        observer: NoObserver,
        drain_timeout: Duration::from_secs(1),
        listen: None,
    });
    Fixture { event_loop, service, clock, closed, killed, is_warden_gone, leases, journal }
}

async fn ended(event_loop: EventLoop<Models>, controls: mpsc::UnboundedReceiver<Control<()>>) -> Stopped {
    tokio::time::timeout(LONG, event_loop.run(Recovered::default(), controls)).await.expect("the loop ends")
}

#[tokio::test]
async fn a_panic_of_the_backend_ends_the_daemon_and_its_runs() {
    let Fixture { event_loop, service, closed, .. } = fixture(true);
    let (_controls, controlled) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let _service = service;
        panic!("a bug");
    });
    assert_eq!(ended(event_loop, controlled).await, Stopped::BackendGone);
    assert!(closed.load(Ordering::Relaxed));
}

#[tokio::test]
async fn the_loop_goes_on_after_the_channel_of_controls_is_closed() {
    let Fixture { event_loop, service, closed, .. } = fixture(true);
    let (_, controlled) = mpsc::unbounded_channel();
    let failure = Failure::StateDir("gone".into());
    service.events.send(BackendEvent::Election(Election::Failed(failure.clone()))).unwrap();
    assert_eq!(ended(event_loop, controlled).await, Stopped::Failed(failure));
    assert!(closed.load(Ordering::Relaxed));
}

#[tokio::test]
async fn processes_that_do_not_die_delay_the_end_for_a_limited_time() {
    let Fixture { event_loop, service, clock, closed, .. } = fixture(false);
    let (_controls, controlled) = mpsc::unbounded_channel();
    drop(service);
    assert_eq!(ended(event_loop, controlled).await, Stopped::BackendGone);
    assert!(closed.load(Ordering::Relaxed) && clock.now().up >= Uptime::ZERO + CLOSING);
}

#[tokio::test]
async fn a_silent_warden_is_killed_and_ends_the_daemon() {
    let Fixture { event_loop, service: _service, clock, killed, .. } = fixture(true);
    let (_controls, controlled) = mpsc::unbounded_channel();
    assert_eq!(ended(event_loop, controlled).await, Stopped::WardenGone(WardenLeftovers::default()));
    assert!(killed.load(Ordering::Relaxed) && clock.now().up >= Uptime::ZERO + Duration::from_secs(5));
}

/// The next process could not know it: the journal has the start, and only a dead child proves what it was not.
#[tokio::test]
async fn the_journal_forgets_what_never_began_before_everything_was_dead() {
    for (die, is_unbegun, attempt, has_end, forgets) in [
        (true, true, 1, false, true),
        (true, false, 1, false, false),
        (true, true, 2, false, false),
        (true, true, 1, true, false),
        (false, true, 1, false, false),
    ] {
        let Fixture { mut event_loop, service: _service, mut journal, is_warden_gone, .. } = fixture(die);
        let (_controls, controlled) = mpsc::unbounded_channel();
        is_warden_gone.store(true, Ordering::Relaxed);
        let run = record("a", 0, "s");
        journal.begun(&run, Version::FIRST, &Traces::default()).unwrap();
        if has_end {
            let end = RunEnd::unseen(&run, Outcome::Success, None, Timestamp::UNIX_EPOCH);
            journal.ended(&end, Version::FIRST).unwrap();
        }
        event_loop.trees.insert_attempt(TreeId(7), run.id(), attempt, Traces::default());
        event_loop.processes.unbegun.extend(is_unbegun.then_some(TreeId(7)));
        assert!(matches!(ended(event_loop, controlled).await, Stopped::WardenGone(_)));
        assert_eq!(journal.open_runs().is_empty(), forgets, "{die} {is_unbegun} {attempt} {has_end}");
    }
}

/// The leases that the warden receives when the backend sends these events and then ends.
async fn leases_sent(events: impl IntoIterator<Item = BackendEvent>) -> Vec<Uptime> {
    let Fixture { event_loop, service, leases, .. } = fixture(true);
    let (_controls, controlled) = mpsc::unbounded_channel();
    events.into_iter().for_each(|event| service.emit(event));
    drop(service);
    assert_eq!(ended(event_loop, controlled).await, Stopped::BackendGone);
    Arc::try_unwrap(leases).unwrap().into_inner().unwrap()
}

fn lease(seconds: u64) -> BackendEvent {
    BackendEvent::Election(Election::Lease { until: Uptime::ZERO + Duration::from_secs(seconds) })
}

#[tokio::test]
async fn a_longer_lease_overtakes_all_waiting_answers_and_is_sent_once() {
    let events = std::iter::once(lease(10)).chain((0..1_000).map(|_| answer())).chain([lease(15), lease(20)]);
    assert_eq!(leases_sent(events).await, [Uptime::ZERO + Duration::from_secs(20)]);
}

#[tokio::test]
async fn a_longer_lease_does_not_overtake_a_revocation() {
    let events = [lease(10), answer(), lease(0), answer(), lease(20)];
    let expected = [10, 0, 20].map(|seconds| Uptime::ZERO + Duration::from_secs(seconds));
    assert_eq!(leases_sent(events).await, expected);
}

#[tokio::test]
async fn an_endless_flood_of_answers_does_not_starve_the_warden() {
    let Fixture { event_loop, service, clock, is_warden_gone, .. } = fixture(true);
    let (_controls, controlled) = mpsc::unbounded_channel();
    *clock.flood.lock().unwrap() = Some(service.events.clone());
    is_warden_gone.store(true, Ordering::Relaxed);
    assert_eq!(ended(event_loop, controlled).await, Stopped::WardenGone(WardenLeftovers::default()));
}
