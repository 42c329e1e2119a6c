//! From options to a backend: solo without `--zookeeper`, else ZooKeeper.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{Args, Plan};
use crate::cli::node_args::chroot;
use crate::cli::{Error, host, leftovers};
use crate::clock::system::{self, SystemClock};
use crate::coordination::{Coordination, channels};
use crate::ledger::{Operator, Reader};
use crate::run::journal::Recovered;
use crate::solo::{self, Leftovers};
use crate::state_dir::StateDir;
use crate::state_dir::journal::FileJournal;
use crate::term::NodeName;
use crate::zookeeper::session::{Aside, Connector};
use crate::zookeeper::{self, KeptSessions, LedgerReader, NodeIdentity, Options};

/// How long the processes of a dead node may take to die of SIGKILL.
pub(super) const DYING: Duration = Duration::from_secs(10);

/// A backend whose state directory is held.
pub(super) enum Backend {
    /// Replicas on this host.
    Solo(Box<StateDir>),
    /// Replicas on many.
    ZooKeeper(Box<ZooKeeper>),
}

/// ZooKeeper, not yet connected.
pub(super) struct ZooKeeper {
    state: Arc<StateDir>,
    connector: Connector,
    /// For whoever asks on the socket, and on the network.
    asides: [Aside; 2],
    connect: String,
    journal: FileJournal,
    recovered: Recovered,
}

/// A backend at work.
pub(super) struct Started {
    pub coordination: Coordination,
    /// The ledger, for whoever asks on the network: what they read delays nobody else.
    pub remote: Ledger,
    pub journal: FileJournal,
    pub recovered: Recovered,
    /// Holds the state directory for as long as the daemon lives.
    pub _state: Arc<StateDir>,
}

/// The ledger, for people.
pub(super) struct Ledger {
    pub reader: Arc<dyn Reader>,
    pub operator: Arc<dyn Operator>,
}

impl Backend {
    /// Opens the state directory, and makes sure that what an earlier process left running is dead.
    pub(super) fn open(args: &Args, plan: &Plan) -> Result<Self, Error> {
        let home = &args.home;
        let Some(connect) = &home.zookeeper else {
            return Ok(Self::Solo(Box::new(StateDir::open(&plan.state_dir, home.belongs(), &plan.node)?)));
        };
        let connector = home.connector(connect, args.session_timeout)?;
        let aside = || Aside::new(home.settings(connect, args.session_timeout)?).map_err(Error::ZooKeeperOptions);
        let asides = [aside()?, aside()?];
        let state = StateDir::open(&plan.state_dir, home.belongs(), &plan.node)?;
        let (journal, recovered) = leftovers::settle(&state, &plan.node, DYING, system::now().wall)?;
        let state = Arc::new(state);
        let connect = connect.clone();
        Ok(Self::ZooKeeper(Box::new(ZooKeeper { state, connector, asides, connect, journal, recovered })))
    }

    /// Its name in logs and status.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Solo(_) => "solo",
            Self::ZooKeeper(_) => "zookeeper",
        }
    }

    /// Sets it to work, on the runtime.
    pub(super) async fn start(self, node: &NodeName, forget_after: Option<Duration>) -> Result<Started, Error> {
        match self {
            Self::Solo(state) => {
                let node = node.clone();
                // It waits for a lock, and for the disk.
                let started = tokio::task::spawn_blocking(move || {
                    let leftovers: Leftovers = Arc::new(|runs| leftovers::kill(runs, DYING));
                    solo::start(&state, &node, leftovers, forget_after).map(|solo| (solo, state))
                });
                let (solo, state) = started.await.map_err(|_| Error::Panicked)??;
                let (coordination, journal) = (solo.coordination, solo.journal);
                // Each read is on a connection and a thread of its own anyway.
                let (reader, operator) = (coordination.reader.clone(), coordination.operator.clone());
                let remote = Ledger { reader, operator };
                Ok(Started { coordination, remote, journal, recovered: Recovered::default(), _state: Arc::from(state) })
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
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: system::now().wall,
        };
        let [local, remote] = self.asides.map(|aside| Arc::new(LedgerReader::new(aside)));
        let (coordination, service) = channels(local);
        let remote = Ledger { reader: remote.clone(), operator: remote };
        let options = Options {
            chroot: chroot(&self.connect).to_owned(),
            service: self.connect,
            uuid: Box::new(Uuid::new_v4),
            forget_after,
        };
        let store = Box::new(KeptSessions::new(self.state.clone(), &self.recovered));
        // Its end closes the channel of events: the daemon's loop notices.
        tokio::spawn(zookeeper::serve(self.connector, SystemClock::default(), identity, store, service, options));
        Started { coordination, remote, journal: self.journal, recovered: self.recovered, _state: self.state }
    }
}
