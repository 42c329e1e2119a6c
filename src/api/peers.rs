//! Client for the addresses of other nodes, to fetch the output of their runs and their part of the history.
//!
//! The address comes from the other node's member, so whoever may write in the coordination service can name any. The
//! token is therefore never sent, but a [`proof`](super::network::proof) that is useless elsewhere. A node with TLS asks
//! over TLS only: the certificate must be for the name or address in the member, by an authority that this node trusts.
//! What comes back is bounded in time and size, and only shown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{HeaderMap, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::ErrorBody;
use super::network::proof::{self, Asked, ProofKey};
use super::network::{Files, SecretError, read_tokens, tls_client};
use crate::option_file::OptionFile;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::{ApiAddress, Member};
use cronkeeper_core::escape::short;

/// Timeout of a connection, with TLS.
const CONNECT: Duration = Duration::from_secs(2);
/// Timeout of an answer, besides the time that the other node was asked to wait.
const ANSWER: Duration = Duration::from_secs(3);
/// Most bytes of an answer; a page is shorter.
const MOST_BYTES: usize = 2 << 20;
/// Most requests to other nodes at a time.
const MOST_REQUESTS: usize = 32;
/// Most characters of another node's error that are shown.
const SHOWN: usize = 300;

/// Asks other nodes.
pub struct Peers {
    files: Arc<PeerFiles>,
    permits: Semaphore,
}

struct PeerFiles {
    /// This node's own token and certificates.
    own: Files,
    /// Authorities of the other nodes' certificates; absent: this node's own certificates.
    ca: Option<OptionFile>,
}

/// What is read from the files for one request, so that renewed files count at once.
struct Secrets {
    key: ProofKey,
    tls: Option<ClientConfig>,
}

/// A question to another node.
#[derive(Clone, Copy)]
struct Question<'a> {
    member: &'a Member,
    path: &'a str,
    key: &'a ProofKey,
}

struct Answer {
    code: StatusCode,
    /// The node knows what a proof is; older versions do not.
    knows_proofs: bool,
    body: Bytes,
}

impl Peers {
    /// Checks the files.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn new(files: Files, ca: Option<OptionFile>) -> Result<Self, SecretError> {
        tls_client(files.tls.as_ref(), ca.as_ref())?;
        Ok(Self { files: Arc::new(PeerFiles { own: files, ca }), permits: Semaphore::new(MOST_REQUESTS) })
    }

    /// Sends a GET request to another node, which is asked to wait for up to `wait`. The path must be one of those that
    /// nodes show each other.
    ///
    /// # Errors
    /// A description of what is in the way, and what to do about it.
    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        member: &Member,
        path: &str,
        wait: Duration,
    ) -> Result<T, String> {
        let node = &member.node;
        let Some(listen) = &member.published.listen else {
            return Err(format!("{node} does not listen on TCP: set `--listen` there"));
        };
        // The semaphore is never closed.
        let busy = |_| format!("too many requests to other nodes at once; {node} was not asked");
        let _permit = timeout(CONNECT, self.permits.acquire()).await.map_err(busy)?;
        let Secrets { key, tls } = self.secrets().await?;
        let connector = match (tls, listen.tls) {
            (Some(_), false) => {
                return Err(format!(
                    "{node} does not use TLS, and this node asks others over TLS only: set `--listen-cert` there"
                ));
            }
            (None, true) => return Err(format!("{node} uses TLS: set `--peer-ca` on this node")),
            (tls, _) => tls.map(|tls| TlsConnector::from(Arc::new(tls))),
        };
        let late = |_| Err(format!("{node} does not answer in time"));
        let asked = ask(Question { member, path, key: &key }, listen, connector);
        let answer = timeout(CONNECT + wait + ANSWER, asked).await.unwrap_or_else(late)?;
        read(member, &answer)
    }

    /// Reads the files, on a thread that may block: a disk that hangs must not stop anything else.
    async fn secrets(&self) -> Result<Secrets, String> {
        let files = Arc::clone(&self.files);
        let late = |_| Err("the files of the token and the certificates cannot be read in time".to_owned());
        let reading = tokio::task::spawn_blocking(move || files.read());
        let read = timeout(CONNECT, reading).await.map(|read| read.unwrap_or_else(|error| Err(error.to_string())));
        read.unwrap_or_else(late)
    }
}

impl PeerFiles {
    fn read(&self) -> Result<Secrets, String> {
        let Some(token) = &self.own.token else {
            return Err("this node has no token for other nodes: set `--api-token-file`".to_owned());
        };
        let tls = tls_client(self.own.tls.as_ref(), self.ca.as_ref()).map_err(|error| error.to_string())?;
        let tokens = read_tokens(token).map_err(|error| error.to_string())?;
        // A file with tokens has at least one.
        let key = tokens.proof_keys().next().cloned().ok_or("there is no token for other nodes")?;
        Ok(Secrets { key, tls })
    }
}

async fn ask(question: Question<'_>, listen: &ApiAddress, connector: Option<TlsConnector>) -> Result<Answer, String> {
    let node = &question.member.node;
    let (target, name) = target(question.member, listen);
    let away = |error: io::Error| format!("{node} cannot be reached at {target}: {error}");
    let stream = in_time(TcpStream::connect(&target)).await.map_err(away)?;
    // Another node accepts the address that it was reached at as `Host`, whatever its names are.
    let host = stream.peer_addr().map_err(away)?;
    let Some(connector) = connector else { return exchange(stream, host, question).await };
    let server = ServerName::try_from(name.clone()).map_err(|_| format!("{node} has no name that TLS can check"))?;
    let secured = in_time(connector.connect(server, stream)).await;
    let secured = secured
        .map_err(|error| format!("the TLS certificate of {node} at {target} (for {name}): {error}; see `--peer-ca`"))?;
    exchange(secured, host, question).await
}

async fn in_time<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Where to connect, and the name that the certificate must be for.
fn target(member: &Member, listen: &ApiAddress) -> (String, String) {
    let ApiAddress { address, name, .. } = listen;
    let ip = address.ip();
    let target = if ip.is_unspecified() { format!("{}:{}", member.host, address.port()) } else { address.to_string() };
    let by_address = if ip.is_unspecified() { member.host.clone() } else { ip.to_string() };
    (target, name.clone().unwrap_or(by_address))
}

async fn exchange<S>(stream: S, host: SocketAddr, question: Question<'_>) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Question { member, path, key } = question;
    let garbled = |error: &dyn std::fmt::Display| format!("the answer of {} cannot be read: {error}", member.node);
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| garbled(&error))?;
    let host = host.to_string();
    let proof = key.prove(Asked { method: "GET", path, host: &host }, &member.node, system::now().wall);
    let head = Request::get(path).header(header::HOST, host).header(header::AUTHORIZATION, proof);
    let request = head.body(Empty::<Bytes>::new()).map_err(|error| garbled(&error))?;
    let answered = async {
        let answer = sender.send_request(request).await.map_err(|error| garbled(&error))?;
        let (code, knows_proofs) = (answer.status(), knows_proofs(answer.headers()));
        let body = Limited::new(answer.into_body(), MOST_BYTES).collect().await;
        Ok(Answer { code, knows_proofs, body: body.map_err(|error| garbled(&error))?.to_bytes() })
    };
    let mut answered = std::pin::pin!(answered);
    let mut connection = std::pin::pin!(connection);
    // Cancellation safety: both continue where they were; when the connection ends first, what it received is still
    // read.
    tokio::select! {
        answer = &mut answered => answer,
        _ = &mut connection => answered.await,
    }
}

/// True if an answer 401 says that it accepts proofs.
fn knows_proofs(headers: &HeaderMap) -> bool {
    let mut challenges = headers.get_all(header::WWW_AUTHENTICATE).iter().filter_map(|line| line.to_str().ok());
    challenges.any(|line| line.contains(proof::SCHEME))
}

fn read<T: DeserializeOwned>(member: &Member, Answer { code, knows_proofs, body }: &Answer) -> Result<T, String> {
    let node = &member.node;
    let error = || serde_json::from_slice::<ErrorBody>(body).map_or_else(|_| code.to_string(), |body| body.error);
    match *code {
        StatusCode::OK => {
            let garbled = |error: serde_json::Error| short(&error.to_string(), SHOWN);
            serde_json::from_slice(body).map_err(|error| format!("the answer of {node} is garbled: {}", garbled(error)))
        }
        StatusCode::UNAUTHORIZED if !knows_proofs => Err(format!(
            "{node} runs an older version of cronkeeper, which does not know the proof that this one sends: update it"
        )),
        // Nodes of one version ask each other nothing that is wrong or not there.
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => {
            Err(format!("{node} runs another version of cronkeeper: {}", short(&error(), SHOWN)))
        }
        _ => Err(format!("{node}: {}", short(&error(), SHOWN))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::output::OutputPage;
    use crate::status::sample;

    #[test]
    fn a_node_is_reached_at_its_address_or_by_the_name_of_its_host() {
        let member = sample::queue().members.remove(0);
        let listen = |address: &str, name: Option<&str>| ApiAddress {
            address: address.parse().unwrap(),
            name: name.map(str::to_owned),
            tls: true,
        };
        let reached = |address, name| target(&member, &listen(address, name));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(reached("192.0.2.7:7475", None), pair("192.0.2.7:7475", "192.0.2.7"));
        assert_eq!(reached("[2001:db8::1]:7475", Some("cron")), pair("[2001:db8::1]:7475", "cron"));
        assert_eq!(reached("0.0.0.0:7475", None), (format!("{}:7475", member.host), member.host.clone()));
    }

    #[test]
    fn a_node_that_knows_no_proof_is_named_and_any_other_says_itself_what_is_wrong() {
        let member = sample::queue().members.remove(0);
        let error = |code, knows_proofs, error: &str| {
            let body = format!("{{\"error\":{error:?}}}").into();
            read::<OutputPage>(&member, &Answer { code, knows_proofs, body }).unwrap_err()
        };
        let old = error(StatusCode::UNAUTHORIZED, false, "wrong token");
        assert!(old.starts_with("host-a runs an older version of cronkeeper"), "{old}");
        assert_eq!(error(StatusCode::UNAUTHORIZED, true, "its clock is wrong"), "host-a: its clock is wrong");
        assert_eq!(error(StatusCode::FORBIDDEN, false, "no token"), "host-a: no token");
        let headers = |value: &'static str| {
            HeaderMap::from_iter([(header::WWW_AUTHENTICATE, hyper::header::HeaderValue::from_static(value))])
        };
        assert!(knows_proofs(&headers("Bearer, Cronkeeper-Peer")) && !knows_proofs(&headers("Bearer")));
    }

    #[tokio::test]
    async fn no_node_is_asked_without_tls_if_this_one_uses_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            OptionFile::given("--api-token-file", path)
        };
        let ca = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let token = Some(put("token", "0123456789abcdef\n"));
        let files = Files { token, tls: None };
        let peers = Peers::new(files.clone(), Some(put("ca", &ca.cert.pem()))).unwrap();
        let mut member = sample::queue().members.remove(0);
        let away = peers.get::<OutputPage>(&member, "/", Duration::ZERO).await.unwrap_err();
        assert!(away.ends_with("does not listen on TCP: set `--listen` there"), "{away}");
        member.published.listen = Some(ApiAddress { address: ([127, 0, 0, 1], 1).into(), name: None, tls: false });
        let refused = peers.get::<OutputPage>(&member, "/", Duration::ZERO).await.unwrap_err();
        assert!(refused.contains("over TLS only"), "{refused}");
        let plain = Peers::new(files, None).unwrap();
        let away = plain.get::<OutputPage>(&member, "/", Duration::ZERO).await.unwrap_err();
        assert!(away.contains("cannot be reached at 127.0.0.1:1"), "{away}");
        assert!(Peers::new(Files::default(), Some(OptionFile::given("--peer-ca", dir.path().join("none")))).is_err());
    }
}
