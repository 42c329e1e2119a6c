//! Nodes of one cluster on one file of SQLite, each with its own connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::observed::{Observed, OnTokio};
use cronkeeper_cluster::sqlite::Sqlite;
use cronkeeper_core::election::Failure;
use uuid::Uuid;

use crate::port::daemon_end::DaemonEnd;
use crate::promises::cluster::{Backend, Cluster, Host, Started};
use crate::support::LONG;
use crate::zookeeper::fixture::{StateDirs, System, open_on, options};

/// Long enough that no session ends because a busy disk takes seconds to write.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let folder = tempfile::tempdir().expect("a folder can be made");
    let ledger = folder.path().join("ledger");
    runtime.block_on(promise(Cluster::new(Hosts { ledger, state_dirs: StateDirs::default() })));
}

struct Hosts {
    ledger: PathBuf,
    state_dirs: StateDirs,
}

impl Backend for Hosts {
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure> {
        let memory = self.state_dirs.of(name, host);
        let store = Sqlite::open(&self.ledger).expect("the file can be used");
        let observed = Observed {
            store,
            clock: System,
            spawn: OnTokio,
            timeout: TIMEOUT,
            uuid: Arc::new(Uuid::new_v4),
            heads: Arc::default(),
        };
        let options = options(self.ledger.display().to_string());
        let (coordination, process) = open_on(observed.clone(), observed, name, memory, options);
        Ok(Started { end: DaemonEnd::new(coordination, process, Some(LONG)), journal: None })
    }
}
