//! Nodes of one cluster on a real server.

use cronkeeper_cluster::zookeeper::session::ConnectionSettings;
use cronkeeper_core::election::Failure;

use crate::port::daemon_end::DaemonEnd;
use crate::promises::cluster::{Backend, Cluster, Host, Started};
use crate::support::LONG;
use crate::support::zookeeper::shared;
use crate::zookeeper::fixture::{StateDirs, TIMEOUT, open};

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    runtime.block_on(promise(Cluster::new(Hosts { connect: shared(), state_dirs: StateDirs::default() })));
}

struct Hosts {
    connect: String,
    state_dirs: StateDirs,
}

impl Backend for Hosts {
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure> {
        let memory = self.state_dirs.of(name, host);
        let (connect, session_timeout) = (self.connect.clone(), TIMEOUT);
        let settings = ConnectionSettings { connect, session_timeout, ..ConnectionSettings::default() };
        let (coordination, process) = open(settings, name, memory, None);
        Ok(Started { end: DaemonEnd::new(coordination, process, Some(LONG)), journal: None })
    }
}
