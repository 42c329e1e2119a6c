//! Services that answer and accept no writes: nodes say why as long as that lasts, and go on by themselves.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use rustix::path::Arg as _;

use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::etcd::Etcd;
use crate::support::node::{Event, Node, Spec};
use crate::support::witness::Witness;
use crate::support::{LONG, postgres, redis, until};

/// What `cronkeeper status` of the node prints.
fn status(node: &Node) -> String {
    let folder = node.spec().runtime_dir();
    texts(&run(&["status", "--runtime-dir", folder.as_str().expect("the path is text")])).1
}

/// A leader of a service that accepts no writes any more once it is filled, for a reason with one of these words: the
/// service's own, or those of who has looked at it since.
fn says_why(option: &str, place: &str, words: &[&str], fill: impl Fn(), empty: impl Fn()) {
    let witness = Witness::new();
    let jobs = format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: {}\n", witness.command(&[]));
    let spec = Spec::new(CRONKEEPER, "a").option(option, place).option("--session-timeout", "4s").jobs(&jobs);
    // The server of PostgreSQL is one without fsync.
    let node = spec.env("CRONKEEPER_ACCEPT_REWIND", "true").start();
    witness.await_more(2);
    fill();
    let names = |text: &str| words.iter().any(|words| text.contains(words));
    let says = |event: &Event| names(event.text("error"));
    node.await_where("coordination.suspended", LONG, says);
    until("the status says why", || {
        let shown = status(&node);
        shown.contains("NOT READY") && names(&shown)
    });
    node.await_event("leader.lost", LONG);
    // As long as it lasts.
    std::thread::sleep(Duration::from_secs(1));
    let shown = status(&node);
    assert!(names(&shown), "{shown}");
    assert_eq!(node.events().count("coordination.expired"), 0, "the session lives");
    empty();
    witness.await_more(2);
    until("the status is fine again", || {
        let shown = status(&node);
        !names(&shown) && !shown.contains("NOT READY")
    });
    witness.assert_fine(&[]);
}

#[test]
fn a_redis_without_memory_is_named_as_the_reason_until_it_has_some() {
    let server = redis::Server::start(&["--maxmemory-policy", "noeviction"]);
    let set = |bytes: &str| assert_eq!(server.cli(&["config", "set", "maxmemory", bytes]), "OK");
    says_why("--redis", &server.place(), &["OOM command not allowed"], || set("1"), || set("0"));
}

#[test]
fn an_etcd_without_space_is_named_as_the_reason_until_it_has_some() {
    let etcd = Etcd::start(1);
    let fill = || {
        // Its own alarm would take as many writes as its quota has bytes.
        let alarm = r#"{"action": "ACTIVATE", "alarm": "NOSPACE"}"#;
        let head = format!("POST /v3/maintenance/alarm HTTP/1.0\r\nContent-Length: {}\r\n\r\n", alarm.len());
        let mut stream = TcpStream::connect(etcd.address_of(0)).expect("etcd accepts connections");
        stream.write_all((head + alarm).as_bytes()).expect("etcd reads");
        let answer = std::io::read_to_string(stream).expect("etcd answers");
        assert!(answer.contains("NOSPACE"), "{answer}");
    };
    let empty = || assert!(etcd.etcdctl(&["alarm", "disarm"]).is_some());
    says_why("--etcd", &etcd.place(), &["database space exceeded", "has reached its quota"], fill, empty);
}

#[test]
fn a_postgres_that_is_read_only_is_named_as_the_reason_until_it_is_not() {
    let server = postgres::Server::start(&[], &[]);
    let database = server.database();
    let set = |value: &str| server.set("default_transaction_read_only", value);
    says_why("--postgres", &database.connect_string(), &["read-only", "read_only"], || set("on"), || set("off"));
}
