//! The backend that the options select: solo without `--zookeeper`, else ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use uuid::Uuid;

use super::{Args, Startup};
use crate::accounts::Account;
use crate::cli::{Error, host, leftovers};
use crate::warden::begins;
use cronkeeper_cluster::recipes::{self, KeptSessions, LedgerReader, NodeIdentity, Options};
use cronkeeper_cluster::solo::{self, HeldLocks, Leftovers, LocksOfJobs};
use cronkeeper_cluster::state_dir::StateDir;
use cronkeeper_cluster::state_dir::journal::FileJournal;
use cronkeeper_cluster::zookeeper::Znodes;
use cronkeeper_cluster::zookeeper::connect_string::ConnectString;
use cronkeeper_cluster::zookeeper::session::{Aside, Connector};
use cronkeeper_core::clock::system::{self, SystemClock};
use cronkeeper_core::coordination::Reader;
use cronkeeper_core::coordination::{Coordination, channels};
use cronkeeper_core::ledger::Operator;
use cronkeeper_core::process::Custody;
use cronkeeper_core::run::journal::Recovered;
use cronkeeper_core::term::NodeName;

/// Time for the processes of a dead node to die after SIGKILL.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Most notes of dead members that are kept for the one that leads next, which settles their runs.
const MOST_LEFT: usize = 16;

/// A backend that holds its state directory, not yet started.
pub(super) enum Backend {
    /// Replicas on this host only.
    Solo(Box<StateDir>),
    /// Replicas on many hosts.
    ZooKeeper(Box<ZooKeeper>),
}

/// ZooKeeper, not yet connected.
pub(super) struct ZooKeeper {
    state: Arc<StateDir>,
    connector: Connector,
    /// Separate sessions for the clients on the socket and on TCP.
    asides: [Aside; 2],
    connect: ConnectString,
    journal: FileJournal,
    recovered: Recovered,
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
    /// Serves ZooKeeper until the coordination is dropped. It shares the state directory.
    pub serving: Option<JoinHandle<()>>,
    /// Keeps the locks of runs whose processes this process has to kill after its backend has ended.
    pub _locks: Option<HeldLocks>,
}

/// Reads and requests of API clients.
pub(super) struct LedgerAccess {
    pub reader: Arc<dyn Reader>,
    pub operator: Arc<dyn Operator>,
}

impl Backend {
    /// Opens the state directory. On ZooKeeper, also kills what an earlier process of this node left running.
    pub(super) fn open(args: &Args, startup: &Startup) -> Result<Self, Error> {
        let Startup { node, state_dir, .. } = startup;
        let identity = args.node.backend_identity();
        let Some(connect) = &args.node.zookeeper else {
            return Ok(Self::Solo(Box::new(StateDir::open(state_dir, identity, node)?)));
        };
        let connector = args.node.connector(connect, args.session_timeout)?;
        let aside = || Aside::new(args.node.settings(connect, args.session_timeout)?).map_err(Error::ZooKeeperOptions);
        let asides = [aside()?, aside()?];
        let state = StateDir::open(state_dir, identity, node)?;
        state.note_node(node)?;
        let (journal, recovered) = leftovers::settle(&state, node, KILL_TIMEOUT, system::now().wall)?;
        begins::remove_left(state.path(), 0);
        let state = Arc::new(state);
        let connect = connect.clone();
        Ok(Self::ZooKeeper(Box::new(ZooKeeper { state, connector, asides, connect, journal, recovered })))
    }

    /// The backend's name in logs and status.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Solo(_) => "solo",
            Self::ZooKeeper(_) => "zookeeper",
        }
    }

    /// Starts the backend on the current runtime. The warden whose `custody` it is also holds the locks of this host.
    pub(super) async fn start(
        self,
        node: &NodeName,
        forget_after: Option<Duration>,
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
                    solo::start(&state, &node, leftovers, forget_after, locks).map(|solo| (solo, state))
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
            Self::ZooKeeper(zookeeper) => Ok(zookeeper.start(node, forget_after)),
        }
    }
}

impl ZooKeeper {
    fn start(self, node: &NodeName, forget_after: Option<Duration>) -> Started {
        let identity = NodeIdentity {
            node: node.clone(),
            host: host::name(),
            pid: std::process::id(),
            user: Account::own().name,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: system::now().wall,
        };
        let [local, remote] = self.asides.map(|aside| Arc::new(LedgerReader::new(Znodes(aside))));
        let (coordination, service) = channels(local);
        let remote = LedgerAccess { reader: remote.clone(), operator: remote };
        let options = Options {
            root: self.connect.shown_chroot().to_owned(),
            service: self.connect.to_string(),
            uuid: Box::new(Uuid::new_v4),
            forget_after,
        };
        let store = Box::new(KeptSessions::new(self.state.clone(), &self.recovered));
        // When this task ends, the channel of events closes, and the daemon's loop notices.
        let serving = recipes::serve(Znodes(self.connector), SystemClock::default(), identity, store, service, options);
        let serving = Some(tokio::spawn(serving));
        let (journal, recovered, state) = (self.journal, self.recovered, self.state);
        Started { coordination, remote, journal, recovered, state, serving, _locks: None }
    }
}
