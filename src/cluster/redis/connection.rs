//! Connections to the server that accepts writes: the first of a list, or the one that Sentinels name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisConnectionInfo, RedisError, cmd};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::examine::Facts;
use super::settings::{Servers, Settings};
use crate::line;
use crate::tree::ConnectError;
use crate::url::{Access, Server, Stream};

/// Time for one server to accept a connection and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// What a server says that accepts no writes.
const REPLICA: &str = "it is a replica";

/// An open connection.
pub struct Connected {
    pub redis: MultiplexedConnection,
    /// How many replicas the Sentinels know of.
    pub replicas: usize,
    serving: AbortHandle,
}

impl line::Connection for Connected {
    const SERVICE: &'static str = "Redis";

    fn is_closed(&self) -> bool {
        self.serving.is_finished()
    }

    fn close(self: &Arc<Self>, _is_cancelled: bool) {
        self.serving.abort();
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The server that accepts writes, as far as is known before it is asked.
struct Found {
    server: Server,
    replicas: usize,
}

/// Connects to the server that accepts writes.
///
/// # Errors
/// If there is none.
pub async fn connect(settings: Arc<Settings>) -> Result<Connected, ConnectError> {
    let open = |found: Found| {
        let settings = Arc::clone(&settings);
        async move {
            let (redis, serving) = open(&found.server, &settings.access, settings.database).await?;
            let connected = Connected { redis, replicas: found.replicas, serving };
            match Facts::ask(&connected.redis).await.map_err(|error| not_connected(&error))?.is_master() {
                true => Ok(connected),
                // It may be the master soon.
                false => Err(ConnectError::Unreachable(REPLICA.to_owned())),
            }
        }
    };
    first(&settings, open).await
}

/// A connection that a server tells of new commits.
///
/// # Errors
/// If there is none.
pub async fn subscribe(settings: &Settings, channel: &str) -> Result<PubSub, ConnectError> {
    let open = |found: Found| async move {
        let (stream, info) = begin(&found.server, &settings.access, settings.database).await?;
        let mut redis = PubSub::new(&info, stream).await.map_err(|error| not_connected(&error))?;
        redis.subscribe(channel).await.map_err(|error| not_connected(&error))?;
        Ok(redis)
    };
    first(settings, open).await
}

/// The first of the servers with which this succeeds.
async fn first<T, F>(settings: &Settings, open: impl Fn(Found) -> F) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let (servers, watched) = match &settings.servers {
        Servers::Listed(servers) => (servers, None),
        Servers::Watched { sentinels, name, access } => (sentinels, Some((name, access))),
    };
    let mut failures = Vec::new();
    for server in servers {
        let found = match watched {
            None => Ok(Found { server: server.clone(), replicas: 0 }),
            Some((name, access)) => within(ask(server, name, access)).await,
        };
        let failed = |at: &dyn fmt::Display, failure| match failure {
            ConnectError::Refused(why) => ConnectError::Refused(format!("{at}: {why}")),
            ConnectError::AuthFailed(why) => ConnectError::AuthFailed(format!("{at}: {why}")),
            ConnectError::Unreachable(why) => ConnectError::Unreachable(format!("{at}: {why}")),
        };
        match found {
            Err(failure) => failures.push(failed(&format!("Sentinel {server}"), failure)),
            Ok(found) => {
                let at = found.server.to_string();
                match within(open(found)).await {
                    Ok(opened) => return Ok(opened),
                    Err(failure) => failures.push(failed(&at, failure)),
                }
            }
        }
    }
    // One that is only away may be the right one.
    let is_refused = failures.iter().all(|failure| matches!(failure, ConnectError::Refused(_)));
    let mut texts: Vec<String> = failures.iter().map(ToString::to_string).collect();
    texts.dedup();
    let all = texts.join("; ");
    Err(if is_refused && !all.is_empty() { ConnectError::Refused(all) } else { ConnectError::Unreachable(all) })
}

async fn within<T>(opening: impl Future<Output = Result<T, ConnectError>>) -> Result<T, ConnectError> {
    let opened = timeout(CONNECT_TIMEOUT, opening).await;
    opened.unwrap_or_else(|_| Err(ConnectError::Unreachable("no answer in time".to_owned())))
}

/// Asks a Sentinel for the master.
async fn ask(sentinel: &Server, name: &str, access: &Access) -> Result<Found, ConnectError> {
    let (redis, serving) = open(sentinel, access, 0).await?;
    // Ends the connection with this function.
    let asked = Connected { redis, replicas: 0, serving };
    let ask = |what: &str| {
        let mut command = cmd("SENTINEL");
        command.arg(what).arg(name);
        command
    };
    let address: Option<(String, u16)> = query(&asked.redis, ask("get-master-addr-by-name")).await?;
    let Some((host, port)) = address else {
        return Err(ConnectError::Refused(format!("it watches no master called `{name}`")));
    };
    let replicas: Vec<redis::Value> = query(&asked.redis, ask("replicas")).await?;
    Ok(Found { server: Server { host, port }, replicas: replicas.len() })
}

async fn query<T: FromRedisValue>(redis: &MultiplexedConnection, command: Cmd) -> Result<T, ConnectError> {
    command.query_async(&mut redis.clone()).await.map_err(|error| not_connected(&error))
}

async fn open(
    server: &Server,
    access: &Access,
    database: i64,
) -> Result<(MultiplexedConnection, AbortHandle), ConnectError> {
    let (stream, info) = begin(server, access, database).await?;
    // Who asks bounds the wait for an answer.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
    let (redis, connection) = opened.map_err(|error| not_connected(&error))?;
    Ok((redis, tokio::spawn(connection).abort_handle()))
}

async fn begin(
    server: &Server,
    access: &Access,
    database: i64,
) -> Result<(Box<dyn Stream>, RedisConnectionInfo), ConnectError> {
    let login = access.login().await?;
    let stream = server.open(&login).await.map_err(|error| ConnectError::Unreachable(error.to_string()))?;
    // The name of the library would need a right of its own.
    let mut info = RedisConnectionInfo::default().set_db(database).set_skip_set_lib_name();
    if let Some((name, password)) = login.user {
        info = info.set_password(password);
        info = name.map_or(info.clone(), |name| info.set_username(name));
    }
    Ok((stream, info))
}

/// Words why a server cannot be used. What only somebody can mend is refused.
pub fn not_connected(error: &RedisError) -> ConnectError {
    let why = in_full(error);
    if needs_somebody(error) { ConnectError::Refused(why) } else { ConnectError::Unreachable(why) }
}

/// What the server says, or what went wrong with the connection.
pub fn in_full(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

/// True for what stays as it is until somebody changes a setting: a wrong password, no right, no such database.
pub fn needs_somebody(error: &RedisError) -> bool {
    let lasting = ["NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "CROSSSLOT", "WRONGTYPE"];
    error.kind() == ErrorKind::AuthenticationFailed
        || error.code().is_some_and(|code| lasting.contains(&code))
        || error.detail().is_some_and(|detail| detail.contains("DB index"))
}
