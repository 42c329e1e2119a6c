//! Listeners with bounds: one request a connection, so long and no longer, so many and no more.
//!
//! A client that sends or reads slowly, or sends too much, is cut off; it holds one of a listener's places until
//! then, and each listener has its own, so that nobody on TCP shuts the operator on the socket out.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::caller::Introduced;
use super::socket::{ApiSocket, Place};

/// Connections at once, of one listener.
const PLACES: usize = 64;
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
        Self { task: tokio::spawn(accept(socket.listener, router)), _place: Some(socket.place) }
    }

    /// Serves on TCP.
    pub fn on_tcp(listener: TcpListener, router: Router) -> Self {
        Self { task: tokio::spawn(accept(listener, router)), _place: None }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Dropped with the task, the set ends the connections.
async fn accept<L>(mut listener: L, router: Router) -> Infallible
where
    L: Listener,
    L::Io: Introduced,
{
    let places = Arc::new(Semaphore::new(PLACES));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed; were it, connections would go unbounded rather than unserved.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        let (stream, _) = listener.accept().await;
        let router = router.clone().layer(Extension(stream.caller()));
        connections.spawn(async move {
            let _place = place;
            // How it ended is the client's affair.
            drop(timeout(LIFETIME, talk(stream, router)).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn talk<S>(stream: S, router: Router) -> Result<(), hyper::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(64)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
}
