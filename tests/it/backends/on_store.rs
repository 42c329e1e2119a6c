//! Nodes of one cluster on one store, each with a client of its own.

use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::observed::{Observed, OnTokio};
use cronkeeper_cluster::store::Store;
use cronkeeper_core::election::Failure;
use uuid::Uuid;

use crate::port::daemon_end::DaemonEnd;
use crate::promises::cluster::{Backend, Cluster, Host, Started};
use crate::support::LONG;
use crate::zookeeper::fixture::{StateDirs, System, open_on, options};

/// Long enough that no session ends because a busy disk takes seconds to write.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Shows that a promise holds on the store that `client` opens.
pub fn hold<S: Store, P: Future<Output = ()>>(
    place: &str,
    client: impl Fn() -> S + Send + 'static,
    promise: impl Fn(Cluster) -> P,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be had");
    let hosts = Hosts { place: place.to_owned(), client, state_dirs: StateDirs::default() };
    runtime.block_on(promise(Cluster::new(hosts)));
}

struct Hosts<C> {
    place: String,
    client: C,
    state_dirs: StateDirs,
}

impl<S: Store, C: Fn() -> S + Send> Backend for Hosts<C> {
    fn start(&mut self, name: &str, host: Host) -> Result<Started, Failure> {
        let memory = self.state_dirs.of(name, host);
        let observed = Observed {
            store: (self.client)(),
            clock: System,
            spawn: OnTokio,
            timeout: TIMEOUT,
            uuid: Arc::new(Uuid::new_v4),
            heads: Arc::default(),
        };
        let (coordination, process) = open_on(observed.clone(), observed, name, memory, options(self.place.clone()));
        Ok(Started { end: DaemonEnd::new(coordination, process, Some(LONG)), journal: None })
    }
}
