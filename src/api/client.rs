//! Asking a daemon on this host, from a command: find its socket, ask, wait a bounded time.

mod find;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::time::timeout;

pub use find::{SocketSearch, Tried};

/// How long an answer may take. The daemon itself waits for the ledger at most three seconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: far above 10,000 jobs, below what would hurt.
const MOST_BYTES: usize = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers on the socket.
    #[error("no daemon to be reached: {}", list(.0))]
    NoDaemon(Vec<Tried>),
    /// There is one, but not for this user.
    #[error("{} may not be opened by this user; members of the group `cronkeeper` may", .0.display())]
    Forbidden(PathBuf),
    /// The daemon is there and does not answer in time.
    #[error("the daemon on {} gave no answer within {} s", .0.display(), TIMEOUT.as_secs())]
    Silent(PathBuf),
    /// There is nothing of the name that was asked about.
    #[error("{0}")]
    NotFound(String),
    /// The daemon cannot reach what it would have to ask itself.
    #[error("{0}")]
    Away(String),
    /// It answers, but does not say what was asked for.
    #[error("{0}")]
    Refused(String),
    /// What it says cannot be understood.
    #[error("the answer of the daemon cannot be read: {0}")]
    Garbled(String),
    /// This process cannot ask.
    #[error("cannot ask")]
    Local(#[source] io::Error),
}

impl AskError {
    /// True where there was nobody to ask.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoDaemon(_) | Self::Forbidden(_) | Self::Silent(_) | Self::Away(_))
    }
}

fn list(tried: &[Tried]) -> String {
    tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Asks the daemon of a place.
#[derive(Debug)]
pub struct Client {
    places: SocketSearch,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// A client; nothing is opened yet.
    ///
    /// # Errors
    /// Where the system gives no event queue.
    pub fn new(places: SocketSearch) -> Result<Self, AskError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AskError::Local)?;
        Ok(Self { places, runtime })
    }

    /// Asks for a document. Not to be called from async code.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.ask(Request::get(path), Bytes::new())
    }

    /// Asks for something to be done. Where no answer comes it may be done all the same. Not to be called from async code.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<T, AskError> {
        let body = serde_json::to_vec(request).map_err(|error| AskError::Local(error.into()))?;
        self.ask(Request::post(path), body.into())
    }

    fn ask<T: DeserializeOwned>(&self, head: Builder, body: Bytes) -> Result<T, AskError> {
        let body = self.runtime.block_on(self.fetch(head, body))?;
        serde_json::from_slice(&body).map_err(|error| AskError::Garbled(error.to_string()))
    }

    async fn fetch(&self, head: Builder, body: Bytes) -> Result<Bytes, AskError> {
        // Looked for at each question: while a host changes its leader the socket goes and comes.
        let (socket, tried) = self.places.socket();
        let opened = async { UnixStream::connect(&socket).await };
        let stream = match within(&socket, opened).await? {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(AskError::Forbidden(socket)),
            Err(error) => {
                return Err(AskError::NoDaemon([tried, vec![Tried { socket, why: error.to_string() }]].concat()));
            }
        };
        let (code, body) = within(&socket, exchange(stream, head, body)).await??;
        match code {
            StatusCode::OK => Ok(body),
            StatusCode::NOT_FOUND => Err(AskError::NotFound(refusal(code, &body))),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Err(AskError::Away(refusal(code, &body))),
            _ => Err(AskError::Refused(refusal(code, &body))),
        }
    }
}

async fn within<T>(socket: &std::path::Path, what: impl Future<Output = T>) -> Result<T, AskError> {
    timeout(TIMEOUT, what).await.map_err(|_| AskError::Silent(socket.to_owned()))
}

async fn exchange(stream: UnixStream, head: Builder, body: Bytes) -> Result<(StatusCode, Bytes), AskError> {
    let garbled = |error: &dyn std::error::Error| AskError::Garbled(error.to_string());
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| garbled(&error))?;
    // Ends with the connection, which ends with this answer.
    let connection = tokio::spawn(connection);
    let request = head.header(header::HOST, "localhost").body(Full::new(body));
    let request = request.map_err(|error| garbled(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| garbled(&error))?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    connection.abort();
    Ok((code, body.map_err(|error| garbled(&*error))?.to_bytes()))
}

fn refusal(code: StatusCode, body: &[u8]) -> String {
    serde_json::from_slice::<super::ErrorBody>(body).map_or_else(|_| format!("the daemon answers {code}"), |b| b.error)
}
