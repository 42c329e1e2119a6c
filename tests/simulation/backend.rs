//! The real backend alone, under nodes that campaign, write marks while they lead, and sometimes resign.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cronkeeper_cluster::observed::{Observed, Spawn};
use cronkeeper_cluster::recipes::{ClaimError, LedgerReader, NodeIdentity, Options, SessionStore, StoreError, serve};
use cronkeeper_cluster::state_dir::KEPT_SESSIONS;
use cronkeeper_cluster::tree::{Connect, ConnectError, Lend, Session};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::coordination::{self, Coordination, Request};
use cronkeeper_core::election::{self, Place};
use cronkeeper_core::job::{JobName, Label};
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::ledger::{self, Change, Commit, CommitId, Snapshot};
use cronkeeper_core::run::journal::{Noted, Recovered};
use cronkeeper_core::run::{JobRecord, Nonce, RunEnd, Version};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId, Term};
use fastrand::Rng;
use jiff::Timestamp;
use uuid::Uuid;

use super::clock::NodeClock;
use super::executor::{Program, Task};
use super::facts::Fact;
use super::faults::Fault;
use super::foreign_entries::FOREIGN_JOB;
use super::jobs::LABEL;
use super::trial::{Length, Plan, Seeds, Subject, many};
use super::weak_store::SimStore;
use super::world::{Event, Shared, World};
use super::zookeeper::Connector;

/// The disk of a node.
#[derive(Default)]
pub struct Disk {
    /// Those whose entries may exist.
    sessions: Vec<SessionId>,
    /// Those whose entries are gone, unless the servers lose that.
    left: Vec<SessionId>,
    cluster: Option<String>,
    /// Number of processes so far.
    processes: u32,
    rebooted: bool,
    /// Sessions of processes that died with their host. The next process cannot know that: its disk may be a copy.
    lost: BTreeSet<SessionId>,
}

/// The state directory of one process.
pub struct StateDir {
    disk: Arc<Mutex<Disk>>,
    /// Sessions of earlier processes of this boot. They are dead, because otherwise this process would not run.
    removable: Vec<SessionId>,
    left: Vec<SessionId>,
    open_ends: Vec<RunEnd>,
    noted: Option<Noted>,
}

impl Disk {
    /// The host has booted again, so nothing on the disk proves that earlier processes are dead.
    pub fn reboot(&mut self) {
        self.rebooted = true;
        self.lost.extend(self.sessions.iter().cloned());
    }

    /// True if the session's process died with its host.
    pub fn has_lost(&self, session: &SessionId) -> bool {
        self.lost.contains(session)
    }
}

fn on(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StateDir {
    pub fn open(disk: &Arc<Mutex<Disk>>, recovered: &Recovered) -> Self {
        let mut content = on(disk);
        content.processes += 1;
        if std::mem::take(&mut content.rebooted) {
            content.sessions.clear();
            content.left.clear();
        }
        let (removable, left) = (content.sessions.clone(), content.left.clone());
        Self { disk: disk.clone(), removable, left, open_ends: recovered.ends(), noted: recovered.noted() }
    }
}

impl SessionStore for StateDir {
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError> {
        let mut disk = on(&self.disk);
        match &disk.cluster {
            Some(ours) if ours != cluster => Err(ClaimError::OtherCluster { ours: ours.clone() }),
            _ => {
                disk.cluster = Some(cluster.to_owned());
                Ok(())
            }
        }
    }

    fn record(&mut self, session: &SessionId) -> Result<(), StoreError> {
        on(&self.disk).sessions.push(session.clone());
        Ok(())
    }

    fn removable(&self) -> Vec<SessionId> {
        self.removable.clone()
    }

    fn left(&self) -> Vec<SessionId> {
        self.left.clone()
    }

    fn note_left(&mut self, gone: &[SessionId]) {
        let mut disk = on(&self.disk);
        let (left, sessions) =
            std::mem::take(&mut disk.sessions).into_iter().partition::<Vec<_>, _>(|session| gone.contains(session));
        disk.sessions = sessions;
        disk.left.extend(left);
        let kept = disk.left.len().saturating_sub(KEPT_SESSIONS);
        disk.left.drain(..kept);
    }

    fn open_ends(&self) -> Vec<RunEnd> {
        self.open_ends.clone()
    }

    fn noted(&self) -> Option<Noted> {
        self.noted.clone()
    }
}

/// The name of a simulated node.
pub fn node_name(node: usize) -> NodeName {
    NodeName::new(format!("node-{node}"))
}

/// A new process on a host.
pub struct NodeProcess<'a> {
    pub world: &'a Shared,
    /// The host.
    pub node: usize,
    pub name: NodeName,
    /// What earlier processes have left.
    pub disk: &'a Arc<Mutex<Disk>>,
    pub recovered: &'a Recovered,
    pub rng: Rng,
}

/// The process' backend, and the daemon's end of it.
pub fn backend(process: NodeProcess<'_>) -> (Task, Coordination) {
    let (world, node) = (process.world.clone(), process.node);
    let lent = Lent::default();
    let connector = Lending { connector: Znodes(Connector { world, node }), lent: lent.clone() };
    backend_on(connector, lent, process)
}

/// The same on the weakest store.
pub fn backend_on_store(mut process: NodeProcess<'_>) -> (Task, Coordination) {
    let observed = observed(process.world, process.node, process.rng.fork());
    backend_on(observed.clone(), observed, process)
}

/// What opens and lends a node's sessions with the store.
pub fn observed(world: &Shared, node: usize, rng: Rng) -> Observed<SimStore, NodeClock, SimSpawn> {
    let ids = Mutex::new(rng);
    Observed {
        store: SimStore { world: world.clone(), node },
        clock: NodeClock { world: world.clone(), node },
        spawn: SimSpawn { world: world.clone(), node },
        timeout: world.lock().env.timing.session_timeout,
        uuid: Arc::new(move || Uuid::from_u128(ids.lock().unwrap_or_else(PoisonError::into_inner).u128(..))),
        heads: Arc::default(),
    }
}

/// Adds tasks to a node's process.
#[derive(Clone)]
pub struct SimSpawn {
    world: Shared,
    node: usize,
}

impl Spawn for SimSpawn {
    fn spawn(&self, task: Task) {
        self.world.lock().spawned.push((self.node, task));
    }
}

/// What a simulated node is as a place to run jobs: every other one has the label that some jobs ask for.
pub fn place(node: usize) -> Place {
    let labels = (node % 2 == 1).then(|| Label::parse_own(LABEL).expect("it is one"));
    Place { labels: labels.into_iter().collect(), ..Place::default() }
}

fn backend_on(connector: impl Connect, lend: impl Lend, process: NodeProcess<'_>) -> (Task, Coordination) {
    let NodeProcess { world, node, name, disk, recovered, mut rng } = process;
    let (coordination, service) = coordination::channels(Arc::new(LedgerReader::new(lend)));
    let clock = NodeClock { world: world.clone(), node };
    let identity = NodeIdentity {
        node: name,
        host: format!("host-{node}"),
        pid: 1,
        user: "cron".into(),
        version: "0.0.0".into(),
        started_at: clock.now().wall,
    };
    let options = Options {
        service: "simulated".into(),
        root: "/".into(),
        uuid: Box::new(move || Uuid::from_u128(rng.u128(..))),
        forget_after: ForgetAfter::default(),
        labels: place(node).labels,
        weight: place(node).weight,
    };
    let store = Box::new(StateDir::open(disk, recovered));
    (Box::pin(serve(connector, clock, identity, store, service, options)), coordination)
}

/// The client that serves reads for people. It uses the node's own session, because people read seldom.
#[derive(Clone)]
struct Lent<S>(Arc<Mutex<Option<S>>>);

impl<S> Default for Lent<S> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<S: Session> Lend for Lent<S> {
    type Session = S;

    async fn session(&self) -> Result<S, ConnectError> {
        let lent = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lent.ok_or_else(|| ConnectError::Unreachable("there was none yet".into()))
    }
}

/// Creates a node's sessions, and lends the newest one to readers.
struct Lending<C: Connect> {
    connector: C,
    lent: Lent<C::Session>,
}

impl<C: Connect> Connect for Lending<C> {
    type Session = C::Session;

    async fn connect(&self) -> Result<C::Session, ConnectError> {
        let session = self.connector.connect().await?;
        *self.lent.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(session.clone());
        Ok(session)
    }
}

/// Nodes that have no engine.
pub struct Contenders {
    rng: Rng,
    disks: Vec<Arc<Mutex<Disk>>>,
    views: Arc<Mutex<Vec<View>>>,
    is_calm: Arc<AtomicBool>,
}

/// The last reported state of a node.
#[derive(Clone, Debug, Default)]
struct View {
    leads: bool,
    lease_until: Option<Uptime>,
    failed: Option<String>,
}

impl Subject for Contenders {
    fn new(seed: u64, nodes: usize, _length: Length) -> Self {
        Self {
            rng: Rng::with_seed(seed ^ 0xd15c),
            disks: (0..nodes).map(|_| Arc::default()).collect(),
            views: Arc::new(Mutex::new(vec![View::default(); nodes])),
            is_calm: Arc::default(),
        }
    }

    fn calm(&mut self) {
        self.is_calm.store(true, Ordering::Relaxed);
    }

    fn at_peace(&self, world: &World) -> Result<(), String> {
        let views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let now = world.env.now();
        let leaders: Vec<usize> = (0..views.len())
            .filter(|node| views[*node].leads && views[*node].lease_until.is_some_and(|until| now < until))
            .collect();
        if leaders.len() != 1 {
            return Err(format!("in peace the nodes {leaders:?} lead: {views:?}"));
        }
        let tree = world.tree().ok_or("in peace the ensemble has no leader")?;
        let entries = |folder: &str| -> BTreeSet<String> {
            let names =
                tree.children(folder).unwrap_or_default().into_iter().filter(|name| !name.starts_with(FOREIGN_JOB));
            names.map(|name| format!("{folder}/{name}")).collect()
        };
        let (queue, members) = (entries("/leader"), entries("/cronkeeper/nodes"));
        if queue.len() != views.len() || members.len() != views.len() {
            return Err(format!("in peace the queue is {queue:?} and the members are {members:?}: {views:?}"));
        }
        let owners: BTreeSet<i64> =
            queue.iter().filter_map(|path| tree.stat(path)).map(|stat| stat.ephemeral_owner).collect();
        if owners.len() != views.len() {
            return Err(format!("in peace two candidates are of one session: {queue:?}"));
        }
        Ok(())
    }
}

impl Program for Contenders {
    fn start(&mut self, world: &Shared, node: usize) -> Vec<Task> {
        let (disk, rng) = (&self.disks[node], self.rng.fork());
        let recovered = &Recovered::default();
        let (backend, coordination) = backend(NodeProcess { world, node, name: node_name(node), disk, recovered, rng });
        self.views.lock().unwrap_or_else(PoisonError::into_inner)[node] = View::default();
        let writer = MarkWriter {
            world: world.clone(),
            node,
            process: on(&self.disks[node]).processes,
            clock: NodeClock { world: world.clone(), node },
            // Some writers are idle, so that only renewals show that the quorum is there.
            pause: if self.rng.u8(..3) == 0 { 60_000 } else { 1000 },
            rng: self.rng.fork(),
            coordination,
            views: self.views.clone(),
            is_calm: self.is_calm.clone(),
            term: None,
            acting: None,
            written: 0,
            open: Vec::new(),
        };
        vec![backend, Box::pin(writer.run())]
    }

    fn killed(&mut self, _world: &Shared, node: usize, with_host: bool) {
        on(&self.disks[node]).rebooted |= with_host;
        self.views.lock().unwrap_or_else(PoisonError::into_inner)[node] = View::default();
    }
}

/// A stand-in for the daemon: campaigns, and moves one job's mark as fast as it may.
struct MarkWriter {
    world: Shared,
    node: usize,
    process: u32,
    clock: NodeClock,
    /// Longest pause between two actions, in milliseconds.
    pause: u64,
    rng: Rng,
    coordination: Coordination,
    views: Arc<Mutex<Vec<View>>>,
    /// If true, the writer no longer resigns by itself.
    is_calm: Arc<AtomicBool>,
    term: Option<Writing>,
    /// The token of the term that it leads in, even while it writes nothing any more.
    acting: Option<FencingToken>,
    written: u64,
    /// Commits without an answer.
    open: Vec<(CommitId, String)>,
}

struct Writing {
    term: Term,
    mark: Timestamp,
    version: Option<Version>,
}

impl MarkWriter {
    async fn run(mut self) {
        self.ask(election::Request::Campaign);
        let mut next = self.clock.now().up;
        loop {
            // Cancellation safe: both can be polled again.
            tokio::select! {
                biased;
                event = self.coordination.events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = self.clock.sleep_until(Wake { wall: None, up: Some(next) }) => {
                    next = self.clock.now().up + Duration::from_millis(self.rng.u64(50..self.pause));
                    self.act();
                }
            }
        }
    }

    fn act(&mut self) {
        match self.rng.u8(..) {
            0 if !self.is_calm.load(Ordering::Relaxed) => {
                // After resigning it decides nothing, even before it is notified that the term is over.
                if let Some(token) = self.acting {
                    self.close_term(token);
                }
                self.ask(election::Request::Resign);
                self.ask(election::Request::Campaign);
            }
            1 => self.ask(election::Request::Busy(true)),
            2 | 3 => self.ask(election::Request::Busy(false)),
            _ => self.write(),
        }
    }

    fn write(&mut self) {
        let Some(writing) = &mut self.term else { return };
        if self.open.len() >= 3 {
            return;
        }
        self.written += 1;
        writing.mark += Duration::from_secs(1);
        let nonce = format!("{}-{}-{}", self.node, self.process, self.written);
        let record = JobRecord::new(writing.mark, Nonce(nonce.clone()));
        let Ok(job) = JobName::parse("tick") else { return };
        let change = Change::Advance { job, at: writing.version, record, skip: None };
        writing.version = Some(writing.version.map_or(Version::FIRST, Version::next));
        let id = CommitId(self.written);
        self.open.push((id, nonce));
        let _ = self.coordination.requests.send(Request::Ledger(ledger::Request::Commit { id, change }));
    }

    fn ask(&self, request: election::Request) {
        let _ = self.coordination.requests.send(Request::Election(request));
    }

    fn take(&mut self, event: coordination::Event) {
        let node = self.node;
        match &event {
            coordination::Event::Election(election::Event::Lease { .. } | election::Event::Members(_)) => {}
            coordination::Event::Ledger(_) | coordination::Event::Lock(_) => {}
            event => self.world.lock().env.note(|| format!("node-{node}: {event:?}")),
        }
        match event {
            coordination::Event::Election(event) => self.election(event),
            coordination::Event::Ledger(ledger::Event::Answered { id, answer, .. }) => self.answered(id, answer),
            coordination::Event::Ledger(_) | coordination::Event::Lock(_) => {}
        }
    }

    fn election(&mut self, event: election::Event) {
        let node = self.node;
        match event {
            election::Event::Elected { term, lease_until, snapshot, .. } => {
                self.emit(Fact::Elected { node, token: term.token, lease_until });
                self.view(|view| (view.leads, view.lease_until) = (true, Some(lease_until)));
                self.open_term(term, &snapshot);
            }
            election::Event::Lease { until } => {
                self.emit(Fact::Lease { node, until });
                self.view(|view| view.lease_until = Some(until));
            }
            election::Event::Over { term, .. } => {
                self.close_term(term.token);
                self.view(|view| view.leads = false);
            }
            election::Event::Failed(failure) => {
                self.view(|view| view.failed = Some(failure.to_string()));
                self.end();
            }
            _ => {}
        }
    }

    /// Ends the process; the system's manager starts it again.
    fn end(&self) {
        let node = self.node;
        let queue = &mut self.world.lock().env.queue;
        queue.after(Duration::ZERO, Event::Fault(Fault::Kill { node, with_host: false }));
        queue.after(Duration::from_secs(1), Event::Fault(Fault::Start { node }));
    }

    fn open_term(&mut self, term: Term, snapshot: &Snapshot) {
        let entry = JobName::parse("tick").ok().and_then(|job| snapshot.jobs.get(&job));
        self.acting = Some(term.token);
        let mark =
            entry.and_then(|entry| entry.record.as_ref()).map_or(Timestamp::UNIX_EPOCH, |record| record.last_scheduled);
        self.term = Some(Writing { term, mark, version: entry.map(|entry| entry.version) });
    }

    fn close_term(&mut self, token: FencingToken) {
        self.emit(Fact::Over { node: self.node, token });
        self.acting = self.acting.filter(|&acting| acting != token);
        self.term = self.term.take().filter(|writing| writing.term.token != token);
    }

    fn answered(&mut self, id: CommitId, answer: Commit) {
        let Some(place) = self.open.iter().position(|(open, _)| *open == id) else { return };
        let (_, nonce) = self.open.remove(place);
        let node = self.node;
        self.world.lock().env.note(|| format!("node-{node}: {nonce} is answered {answer:?}"));
        self.emit(Fact::Answered { node, nonce, answer });
        if answer != Commit::Accepted {
            // The chain is broken, so the next term begins a new one.
            self.term = None;
        }
    }

    fn emit(&self, fact: Fact) {
        self.world.lock().env.facts.push(fact);
    }

    fn view(&self, change: impl FnOnce(&mut View)) {
        change(&mut self.views.lock().unwrap_or_else(PoisonError::into_inner)[self.node]);
    }
}

#[test]
fn the_backend_keeps_its_promises_whatever_goes_wrong() {
    let seeds = Seeds { each_run: 2_000, long_run: 2_000 };
    many::<Contenders>("the_backend_keeps_its_promises", seeds, Plan { faults: 25, peace: 8 });
}
