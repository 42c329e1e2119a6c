//! Requests to etcd's JSON gateway, on one connection that is opened when it is needed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::settings::Settings;
use crate::line::Beside;
use crate::tls;
use crate::tree::ConnectError;
use crate::url::{Login, Server};
use cronkeeper_core::escape;

/// Time for one member to accept a connection and the login.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Most bytes of an answer: what no folder of a cluster comes near.
const MOST_BYTES: usize = 64 << 20;

/// Why a request has no answer that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The cluster refuses it, with this code of gRPC.
    Refused {
        code: i64,
        message: String,
    },
    /// Nobody knows whether it was carried out.
    Unanswered(String),
    NotConnected(ConnectError),
}

/// Codes of gRPC.
pub const PERMISSION_DENIED: i64 = 7;
pub const INVALID_ARGUMENT: i64 = 3;
pub const FAILED_PRECONDITION: i64 = 9;
pub const OUT_OF_RANGE: i64 = 11;
pub const UNAUTHENTICATED: i64 = 16;

/// A connection for one request after the other.
pub struct Gateway {
    settings: Arc<Settings>,
    /// Taken out while a request is on its way: one that is given up takes the connection along.
    open: Mutex<Option<Open>>,
    /// The member that answered last.
    preferred: AtomicUsize,
}

/// An open connection.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    member: String,
    token: Option<String>,
    /// The member has answered as etcd does.
    is_known: bool,
    /// Moves its bytes.
    _serving: Beside,
}

/// A streamed answer: one JSON document after the other, each on a line.
pub struct Stream {
    body: Incoming,
    rest: Vec<u8>,
    _open: Open,
}

#[derive(Serialize)]
struct Authenticate {
    name: String,
    password: String,
}

#[derive(Deserialize)]
struct Authenticated {
    token: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: i64,
}

impl Gateway {
    pub fn new(settings: Arc<Settings>) -> Self {
        Self { settings, open: Mutex::default(), preferred: AtomicUsize::new(0) }
    }

    /// Asks, in bounded time. Waits for the requests before it.
    ///
    /// # Errors
    /// If there is no answer, or it is a refusal.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
        patience: Duration,
    ) -> Result<T, Failed> {
        let body = bytes(body)?;
        let busy = |_| Failed::Unanswered("etcd has not answered the previous request".to_owned());
        let mut open = timeout(patience, self.open.lock()).await.map_err(busy)?;
        for is_last in [false, true] {
            let mut connection = match open.take().filter(|open| !open.sender.is_closed()) {
                Some(connection) => connection,
                None => match timeout(patience, self.connect()).await {
                    Ok(connected) => connected.map_err(Failed::NotConnected)?,
                    Err(_) => {
                        // The next request begins with the next member: this one may have taken all the time.
                        self.preferred.fetch_add(1, Ordering::Relaxed);
                        let why = "etcd cannot be reached in time".to_owned();
                        return Err(Failed::NotConnected(ConnectError::Unreachable(why)));
                    }
                },
            };
            let answered = timeout(patience, connection.exchange(path, body.clone())).await;
            let (status, answer) = match answered {
                Ok(Ok(answer)) => answer,
                Ok(Err(why)) => return Err(Failed::Unanswered(format!("{}: {why}", connection.member))),
                Err(_) => {
                    // The next request tries another member.
                    self.preferred.fetch_add(1, Ordering::Relaxed);
                    return Err(Failed::Unanswered(format!("{}: no answer in time", connection.member)));
                }
            };
            if status {
                connection.is_known = true;
                *open = Some(connection);
                return serde_json::from_slice(&answer).map_err(|error| Failed::Unanswered(error.to_string()));
            }
            match refusal(&answer) {
                // Tokens expire, and a change of users makes them invalid.
                Failed::Refused { code: UNAUTHENTICATED, .. } if !is_last => {}
                refused @ Failed::Refused { code: UNAUTHENTICATED, .. } => return Err(refused),
                refused @ Failed::Refused { .. } => {
                    *open = Some(connection);
                    return Err(refused);
                }
                failed => {
                    self.preferred.fetch_add(1, Ordering::Relaxed);
                    return Err(failed);
                }
            }
        }
        Err(Failed::Unanswered("etcd does not accept its own token".to_owned()))
    }

    /// Asks for a streamed answer.
    ///
    /// # Errors
    /// If there is none.
    pub async fn stream(&self, path: &str, body: &(impl Serialize + Sync)) -> Result<Stream, Failed> {
        let body = bytes(body)?;
        let mut open = self.connect().await.map_err(Failed::NotConnected)?;
        let response = timeout(CONNECT_TIMEOUT, open.send(path, body)).await;
        match response.map_err(|_| Failed::Unanswered("no answer in time".to_owned()))? {
            Ok(response) => Ok(Stream { body: response.into_body(), rest: Vec::new(), _open: open }),
            Err(why) => Err(Failed::Unanswered(why)),
        }
    }

    /// Connects to the member that answered last, or to the next one that does, and logs in.
    async fn connect(&self) -> Result<Open, ConnectError> {
        let login = self.settings.access.login().await?;
        let (members, first) = (&self.settings.members, self.preferred.load(Ordering::Relaxed));
        let mut failures = Vec::new();
        for place in (0..members.len()).map(|i| (first + i) % members.len()) {
            let Some(member) = members.get(place) else { continue };
            match timeout(CONNECT_TIMEOUT, connect_to(member, &login)).await {
                Ok(Ok(open)) => {
                    self.preferred.store(place, Ordering::Relaxed);
                    return Ok(open);
                }
                Ok(Err(refused @ (ConnectError::Refused(_) | ConnectError::AuthFailed(_)))) => return Err(refused),
                Ok(Err(ConnectError::Unreachable(why))) => failures.push(format!("{member}: {why}")),
                Err(_) => failures.push(format!("{member}: no answer in time")),
            }
        }
        Err(ConnectError::Unreachable(failures.join("; ")))
    }
}

fn bytes(body: &impl Serialize) -> Result<Bytes, Failed> {
    let made = serde_json::to_vec(body).map(Bytes::from);
    made.map_err(|error| Failed::Refused { code: INVALID_ARGUMENT, message: error.to_string() })
}

/// What the gateway says instead of an answer.
fn refusal(answer: &[u8]) -> Failed {
    match serde_json::from_slice::<ErrorBody>(answer) {
        Ok(ErrorBody { error, message, code }) if code != 0 => {
            let message = if message.is_empty() { error } else { message };
            let lasting = [INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNAUTHENTICATED];
            // The token of a client that logged in before the users changed, or before there were any.
            let is_of_token = ["revision of auth store is old", "user name is empty", "invalid auth token"];
            if is_of_token.iter().any(|why| message.contains(why)) {
                return Failed::Refused { code: UNAUTHENTICATED, message };
            }
            match lasting.contains(&code) {
                true => Failed::Refused { code, message },
                // No leader, a timeout: it may be carried out later. No space: so may the next try.
                false => Failed::Unanswered(message),
            }
        }
        _ => {
            let text: String = String::from_utf8_lossy(answer).chars().take(80).collect();
            Failed::Unanswered(match text.contains("HTTP request to an HTTPS server") {
                true => "it speaks TLS: write https://, and add `cacert=FILE`".to_owned(),
                false => format!("it is another service, not etcd: it says `{}`", escape::plain(text.trim())),
            })
        }
    }
}

async fn connect_to(member: &Server, login: &Login) -> Result<Open, ConnectError> {
    let away = |error: &dyn std::error::Error| ConnectError::Unreachable(error.to_string());
    let open = |error: io::Error| match tls::words(&error, "cacert") {
        Some(why) => ConnectError::Unreachable(why),
        None => away(&error),
    };
    let stream = member.open(login).await.map_err(open)?;
    let made = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| away(&error))?;
    let serving = Beside::spawn(async move { drop(connection.await) });
    let mut open = Open { sender, member: member.to_string(), token: None, is_known: false, _serving: serving };
    if let Some((Some(name), password)) = &login.user {
        let body = Authenticate { name: name.clone(), password: password.clone() };
        let body = serde_json::to_vec(&body).map_err(|error| away(&error))?;
        let answer = open.exchange("/v3/auth/authenticate", body.into()).await;
        match answer.map_err(ConnectError::Unreachable)? {
            (true, answer) => {
                let said: Authenticated = serde_json::from_slice(&answer).map_err(|error| away(&error))?;
                open.token = Some(said.token);
            }
            (false, answer) => match refusal(&answer) {
                // Whoever names a user where nobody needs one is let in.
                Failed::Refused { code: FAILED_PRECONDITION, message } if message.contains("not enabled") => {}
                Failed::Refused { message, .. } => {
                    return Err(ConnectError::Refused(format!("{member}: user `{name}`: {message}")));
                }
                Failed::Unanswered(why) => return Err(ConnectError::Unreachable(why)),
                Failed::NotConnected(error) => return Err(error),
            },
        }
    }
    Ok(open)
}

impl Open {
    async fn send(&mut self, path: &str, body: Bytes) -> Result<Response<Incoming>, String> {
        let mut request = Request::post(path).header(header::HOST, &self.member);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
        self.sender.ready().await.map_err(|error| error.to_string())?;
        self.sender.send_request(request).await.map_err(|error| match () {
            () if error.is_parse() => format!("it is another service, not etcd: {error}"),
            // A member that ends hangs up, too.
            () if !self.is_known && error.is_incomplete_message() => {
                "it hangs up on a request for etcd: it speaks TLS (https://) or does not, or is another service"
                    .to_owned()
            }
            () => error.to_string(),
        })
    }

    /// The answer, and whether it is one.
    async fn exchange(&mut self, path: &str, body: Bytes) -> Result<(bool, Bytes), String> {
        let response = self.send(path, body).await?;
        let is_success = response.status().is_success();
        let body = Limited::new(response.into_body(), MOST_BYTES).collect().await;
        Ok((is_success, body.map_err(|error| error.to_string())?.to_bytes()))
    }
}

impl Stream {
    /// The next document; `None` at the end.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Option<T> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return serde_json::from_slice(&line).ok();
            }
            let frame = self.body.frame().await?.ok()?;
            let data = frame.into_data().ok()?;
            if self.rest.len() + data.len() > MOST_BYTES {
                return None;
            }
            self.rest.extend_from_slice(&data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: i64, message: &str) -> Failed {
        refusal(serde_json::json!({"error": message, "message": message, "code": code}).to_string().as_bytes())
    }

    #[test]
    fn only_what_stays_until_somebody_changes_it_is_refused() {
        let code = |failed: Failed| match failed {
            Failed::Refused { code, .. } => Some(code),
            Failed::Unanswered(_) | Failed::NotConnected(_) => None,
        };
        for (number, message, lasting) in [
            (PERMISSION_DENIED, "etcdserver: permission denied", Some(PERMISSION_DENIED)),
            (8, "etcdserver: mvcc: database space exceeded", None),
            (INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Some(UNAUTHENTICATED)),
            (INVALID_ARGUMENT, "etcdserver: user name is empty", Some(UNAUTHENTICATED)),
            (14, "etcdserver: no leader", None),
        ] {
            assert_eq!(code(said(number, message)), lasting, "{message}");
        }
        assert!(
            matches!(refusal(b"<html>"), Failed::Unanswered(why) if why.contains("it is another service, not etcd"))
        );
    }
}
