//! Finds out why no server gives a session: the client crate does not say.
//!
//! ```text
//!  look the name up ─► connect ─► listen for a greeting ─► `srvr` ─► TLS
//! ```
//! Each server is asked in this order until it has shown what it is, all servers at once, and for a short time: it is a
//! diagnosis for people. It says only what was seen: a refusal, a certificate that is not accepted, a port with or
//! without TLS, a server without a quorum, another service.

use std::io::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::certificates;
use crate::zookeeper::connect_string::{ConnectString, ServerAddress};
use cronkeeper_core::escape;

/// Most servers that are asked.
const MOST: usize = 16;
/// Most bytes of an answer to look at.
const LONGEST: usize = 1024;
/// Most characters of an answer to show.
const SHOWN: usize = 60;
/// ZooKeeper's command for its state. Five bytes, because a server with TLS does not judge fewer.
const STATE: &[u8] = b"srvr\n";
/// Ends a request to a web server.
const END_OF_REQUEST: &[u8] = b"\r\n\r\n";

/// How long a server may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For its name to be found, and for it to accept.
    connect: Duration,
    /// To greet, as some services do, or to hang up.
    greeting: Duration,
    /// To answer.
    answer: Duration,
}

impl Patience {
    /// Less than the shortest pause between two attempts to open a session: the next must not wait for it.
    pub const SHORT: Self = Self::new(200, 15, 70);
    /// For a command that has given up.
    pub const LONG: Self = Self::new(500, 100, 500);

    const fn new(connect: u64, greeting: u64, answer: u64) -> Self {
        Self {
            connect: Duration::from_millis(connect),
            greeting: Duration::from_millis(greeting),
            answer: Duration::from_millis(answer),
        }
    }
}

/// What a server did with bytes that were sent to it, or without any.
#[derive(Debug)]
enum Seen {
    /// It said nothing in time.
    Silence,
    /// It closed the connection.
    HungUp,
    Bytes(Vec<u8>),
}

/// What each server does, those that do the same together. `tls`: sessions are opened like this.
pub(super) async fn of_each(connect: &ConnectString, tls: Option<&Arc<ClientConfig>>, patience: Patience) -> String {
    let servers = connect.servers();
    let asked = servers.iter().take(MOST);
    let asked = asked.map(|server| async move { (server.to_string(), Probe { server, patience }.run(tls).await) });
    let mut said = together(join_all(asked).await);
    if servers.len() > MOST {
        said.push(format!("{} more", servers.len() - MOST));
    }
    said.join("; ")
}

/// `a, b: connection refused` for each thing that servers do.
fn together(found: Vec<(String, String)>) -> Vec<String> {
    let mut groups: Vec<(String, String)> = Vec::new();
    for (server, does) in found {
        match groups.iter_mut().find(|(_, known)| *known == does) {
            Some((servers, _)) => *servers = format!("{servers}, {server}"),
            None => groups.push((server, does)),
        }
    }
    groups.into_iter().map(|(servers, does)| format!("{servers}: {does}")).collect()
}

struct Probe<'a> {
    server: &'a ServerAddress,
    patience: Patience,
}

impl Probe<'_> {
    async fn run(&self, tls: Option<&Arc<ClientConfig>>) -> String {
        let stream = match self.connect().await {
            Ok(stream) => stream,
            Err(why) => return why,
        };
        if let Some(config) = tls {
            return self.with_tls(stream, config).await;
        }
        let seen = match self.without_tls(stream).await {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        let said = match seen {
            _ if self.speaks_tls().await => {
                "speaks TLS: name the authority of its certificate with `--zookeeper-ca`, or its port without TLS"
            }
            Seen::Silence => "accepts connections, but says nothing: it may be stopped, overloaded, or another service",
            Seen::HungUp | Seen::Bytes(_) => {
                "hangs up on a request for ZooKeeper: it may be another service, or not serve this host"
            }
        };
        said.to_owned()
    }

    /// Connects, or says why that is not possible.
    async fn connect(&self) -> Result<TcpStream, String> {
        let ServerAddress { host, port } = self.server;
        let addresses: Vec<_> = match timeout(self.patience.connect, lookup_host((host.as_str(), *port))).await {
            Ok(Ok(addresses)) => addresses.collect(),
            Ok(Err(error)) => return Err(format!("name not found ({error})")),
            Err(_) => return Err("its name was not found in time".to_owned()),
        };
        match timeout(self.patience.connect, TcpStream::connect(&*addresses)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Err("connection refused".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("timed out".to_owned()),
        }
    }

    /// Asks for the state, without TLS. An error if the server has not shown what it is.
    async fn without_tls(&self, mut stream: TcpStream) -> Result<String, Seen> {
        match heard(&mut stream, self.patience.greeting).await {
            Seen::Silence => {}
            Seen::HungUp => {
                return Ok(
                    "hangs up at once: it may have too many connections from this host (maxClientCnxns), or be a \
                           proxy without a server behind it"
                        .to_owned(),
                );
            }
            Seen::Bytes(greeting) => return Ok(other_service(&greeting)),
        }
        let seen = match asked(&mut stream, STATE, self.patience.answer).await {
            // A web server waits for the end of what it takes for a request.
            Seen::Silence => asked(&mut stream, END_OF_REQUEST, self.patience.greeting).await,
            seen => seen,
        };
        match seen {
            Seen::Bytes(answer) if !is_tls(&answer) => Ok(of_answer(&answer)),
            seen => Err(seen),
        }
    }

    /// True if the server answers the beginning of TLS with TLS, whatever certificates there are.
    async fn speaks_tls(&self) -> bool {
        let (Ok(stream), Some(config)) = (self.connect().await, certificates::trusting_nobody()) else { return false };
        match self.handshake(stream, &config).await {
            Ok(None) => false,
            Ok(Some(_)) => true,
            Err(error) => tls_error(&error).is_some_and(|error| !matches!(error, rustls::Error::InvalidMessage(_))),
        }
    }

    /// `None`: the server did not answer in time.
    async fn handshake(
        &self,
        stream: TcpStream,
        config: &Arc<ClientConfig>,
    ) -> Result<Option<tokio_rustls::client::TlsStream<TcpStream>>, Error> {
        let name = ServerName::try_from(self.server.host.clone()).map_err(Error::other)?;
        let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        timeout(self.patience.answer, connecting).await.map_or(Ok(None), |connected| connected.map(Some))
    }

    async fn with_tls(&self, stream: TcpStream, config: &Arc<ClientConfig>) -> String {
        let error = match self.handshake(stream, config).await {
            Ok(Some(stream)) => return self.inside_tls(stream).await,
            Ok(None) => {
                return "accepts connections, but does not answer the beginning of TLS: it may be stopped, overloaded, or \
                        another service"
                    .to_owned();
            }
            Err(error) => error,
        };
        match tls_error(&error) {
            Some(error @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented)) => {
                format!("its certificate is not accepted here ({error}): check `--zookeeper-ca`, and the server's name")
            }
            Some(rustls::Error::AlertReceived(alert)) => format!("refuses TLS with this client ({alert:?}): {OWN}"),
            Some(error) if !matches!(error, rustls::Error::InvalidMessage(_)) => format!("TLS fails: {error}"),
            _ => self.no_tls().await,
        }
    }

    /// A server that does not answer in TLS.
    async fn no_tls(&self) -> String {
        let found = match self.connect().await {
            Ok(stream) => self.without_tls(stream).await,
            Err(why) => return why,
        };
        match found {
            Ok(found) if found.starts_with(ZOOKEEPER) => {
                "does not speak TLS: it is the port for clients without TLS; name the other port, or leave out \
                 `--zookeeper-ca`"
                    .to_owned()
            }
            Ok(found) => found,
            Err(_) => "hangs up at the beginning of TLS: it may not speak TLS, or refuse this host".to_owned(),
        }
    }

    /// Asks for the state after a handshake: a server refuses a certificate only then.
    async fn inside_tls(&self, mut stream: tokio_rustls::client::TlsStream<TcpStream>) -> String {
        match asked(&mut stream, STATE, self.patience.answer).await {
            Seen::Bytes(answer) => of_answer(&answer),
            Seen::HungUp => format!("hangs up after the handshake of TLS: {OWN}"),
            Seen::Silence => {
                "speaks TLS, but does not answer: it may be stopped, overloaded, or another service".to_owned()
            }
        }
    }
}

/// What to do about a server that does not accept this client.
const OWN: &str = "check this client's certificate, `--zookeeper-cert`";
/// The beginning of what is said of a server that has shown to be ZooKeeper.
const ZOOKEEPER: &str = "is ZooKeeper";

/// What the answer to the question for the state says.
fn of_answer(answer: &[u8]) -> String {
    let text = String::from_utf8_lossy(answer);
    let mode = text.lines().find_map(|line| line.strip_prefix("Mode: "));
    if text.contains("not currently serving requests") {
        format!("{ZOOKEEPER} without a quorum, or cut off from it")
    } else if mode == Some("read-only") {
        format!("{ZOOKEEPER}, but cut off from its quorum: it serves reads only")
    } else if mode.is_some() || text.starts_with("Zookeeper version") {
        format!("{ZOOKEEPER} and serves now, but gave no session in time")
    } else if text.contains("is not in the whitelist") {
        format!("{ZOOKEEPER}, but gives no session: it may have no quorum")
    } else {
        other_service(answer)
    }
}

fn other_service(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = escape::short(text.lines().next().unwrap_or_default().trim(), SHOWN);
    format!("is another service, not ZooKeeper: it says `{line}`")
}

/// True for a record of TLS: an alert or a handshake of any version.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 0x03, ..])
}

fn tls_error(error: &Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// What the server says by itself.
async fn heard(stream: &mut (impl AsyncRead + Unpin), within: Duration) -> Seen {
    let mut bytes = vec![0; LONGEST];
    match timeout(within, stream.read(&mut bytes)).await {
        Ok(Ok(read)) if read > 0 => {
            bytes.truncate(read);
            Seen::Bytes(bytes)
        }
        // A connection that is reset is closed too.
        Ok(_) => Seen::HungUp,
        Err(_) => Seen::Silence,
    }
}

/// What the server says to these bytes.
async fn asked(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), bytes: &[u8], within: Duration) -> Seen {
    match stream.write_all(bytes).await {
        Ok(()) => heard(stream, within).await,
        Err(_) => Seen::HungUp,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn at(listener: &TcpListener) -> String {
        listener.local_addr().unwrap().to_string()
    }

    async fn said(servers: &str) -> String {
        of_each(&servers.parse().unwrap(), None, Patience::LONG).await
    }

    /// A server that says this to whoever connects: at once, or after the first bytes; nothing: it hangs up.
    async fn says(greeting: &'static str, answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = at(&listener);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(greeting.as_bytes()).await;
                if greeting.is_empty() && !answer.is_empty() {
                    let _ = stream.read(&mut [0; 64]).await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
        let said = said(&place).await;
        said.strip_prefix(&format!("{place}: ")).expect("the server is named").to_owned()
    }

    #[tokio::test]
    async fn each_server_is_named_with_what_it_does() {
        let open = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = at(&TcpListener::bind("127.0.0.1:0").await.unwrap());
        let said = said(&format!("{},{closed},no-such-host.invalid:2181/chroot", at(&open))).await;
        let [silent, refused, unknown] = said.split("; ").collect::<Vec<_>>()[..] else { panic!("{said}") };
        assert!(silent.starts_with(&format!("{}: accepts connections, but says nothing", at(&open))), "{said}");
        assert_eq!(refused, format!("{closed}: connection refused"));
        assert!(unknown.starts_with("no-such-host.invalid:2181: ") && unknown.contains("not found"), "{said}");
    }

    #[tokio::test]
    async fn each_answer_is_explained() {
        let cases = [
            ("SSH-2.0-OpenSSH_9.2\r\n", "", "is another service, not ZooKeeper: it says `SSH-2.0-OpenSSH_9.2`"),
            ("", "HTTP/1.1 400 Bad Request\r\n", "it says `HTTP/1.1 400 Bad Request`"),
            ("", "", "hangs up at once: it may have too many connections from this host"),
            ("", "This ZooKeeper instance is not currently serving requests\n", "without a quorum, or cut off"),
            ("", "Zookeeper version: 3.8.0\nMode: read-only\n", "reads only"),
            ("", "Zookeeper version: 3.8.0\nMode: follower\n", "serves now, but gave no session"),
            ("", "srvr is not executed because it is not in the whitelist.\n", "it may have no quorum"),
            ("", "\u{15}\u{3}\u{3}", "hangs up on a request"),
        ];
        for (greeting, answer, part) in cases {
            let said = says(greeting, answer).await;
            assert!(said.contains(part), "{greeting:?} {answer:?}: {said}");
        }
    }

    #[tokio::test]
    async fn a_web_server_that_waits_for_the_end_of_the_request_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = at(&listener);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n")
                        && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0)
                    {}
                    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").await;
                    // Keeps the connection open.
                    let _ = stream.read(&mut [0; 64]).await;
                });
            }
        });
        let said = said(&place).await;
        assert!(said.contains("is another service, not ZooKeeper: it says `HTTP/1.1 400 Bad Request`"), "{said}");
    }

    #[tokio::test]
    async fn many_servers_are_not_all_asked() {
        let said = said(&vec!["127.0.0.1:1"; 20].join(",")).await;
        let same = vec!["127.0.0.1:1"; 16].join(", ");
        assert_eq!(said, format!("{same}: connection refused; 4 more"));
    }
}
