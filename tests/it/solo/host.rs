//! Commands that ask a node on another host, by its address.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use super::fixture::{leading, node};
use crate::support::LONG;
use crate::support::command::run;
use crate::support::node::{Node, Spec};
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;

const JOBS: &str = "jobs:\n  seldom: {schedule: '@at 2099-01-01T00:00:00Z', command: 'echo done; exit 3'}\n";

fn token(dir: &Scratch, name: &str, text: &str) -> String {
    let path = dir.write(name, text);
    closed(&path);
    path.to_str().expect("a plain name").to_owned()
}

fn closed(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Starts a node that listens on a port of its own. Returns it and the port.
fn listening(spec: Spec) -> (Node, String) {
    let node = leading(&spec.option("--listen", "127.0.0.1:0").jobs(JOBS));
    let address = node.await_where("api.listening", LONG, |said| said.json()["address"].is_string());
    let port = address.text("address").rsplit_once(':').expect("a port").1.to_owned();
    (node, port)
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_node_is_asked_by_its_address_and_changed_with_its_token() {
    let dir = Scratch::new("host");
    let (right, wrong) = (token(&dir, "token", "0123456789abcdef\n"), token(&dir, "wrong", "fedcba9876543210\n"));
    let (node, port) = listening(node("asked").option("--api-token-file", &right));
    let host = format!("http://127.0.0.1:{port}");
    let ask = |line: &[&str], token: &[&str]| run(&[line, &["--host", &host], token].concat());
    let status = ask(&["status"], &[]);
    assert!(status.status.success() && String::from_utf8_lossy(&status.stdout).contains(node.name()), "{status:?}");
    let (code, err) = said(&ask(&["trigger", "seldom"], &[]));
    assert!(code == Some(1) && err.contains("`--token-file` names the file"), "{err}");
    let (code, err) = said(&ask(&["trigger", "seldom"], &["--token-file", &wrong]));
    assert!(code == Some(1) && err.contains(&format!("{host} refused the token")), "{err}");
    let triggered = ask(&["trigger", "seldom", "--wait"], &["--token-file", &right]);
    assert_eq!(triggered.status.code(), Some(3), "{triggered:?}");
    assert!(String::from_utf8_lossy(&triggered.stdout).ends_with("done\n"), "{triggered:?}");
    for line in [&["history", "seldom"][..], &["logs", "seldom"], &["pause", "seldom"], &["drain"], &["undrain"]] {
        let done = ask(line, &["--token-file", &right]);
        assert!(done.status.success(), "{line:?}: {done:?}");
    }
    let next = run(&["next", "--host", &host, "--json"]);
    let line = "{\"job\":\"seldom\",\"at\":\"2099-01-01T00:00:00+00:00\"}\n";
    assert_eq!(String::from_utf8_lossy(&next.stdout), line, "{next:?}");
    let (code, err) = said(&run(&["status", "--host", "http://127.0.0.1:1"]));
    assert!(code == Some(69) && err.contains("cannot connect to http://127.0.0.1:1"), "{err}");
    let (code, err) = said(&run(&["status", "--host", "http://no-such-host.invalid:1"]));
    assert!(code == Some(69) && err.contains("no such host"), "{err}");
    let (code, err) = said(&run(&["status", "--host", "127.0.0.1:1"]));
    assert!(code == Some(2) && err.contains("expected http://host:port or https://host:port"), "{err}");
    let (code, err) = said(&run(&["drain", "--host", "http://192.0.2.1:1", "--token-file", &right]));
    assert!(code == Some(2) && err.contains("others could read the token"), "{err}");
}

#[test]
fn a_node_with_tls_is_asked_only_if_its_certificate_is_trusted() {
    let (dir, own, foreign) = (Scratch::new("host"), Certificates::new(), Certificates::new());
    let token = token(&dir, "token", "0123456789abcdef\n");
    closed(&own.client_key);
    let text = |path: &Path| path.to_str().expect("a plain name").to_owned();
    let spec = node("secured").option("--api-token-file", &token);
    let spec = spec.option("--listen-cert", &text(&own.client_cert)).option("--listen-key", &text(&own.client_key));
    let (_node, port) = listening(spec);
    let host = format!("https://localhost:{port}");
    let ask = |ca: &[&str]| run(&[&["pause", "seldom", "--host", &host, "--token-file", &token], ca].concat());
    let (ca, other) = (text(&own.ca), text(&foreign.ca));
    let trusted = ask(&["--cacert", &ca]);
    assert!(trusted.status.success(), "{trusted:?}");
    let (code, err) = said(&ask(&["--cacert", &other]));
    assert!(code == Some(1) && err.contains("is not trusted here"), "{err}");
    let (code, err) = said(&ask(&[]));
    assert!(code == Some(2) && err.contains("needs `--cacert`"), "{err}");
}
