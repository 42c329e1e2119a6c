//! Several nodes in one state directory. They compete as separate processes would, because locks belong to open files.

use std::collections::BTreeSet;
use std::sync::Arc;

use cronkeeper_cluster::solo::{self, LocksOfJobs, SoloError};
use cronkeeper_cluster::state_dir::{BackendIdentity, StateDir};
use cronkeeper_core::election::Failure;
use cronkeeper_core::term::NodeName;

use crate::port::daemon_end::{DaemonEnd, Process};
use crate::promises::cluster::{Backend, Cluster, Host, Started};
use crate::support::{LONG, poll};

/// Shows that a promise holds.
pub fn hold<P: Future<Output = ()>>(promise: impl Fn(Cluster) -> P) {
    let dir = tempfile::tempdir().expect("a directory can be had");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    runtime.block_on(promise(Cluster::new(OneHost(dir))));
}

struct OneHost(tempfile::TempDir);

impl Backend for OneHost {
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure> {
        let node = NodeName::new(name);
        let state = StateDir::open(self.0.path(), BackendIdentity::Solo, &node).expect("the state directory is good");
        let locks = || LocksOfJobs { user: "ada".into(), custody: None };
        let try_once = || match solo::start(&state, &node, Arc::new(|_| Ok(BTreeSet::new())), None, locks()) {
            // An earlier process of the host is dying: its thread still has its lock.
            Err(SoloError::Refused(Failure::NameTaken { .. })) if host == Host::Own => None,
            other => Some(other),
        };
        match poll(LONG, try_once).expect("the earlier process dies") {
            Ok(started) => {
                // The backend ends with its daemon's end, which is dropped first.
                let end = DaemonEnd::new(started.coordination, Process::new(move || drop(state)), Some(LONG));
                Ok(Started { end, journal: Some(Box::new(started.journal)) })
            }
            Err(SoloError::Refused(failure)) => Err(failure),
            Err(other) => panic!("the node cannot start: {other}"),
        }
    }
}
