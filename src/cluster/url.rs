//! How settings name the servers of a service, and the files with what they need: URLs, and parameters behind the last.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::safe_path::{self, Refusal, Wanted};
use crate::tls::{self, Identity, TlsError, Trust};
use crate::tree::ConnectError;

/// Most bytes of a file with a password or certificates.
const MOST_BYTES: u64 = 4 << 20;
/// A connection is lost after this long without a sign of life from its host.
const VANISHED: Duration = Duration::from_secs(10);
/// Time for a handshake: less than a server has to accept a connection, so that its silence can be worded.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(1_700);
/// Time to read the files that the settings name.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// What the URLs of a service look like.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// In clear text.
    pub plain: &'static str,
    pub encrypted: &'static str,
    /// Where a server listens if its URL names no port.
    pub port: u16,
    /// For messages.
    pub example: &'static str,
    /// Parameters besides those of [`Access`].
    pub parameters: &'static [&'static str],
    /// A password without a user's name belongs to a user that the service knows.
    pub has_default_user: bool,
}

/// What the settings say. The files are not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urls {
    pub servers: Vec<Server>,
    /// What follows the port of the last URL, without slashes at its ends.
    pub path: String,
    pub access: Access,
    /// The values of [`Form::parameters`].
    pub parameters: BTreeMap<String, String>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

/// How to encrypt and log in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    authorities: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    user: Option<User>,
}

/// Who logs in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    /// Absent: the service's default.
    name: Option<String>,
    passfile: PathBuf,
    /// The parameter that names the file.
    parameter: &'static str,
}

/// What is needed to connect.
pub struct Login {
    /// Absent: in clear text.
    pub tls: Option<Arc<ClientConfig>>,
    /// Name and password.
    pub user: Option<(Option<String>, String)>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    #[error("it names no server: write `{0}`")]
    NoServer(&'static str),
    #[error("`{url}` is not the URL of a server: write `{example}`")]
    Url { url: String, example: &'static str },
    #[error("some URLs begin with {0}:// and some with {1}://; encrypt all connections or none")]
    Mixed(&'static str, &'static str),
    #[error("only the last URL may have something after its port, which then applies to all")]
    PathInside,
    #[error("there is no parameter `{name}`; the parameters are {known}")]
    Parameter { name: String, known: String },
    #[error("it has a NUL character (`%00`), which no name can have")]
    Nul,
    #[error("a password belongs in a file: add `?user=NAME&passfile=FILE`")]
    Password,
    #[error("{0}:// needs the authorities that sign the servers' certificates: add `?cacert=FILE`")]
    NoAuthorities(&'static str),
    #[error("`{0}` needs {1}://")]
    NotEncrypted(&'static str, &'static str),
    #[error("`cert` and `key` belong together: set both or none")]
    HalfIdentity,
    #[error("`user` and `passfile` belong together: set both or none")]
    HalfUser,
    #[error("{}", safe_path::of_setting(parameter, path, refusal))]
    File { parameter: &'static str, path: PathBuf, refusal: Refusal },
    #[error("{path}: {source}", path = path.display())]
    Tls { path: PathBuf, source: TlsError },
}

impl Urls {
    /// Reads settings of this form.
    ///
    /// # Errors
    /// If they cannot be meant.
    pub fn parse(text: &str, form: &Form) -> Result<Self, UrlError> {
        // Whatever it is, a part of it may be a password. A file's name can have `%40`.
        if text.contains('@') {
            return Err(UrlError::Password);
        }
        if percent_decode_str(text).any(|byte| byte == 0) {
            return Err(UrlError::Nul);
        }
        let (urls, parameters) = text.trim().split_once('?').unwrap_or((text.trim(), ""));
        let mut servers = Vec::new();
        let (mut path, mut encrypted) = ("", None);
        for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
            if !path.is_empty() {
                return Err(UrlError::PathInside);
            }
            let shown = || UrlError::Url { url: url.to_owned(), example: form.example };
            let (scheme, rest) = url.split_once("://").ok_or_else(shown)?;
            let is_encrypted = scheme == form.encrypted;
            if !is_encrypted && scheme != form.plain {
                return Err(shown());
            }
            if *encrypted.get_or_insert(is_encrypted) != is_encrypted {
                return Err(UrlError::Mixed(form.plain, form.encrypted));
            }
            let (address, behind) = rest.split_once('/').map_or((rest, ""), |(address, behind)| (address, behind));
            servers.push(Server::parse(address, form.port).ok_or_else(shown)?);
            path = behind.trim_end_matches('/');
        }
        let Some(is_encrypted) = encrypted else { return Err(UrlError::NoServer(form.example)) };
        let mut parameters = values(parameters, form)?;
        let access = Access::take(&mut parameters, form, is_encrypted)?;
        Ok(Self { servers, path: path.to_owned(), access, parameters })
    }
}

/// The parameters with their values.
fn values(text: &str, form: &Form) -> Result<BTreeMap<String, String>, UrlError> {
    let known = || ["cacert", "cert", "key", "user", "passfile"].iter().chain(form.parameters);
    let mut values = BTreeMap::new();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        if name == "password" {
            return Err(UrlError::Password);
        }
        if !known().any(|known| *known == name) {
            let known: Vec<&str> = known().copied().collect();
            return Err(UrlError::Parameter { name: name.to_owned(), known: known.join(", ") });
        }
        values.insert(name.to_owned(), percent_decode_str(value).decode_utf8_lossy().into_owned());
    }
    Ok(values)
}

impl Access {
    fn take(values: &mut BTreeMap<String, String>, form: &Form, is_encrypted: bool) -> Result<Self, UrlError> {
        let mut file = |name: &str| values.remove(name).map(PathBuf::from);
        let (authorities, certificate, key, passfile) = (file("cacert"), file("cert"), file("key"), file("passfile"));
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(UrlError::HalfIdentity),
        };
        let parameter = "passfile";
        let user = match (values.remove("user"), passfile) {
            (Some(name), Some(passfile)) => Some(User { name: Some(name), passfile, parameter }),
            (None, Some(passfile)) if form.has_default_user => Some(User { name: None, passfile, parameter }),
            (None, None) => None,
            _ => return Err(UrlError::HalfUser),
        };
        match (is_encrypted, &authorities, &identity) {
            (true, None, _) => Err(UrlError::NoAuthorities(form.encrypted)),
            (false, Some(_), _) => Err(UrlError::NotEncrypted("cacert", form.encrypted)),
            (false, _, Some(_)) => Err(UrlError::NotEncrypted("cert", form.encrypted)),
            _ => Ok(Self { authorities, identity, user }),
        }
    }

    /// The name of the user, if the settings name one.
    pub fn user_name(&self) -> Option<&str> {
        self.user.as_ref()?.name.as_deref()
    }

    /// The same certificates, with the user of Sentinels.
    #[must_use]
    pub fn with_sentinel_user(&self, name: Option<String>, passfile: Option<PathBuf>) -> Self {
        let user = passfile.map(|passfile| User { name, passfile, parameter: "sentinel_passfile" });
        Self { user, ..self.clone() }
    }

    /// Reads the files, in bounded time: they may be on a disk that hangs.
    ///
    /// # Errors
    /// [`ConnectError::Refused`] if one cannot be used, or others can change it, or read a secret in it.
    pub async fn login(&self) -> Result<Login, ConnectError> {
        let access = self.clone();
        let reading = tokio::task::spawn_blocking(move || access.read());
        match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(Ok(login))) => Ok(login),
            Ok(Ok(Err(error))) => Err(ConnectError::Refused(error.to_string())),
            Ok(Err(lost)) => Err(ConnectError::Unreachable(lost.to_string())),
            Err(_) => Err(ConnectError::Unreachable("the files of the settings cannot be read in time".to_owned())),
        }
    }

    fn read(&self) -> Result<Login, UrlError> {
        let tls = match &self.authorities {
            None => None,
            Some(authorities) => {
                let identity = match &self.identity {
                    Some((certificate, key)) => Some(Identity {
                        certificate: bytes("cert", certificate, Wanted::Trusted)?,
                        key: bytes("key", key, Wanted::Secret)?,
                    }),
                    None => None,
                };
                let file = |source: TlsError| {
                    let path = match (&source, &self.identity) {
                        (TlsError::Identity(_), Some((certificate, _))) => certificate.clone(),
                        _ => authorities.clone(),
                    };
                    UrlError::Tls { path, source }
                };
                let trust = Trust::Named(bytes("cacert", authorities, Wanted::Trusted)?);
                Some(tls::client(trust, identity).map_err(file)?)
            }
        };
        let user = match &self.user {
            Some(User { name, passfile: path, parameter }) => {
                let text = safe_path::read_text(path, Wanted::Secret, MOST_BYTES)
                    .map_err(|refusal| UrlError::File { parameter, path: path.clone(), refusal })?;
                Some((name.clone(), text.trim_end_matches(['\r', '\n']).to_owned()))
            }
            None => None,
        };
        Ok(Login { tls, user })
    }
}

fn bytes(parameter: &'static str, path: &Path, wanted: Wanted) -> Result<Vec<u8>, UrlError> {
    safe_path::read_bytes(path, wanted, MOST_BYTES).map_err(|refusal| UrlError::File {
        parameter,
        path: path.to_owned(),
        refusal,
    })
}

/// A connection, encrypted or not.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Server {
    /// Reads `host`, `host:port` or `[address]:port`.
    pub fn parse(address: &str, usual_port: u16) -> Option<Self> {
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, port.strip_prefix(':').map_or_else(|| port.is_empty().then_some(""), Some)?)
            }
            None => address.split_once(':').unwrap_or((address, "")),
        };
        let is_bad = |char: char| char.is_whitespace() || char.is_control() || "@#%\\".contains(char);
        let port = if port.is_empty() { usual_port } else { port.parse().ok().filter(|port| *port != 0)? };
        (!host.is_empty() && !host.contains(is_bad)).then(|| Self { host: host.to_owned(), port })
    }

    /// Opens a connection, encrypted if the login says how.
    ///
    /// # Errors
    /// If the server does not accept it.
    pub async fn open(&self, login: &Login) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        // Who only waits for hints must notice, too, that the server has vanished.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, VANISHED / 2)?;
        sockopt::set_tcp_keepintvl(&stream, VANISHED / 4)?;
        sockopt::set_tcp_user_timeout(&stream, u32::try_from(VANISHED.as_millis()).unwrap_or(u32::MAX))?;
        let Some(tls) = &login.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        // Some services wait for the end of what they take for a line.
        match timeout(HANDSHAKE_TIMEOUT, TlsConnector::from(Arc::clone(tls)).connect(name, stream)).await {
            Ok(Ok(encrypted)) => Ok(Box::new(encrypted)),
            // What the server said before is lost, if the reset overtakes the reader.
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                Err(io::Error::new(error.kind(), tls::HANGS_UP))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::new(
                ErrorKind::TimedOut,
                "it does not answer when TLS begins: it does not speak TLS, is overloaded, or is another service",
            )),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The servers, for messages.
pub fn shown(servers: &[Server]) -> String {
    servers.iter().map(Server::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const FORM: Form = Form {
        plain: "http",
        encrypted: "https",
        port: 2379,
        example: "https://e1:2379,https://e2:2379/prefix",
        parameters: &["wait"],
        has_default_user: false,
    };

    /// A service without TLS takes the beginning of it for nonsense, and may reset the connection before its answer is read.
    #[tokio::test]
    async fn a_server_that_resets_the_connection_when_tls_begins_is_named_as_one() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let reset = async {
            let (mut stream, _) = listener.accept().await.expect("it is connected to");
            stream.read_u8().await.expect("TLS begins");
            // The kernel resets a connection that is closed while it has unread bytes.
            drop(stream);
        };
        let tls = Some(tls::client(Trust::Anybody, None).expect("it needs no file"));
        let login = Login { tls, user: None };
        let server = Server { host: "127.0.0.1".into(), port };
        let (opened, ()) = tokio::join!(server.open(&login), reset);
        let Err(error) = opened else { panic!("it does not speak TLS") };
        assert_eq!(error.to_string(), tls::HANGS_UP);
    }

    #[test]
    fn servers_path_and_parameters_are_read() {
        for (text, servers, path) in [
            ("http://e1", "e1:2379", ""),
            ("http://e1:1,http://[::1]:2/", "e1:1,[::1]:2", ""),
            ("https://e1,https://e2:5/ops/cron?cacert=/etc/ca.pem", "e1:2379,e2:5", "ops/cron"),
        ] {
            let urls = Urls::parse(text, &FORM).expect(text);
            assert_eq!((shown(&urls.servers).as_str(), urls.path.as_str()), (servers, path));
        }
        let all = "https://e?cacert=/ca&cert=/c&key=/k%20y&user=cron&passfile=/p&wait=2";
        let urls = Urls::parse(all, &FORM).expect("it can be read");
        assert_eq!(urls.access.identity, Some(("/c".into(), "/k y".into())));
        let user = |name: Option<&str>| {
            Some(User { name: name.map(str::to_owned), passfile: "/p".into(), parameter: "passfile" })
        };
        assert_eq!(urls.access.user, user(Some("cron")));
        assert_eq!(urls.parameters["wait"], "2");
        let default = Urls::parse("http://e?passfile=/p", &Form { has_default_user: true, ..FORM });
        assert_eq!(default.expect("it can be read").access.user, user(None));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_message_has_a_password() {
        for (text, why) in [
            ("", "it names no server"),
            ("e1:2379", "`e1:2379` is not the URL of a server"),
            ("http://e1:x", "is not the URL of a server"),
            ("http://e1,https://e2", "encrypt all connections or none"),
            ("http://e1/a,http://e2", "only the last URL may have something after its port"),
            ("http://root:secret@e1", "a password belongs in a file"),
            ("root:secret@e1", "a password belongs in a file"),
            ("http://root:se,secret@e1", "a password belongs in a file"),
            ("http://root:se?secret@e1", "a password belongs in a file"),
            ("http://e1?password=secret", "a password belongs in a file"),
            ("http://e1/a%00b", "it has a NUL character"),
            ("https://e1", "add `?cacert=FILE`"),
            ("http://e1?cacert=/c", "`cacert` needs https://"),
            ("https://e1?cacert=/c&cert=/c", "set both or none"),
            ("http://e1?user=a", "`user` and `passfile` belong together"),
            ("http://e1?passfile=/p", "`user` and `passfile` belong together"),
            (
                "http://e1?tls=on",
                "there is no parameter `tls`; the parameters are cacert, cert, key, user, passfile, wait",
            ),
        ] {
            let error = Urls::parse(text, &FORM).expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
