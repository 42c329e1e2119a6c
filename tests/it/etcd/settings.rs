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
    assert!(err.contains("invalid peer certificate") && err.contains("none of the authorities in `cacert`"), "{err}");
    let (code, _, err) = check(&format!("http://localhost:{port}"));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("it speaks TLS"), "{err}");
    let plain = Etcd::start(1);
    let (code, _, err) = check(&format!("https://localhost:{}?cacert={ca}", plain.port()));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("does not speak TLS"), "{err}");
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
    // The rights may be changed under a running cluster, and changed back.
    assert!(etcd.etcdctl(&["--user", "root:secret", "user", "revoke-role", "cron", "cron"]).is_some());
    let said = node.await_event("coordination.unreachable", LONG);
    assert!(said.text("error").contains("user `cron` may not read"), "{:?}", said.json());
    assert_eq!(node.status(), None, "it goes on trying");
}

/// What `run` prints that cannot start. It must exit with 78.
fn refused(connect: &str) -> String {
    let dir = Scratch::new("refused");
    let (jobs, state) = (dir.write("jobs.yaml", "jobs: {}\n"), dir.path().join("state"));
    let line = ["run", "--etcd", connect, "--log", "off", "--jobs", jobs.to_str().expect("the path is text")];
    let rest = ["--state-dir", state.to_str().expect("the path is text")];
    let (code, _, err) = texts(&run(&[&line[..], &rest].concat()));
    assert_eq!(code, Some(78), "{connect}: {err}");
    err
}

#[test]
fn who_lacks_a_right_is_refused_with_the_remedy_and_nothing_is_written() {
    let etcd = Etcd::start(1);
    let (dir, port) = (Scratch::new("rights"), etcd.port());
    let file = dir.write("password", "secret");
    for line in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "cron:secret"],
        &["user", "add", "reader:secret"],
        &["user", "add", "nobody:secret"],
        &["role", "add", "cron"],
        &["role", "add", "reader"],
        &["role", "grant-permission", "--prefix=true", "cron", "readwrite", "/ops/"],
        &["role", "grant-permission", "--prefix=true", "reader", "read", "/ops/"],
        &["user", "grant-role", "cron", "cron"],
        &["user", "grant-role", "reader", "reader"],
        &["auth", "enable"],
    ] {
        assert!(etcd.etcdctl(line).is_some(), "{line:?}");
    }
    let base = format!("http://127.0.0.1:{port}");
    let of = |user: &str, prefix: &str| format!("{base}{prefix}?user={user}&passfile={}", file.display());
    let grant = |prefix: &str| format!("etcdctl role grant-permission ROLE --prefix=true readwrite {prefix}/");
    for (connect, parts) in [
        (format!("{base}/ops"), ["settings name none".to_owned(), "user=NAME&passfile=FILE".to_owned()]),
        (of("nobody", "/ops"), ["user `nobody` may not read".to_owned(), grant("/ops")]),
        (of("reader", "/ops"), ["user `reader` may not write".to_owned(), grant("/ops")]),
        (of("cron", "/other"), ["user `cron` may not read".to_owned(), grant("/other")]),
    ] {
        let (code, _, err) = check(&connect);
        assert_eq!(code, Some(78), "{connect}: {err}");
        for said in [err, refused(&connect)] {
            assert!(parts.iter().all(|part| said.contains(part)) && said.contains(&format!(":{port}/")), "{said}");
        }
    }
    let (code, _, err) = check(&of("cron", "/ops"));
    assert_eq!(code, Some(0), "{err}");
    let keys = etcd.etcdctl(&["--user", "root:secret", "get", "--prefix", "--keys-only", "/"]);
    assert_eq!(keys.as_deref().map(str::trim), Some(""), "nothing is written");
}

#[test]
fn keys_of_others_are_left_alone_where_there_is_no_cluster_and_stop_none_that_is_there() {
    let etcd = Etcd::start(1);
    let at = |prefix: &str| format!("http://127.0.0.1:{}{prefix}", etcd.port());
    for (prefix, key) in [("/head", "/head/head"), ("/record", "/record/01/leader"), ("/app", "/app/config")] {
        assert!(etcd.etcdctl(&["put", key, "precious"]).is_some());
        let (code, _, err) = check(&at(prefix));
        assert_eq!(code, Some(78), "{key}: {err}");
        for said in [err, refused(&at(prefix))] {
            assert!(said.contains(&format!("the key `{key}` is not cronkeeper's")), "{said}");
        }
        let found = etcd.etcdctl(&["get", "--prefix", &format!("{prefix}/")]).expect("it can be read");
        assert_eq!(found, format!("{key}\nprecious\n"), "nothing else is written");
    }
    let node = Spec::new(CRONKEEPER, "a").option("--etcd", &at("/own")).start();
    node.await_event("leader.elected", LONG);
    assert!(etcd.etcdctl(&["put", "/own/-config", "precious"]).is_some());
    let (code, _, err) = check(&at("/own"));
    assert_eq!(code, Some(0), "{err}");
    let next = Spec::new(CRONKEEPER, "b").option("--etcd", &at("/own")).start();
    next.await_event("election.following", LONG);
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
    assert!(err.contains("it is another service, not etcd: it says `not found`"), "{err}");
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
