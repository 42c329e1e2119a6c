//! Options to reach the coordination service for commands that need no daemon.
//!
//! What neither an option nor the environment sets is taken from the environment file of the daemon, so that a script on
//! a host uses the same servers as the daemon there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{BoolishValueParser, TypedValueParser as _};

use super::environment::{self, BadVariable};
use super::lock_failure::LockFailure;
use super::node_args::servers;
use super::progress::announced;
use super::stores::{self, ACCEPT_REWIND, NamedStore, OnStore, StoreArgs, on_store};
use super::{Error, credentials, guide};
use crate::option_file::OptionName;
use cronkeeper_cluster::recipes::SessionError;
use cronkeeper_cluster::safe_path::{self, Refusal, Wanted};
use cronkeeper_cluster::store::{Looked, Remote, Rewinds};
use cronkeeper_cluster::tree::{self, Connect, ConnectError, Session as _};
use cronkeeper_cluster::zookeeper::connect_string::ConnectString;
use cronkeeper_cluster::zookeeper::session::diagnosis::Patience;
use cronkeeper_cluster::zookeeper::session::{ConnectionSettings, Connector};
use cronkeeper_cluster::zookeeper::{ServerSession, Znodes};
use cronkeeper_core::clock::system::SystemClock;
use cronkeeper_core::clock::{Clock as _, Uptime};
use cronkeeper_core::duration;
use cronkeeper_core::election::Worth;
use cronkeeper_core::environment_file::{self, BadLine, Variable};
use cronkeeper_core::suggest::did_you_mean;

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
/// Time to look at a service.
const LOOK_WITHIN: Duration = Duration::from_secs(10);
/// What a node finds, unless something is special.
const SESSION: &str = "a node would get a session";
/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, clap::Args)]
pub struct ServiceArgs {
    /// ZooKeeper servers, `host:port,host:port/chroot` [default: those of the environment file]
    #[arg(long, value_name = "CONNECT", env = "CRONKEEPER_ZOOKEEPER", value_parser = servers)]
    zookeeper: Option<ConnectString>,
    #[command(flatten)]
    stores: StoreArgs,
    /// Session timeout: a client that is silent for this long is considered dead [default: 10s]
    #[arg(long, value_name = "DURATION", env = "CRONKEEPER_SESSION_TIMEOUT", value_parser = duration::parse)]
    session_timeout: Option<Duration>,
    #[command(flatten)]
    credentials: credentials::Args,
    /// The daemon's environment file. Used unless a service is named
    #[arg(long, value_name = "FILE", default_value = ENVIRONMENT_FILE)]
    environment_file: PathBuf,
}

/// When a command with this `--timeout` gives up. However short it is, the servers are given time to answer.
pub(super) fn give_up_at(now: Uptime, timeout: Option<Duration>) -> Uptime {
    timeout.map_or(Uptime::NEVER, |timeout| now + timeout.max(ANSWER_WITHIN))
}

/// A coordination service as commands without a daemon use it.
pub(super) trait Reach: Connect {
    /// The servers, for messages.
    fn shown(&self) -> String;

    /// The place of the locks in the service, for messages.
    fn root(&self) -> &str {
        "/"
    }

    /// Why nobody may have answered.
    fn no_answer(&self) -> String {
        NO_ANSWER.to_owned()
    }

    /// Finds out more about why nobody answers.
    fn diagnose(&self, why: String) -> impl Future<Output = String> {
        std::future::ready(why)
    }

    /// Looks at the service, if that can be done without a session.
    fn look(&self) -> impl Future<Output = Result<Option<Looked>, ConnectError>> {
        std::future::ready(Ok(None))
    }

    /// Closes a session and waits for the service's confirmation, so that it need not keep it until it expires.
    fn close(session: Self::Session) -> impl Future<Output = ()>;
}

/// ZooKeeper's servers, and where they are.
pub(super) struct Ensemble {
    znodes: Box<Znodes<Connector>>,
    connect: ConnectString,
}

impl Connect for Ensemble {
    type Session = ServerSession;

    fn connect(&self) -> impl Future<Output = Result<ServerSession, ConnectError>> + Send {
        self.znodes.connect()
    }
}

impl Reach for Ensemble {
    fn shown(&self) -> String {
        self.connect.to_string()
    }

    fn root(&self) -> &str {
        self.connect.shown_chroot()
    }

    fn no_answer(&self) -> String {
        self.znodes.0.no_server()
    }

    fn diagnose(&self, why: String) -> impl Future<Output = String> {
        self.znodes.0.diagnose(why, Patience::LONG)
    }

    async fn close(session: ServerSession) {
        session.into_client().close().over().await;
    }
}

impl<S: Remote> Reach for OnStore<S> {
    async fn look(&self) -> Result<Option<Looked>, ConnectError> {
        self.store.look().await.map(Some)
    }

    fn shown(&self) -> String {
        self.store.place()
    }

    fn close(session: Self::Session) -> impl Future<Output = ()> {
        session.close()
    }
}

/// A coordination service, not yet connected.
pub(super) struct Service<C> {
    connector: C,
    pub session_timeout: Duration,
    /// The file with the identities, for messages.
    auth_file: Option<PathBuf>,
}

/// The service that the settings name.
pub(super) enum AnyService {
    ZooKeeper(Service<Ensemble>),
    Store { store: NamedStore, session_timeout: Duration, rewinds: Rewinds },
}

/// A store as a service.
pub(super) fn of_store<S>(store: S, session_timeout: Duration) -> Service<OnStore<S>> {
    let connector = on_store(store, session_timeout, Arc::default());
    Service { connector, session_timeout, auth_file: None }
}

/// Does the same on whichever service it is.
macro_rules! on_service {
    ($service:expr, $name:ident => $done:expr) => {
        match $service {
            $crate::cli::service::AnyService::ZooKeeper($name) => $done,
            $crate::cli::service::AnyService::Store { store, session_timeout, rewinds } => {
                $crate::cli::stores::for_store!(store, settings, S => {
                    let store = S::new(settings.as_ref().clone(), *session_timeout, *rewinds);
                    let $name = &$crate::cli::service::of_store(store, *session_timeout);
                    $done
                })
            }
        }
    };
}
pub(super) use on_service;

impl ServiceArgs {
    /// The service that the options or the environment file name; `None` if they name none.
    pub(super) fn service(&self) -> Result<Option<AnyService>, Error> {
        // With other servers than the daemon's, the daemon's secrets are not used.
        if let Some(connect) = &self.zookeeper {
            return self.ensemble(connect.clone(), &self.credentials, None).map(Some);
        }
        if let Some(store) = self.stores.named()? {
            return Ok(Some(self.on(store, None, false)));
        }
        let settings = self.environment_file()?;
        let timeout = settings.get(TIMEOUT);
        let timeout = timeout.map(|setting| self.parsed(TIMEOUT, setting, duration::parse)).transpose()?;
        let accepted = settings.get(ACCEPT_REWIND).map(|setting| self.parsed(ACCEPT_REWIND, setting, boolish));
        let accepted = accepted.transpose()?.unwrap_or(false);
        let names = [SERVERS].into_iter().chain(stores::VARIABLES);
        let mut named = names.filter_map(|name| Some((name, settings.get(name)?)));
        let Some((name, setting)) = named.next() else { return Ok(None) };
        if let Some((other, Setting { line, .. })) = named.next() {
            let (path, line) = (self.environment_file.clone(), *line);
            let why = format!("{name} and {other} name two services; keep one");
            return Err(LockFailure::EnvironmentLine { path, line, why }.into());
        }
        if name != SERVERS {
            let store = self.parsed(name, setting, |text| NamedStore::parse(name, text))?;
            return Ok(Some(self.on(store, timeout, accepted)));
        }
        let connect = self.parsed(name, setting, servers)?;
        let credentials = credentials::Args::of_settings(|name| settings.get(name).map(|it| it.value.clone()));
        self.ensemble(connect, &credentials, timeout).map(Some)
    }

    /// A store, used as the options say, or else these settings of the environment file.
    fn on(&self, store: NamedStore, session_timeout: Option<Duration>, accept_rewind: bool) -> AnyService {
        let session_timeout = self.session_timeout.or(session_timeout).unwrap_or(SESSION_TIMEOUT);
        AnyService::Store { store, session_timeout, rewinds: self.stores.rewinds(accept_rewind) }
    }

    fn ensemble(
        &self,
        connect: ConnectString,
        credentials: &credentials::Args,
        session_timeout: Option<Duration>,
    ) -> Result<AnyService, Error> {
        let session_timeout = self.session_timeout.or(session_timeout).unwrap_or(SESSION_TIMEOUT);
        let settings = ConnectionSettings {
            connect: connect.to_string(),
            session_timeout,
            auth: credentials.auth()?,
            tls: credentials.tls()?,
        };
        let auth_file = credentials.auth_file().map(Path::to_owned);
        let znodes = Box::new(Znodes(Connector::closing(settings).map_err(Error::ZooKeeperOptions)?));
        Ok(AnyService::ZooKeeper(Service { connector: Ensemble { znodes, connect }, session_timeout, auth_file }))
    }

    /// The service, for commands that cannot do without.
    pub(super) fn required_service(&self, command: &'static str) -> Result<AnyService, Error> {
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

/// A switch, as the command line reads it from a variable.
fn boolish(text: &str) -> Result<bool, &'static str> {
    let parsed = BoolishValueParser::new().parse_ref(&guide::command(), None, text.as_ref());
    parsed.map_err(|_| "it is true or false")
}

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
            let meant = did_you_mean(nearest.as_deref());
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
pub(super) struct Connected<S> {
    pub session: S,
    /// When its connection was requested.
    pub requested: Uptime,
}

impl<C: Reach> Service<C> {
    /// Opens a session. Tries until `until`.
    pub(super) async fn connect(&self, clock: &SystemClock, until: Uptime) -> Result<Connected<C::Session>, Error> {
        let service = format!("{} at {}", C::Session::SERVICE, self.connector.shown());
        announced(&service, self.connect_until(clock, until)).await
    }

    /// Opens a session and makes sure that the place of the locks exists, for commands that would take a missing one for
    /// an empty one. Tries until `until`.
    pub(super) async fn enter(&self, clock: &SystemClock, until: Uptime) -> Result<Connected<C::Session>, Error> {
        loop {
            let connected = self.connect(clock, until).await?;
            let left = until.since(clock.now().up).max(ANSWER_WITHIN);
            let why = match tokio::time::timeout(left, connected.session.check_root()).await {
                Ok(Ok(())) => return Ok(connected),
                Ok(Err(tree::Error::NoRoot)) => {
                    self.close(connected.session).await;
                    return Err(LockFailure::NoChroot { chroot: self.connector.root().to_owned() }.into());
                }
                Ok(Err(error @ tree::Error::Denied)) => {
                    self.close(connected.session).await;
                    return Err(self.refused(format!("/: {error}")));
                }
                Ok(Err(error)) => format!("/: {error}"),
                Err(_) => NO_ANSWER.to_owned(),
            };
            self.close(connected.session).await;
            if clock.now().up + PAUSE >= until {
                return Err(self.unreachable(why));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect_until(&self, clock: &SystemClock, until: Uptime) -> Result<Connected<C::Session>, Error> {
        loop {
            let requested = clock.now().up;
            let left = until.since(requested);
            let why = match tokio::time::timeout(left, self.connector.connect()).await {
                Ok(Ok(session)) => return Ok(Connected { session, requested }),
                Ok(Err(error)) => self.may_pass(error)?,
                // A server may keep the connection open and say nothing that the service says.
                Err(_) => self.connector.no_answer(),
            };
            if clock.now().up + PAUSE >= until {
                return Err(self.unreachable(self.connector.diagnose(why).await));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Looks whether a node could use the service, and changes nothing in it. Returns what was found, for people.
    pub(super) async fn look(&self, clock: &SystemClock) -> Result<String, Error> {
        let service = format!("{} at {}", C::Session::SERVICE, self.connector.shown());
        let looked = tokio::time::timeout(LOOK_WITHIN, self.connector.look()).await;
        match looked.unwrap_or_else(|_| Err(ConnectError::Unreachable(self.connector.no_answer()))) {
            Ok(Some(Looked { worth, for_node })) => {
                let next = for_node.unwrap_or(SESSION);
                let Worth { service: version, durability, .. } = worth;
                Ok(format!("{version} at {}: {next}; {durability}", self.connector.shown()))
            }
            Ok(None) => {
                let connected = self.enter(clock, clock.now().up + LOOK_WITHIN).await?;
                self.close(connected.session).await;
                Ok(format!("{service}: {SESSION}"))
            }
            Err(error) => Err(self.unreachable(self.may_pass(error)?)),
        }
    }

    /// Why no connection was made, if that may pass by itself.
    ///
    /// # Errors
    /// If somebody must change something.
    fn may_pass(&self, error: ConnectError) -> Result<String, Error> {
        match error {
            ConnectError::AuthFailed(why) => Err(self.refused(why)),
            ConnectError::Refused(why) => {
                let (service, connect) = (C::Session::SERVICE, self.connector.shown());
                Err(LockFailure::Unusable { service, connect, why }.into())
            }
            ConnectError::Unreachable(why) => Ok(why),
        }
    }

    fn refused(&self, why: String) -> Error {
        let (service, connect, file) = (C::Session::SERVICE, self.connector.shown(), self.auth_file.clone());
        LockFailure::Credentials { service, connect, file, why }.into()
    }

    fn unreachable(&self, why: String) -> Error {
        LockFailure::Unreachable { service: C::Session::SERVICE, connect: self.connector.shown(), why }.into()
    }

    /// Closes a session, and waits for the confirmation, but not for long: without it the session expires by itself.
    pub(super) async fn close(&self, session: C::Session) {
        let _ = tokio::time::timeout(CLOSE_WITHIN, C::close(session)).await;
    }

    /// Words a failure of the session.
    pub(super) fn failed(&self, failure: impl Into<LockFailure>) -> Error {
        let failure = failure.into();
        if failure.session() == Some(&SessionError::NoRoot) {
            return LockFailure::NoChroot { chroot: self.connector.root().to_owned() }.into();
        }
        failure.into()
    }
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
