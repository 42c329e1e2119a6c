//! Listeners with bounds: one request a connection, so long and no longer, so many and no more.
//!
//! A client that sends or reads slowly, or sends too much, is cut off; what it holds until then is counted ([`guests`](super::guests)),
//! and each listener has its own, so that nobody on TCP shuts the operator on the socket out.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::caller::{Caller, KnowsPeer};
use super::guests::{Guest, Guests, Limits};
use super::network::{Network, Visibility};
use super::socket::{ApiSocket, Place};

/// How long TLS may take to be agreed on.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long the head of a request may take.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last.
const LIFETIME: Duration = Duration::from_secs(20);
/// Most bytes of a head.
const HEAD_BYTES: usize = 16 << 10;

/// A listener at work. Dropping it ends it, its connections with it, and takes the socket away.
#[derive(Debug)]
pub struct Serving {
    task: JoinHandle<Infallible>,
    _place: Option<Place>,
}

impl Serving {
    /// Serves on the Unix socket.
    pub fn on_socket(socket: ApiSocket, router: Router) -> Self {
        let house = House { router, guests: Guests::new(Limits::SOCKET), network: None };
        Self { task: tokio::spawn(accept(socket.listener, house)), _place: Some(socket.place) }
    }

    /// Serves on TCP, to whom `network` lets in.
    pub fn on_tcp(listener: TcpListener, router: Router, network: Arc<Network>) -> Self {
        let router = Network::guard(&network, router);
        let house = House { router, guests: Guests::new(Limits::NETWORK), network: Some(network) };
        Self { task: tokio::spawn(accept(listener, house)), _place: None }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a listener serves, and to whom.
#[derive(Clone)]
struct House {
    router: Router,
    guests: Arc<Guests>,
    /// Absent on the Unix socket.
    network: Option<Arc<Network>>,
}

/// The address that a connection was made to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Local(pub Option<IpAddr>);

/// Dropped with the task, the set ends the connections.
async fn accept<L>(mut listener: L, house: House) -> Infallible
where
    L: Listener,
    L::Io: KnowsPeer,
{
    let mut connections = JoinSet::new();
    loop {
        let place = house.guests.place().await;
        let (stream, _) = listener.accept().await;
        while connections.try_join_next().is_some() {}
        // Where its caller has as many as one may have, it is closed at once.
        if let Some(guest) = house.guests.admit(stream.caller(), place) {
            let house = house.clone();
            connections.spawn(async move { drop(timeout(LIFETIME, house.receive(stream, guest)).await) });
        }
    }
}

impl House {
    async fn receive<S>(self, stream: S, guest: Arc<Guest>)
    where
        S: KnowsPeer + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let made = Made { caller: stream.caller(), local: Local(stream.local()), guest };
        let Some(network) = &self.network else {
            // The kernel has said who may ask here, and that one sees all.
            return talk(stream, self.router, made, Some(Visibility::All)).await;
        };
        match network.tls() {
            None => talk(stream, self.router, made, None).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                    talk(stream, self.router, made, None).await;
                }
            }
        }
    }
}

/// What is known of a connection.
#[derive(Clone)]
struct Made {
    caller: Caller,
    local: Local,
    guest: Arc<Guest>,
}

/// How it ends is the client's affair.
async fn talk<S>(stream: S, router: Router, made: Made, sight: Option<Visibility>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let Made { caller, local, guest } = made.clone();
        let extensions = request.extensions_mut();
        extensions.insert(caller);
        extensions.insert(local);
        extensions.insert(guest);
        if let Some(sight) = sight {
            extensions.insert(sight);
        }
        router.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(64)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    drop(served);
}
