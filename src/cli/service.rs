//! Options to reach ZooKeeper for commands that need no daemon.
//!
//! What neither an option nor the environment sets is taken from the environment file of the daemon, so that a script on
//! a host uses the same servers as the daemon there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::environment::{self, BadVariable};
use super::lock_failure::LockFailure;
use super::node_args::servers;
use super::progress::announced;
use super::{Error, credentials, guide};
use crate::option_file::OptionName;
use cronkeeper_cluster::safe_path::{self, Refusal, Wanted};
use cronkeeper_cluster::tree::{self, Connect as _, ConnectError, Session as _};
use cronkeeper_cluster::zookeeper::connect_string::ConnectString;
use cronkeeper_cluster::zookeeper::session::diagnosis::Patience;
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_cluster::zookeeper::{ServerSession, Znodes};
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::clock::{Clock as _, Uptime};
use cronkeeper_core::duration;
use cronkeeper_core::environment_file::{self, BadLine, Variable};

/// The settings of `cronkeeper.service`.
const ENVIRONMENT_FILE: &str = "/etc/cronkeeper/cronkeeper.env";
/// Most bytes of the environment file.
const MOST_BYTES: u64 = 1 << 20;
/// The session timeout without `--session-timeout`.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time to wait until the servers have confirmed the end of a session.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// The least time that the servers get to answer, also with `--timeout 0s`.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Why a new session cannot be used.
const NO_ANSWER: &str = "no server answered in time";
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, clap::Args)]
pub struct ServiceArgs {
    /// ZooKeeper servers, `host:port,host:port/chroot` [default: those of the environment file]
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ZOOKEEPER", value_parser = servers)]
    zookeeper: Option<ConnectString>,
    /// ZooKeeper session timeout: a client that is silent for this long is considered dead [default: 10s]
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_SESSION_TIMEOUT", value_parser = duration::parse)]
    session_timeout: Option<Duration>,
    #[command(flatten)]
    credentials: credentials::Args,
    /// The daemon's environment file. Used unless --zookeeper is set
    #[arg(long, value_name = "FILE", default_value = ENVIRONMENT_FILE)]
    environment_file: PathBuf,
}

/// When a command with this `--timeout` gives up. However short it is, the servers are given time to answer.
pub(super) fn give_up_at(now: Uptime, timeout: Option<Duration>) -> Uptime {
    timeout.map_or(Uptime::NEVER, |timeout| now + timeout.max(ANSWER_WITHIN))
}

/// A ZooKeeper ensemble, not yet connected.
pub(super) struct Service {
    connector: Znodes<Connector>,
    /// For messages.
    connect: ConnectString,
    pub session_timeout: Duration,
    /// The file with the identities, for messages.
    auth_file: Option<PathBuf>,
}

impl ServiceArgs {
    /// The ensemble that the options or the environment file name; `None` if they name none.
    pub(super) fn service(&self) -> Result<Option<Service>, Error> {
        let (connect, credentials, session_timeout) = match &self.zookeeper {
            // With other servers than the daemon's, the daemon's secrets are not used.
            Some(connect) => (connect.clone(), self.credentials.clone(), None),
            None => {
                let settings = self.environment_file()?;
                let named = settings.get(SERVERS);
                let Some(connect) = named.map(|setting| self.parsed(SERVERS, setting, servers)).transpose()? else {
                    return Ok(None);
                };
                let timeout = settings.get(TIMEOUT);
                let timeout = timeout.map(|setting| self.parsed(TIMEOUT, setting, duration::parse)).transpose()?;
                let credentials = credentials::Args::of_settings(|name| settings.get(name).map(|it| it.value.clone()));
                (connect, credentials, timeout)
            }
        };
        let session_timeout = self.session_timeout.or(session_timeout).unwrap_or(SESSION_TIMEOUT);
        let settings = ConnectionSettings {
            connect: connect.to_string(),
            session_timeout,
            auth: credentials.auth()?,
            tls: credentials.tls()?,
        };
        let auth_file = credentials.auth_file().map(Path::to_owned);
        let connector = Znodes(Connector::closing(settings).map_err(Error::ZooKeeperOptions)?);
        Ok(Some(Service { connector, connect, session_timeout, auth_file }))
    }

    /// The ensemble, for commands that cannot do without.
    pub(super) fn required_service(&self, command: &'static str) -> Result<Service, Error> {
        self.service()?.ok_or_else(|| LockFailure::NoServers { command }.into())
    }

    fn environment_file(&self) -> Result<BTreeMap<String, Setting>, Error> {
        match safe_path::read_text(&self.environment_file, Wanted::Trusted, MOST_BYTES) {
            Ok(text) => settings(&text).map_err(|BadSetting { line, why }| {
                LockFailure::EnvironmentLine { path: self.environment_file.clone(), line, why }.into()
            }),
            Err(Refusal::Io(error)) if error.kind() == ErrorKind::NotFound && self.is_default() => Ok(BTreeMap::new()),
            Err(Refusal::Io(source)) => {
                Err(LockFailure::EnvironmentFile { path: self.environment_file.clone(), source }.into())
            }
            Err(Refusal::Unsafe(found)) => {
                Err(Error::UnsafeOption { option: OptionName::without_variable("--environment-file"), found })
            }
        }
    }

    fn is_default(&self) -> bool {
        self.environment_file.as_os_str() == ENVIRONMENT_FILE
    }

    /// The value of a setting of the environment file.
    fn parsed<T, E: ToString>(
        &self,
        name: &'static str,
        setting: &Setting,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Error> {
        parse(&setting.value).map_err(|why| {
            let (path, line, why) = (self.environment_file.clone(), setting.line, why.to_string());
            LockFailure::EnvironmentValue { path, line, name, why }.into()
        })
    }
}

/// The settings of the environment file that this module reads itself.
const SERVERS: &str = "CRONKEEPER_ZOOKEEPER";
const TIMEOUT: &str = "CRONKEEPER_SESSION_TIMEOUT";

/// The value of a variable of an environment file.
#[derive(Debug, PartialEq, Eq)]
struct Setting {
    value: String,
    /// From 1.
    line: u32,
}

/// The settings of an environment file. In contrast to systemd, it refuses a line that is no assignment: a lock without
/// servers is one of this host.
///
/// # Errors
/// The first line that is not accepted. Its text may be a secret.
fn settings(text: &str) -> Result<BTreeMap<String, Setting>, BadSetting> {
    let lines = environment_file::parse_lines(text.as_bytes())
        .map_err(|BadLine { line, fault }| BadSetting { line, why: fault.to_string() })?;
    if let Some(line) = lines.ignored {
        return Err(BadSetting { line, why: "the line is not a setting, `NAME=value`".to_owned() });
    }
    let setting = |((name, value), line): (Variable, u32)| {
        (name, Setting { value: String::from_utf8_lossy(&value).into_owned(), line })
    };
    let settings: BTreeMap<String, Setting> = lines.variables.into_iter().map(setting).collect();
    let variables = settings.iter().map(|(name, setting)| (name.clone(), setting.value.clone()));
    let (name, why) = match environment::bad(&guide::command(), variables) {
        None => return Ok(settings),
        Some(BadVariable::Unknown { name, nearest }) => {
            let meant = nearest.map(|nearest| format!(", did you mean `{nearest}`?")).unwrap_or_default();
            let why = format!("unknown variable `{name}`{meant}");
            (name, why)
        }
        Some(BadVariable::Empty { name }) => {
            let why = format!("`{name}` is empty; give it a value, or delete the line");
            (name, why)
        }
    };
    Err(BadSetting { line: settings.get(&name).map_or(0, |setting| setting.line), why })
}

/// A line of an environment file that is not accepted.
#[derive(Debug, PartialEq, Eq)]
struct BadSetting {
    /// From 1.
    line: u32,
    why: String,
}

/// A session that was just opened.
pub(super) struct Connected {
    pub session: ServerSession,
    /// When its connection was requested.
    pub requested: Uptime,
}

impl Service {
    /// Opens a session. Tries until `until`.
    pub(super) async fn connect(&self, clock: &SystemClock, until: Uptime) -> Result<Connected, Error> {
        announced(&format!("ZooKeeper at {}", self.connect), self.connect_until(clock, until)).await
    }

    /// Opens a session and makes sure that the chroot exists, for commands that would take a missing one for an empty
    /// one. Tries until `until`.
    pub(super) async fn enter(&self, clock: &SystemClock, until: Uptime) -> Result<Connected, Error> {
        loop {
            let connected = self.connect(clock, until).await?;
            let left = until.since(clock.now().up).max(ANSWER_WITHIN);
            let why = match tokio::time::timeout(left, connected.session.check_root()).await {
                Ok(Ok(())) => return Ok(connected),
                Ok(Err(tree::Error::NoRoot)) => {
                    close(connected.session).await;
                    return Err(LockFailure::NoChroot { chroot: self.chroot().to_owned() }.into());
                }
                Ok(Err(error @ tree::Error::Denied)) => {
                    close(connected.session).await;
                    let (connect, file) = (self.shown(), self.auth_file.clone());
                    let why = format!("/: {error}");
                    return Err(LockFailure::Credentials { connect, file, why }.into());
                }
                Ok(Err(error)) => format!("/: {error}"),
                Err(_) => NO_ANSWER.to_owned(),
            };
            close(connected.session).await;
            if clock.now().up + PAUSE >= until {
                return Err(LockFailure::Unreachable { connect: self.shown(), why }.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect_until(&self, clock: &SystemClock, until: Uptime) -> Result<Connected, Error> {
        loop {
            let requested = clock.now().up;
            let left = until.since(requested);
            let why = match tokio::time::timeout(left, self.connector.connect()).await {
                Ok(Ok(session)) => return Ok(Connected { session, requested }),
                Ok(Err(ConnectError::AuthFailed(why))) => {
                    let (connect, file) = (self.shown(), self.auth_file.clone());
                    return Err(LockFailure::Credentials { connect, file, why }.into());
                }
                Ok(Err(ConnectError::Unreachable(why))) => why,
                // A server may keep the connection open and say nothing that ZooKeeper says.
                Err(_) => self.connector.0.no_server(),
            };
            if clock.now().up + PAUSE >= until {
                let why = self.connector.0.diagnose(why, Patience::LONG).await;
                return Err(LockFailure::Unreachable { connect: self.shown(), why }.into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The servers and the chroot.
    pub(super) fn shown(&self) -> String {
        self.connect.to_string()
    }

    /// The chroot for messages.
    pub(super) fn chroot(&self) -> &str {
        self.connect.shown_chroot()
    }
}

/// Closes a session and waits for the servers' confirmation, so that they need not keep it until it expires.
pub(super) async fn close(session: ServerSession) {
    let mut closing = session.into_client().close();
    // Without confirmation the session expires by itself.
    let _ = tokio::time::timeout(CLOSE_WITHIN, closing.over()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{Fuzz, text};

    #[test]
    fn the_environment_file_is_read_as_systemd_reads_it() {
        let text = "# comment\n; another\n\n CRONKEEPER_ZOOKEEPER = \"a:2181,b:2181/x\"\nA='b c'\nB=plain text\nC=\n";
        let settings = settings(text).unwrap();
        let of = |name: &str| settings.get(name).map(|setting| setting.value.as_str());
        assert_eq!(of("CRONKEEPER_ZOOKEEPER"), Some("a:2181,b:2181/x"));
        assert_eq!((of("A"), of("B"), of("C")), (Some("b c"), Some("plain text"), Some("")));
        assert_eq!(settings.get("A").map(|setting| setting.line), Some(5));
        for (text, line, why) in [
            ("A=b\n\nnonsense\n", 3, "the line is not a setting, `NAME=value`"),
            ("A=b\nCRONKEEPER_ZOOKEEPER", 2, "the line is not a setting, `NAME=value`"),
            ("export A=a:1\n", 1, "`export` belongs to a shell; leave it out: `NAME=value`"),
            ("=a:1\n", 1, "what is before `=` is not a variable name"),
            ("A B=c\n", 1, "what is before `=` is not a variable name"),
            ("A='b\n", 1, "the quote is not closed"),
            (
                "A=b\nCRONKEEPER_ZOKEEPER=a:1\n",
                2,
                "unknown variable `CRONKEEPER_ZOKEEPER`, did you mean `CRONKEEPER_ZOOKEEPER`?",
            ),
            ("A=\nCRONKEEPER_ZOOKEEPER=\n", 2, "`CRONKEEPER_ZOOKEEPER` is empty; give it a value, or delete the line"),
            ("CRONKEEPER_ZOOKEEPER='  '\n", 1, "`CRONKEEPER_ZOOKEEPER` is empty; give it a value, or delete the line"),
            (
                "CRONKEEPER_ZOOKEEPER=a:1\nCRONKEEPER_LISTEN=\n",
                2,
                "`CRONKEEPER_LISTEN` is empty; give it a value, or delete the line",
            ),
        ] {
            assert_eq!(super::settings(text), Err(BadSetting { line, why: why.to_owned() }), "{text}");
        }
        let continued = super::settings("CRONKEEPER_ZOOKEEPER=a:1,\\\nb:1\nB=c\n").unwrap();
        assert_eq!(continued["CRONKEEPER_ZOOKEEPER"], Setting { value: "a:1,b:1".to_owned(), line: 1 });
        assert_eq!(continued["B"].line, 3);
    }

    #[test]
    fn fuzz_environment_file() {
        let words = &["CRONKEEPER_ZOOKEEPER=", "\"", "'", "#", ";", "=", "\\", "\n", "a:2181"];
        Fuzz { longest: 8 << 10, ..Fuzz::of("environment-file", words) }.run(|input| settings(&text(input)).is_ok());
    }
}
