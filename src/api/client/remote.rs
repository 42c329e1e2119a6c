//! A node's address on TCP, for commands that ask another host: `https://host:port`.
//!
//! The token is sent only with TLS, to an address of this host, or if the caller says that others may read it. With TLS
//! the certificate must be for the host as named, by an authority of the caller's file.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::http::Uri;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::{AskError, Said};
use crate::api::network::{read_token, tls_client};
use crate::config::bare_host;
use crate::option_file::OptionFile;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostUrl {
    tls: bool,
    /// A name or an address, an IPv6 one without brackets.
    host: String,
    port: u16,
}

/// The error for a text that is not the address of a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected http://host:port or https://host:port, as in the node's `--listen`")]
pub struct BadHostUrl;

impl HostUrl {
    /// # Errors
    /// If the scheme, the host or the port is missing, or there is more than these.
    pub fn parse(text: &str) -> Result<Self, BadHostUrl> {
        let uri: Uri = text.parse().map_err(|_| BadHostUrl)?;
        let tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(BadHostUrl),
        };
        let authority = uri.authority().ok_or(BadHostUrl)?;
        let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none() && !authority.as_str().contains('@');
        let host = bare_host(authority.host()).to_owned();
        let port = authority.port_u16().filter(|_| is_bare && !host.is_empty()).ok_or(BadHostUrl)?;
        Ok(Self { tls, host, port })
    }
}

impl fmt::Display for HostUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => write!(f, "{scheme}://[{address}]:{}", self.port),
            _ => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// The files of a caller, and what it allows.
#[derive(Clone, Debug, Default)]
pub struct RemoteAccess {
    /// The node's token; without it, the node shows names, times and outcomes only.
    pub token: Option<OptionFile>,
    /// The authorities of the node's certificate.
    pub ca: Option<OptionFile>,
    /// The token may be sent unencrypted over the network.
    pub token_in_clear: bool,
}

/// A node to ask over TCP.
pub(super) struct Remote {
    url: HostUrl,
    token: Option<String>,
    token_in_clear: bool,
    tls: Option<Arc<ClientConfig>>,
}

/// A connection to a node.
pub(super) enum Connection {
    Plain(TcpStream),
    Secured(Box<TlsStream<TcpStream>>),
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Remote({})", self.url)
    }
}

impl Remote {
    /// Reads the files.
    pub fn new(url: HostUrl, access: &RemoteAccess) -> Result<Self, AskError> {
        let token = access.token.as_ref().map(read_token).transpose()?;
        let tls = match (url.tls, &access.ca) {
            (false, _) => None,
            (true, Some(ca)) => tls(ca)?,
            (true, None) => return Err(AskError::NoAuthority(url.to_string())),
        };
        Ok(Self { url, token, token_in_clear: access.token_in_clear, tls })
    }

    pub fn name(&self) -> String {
        self.url.to_string()
    }

    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Connects. Returns the connection and the address that it leads to.
    pub async fn connect(&self) -> Result<(Connection, SocketAddr), AskError> {
        let url = &self.url;
        let away = |why: String| AskError::Unreachable { host: url.to_string(), why: Said::of(why) };
        let unknown = |error: std::io::Error| away(format!("no such host: {error}"));
        let mut addresses: Vec<SocketAddr> =
            tokio::net::lookup_host((url.host.as_str(), url.port)).await.map_err(unknown)?.collect();
        if self.token.is_some() && !url.tls && !self.token_in_clear {
            addresses.retain(|address| address.ip().is_loopback());
            if addresses.is_empty() {
                return Err(AskError::TokenInClear(url.to_string()));
            }
        }
        let stream = TcpStream::connect(&addresses[..]).await.map_err(|error| away(error.to_string()))?;
        let address = stream.peer_addr().map_err(|error| away(error.to_string()))?;
        let Some(tls) = &self.tls else { return Ok((Connection::Plain(stream), address)) };
        let untrusted = |why: String| AskError::Certificate { host: url.to_string(), why: Said::of(why) };
        let server = ServerName::try_from(url.host.clone()).map_err(|error| untrusted(error.to_string()))?;
        let secured = TlsConnector::from(Arc::clone(tls)).connect(server, stream).await;
        let secured = secured.map_err(|error| untrusted(error.to_string()))?;
        Ok((Connection::Secured(Box::new(secured)), address))
    }
}

fn tls(ca: &OptionFile) -> Result<Option<Arc<ClientConfig>>, AskError> {
    Ok(tls_client(None, Some(ca))?.map(Arc::new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_a_host_and_a_port_and_nothing_else() {
        for good in ["http://127.0.0.1:7475", "https://host-a.example:443", "https://[2001:db8::1]:7475"] {
            assert_eq!(HostUrl::parse(good).unwrap().to_string(), good);
        }
        assert_eq!(HostUrl::parse("http://a:1/").unwrap().to_string(), "http://a:1");
        for bad in ["host-a:7475", "host-a", "ftp://a:1", "http://a", "http://a:1/x", "http://u:p@a:1", "http://:1", ""]
        {
            assert_eq!(HostUrl::parse(bad), Err(BadHostUrl), "{bad}");
        }
    }

    fn token(dir: &tempfile::TempDir) -> OptionFile {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join("token");
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        OptionFile::given("--token-file", path)
    }

    #[tokio::test]
    async fn a_token_leaves_this_host_only_encrypted_or_if_the_caller_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let access = RemoteAccess { token: Some(token(&dir)), ..RemoteAccess::default() };
        let remote = |url: &str, access: &RemoteAccess| Remote::new(HostUrl::parse(url).unwrap(), access).unwrap();
        // An address for documentation: nothing answers there.
        let refused = remote("http://192.0.2.1:1", &access).connect().await;
        assert!(matches!(refused, Err(AskError::TokenInClear(_))));
        let local = remote("http://127.0.0.1:1", &access).connect().await;
        assert!(matches!(local, Err(AskError::Unreachable { .. })), "a local one may have it");
        let without = Remote::new(HostUrl::parse("https://127.0.0.1:1").unwrap(), &access);
        assert!(matches!(without, Err(AskError::NoAuthority(_))));
    }
}
