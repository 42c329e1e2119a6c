//! Where a cluster's Redis is, and how to log in: the URLs of the servers or of their Sentinels, a database, and
//! parameters.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::url::{self, Access, Form, Server, UrlError, Urls};

/// The hash tag of all keys if the settings name no other.
const PREFIX: &str = "cronkeeper";
/// Where a Sentinel listens if its URL names no port.
const SENTINEL_PORT: u16 = 26379;
const FORM: Form = Form {
    plain: "redis",
    encrypted: "rediss",
    port: 6379,
    example: "rediss://r1:6379/0",
    parameters: &["sentinel", "sentinel_user", "sentinel_passfile", "wait", "prefix"],
    has_default_user: true,
};

/// How to reach Redis. What it names is not read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub servers: Servers,
    pub access: Access,
    pub database: i64,
    /// The hash tag of all keys, without its braces.
    pub prefix: String,
    /// How many replicas must have a commit before it counts, if the settings say so.
    pub wait: Option<usize>,
}

/// How the server that accepts writes is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Servers {
    /// The first of these that does.
    Listed(Vec<Server>),
    /// Sentinels know it by this name.
    Watched { sentinels: Vec<Server>, name: String, access: Access },
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Urls(#[from] UrlError),
    #[error("`/{0}` is not the number of a database: it is `/0`, or left out")]
    Database(String),
    #[error("`wait={0}` is not a number of replicas")]
    Wait(String),
    #[error("`prefix={0}`: it has letters, digits, `-`, `_` and `.` only")]
    Prefix(String),
    #[error("`sentinel` needs the name of the master that the Sentinels watch: `sentinel=mymaster`")]
    Sentinel,
    #[error("`{0}` is for Sentinels: add `sentinel=NAME`")]
    NoSentinel(&'static str),
    #[error("`sentinel_user` needs `sentinel_passfile`")]
    NoSentinelPassword,
}

impl FromStr for Settings {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        let is_watched = text.contains("sentinel=");
        let form = if is_watched { Form { port: SENTINEL_PORT, ..FORM } } else { FORM };
        let Urls { servers, path, access, mut parameters } = Urls::parse(text, &form)?;
        let database = match path.as_str() {
            "" => 0,
            number => number.parse::<u16>().map_err(|_| SettingsError::Database(path.clone()))?.into(),
        };
        let wait = match parameters.remove("wait") {
            None => None,
            Some(number) => Some(number.parse::<u8>().map_err(|_| SettingsError::Wait(number))?.into()),
        };
        let prefix = parameters.remove("prefix").unwrap_or_else(|| PREFIX.to_owned());
        let is_good = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
        if prefix.is_empty() || !prefix.chars().all(is_good) {
            return Err(SettingsError::Prefix(prefix));
        }
        let (user, passfile) = (parameters.remove("sentinel_user"), parameters.remove("sentinel_passfile"));
        let servers = match (parameters.remove("sentinel"), &user, &passfile) {
            (Some(name), ..) if name.is_empty() => return Err(SettingsError::Sentinel),
            (Some(_), Some(_), None) => return Err(SettingsError::NoSentinelPassword),
            (Some(name), ..) => {
                let access = access.with_sentinel_user(user, passfile.map(PathBuf::from));
                Servers::Watched { sentinels: servers, name, access }
            }
            (None, Some(_), _) => return Err(SettingsError::NoSentinel("sentinel_user")),
            (None, _, Some(_)) => return Err(SettingsError::NoSentinel("sentinel_passfile")),
            (None, None, None) => Servers::Listed(servers),
        };
        Ok(Self { servers, access, database, prefix, wait })
    }
}

impl Settings {
    /// What begins all keys. Redis Cluster keeps keys with the same tag together.
    pub fn tag(&self) -> String {
        format!("{{{}}}", self.prefix)
    }

    /// True if another server takes over when the first is lost.
    pub fn fails_over(&self) -> bool {
        match &self.servers {
            Servers::Listed(servers) => servers.len() > 1,
            Servers::Watched { .. } => true,
        }
    }

    /// The database and the prefix of the keys.
    pub fn place(&self) -> String {
        format!("{}/{}", self.database, self.prefix)
    }
}

/// The servers, the database and the prefix.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.servers {
            Servers::Listed(servers) => write!(f, "{}/{}", url::shown(servers), self.place()),
            Servers::Watched { sentinels, name, .. } => {
                write!(f, "{name}@{}/{}", url::shown(sentinels), self.place())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_database_and_parameters_are_read() {
        for (text, shown, wait) in [
            ("redis://r1", "r1:6379/0/cronkeeper", None),
            ("redis://r1:1,redis://[::1]/3?wait=2&prefix=ops", "r1:1,[::1]:6379/3/ops", Some(2)),
            (
                "rediss://s1,rediss://s2/?sentinel=main&cacert=/ca&passfile=/p",
                "main@s1:26379,s2:26379/0/cronkeeper",
                None,
            ),
        ] {
            let settings: Settings = text.parse().expect(text);
            assert_eq!((settings.to_string().as_str(), settings.wait), (shown, wait));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, why) in [
            ("redis://r1/x", "`/x` is not the number of a database"),
            ("redis://r1/0/0", "`/0/0` is not the number of a database"),
            ("redis://r1?wait=all", "`wait=all` is not a number of replicas"),
            ("redis://r1?prefix=a{b", "`prefix=a{b`"),
            ("redis://r1?prefix=", "`prefix=`"),
            ("redis://s1?sentinel=", "needs the name of the master"),
            ("redis://r1?sentinel_user=a", "`sentinel_user` is for Sentinels"),
            ("redis://r1?sentinel_passfile=/p", "`sentinel_passfile` is for Sentinels"),
            ("redis://s1?sentinel=m&sentinel_user=a", "`sentinel_user` needs `sentinel_passfile`"),
            ("redis://:secret@r1", "a password belongs in a file"),
            ("unix:///run/redis", "is not the URL of a server: write `rediss://r1:6379/0`"),
        ] {
            let error = text.parse::<Settings>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{text}: {error}");
        }
    }
}
