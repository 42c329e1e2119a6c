//! A node's backend on a real server, with the test in the role of the daemon.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cronkeeper::clock::system::uptime;
use cronkeeper::clock::{Clock, Now, Wake};
use cronkeeper::coordination::{self, Coordination, Request, channels};
use cronkeeper::job::JobName;
use cronkeeper::ledger::{Change, Commit, CommitId, Snapshot};
use cronkeeper::run::{
    JobRecord, Nonce, OnLoss, Outcome, Owner, Past, RunEnd, RunId, RunRecord, RunState, Skip, SkipReason, Version,
};
use cronkeeper::term::{FencingToken, NodeName, SessionId, Term};
use cronkeeper::zookeeper::session::{Aside, ConnectionSettings, Connector};
use cronkeeper::zookeeper::{ClaimError, LedgerReader, NodeIdentity, Options, SessionStore, StoreError, serve};
use cronkeeper::{election, ledger};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::LONG;

/// Session timeout of these tests.
pub const TIMEOUT: Duration = Duration::from_secs(4);

/// The system clocks.
#[derive(Clone)]
pub struct System;

impl Clock for System {
    fn now(&self) -> Now {
        Now { wall: Timestamp::now(), up: uptime() }
    }

    async fn sleep_until(&self, wake: Wake) {
        match wake.up {
            Some(up) => tokio::time::sleep(up.since(uptime())).await,
            None => std::future::pending().await,
        }
    }
}

/// The content of a state directory.
#[derive(Clone, Default)]
pub struct Memory(pub Arc<Mutex<Remembered>>);

#[derive(Default)]
pub struct Remembered {
    pub cluster: Option<String>,
    pub sessions: Vec<i64>,
    pub removable: Vec<i64>,
    /// If set, the disk is full: no session can be recorded.
    pub is_full: bool,
    /// If set, the disk becomes full when the cluster is to be recorded.
    pub is_claim_refused: bool,
}

const FULL: &str = "no space left on device";

impl Memory {
    pub fn with<T>(&self, look: impl FnOnce(&mut Remembered) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SessionStore for Memory {
    fn claim(&mut self, cluster: &str) -> Result<(), ClaimError> {
        self.with(|remembered| match &remembered.cluster {
            Some(ours) if ours != cluster => Err(ClaimError::OtherCluster { ours: ours.clone() }),
            None if remembered.is_claim_refused => Err(StoreError(FULL.into()).into()),
            _ => {
                remembered.cluster = Some(cluster.to_owned());
                Ok(())
            }
        })
    }

    fn cluster(&self) -> Option<String> {
        self.with(|remembered| remembered.cluster.clone())
    }

    fn record(&mut self, owner: i64) -> Result<(), StoreError> {
        self.with(|remembered| match remembered.is_full {
            true => Err(StoreError(FULL.into())),
            false => {
                remembered.sessions.push(owner);
                Ok(())
            }
        })
    }

    fn removable(&self) -> Vec<i64> {
        self.with(|remembered| remembered.removable.clone())
    }
}

/// A backend under test.
pub struct Fixture {
    coordination: Coordination,
    task: JoinHandle<()>,
    pub memory: Memory,
    pub seen: VecDeque<coordination::Event>,
    commits: u64,
}

impl Fixture {
    pub fn start(connect: &str, node: &str) -> Self {
        let settings =
            ConnectionSettings { connect: connect.into(), session_timeout: TIMEOUT, ..ConnectionSettings::default() };
        Self::with(settings, node, Memory::default())
    }

    /// Starts a backend with a state directory of an earlier process of the node.
    pub fn remembering(connect: &str, node: &str, memory: Memory) -> Self {
        let settings =
            ConnectionSettings { connect: connect.into(), session_timeout: TIMEOUT, ..ConnectionSettings::default() };
        Self::with(settings, node, memory)
    }

    pub fn with(settings: ConnectionSettings, node: &str, memory: Memory) -> Self {
        Self::forgetting(settings, node, memory, None)
    }

    /// Starts a backend that removes the records of jobs that are gone for this long.
    pub fn forgetting(
        settings: ConnectionSettings,
        node: &str,
        memory: Memory,
        forget_after: Option<Duration>,
    ) -> Self {
        let aside = Aside::new(settings.clone()).expect("plain settings are good");
        let (coordination, service) = channels(Arc::new(LedgerReader::new(aside)));
        let identity = NodeIdentity {
            node: NodeName::new(node),
            host: "localhost".into(),
            pid: std::process::id(),
            version: "test".into(),
            started_at: Timestamp::now(),
        };
        let chroot = settings.connect.find('/').map_or("/".into(), |at| settings.connect[at..].to_owned());
        let options = Options { service: settings.connect.clone(), chroot, uuid: Box::new(Uuid::new_v4), forget_after };
        let connector = Connector::new(settings).expect("plain settings are good");
        let store = Box::new(memory.clone());
        let task = tokio::spawn(serve(connector, System, identity, store, service, options));
        Self { coordination, task, memory, seen: VecDeque::new(), commits: 0 }
    }

    /// Starts a backend that campaigns, and waits until it leads.
    pub async fn leading(connect: &str, node: &str) -> (Self, Term, Snapshot) {
        let mut fixture = Self::start(connect, node);
        fixture.ask(election::Request::Campaign);
        let (term, snapshot) = fixture.elected().await;
        (fixture, term, snapshot)
    }

    /// Stops as a killed process does.
    pub fn crash(self) {
        self.task.abort();
    }

    pub fn ask(&self, request: election::Request) {
        self.coordination.requests.send(Request::Election(request)).expect("the backend lives");
    }

    pub fn ask_ledger(&self, request: ledger::Request) {
        self.coordination.requests.send(Request::Ledger(request)).expect("the backend lives");
    }

    pub fn reader(&self) -> &dyn coordination::Reader {
        self.coordination.reader.as_ref()
    }

    pub fn operator(&self) -> Arc<dyn ledger::Operator> {
        self.coordination.operator.clone()
    }

    /// Waits for an event and keeps those before it in `seen`.
    pub async fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&coordination::Event) -> Option<T>) -> T {
        let waiting = async {
            loop {
                let event = self.coordination.events.recv().await.expect("the backend lives");
                let found = wanted(&event);
                self.seen.push_back(event);
                if let Some(found) = found {
                    return found;
                }
            }
        };
        let found = tokio::time::timeout(LONG, waiting).await;
        found.unwrap_or_else(|_| panic!("not in time: {what}; seen {:#?}", self.seen))
    }

    pub async fn election<T>(&mut self, what: &str, mut wanted: impl FnMut(&election::Event) -> Option<T>) -> T {
        self.until(what, |event| match event {
            coordination::Event::Election(event) => wanted(event),
            coordination::Event::Ledger(_) => None,
        })
        .await
    }

    /// True if such an election event has come already.
    pub fn seen_election(&self, wanted: impl Fn(&election::Event) -> bool) -> bool {
        self.seen.iter().any(|event| match event {
            coordination::Event::Election(event) => wanted(event),
            coordination::Event::Ledger(_) => false,
        })
    }

    pub async fn elected(&mut self) -> (Term, Snapshot) {
        self.election("elected", |event| match event {
            election::Event::Elected { term, snapshot, .. } => Some((term.clone(), (**snapshot).clone())),
            _ => None,
        })
        .await
    }

    pub async fn over(&mut self) -> (Term, cronkeeper::term::TermEnd) {
        self.election("over", |event| match event {
            election::Event::Over { term, why } => Some((term.clone(), *why)),
            _ => None,
        })
        .await
    }

    pub async fn following(&mut self, node: Option<&str>) {
        let node = node.map(NodeName::new);
        self.election("following", |event| match event {
            election::Event::Following { predecessor_node, .. } => (*predecessor_node == node).then_some(()),
            _ => None,
        })
        .await;
    }

    pub async fn session(&mut self) -> SessionId {
        self.election("session", |event| match event {
            election::Event::Session { id, .. } => Some(id.clone()),
            _ => None,
        })
        .await
    }

    /// Requests a commit without waiting for its answer.
    pub fn request(&mut self, change: Change) -> CommitId {
        self.commits += 1;
        let id = CommitId(self.commits);
        self.ask_ledger(ledger::Request::Commit { id, change });
        id
    }

    pub async fn answer(&mut self, id: CommitId) -> Commit {
        let wanted = |event: &coordination::Event| match event {
            coordination::Event::Ledger(ledger::Event::Answered { id: of, answer }) => (*of == id).then_some(*answer),
            _ => None,
        };
        match self.seen.iter().find_map(wanted) {
            Some(answer) => answer,
            None => self.until("an answer", wanted).await,
        }
    }

    pub async fn commit(&mut self, change: Change) -> Commit {
        let id = self.request(change);
        self.answer(id).await
    }

    /// Waits for the next event of a run.
    pub async fn ledger<T>(&mut self, what: &str, mut wanted: impl FnMut(&ledger::Event) -> Option<T>) -> T {
        self.until(what, |event| match event {
            coordination::Event::Ledger(event) => wanted(event),
            coordination::Event::Election(_) => None,
        })
        .await
    }
}

/// The node `a` as leader, with its term and its session.
pub async fn leader(connect: &str) -> (Fixture, Term, SessionId) {
    let mut fixture = Fixture::start(connect, "a");
    fixture.ask(election::Request::Campaign);
    let session = fixture.session().await;
    let (term, _) = fixture.elected().await;
    (fixture, term, session)
}

pub fn job(name: &str) -> JobName {
    JobName::parse(name).expect("a good name")
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

pub fn mark(second: i64, nonce: &str) -> JobRecord {
    JobRecord { v: 1, last_scheduled: at(second), counted: None, schedule: None, nonce: Nonce(nonce.into()) }
}

pub fn first_mark(name: &str, nonce: &str) -> Change {
    Change::Advance { job: job(name), at: None, record: mark(0, nonce), skip: None }
}

pub fn run(name: &str, second: i64, node: &str, session: &SessionId, token: FencingToken) -> RunRecord {
    RunRecord {
        v: 1,
        job: job(name),
        scheduled_at: at(second),
        trigger: None,
        state: RunState::Running,
        owner: Owner { node: NodeName::new(node), session: session.clone() },
        token,
        attempt: 1,
        nonce: Nonce(format!("{token}-{name}-{second}")),
        begun_at: at(second),
        on_loss: OnLoss::CutOff,
        keep_until: None,
        ready_at: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        kill: None,
    }
}

pub fn skip(name: &str, second: i64, reason: SkipReason, node: &str, token: FencingToken) -> Skip {
    Skip {
        v: 1,
        job: job(name),
        reason,
        first: at(second),
        last: at(second),
        count: 1,
        trigger: None,
        token,
        node: NodeName::new(node),
        decided_at: at(second),
    }
}

pub fn run_id(name: &str, second: i64) -> RunId {
    RunId::scheduled(job(name), at(second))
}

pub fn begin(version: i32, run: &RunRecord) -> Change {
    let record = mark(run.scheduled_at.as_second(), &run.nonce.0);
    Change::Begin { at: Version(version), record, run: run.clone() }
}

pub fn end(version: i32, run: &RunRecord) -> Change {
    let end = RunEnd {
        v: 1,
        run: run.clone(),
        outcome: Outcome::Success,
        reason: None,
        exit_code: Some(0),
        signal: None,
        ended_at: run.begun_at,
        duration_ms: Some(1),
        leftovers: 0,
        tail: String::new(),
        dropped_bytes: 0,
    };
    Change::End { at: Version(version), end, as_leader: false }
}

/// A client of the ensemble that is not cronkeeper's.
pub async fn admin(connect: &str) -> zookeeper_client::Client {
    zookeeper_client::Client::connect(connect).await.expect("the server serves")
}
