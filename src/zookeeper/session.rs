//! Sessions by the crate `zookeeper-client`: with what is below it, the one file that imports it.
//!
//! The crate hands a request over when its method is called, but its futures borrow the client. `handed_over`
//! makes them `'static` and keeps the order of calls. Sessions are detached: a panic's unwinding must not close one,
//! for that would give leadership away while processes still run. Those [`aside`](Aside), for people, hold nothing and are closed.

mod aside;
mod identity;

use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use zookeeper_client as zk;

use super::client::{
    Acl, Client, Connect, ConnectError, Data, Done, Error, Mode, MultiError, Op, Ownership, Read, Stat, State, Watch,
};
use super::session_id;
use crate::term::SessionId;
use identity::Identity;

pub use aside::Aside;

/// After this long without a session another attempt is begun.
const TIMEOUT: Duration = Duration::from_millis(300);
/// No server was reached by TLS.
const NOT_BY_TLS: &str = "no server can be reached by TLS: `--log cronkeeper=info,zookeeper_client=debug` tells why";
/// Attempts of one try, the first among them.
const MOST_ATTEMPTS: u32 = 3;

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// How to reach and convince the servers.
#[derive(Clone, Default)]
pub struct Settings {
    /// `host:port,host:port/chroot`.
    pub connect: String,
    /// The session timeout to ask for.
    pub session_timeout: Duration,
    /// Who this client is, and with whom it shares what it makes.
    pub auth: Auth,
    /// Encryption, where asked for.
    pub tls: Option<Tls>,
}

/// Who a client is, beside the certificate that it may show. Without an identity, what it makes is open to everybody.
#[derive(Clone, Default)]
pub struct Auth {
    /// Schemes and credentials. Each of them may do everything with what this client makes, and no other may do anything.
    pub identities: Vec<(String, Vec<u8>)>,
    /// But for this: everybody may, as without identities.
    pub with_world: bool,
}

/// Certificates, as PEM texts.
#[derive(Clone, Default)]
pub struct Tls {
    /// Whom to trust; without it, the usual authorities.
    pub ca: Option<String>,
    /// Certificate and key to show.
    pub identity: Option<(String, String)>,
}

/// Makes sessions with real servers.
#[derive(Clone)]
pub struct Connector {
    connect: Arc<str>,
    is_secure: bool,
    identity: Identity,
    connector: zk::Connector,
}

impl Connector {
    /// Prepares to connect.
    ///
    /// # Errors
    /// When a certificate or key cannot be read, in words.
    pub fn new(settings: Settings) -> Result<Self, String> {
        let mut connector = Self::closing(settings)?;
        connector.connector = connector.connector.with_detached();
        Ok(connector)
    }

    /// One whose sessions end with the last clone of them.
    fn closing(settings: Settings) -> Result<Self, String> {
        let mut connector = zk::Client::connector().with_session_timeout(settings.session_timeout).with_fail_eagerly();
        let identity = Identity::of(&settings);
        for (scheme, credential) in &settings.auth.identities {
            connector = connector.with_auth(scheme, credential);
        }
        let is_secure = settings.tls.is_some();
        if let Some(tls) = settings.tls {
            connector = connector.with_tls(tls.options().map_err(|error| error.to_string())?);
        }
        Ok(Self { connect: settings.connect.into(), is_secure, identity, connector })
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

    /// A server that has no quorum yet takes a connection and is silent for a second or two; the crate waits that long for
    /// each in turn. So an attempt that is not through soon is joined by another, which goes its own way round the
    /// servers. A session that was made and not used holds nothing, and expires.
    async fn connect(&self) -> Result<Session, ConnectError> {
        let mut attempts = FuturesUnordered::from_iter([self.attempt()]);
        let mut left = MOST_ATTEMPTS - 1;
        loop {
            // Cancellation safe: the attempts are kept, and a wait begun anew only puts the next one off.
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
}

impl Connector {
    async fn attempt(&self) -> Result<Session, ConnectError> {
        let connector = self.connector.clone();
        let connected = if self.is_secure {
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
            // Whether nobody was there or a certificate was refused, the crate only tells its own log.
            Err(zk::Error::NoHosts) if self.is_secure => Err(ConnectError::Unreachable(NOT_BY_TLS.to_owned())),
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

/// A watch at real servers.
pub struct Watcher(zk::OneshotWatcher);

impl Watch for Watcher {
    async fn fired(self) {
        self.0.changed().await;
    }
}

impl Client for Session {
    type Watch = Watcher;

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
        handed_over(async move {
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
        handed_over(async move {
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
        handed_over(async move { client.delete(&path, Some(version)).await.map_err(error) })
    }

    fn get(&self, path: &str) -> impl Future<Output = Result<Data, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move {
            let (data, found) = client.get_data(&path).await.map_err(error)?;
            Ok((data, stat(&found)))
        })
    }

    fn stat_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Option<Stat>, Watcher), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move {
            let (found, watcher) = client.check_and_watch_stat(&path).await.map_err(error)?;
            Ok((found.as_ref().map(stat), Watcher(watcher)))
        })
    }

    fn get_and_watch(
        &self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Watcher), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move {
            let (data, found, watcher) = client.get_and_watch_data(&path).await.map_err(error)?;
            Ok((data, stat(&found), Watcher(watcher)))
        })
    }

    fn children(&self, path: &str) -> impl Future<Output = Result<Vec<String>, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move { client.list_children(&path).await.map_err(error) })
    }

    fn get_many(&self, paths: Vec<String>) -> impl Future<Output = Result<Vec<Read>, Error>> + Send + 'static {
        let client = self.client.clone();
        handed_over(async move {
            let mut reader = client.new_multi_reader();
            // What the client itself refuses to ask for is answered as if the server had.
            let asked: Vec<_> = paths.iter().map(|path| reader.add_get_data(path).map_err(error)).collect();
            let mut answers = reader.commit().await.map_err(error)?.into_iter();
            let nothing = || Err(Error::Refused("no answer to this part of the request".into()));
            Ok(asked.into_iter().map(|asked| asked.and_then(|()| answers.next().map_or_else(nothing, read))).collect())
        })
    }

    fn stat(&self, path: &str) -> impl Future<Output = Result<Option<Stat>, Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move { Ok(client.check_stat(&path).await.map_err(error)?.as_ref().map(stat)) })
    }

    fn belongs(&self) -> Ownership {
        self.belongs
    }

    fn acl(&self, path: &str) -> impl Future<Output = Result<(Vec<Acl>, Stat), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move {
            let (acl, found) = client.get_acl(&path).await.map_err(error)?;
            Ok((acl.iter().map(from_acl).collect(), stat(&found)))
        })
    }

    fn set_acl(&self, path: &str, acl: Vec<Acl>) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let (client, path) = (self.client.clone(), path.to_owned());
        handed_over(async move {
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

/// Runs a future up to its first wait, by which the crate has the request, and gives back the rest.
fn handed_over<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Answer<T> {
    let mut future: Answer<T> = Box::pin(future);
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
        other => Err(Error::Refused(format!("an answer to another question: {other:?}"))),
    }
}

fn stat(stat: &zk::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        mtime_ms: stat.mtime,
        version: stat.version,
        ephemeral_owner: stat.ephemeral_owner,
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
        // An expired session, too, arrives as the failure of the first operation.
        zk::MultiWriteError::OperationFailed { index, source } => {
            MultiError { index: Some(index), error: error(source) }
        }
    }
}

/// What the server said, or that it said nothing. Everything but a known refusal counts as no answer: a silent
/// server fails requests as `Custom`, not as `ConnectionLoss`.
fn error(source: zk::Error) -> Error {
    use zk::Error as E;
    match source {
        E::NoNode => Error::NoNode,
        E::NodeExists => Error::NodeExists,
        E::BadVersion => Error::BadVersion,
        E::NotEmpty => Error::NotEmpty,
        E::NoAuth | E::AuthFailed => Error::NoAuth,
        E::SessionExpired | E::ClientClosed => Error::SessionOver,
        E::BadArguments(_)
        | E::InvalidAcl
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
    fn what_is_not_a_servers_answer_is_no_answer() {
        assert!(matches!(error(zk::Error::ConnectionLoss), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::SessionMoved), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::Timeout), Error::Unanswered(_)));
        assert!(matches!(error(zk::Error::UnexpectedError("?".into())), Error::Unanswered(_)));
    }

    #[test]
    fn an_access_list_comes_back_as_it_was_read() {
        for raw in [zk::Permission::ALL, zk::Permission::READ | zk::Permission::DELETE, zk::Permission::NONE] {
            let acl = zk::Acl::new(raw, zk::AuthId::new("digest", "cron:hash"));
            assert_eq!(to_acl(&from_acl(&acl)), acl);
        }
    }

    #[test]
    fn an_expired_session_inside_a_multi_is_the_sessions_end_and_no_failed_check() {
        let source = zk::MultiWriteError::OperationFailed { index: 0, source: zk::Error::SessionExpired };
        assert_eq!(multi_error(source).error, Error::SessionOver);
    }
}
