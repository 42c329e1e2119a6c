//! Client of the API, for commands: finds the socket, or connects to a node on TCP, sends a request, waits with a timeout.

mod find;
mod remote;

use std::fmt;
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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::time::timeout;

pub use find::{SocketSearch, Tried};
pub use remote::{BadHostUrl, HostUrl, RemoteAccess};

use self::remote::{Connection, Remote};
use super::network::SecretError;
use crate::option_file::NotAFolder;
use cronkeeper_core::escape;

/// Timeout of an answer. The daemon itself waits at most eight seconds for the ledger.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer: enough for far more than 10,000 jobs.
const MOST_BYTES: usize = 64 << 20;

/// Most characters of a text of the other end that are shown.
const MOST_SHOWN: usize = 4_000;

/// A text that may come from whoever answers: on one line, of limited length, and harmless on a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said(String);

impl Said {
    pub fn of(text: impl fmt::Display) -> Self {
        Self(escape::short(&text.to_string(), MOST_SHOWN))
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody answers on the socket.
    #[error("no daemon can be reached: {}", list(.0))]
    NoDaemon(Vec<Tried>),
    /// The socket exists, but this user may not open it.
    #[error("this user may not open {}; root and members of the group `cronkeeper` may", .0.display())]
    Forbidden(PathBuf),
    /// The daemon does not answer in time.
    #[error("the daemon on {} did not answer within {} s", .0, TIMEOUT.as_secs())]
    Silent(String),
    /// Nobody answers at the address of `--host`.
    #[error("cannot connect to {host}: {why}")]
    Unreachable { host: String, why: Said },
    /// The certificate at the address of `--host` is not trusted.
    #[error("the certificate of {host} is not trusted here: {why}; name the file of its authority with `--cacert`")]
    Certificate { host: String, why: Said },
    /// There is TLS, but nothing to trust.
    #[error("{0} needs `--cacert`: the file of the authority that issued its certificate")]
    NoAuthority(String),
    /// The token would be sent unencrypted over the network.
    #[error("others could read the token on its way to {0}: use https://, or allow it with `--token-in-clear`")]
    TokenInClear(String),
    /// The node has another token.
    #[error("{0} refused the token: it must be one that the node's `--api-token-file` accepts")]
    WrongToken(String),
    /// A file of the caller cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// What `--runtime-dir` or `--state-dir` names can never be a directory.
    #[error(transparent)]
    Folder(#[from] NotAFolder),
    /// The job or run does not exist.
    #[error("{0}")]
    NotFound(Said),
    /// The daemon cannot reach the ledger or a leader.
    #[error("{0}")]
    Away(Said),
    /// The daemon answers with any other error.
    #[error("{0}")]
    Refused(Said),
    /// The answer is not valid HTTP or JSON, or none to what was asked.
    #[error("cannot read the daemon's answer: {0}")]
    Garbled(Said),
    /// This process cannot send a request.
    #[error("cannot send the request")]
    Local(#[source] io::Error),
}

impl AskError {
    /// True if no daemon, or no ledger, could be reached.
    pub fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::NoDaemon(_) | Self::Forbidden(_) | Self::Silent(_) | Self::Away(_) | Self::Unreachable { .. }
        )
    }
}

fn list(tried: &[Tried]) -> String {
    tried.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[derive(Debug)]
pub struct Client {
    target: Target,
    runtime: tokio::runtime::Runtime,
}

/// Which daemons to ask.
#[derive(Debug)]
enum Target {
    /// The daemon of this host, on its socket.
    Local(SocketSearch),
    Remote(Box<Remote>),
}

impl Client {
    /// Creates a client. It looks for the socket only when a request is sent.
    ///
    /// # Errors
    /// If the directory to search can never be one, or the async runtime cannot be created.
    pub fn new(search: SocketSearch) -> Result<Self, AskError> {
        search.check_named()?;
        Self::of(Target::Local(search))
    }

    /// Creates a client of a node on TCP. It connects only when a request is sent.
    ///
    /// # Errors
    /// If a file cannot be used, or the async runtime cannot be created.
    pub fn remote(url: HostUrl, access: &RemoteAccess) -> Result<Self, AskError> {
        Self::of(Target::Remote(Box::new(Remote::new(url, access)?)))
    }

    fn of(target: Target) -> Result<Self, AskError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AskError::Local)?;
        Ok(Self { target, runtime })
    }

    /// Sends a GET request. Must not be called from async code.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, AskError> {
        self.send(Request::get(path), Bytes::new())
    }

    /// Sends a POST request. Without an answer, the request may have been carried out all the same.
    ///
    /// Must not be called from async code.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, request: &impl Serialize) -> Result<T, AskError> {
        let body = serde_json::to_vec(request).map_err(|error| AskError::Local(error.into()))?;
        self.send(Request::post(path), body.into())
    }

    fn send<T: DeserializeOwned>(&self, head: Builder, body: Bytes) -> Result<T, AskError> {
        let body = self.runtime.block_on(self.fetch(head, body))?;
        serde_json::from_slice(&body).map_err(|error| AskError::Garbled(Said::of(error)))
    }

    async fn fetch(&self, head: Builder, body: Bytes) -> Result<Bytes, AskError> {
        let (code, body) = match &self.target {
            Target::Local(search) => fetch_locally(search, head, body).await?,
            Target::Remote(remote) => fetch_remotely(remote, head, body).await?,
        };
        match code {
            StatusCode::OK => Ok(body),
            StatusCode::NOT_FOUND => Err(AskError::NotFound(refusal(code, &body))),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Err(AskError::Away(refusal(code, &body))),
            _ => Err(AskError::Refused(refusal(code, &body))),
        }
    }
}

async fn fetch_locally(search: &SocketSearch, head: Builder, body: Bytes) -> Result<(StatusCode, Bytes), AskError> {
    // Looked up for each request: when the leader of this host changes, the socket is removed and recreated.
    let (socket, tried) = search.socket();
    let name = socket.display().to_string();
    let opened = async { UnixStream::connect(&socket).await };
    let stream = match within(&name, opened).await? {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(AskError::Forbidden(socket)),
        Err(error) => {
            return Err(AskError::NoDaemon([tried, vec![Tried { socket, why: error.to_string() }]].concat()));
        }
    };
    within(&name, exchange(stream, "localhost", head, body)).await?
}

async fn fetch_remotely(remote: &Remote, head: Builder, body: Bytes) -> Result<(StatusCode, Bytes), AskError> {
    let name = remote.name();
    let head = match remote.token() {
        Some(token) => head.header(header::AUTHORIZATION, format!("Bearer {token}")),
        None => head,
    };
    let (connection, address) = within(&name, remote.connect()).await??;
    // A node accepts the address that it was reached at as `Host`, whatever its names are.
    let host = address.to_string();
    let (code, body) = match connection {
        Connection::Plain(stream) => within(&name, exchange(stream, &host, head, body)).await??,
        Connection::Secured(stream) => within(&name, exchange(*stream, &host, head, body)).await??,
    };
    match code {
        StatusCode::UNAUTHORIZED => Err(AskError::WrongToken(name)),
        StatusCode::FORBIDDEN if remote.token().is_none() => {
            let error = format!("{}; `--token-file` names the file that has it", refusal(code, &body));
            Err(AskError::Refused(Said::of(error)))
        }
        code => Ok((code, body)),
    }
}

async fn within<T>(name: &str, what: impl Future<Output = T>) -> Result<T, AskError> {
    timeout(TIMEOUT, what).await.map_err(|_| AskError::Silent(name.to_owned()))
}

async fn exchange<S>(stream: S, host: &str, head: Builder, body: Bytes) -> Result<(StatusCode, Bytes), AskError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let garbled = |error: &dyn std::error::Error| AskError::Garbled(Said::of(error));
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| garbled(&error))?;
    // Ends with the connection, which lasts for this one answer.
    let connection = tokio::spawn(connection);
    let request = head.header(header::HOST, host).body(Full::new(body));
    let request = request.map_err(|error| garbled(&error))?;
    let answer = sender.send_request(request).await.map_err(|error| garbled(&error))?;
    let code = answer.status();
    let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
    connection.abort();
    Ok((code, body.map_err(|error| garbled(&*error))?.to_bytes()))
}

fn refusal(code: StatusCode, body: &[u8]) -> Said {
    match serde_json::from_slice::<super::ErrorBody>(body) {
        Ok(body) => Said::of(body.error),
        Err(_) => Said::of(format_args!("the daemon answered {code}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;
    use cronkeeper_core::escape::is_harmful;
    use cronkeeper_core::run::RunState;

    /// The error for this answer of a daemon that may be anybody.
    fn error(code: u16, body: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let answer = format!("HTTP/1.1 {code} x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let served = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut head = BufReader::new(&stream).lines().map_while(Result::ok);
            assert!(head.any(|line| line.is_empty()), "the request ends");
            (&stream).write_all(answer.as_bytes()).unwrap();
        });
        let client = Client::new(SocketSearch::new(Some(dir.path()), None)).unwrap();
        let error = client.get::<RunState>("/").unwrap_err();
        served.join().unwrap();
        error.to_string()
    }

    #[test]
    fn no_text_of_the_other_end_reaches_a_terminal_as_it_is() {
        let hostile = "\u{1b}]0;x\u{7}\u{9b}2J\u{202e}\nx";
        let refusal = serde_json::json!({ "error": hostile }).to_string();
        let unknown = serde_json::json!(hostile).to_string();
        for (code, body) in
            [(400, &refusal), (403, &refusal), (404, &refusal), (503, &refusal), (504, &refusal), (200, &unknown)]
        {
            let error = error(code, body);
            assert!(!error.contains(is_harmful) && error.contains("\\u{202e}"), "{code}: {error}");
        }
        let long = serde_json::json!({ "error": "x".repeat(1 << 20) }).to_string();
        assert_eq!(error(409, &long).chars().count(), MOST_SHOWN + 1);
    }
}
