//! Clients on TCP: without a token, under foreign host names, with wrong certificates, slow, greedy, numerous.

mod access;
mod crowd;
mod roles;
mod shares;
mod tls;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use uuid::Uuid;

use crate::support::host::Host;
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::{Facility, LONG, skipped, test_name};

const PORT: u16 = 7475;

/// An unused address of this host: all addresses in 127.0.0.0/8 belong to it.
fn unused() -> SocketAddrV4 {
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, a.clamp(16, 200), b, c.clamp(1, 254)), PORT)
}

/// The address of a client on this host. All of 127.0.0.0/8 count as one.
fn caller(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 201, 0, number)
}

/// The address of a client as of another host, one for each number, where [`apart`] runs a test.
fn remote(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(198, 19, high, low)
}

/// Runs a test on a host of its own, or skips it where there can be none. All of 198.18.0.0/15 are the host's addresses.
fn apart(test: impl FnOnce(&Arc<Host>, SocketAddrV4) + Send + 'static) {
    let own = Ipv4Addr::new(198, 18, 0, 1);
    let lines = [format!("addr add {own}/32 dev lo"), "route add local 198.18.0.0/15 dev lo".to_owned()];
    let host = Host::new(own).and_then(|host| host.configure(&lines).map(|()| host));
    let host = match host {
        Ok(host) => Arc::new(host),
        Err(why) => return skipped(Facility::Hosts, &format!("a test of clients on other hosts: {why}")),
    };
    // On a thread of its own, because it moves to another network.
    let tested = thread::Builder::new().name(test_name()).spawn(move || {
        host.connect_thread();
        test(&host, SocketAddrV4::new(own, PORT));
    });
    if let Err(panic) = tested.expect("a thread can be had").join() {
        std::panic::resume_unwind(panic);
    }
}

#[derive(Debug)]
struct Answer {
    code: u16,
    head: String,
    body: String,
}

impl Answer {
    fn parsed(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some(Self { code, head: head.to_owned(), body: body.to_owned() })
    }
}

fn dial(from: Ipv4Addr, to: SocketAddrV4) -> std::io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &SocketAddr::V4(to))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG))?;
    Ok(stream)
}

/// Sends `request` unchanged; `None` if the node closes the connection without an answer.
fn exchange(mut stream: impl Read + Write, request: &str) -> Option<Answer> {
    // The node may close the connection before everything is sent.
    drop(stream.write_all(request.as_bytes()));
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer));
    Answer::parsed(&answer)
}

fn request(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n")
}

/// The answer to a request with the additional header lines `more`.
fn get_with(to: SocketAddrV4, path: &str, more: &str) -> Answer {
    let answer = dial(caller(1), to).ok().and_then(|stream| exchange(stream, &request(path, more)));
    answer.unwrap_or_else(|| panic!("no answer to {path}"))
}

/// The answer to a client without a token.
fn get(to: SocketAddrV4, path: &str) -> Answer {
    get_with(to, path, "")
}

/// A node that listens on this address.
fn listening(spec: Spec, at: SocketAddrV4) -> Spec {
    spec.option("--listen", &at.to_string())
}

/// Writes a file that only its owner may read.
fn secret(dir: &Scratch, name: &str, text: &str) -> PathBuf {
    let path = dir.write(name, text);
    closed(&path);
    path
}

fn closed(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
}

fn opened(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
}

/// A path as the value of an option.
fn text(path: &Path) -> &str {
    path.to_str().expect("scratch directories have plain names")
}
