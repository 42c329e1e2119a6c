//! Requests to services that take messages by HTTP.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper::{HeaderMap, Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::deliver::{Answer, Failed, answered};
use super::plan::Fate;
use crate::config::bare_host;
use cronkeeper_cluster::tls::{self, Trust};
use cronkeeper_core::escape;

/// Most bytes of an answer that are read.
const MOST_BYTES: usize = 64 << 10;
/// How long an answer may take.
pub(super) const ANSWER: Duration = Duration::from_secs(20);
/// How long the rest of an answer is read after its first lines.
const BODY: Duration = Duration::from_secs(1);
/// Most characters of an answer that are shown.
const SHOWN: usize = 200;

/// A stream to a server.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// The authorities that a client trusts: those in the file, or those of the system.
pub(super) fn trust(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let trust = match ca_file {
        Some(path) => Trust::Named(std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?),
        None => match rustls_native_certs::load_native_certs().certs {
            none if none.is_empty() => {
                return Err("this host has no CA certificates: install the package with them, on Debian \
                            `ca-certificates`, or set `ca_file`"
                    .to_owned());
            }
            authorities => Trust::System(authorities),
        },
    };
    tls::client(trust, None).map_err(|error| error.to_string())
}

/// Begins TLS. `host`: as in a URL, without brackets.
pub(super) async fn encrypted(
    stream: impl Stream + 'static,
    host: &str,
    config: Arc<ClientConfig>,
) -> Result<Box<dyn Stream>, Failed> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Failed::refused("TLS cannot verify the host name in the URL"))?;
    match TlsConnector::from(config).connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => {
            let said = tls::words(&error, "ca_file").unwrap_or_else(|| error.to_string());
            Err(Failed::refused(format!("TLS: {said}")))
        }
    }
}

pub(super) async fn connected(host: &str, port: u16) -> Result<TcpStream, Failed> {
    TcpStream::connect((host, port))
        .await
        .map_err(|error| Failed::refused(format!("cannot connect to {host}:{port}: {error}")))
}

/// A request as it is sent.
pub(super) struct Post {
    pub url: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// For `https`.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A connection, and the request for it.
pub(super) struct Open {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>,
    request: Request<Full<Bytes>>,
}

/// Connects. No text has the URL, which may be a secret.
pub(super) async fn open(post: Post) -> Result<Open, Failed> {
    let uri: Uri = post.url.trim().parse().map_err(|_| Failed::refused("the URL is invalid"))?;
    let host = bare_host(uri.host().unwrap_or_default());
    let port = uri.port_u16().unwrap_or(if post.tls.is_some() { 443 } else { 80 });
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let mut request = Request::post(path)
        .header(header::HOST, authority)
        .header(header::USER_AGENT, concat!("cronkeeper/", env!("CARGO_PKG_VERSION")))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(post.body)))
        .map_err(|_| Failed::refused("the URL or a header is invalid"))?;
    request.headers_mut().extend(post.headers);
    let stream = connected(host, port).await?;
    let stream: Box<dyn Stream> = match post.tls {
        Some(config) => encrypted(stream, host, config).await?,
        None => Box::new(stream),
    };
    let (sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failed::refused("the server does not speak HTTP"))?;
    Ok(Open { sender, connection, request })
}

impl Open {
    /// Sends the request, and says what became of it.
    pub async fn send(self, until: Instant) -> Result<Answer, Failed> {
        let Self { mut sender, connection, request } = self;
        let asked = async {
            let response = answered(ANSWER, until, async {
                sender.send_request(request).await.map_err(|error| {
                    let fate = if error.is_canceled() { Fate::Refused } else { Fate::Doubtful };
                    Failed { fate, why: "the connection was lost before an answer came".to_owned(), answer: None }
                })
            });
            let response = response.await?;
            let status = response.status();
            let mut said = Vec::new();
            // The status is the answer; what follows only says more.
            let _ = timeout(BODY, read(response.into_body(), &mut said)).await;
            Ok((status, said))
        };
        tokio::pin!(asked);
        // The connection is driven as long as the answer takes, and ends with it.
        let (status, said) = tokio::select! {
            answered = &mut asked => answered,
            _ = connection => asked.await,
        }?;
        judged(status, &said)
    }
}

/// Adds the beginning of a body.
async fn read(mut body: Incoming, said: &mut Vec<u8>) {
    while let Some(Ok(frame)) = body.frame().await {
        let data = frame.into_data().unwrap_or_default();
        said.extend(data.iter().take(MOST_BYTES.saturating_sub(said.len())));
        if said.len() >= MOST_BYTES {
            return;
        }
    }
}

/// What an answer means for the message.
fn judged(status: StatusCode, body: &[u8]) -> Result<Answer, Failed> {
    let said = escape::short(String::from_utf8_lossy(body).trim(), SHOWN);
    let answer = if said.is_empty() { status.to_string() } else { format!("{status}: {said}") };
    if status.is_success() {
        return Ok(Answer { text: answer, refused: None });
    }
    let fate = match status.as_u16() {
        // It, or a server between that passed it on, may have it.
        500 | 502 | 504 | 520..=599 => Fate::Doubtful,
        // What an operator can mend on this side, or the service by itself.
        401 | 403 | 408 | 425 | 429 | 501..=519 => Fate::Refused,
        _ => Fate::Hopeless,
    };
    Err(Failed { fate, why: format!("HTTP status {status}"), answer: Some(answer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_whether_a_message_arrived_and_whether_to_try_again() {
        let fate = |code: u16| match judged(StatusCode::from_u16(code).unwrap(), b"x") {
            Ok(_) => Fate::Delivered,
            Err(failed) => failed.fate,
        };
        assert_eq!([200, 202, 204].map(fate), [Fate::Delivered; 3]);
        assert_eq!([401, 403, 408, 429, 501, 503, 505].map(fate), [Fate::Refused; 7]);
        assert_eq!([500, 502, 504, 520, 524, 599].map(fate), [Fate::Doubtful; 6]);
        assert_eq!([301, 400, 404, 410, 413, 422].map(fate), [Fate::Hopeless; 6]);
    }
}
