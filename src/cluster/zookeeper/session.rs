//! Sessions with real servers, by the crate `zookeeper-client`. Only this file and its submodules import that crate.
//!
//! The crate hands a request over when its method is called, but its futures borrow the client. `polled_once` makes
//! them `'static` and keeps the order of calls. Sessions are detached: the unwinding of a panic must not close one,
//! because that would give leadership away while processes still run. Sessions opened [`aside`](Aside), for people, own
//! no entries and are closed when dropped.

mod aside;
mod certificates;
pub mod diagnosis;
mod identity;

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_rustls::rustls::ClientConfig;
use zookeeper_client as zk;

use super::client::{
    Acl, Client, Connect, ConnectError, Data, Done, Error, Mode, MultiError, Op, Ownership, Read, Stat, State, Watch,
};
use super::connect_string::{ConnectString, ConnectStringError};
use super::session_id;
use cronkeeper_core::term::SessionId;
use diagnosis::Patience;
use identity::Identity;

pub use aside::Aside;

/// If there is no session after this time, another attempt starts in parallel to the first.
const TIMEOUT: Duration = Duration::from_millis(300);
/// Added by a daemon that can reach no server over TLS. Other commands have no such log.
const TLS_HINT: &str = "for more, see the log with `--log cronkeeper=info,zookeeper_client=debug`";
/// Most attempts to open one session, including the first.
const MOST_ATTEMPTS: u32 = 3;

type BoxedAnswer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Connection settings.
#[derive(Clone, Default)]
pub struct ConnectionSettings {
    /// `host:port,host:port/chroot`.
    pub connect: String,
    /// The session timeout to request.
    pub session_timeout: Duration,
    pub auth: Auth,
    /// `None`: the connection is not encrypted.
    pub tls: Option<Tls>,
}

/// Identities of a client, besides a certificate. Without any, the znodes that it creates are open to everybody.
#[derive(Clone, Default)]
pub struct Auth {
    /// Schemes and credentials. Only these identities may access the znodes that this client creates, and they may do
    /// everything.
    pub identities: Vec<(String, Vec<u8>)>,
    /// Gives everybody the same rights, as if there were no identities.
    pub with_world: bool,
}

/// Certificates, as PEM text.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities to trust; `None`: the usual ones.
    pub ca: Option<String>,
    /// Certificate and key of this client.
    pub identity: Option<(String, String)>,
}

/// Opens sessions with real servers.
#[derive(Clone)]
pub struct Connector {
    servers: Arc<ConnectString>,
    /// Servers and chroot as the crate takes them.
    connect: Arc<str>,
    /// How the servers are asked what is wrong; without it, sessions are not encrypted.
    tls: Option<Arc<ClientConfig>>,
    identity: Identity,
    connector: zk::Connector,
}

impl Connector {
    /// Prepares to connect; opens nothing yet.
    ///
    /// # Errors
    /// If the connect string is wrong, or a certificate or key cannot be read; the text says which.
    pub fn new(settings: ConnectionSettings) -> Result<Self, String> {
        let mut connector = Self::closing(settings)?;
        connector.connector = connector.connector.with_detached();
        Ok(connector)
    }

    /// A connector whose sessions close when their last clone is dropped.
    ///
    /// # Errors
    /// As for [`Connector::new`].
    pub fn closing(settings: ConnectionSettings) -> Result<Self, String> {
        let servers: ConnectString = settings.connect.parse().map_err(|error: ConnectStringError| error.to_string())?;
        let mut connector = zk::Client::connector().with_session_timeout(settings.session_timeout).with_fail_eagerly();
        let identity = Identity::of(&settings);
        for (scheme, credential) in &settings.auth.identities {
            connector = connector.with_auth(scheme, credential);
        }
        let secured = settings.tls.as_ref().map(certificates::config).transpose()?;
        if let Some(tls) = settings.tls {
            connector = connector.with_tls(tls.options().map_err(|error| error.to_string())?);
        }
        let connect = servers.to_string().into();
        Ok(Self { servers: Arc::new(servers), connect, tls: secured, identity, connector })
    }
}

impl Tls {
    fn options(self) -> Result<zk::TlsOptions, zk::Error> {
        let mut options = zk::TlsOptions::new();
        if let Some(ca) = &self.ca {
            options = options.with_pem_ca(ca)?;
        }
        if let Some((certificate, key)) = &self.identity {
            options = options.with_pem_identity(certificate, key)?;
        }
        Ok(options)
    }
}

impl Connect for Connector {
    type Client = Session;

    /// Opens a session with up to [`MOST_ATTEMPTS`] concurrent attempts.
    ///
    /// A server without a quorum accepts a connection and is then silent for a second or two, and the crate waits that
    /// long for each server in turn. So an attempt that takes long is joined by another, which tries the servers in its
    /// own order. A surplus session owns no entries and simply expires.
    async fn connect(&self) -> Result<Session, ConnectError> {
        let mut attempts = FuturesUnordered::from_iter([self.attempt()]);
        let mut left = MOST_ATTEMPTS - 1;
        loop {
            // Cancellation safe: the attempts are kept, and restarting the wait only delays the next attempt.
            tokio::select! {
                biased;
                Some(result) = attempts.next() => match result {
                    Err(ConnectError::Unreachable(_)) if !attempts.is_empty() => {}
                    result => return result,
                },
                () = tokio::time::sleep(TIMEOUT), if left > 0 => {
                    left -= 1;
                    attempts.push(self.attempt());
                }
            }
        }
    }

    fn explain(&self, error: String) -> impl Future<Output = String> + Send + 'static {
        let this = self.clone();
        let is_by_tls = this.is_secure() && error == this.no_server();
        async move {
            let found = this.diagnose(error, Patience::SHORT).await;
            if is_by_tls { format!("{found}; {TLS_HINT}") } else { found }
        }
    }
}

impl Connector {
    /// Adds to the text of a [`ConnectError::Unreachable`] what each server does, as far as that is found out so fast.
    pub async fn diagnose(&self, error: String, patience: Patience) -> String {
        if error != self.no_server() {
            return error;
        }
        diagnosis::of_each(&self.servers, self.tls.as_ref(), patience).await
    }

    fn is_secure(&self) -> bool {
        self.tls.is_some()
    }

    /// The error if no server gave a session, which [`Connector::diagnose`] explains.
    pub fn no_server(&self) -> String {
        let servers: Vec<String> = self.servers.servers().iter().map(ToString::to_string).collect();
        let servers = servers.join(",");
        match self.is_secure() {
            true => format!("none of the servers {servers} gives a session over TLS"),
            false => format!("none of the servers {servers} gives a session"),
        }
    }

    async fn attempt(&self) -> Result<Session, ConnectError> {
        let connector = self.connector.clone();
        let connected = if self.is_secure() {
            connector.secure_connect(&self.connect).await
        } else {
            connector.connect(&self.connect).await
        };
        match connected {
            Ok(client) => {
                let belongs = self.identity.belongs(&client).await?;
                Ok(Session { states: client.state_watcher(), client, belongs })
            }
            Err(zk::Error::AuthFailed) => Err(ConnectError::AuthFailed(zk::Error::AuthFailed.to_string())),
            // The crate reports only in its own log whether no server was there or a certificate was refused.
            Err(zk::Error::NoHosts) => Err(ConnectError::Unreachable(self.no_server())),
            Err(error) => Err(ConnectError::Unreachable(error.to_string())),
        }
    }
}

/// A session with real servers.
#[derive(Clone)]
pub struct Session {
    client: zk::Client,
    states: zk::StateWatcher,
    belongs: Ownership,
}

impl Session {
    /// Drops this clone, which should be the last one of a session that closes.
    pub fn close(self) -> Closing {
        Closing(self.states)
    }
}

/// A session that is being closed.
pub struct Closing(zk::StateWatcher);

impl Closing {
    /// Waits until the servers have confirmed the end, or the connection is lost for good.
    pub async fn over(&mut self) {
        while !self.0.state().is_terminated() {
            self.0.changed().await;
        }
    }
}

/// A watch on a real server.
pub struct ServerWatch(zk::OneshotWatcher);

impl Watch for ServerWatch {
    async fn fired(self) {
        self.0.changed().await;
    }
}

impl Client for Session {
    type Watch = ServerWatch;

    fn id(&self) -> SessionId {
        session_id(self.owner_id())
    }

    fn owner_id(&self) -> i64 {
        self.client.session_id().0
    }

    fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    fn state(&self) -> State {
        state(self.client.state())
    }

    async fn state_changed(&mut self) -> State {
        state(self.states.changed().await)
    }

    fn multi(&self, ops: Vec<Op>) -> impl Future<Output = Result<Vec<Done>, MultiError>> + Send + 'static {
        let Self { client, belongs, .. } = self.clone();
        polled_once(async move {
            let mut writer = client.new_multi_writer();
            for (index, op) in ops.iter().enumerate() {
                add(&mut writer, op, identity::acls(belongs))
                    .map_err(|source| MultiError { index: Some(index), error: error(source) })?;
            }
            let done = writer.commit().await.map_err(multi_error)?;
            Ok(done.into_iter().map(outcome).collect())
        })
    }

    fn create(
        &self,
        path: &str,
        data: Vec<u8>,
        mode: Mode,
    ) -> impl Future<Output = Result<(String, Stat), Error>> + Send + 'static {
        let Self { client, belongs, .. } = self.clone();
        let mut path = path.to_owned();
        polled_once(async move {
            let (made, sequence) = client
                .create(&path, &data, &create_mode(mode).with_acls(identity::acls(belongs)))
                .await
                .map_err(error)?;
            if matches!(mode, Mode::PersistentSequential | Mode::EphemeralSequential) {
                path.push_str(&sequence.to_string());
            }
            Ok((path, stat(&made)))
        })
    }

    fn delete(&self, path: &str, version: i32) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move { client.delete(&path, Some(version)).await.map_err(error) })
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let (data, found) = client.get_data(&path).await.map_err(error)?;
            Ok((data, stat(&found)))
        })
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, ServerWatch), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let (found, watcher) = client.check_and_watch_stat(&path).await.map_err(error)?;
            Ok((found.as_ref().map(stat), ServerWatch(watcher)))
        })
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, ServerWatch), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let (data, found, watcher) = client.get_and_watch_data(&path).await.map_err(error)?;
            Ok((data, stat(&found), ServerWatch(watcher)))
        })
    }

    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move { client.list_children(&path).await.map_err(error) })
    }

    fn children_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, ServerWatch), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let (names, watcher) = client.list_and_watch_children(&path).await.map_err(error)?;
            Ok((names, ServerWatch(watcher)))
        })
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let client = self.client.clone();
        polled_once(async move {
            let mut reader = client.new_multi_reader();
            // A path that the client itself refuses gets an error of its own, as if a server had refused it.
            let requested: Vec<_> = paths.iter().map(|path| reader.add_get_data(path).map_err(error)).collect();
            let mut answers = reader.commit().await.map_err(error)?.into_iter();
            let missing = || Err(Error::Refused("no answer to this part of the request".into()));
            let one = |request: Result<(), Error>| request.and_then(|()| answers.next().map_or_else(missing, read));
            Ok(requested.into_iter().map(one).collect())
        })
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move { Ok(client.check_stat(&path).await.map_err(error)?.as_ref().map(stat)) })
    }

    fn chroot(&self) -> String {
        self.client.path().trim_end_matches('/').to_owned()
    }

    fn stat_outside(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        // The root is a valid chroot, so the client is never given back as it was.
        let (client, path) = (self.client.clone().chroot("/").unwrap_or_else(|client| client), path.to_owned());
        polled_once(async move { Ok(client.check_stat(&path).await.map_err(error)?.as_ref().map(stat)) })
    }

    fn belongs(&self) -> Ownership {
        self.belongs
    }

    fn acl(&self, path: &str) -> impl Future<Output = Result<(Vec<Acl>, Stat), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let (acl, found) = client.get_acl(&path).await.map_err(error)?;
            Ok((acl.iter().map(from_acl).collect(), stat(&found)))
        })
    }

    fn set_acl(&self, path: &str, acl: Vec<Acl>) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        polled_once(async move {
            let acl: Vec<zk::Acl> = acl.iter().map(to_acl).collect();
            client.set_acl(&path, &acl, None).await.map_err(error).map(drop)
        })
    }
}

const PERMISSIONS: [(u8, zk::Permission); 5] = [
    (1, zk::Permission::READ),
    (2, zk::Permission::WRITE),
    (4, zk::Permission::CREATE),
    (8, zk::Permission::DELETE),
    (16, zk::Permission::ADMIN),
];

fn from_acl(acl: &zk::Acl) -> Acl {
    let has = |&&(_, permission): &&(u8, zk::Permission)| acl.permission().has(permission);
    let permissions = PERMISSIONS.iter().filter(has).map(|(bit, _)| bit).sum();
    Acl { permissions, scheme: acl.scheme().to_owned(), id: acl.id().to_owned() }
}

fn to_acl(acl: &Acl) -> zk::Acl {
    let has = |&&(bit, _): &&(u8, zk::Permission)| acl.permissions & bit != 0;
    let permission = PERMISSIONS.iter().filter(has).fold(zk::Permission::NONE, |all, &(_, one)| all | one);
    zk::Acl::new(permission, zk::AuthId::new(&acl.scheme, &acl.id))
}

/// Polls a future once, which hands the request to the crate, and returns the rest of it.
fn polled_once<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> BoxedAnswer<T> {
    let mut future: BoxedAnswer<T> = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Box::pin(ready(answer)),
        Poll::Pending => future,
    }
}

fn add(writer: &mut zk::MultiWriter<'_>, op: &Op, acls: zk::Acls<'_>) -> Result<(), zk::Error> {
    match op {
        Op::Check { path, version } => writer.add_check_version(path, *version),
        Op::Create { path, data, mode } => writer.add_create(path, data, &create_mode(*mode).with_acls(acls)),
        Op::Set { path, data, version } => writer.add_set_data(path, data, Some(*version)),
        Op::Delete { path, version } => writer.add_delete(path, Some(*version)),
    }
}

fn create_mode(mode: Mode) -> zk::CreateMode {
    match mode {
        Mode::Persistent => zk::CreateMode::Persistent,
        Mode::Container => zk::CreateMode::Container,
        Mode::PersistentSequential => zk::CreateMode::PersistentSequential,
        Mode::Ephemeral => zk::CreateMode::Ephemeral,
        Mode::EphemeralSequential => zk::CreateMode::EphemeralSequential,
    }
}

fn outcome(result: zk::MultiWriteResult) -> Done {
    match result {
        zk::MultiWriteResult::Create { path, .. } => Done::Created(path),
        zk::MultiWriteResult::SetData { stat: changed } => Done::Set(stat(&changed)),
        _ => Done::Nothing,
    }
}

fn read(result: zk::MultiReadResult) -> Read {
    match result {
        zk::MultiReadResult::Data { data, stat: found } => Ok((data, stat(&found))),
        zk::MultiReadResult::Error { err } => Err(error(err)),
        other => Err(Error::Refused(format!("unexpected kind of answer: {other:?}"))),
    }
}

fn stat(stat: &zk::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        mtime_ms: stat.mtime,
        ctime_ms: stat.ctime,
        version: stat.version,
        cversion: stat.cversion,
        ephemeral_owner: stat.ephemeral_owner,
        data_length: usize::try_from(stat.data_length).unwrap_or_default(),
    }
}

fn state(state: zk::SessionState) -> State {
    match state {
        zk::SessionState::SyncConnected => State::Connected,
        zk::SessionState::Disconnected | zk::SessionState::ConnectedReadOnly => State::Disconnected,
        zk::SessionState::AuthFailed => State::AuthFailed,
        zk::SessionState::Expired | zk::SessionState::Closed => State::Expired,
    }
}

fn multi_error(source: zk::MultiWriteError) -> MultiError {
    match source {
        zk::MultiWriteError::RequestFailed { source } => MultiError { index: None, error: error(source) },
        // An expired session arrives as a failure of the first operation too.
        zk::MultiWriteError::OperationFailed { index, source } => {
            MultiError { index: Some(index), error: error(source) }
        }
    }
}

/// Translates an error. Everything except a known refusal counts as no answer: if a server is silent, the crate fails
/// requests with `Custom`, not with `ConnectionLoss`.
fn error(source: zk::Error) -> Error {
    use zk::Error as E;
    match source {
        E::NoNode => Error::NoNode,
        E::NodeExists => Error::NodeExists,
        E::BadVersion => Error::BadVersion,
        E::NotEmpty => Error::NotEmpty,
        // Of all that a client here creates, only a znode of its own identities has an access list that can be invalid:
        // none of them counts as one, such as an address.
        E::NoAuth | E::AuthFailed | E::InvalidAcl => Error::NoAuth,
        E::SessionExpired | E::ClientClosed => Error::SessionOver,
        E::BadArguments(_)
        | E::NoChildrenForEphemerals
        | E::QuotaExceeded
        | E::Throttled
        | E::MarshallingError
        | E::Unimplemented
        | E::NotReadOnly
        | E::UnexpectedErrorCode(_) => Error::Refused(source.to_string()),
        other => Error::Unanswered(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_no_server_sent_count_as_no_answer() {
        assert!(matches!(error(zk::Error::ConnectionLoss), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::SessionMoved), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::Timeout), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::UnexpectedError("?".into())), Error::Unanswered(_)));
    }

    #[test]
    fn identities_that_can_own_nothing_are_a_refusal_for_good() {
        assert_eq!(error(zk::Error::InvalidAcl), Error::NoAuth);
    }

    #[test]
    fn an_access_list_survives_the_round_trip() {
        for raw in [zk::Permission::ALL, zk::Permission::READ | zk::Permission::DELETE, zk::Permission::NONE] {
            let acl = zk::Acl::new(raw, zk::AuthId::new("digest", "cron:hash"));
            assert_eq!(to_acl(&from_acl(&acl)), acl);
        }
    }

    #[test]
    fn an_expired_session_inside_a_multi_is_not_a_failed_check() {
        let source = zk::MultiWriteError::OperationFailed { index: 0, source: zk::Error::SessionExpired };
        assert_eq!(multi_error(source).error, Error::SessionOver);
    }
}
