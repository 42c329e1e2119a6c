//! A node's backend on a real server, with the test in the role of the daemon.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cronkeeper_cluster::recipes::{ClaimError, LedgerReader, NodeIdentity, Options, SessionStore, StoreError, serve};
use cronkeeper_cluster::tree::{Connect, Lend};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::session::{Aside, ConnectionSettings, Connector};
use cronkeeper_core::clock::system::uptime;
use cronkeeper_core::clock::{Clock, Now, Wake};
use cronkeeper_core::coordination::{Coordination, channels};
use cronkeeper_core::election;
use cronkeeper_core::job::Labels;
use cronkeeper_core::ledger::Snapshot;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::term::{NodeName, SessionId, Term};
use jiff::Timestamp;
use uuid::Uuid;

use crate::port::daemon_end::{DaemonEnd, Process};
pub use crate::port::records::{at, begin, end, first_mark, job, mark, run, run_id, skip};
use crate::promises::cluster::Host;
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
    pub sessions: Vec<SessionId>,
    pub removable: Vec<SessionId>,
    /// If set, the disk is full: no session can be recorded.
    pub is_full: bool,
    /// If set, the disk becomes full when the cluster is to be recorded.
    pub is_claim_refused: bool,
}

/// What earlier processes of nodes have left on their hosts.
#[derive(Default)]
pub struct StateDirs(BTreeMap<String, Memory>);

impl StateDirs {
    /// What a new process of this node finds on that host. An earlier process there is dead, so its entries may be
    /// removed.
    pub fn of(&mut self, node: &str, host: Host) -> Memory {
        let memory = match host {
            Host::Own => self.0.entry(node.to_owned()).or_default().clone(),
            Host::Another => Memory::default(),
        };
        memory.with(|remembered| remembered.removable.clone_from(&remembered.sessions));
        memory
    }
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

    fn record(&mut self, session: &SessionId) -> Result<(), StoreError> {
        self.with(|remembered| match remembered.is_full {
            true => Err(StoreError(FULL.into())),
            false => {
                remembered.sessions.push(session.clone());
                Ok(())
            }
        })
    }

    fn removable(&self) -> Vec<SessionId> {
        self.with(|remembered| remembered.removable.clone())
    }
}

/// A backend under test.
pub struct Fixture {
    end: DaemonEnd,
    pub memory: Memory,
}

impl Deref for Fixture {
    type Target = DaemonEnd;

    fn deref(&self) -> &DaemonEnd {
        &self.end
    }
}

impl DerefMut for Fixture {
    fn deref_mut(&mut self) -> &mut DaemonEnd {
        &mut self.end
    }
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
        let (coordination, process) = open(settings, node, memory.clone(), forget_after);
        Self { end: DaemonEnd::new(coordination, process, Some(LONG)), memory }
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
        self.end.crash();
    }
}

/// Starts a backend for `node`, with a session of its own.
pub fn open(
    settings: ConnectionSettings,
    node: &str,
    memory: Memory,
    forget_after: Option<Duration>,
) -> (Coordination, Process) {
    let aside = Aside::new(settings.clone()).expect("plain settings are good");
    let root = settings.connect.find('/').map_or("/".into(), |at| settings.connect[at..].to_owned());
    let forget_after = ForgetAfter { jobs: forget_after, nodes: None };
    let options = Options { root, forget_after, ..options(settings.connect.clone()) };
    let connector = Connector::new(settings).expect("plain settings are good");
    open_on(Znodes(connector), Znodes(aside), node, memory, options)
}

/// The settings of a backend on this service.
pub fn options(service: String) -> Options {
    Options {
        service,
        root: "/".into(),
        uuid: Box::new(Uuid::new_v4),
        forget_after: ForgetAfter::default(),
        labels: Labels::default(),
        weight: 1,
    }
}

/// Starts a backend for `node` on any service.
pub fn open_on(
    connect: impl Connect,
    lend: impl Lend,
    node: &str,
    memory: Memory,
    options: Options,
) -> (Coordination, Process) {
    let (coordination, service) = channels(Arc::new(LedgerReader::new(lend)));
    let identity = NodeIdentity {
        node: NodeName::new(node),
        host: "localhost".into(),
        pid: std::process::id(),
        user: "test".into(),
        version: "test".into(),
        started_at: Timestamp::now(),
    };
    let task = tokio::spawn(serve(connect, System, identity, Box::new(memory), service, options));
    (coordination, Process::new(move || task.abort()))
}

/// The node `a` as leader, with its term and its session.
pub async fn leader(connect: &str) -> (Fixture, Term, SessionId) {
    leader_for(connect, TIMEOUT).await
}

/// The same with the longest session that the servers give, for a test in which no term may end: a loaded machine does
/// not always renew the lease of a short one in time.
pub async fn lasting_leader(connect: &str) -> (Fixture, Term, SessionId) {
    leader_for(connect, LONG).await
}

async fn leader_for(connect: &str, session_timeout: Duration) -> (Fixture, Term, SessionId) {
    let settings = ConnectionSettings { connect: connect.into(), session_timeout, ..ConnectionSettings::default() };
    let mut fixture = Fixture::with(settings, "a", Memory::default());
    fixture.ask(election::Request::Campaign);
    let session = fixture.session().await;
    let (term, _) = fixture.elected().await;
    (fixture, term, session)
}

/// A client of the ensemble that is not cronkeeper's.
pub async fn admin(connect: &str) -> zookeeper_client::Client {
    zookeeper_client::Client::connect(connect).await.expect("the server serves")
}
