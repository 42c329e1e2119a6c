//! Connections to the server that accepts writes: the first of a list, or the one that Sentinels name.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisConnectionInfo, RedisError, cmd};
use tokio::time::timeout;

use super::examine::{self, Facts};
use super::settings::{Servers, Settings};
use crate::line::{self, Beside};
use crate::tls;
use crate::tree::ConnectError;
use crate::url::{Access, Login, Server, Stream};

/// Time for one server to accept a connection and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// An open connection.
pub struct Connected {
    pub redis: MultiplexedConnection,
    /// Of the server, as it was when the connection was opened.
    pub facts: Facts,
    /// Moves its bytes.
    serving: Beside,
}

impl line::Connection for Connected {
    const SERVICE: &'static str = "Redis";

    fn is_closed(&self) -> bool {
        self.serving.has_ended()
    }

    fn close(self: &Arc<Self>, _is_cancelled: bool) {
        self.serving.end();
    }
}

/// A server that may accept writes.
struct Found {
    server: Server,
    /// How many replicas the Sentinels know of.
    replicas: usize,
}

/// Connects to the server that accepts writes, if it can be used.
///
/// # Errors
/// If there is none.
pub async fn connect(settings: Arc<Settings>) -> Result<Connected, ConnectError> {
    let open = |found: Found| {
        let settings = Arc::clone(&settings);
        async move {
            let (redis, serving) = open(&found.server, &settings.access, settings.database).await?;
            let facts = Facts::ask(&redis, &settings, found.replicas).await;
            let facts = facts.map_err(|error| lacking(&error, &settings).unwrap_or_else(|| not_spoken_to(&error)))?;
            // It may be the master soon.
            if !facts.is_master() {
                return Err(ConnectError::Unreachable("it is a replica".to_owned()));
            }
            match (facts.objection(&settings), facts.lack(&settings)) {
                (Some(why), _) => Err(ConnectError::Refused(why)),
                (None, Some(why)) => Err(ConnectError::Unreachable(why)),
                (None, None) => Ok(Connected { redis, facts, serving }),
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
        let (stream, login) = begin(&found.server, &settings.access).await?;
        let mut info = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some((name, password)) = login.user {
            info = info.set_password(password);
            info = name.map_or(info.clone(), |name| info.set_username(name));
        }
        let why = |error: RedisError| lacking(&error, settings).unwrap_or_else(|| not_connected(&error));
        let mut redis = PubSub::new(&info, stream).await.map_err(why)?;
        redis.subscribe(channel).await.map_err(why)?;
        Ok(redis)
    };
    first(settings, open).await
}

/// The first of the servers with which this succeeds.
async fn first<T, F>(settings: &Settings, open: impl Fn(Found) -> F) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let (found, mut failures) = match &settings.servers {
        Servers::Listed(servers) => {
            let listed = servers.iter().map(|server| Found { server: server.clone(), replicas: 0 });
            (listed.collect(), Vec::new())
        }
        Servers::Watched { sentinels, name, access } => match of_sentinels(sentinels, name, access).await {
            Ok(master) => (vec![master], Vec::new()),
            Err(failures) => (Vec::new(), failures),
        },
    };
    for found in found {
        let at = found.server.to_string();
        match within(open(found)).await {
            Ok(opened) => return Ok(opened),
            Err(failure) => failures.push((at, failure)),
        }
    }
    Err(line::none_of(failures))
}

async fn within<T>(opening: impl Future<Output = Result<T, ConnectError>>) -> Result<T, ConnectError> {
    let opened = timeout(CONNECT_TIMEOUT, opening).await;
    opened.unwrap_or_else(|_| Err(ConnectError::Unreachable("no answer in time".to_owned())))
}

/// The master that the Sentinels name. If they differ, one that is cut off still names the old one: the newest
/// configuration counts.
async fn of_sentinels(sentinels: &[Server], name: &str, access: &Access) -> Result<Found, Vec<(String, ConnectError)>> {
    let answers = join_all(sentinels.iter().map(|sentinel| within(ask(sentinel, name, access)))).await;
    let (mut newest, mut failures) = (None, Vec::new());
    for (sentinel, answer) in sentinels.iter().zip(answers) {
        match answer {
            Ok((epoch, found)) if newest.as_ref().is_none_or(|(known, _)| *known < epoch) => {
                newest = Some((epoch, found));
            }
            Ok(_) => {}
            Err(failure) => failures.push((format!("Sentinel {sentinel}"), failure)),
        }
    }
    newest.map(|(_, found)| found).ok_or(failures)
}

/// Asks a Sentinel for the master, and for the number of its configuration.
async fn ask(sentinel: &Server, name: &str, access: &Access) -> Result<(u64, Found), ConnectError> {
    // The connection ends with this function.
    let (redis, _serving) = open(sentinel, access, 0).await?;
    let mut command = cmd("SENTINEL");
    command.arg("MASTER").arg(name);
    let said: HashMap<String, String> = match command.query_async(&mut redis.clone()).await {
        Ok(said) => said,
        Err(error) if in_full(&error).contains("No such master") => {
            return Err(ConnectError::Refused(format!("the Sentinel watches no master called `{name}`")));
        }
        // As a server that is no Sentinel says.
        Err(error) if in_full(&error).contains("unknown command") => {
            return Err(ConnectError::Refused(
                "the server is Redis itself, not a Sentinel: name the Sentinels, or leave out `sentinel`".to_owned(),
            ));
        }
        Err(error) => return Err(refused_or_away(&error, access)),
    };
    let number = |name: &str| said.get(name).and_then(|value| value.parse::<u64>().ok());
    let (host, port) = (said.get("ip"), number("port").and_then(|port| u16::try_from(port).ok()));
    let (Some(host), Some(port)) = (host, port) else {
        return Err(ConnectError::Unreachable("it does not say where the master is".to_owned()));
    };
    let replicas = number("num-slaves").and_then(|replicas| usize::try_from(replicas).ok()).unwrap_or_default();
    let found = Found { server: Server { host: host.clone(), port }, replicas };
    Ok((number("config-epoch").unwrap_or_default(), found))
}

/// Words why a command failed that is about no key.
fn refused_or_away(error: &RedisError, access: &Access) -> ConnectError {
    let lacking = examine::lacking(&in_full(error), access.user_name(), "");
    lacking.map_or_else(|| not_connected(error), ConnectError::Refused)
}

async fn query<T: FromRedisValue>(
    redis: &MultiplexedConnection,
    access: &Access,
    command: Cmd,
) -> Result<T, ConnectError> {
    command.query_async(&mut redis.clone()).await.map_err(|error| refused_or_away(&error, access))
}

async fn open(
    server: &Server,
    access: &Access,
    database: i64,
) -> Result<(MultiplexedConnection, Beside), ConnectError> {
    let (stream, login) = begin(server, access).await?;
    // The caller bounds the wait for an answer. Sending the name of the library would need a right of its own.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    let opened = MultiplexedConnection::new_with_config(&info, stream, config).await;
    let (redis, connection) = opened.map_err(|error| not_connected(&error))?;
    let serving = Beside::spawn(connection);
    // The library would take each error for a wrong password.
    if let Some((name, password)) = login.user {
        let mut command = cmd("AUTH");
        name.iter().for_each(|name| _ = command.arg(name));
        command.arg(password);
        let () = query(&redis, access, command).await?;
    }
    if database != 0 {
        let mut command = cmd("SELECT");
        command.arg(database);
        let () = query(&redis, access, command).await?;
    }
    Ok((redis, serving))
}

async fn begin(server: &Server, access: &Access) -> Result<(Box<dyn Stream>, Login), ConnectError> {
    let login = access.login().await?;
    let stream = server.open(&login).await.map_err(|error| away(&error))?;
    Ok((stream, login))
}

fn away(error: &io::Error) -> ConnectError {
    ConnectError::Unreachable(tls::words(error, "cacert").unwrap_or_else(|| error.to_string()))
}

/// Words why a server does not answer the first question.
fn not_spoken_to(error: &RedisError) -> ConnectError {
    match (not_connected(error), error.kind()) {
        (ConnectError::Unreachable(why), ErrorKind::Parse) => {
            ConnectError::Unreachable(format!("it is another service, not Redis: {why}"))
        }
        (ConnectError::Unreachable(why), _) if error.is_connection_dropped() => ConnectError::Unreachable(format!(
            "it hangs up on a request for Redis: it speaks TLS (`rediss://`) or does not, or is another service ({why})"
        )),
        (failure, _) => failure,
    }
}

/// Words why a server cannot be used. What only a person can fix is refused.
pub fn not_connected(error: &RedisError) -> ConnectError {
    let why = in_full(error);
    if needs_somebody(error) { ConnectError::Refused(why) } else { ConnectError::Unreachable(why) }
}

/// Words which right the user lacks; `None` if that is not why the server cannot be used.
pub fn lacking(error: &RedisError, settings: &Settings) -> Option<ConnectError> {
    examine::lacking(&in_full(error), settings.access.user_name(), &settings.tag()).map(ConnectError::Refused)
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
    let lasting = ["NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "CROSSSLOT", "WRONGTYPE", "FORMAT"];
    // Without a right in a script; without such a database; with a password where none is set, or a wrong one before 6.2.
    let said = ["executing the script", "ACL failure in script", "NOPERM", "DB index", "AUTH", "invalid password"];
    error.code().is_some_and(|code| lasting.contains(&code))
        || error.detail().is_some_and(|detail| said.iter().any(|said| detail.contains(said)))
}
