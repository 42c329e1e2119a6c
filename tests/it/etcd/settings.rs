//! How to log in, and what is refused: the message says what is wrong and what to do.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::etcd::Etcd;
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::{LONG, until};

fn check(connect: &str) -> (Option<i32>, String, String) {
    texts(&run(&["check", "--service", "--etcd", connect]))
}

#[test]
fn a_verified_connection_works_and_a_certificate_of_an_unknown_authority_does_not() {
    let certificates = Certificates::new();
    let etcd = Etcd::start_with_tls(&certificates.server_store);
    let (port, ca) = (etcd.port(), certificates.ca.display());
    let connect = format!("https://localhost:{port}?cacert={ca}");
    let node = Spec::new(CRONKEEPER, "a").option("--etcd", &connect).start();
    node.await_event("leader.elected", LONG);
    let (code, out, err) = check(&connect);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("each commit is on the disk of the one member"), "{out}");
    let others = Certificates::new();
    let (code, _, err) = check(&format!("https://localhost:{port}?cacert={}", others.ca.display()));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("invalid peer certificate"), "{err}");
    let (code, _, err) = check(&format!("http://localhost:{port}"));
    assert_eq!(code, Some(69), "{err}");
}

#[test]
fn a_user_logs_in_with_the_password_of_a_file_and_a_wrong_one_is_refused() {
    let etcd = Etcd::start(1);
    let (dir, port) = (Scratch::new("password"), etcd.port());
    let (right, wrong) = (dir.write("right", "pass word\n"), dir.write("wrong", "no secret"));
    let with = |prefix: &str, file: &std::path::Path| {
        format!("http://127.0.0.1:{port}{prefix}?user=cron&passfile={}", file.display())
    };
    let jobs =
        format!("jobs:\n  tick:\n    schedule: '* * * * * *'\n    command: [touch, {}/ran]\n", dir.path().display());
    // It has logged in before anybody needs to.
    let node = Spec::new(CRONKEEPER, "a").option("--etcd", &with("/ops", &right)).jobs(&jobs).start();
    node.await_event("leader.elected", LONG);
    for line in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "cron:pass word"],
        &["role", "add", "cron"],
        &["role", "grant-permission", "--prefix=true", "cron", "readwrite", "/ops/"],
        &["user", "grant-role", "cron", "cron"],
        &["auth", "enable"],
    ] {
        assert!(etcd.etcdctl(line).is_some(), "{line:?}");
    }
    std::fs::remove_file(dir.path().join("ran")).ok();
    until("jobs run", || dir.path().join("ran").exists());
    assert_eq!(node.events().count("leader.lost"), 0);
    let (code, _, err) = check(&with("/ops", &wrong));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("user `cron`") && err.contains("authentication failed"), "{err}");
    assert!(!err.contains("no secret"), "{err}");
    // Without a right to the keys.
    let denied = Spec::new(CRONKEEPER, "b").option("--etcd", &with("/other", &right)).start();
    let event = denied.await_event("coordination.unreachable", LONG);
    assert!(event.json().to_string().contains("permission denied"), "{:?}", event.json());
}

#[test]
fn something_else_that_speaks_http_is_not_taken_for_etcd() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
    let port = listener.local_addr().expect("it has an address").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\nnot found");
        }
    });
    let (code, _, err) = check(&format!("http://127.0.0.1:{port}"));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("this is not etcd: not found"), "{err}");
}

#[test]
fn settings_that_cannot_be_read_are_wrong_usage() {
    for connect in ["e1:2379", "https://e1", "http://root:secret@e1"] {
        let (code, _, err) = check(connect);
        assert_eq!(code, Some(2), "{connect}: {err}");
        assert!(err.contains("`--etcd` (CRONKEEPER_ETCD) cannot be used") && !err.contains("secret"), "{err}");
    }
    let (code, _, err) = texts(&run(&["check", "--service", "--etcd", "http://a", "--zookeeper", "b"]));
    assert_eq!(code, Some(2), "{err}");
}
