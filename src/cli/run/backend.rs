//! From options to a backend: solo without `--zookeeper`, else ZooKeeper.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{Args, Plan};
use crate::cli::{Error, host};
use crate::clock::system::{self, SystemClock};
use crate::coordination::{Coordination, channels};
use crate::run::journal::{Recovered, RecoveredRun};
use crate::solo::{self, Leftovers, StillAlive};
use crate::state_dir::journal::FileJournal;
use crate::state_dir::{Belongs, StateDir};
use crate::term::NodeName;
use crate::warden::recover::{self, Recorded};
use crate::zookeeper::session::{Connector, Settings};
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
    connect: String,
    journal: FileJournal,
    recovered: Recovered,
}

/// A backend at work.
pub(super) struct Started {
    pub coordination: Coordination,
    pub journal: FileJournal,
    pub recovered: Recovered,
    /// Holds the state directory for as long as the daemon lives.
    pub _state: Arc<StateDir>,
}

impl Backend {
    /// Opens the state directory, and makes sure that what an earlier process left running is dead.
    pub(super) fn open(args: &Args, plan: &Plan) -> Result<Self, Error> {
        let Some(connect) = &args.zookeeper else {
            return Ok(Self::Solo(Box::new(StateDir::open(&plan.state_dir, Belongs::Solo, &plan.node)?)));
        };
        let settings = Settings {
            connect: connect.clone(),
            session_timeout: args.session_timeout,
            auth: args.credentials.auth()?,
            tls: args.credentials.tls()?,
        };
        let connector = Connector::new(settings).map_err(Error::ZooKeeperOptions)?;
        let belongs = Belongs::Zookeeper { chroot: chroot(connect).trim_end_matches('/').to_owned() };
        let state = StateDir::open(&plan.state_dir, belongs, &plan.node)?;
        let (journal, recovered) = state.journal()?;
        end_leftovers(&recovered.runs, DYING).map_err(Error::StillAlive)?;
        let state = Arc::new(state);
        Ok(Self::ZooKeeper(Box::new(ZooKeeper { state, connector, connect: connect.clone(), journal, recovered })))
    }

    /// Its name in logs and status.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Solo(_) => "solo",
            Self::ZooKeeper(_) => "zookeeper",
        }
    }

    /// Sets it to work, on the runtime.
    pub(super) async fn start(self, node: &NodeName) -> Result<Started, Error> {
        match self {
            Self::Solo(state) => {
                let node = node.clone();
                // It waits for a lock, and for the disk.
                let started = tokio::task::spawn_blocking(move || {
                    let leftovers: Leftovers = Arc::new(|runs| end_leftovers(runs, DYING));
                    solo::start(&state, &node, leftovers).map(|solo| (solo, state))
                });
                let (solo, state) = started.await.map_err(|_| Error::Panicked)??;
                let (coordination, journal) = (solo.coordination, solo.journal);
                Ok(Started { coordination, journal, recovered: Recovered::default(), _state: Arc::from(state) })
            }
            Self::ZooKeeper(zookeeper) => Ok(zookeeper.start(node)),
        }
    }
}

impl ZooKeeper {
    fn start(self, node: &NodeName) -> Started {
        let identity = NodeIdentity {
            node: node.clone(),
            host: host::name(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: system::now().wall,
        };
        let reader = Arc::new(LedgerReader::default());
        let (coordination, service) = channels(reader.clone());
        let options = Options {
            chroot: chroot(&self.connect).to_owned(),
            service: self.connect,
            uuid: Box::new(Uuid::new_v4),
            reader,
        };
        let store = Box::new(KeptSessions::new(self.state.clone()));
        // Its end closes the channel of events: the daemon's loop notices.
        tokio::spawn(zookeeper::serve(self.connector, SystemClock::default(), identity, store, service, options));
        Started { coordination, journal: self.journal, recovered: self.recovered, _state: self.state }
    }
}

/// The part of a connect string behind the servers; `/` where there is none.
fn chroot(connect: &str) -> &str {
    connect.find('/').map_or("/", |at| &connect[at..])
}

/// Kills what is left of runs whose node is dead, and sees it dead.
pub(super) fn end_leftovers(runs: &[RecoveredRun], within: Duration) -> Result<(), StillAlive> {
    let mut by_node: BTreeMap<&NodeName, Vec<Recorded>> = BTreeMap::new();
    for run in runs {
        let main = run.pid.map(|(pid, start)| (pid, Some(start)));
        by_node.entry(&run.record.owner.node).or_default().push(Recorded { run: run.record.id().to_string(), main });
    }
    for (node, recorded) in by_node {
        let survivors = recover::kill_leftovers(&recorded, node.as_str(), within);
        let survivors = survivors.map_err(|error| StillAlive(format!("/proc cannot be read: {error}")))?;
        if let Some(survivor) = survivors.first() {
            return Err(StillAlive(format!("process {} of run {}", survivor.pid, survivor.run)));
        }
    }
    Ok(())
}
