//! Connections to the first server that accepts writes.

use std::error::Error as _;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::error::Severity;
use tokio_postgres::{AsyncMessage, Client, Connection, Error, Socket};

use super::settings::{Login, Server, Settings};
use super::tls::{Stream, Tls};
use super::{examine, in_full, no_answer};
use crate::line;
use crate::tls;
use crate::tree::ConnectError;

/// Time to read the files that the settings name, and to look a name up.
const LOCALLY: Duration = Duration::from_secs(2);
/// Time to log in, once an address has accepted the connection.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(3);

/// An open connection.
pub struct Connected {
    pub client: Client,
    tls: Tls,
    /// Warnings that the server has sent.
    warnings: Arc<AtomicU64>,
    serving: AbortHandle,
}

impl Connected {
    /// Counts what a commit must not be accompanied by: a wait for a standby that was given up is only warned of.
    pub fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::Acquire)
    }

    /// Asks the server to give up what it is doing on this connection.
    async fn cancel(self: Arc<Self>) {
        let cancelled = timeout(LOGIN_TIMEOUT, self.client.cancel_token().cancel_query(self.tls.clone())).await;
        if let Ok(Err(error)) = cancelled {
            tracing::debug!(error = in_full(&error), "cannot cancel a request to PostgreSQL");
        }
    }
}

impl line::Connection for Connected {
    const SERVICE: &'static str = "PostgreSQL";

    fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn close(self: &Arc<Self>, is_cancelled: bool) {
        self.serving.abort();
        if is_cancelled {
            tokio::spawn(Arc::clone(self).cancel());
        }
    }
}

/// Connects to the first server that accepts writes.
pub async fn connect(settings: Arc<Settings>, hinted: watch::Sender<i64>) -> Result<Connected, ConnectError> {
    // Reads files, which may be on a disk that hangs.
    let reading = tokio::task::spawn_blocking(move || settings.login());
    let login = match timeout(LOCALLY, reading).await {
        Ok(Ok(Ok(login))) => login,
        Ok(Ok(Err(error))) => return Err(ConnectError::Refused(error.to_string())),
        Ok(Err(lost)) => return Err(ConnectError::Unreachable(lost.to_string())),
        Err(_) => return Err(ConnectError::Unreachable("the files of the settings cannot be read in time".to_owned())),
    };
    let mut failures = Vec::new();
    for server in login.servers() {
        let addresses = match addresses(&server).await {
            Ok(addresses) => addresses,
            Err(why) => {
                failures.push((server.to_string(), ConnectError::Unreachable(why)));
                continue;
            }
        };
        for address in addresses {
            match connect_to(&login, &server, address, hinted.clone()).await {
                Ok(connected) => return Ok(connected),
                Err(failure) => failures.push((server.to_string(), failure)),
            }
        }
    }
    Err(line::none_of(failures))
}

/// The addresses of a server; `None` for its socket on this host.
async fn addresses(server: &Server) -> Result<Vec<Option<IpAddr>>, String> {
    let name = match (&server.host, server.address) {
        (_, Some(address)) => return Ok(vec![Some(address)]),
        (Some(Host::Tcp(name)), None) => name,
        (Some(Host::Unix(_)) | None, None) => return Ok(vec![None]),
    };
    match timeout(LOCALLY, lookup_host((name.as_str(), server.port))).await {
        Ok(Ok(found)) => Ok(found.map(|address| Some(address.ip())).collect()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its name cannot be looked up in time".to_owned()),
    }
}

async fn connect_to(
    login: &Login,
    server: &Server,
    address: Option<IpAddr>,
    hinted: watch::Sender<i64>,
) -> Result<Connected, ConnectError> {
    let config = login.to(server, address);
    let within = config.get_connect_timeout().copied().unwrap_or_default() + LOGIN_TIMEOUT;
    let (client, connection) = match timeout(within, config.connect(login.tls.clone())).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(not_opened(&error, login, server)),
        Err(_) => return Err(no_answer()),
    };
    let warnings = Arc::new(AtomicU64::new(0));
    // Ends with the connection: when the client is dropped, or it is aborted.
    let serving = tokio::spawn(serve(connection, Arc::clone(&warnings), hinted)).abort_handle();
    let connected = Connected { client, tls: login.tls.clone(), warnings, serving };
    match timeout(LOGIN_TIMEOUT, why_read_only(&connected.client)).await {
        Ok(Ok(None)) => Ok(connected),
        // Others may be the primary, or this one may be soon.
        Ok(Ok(Some(why))) => Err(ConnectError::Unreachable(why.to_owned())),
        Ok(Err(error)) => Err(examine::not_connected(&error)),
        Err(_) => Err(no_answer()),
    }
}

/// Why a server accepts no writes; `None` if it does. The client library asks too, but does not say which it is.
async fn why_read_only(client: &Client) -> Result<Option<&'static str>, Error> {
    let sql = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') = 'on'";
    let row = client.query_typed_one(sql, &[]).await?;
    Ok(match (row.try_get(0)?, row.try_get(1)?) {
        (true, _) => Some("it is a standby, which accepts no writes: name the primary in `host`, too"),
        (false, true) => Some(
            "it accepts no writes, because `default_transaction_read_only` is on for the server, the database or the \
             user: switch it off",
        ),
        (false, false) => None,
    })
}

/// Says why no connection to a server could be opened.
fn not_opened(error: &Error, login: &Login, server: &Server) -> ConnectError {
    match (examine::not_connected(error), error.source()) {
        // What the client library says.
        (ConnectError::Refused(why), _) if why.ends_with("password missing") => {
            ConnectError::Refused(login.no_password(server))
        }
        (ConnectError::Unreachable(why), Some(source)) => {
            ConnectError::Unreachable(tls::words(source, "sslrootcert").unwrap_or(why))
        }
        (failure, _) => failure,
    }
}

/// Moves bytes, and notes what the server says unasked.
async fn serve(mut connection: Connection<Socket, Stream>, warnings: Arc<AtomicU64>, hinted: watch::Sender<i64>) {
    loop {
        match poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                // In the order of the answers: whoever waits for one finds the warning counted.
                if notice.parsed_severity() == Some(Severity::Warning) {
                    warnings.fetch_add(1, Ordering::AcqRel);
                }
                tracing::debug!(severity = notice.severity(), text = notice.message(), "PostgreSQL says");
            }
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Ok(revision) = notification.payload().parse() {
                    line::hint(&hinted, revision);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(error = in_full(&error), "the connection to PostgreSQL is lost");
                return;
            }
            None => return,
        }
    }
}
