//! The backend that the options select: solo, or the cluster of a coordination service.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{Args, Startup};
use crate::accounts::Account;
use crate::cli::node_args::Named;
use crate::cli::stores::{NamedStore, for_store, on_store};
use crate::cli::{Error, host, leftovers};
use crate::warden::begins;
use cronkeeper_cluster::observed::Heads;
use cronkeeper_cluster::recipes::{self, KeptSessions, LedgerReader, NodeIdentity, Options};
use cronkeeper_cluster::solo::{self, HeldLocks, Leftovers, LocksOfJobs};
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_cluster::state_dir::{StateDir, note_head};
use cronkeeper_cluster::store::{Rewinds, Store};
use cronkeeper_cluster::tree::{Connect, Lend, Session};
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::connect_string::ConnectString;
use cronkeeper_cluster::zookeeper::session::{Aside, Connector};
use cronkeeper_core::clock::system::{self, SystemClock};
use cronkeeper_core::coordination::Reader;
use cronkeeper_core::coordination::{Coordination, channels};
use cronkeeper_core::election::Place;
use cronkeeper_core::ledger::Operator;
use cronkeeper_core::ledger::forgetting::ForgetAfter;
use cronkeeper_core::process::Custody;
use cronkeeper_core::run::journal::Recovered;
use cronkeeper_core::term::NodeName;

/// Time for the processes of a dead node to die after SIGKILL.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the newest commit that a store has shown is remembered on disk.
const KEEP_HEAD: Duration = Duration::from_secs(1);

/// Most notes of dead members that are kept for the one that leads next, which settles their runs.
const MOST_LEFT: usize = 16;

/// A backend that holds its state directory, not yet started.
pub(super) enum Backend {
    /// Replicas on this host only.
    Solo(Box<StateDir>),
    /// Replicas on many hosts.
    Cluster(Box<Cluster>),
}

/// The replicas of a coordination service, not yet connected.
pub(super) struct Cluster {
    state: Arc<StateDir>,
    service: Service,
    /// What the node is as a place to run jobs.
    place: Place,
    journal: FileJournal,
    recovered: Recovered,
}

/// A coordination service, with separate sessions for the clients on the socket and on TCP.
enum Service {
    ZooKeeper { connector: Box<Connector>, asides: [Aside; 2], connect: ConnectString },
    Store { store: NamedStore, session_timeout: Duration, rewinds: Rewinds },
}

/// A running backend.
pub(super) struct Started {
    pub coordination: Coordination,
    /// The ledger for clients on TCP. It has its own session, so that their reads delay nobody else.
    pub remote: LedgerAccess,
    pub journal: FileJournal,
    pub recovered: Recovered,
    /// Keeps the state directory locked while the daemon is running.
    pub state: Arc<StateDir>,
    /// Serves the cluster until the coordination is dropped. It shares the state directory.
    pub serving: Option<JoinHandle<()>>,
    /// Keeps the locks of runs whose processes this process has to kill after its backend has ended.
    pub _locks: Option<HeldLocks>,
}

/// Reads and requests of API clients.
pub(super) struct LedgerAccess {
    pub reader: Arc<dyn Reader>,
    pub operator: Arc<dyn Operator>,
}

/// What a node with these settings depends on, as people call it.
pub(super) fn service(args: &Args) -> Result<&'static str, Error> {
    Ok(match args.node.named()? {
        None => "the state directory",
        Some(Named::ZooKeeper(_)) => <<Znodes<Connector> as Connect>::Session as Session>::SERVICE,
        Some(Named::Store(store)) => store.service(),
    })
}

impl Backend {
    /// Opens the state directory. With a service, also kills what an earlier process of this node left running.
    pub(super) fn open(args: &Args, startup: &Startup) -> Result<Self, Error> {
        let Startup { node, place, state_dir, .. } = startup;
        let identity = args.node.backend_identity()?;
        let service = match args.node.named()? {
            None => return Ok(Self::Solo(Box::new(StateDir::open(state_dir, identity, node)?))),
            Some(Named::ZooKeeper(connect)) => {
                let connector = Box::new(args.node.connector(&connect, args.session_timeout)?);
                let aside = || {
                    let settings = args.node.settings(&connect, args.session_timeout)?;
                    Aside::new(settings).map_err(Error::ZooKeeperOptions)
                };
                Service::ZooKeeper { connector, asides: [aside()?, aside()?], connect }
            }
            Some(Named::Store(store)) => {
                Service::Store { store, session_timeout: args.session_timeout, rewinds: args.node.rewinds() }
            }
        };
        let state = StateDir::open(state_dir, identity, node)?;
        state.note_node(node)?;
        let (journal, recovered) = leftovers::settle(&state, node, KILL_TIMEOUT, system::now().wall)?;
        begins::remove_left(state.path(), 0);
        let place = place.clone();
        Ok(Self::Cluster(Box::new(Cluster { state: Arc::new(state), service, place, journal, recovered })))
    }

    /// The backend's name in logs and status.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Solo(_) => "solo",
            Self::Cluster(cluster) => match &cluster.service {
                Service::ZooKeeper { .. } => "zookeeper",
                Service::Store { store, .. } => store.name(),
            },
        }
    }

    /// Starts the backend on the current runtime. The warden whose `custody` it is also holds the locks of this host.
    pub(super) async fn start(
        self,
        node: &NodeName,
        forget_after: ForgetAfter,
        custody: Arc<dyn Custody>,
    ) -> Result<Started, Error> {
        match self {
            Self::Solo(state) => {
                let node = node.clone();
                // On a blocking thread: it waits for a lock, for the disk, and perhaps for a directory service.
                let started = tokio::task::spawn_blocking(move || {
                    let path = state.path().to_owned();
                    let leftovers: Leftovers = Arc::new(move |runs| leftovers::end(&path, runs, KILL_TIMEOUT));
                    begins::remove_left(state.path(), MOST_LEFT);
                    let locks = LocksOfJobs { user: Account::own().name, custody: Some(custody) };
                    solo::start(&state, &node, leftovers, forget_after.jobs, locks).map(|solo| (solo, state))
                });
                let (solo, state) = started.await.map_err(|_| Error::Panicked)??;
                let (coordination, journal) = (solo.coordination, solo.journal);
                // The clients on TCP share these: each read has its own connection and thread anyway.
                let (reader, operator) = (coordination.reader.clone(), coordination.operator.clone());
                let remote = LedgerAccess { reader, operator };
                let recovered = Recovered::default();
                let (state, _locks) = (Arc::from(state), Some(solo.locks));
                Ok(Started { coordination, remote, journal, recovered, state, serving: None, _locks })
            }
            Self::Cluster(cluster) => cluster.start(node, forget_after),
        }
    }
}

impl Cluster {
    fn start(self, node: &NodeName, forget_after: ForgetAfter) -> Result<Started, Error> {
        let Self { state, service, place, journal, recovered } = self;
        let member = Member { state, node: node.clone(), place, forget_after, journal, recovered };
        match service {
            Service::ZooKeeper { connector, asides, connect } => {
                let (root, service) = (connect.shown_chroot().to_owned(), connect.to_string());
                Ok(member.start(Znodes(*connector), asides.map(Znodes), root, service))
            }
            Service::Store { store, session_timeout, rewinds } => for_store!(store, settings, S => {
                let store = || S::new(settings.as_ref().clone(), session_timeout, rewinds);
                member.start_on(store, session_timeout, settings.to_string())
            }),
        }
    }
}

/// Remembers on disk, every few moments, what the node was shown last, so that its next process notices what is lost.
/// Ends with the node.
async fn keep_head(heads: Weak<Mutex<Heads>>, directory: PathBuf) {
    let mut kept = None;
    loop {
        tokio::time::sleep(KEEP_HEAD).await;
        let Some(heads) = heads.upgrade() else { return };
        let newest = heads.lock().unwrap_or_else(PoisonError::into_inner).read();
        drop(heads);
        if let Some(head) = newest.filter(|_| newest != kept) {
            let directory = directory.clone();
            match tokio::task::spawn_blocking(move || note_head(&directory, head)).await {
                Ok(Ok(())) => kept = newest,
                // The next try may find room on the disk again.
                Ok(Err(error)) => tracing::debug!(%error, "cannot remember what the store has shown"),
                Err(_) => return,
            }
        }
    }
}

/// A node of a cluster, on whatever service.
struct Member {
    state: Arc<StateDir>,
    node: NodeName,
    place: Place,
    forget_after: ForgetAfter,
    journal: FileJournal,
    recovered: Recovered,
}

impl Member {
    /// Starts the recipes on a store, with a client of its own for each session. `service` is for messages.
    fn start_on<S: Store>(
        self,
        store: impl Fn() -> S,
        session_timeout: Duration,
        service: String,
    ) -> Result<Started, Error> {
        let heads = Arc::new(Mutex::new(Heads::since(self.state.head()?)));
        tokio::spawn(keep_head(Arc::downgrade(&heads), self.state.path().to_owned()));
        let session = || on_store(store(), session_timeout, Arc::clone(&heads));
        let asides = [session(), session()];
        Ok(self.start(session(), asides, "/".to_owned(), service))
    }

    /// Starts the recipes. `root` and `service` are for messages.
    fn start<C: Connect, L: Lend>(self, connect: C, asides: [L; 2], root: String, service: String) -> Started {
        let Self { state, node, place: Place { labels, weight, .. }, forget_after, journal, recovered } = self;
        let identity = NodeIdentity {
            node,
            host: host::name(),
            pid: std::process::id(),
            user: Account::own().name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: system::now().wall,
        };
        let [local, remote] = asides.map(|aside| Arc::new(LedgerReader::new(aside)));
        let (coordination, requests) = channels(local);
        let remote = LedgerAccess { reader: remote.clone(), operator: remote };
        // One process of a job keeps one processor busy, if nobody says more.
        let options = Options { root, service, uuid: Box::new(Uuid::new_v4), forget_after, labels, weight };
        let store = Box::new(KeptSessions::new(state.clone(), &recovered));
        // When this task ends, the channel of events closes, and the daemon's loop notices.
        let serving = recipes::serve(connect, SystemClock::default(), identity, store, requests, options);
        let serving = Some(tokio::spawn(serving));
        Started { coordination, remote, journal, recovered, state, serving, _locks: None }
    }
}
