//! How to log in, and what is refused: the message says what is wrong and what to do.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use crate::support::command::{CRONKEEPER, run, texts};
use crate::support::node::Spec;
use crate::support::redis::Server;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::{LONG, poll};

fn check(connect: &str) -> (Option<i32>, String, String) {
    texts(&run(&["check", "--service", "--redis", connect]))
}

/// The same of a server that answers, on a busy machine perhaps not in time.
fn check_patiently(connect: &str) -> (Option<i32>, String, String) {
    let answered = || Some(check(connect)).filter(|(_, _, err)| !err.contains("no answer in time"));
    poll(LONG, answered).expect("it answers")
}

#[test]
fn a_verified_connection_works_and_a_certificate_of_an_unknown_authority_does_not() {
    let certificates = Certificates::new();
    let pair = certificates.server_store.to_str().expect("the path is text");
    let ca = certificates.ca.display().to_string();
    let plain = Server::start(&[]);
    let server = Server::start_with_tls(pair, &ca);
    let connect = format!("rediss://localhost:{}?cacert={ca}", server.port());
    let node = Spec::new(CRONKEEPER, "a").option("--redis", &connect).start();
    node.await_event("leader.elected", LONG);
    let (code, out, err) = check_patiently(&connect);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("each commit is on the server's disk"), "{out}");
    let others = Certificates::new();
    let (code, _, err) =
        check_patiently(&format!("rediss://localhost:{}?cacert={}", server.port(), others.ca.display()));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("invalid peer certificate") && err.contains("none of the authorities in `cacert`"), "{err}");
    for (connect, why) in [
        (format!("redis://localhost:{}", server.port()), "it speaks TLS"),
        (format!("rediss://localhost:{}?cacert={ca}", plain.port()), "does not speak TLS"),
    ] {
        let (code, _, err) = check_patiently(&connect);
        assert_eq!(code, Some(69), "{connect}: {err}");
        assert!(err.contains(why), "{connect}: {err}");
    }
}

#[test]
fn a_user_logs_in_with_the_password_of_a_file_and_a_wrong_one_is_refused() {
    let server = Server::start(&[]);
    let docs = include_str!("../../../docs/operations.md");
    let line = docs.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER cronkeeper on >PASSWORD "));
    let rights = line.expect("the docs say which rights are needed").replace("{cronkeeper}", "{ops}");
    let mut line = vec!["acl", "setuser", "cron", "on", ">pass word"];
    line.extend(rights.split_whitespace());
    assert_eq!(server.cli(&line), "OK");
    let dir = Scratch::new("password");
    let (right, wrong) = (dir.write("right", "pass word\n"), dir.write("wrong", "no secret"));
    let with = |prefix: &str, file: &std::path::Path| {
        format!("redis://127.0.0.1:{}/1?prefix={prefix}&user=cron&passfile={}", server.port(), file.display())
    };
    let node = Spec::new(CRONKEEPER, "a").option("--redis", &with("ops", &right)).start();
    node.await_event("leader.elected", LONG);
    let (code, _, err) = check(&with("ops", &wrong));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("WRONGPASS") && !err.contains("no secret"), "{err}");
    // Without a right to the keys.
    let (code, _, err) = check(&with("other", &right));
    assert_eq!(code, Some(78), "{err}");
    let granted = "user `cron` may not use all keys that begin with `{other}`: `ACL SETUSER cron ~{other}*`";
    assert!(err.contains(granted), "{err}");
    // Without one of the commands, at the beginning and in a script.
    for command in ["type", "hincrby", "info", "select"] {
        assert_eq!(server.cli(&["acl", "setuser", "cron", &format!("-{command}")]), "OK");
        let (code, _, err) = check(&with("ops", &right));
        assert_eq!(code, Some(78), "{err}");
        let rule = format!("user `cron` may not use the command `{command}`: `ACL SETUSER cron +{command}`");
        assert!(err.contains(&rule), "{err}");
        assert_eq!(server.cli(&["acl", "setuser", "cron", &format!("+{command}")]), "OK");
    }
    // Its channels.
    assert_eq!(server.cli(&["acl", "setuser", "cron", "resetchannels"]), "OK");
    let (code, _, err) = check(&with("ops", &right));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("`ACL SETUSER cron &{ops}*`"), "{err}");
}

#[test]
fn keys_of_others_are_left_alone_where_there_is_no_cluster_and_stop_none_that_is_there() {
    let server = Server::start(&[]);
    let at = |prefix: &str| format!("redis://127.0.0.1:{}/0?prefix={prefix}", server.port());
    for (prefix, key) in [
        ("head", "{head}:head"),
        ("nonces", "{nonces}:nonces"),
        ("folder", "{folder}:folder:/cronkeeper/jobs"),
        ("record", "{record}:record:/leader"),
    ] {
        assert_eq!(server.cli(&["set", key, "precious"]), "OK");
        let (code, _, err) = check(&at(prefix));
        assert_eq!(code, Some(78), "{key}: {err}");
        assert!(err.contains(&format!("the key `{key}` is not cronkeeper's")), "{err}");
        assert_eq!(server.cli(&["keys", &format!("{{{prefix}}}*")]), key, "nothing else is written");
        assert_eq!(server.cli(&["get", key]), "precious");
    }
    // What is no record is in nobody's way, whatever its name.
    assert_eq!(server.cli(&["set", "{own}:config", "precious"]), "OK");
    let node = Spec::new(CRONKEEPER, "a").option("--redis", &at("own")).start();
    node.await_event("leader.elected", LONG);
    // Somebody removes the hash of the newest commit of a cluster that goes on.
    assert_eq!(server.cli(&["del", "{own}:head"]), "1");
    let (code, _, err) = check(&at("own"));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn the_default_user_may_have_a_password() {
    let (server, dir) = (Server::start(&["--requirepass", "secret"]), Scratch::new("requirepass"));
    let (right, wrong) = (dir.write("right", "secret"), dir.write("wrong", "no secret"));
    let connect = format!("redis://127.0.0.1:{}", server.port());
    let (code, _, err) = check(&format!("{connect}?passfile={}", right.display()));
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = check(&format!("{connect}?passfile={}", wrong.display()));
    assert_eq!(code, Some(78), "{err}");
    let (code, _, err) = check(&connect);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("NOAUTH"), "{err}");
}

#[test]
fn a_server_that_may_forget_is_refused_unless_that_is_accepted() {
    // As docker's usual image starts it.
    let server = Server::launch(&[]);
    let connect = format!("redis://127.0.0.1:{}", server.port());
    let (code, _, err) = check(&connect);
    assert_eq!(code, Some(78), "{err}");
    for part in ["`appendonly yes`", "`appendfsync always`", "--accept-rewind"] {
        assert!(err.contains(part), "{err}");
    }
    let (code, out, err) = texts(&run(&["check", "--service", "--redis", &connect, "--accept-rewind"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("may lose acknowledged commits"), "{out}");
    for (setting, value, why) in [
        ("appendonly", "yes", "set `appendfsync always`"),
        ("appendfsync", "always", ""),
        ("no-appendfsync-on-rewrite", "yes", "set `no-appendfsync-on-rewrite no`"),
        ("maxmemory-policy", "allkeys-lru", "set it to `noeviction`"),
    ] {
        assert_eq!(server.cli(&["config", "set", setting, value]), "OK");
        let (code, _, err) = check(&connect);
        assert_eq!(code, Some(if why.is_empty() { 0 } else { 78 }), "{err}");
        assert!(err.contains(why), "{err}");
    }
}

#[test]
fn a_key_that_is_not_ours_and_a_replica_are_left_alone() {
    let master = Server::start(&[]);
    let connect = format!("redis://127.0.0.1:{}?wait=1", master.port());
    assert_eq!(master.cli(&["set", "{cronkeeper}:head", "x"]), "OK");
    let (code, _, err) = check(&connect);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("`{cronkeeper}:head` is not cronkeeper's"), "{err}");
    assert_eq!(master.cli(&["dbsize"]), "1");
    assert_eq!(master.cli(&["del", "{cronkeeper}:head"]), "1");
    let replica = master.replica();
    let (code, _, err) = check(&format!("redis://127.0.0.1:{}", replica.port()));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("it is a replica"), "{err}");
    let (code, out, err) = check(&connect);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("1 of 1 replicas have received it"), "{out}");
    let (code, _, err) = check(&format!("redis://127.0.0.1:{}", master.port()));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("add `wait=N`"), "{err}");
}

#[test]
fn something_else_is_not_taken_for_redis() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port can be had");
    let port = listener.local_addr().expect("it has an address").port();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 4096]);
            let _ = client.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let (code, _, err) = check(&format!("redis://127.0.0.1:{port}"));
    assert_eq!(code, Some(69), "{err}");
    assert!(err.contains("another service"), "{err}");
}

#[test]
fn a_redis_is_not_taken_for_its_sentinel_and_a_password_file_that_is_missing_is_named() {
    let server = Server::start(&[]);
    let (code, _, err) = check(&format!("redis://127.0.0.1:{}?sentinel=mymaster", server.port()));
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("not a Sentinel: name the Sentinels"), "{err}");
    let connect = format!("redis://127.0.0.1:{}?passfile=/nowhere/password", server.port());
    let (code, _, err) = check(&connect);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("`passfile`: /nowhere/password: No such file"), "{err}");
    assert_eq!(err.matches(&format!("127.0.0.1:{}", server.port())).count(), 1, "{err}");
}

#[test]
fn settings_that_cannot_be_read_are_wrong_usage() {
    for connect in ["r1:6379", "rediss://r1", "redis://:secret@r1", "redis://r1/x"] {
        let (code, _, err) = check(connect);
        assert_eq!(code, Some(2), "{connect}: {err}");
        assert!(err.contains("`--redis` (CRONKEEPER_REDIS) cannot be used") && !err.contains("secret"), "{err}");
    }
    let (code, _, err) = texts(&run(&["check", "--service", "--redis", "redis://a", "--etcd", "http://b"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("`--etcd` and `--redis` name two services; keep one"), "{err}");
}
