//! Mail by SMTP. `lettre` writes the mail and speaks the protocol; this says what an error means for the message.
//!
//! A mail server has a message once it has answered the end of it. Before the message is sent, nothing has arrived;
//! between that and the answer, nobody knows. A password is sent only over TLS, or to this host.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use hyper::Uri;
use jiff::Timestamp;
use lettre::Address;
use lettre::message::Mailbox;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::transport::smtp::Error;
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{
    AsyncSmtpConnection, AsyncTokioStream, Certificate, CertificateStore, TlsParameters, TlsParametersBuilder,
};
use lettre::transport::smtp::commands::{Data, Mail as MailFrom, Rcpt};
use lettre::transport::smtp::extension::ClientId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout};
use tokio_rustls::rustls::ClientConfig;

use super::deliver::{Answer, Failed, answered, io_failed};
use super::http::{self, Stream};
use super::message::Message;
use super::plan::Fate;
use crate::config::{bare_host, is_this_host, mail_address};
use cronkeeper_cluster::tls;
use cronkeeper_core::escape;

/// Most characters of a reply that are shown.
const SHOWN: usize = 200;
/// Most bytes that are read of a mail server: it cannot fill this node's memory with a line that never ends.
const MOST_BYTES: usize = 256 << 10;
const READ_AT_ONCE: usize = 4 << 10;
/// How long the answer to a mail may take: a server may look at it before it accepts it. RFC 5321 has 10 minutes.
pub(super) const ANSWER: Duration = Duration::from_secs(60);
/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// A message for a mail server.
pub(super) struct Mail {
    host: String,
    port: u16,
    encryption: Encryption,
    login: Option<Credentials>,
    from: Address,
    to: Vec<Address>,
    /// Head and body, as they are sent.
    data: Vec<u8>,
}

enum Encryption {
    /// The server is this host.
    None,
    StartTls(TlsParameters),
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
        let uri: Uri = server.parse().map_err(|_| "the URL of the mail server is invalid".to_owned())?;
        let host = bare_host(uri.host().unwrap_or_default()).to_owned();
        let (encryption, port) = match uri.scheme_str() {
            Some("smtps") => (Encryption::Tls(http::trust(ca_file)?), 465),
            _ if is_this_host(&host) && ca_file.is_none() => (Encryption::None, 25),
            _ => (Encryption::StartTls(trust(&host, ca_file)?), 587),
        };
        let default = format!("cronkeeper@{}", own_name());
        let from = mail_address(from.unwrap_or(&default))?;
        let to: Vec<Address> = to.iter().map(|to| mail_address(to)).collect::<Result<_, _>>()?;
        let data = written(&from, &to, message, at)?;
        let login = login.map(Credentials::from);
        Ok(Self { port: uri.port_u16().unwrap_or(port), host, encryption, login, from, to, data })
    }
}

/// TLS that begins later, and trusts the authorities in the file or those of the system.
fn trust(host: &str, ca_file: Option<&Path>) -> Result<TlsParameters, String> {
    let builder = TlsParametersBuilder::new(host.to_owned());
    let builder = match ca_file {
        None => builder,
        Some(path) => {
            let unusable = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            let pem = std::fs::read(path).map_err(|error| unusable(&error))?;
            let authorities = Certificate::from_pem(&pem).map_err(|error| unusable(&error))?;
            builder.certificate_store(CertificateStore::None).add_root_certificate(authorities)
        }
    };
    builder.build().map_err(|error| error.to_string())
}

/// The name of this host, as mail servers take one.
fn own_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_name = !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.'));
    if is_name { name } else { "localhost".to_owned() }
}

fn written(from: &Address, to: &[Address], message: &Message, at: Timestamp) -> Result<Vec<u8>, String> {
    let header = |name, value: &str| HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned());
    let mut mail = lettre::Message::builder()
        .from(Mailbox::new(None, from.clone()))
        .subject(&message.title)
        .date(SystemTime::from(at))
        .message_id(Some(format!("<{}@cronkeeper>", message.id)))
        .raw_header(header("X-Cronkeeper-Id", &message.id))
        .raw_header(header("Auto-Submitted", "auto-generated"));
    for to in to {
        mail = mail.to(Mailbox::new(None, to.clone()));
    }
    Ok(mail.body(message.text.clone()).map_err(|error| error.to_string())?.formatted())
}

/// A connection from which at most so many bytes are read, and in one go at most the rest of a line.
///
/// `lettre` keeps what it has read beyond a line, also when TLS begins after it: somebody on the way could put answers
/// behind the one to STARTTLS, and they would count as said under TLS. So it never gets more than it has asked for, and
/// what is behind that answer is read as TLS, which it is not.
struct Bounded {
    stream: Box<dyn Stream>,
    peer: SocketAddr,
    left: usize,
    /// What was read and not handed out.
    ahead: Vec<u8>,
}

impl Bounded {
    fn new(stream: Box<dyn Stream>, peer: SocketAddr) -> Self {
        Self { stream, peer, left: MOST_BYTES, ahead: Vec::new() }
    }
}

impl fmt::Debug for Bounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bounded").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl AsyncTokioStream for Bounded {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.is_empty() {
            let mut space = [0; READ_AT_ONCE];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            match this.left.checked_sub(read.filled().len()) {
                Some(left) => this.left = left,
                None => return Poll::Ready(Err(io::Error::other("the mail server sent too much data"))),
            }
            this.ahead.extend_from_slice(read.filled());
        }
        let line = this.ahead.iter().position(|&byte| byte == b'\n').map_or(this.ahead.len(), |end| end + 1);
        let handed_out = line.min(buf.remaining());
        buf.put_slice(&this.ahead[..handed_out]);
        this.ahead.drain(..handed_out);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// What a command is for, which decides what its error means.
#[derive(Clone, Copy)]
enum About {
    /// The connection, its greeting and TLS.
    Server,
    Login,
    Sender,
    Recipient,
    /// The permission to send the message.
    Data,
    /// The message and its end.
    Message,
}

impl About {
    fn failed(self, error: &Error) -> Failed {
        let Some(code) = error.status() else {
            let fate = if matches!(self, Self::Message) { Fate::Doubtful } else { Fate::Refused };
            let broke = || broken(error).map(|kind| format!("the connection failed: {kind}"));
            let said = broke().or_else(|| tls::words(error, "ca_file")).unwrap_or_else(|| error.to_string());
            return Failed { fate, why: escape::short(&said, SHOWN), answer: None };
        };
        // What an operator mends on this side is tried again.
        let is_lasting = error.is_permanent() && !matches!(self, Self::Server | Self::Login);
        let text = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
        let answer = escape::short(&format!("{code} {text}"), SHOWN);
        // Of what a server says to a login, nothing is repeated.
        let said = if matches!(self, Self::Login) { code.to_string() } else { answer.clone() };
        Failed {
            fate: if is_lasting { Fate::Hopeless } else { Fate::Refused },
            why: format!("the mail server refused {}: {said}", self.words()),
            answer: Some(answer),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Server => "the connection",
            Self::Login => "the login",
            Self::Sender => "the sender",
            Self::Recipient => "a recipient",
            Self::Data => "DATA",
            Self::Message => "the mail",
        }
    }
}

/// How the connection was lost, if it was: rustls explains the end of a connection with a link to its manual.
fn broken(error: &Error) -> Option<io::ErrorKind> {
    let lost = std::error::Error::source(error)?.downcast_ref::<io::Error>()?;
    // What TLS refuses is data that is invalid to it.
    (!matches!(lost.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other)).then(|| lost.kind())
}

/// A connection to a mail server that waits for the mail.
pub(super) struct Open {
    server: AsyncSmtpConnection,
    data: Vec<u8>,
    refused: Option<String>,
}

/// Says everything that comes before the mail. If one recipient is refused, the others still get it.
pub(super) async fn open(mail: Mail) -> Result<Open, Failed> {
    let name = ClientId::Domain(own_name());
    let stream = http::connected(&mail.host, mail.port).await?;
    let peer = stream.peer_addr().map_err(|error| io_failed(Fate::Refused, &error))?;
    let stream: Box<dyn Stream> = match &mail.encryption {
        Encryption::Tls(tls) => http::encrypted(stream, &mail.host, Arc::clone(tls)).await?,
        Encryption::None | Encryption::StartTls(_) => Box::new(stream),
    };
    let stream = Box::new(Bounded::new(stream, peer));
    let greeted = AsyncSmtpConnection::connect_with_transport(stream, &name).await;
    let mut server = greeted.map_err(|error| About::Server.failed(&error))?;
    if let Encryption::StartTls(tls) = mail.encryption {
        if !server.can_starttls() {
            return Err(Failed::refused("the mail server does not offer STARTTLS, and mail is not sent unencrypted"));
        }
        server.starttls(tls, &name).await.map_err(|error| About::Server.failed(&error))?;
    }
    if let Some(login) = &mail.login {
        let done = server.auth(&[Mechanism::Plain, Mechanism::Login], login).await;
        done.map_err(|error| About::Login.failed(&error))?;
    }
    let begun = server.command(MailFrom::new(Some(mail.from), Vec::new())).await;
    begun.map_err(|error| About::Sender.failed(&error))?;
    let (all, mut refused) = (mail.to.len(), Vec::new());
    for to in mail.to {
        match server.command(Rcpt::new(to, Vec::new())).await {
            Ok(_) => {}
            Err(error) if error.status().is_some() => refused.push(About::Recipient.failed(&error)),
            Err(error) => return Err(About::Recipient.failed(&error)),
        }
    }
    let refused = of_recipients(all, refused)?;
    server.command(Data).await.map_err(|error| About::Data.failed(&error))?;
    Ok(Open { server, data: mail.data, refused })
}

/// What it means that these of so many recipients were refused: the first reason, or the error if nobody is left.
fn of_recipients(all: usize, mut refused: Vec<Failed>) -> Result<Option<String>, Failed> {
    let count = refused.len();
    if count > 0 && count == all {
        // As long as one of them may be taken later, the mail is tried again.
        let later = refused.iter().position(|failed| failed.fate == Fate::Refused);
        return Err(refused.swap_remove(later.unwrap_or(0)));
    }
    let said = refused.into_iter().next().map(|first| first.answer.unwrap_or(first.why));
    Ok(said.map(|said| format!("{count} of {all} recipients refused it: {said}")))
}

impl Open {
    /// Sends the mail.
    pub async fn send(mut self, until: Instant) -> Result<Answer, Failed> {
        let taken = answered(ANSWER, until, async {
            self.server.message(&self.data).await.map_err(|error| About::Message.failed(&error))
        });
        let taken = taken.await?;
        // It has the mail, whatever becomes of the farewell.
        let _ = timeout(FAREWELL, self.server.quit()).await;
        let text = taken.message().collect::<Vec<_>>().join(" ");
        Ok(Answer { text: escape::short(&format!("{} {text}", taken.code()), SHOWN), refused: self.refused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail(title: &str, text: &str) -> String {
        let message =
            Message { id: "abc".into(), title: title.into(), text: text.into(), chat: String::new(), json: Vec::new() };
        let [from, to] = ["a@b.example", "root"].map(|text| mail_address(text).unwrap());
        String::from_utf8(written(&from, &[to], &message, Timestamp::UNIX_EPOCH).unwrap()).unwrap()
    }

    #[test]
    fn a_title_cannot_add_to_the_head() {
        let mail = mail("failed\r\nBcc: x@y.example", "one\n");
        let (head, body) = mail.split_once("\r\n\r\n").unwrap();
        assert!(!head.lines().any(|line| line.starts_with("Bcc")), "{head}");
        assert_eq!(body, "one\r\n");
    }

    #[test]
    fn lines_of_a_mail_are_as_long_as_servers_take_them_and_ascii() {
        let mail = mail(&"ä".repeat(300), &format!("{}\n{}\n", "ö".repeat(2_000), "x".repeat(2_000)));
        assert!(mail.is_ascii() && mail.lines().all(|line| line.len() <= 998), "{mail}");
    }

    #[test]
    fn the_head_says_what_mail_programs_ask_for() {
        let mail = mail("t", "x\n");
        for line in [
            "Date: Thu, 01 Jan 1970 00:00:00 +0000\r\n",
            "Message-ID: <abc@cronkeeper>\r\n",
            "X-Cronkeeper-Id: abc\r\n",
            "Auto-Submitted: auto-generated\r\n",
            "To: root@localhost\r\n",
        ] {
            assert!(mail.contains(line), "{line}{mail}");
        }
    }

    #[test]
    fn a_mail_without_recipients_is_tried_again_if_one_of_them_may_be_taken_later() {
        let failed = |fate, answer: &str| Failed { fate, why: "x".into(), answer: Some(answer.into()) };
        let [never, later] = [(Fate::Hopeless, "550 no"), (Fate::Refused, "450 busy")];
        let all = |refused: &[(Fate, &str)], of| {
            let refused = refused.iter().map(|&(fate, answer)| failed(fate, answer)).collect();
            of_recipients(of, refused).map_err(|failed| failed.fate)
        };
        assert_eq!(all(&[never, later], 2), Err(Fate::Refused));
        assert_eq!(all(&[never, never], 2), Err(Fate::Hopeless));
        assert_eq!(all(&[never], 2), Ok(Some("1 of 2 recipients refused it: 550 no".into())));
        assert_eq!(all(&[], 2), Ok(None));
    }

    /// Somebody on the way puts an answer behind the one to STARTTLS. It must not count as said under TLS.
    #[tokio::test]
    async fn what_is_said_before_tls_does_not_count_under_tls() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for said in ["220 x\r\n", "250-x\r\n250 STARTTLS\r\n", "220 go\r\n250 injected\r\n"] {
                stream.write_all(said.as_bytes()).await.unwrap();
                _ = stream.read(&mut [0; 1_000]).await;
            }
            // It never answers the begin of TLS.
            std::future::pending::<()>().await;
        });
        let tls = TlsParametersBuilder::new("localhost".to_owned()).certificate_store(CertificateStore::None).build();
        let address: Address = "a@b.example".parse().unwrap();
        let mail = Mail {
            host: "127.0.0.1".into(),
            port,
            encryption: Encryption::StartTls(tls.unwrap()),
            login: None,
            from: address.clone(),
            to: vec![address],
            data: Vec::new(),
        };
        let opened =
            timeout(Duration::from_secs(10), open(mail)).await.expect("the answer is read as TLS, which it is not");
        assert_eq!(opened.err().map(|failed| failed.fate), Some(Fate::Refused));
        serving.abort();
    }
}
