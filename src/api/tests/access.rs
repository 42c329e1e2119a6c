//! Tests of who is let in over TCP: other nodes by their proofs, nobody by a wrong token, and everybody who asks.

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Instant;

use jiff::Timestamp;

use super::daemon::{Behaviour, Daemon};
use super::page::{FORM, TOKEN, ask_on, code, get, post, value};
use super::*;
use crate::api::history::History;
use crate::api::network::Files;
use crate::api::network::proof::{Asked, ProofKey};
use crate::api::output::OutputPage;
use crate::api::peers::Peers;
use crate::api::serve::Serving;
use cronkeeper_core::clock::system;
use cronkeeper_core::election::{ApiAddress, Member};
use cronkeeper_core::term::NodeName;

const RUN: &str = "/v1/runs/load.20261120T024000Z";

fn list() -> String {
    format!("{RUN}/output?local=true")
}

/// A daemon that listens with the token, and asks with it.
struct Node {
    daemon: Daemon,
    address: SocketAddr,
    peers: Peers,
    _tcp: Serving,
}

impl Node {
    async fn start() -> Self {
        let daemon = Daemon::start(Behaviour::Well).await;
        let files = Files { token: Some(daemon.file_with(TOKEN)), tls: None };
        let (address, tcp) = daemon.listen_with(files.clone()).await;
        Self { daemon, address, peers: Peers::new(files, None).unwrap(), _tcp: tcp }
    }

    /// The code, head and body of the answer.
    async fn ask(&self, request: String) -> (u16, String, String) {
        let address = self.address;
        let (head, body) = ask_on(move || TcpStream::connect(address), request).await;
        (code(&head), head, body)
    }

    /// A proof for a GET request of this path, made at this time.
    fn proof(&self, path: &str, at: Timestamp) -> String {
        let host = self.address.to_string();
        ProofKey::of(TOKEN.as_bytes()).prove(Asked { method: "GET", path, host: &host }, &NodeName::new("host-a"), at)
    }

    fn shown(&self, method: &str, path: &str, proof: &str) -> String {
        format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {proof}\r\n\r\n", self.address)
    }
}

/// The member of `host-a`, with this address.
fn member(address: SocketAddr) -> Member {
    let mut member = sample::queue().members.remove(0);
    member.published.listen = Some(ApiAddress { address, name: None, tls: false });
    member
}

/// Somebody who listens, answers one request with this text, and keeps what came.
fn stranger(answer: &'static str) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let received = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            received.extend(byte);
        }
        stream.write_all(answer.as_bytes()).unwrap();
        String::from_utf8(received).unwrap()
    });
    (address, received)
}

const OLD: &str = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn what_a_node_sends_is_useless_to_who_receives_it() {
    let node = Node::start().await;
    let (address, received) = stranger(OLD);
    let error = node.peers.get::<OutputPage>(&member(address), &list(), Duration::ZERO).await.unwrap_err();
    assert!(error.starts_with("host-a runs an older version of cronkeeper"), "{error}");
    let received = received.join().unwrap();
    assert!(received.contains("Cronkeeper-Peer to=host-a, ") && !received.contains(TOKEN), "{received}");
    // Passed on as it is, its `Host` has another port; with the right one, it is not what was proved.
    assert_eq!(node.ask(received.clone()).await.0, 401);
    let right = received.replace(&address.to_string(), &node.address.to_string());
    let (code, head, body) = node.ask(right).await;
    assert_eq!((code, value(&head, "www-authenticate")), (401, "Bearer, Cronkeeper-Peer"), "{body}");
    assert!(body.contains("all nodes need the same token in `--api-token-file`"), "{body}");
}

#[tokio::test]
async fn a_node_with_the_token_is_answered_once_for_each_proof() {
    let node = Node::start().await;
    // The daemon of these tests keeps no output, and says so only to who is let in.
    let kept = node.peers.get::<OutputPage>(&member(node.address), &list(), Duration::ZERO).await.unwrap_err();
    assert!(kept.starts_with("host-a: host-a keeps no output"), "{kept}");
    let proof = node.proof(&list(), system::now().wall);
    assert_eq!(node.ask(node.shown("GET", &list(), &proof)).await.0, 503);
    let (code, _, body) = node.ask(node.shown("GET", &list(), &proof)).await;
    assert!(code == 401 && body.contains("was shown before"), "{body}");
}

#[tokio::test]
async fn a_proof_opens_the_asked_nodes_own_part_of_the_history() {
    let node = Node::start().await;
    let run = "/v1/history?local=true&run=load.20261120T024000Z";
    for path in ["/v1/history?limit=5&local=true", "/v1/jobs/load/history?limit=5&local=true", run] {
        let own = node.peers.get::<History>(&member(node.address), path, Duration::ZERO).await;
        assert_eq!(
            own.map(|own| own.records.len()),
            Ok(0),
            "{path}: the archive has none, and the ledger is not asked"
        );
    }
}

#[tokio::test]
async fn a_proof_is_refused_for_anything_but_its_own_request() {
    let node = Node::start().await;
    let proof = |path: &str| node.proof(path, system::now().wall);
    for (method, path, proved) in [
        ("GET", list(), format!("{RUN}/output?local=true&attempt=1")),
        ("GET", format!("{RUN}/output"), list()),
        ("POST", list(), list()),
        ("GET", "/v1/status".to_owned(), list()),
    ] {
        let (code, _, body) = node.ask(node.shown(method, &path, &proof(&proved))).await;
        assert_eq!(code, 401, "{method} {path}: {body}");
    }
    let of_all = ["/v1/history", "/v1/jobs/load/history?limit=3", "/v1/history?local=true&local=false"];
    for path in ["/v1/status", "/v1/definitions?local=true", "/", "/metrics", RUN].into_iter().chain(of_all) {
        let (code, _, body) = node.ask(node.shown("GET", path, &proof(path))).await;
        assert!(
            code == 403 && body.contains("this node's part of the history, and nothing else"),
            "{path}: {code} {body}"
        );
    }
    let host = node.address.to_string();
    let path = "/v1/jobs/load/trigger";
    let asked = Asked { method: "POST", path, host: &host };
    let change = ProofKey::of(TOKEN.as_bytes()).prove(asked, &NodeName::new("host-a"), system::now().wall);
    assert_eq!(node.ask(node.shown("POST", path, &change)).await.0, 403);
    assert!(node.daemon.requests().is_empty());
}

#[tokio::test]
async fn a_proof_for_another_node_or_time_says_so() {
    let node = Node::start().await;
    let hour = jiff::SignedDuration::from_hours(1);
    for (at, words) in [(hour, "behind that of the node that asks"), (-hour, "ahead of that of the node that asks")] {
        let proof = node.proof(&list(), system::now().wall + at);
        let (code, _, body) = node.ask(node.shown("GET", &list(), &proof)).await;
        assert!(code == 401 && body.contains("the clock of host-a is ") && body.contains(words), "{body}");
    }
    let mut other = member(node.address);
    other.node = NodeName::new("host-b");
    let error = node.peers.get::<OutputPage>(&other, &list(), Duration::ZERO).await.unwrap_err();
    assert!(error.starts_with("host-b: this is host-a and not host-b"), "{error}");
}

#[tokio::test]
async fn a_node_without_a_token_says_what_to_set() {
    let node = Node::start().await;
    let (address, _tcp) = node.daemon.listen().await;
    let error = node.peers.get::<OutputPage>(&member(address), &list(), Duration::ZERO).await.unwrap_err();
    assert!(error.starts_with("host-a: host-a has no token") && error.contains("`--api-token-file`"), "{error}");
}

#[tokio::test]
async fn wrong_tokens_are_counted_and_limited_whichever_way_they_come_and_the_right_one_is_let_in() {
    let node = Node::start().await;
    let bearer = |token: &str| get("/v1/definitions", &format!("Authorization: Bearer {token}\r\n"));
    let proof = ProofKey::of(b"fedcba9876543210").prove(
        Asked { method: "GET", path: &list(), host: &node.address.to_string() },
        &NodeName::new("host-a"),
        system::now().wall,
    );
    let wrong = [bearer("wrong"), post("/session", FORM, "token=wrong"), node.shown("GET", &list(), &proof)];
    for request in wrong.iter().cycle().take(10) {
        assert_eq!(node.ask(request.clone()).await.0, 401);
    }
    for request in wrong {
        let asked = Instant::now();
        let (code, head, body) = node.ask(request).await;
        let wait: u64 = value(&head, "retry-after").parse().unwrap();
        assert!(code == 429 && (1..=60).contains(&wait), "{head}{body}");
        assert!(asked.elapsed() >= Duration::from_secs(1), "answered at once");
    }
    assert_eq!(node.ask(bearer(TOKEN)).await.0, 200);
    assert_eq!(node.ask(post("/session", FORM, &format!("token={TOKEN}"))).await.0, 303);
    let (_, _, metrics) = node.ask(get("/metrics", "")).await;
    assert!(metrics.contains("\ncronkeeper_api_wrong_tokens_total 13\n"), "{metrics}");
}

#[tokio::test]
async fn no_answer_can_be_embedded_or_taken_for_something_else() {
    let node = Node::start().await;
    let rebound = "GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned();
    let requests = [get("/v1/status", ""), get("/metrics", ""), get("/healthz", ""), get("/", ""), get("/nothing", "")];
    let refused = [rebound, get("/v1/jobs", "Authorization: Bearer x\r\n"), post("/v1/jobs/load/trigger", "", "")];
    for request in requests.into_iter().chain(refused) {
        let (_, head, _) = node.ask(request.clone()).await;
        let found = ["x-content-type-options", "cross-origin-resource-policy"].map(|name| value(&head, name));
        assert_eq!(found, ["nosniff", "same-origin"], "{request}");
    }
    let (head, _) = node.daemon.get_text("/v1/status", "").await;
    assert!(head.contains("nosniff") && head.contains("cross-origin-resource-policy: same-origin"), "{head}");
}

#[tokio::test]
async fn half_requests_make_room_for_whole_ones_of_the_same_address() {
    let node = Node::start().await;
    let address = node.address;
    let halves = |text: &'static str| -> Vec<TcpStream> {
        let half = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            drop(stream.write_all(text.as_bytes()));
            stream
        };
        (0..20).map(half).collect()
    };
    let heads = halves("GET /healthz HTT");
    let bodies = halves(
        "POST /session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\nContent-Type: application/x-www-form-urlencoded\r\n\r\nt",
    );
    for _ in 0..20 {
        assert_eq!(node.ask(get("/healthz", "")).await.0, 200);
    }
    drop((heads, bodies));
}
