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
use tokio::time::timeout;

use super::http::{self, Post};
use super::message::Message;
use super::plan::Fate;
use super::smtp::{self, Mail};
use crate::config::address;
use crate::job_files;
use cronkeeper_core::job::{Target, Url};

/// How long a delivery may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// The answer of a service that accepted a message.
#[derive(Debug)]
pub(super) struct Answer(pub String);

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

/// Delivers a message, in bounded time.
pub(super) async fn deliver(target: Target, message: Message, at: Timestamp) -> Result<Answer, Failed> {
    let slow = Failed { fate: Fate::Doubtful, why: format!("no answer within {} s", TIMEOUT.as_secs()), answer: None };
    let prepared = tokio::task::spawn_blocking(move || Prepared::of(&target, &message, at));
    match timeout(TIMEOUT, prepared).await {
        Err(_) => Err(Failed::refused("the files of the channel cannot be read in time")),
        Ok(Err(error)) => Err(Failed::refused(format!("the files of the channel cannot be read: {error}"))),
        Ok(Ok(prepared)) => {
            let prepared = prepared.map_err(Failed::refused)?;
            timeout(TIMEOUT, prepared.send()).await.unwrap_or(Err(slow))
        }
    }
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
                    add_headers(&mut all, &lines_of_headers(path)?)?;
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

    async fn send(self) -> Result<Answer, Failed> {
        match self {
            Self::Post(post) => http::post(post).await,
            Self::Mail(mail) => smtp::send(*mail).await,
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

    #[test]
    fn headers_are_read_from_lines() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("headers");
        std::fs::write(&path, "# for the gateway\nAuthorization: Bearer x:y\n\nX-Team: ops\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let headers = lines_of_headers(&path).unwrap();
        assert_eq!(headers["Authorization"], "Bearer x:y");
        std::fs::write(&path, "nonsense s3cret").unwrap();
        let why = lines_of_headers(&path).unwrap_err();
        assert!(why.contains("line 1") && !why.contains("s3cret"), "{why}");
    }
}
