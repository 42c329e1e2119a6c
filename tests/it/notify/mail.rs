//! A mail server, as the test says: it takes mail or refuses it for now. It speaks SMTP with STARTTLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{LONG, poll};

pub const USER: &str = "cron";
pub const PASSWORD: &str = "s3cret";

/// A mail that was taken.
#[derive(Clone, Debug)]
pub struct Taken {
    pub head: String,
    pub text: String,
}

/// The server. Its threads end with the test process.
pub struct MailServer {
    address: SocketAddr,
    takes: Arc<AtomicBool>,
    refused: Arc<Mutex<usize>>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl MailServer {
    /// `identity`: a file with key and certificate.
    pub fn start(identity: &Path, takes: bool) -> Self {
        let pem = std::fs::read(identity).expect("the identity can be read");
        let chain = CertificateDer::pem_slice_iter(&pem).map(|one| one.expect("it is PEM")).collect();
        let key = PrivateKeyDer::from_pem_slice(&pem).expect("it has a key");
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("there are versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("the identity can be used");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let server = Self {
            address: listener.local_addr().expect("it has an address"),
            takes: Arc::new(AtomicBool::new(takes)),
            refused: Arc::default(),
            taken: Arc::default(),
        };
        let (takes, refused, taken) = (server.takes.clone(), server.refused.clone(), server.taken.clone());
        let config = Arc::new(config);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let talk = Talk { takes: takes.clone(), refused: refused.clone(), taken: taken.clone() };
                let config = Arc::clone(&config);
                thread::spawn(move || talk.begin(stream, config));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("smtp://{}", self.address)
    }

    pub fn take(&self) {
        self.takes.store(true, Ordering::SeqCst);
    }

    pub fn await_refused(&self) {
        poll(LONG, || (*self.refused.lock().unwrap() > 0).then_some(())).expect("a mail is refused");
    }

    pub fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }

    pub fn await_taken(&self) -> Taken {
        poll(2 * LONG, || self.taken().first().cloned()).expect("a mail is taken")
    }
}

struct Talk {
    takes: Arc<AtomicBool>,
    refused: Arc<Mutex<usize>>,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Talk {
    fn begin(&self, stream: TcpStream, config: Arc<ServerConfig>) -> Option<()> {
        let mut plain = BufReader::new(stream);
        say(&mut plain, "220 test")?;
        while let Some(line) = read(&mut plain) {
            match line.split(' ').next()? {
                "EHLO" => say(&mut plain, "250-test\r\n250 STARTTLS")?,
                "STARTTLS" => {
                    say(&mut plain, "220 go on")?;
                    let connection = ServerConnection::new(config).ok()?;
                    return self.encrypted(&mut BufReader::new(StreamOwned::new(connection, plain.into_inner())));
                }
                _ => say(&mut plain, "530 begin TLS first")?,
            }
        }
        Some(())
    }

    fn encrypted<S: Read + Write>(&self, stream: &mut BufReader<S>) -> Option<()> {
        let login = BASE64.encode(format!("\0{USER}\0{PASSWORD}"));
        while let Some(line) = read(stream) {
            let takes = self.takes.load(Ordering::SeqCst);
            match line.split([' ', ':']).next()? {
                "EHLO" => say(stream, "250-test\r\n250-8BITMIME\r\n250 AUTH PLAIN LOGIN")?,
                "AUTH" if line == format!("AUTH PLAIN {login}") => say(stream, "235 welcome")?,
                "AUTH" => say(stream, "535 wrong")?,
                "MAIL" if takes => say(stream, "250 ok")?,
                "MAIL" => {
                    *self.refused.lock().unwrap() += 1;
                    say(stream, "451 not now")?;
                }
                "RCPT" => say(stream, "250 ok")?,
                "DATA" => {
                    say(stream, "354 go on")?;
                    let lines: Vec<String> =
                        std::iter::from_fn(|| read(stream)).take_while(|line| line != ".").collect();
                    self.taken.lock().unwrap().push(parsed(&lines.join("\n")));
                    say(stream, "250 taken")?;
                }
                _ => return say(stream, "221 bye"),
            }
        }
        Some(())
    }
}

fn parsed(mail: &str) -> Taken {
    let (head, body) = mail.split_once("\n\n").expect("it has a head");
    assert!(head.contains("Content-Transfer-Encoding: 7bit"), "the text is ASCII: {head}");
    // A dot at the beginning of a line is sent twice.
    let lines = body.lines().map(|line| line.strip_prefix('.').unwrap_or(line));
    Taken { head: head.to_owned(), text: lines.map(|line| format!("{line}\n")).collect() }
}

fn say<S: Read + Write>(stream: &mut BufReader<S>, line: &str) -> Option<()> {
    stream.get_mut().write_all(format!("{line}\r\n").as_bytes()).ok()?;
    stream.get_mut().flush().ok()
}

fn read<S: Read>(stream: &mut BufReader<S>) -> Option<String> {
    let mut line = String::new();
    let length = stream.read_line(&mut line).ok()?;
    (length > 0).then(|| line.trim_end().to_owned())
}
