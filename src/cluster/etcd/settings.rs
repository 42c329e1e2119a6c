//! Where a cluster's etcd is, and how to log in: the URLs of its members, a prefix, and parameters.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tokio_rustls::rustls::ClientConfig;

use crate::safe_path::{self, Refusal, Wanted};
use crate::tls::{self, Identity, TlsError, Trust};

/// Where the keys are if the settings name no prefix.
const PREFIX: &str = "/cronkeeper";
/// Where a member listens if its URL names no port.
const PORT: u16 = 2379;
/// Most bytes of a file with a password or certificates.
const MOST_BYTES: u64 = 4 << 20;

/// How to reach etcd. What it names is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub members: Vec<Member>,
    /// Of all keys; begins with a slash, and does not end with one.
    pub prefix: String,
    is_encrypted: bool,
    authorities: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    user: Option<(String, PathBuf)>,
}

/// An address of a member of the etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

/// What is needed to connect.
pub struct Login {
    /// Absent: in clear text.
    pub tls: Option<Arc<ClientConfig>>,
    /// Name and password.
    pub user: Option<(String, String)>,
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("it names no server: it is `https://e1:2379,https://e2:2379/prefix`")]
    NoMember,
    #[error("`{0}` is not the URL of a server: it is `https://e1:2379`")]
    Url(String),
    #[error("the URLs begin partly with http:// and partly with https://; encrypt all connections or none")]
    Mixed,
    #[error("only the last URL may have a prefix behind its port, which is the same for all")]
    PrefixInside,
    #[error("`{0}` is no prefix: it has an empty part, or blanks")]
    Prefix(String),
    #[error("there is no parameter `{0}`; there are cacert, cert, key, user and passfile")]
    Parameter(String),
    #[error("a password belongs in a file: add `?user=NAME&passfile=FILE`")]
    Password,
    #[error("https:// needs the authorities that sign the servers' certificates: add `?cacert=FILE`")]
    NoAuthorities,
    #[error("`{0}` needs https://")]
    NotEncrypted(&'static str),
    #[error("`cert` and `key` belong together: set both or none")]
    HalfIdentity,
    #[error("`user` and `passfile` belong together: set both or none")]
    HalfUser,
    #[error("{path}: {refusal}", path = path.display())]
    File { path: PathBuf, refusal: Refusal },
    #[error("{path}: {source}", path = path.display())]
    Tls { path: PathBuf, source: TlsError },
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let (urls, parameters) = text.trim().split_once('?').unwrap_or((text.trim(), ""));
        let mut members = Vec::new();
        let (mut prefix, mut encrypted) = (None, None);
        for url in urls.split(',').map(str::trim).filter(|url| !url.is_empty()) {
            if prefix.is_some() {
                return Err(SettingsError::PrefixInside);
            }
            let (scheme, rest) = url.split_once("://").ok_or_else(|| shown(url))?;
            let is_encrypted = match scheme {
                "https" => true,
                "http" => false,
                _ => return Err(shown(url)),
            };
            if *encrypted.get_or_insert(is_encrypted) != is_encrypted {
                return Err(SettingsError::Mixed);
            }
            let (address, path) = rest.split_once('/').map_or((rest, ""), |(address, path)| (address, path));
            if address.contains('@') {
                return Err(SettingsError::Password);
            }
            members.push(member(address).ok_or_else(|| shown(url))?);
            prefix = Some(path.trim_end_matches('/')).filter(|path| !path.is_empty());
        }
        let Some(is_encrypted) = encrypted else { return Err(SettingsError::NoMember) };
        let prefix = prefix.map_or_else(|| PREFIX.to_owned(), |prefix| format!("/{prefix}"));
        let is_bad = |part: &str| part.is_empty() || part.chars().any(|char| char.is_whitespace() || char.is_control());
        if prefix.split('/').skip(1).any(is_bad) {
            return Err(SettingsError::Prefix(prefix));
        }
        let parameters = Parameters::parse(parameters)?;
        let settings = Self {
            members,
            prefix,
            is_encrypted,
            authorities: parameters.cacert,
            identity: pair(parameters.cert, parameters.key).ok_or(SettingsError::HalfIdentity)?,
            user: pair(parameters.user, parameters.passfile).ok_or(SettingsError::HalfUser)?,
        };
        match (is_encrypted, &settings.authorities, &settings.identity) {
            (true, None, _) => Err(SettingsError::NoAuthorities),
            (false, Some(_), _) => Err(SettingsError::NotEncrypted("cacert")),
            (false, _, Some(_)) => Err(SettingsError::NotEncrypted("cert")),
            _ => Ok(settings),
        }
    }
}

/// What is not a URL may have a password in it: its end is left out.
fn shown(url: &str) -> SettingsError {
    SettingsError::Url(url.rsplit('@').next().unwrap_or(url).to_owned())
}

fn member(address: &str) -> Option<Member> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port.strip_prefix(':').map_or_else(|| port.is_empty().then_some(""), Some)?)
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let is_bad = |char: char| char.is_whitespace() || char.is_control() || "@#%\\".contains(char);
    let port = if port.is_empty() { PORT } else { port.parse().ok().filter(|port| *port != 0)? };
    (!host.is_empty() && !host.contains(is_bad)).then(|| Member { host: host.to_owned(), port })
}

#[derive(Default)]
struct Parameters {
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    user: Option<String>,
    passfile: Option<PathBuf>,
}

impl Parameters {
    fn parse(text: &str) -> Result<Self, SettingsError> {
        let mut all = Self::default();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "cacert" => all.cacert = Some(value.into()),
                "cert" => all.cert = Some(value.into()),
                "key" => all.key = Some(value.into()),
                "user" => all.user = Some(value),
                "passfile" => all.passfile = Some(value.into()),
                "password" => return Err(SettingsError::Password),
                _ => return Err(SettingsError::Parameter(name.to_owned())),
            }
        }
        Ok(all)
    }
}

/// Both or none; `None` if there is one of them.
fn pair<A, B>(one: Option<A>, other: Option<B>) -> Option<Option<(A, B)>> {
    match (one, other) {
        (Some(one), Some(other)) => Some(Some((one, other))),
        (None, None) => Some(None),
        _ => None,
    }
}

impl Settings {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// If one cannot be used, or others can change it, or read a secret in it.
    pub fn login(&self) -> Result<Login, SettingsError> {
        let tls = match &self.authorities {
            None => None,
            Some(authorities) => {
                let identity = match &self.identity {
                    Some((certificate, key)) => Some(Identity {
                        certificate: read(certificate, Wanted::Trusted)?,
                        key: read(key, Wanted::Secret)?,
                    }),
                    None => None,
                };
                let file = |source: TlsError| {
                    let path = match (&source, &self.identity) {
                        (TlsError::Identity(_), Some((certificate, _))) => certificate.clone(),
                        _ => authorities.clone(),
                    };
                    SettingsError::Tls { path, source }
                };
                let trust = Trust::Named(read(authorities, Wanted::Trusted)?);
                Some(tls::client(trust, identity).map_err(file)?)
            }
        };
        let user = match &self.user {
            Some((name, path)) => {
                let text = safe_path::read_text(path, Wanted::Secret, MOST_BYTES)
                    .map_err(|refusal| SettingsError::File { path: path.clone(), refusal })?;
                Some((name.clone(), text.trim_end_matches(['\r', '\n']).to_owned()))
            }
            None => None,
        };
        Ok(Login { tls, user })
    }
}

fn read(path: &Path, wanted: Wanted) -> Result<Vec<u8>, SettingsError> {
    safe_path::read_bytes(path, wanted, MOST_BYTES)
        .map_err(|refusal| SettingsError::File { path: path.to_owned(), refusal })
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The servers and the prefix.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(Member::to_string).collect();
        write!(f, "{}{}", members.join(","), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_prefix_and_parameters_are_read() {
        for (text, shown) in [
            ("http://e1", "e1:2379/cronkeeper"),
            ("http://e1:1,http://[::1]:2/", "e1:1,[::1]:2/cronkeeper"),
            ("https://e1,https://e2:5/ops/cron?cacert=/etc/ca.pem", "e1:2379,e2:5/ops/cron"),
        ] {
            assert_eq!(text.parse::<Settings>().expect(text).to_string(), shown);
        }
        let all = "https://e?cacert=/ca&cert=/c&key=/k%20y&user=cron&passfile=/p";
        let settings: Settings = all.parse().expect("it can be read");
        assert_eq!(settings.identity, Some(("/c".into(), "/k y".into())));
        assert_eq!(settings.user, Some(("cron".to_owned(), "/p".into())));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_and_no_message_has_a_password() {
        for (text, why) in [
            ("", "it names no server"),
            ("e1:2379", "`e1:2379` is not the URL of a server"),
            ("http://e1:x", "is not the URL of a server"),
            ("http://e1,https://e2", "encrypt all connections or none"),
            ("http://e1/a,http://e2", "only the last URL may have a prefix"),
            ("http://e1/a//b", "`/a//b` is no prefix"),
            ("http://root:secret@e1", "a password belongs in a file"),
            ("http://e1?password=secret", "a password belongs in a file"),
            ("https://e1", "add `?cacert=FILE`"),
            ("http://e1?cacert=/c", "`cacert` needs https://"),
            ("https://e1?cacert=/c&cert=/c", "set both or none"),
            ("http://e1?user=a", "`user` and `passfile` belong together"),
            ("http://e1?tls=on", "there is no parameter `tls`"),
        ] {
            let error = text.parse::<Settings>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
