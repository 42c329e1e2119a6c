//! HTTP listeners with limits: one request per connection, and bounds for size, time and number.
//!
//! A client that sends or reads too slowly, or sends too much, is disconnected. Until then
//! [`admission`](super::admission) counts what it holds, and may close it for another who finds no room. Each listener has its own limits, so clients on TCP cannot lock out the operator on the socket.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::middleware;
use axum::serve::Listener;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::admission::{Admission, Admitted, ListenerLimits};
use super::browser;
use super::caller::{Caller, Endpoints};
use super::network::{Network, Visibility};
use super::socket::{ApiSocket, SocketFile};

/// Timeout of a TLS handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Timeout of a request's head.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Longest duration of a connection.
const LIFETIME: Duration = Duration::from_secs(20);
/// Longest duration of a stream of events. It ends by itself before that, unless its reader is too slow.
const STREAM_LIFETIME: Duration = Duration::from_secs(300);
/// Most bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;

/// A running listener. Dropping it closes its connections and removes its socket file.
#[derive(Debug)]
pub struct Serving {
    task: JoinHandle<Infallible>,
    file: Option<SocketFile>,
}

impl Serving {
    /// Serves on the Unix socket.
    pub fn on_socket(socket: ApiSocket, router: Router) -> Self {
        let router = browser::protected(router.layer(middleware::from_fn(browser::refuse_rebound_names)));
        let service = ListenerService { router, admission: Admission::new(ListenerLimits::SOCKET), network: None };
        Self { task: tokio::spawn(accept(socket.listener, service)), file: Some(socket.file) }
    }

    /// Serves on TCP, with the access rules of `network`.
    pub fn on_tcp(listener: TcpListener, router: Router, network: Arc<Network>) -> Self {
        let router = browser::protected(Network::guard(&network, router));
        let admission = Admission::new(ListenerLimits::NETWORK);
        let service = ListenerService { router, admission, network: Some(network) };
        Self { task: tokio::spawn(accept(listener, service)), file: None }
    }
}

impl Serving {
    /// False if another socket has taken the place of this one's file, or the file was removed.
    pub fn is_found(&self) -> bool {
        self.file.as_ref().is_none_or(SocketFile::is_there)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The routes and rules of one listener.
#[derive(Clone)]
struct ListenerService {
    router: Router,
    admission: Arc<Admission>,
    /// Absent on the Unix socket.
    network: Option<Arc<Network>>,
}

/// The local address of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalAddress(pub Option<SocketAddr>);

/// Accepts connections until its task is aborted, which drops the set of connections and so closes them.
async fn accept<L>(mut listener: L, service: ListenerService) -> Infallible
where
    L: Listener,
    L::Io: Endpoints,
{
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await;
        while connections.try_join_next().is_some() {}
        // Without admission, because its caller has too many already, the connection is closed at once.
        if let Some(admitted) = service.admission.admit(stream.caller()).await {
            let service = service.clone();
            connections.spawn(service.serve_in_time(stream, admitted));
        }
    }
}

impl ListenerService {
    async fn serve_in_time<S>(self, stream: S, admitted: Arc<Admitted>)
    where
        S: Endpoints + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut serving = std::pin::pin!(self.serve(stream, Arc::clone(&admitted)));
        let lasting = async {
            let served = timeout(LIFETIME, &mut serving).await;
            if served.is_err() && admitted.is_stream() {
                drop(timeout(STREAM_LIFETIME, serving).await);
            }
        };
        // Cancellation safety: the connection is closed, with all that it holds.
        tokio::select! {
            () = admitted.room_needed() => {}
            () = lasting => {}
        }
    }

    async fn serve<S>(self, stream: S, admitted: Arc<Admitted>)
    where
        S: Endpoints + AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let local = LocalAddress(stream.local_address());
        let connection = ConnectionInfo { caller: stream.caller(), local, admitted };
        let Some(network) = &self.network else {
            // The socket's file mode decides who may connect; those callers may see everything.
            return serve_http(stream, self.router, connection, Some(Visibility::All)).await;
        };
        match network.tls() {
            None => serve_http(stream, self.router, connection, None).await,
            Some(tls) => {
                if let Ok(Ok(stream)) = timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                    serve_http(stream, self.router, connection, None).await;
                }
            }
        }
    }
}

/// Facts about a connection, for the handlers of its request.
#[derive(Clone)]
struct ConnectionInfo {
    caller: Caller,
    local: LocalAddress,
    admitted: Arc<Admitted>,
}

/// The body of a request. Once all of it is there, the connection makes room for no other.
struct WatchedBody {
    body: Incoming,
    admitted: Arc<Admitted>,
}

impl WatchedBody {
    fn note_end(&self) {
        if self.body.is_end_stream() {
            self.admitted.keep_place();
        }
    }
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.admitted.keep_place();
        }
        self.note_end();
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Serves one connection. Its errors are ignored: they concern only the client.
async fn serve_http<S>(stream: S, router: Router, connection: ConnectionInfo, visibility: Option<Visibility>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let ConnectionInfo { caller, local, admitted } = connection.clone();
        let mut request = request.map(|body| WatchedBody { body, admitted: Arc::clone(&admitted) });
        request.body().note_end();
        let extensions = request.extensions_mut();
        extensions.insert(caller);
        extensions.insert(local);
        extensions.insert(Arc::clone(&admitted));
        if let Some(visibility) = visibility {
            extensions.insert(visibility);
        }
        let answering = router.call(request);
        async move {
            let answer = answering.await;
            // The rest of a request that is answered before its end is not waited for.
            admitted.answered();
            answer
        }
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

#[cfg(test)]
mod tests;
