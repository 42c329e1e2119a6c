//! Listeners of the API: the Unix socket on the daemon's runtime, TCP on a separate one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::AbortOnDrop;
use super::backend::LedgerAccess;
use crate::api::network::Network;
use crate::api::serve::Serving;
use crate::api::socket::{self, ApiSocket, Claim, SocketError};
use crate::api::{self, Sources};
use crate::cli::Error;
use crate::status::{NodeState, Status};
use cronkeeper_core::election::ApiAddress;
use cronkeeper_core::log;

/// Nice value of the TCP thread, so that the daemon's threads come first.
const NICE: i32 = 5;
/// Most threads that read from disk for TCP clients.
const MOST_BLOCKING: usize = 4;

/// How long a listener continues when another node takes over the socket: a request to hand over is answered after
/// that.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Creates the runtime for TCP clients.
///
/// It has one thread of its own, so that load from the network takes no time from the threads that keep the lease,
/// start jobs and answer the operator on the socket.
pub(super) fn runtime() -> Result<Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // On Linux this applies to the calling thread only. If the kernel refuses, the thread competes like any other.
    let lower_priority = || {
        let _ = rustix::process::setpriority_process(None, NICE);
    };
    let builder = builder.worker_threads(1).max_blocking_threads(MOST_BLOCKING).thread_name("network");
    let made = builder.on_thread_start(lower_priority).enable_all().build();
    made.map_err(|source| Error::System { what: "the runtime for `--listen` cannot be started", source })
}

/// The bound listeners of the API, not yet serving.
///
/// They are bound before the node joins the cluster: if an address is in use, the node ends without leaving a trace
/// there.
pub(super) struct Listeners {
    tcp: Option<Tcp>,
    /// Absent if several nodes may share the directory: then the leader serves the socket.
    socket: Option<ApiSocket>,
}

struct Tcp {
    listener: TcpListener,
    network: Arc<Network>,
    runtime: Handle,
}

impl Listeners {
    pub(super) async fn open(
        network: Option<(Arc<Network>, Handle)>,
        runtime_dir: &Path,
        is_shared: bool,
    ) -> Result<Self, Error> {
        socket::check(runtime_dir).map_err(Error::Socket)?;
        let tcp = match network {
            Some((network, runtime)) => Some(Tcp::open(network, runtime).await?),
            None => None,
        };
        let socket = match is_shared {
            true => None,
            false => Some(ApiSocket::open(runtime_dir, Claim::IfFree).await.map_err(Error::Socket)?),
        };
        Ok(Self { tcp, socket })
    }

    /// Where other nodes reach this one; `None` without `--listen`.
    pub(super) fn published(&self) -> Option<ApiAddress> {
        let tcp = self.tcp.as_ref()?;
        Some(tcp.network.published(tcp.listener.local_addr().unwrap_or(tcp.network.address())))
    }

    /// Starts serving. TCP clients use the ledger through `remote`; each change of `reloaded` reloads the TCP files.
    pub(super) fn serve(
        self,
        sources: Sources,
        remote: LedgerAccess,
        reloaded: watch::Receiver<u64>,
        runtime_dir: PathBuf,
    ) -> Served {
        let router = api::router(sources.clone());
        let LedgerAccess { reader, operator } = remote;
        let tcp_router = api::router(Sources { reader, operator, ..sources.clone() });
        let tcp = self.tcp.map(|tcp| tcp.serve(tcp_router, reloaded));
        let (socket, while_leading) = match self.socket {
            Some(socket) => {
                log_socket(&runtime_dir);
                (Some(Serving::on_socket(socket, router)), None)
            }
            None => (None, Some(AbortOnDrop(tokio::spawn(serve_while_leading(sources.status, runtime_dir, router))))),
        };
        Served { _tcp: tcp, _socket: socket, _while_leading: while_leading }
    }
}

impl Tcp {
    async fn open(network: Arc<Network>, runtime: Handle) -> Result<Self, Error> {
        let address = network.address();
        let bound = runtime.spawn(TcpListener::bind(address)).await.map_err(|_| Error::Panicked)?;
        let listener = bound.map_err(|source| Error::Listen { address, source })?;
        if network.is_token_sent_in_clear() {
            log!(API_UNENCRYPTED, %address);
        }
        Ok(Self { listener, network, runtime })
    }

    fn serve(self, router: axum::Router, reloaded: watch::Receiver<u64>) -> (Serving, AbortOnDrop) {
        let _runtime = self.runtime.enter();
        // The port may have been chosen by the kernel.
        let address = self.listener.local_addr().unwrap_or_else(|_| self.network.address());
        log!(API_LISTENING, %address);
        let reloading = AbortOnDrop(tokio::spawn(reload_files(Arc::clone(&self.network), reloaded)));
        (Serving::on_tcp(self.listener, router, self.network), reloading)
    }
}

/// Reloads the token and certificates of the address on each change of `reloaded`.
async fn reload_files(network: Arc<Network>, mut reloaded: watch::Receiver<u64>) {
    while reloaded.changed().await.is_ok() {
        let reloading = Arc::clone(&network);
        // The thread does not panic; if it did, the old files would stay in effect.
        let Ok(result) = tokio::task::spawn_blocking(move || reloading.reload()).await else { continue };
        match result {
            Ok(()) => {
                log!(API_RELOADED, address = %network.address());
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                log!(API_REJECTED, address = %network.address(), error = format!("{error}{cause}"));
            }
        }
    }
}

/// Serves the API until it is dropped.
pub(super) struct Served {
    _tcp: Option<(Serving, AbortOnDrop)>,
    _socket: Option<Serving>,
    _while_leading: Option<AbortOnDrop>,
}

/// Serves the socket while this node leads the replicas of this host.
///
/// A drained node continues to serve, or begins to if nobody else does: if all nodes are drained nobody leads, and one
/// of them must be there to be asked to undrain it. The next leader takes the socket over.
async fn serve_while_leading(mut status: watch::Receiver<Arc<Status>>, runtime_dir: PathBuf, router: axum::Router) {
    let (mut serving, mut claimed) = (None, None);
    let mut leaving: Option<(Serving, Instant)> = None;
    // Each change of the status is another try: a failure that lasts is logged once.
    let mut logged = None;
    loop {
        let claim = claim(status.borrow_and_update().state);
        let was_drained = std::mem::replace(&mut claimed, claim) == Some(Claim::IfFree);
        // While this node was drained, or had just resigned for it, another may have taken the socket over.
        if (was_drained || claim == Some(Claim::IfFree)) && !serving.as_ref().is_none_or(Serving::is_found) {
            leaving = serving.take().map(|left| (left, Instant::now() + LAST_ANSWERS));
        }
        match (claim, &serving) {
            (Some(claim), None) => match ApiSocket::open(&runtime_dir, claim).await {
                Ok(socket) => {
                    serving = Some(Serving::on_socket(socket, router.clone()));
                    log_socket(&runtime_dir);
                    logged = None;
                }
                Err(SocketError::InUse(_)) if claim == Claim::IfFree => {}
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                    let error = format!("{error}{cause}");
                    if logged.as_ref() != Some(&error) {
                        log!(API_FAILED, error);
                        logged = Some(error);
                    }
                }
            },
            (None, Some(_)) => leaving = serving.take().map(|left| (left, Instant::now() + LAST_ANSWERS)),
            _ => {}
        }
        // Cancellation safe: a change that was not seen is seen the next time, and the instant is absolute.
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return },
            () = last_answers(leaving.as_ref()) => leaving = None,
        }
    }
}

/// Waits until a listener that is no longer needed has had the time for its last answers.
async fn last_answers(leaving: Option<&(Serving, Instant)>) {
    match leaving {
        Some((_, until)) => sleep_until(*until).await,
        None => std::future::pending().await,
    }
}

fn log_socket(runtime_dir: &Path) {
    let path = runtime_dir.join(socket::NAME);
    log!(API_LISTENING, path = %path.display());
}

/// How a node in this state claims the socket; absent: not at all.
fn claim(state: NodeState) -> Option<Claim> {
    match state {
        NodeState::Leading | NodeState::TakingOver => Some(Claim::TakeOver),
        NodeState::Drained => Some(Claim::IfFree),
        NodeState::Starting | NodeState::Joining | NodeState::Following | NodeState::Draining => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::network::Files;
    use cronkeeper_core::term::NodeName;

    fn network(address: std::net::SocketAddr) -> Option<(Arc<Network>, Handle)> {
        let network = Network::new(address, Vec::new(), Files::default(), NodeName::new("host-a")).unwrap();
        Some((Arc::new(network), Handle::current()))
    }

    #[tokio::test]
    async fn an_address_or_socket_in_use_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let first = Listeners::open(network(([127, 0, 0, 1], 0).into()), dir.path(), false).await.unwrap();
        let address = first.tcp.as_ref().unwrap().listener.local_addr().unwrap();
        let again = Listeners::open(network(address), dir.path(), true).await;
        assert!(matches!(again, Err(Error::Listen { .. })));
        let again = Listeners::open(None, dir.path(), false).await;
        assert!(matches!(again, Err(Error::Socket(_))));
    }
}
