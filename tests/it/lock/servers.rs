//! The way to the servers: what leads to one, what never can, and what is said of a server that gives no session.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::fixture::{Client, call, printed};
use crate::support::command::{command, texts};
use crate::support::scratch::Scratch;
use crate::support::tls::{Certificates, ClientCertificate};
use crate::support::until;
use crate::support::zookeeper::{Ensemble, shared};

/// A call of each command that needs the servers.
const CALLS: [&[&str]; 7] = [
    &["lock", "/locks/a", "--", "true"],
    &["lock", "--revoke", "/locks/a"],
    &["locks"],
    &["locks", "/locks/a"],
    &["latch", "/a", "--count", "1"],
    &["latch", "/a", "--reset"],
    &["barrier", "/barriers/a", "--parties", "1"],
];

/// The same in one directory, which is the state directory too.
fn in_directory(dir: &Scratch, line: &[&str]) -> (Option<i32>, String, String) {
    texts(&command(line).current_dir(dir.path()).output().unwrap())
}

#[test]
fn blanks_and_gaps_in_the_list_of_servers_do_not_count() {
    let connect = shared();
    for list in ["127.0.0.1:1, {}", " 127.0.0.1:1 ,\t127.0.0.1:2 , {} ", "127.0.0.1:1,,{}"] {
        let list = list.replace("{}", &connect);
        let (code, text) = printed(&list, &["lock", "--timeout", "20s", "/locks/a", "--", "echo", "ran"]);
        assert_eq!((code, text.as_str()), (Some(0), "ran"), "{list:?}");
    }
}

#[test]
fn a_holder_with_a_list_as_people_write_it_survives_the_loss_of_a_server() {
    let ensemble = Ensemble::start(3);
    let first = ensemble.followers()[0];
    let mut order: Vec<usize> = (0..3).collect();
    order.sort_by_key(|&server| server != first);
    let list = order.iter().map(|&server| ensemble.connect_string_of(server)).collect::<Vec<_>>().join(", ");
    // Longer than the lease.
    let client = Client::start_with(&list, &["/locks/a"], "echo held; sleep 6; echo still there");
    client.await_line("held");
    ensemble.kill(first);
    client.await_line("still there");
    assert_eq!(client.await_exit(), Some(0));
}

#[test]
fn an_address_that_can_never_be_right_is_wrong_usage_at_once() {
    let dir = Scratch::new("servers");
    dir.write("jobs.yaml", "jobs: {}\n");
    let release = ["release", "--state-dir", "state"];
    let run = ["run", "--jobs", "jobs.yaml", "--state-dir", "state"];
    let bad = [
        ("http://h:1", "`http://h:1` has a scheme"),
        ("h:99999", "`h:99999` has the port `99999`"),
        ("h:1/x,h2:1/x", "`/x,h2:1/x` contains servers"),
        ("h:1;h:2", "separate servers with commas"),
        ("h:1/x/", "ends with `/`"),
        ("h:1/../x", "none that is `.` or `..`"),
        ("fe80::1", "in brackets"),
    ];
    for (connect, why) in bad {
        for line in CALLS.iter().copied().chain([&release[..], &run]) {
            let (name, rest) = line.split_first().unwrap();
            let (code, _, text) = in_directory(&dir, &[&[*name, "--zookeeper", connect], rest].concat());
            assert!(code == Some(2) && text.contains(why) && text.contains("--zookeeper"), "{line:?}: {code:?} {text}");
        }
    }
}

#[test]
fn a_wrong_setting_of_the_environment_file_is_named_with_its_line() {
    let dir = Scratch::new("settings");
    let file = |text: &str| dir.write("cronkeeper.env", text).display().to_string();
    let refused = |text: &str, why: &str| {
        let (code, said) = printed("", &["locks", "--environment-file", &file(text)]);
        assert!(code == Some(78) && said.contains(why), "{code:?} {said}");
    };
    refused("# servers\nCRONKEEPER_ZOOKEEPER=h:1/x,h2:1/x\n", "cronkeeper.env:2: CRONKEEPER_ZOOKEEPER: the path");
    refused(
        "CRONKEEPER_ZOOKEEPER=h:1\nCRONKEEPER_SESSION_TIMEOUT=10\n",
        "cronkeeper.env:2: CRONKEEPER_SESSION_TIMEOUT",
    );
    refused("\n\nnonsense\n", "cronkeeper.env:3: the line is not a setting");
    // Otherwise the lock would be one of this host, without a word.
    refused("# servers\nCRONKEEPER_ZOOKEEPER=\n", "cronkeeper.env:2: `CRONKEEPER_ZOOKEEPER` is empty; give it a value");
    let empty = file("CRONKEEPER_ZOOKEEPER=\n");
    let (code, said) = printed("", &["lock", "--environment-file", &empty, "/locks/a", "--", "echo", "ran"]);
    assert!(code == Some(78) && !said.contains("ran"), "{code:?} {said}");
    let (only_key, key) = (dir.write("key.pem", ""), "CRONKEEPER_ZOOKEEPER_KEY");
    refused(&format!("CRONKEEPER_ZOOKEEPER=h:1\n{key}={}\n", only_key.display()), "without `--zookeeper-cert`");
}

fn closed(path: &Path) -> String {
    let path: PathBuf = path.canonicalize().unwrap();
    path.display().to_string()
}

/// What a program prints that converts a file. `None` if it is not installed.
fn openssl(line: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new("openssl").args(line).stdin(Stdio::null()).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn a_certificate_or_key_that_can_never_be_right_is_named_with_its_option_at_once() {
    let (dir, files) = (Scratch::new("certificates"), Certificates::new());
    dir.write("jobs.yaml", "jobs: {}\n");
    let [ca, cert, key] = [&files.ca, &files.client_cert, &files.client_key].map(|path| closed(path));
    let other = closed(&files.other.1);
    let empty = closed(&dir.write("empty.pem", ""));
    let mut cases = vec![
        (
            [&ca, &cert, &other],
            format!("`--zookeeper-key`: the key in {other} does not match the certificate in {cert}"),
        ),
        ([&ca, &key, &key], format!("`--zookeeper-cert`: {key} has no certificate")),
        ([&ca, &cert, &cert], format!("`--zookeeper-key`: {cert} has no private key")),
        ([&empty, &cert, &key], format!("`--zookeeper-ca`: {empty} is empty")),
    ];
    let [ca_der, cert_der, key_der, store] =
        ["ca.der", "client.der", "key.der", "client.p12"].map(|name| dir.path().join(name).display().to_string());
    let x509 = |pem: &str, der: &str| openssl(&["x509", "-in", pem, "-outform", "DER", "-out", der]).is_some();
    let made = x509(&ca, &ca_der)
        && x509(&cert, &cert_der)
        && openssl(&["pkey", "-in", &key, "-outform", "DER", "-out", &key_der]).is_some();
    let pkcs12 = ["pkcs12", "-export", "-in", &cert, "-inkey", &key, "-passout", "pass:x", "-out", &store];
    if made && openssl(&pkcs12).is_some() {
        let named =
            |option: &str, path: &str, format: &str| format!("`{option}`: {path} is {format}, not PEM; convert it");
        cases.push(([&ca_der, &cert, &key], named("--zookeeper-ca", &ca_der, "DER")));
        cases.push(([&ca, &cert_der, &key], named("--zookeeper-cert", &cert_der, "DER")));
        cases.push(([&ca, &cert, &key_der], named("--zookeeper-key", &key_der, "DER")));
        cases.push(([&store, &cert, &key], named("--zookeeper-ca", &store, "PKCS#12")));
        cases.push(([&ca, &store, &key], named("--zookeeper-cert", &store, "PKCS#12")));
    }
    for ([ca, cert, key], why) in cases {
        let options =
            ["--zookeeper", "127.0.0.1:1", "--zookeeper-ca", ca, "--zookeeper-cert", cert, "--zookeeper-key", key];
        let run = ["run", "--jobs", "jobs.yaml", "--state-dir", "state"];
        // It delays each restart, so it must not find out only when there is something to release.
        let release = ["release", "--state-dir", "state"];
        for line in CALLS.iter().copied().chain([&run[..], &release]) {
            let (name, rest) = line.split_first().unwrap();
            let (code, _, text) = in_directory(&dir, &[&[*name], &options[..], rest].concat());
            assert!(code == Some(78) && text.contains(&why), "{line:?}: {code:?} {text}");
        }
    }
}

#[test]
fn a_chroot_that_does_not_exist_is_told_by_every_command() {
    let connect = format!("{}/missing", shared());
    let missing = &connect[connect.find('/').unwrap()..];
    for line in CALLS {
        let (code, text) = printed(&connect, line);
        assert_eq!(code, Some(78), "{line:?}: {text}");
        assert!(text.contains(&format!("the path `{missing}` does not exist in ZooKeeper\nhint: create it")), "{text}");
    }
}

/// What is said of a server that gives no session.
#[track_caller]
fn of_servers(connect: &str, options: &[&str], what: &str) {
    let line = [&["locks"], options].concat();
    // A busy server may answer later than that.
    until(what, || {
        let mut call = call(connect, &line);
        let output = call.env("CRONKEEPER_SESSION_TIMEOUT", "2s").output().unwrap();
        let (code, _, text) = texts(&output);
        assert_eq!(code, Some(69), "{text}");
        text.contains(what)
    });
}

#[test]
fn credentials_that_the_servers_refuse_are_no_busy_lock() {
    let connect = shared();
    let scratch = Scratch::new("credentials");
    let refused = |credential: &str, line: &[&str], says: &[&str]| {
        let file = scratch.write("auth", &format!("{credential}\n"));
        let file = closed(&file);
        let (line, command) = match line.iter().position(|word| *word == "--") {
            Some(at) => line.split_at(at),
            None => (line, &[][..]),
        };
        let line = [line, &["--zookeeper-auth-file", &file], command].concat();
        let (code, text) = printed(&connect, &line);
        assert_eq!(code, Some(78), "{credential}, {line:?}: {text}");
        assert!(text.contains("--zookeeper-auth-file"), "{credential}, {line:?}: {text}");
        says.iter().for_each(|said| assert!(text.contains(said), "{credential}, {line:?}: {text}"));
    };
    // A scheme that the servers do not know, and one whose identities they accept from servers only.
    for credential in ["sesame:open", "x509:CN=a"] {
        let file = scratch.path().join("auth").display().to_string();
        CALLS.iter().for_each(|line| refused(credential, line, &["refuses the credentials of", &file]));
    }
    // One that the servers accept, and that can own nothing: what waits for a lock must not wait for that.
    let lock = ["lock", "--timeout", "2s", "/locks/a", "--", "true"];
    let several = ["lock", "--timeout", "2s", "/locks/a", "/locks/b", "--", "true"];
    let latch = ["latch", "/latches/a", "--timeout", "2s", "--count", "1", "down"];
    let barrier = ["barrier", "/barriers/a", "--timeout", "2s", "--parties", "2"];
    for line in [&lock[..], &several, &latch, &barrier] {
        refused("ip:10.0.0.1", line, &["not authorized"]);
    }
}

#[test]
fn what_was_seen_of_a_server_is_told() {
    let ensemble = Ensemble::builder(1).tls(ClientCertificate::NotAsked).property("maxClientCnxns", "1").start();
    let files = ensemble.certificates();
    let (plain, secure) = (ensemble.connect_string(), ensemble.secure_connect_string());
    let foreign = closed(&files.client_cert);
    of_servers(&secure, &[], "speaks TLS: name the authority");
    of_servers(
        &plain,
        &["--zookeeper-ca", &closed(&files.ca)],
        "does not speak TLS: it is the port for clients without TLS",
    );
    of_servers(&secure, &["--zookeeper-ca", &foreign], "its certificate is not accepted here");
    let client = Client::start(&plain, &["/locks/a"]);
    client.await_held();
    of_servers(&plain, &[], "too many connections from this host");
    client.release();
}

#[test]
fn a_server_without_its_quorum_and_another_service_are_told_apart() {
    let ensemble = Ensemble::start(3);
    ensemble.kill(1);
    ensemble.kill(2);
    of_servers(&ensemble.connect_string_of(0), &[], "is ZooKeeper without a quorum, or cut off from it");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        // Ends with the process.
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        }
    });
    of_servers(&other, &[], "is another service, not ZooKeeper: it says `SSH-2.0-OpenSSH_9.2`");
}

/// Paths with so many bytes together.
fn paths(bytes: usize) -> Vec<String> {
    (0..bytes / 100).map(|number| format!("/locks/{number:0>92}")).collect()
}

#[test]
fn more_paths_than_the_servers_take_at_once_end_with_their_limit() {
    let connect = shared();
    let many = paths(1_200_000);
    let line: Vec<&str> = ["lock"].into_iter().chain(many.iter().map(String::as_str)).chain(["--", "true"]).collect();
    let (code, text) = printed(&connect, &line);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("`jute.maxbuffer`") && text.contains("the names of 12000 locks"), "{text}");
    let (code, text) =
        printed(&connect, &["lock", "--permits", "10000", "--count", "10000", "/locks/all", "--", "true"]);
    assert!(code == Some(1) && text.contains("`jute.maxbuffer`"), "{code:?} {text}");
}
