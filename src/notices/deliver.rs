//! Delivers one message to one channel: reads the secrets, sends it, and reports whether it arrived.
//!
//! What is secret is in no error and no answer.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::hmac;
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::http::{self, Post};
use super::message::Message;
use super::plan::{Fate, PATIENCE};
use super::smtp::{self, Mail};
use crate::config::{address, is_own_header};
use crate::job_files;
use cronkeeper_core::job::{Target, Url};

/// How long it may take until a message can be sent: to read the files, and to connect, encrypt and log in.
const OPENING: Duration = Duration::from_secs(20);
/// How long a delivery may take until it is answered.
pub(super) const LONGEST: Duration = Duration::from_secs(80);
/// A successor must not send what may still be on its way.
const _: () = assert!(LONGEST.as_secs() < PATIENCE.as_secs());
const _: () = assert!(OPENING.as_secs() + http::ANSWER.as_secs() <= LONGEST.as_secs());
const _: () = assert!(OPENING.as_secs() + smtp::ANSWER.as_secs() <= LONGEST.as_secs());

/// The answer of a service that accepted a message.
#[derive(Debug)]
pub(super) struct Answer {
    pub text: String,
    /// That it did not take it for some of the recipients: how many of how many, and why.
    pub refused: Option<String>,
}

/// Why a message was not delivered, or may not have been.
#[derive(Debug)]
pub(super) struct Failed {
    pub fate: Fate,
    /// Has no secret.
    pub why: String,
    /// More of the service's answer, for `cronkeeper notify test`.
    pub answer: Option<String>,
}

impl Failed {
    /// It did not arrive.
    pub fn refused(why: impl Into<String>) -> Self {
        Self { fate: Fate::Refused, why: why.into(), answer: None }
    }
}

/// An error of a connection.
pub(super) fn io_failed(fate: Fate, error: &impl Display) -> Failed {
    Failed { fate, why: format!("the connection failed: {error}"), answer: None }
}

/// Delivers a message before `until`, in bounded time.
///
/// What takes too long before the message itself is sent has certainly not delivered it.
pub(super) async fn deliver(target: Target, message: Message, at: Timestamp, until: Instant) -> Result<Answer, Failed> {
    let opened = until.min(Instant::now() + OPENING);
    let prepared = tokio::task::spawn_blocking(move || Prepared::of(&target, &message, at));
    let prepared = match timeout_at(opened, prepared).await {
        Err(_) => return Err(Failed::refused("the files of the channel cannot be read in time")),
        Ok(Err(error)) => return Err(Failed::refused(format!("the files of the channel cannot be read: {error}"))),
        Ok(Ok(prepared)) => prepared.map_err(Failed::refused)?,
    };
    let slow = || Failed::refused(format!("the service was not ready for the message within {} s", OPENING.as_secs()));
    let open = timeout_at(opened, prepared.open()).await.unwrap_or_else(|_| Err(slow()))?;
    if Instant::now() >= until {
        return Err(slow());
    }
    open.send(until).await
}

/// Waits for the answer to a message that may have arrived from now on.
pub(super) async fn answered<T>(
    within: Duration,
    until: Instant,
    answer: impl Future<Output = Result<T, Failed>>,
) -> Result<T, Failed> {
    let why = || format!("no answer within {} s", within.as_secs());
    let slow = |_| Err(Failed { fate: Fate::Doubtful, why: why(), answer: None });
    timeout_at(until.min(Instant::now() + within), answer).await.unwrap_or_else(slow)
}

/// A message with all that its service needs.
enum Prepared {
    Post(Post),
    Mail(Box<Mail>),
}

impl Prepared {
    /// Reads the files. Blocks.
    fn of(target: &Target, message: &Message, at: Timestamp) -> Result<Self, String> {
        match target {
            Target::Webhook { url, headers, headers_file, secret_file, ca_file } => {
                let mut all = HeaderMap::new();
                add_headers(&mut all, headers)?;
                if let Some(path) = headers_file {
                    add_headers(&mut all, &secret_headers(path)?)?;
                }
                let own = [("x-cronkeeper-id", message.id.clone()), ("idempotency-key", message.id.clone())];
                add_headers(&mut all, &own.map(|(name, value)| (name.to_owned(), value)).into())?;
                if let Some(path) = secret_file {
                    let signature = signature(&secret(path)?, at, &message.json);
                    add_headers(&mut all, &[("x-cronkeeper-signature".to_owned(), signature)].into())?;
                }
                let is_secret = headers_file.is_some() || secret_file.is_some();
                post(url, is_secret, all, message.json.clone(), ca_file.as_deref())
            }
            Target::Slack { url, ca_file } => post(url, true, HeaderMap::new(), message.slack(), ca_file.as_deref()),
            Target::Mail { to, from, smtp, user, password_file, ca_file } => {
                let password = password_file.as_deref().map(secret).transpose()?;
                let login = user.clone().zip(password);
                let mail = Mail::new(smtp, login, ca_file.as_deref(), (from.as_deref(), to), message, at)?;
                Ok(Self::Mail(Box::new(mail)))
            }
        }
    }

    /// Does all that comes before the message.
    async fn open(self) -> Result<Open, Failed> {
        match self {
            Self::Post(post) => Ok(Open::Http(Box::new(http::open(post).await?))),
            Self::Mail(mail) => Ok(Open::Smtp(Box::new(smtp::open(*mail).await?))),
        }
    }
}

/// A connection to a service that waits for the message.
enum Open {
    Http(Box<http::Open>),
    Smtp(Box<smtp::Open>),
}

impl Open {
    async fn send(self, until: Instant) -> Result<Answer, Failed> {
        match self {
            Self::Http(open) => open.send(until).await,
            Self::Smtp(open) => open.send(until).await,
        }
    }
}

fn post(
    url: &Url,
    is_secret: bool,
    headers: HeaderMap,
    body: Vec<u8>,
    ca_file: Option<&Path>,
) -> Result<Prepared, String> {
    let (url, is_secret) = match url {
        Url::Text(text) => (text.clone(), is_secret),
        Url::File(path) => (secret(path)?, true),
    };
    address(&url, is_secret).map_err(|why| format!("the URL {why}"))?;
    let tls = url.starts_with("https:").then(|| http::trust(ca_file)).transpose()?;
    Ok(Prepared::Post(Post { url, headers, body, tls }))
}

/// The content of a file that nobody else may read, without the white space around it.
fn secret(path: &Path) -> Result<String, String> {
    let own = nix::unistd::geteuid().as_raw();
    let bytes = job_files::secret(path, own).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: it is not text", path.display()))?;
    match text.trim() {
        "" => Err(format!("{}: it is empty", path.display())),
        text => Ok(text.to_owned()),
    }
}

/// The headers of a file, which may say who sends, and nothing that cronkeeper says itself.
fn secret_headers(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let headers = lines_of_headers(path)?;
    match headers.keys().find(|name| is_own_header(name)) {
        // A line that is no header may be the secret itself, so only a name that is known is quoted.
        Some(name) => Err(format!("{}: cronkeeper sets the header `{}` itself", path.display(), name.to_lowercase())),
        None => Ok(headers),
    }
}

fn lines_of_headers(path: &Path) -> Result<BTreeMap<String, String>, String> {
    let text = secret(path)?;
    let header = |(number, line): (usize, &str)| {
        let pair = line.split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()));
        pair.ok_or_else(|| format!("{}: line {number} is not `NAME: VALUE`", path.display()))
    };
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines.map(header).collect()
}

fn add_headers(all: &mut HeaderMap, headers: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|_| "one of the headers has an invalid name".to_owned())?;
        let value = HeaderValue::try_from(value).map_err(|_| format!("the value of the header `{name}` is invalid"))?;
        all.insert(name, value);
    }
    Ok(())
}

/// The header that proves who sent a body and when: an HMAC of both.
pub(super) fn signature(key: &str, at: Timestamp, body: &[u8]) -> String {
    let at = at.as_second();
    let signed = [format!("{at}.").as_bytes(), body].concat();
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), &signed);
    let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As any other implementation computes it: `printf '1700000000.{}' | openssl dgst -sha256 -hmac key`.
    #[test]
    fn a_signature_is_the_hmac_of_time_and_body() {
        let at = Timestamp::from_second(1_700_000_000).unwrap();
        let hex = "9d713ed406bb7076d4123f0dc2c39d2df5c654ed4b0cd56b52c8b4c940bd63ae";
        assert_eq!(signature("key", at, b"{}"), format!("t=1700000000,v1={hex}"));
    }

    fn file(dir: &tempfile::TempDir, text: &str) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.path().join("headers");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    #[test]
    fn headers_are_read_from_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "# for the gateway\nAuthorization: Bearer x:y\n\nX-Team: ops\nCookie: a=b\n");
        let headers = secret_headers(&path).unwrap();
        assert_eq!((headers["Authorization"].as_str(), headers["Cookie"].as_str()), ("Bearer x:y", "a=b"));
        std::fs::write(&path, "nonsense s3cret").unwrap();
        let why = secret_headers(&path).unwrap_err();
        assert!(why.contains("line 1") && !why.contains("s3cret"), "{why}");
    }

    #[test]
    fn a_file_of_headers_cannot_replace_those_that_cronkeeper_sets() {
        let dir = tempfile::tempdir().unwrap();
        for line in ["Host: other", "content-length: 7", "X-Cronkeeper-Id: 7", "IDEMPOTENCY-KEY: 7", "Connection: x"] {
            let why = secret_headers(&file(&dir, line)).unwrap_err();
            assert!(why.contains("cronkeeper sets the header"), "{line}: {why}");
        }
    }

    fn message() -> Message {
        Message { id: "abc".into(), title: "t".into(), text: "x\n".into(), chat: String::new(), json: b"{}".to_vec() }
    }

    /// What becomes of a message to a server that does this with its connection, if it may take half a second.
    async fn fate_at(server: impl Fn(tokio::net::TcpListener) -> tokio::task::JoinHandle<()>, scheme: &str) -> Fate {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = server(listener);
        let target = match scheme {
            "smtp" => Target::Mail {
                to: vec!["ops@example.com".into()],
                from: None,
                smtp: format!("smtp://127.0.0.1:{port}"),
                user: None,
                password_file: None,
                ca_file: None,
            },
            _ => Target::Slack { url: Url::Text(format!("{scheme}://127.0.0.1:{port}/x")), ca_file: None },
        };
        let until = Instant::now() + Duration::from_millis(500);
        let failed = deliver(target, message(), Timestamp::UNIX_EPOCH, until).await.unwrap_err();
        serving.abort();
        failed.fate
    }

    /// Takes connections and says nothing.
    fn mute(listener: tokio::net::TcpListener) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                held.push(stream);
            }
        })
    }

    #[tokio::test]
    async fn only_a_message_that_was_sent_is_in_doubt_without_an_answer() {
        assert_eq!(fate_at(mute, "smtp").await, Fate::Refused, "there was no greeting");
        assert_eq!(fate_at(mute, "https").await, Fate::Refused, "there was no TLS");
        assert_eq!(fate_at(mute, "http").await, Fate::Doubtful);
    }

    #[tokio::test]
    async fn an_answer_counts_by_its_first_line_though_the_rest_never_comes() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::Text(format!("http://{}/x", listener.local_addr().unwrap()));
        let serving = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
            let (mut stream, _) = listener.accept().await.unwrap();
            _ = stream.read(&mut [0; 8_000]).await;
            _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nwell").await;
            std::future::pending::<()>().await;
        });
        let until = Instant::now() + Duration::from_secs(3);
        let answer = deliver(Target::Slack { url, ca_file: None }, message(), Timestamp::UNIX_EPOCH, until).await;
        serving.abort();
        assert_eq!(answer.unwrap().text, "200 OK: well");
    }
}
