//! Mail, and its delivery by SMTP.
//!
//! A mail server has taken a message once it has answered to the dot at its end. Until the dot is sent, nothing has
//! arrived; from then to the answer nobody knows. A password is sent only over TLS, or to this host.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::Uri;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio_rustls::rustls::ClientConfig;

use super::deliver::{Answer, Failed, io_failed};
use super::http::{self, Stream};
use super::message::Message;
use super::plan::Fate;
use crate::config::is_this_host;
use cronkeeper_core::escape;

/// Most bytes of a server's reply.
const LONGEST_REPLY: u64 = 64 << 10;
/// Most characters of a reply that are shown.
const SHOWN: usize = 200;
/// Characters of base64 in a line.
const LINE: usize = 76;
/// Bytes of a title in one encoded word: at most 60 characters of base64.
const WORD: usize = 45;

/// A message for a mail server.
pub(super) struct Mail {
    host: String,
    port: u16,
    encryption: Encryption,
    /// User and password.
    login: Option<(String, String)>,
    from: String,
    to: Vec<String>,
    /// Head and body, with CRLF.
    data: String,
}

#[derive(Clone)]
enum Encryption {
    /// The server is this host.
    None,
    StartTls(Arc<ClientConfig>),
    Tls(Arc<ClientConfig>),
}

impl Mail {
    /// Blocks: reads the list of authorities.
    pub fn new(
        server: &str,
        login: Option<(String, String)>,
        ca_file: Option<&Path>,
        (from, to): (Option<&str>, &[String]),
        message: &Message,
        at: Timestamp,
    ) -> Result<Self, String> {
        let uri: Uri = server.parse().map_err(|_| "the URL of its mail server is not one".to_owned())?;
        let host = uri.host().unwrap_or_default().to_owned();
        let (encryption, port) = match uri.scheme_str() {
            Some("smtps") => (Encryption::Tls(http::trust(ca_file)?), 465),
            _ if is_this_host(&host) && ca_file.is_none() => (Encryption::None, 25),
            _ => (Encryption::StartTls(http::trust(ca_file)?), 587),
        };
        let from = from.map_or_else(|| format!("cronkeeper@{}", own_name()), str::to_owned);
        let data = written(&from, to, message, at);
        Ok(Self { port: uri.port_u16().unwrap_or(port), host, encryption, login, from, to: to.to_vec(), data })
    }
}

/// The name of this host, as mail servers take one.
fn own_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'));
    if is_name { name } else { "localhost".to_owned() }
}

/// A mail as it is sent. Nothing of the text can end its head or the mail itself: titles and bodies are encoded.
fn written(from: &str, to: &[String], message: &Message, at: Timestamp) -> String {
    let date = at.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S +0000");
    let head = [
        ("From", from.to_owned()),
        ("To", to.join(",\r\n ")),
        ("Subject", encoded_words(&message.title)),
        ("Date", date.to_string()),
        ("Message-ID", format!("<{}@cronkeeper>", message.id)),
        ("X-Cronkeeper-Id", message.id.clone()),
        ("Auto-Submitted", "auto-generated".to_owned()),
        ("MIME-Version", "1.0".to_owned()),
        ("Content-Type", "text/plain; charset=utf-8".to_owned()),
        ("Content-Transfer-Encoding", "base64".to_owned()),
    ];
    let head: String = head.into_iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let body = BASE64.encode(message.text.replace('\n', "\r\n"));
    let lines: String = (0..body.len()).step_by(LINE).map(|from| line(&body, from)).collect();
    format!("{head}\r\n{lines}")
}

fn line(body: &str, from: usize) -> String {
    format!("{}\r\n", &body[from..body.len().min(from + LINE)])
}

/// A title for a head: as it is, or in words of base64.
fn encoded_words(title: &str) -> String {
    if title.len() < 200 && title.bytes().all(|c| matches!(c, b' '..=b'~')) && !title.contains("=?") {
        return title.to_owned();
    }
    let (mut words, mut word) = (Vec::new(), String::new());
    for c in title.chars() {
        if word.len() + c.len_utf8() > WORD {
            words.push(std::mem::take(&mut word));
        }
        word.push(c);
    }
    words.push(word);
    let encoded = words.iter().map(|word| format!("=?utf-8?B?{}?=", BASE64.encode(word)));
    encoded.collect::<Vec<_>>().join("\r\n ")
}

/// A conversation with a mail server.
struct Talk {
    stream: BufReader<Box<dyn Stream>>,
    /// What the server offers.
    offers: Vec<String>,
}

/// A reply of a mail server.
struct Reply {
    code: u16,
    text: String,
}

impl Reply {
    fn shown(&self) -> String {
        escape::short(&format!("{} {}", self.code, self.text), SHOWN)
    }

    /// The failure that an unexpected reply is.
    fn failed(&self, to: &str, lasting: Fate) -> Failed {
        let fate = if self.code >= 500 { lasting } else { Fate::Refused };
        // Of what a server says to a login, nothing is repeated.
        let said = if to == "the login" { self.code.to_string() } else { self.shown() };
        Failed { fate, why: format!("the mail server answers {said} to {to}"), answer: Some(self.shown()) }
    }
}

/// Sends a mail.
pub(super) async fn send(mail: Mail) -> Result<Answer, Failed> {
    let stream = http::connected(&mail.host, mail.port).await?;
    let stream: Box<dyn Stream> = match mail.encryption.clone() {
        Encryption::Tls(config) => http::encrypted(stream, &mail.host, config).await?,
        Encryption::None | Encryption::StartTls(_) => Box::new(stream),
    };
    let mut talk = Talk { stream: BufReader::new(stream), offers: Vec::new() };
    talk.expect("its greeting", &[220]).await?;
    talk.hello().await?;
    if let Encryption::StartTls(config) = mail.encryption.clone() {
        if !talk.offers("STARTTLS") {
            return Err(Failed::refused("the mail server offers no STARTTLS, and mail is not sent in the clear"));
        }
        talk.ask("STARTTLS", "STARTTLS", &[220]).await?;
        // What was sent ahead of TLS is not read after it.
        let stream = http::encrypted(talk.stream.into_inner(), &mail.host, config).await?;
        talk = Talk { stream: BufReader::new(stream), offers: Vec::new() };
        talk.hello().await?;
    }
    if let Some((user, password)) = &mail.login {
        talk.log_in(user, password).await?;
    }
    talk.ask(&format!("MAIL FROM:<{}>", mail.from), "the sender", &[250]).await?;
    talk.recipients(&mail.to).await?;
    talk.ask("DATA", "DATA", &[354]).await?;
    talk.data(&mail.data).await
}

impl Talk {
    async fn hello(&mut self) -> Result<(), Failed> {
        let reply = self.ask(&format!("EHLO {}", own_name()), "EHLO", &[250]).await?;
        self.offers = reply.text.lines().map(str::to_ascii_uppercase).collect();
        Ok(())
    }

    fn offers(&self, what: &str) -> bool {
        self.offers.iter().any(|offer| offer.split(' ').next() == Some(what))
    }

    async fn log_in(&mut self, user: &str, password: &str) -> Result<(), Failed> {
        let methods = self.offers.iter().find(|offer| offer.starts_with("AUTH")).cloned().unwrap_or_default();
        let methods: Vec<&str> = methods.split([' ', '=']).collect();
        if methods.contains(&"PLAIN") || !methods.contains(&"LOGIN") {
            let secret = BASE64.encode(format!("\0{user}\0{password}"));
            return self.ask(&format!("AUTH PLAIN {secret}"), "the login", &[235]).await.map(drop);
        }
        self.ask("AUTH LOGIN", "the login", &[334]).await?;
        self.ask(&BASE64.encode(user), "the login", &[334]).await?;
        self.ask(&BASE64.encode(password), "the login", &[235]).await.map(drop)
    }

    /// Names the recipients. One that is refused does not keep the mail from the others.
    async fn recipients(&mut self, to: &[String]) -> Result<(), Failed> {
        let (mut taken, mut refused) = (0, None);
        for address in to {
            match self.ask(&format!("RCPT TO:<{address}>"), "a recipient", &[250, 251]).await {
                Ok(_) => taken += 1,
                Err(failed) if failed.answer.is_some() => refused = Some(failed),
                Err(lost) => return Err(lost),
            }
        }
        match refused {
            Some(failed) if taken == 0 => Err(failed),
            _ => Ok(()),
        }
    }

    /// Sends the mail itself.
    async fn data(&mut self, data: &str) -> Result<Answer, Failed> {
        // A line with a dot alone ends it; no line of base64 begins with one, and no header does.
        let sent = async {
            self.stream.write_all(data.as_bytes()).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| io_failed(Fate::Refused, &error))?;
        let ended = async {
            self.stream.write_all(b".\r\n").await?;
            self.stream.flush().await
        };
        ended.await.map_err(|error| io_failed(Fate::Doubtful, &error))?;
        let reply = self.reply().await.map_err(|failed| Failed { fate: Fate::Doubtful, ..failed })?;
        // It has the mail, whatever becomes of the farewell.
        let _ = self.stream.write_all(b"QUIT\r\n").await;
        match reply.code {
            250 => Ok(Answer(reply.shown())),
            _ => Err(reply.failed("the mail", Fate::Hopeless)),
        }
    }

    /// Sends a line and reads the reply. `to`: what it is, for messages.
    async fn ask(&mut self, line: &str, to: &str, expected: &[u16]) -> Result<Reply, Failed> {
        let sent = async {
            self.stream.write_all(format!("{line}\r\n").as_bytes()).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| io_failed(Fate::Refused, &error))?;
        self.expect(to, expected).await
    }

    async fn expect(&mut self, to: &str, expected: &[u16]) -> Result<Reply, Failed> {
        let reply = self.reply().await?;
        // What an operator mends on this side is tried again.
        let lasting = if to == "the login" || to == "its greeting" { Fate::Refused } else { Fate::Hopeless };
        if expected.contains(&reply.code) { Ok(reply) } else { Err(reply.failed(to, lasting)) }
    }

    /// Reads a reply, of one or more lines.
    async fn reply(&mut self) -> Result<Reply, Failed> {
        let (mut texts, mut limited) = (Vec::new(), (&mut self.stream).take(LONGEST_REPLY));
        loop {
            let mut line = Vec::new();
            limited.read_until(b'\n', &mut line).await.map_err(|error| io_failed(Fate::Refused, &error))?;
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let code = line.get(..3).and_then(|code| code.parse().ok());
            let Some(code) = code else { return Err(Failed::refused("the mail server does not speak SMTP")) };
            texts.push(line.get(4..).unwrap_or_default().to_owned());
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(Reply { code, text: texts.join("\n") });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(title: &str, text: &str) -> Message {
        Message { id: "abc".into(), title: title.into(), text: text.into(), json: Vec::new() }
    }

    fn mail(title: &str, text: &str) -> String {
        written("a@b.example", &["c@d.example".into()], &message(title, text), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn nothing_of_a_text_ends_the_head_or_the_mail() {
        let mail = mail("failed\r\nBcc: x@y.example", "one\n.\nQUIT\n");
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert!(body.lines().all(|line| !line.starts_with('.') && line.len() <= LINE), "{body}");
        let text = BASE64.decode(body.replace("\r\n", "")).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "one\r\n.\r\nQUIT\r\n");
    }

    #[test]
    fn a_title_with_umlauts_is_encoded_in_words_of_bounded_length() {
        let subject = encoded_words(&"ä".repeat(100));
        assert!(subject.split("\r\n ").all(|word| word.starts_with("=?utf-8?B?") && word.len() <= 75), "{subject}");
        assert_eq!(encoded_words("backup failed"), "backup failed");
    }

    #[test]
    fn the_head_says_what_mail_programs_ask_for() {
        let mail = mail("t", "x\n");
        for line in
            ["Date: Thu, 01 Jan 1970 00:00:00 +0000\r\n", "Message-ID: <abc@cronkeeper>\r\n", "To: c@d.example\r\n"]
        {
            assert!(mail.contains(line), "{mail}");
        }
    }
}
