//! Where the API is served: the socket beside the daemon, an address on the network apart from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::Owned;
use super::backend::Ledger;
use crate::api::network::Network;
use crate::api::serve::Serving;
use crate::api::socket::{self, ApiSocket, Claim};
use crate::api::{self, Sources};
use crate::cli::Error;
use crate::status::{State, Status};
use crate::telemetry::TARGET;

/// So much the thread of the network stands back behind those of the daemon.
const NICE: i32 = 5;
/// Threads that wait for the disk on behalf of the network.
const MOST_BLOCKING: usize = 4;

/// The runtime of whoever asks over the network: one thread, so that whatever is sent there takes neither time nor turns from those
/// that keep the lease, start jobs and answer the operator on the socket.
pub(super) fn runtime() -> Result<Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    // On Linux this is of the calling thread alone. Where it is refused, the thread competes like any other.
    let stand_back = || {
        let _ = rustix::process::setpriority_process(None, NICE);
    };
    let builder = builder.worker_threads(1).max_blocking_threads(MOST_BLOCKING).thread_name("network");
    let made = builder.on_thread_start(stand_back).enable_all().build();
    made.map_err(|source| Error::System { what: "the runtime of the network cannot be started", source })
}

/// Where the API will be served, taken before anybody else hears of this node: what is in use ends it without a trace.
pub(super) struct Listeners {
    tcp: Option<Tcp>,
    /// Absent where several nodes may share the directory: there the leader serves the socket.
    socket: Option<ApiSocket>,
}

/// An address on the network, and where it is served.
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

    /// Serves; `remote` is the ledger for the network, whose files are read again whenever `reloaded` says so.
    pub(super) fn serve(
        self,
        sources: Sources,
        remote: Ledger,
        reloaded: watch::Receiver<u64>,
        runtime_dir: PathBuf,
    ) -> Served {
        let router = api::router(sources.clone());
        let Ledger { reader, operator } = remote;
        let outside = api::router(Sources { reader, operator, ..sources.clone() });
        let tcp = self.tcp.map(|tcp| tcp.serve(outside, reloaded));
        let (socket, while_leading) = match self.socket {
            Some(socket) => (Some(Serving::on_socket(socket, router)), None),
            None => (None, Some(Owned(tokio::spawn(serve_while_leading(sources.status, runtime_dir, router))))),
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
            warn!(target: TARGET, "whoever can listen in on {address} learns the token of `--api-token-file`: give it a certificate, `--listen-cert`");
        }
        Ok(Self { listener, network, runtime })
    }

    fn serve(self, router: axum::Router, reloaded: watch::Receiver<u64>) -> (Serving, Owned) {
        let _outside = self.runtime.enter();
        let reloading = Owned(tokio::spawn(keep_up(Arc::clone(&self.network), reloaded)));
        (Serving::on_tcp(self.listener, router, self.network), reloading)
    }
}

/// Reads the files of an address again whenever it is asked for.
async fn keep_up(network: Arc<Network>, mut reloaded: watch::Receiver<u64>) {
    while reloaded.changed().await.is_ok() {
        let read = Arc::clone(&network);
        // The reading thread does not panic; if it did, the old files would go on to hold.
        let Ok(read) = tokio::task::spawn_blocking(move || read.reload()).await else { continue };
        match read {
            Ok(()) => info!(target: TARGET, "the token and the certificates for {} were read again", network.address()),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                error!(target: TARGET, "the token and the certificates for {} stay as they were: {error}{cause}", network.address());
            }
        }
    }
}

/// The API, served until dropped.
pub(super) struct Served {
    _tcp: Option<(Serving, Owned)>,
    _socket: Option<Serving>,
    _while_leading: Option<Owned>,
}

/// On one host the leader serves the socket; before it gives leadership up it takes it away.
async fn serve_while_leading(mut status: watch::Receiver<Arc<Status>>, runtime_dir: PathBuf, router: axum::Router) {
    let mut serving = None;
    loop {
        let leads = is_leading(&status.borrow_and_update());
        match (leads, &serving) {
            (true, None) => match ApiSocket::open(&runtime_dir, Claim::TakeOver).await {
                Ok(socket) => serving = Some(Serving::on_socket(socket, router.clone())),
                Err(error) => error!(target: TARGET, "nobody can ask this node: {error}"),
            },
            (false, Some(_)) => serving = None,
            _ => {}
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

fn is_leading(status: &Status) -> bool {
    matches!(status.state, State::Leading | State::TakingOver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::network::Files;

    fn network(address: std::net::SocketAddr) -> Option<(Arc<Network>, Handle)> {
        let network = Network::new(address, Vec::new(), Files::default()).unwrap();
        Some((Arc::new(network), Handle::current()))
    }

    #[tokio::test]
    async fn what_is_in_use_is_found_before_anything_is_served() {
        let dir = tempfile::tempdir().unwrap();
        let first = Listeners::open(network(([127, 0, 0, 1], 0).into()), dir.path(), false).await.unwrap();
        let address = first.tcp.as_ref().unwrap().listener.local_addr().unwrap();
        let again = Listeners::open(network(address), dir.path(), true).await;
        assert!(matches!(again, Err(Error::Listen { .. })));
        let again = Listeners::open(None, dir.path(), false).await;
        assert!(matches!(again, Err(Error::Socket(_))));
    }
}
