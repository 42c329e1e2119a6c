//! The output of runs on other nodes: fetched from their addresses, or missing, with the end from the ledger.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;
use serde_json::json;
use uuid::Uuid;

use super::cluster::{Lines, Place, in_line, job, jobs, node, shared, usual};
use crate::solo::fixture::Gate;
use crate::support::command::{command, run, texts};
use crate::support::node::Spec;
use crate::support::scratch::Scratch;
use crate::support::tls::Certificates;
use crate::support::{LONG, until};

/// A job that is never due.
const SELDOM: &str = "@at 2099-01-01T00:00:00Z";
pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An unused address of this host: all addresses in 127.0.0.0/8 belong to it.
fn unused() -> String {
    let [a, b, c, ..] = *Uuid::new_v4().as_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, a.clamp(16, 200), b, c.clamp(1, 254)), 7475).to_string()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("scratch directories have plain names")
}

fn shell(line: &str) -> String {
    format!("{line:?}")
}

fn ask(spec: &Spec, line: &[&str]) -> (Option<i32>, String, String) {
    texts(&run(&[line, &["--runtime-dir", text(&spec.runtime_dir())]].concat()))
}

/// Triggers the job, and waits until the end of its run is in the ledger; returns the run.
fn ended(place: &Place, asked: &Spec) -> String {
    let (code, out, err) = ask(asked, &["trigger", "seldom"]);
    assert_eq!(code, Some(0), "{err}");
    let run = out.trim().to_owned();
    until("its end is written", || place.history("seldom").contains_key(&run));
    run
}

/// A node that listens, with this token.
pub(super) fn listening(spec: Spec, dir: &Scratch, token: &str) -> Spec {
    let file = dir.write(&format!("token-{}", spec.name()), token);
    usual(spec).option("--listen", &unused()).option("--api-token-file", text(&file))
}

#[test]
fn output_is_followed_on_a_node_that_neither_leads_nor_ran_it_over_tls() {
    let (place, dir, gate, own) = (Place::shared(), Scratch::new("token"), Gate::new(), Certificates::new());
    let whole: String = (1_000..10_000).map(|number| format!("{number} of the output\n")).collect();
    let line = format!("echo begun; {}; for i in $(seq 1000 9999); do echo $i of the output; done", gate.command());
    let file = jobs(&[job("seldom", SELDOM, &shell(&line), "")]);
    let [a, _b, c] = in_line(["a", "b", "c"].map(|name| {
        let spec = listening(place.node(name), &dir, TOKEN).jobs(&file).option("--listen-host", "localhost");
        let spec = spec.option("--listen-cert", text(&own.client_cert)).option("--listen-key", text(&own.client_key));
        spec.option("--listen-client-ca", text(&own.ca)).option("--peer-ca", text(&own.ca))
    }));
    let (_, run, _) = ask(c.spec(), &["trigger", "seldom"]);
    let run = run.trim();
    a.await_where("run.started", LONG, |started| started.text("run") == run);
    let mut following = command(&["logs", "seldom", "-f", "--runtime-dir", text(&c.spec().runtime_dir())]);
    let mut following = following.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut live = String::new();
    out.read_line(&mut live).unwrap();
    assert_eq!(live, "begun\n");
    gate.open();
    out.read_to_string(&mut live).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0));
    assert!(live == format!("begun\n{whole}"), "{} of {}", live.len(), whole.len());
    let (code, out, err) = ask(c.spec(), &["logs", run]);
    assert!((code, &out) == (Some(0), &live), "{code:?}, {} of {}: {err}", out.len(), live.len());
    let kept = c.spec().state_dir().join("output/ended/seldom");
    assert!(!kept.exists(), "only the node that ran it keeps it");
}

#[test]
fn what_a_node_that_is_away_kept_is_missing_and_its_end_is_shown() {
    let (place, dir) = (Place::shared(), Scratch::new("token"));
    let file = jobs(&[job("seldom", SELDOM, &shell("seq 1 2000"), "")]);
    let [a, b] = in_line(["a", "b"].map(|name| listening(place.node(name), &dir, TOKEN).jobs(&file)));
    let run = ended(&place, b.spec());
    let whole: String = (1..=2_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(ask(b.spec(), &["logs", &run]), (Some(0), whole.clone(), String::new()));
    let name = a.name().to_owned();
    let spec = a.spec().clone();
    drop(a);
    b.await_event("takeover.done", LONG);
    let (code, out, err) = ask(b.spec(), &["logs", &run]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains(&format!("the output of attempt 1 is missing: {name} is away")), "{err}");
    assert!(whole.ends_with(&out) && out.contains("1999\n2000\n"), "{out}");
    // Its files are there again when it is.
    let back = spec.start();
    back.await_event("election.following", LONG);
    until("it can be asked", || ask(b.spec(), &["logs", &run]) == (Some(0), whole.clone(), String::new()));
    assert_eq!(ask(back.spec(), &["logs", "seldom"]).1, whole);
}

#[test]
fn an_attempt_on_each_node_is_gathered_from_both() {
    let (place, dir, gate) = (Place::shared(), Scratch::new("token"), Gate::new());
    let line = format!("echo attempt $CRONKEEPER_ATTEMPT; {}", gate.command());
    let file = jobs(&[job("seldom", SELDOM, &shell(&line), "interrupted: rerun")]);
    let specs = ["a", "b"].map(|name| listening(place.node(name), &dir, TOKEN).jobs(&file));
    let [a, b] = in_line(specs);
    let (_, run, _) = ask(b.spec(), &["trigger", "seldom"]);
    let run = run.trim();
    until("it is kept", || ask(a.spec(), &["logs", run]).1 == "attempt 1\n");
    a.kill9();
    b.await_where("run.started", LONG, |started| started.text("run") == run);
    gate.open();
    b.await_where("run.finished", LONG, |ended| ended.text("run") == run);
    let back = a.again();
    back.await_event("election.following", LONG);
    until("both are there", || ask(back.spec(), &["logs", run]).1 == "attempt 1\nattempt 2\n");
    until("also on the other", || ask(b.spec(), &["logs", run]).1 == "attempt 1\nattempt 2\n");
}

#[test]
fn a_node_says_what_is_to_be_set_so_that_output_can_be_fetched() {
    let (place, dir) = (Place::shared(), Scratch::new("token"));
    let file = jobs(&[job("seldom", SELDOM, &shell("echo here"), "")]);
    let [a, b, c] = in_line([
        listening(place.node("a"), &dir, TOKEN).jobs(&file),
        listening(place.node("b"), &dir, "fedcba9876543210").jobs(&file),
        usual(place.node("c")).jobs(&file),
    ]);
    let run = ended(&place, b.spec());
    for (asked, words) in [(&b, "all nodes need the same token"), (&c, "set `--listen` and `--api-token-file`")] {
        let (code, out, err) = ask(asked.spec(), &["logs", &run]);
        assert_eq!((code, out.as_str()), (Some(0), "here\n"), "{err}");
        assert!(err.contains(words) && err.ends_with("; the ledger has all of its output:\n"), "{err}");
    }
    drop(a);
    b.await_event("takeover.done", LONG);
    assert_eq!(ask(b.spec(), &["handover", "--to", c.name()]).0, Some(0));
    c.await_event("takeover.done", LONG);
    let run = ended(&place, b.spec());
    let (code, out, err) = ask(b.spec(), &["logs", &run]);
    assert_eq!((code, out.as_str()), (Some(0), "here\n"), "{err}");
    assert!(err.contains("does not listen on TCP: set `--listen` there"), "{err}");
}

#[test]
fn output_is_found_after_the_ledger_has_forgotten_the_run() {
    let (place, dir) = (Place::shared(), Scratch::new("token"));
    let file = jobs(&[job("seldom", SELDOM, &shell("echo here"), "")]);
    let [a, b] = in_line(["a", "b"].map(|name| listening(place.node(name), &dir, TOKEN).jobs(&file)));
    let run = ended(&place, b.spec());
    place.zk.remove(&place.path(&format!("/cronkeeper/history/seldom/{run}")));
    for asked in [&a, &b] {
        assert_eq!(ask(asked.spec(), &["logs", &run]), (Some(0), "here\n".into(), String::new()));
    }
    let (code, _, err) = ask(b.spec(), &["logs", "seldom.20261120T023000Z"]);
    assert_eq!(code, Some(1), "{err}");
    // As the retention does. The end of it is still in the record, in the archive of the node that ran it.
    std::fs::remove_dir_all(a.spec().state_dir().join("output/ended/seldom")).unwrap();
    for asked in [&a, &b] {
        let (code, out, err) = ask(asked.spec(), &["logs", &run]);
        assert_eq!((code, out.as_str()), (Some(0), "here\n"), "{err}");
        assert!(err.contains("see `--output-retention`"), "{err}");
    }
}

#[test]
fn without_the_ledger_it_is_said_that_the_job_may_have_run_since() {
    let place = Place::shared();
    let lines = Lines::new(shared(), &place);
    let file = jobs(&[job("seldom", SELDOM, &shell("echo here"), "")]);
    let spec = usual(node("a", &lines.connect())).jobs(&file);
    let a = spec.start();
    a.await_event("takeover.done", LONG);
    let run = ended(&place, a.spec());
    // In order, so that its archive has the run.
    a.signal(Signal::TERM);
    a.wait_exit(LONG);
    lines.part();
    let a = a.spec().start();
    until("it can be asked", || ask(a.spec(), &["status"]).0 == Some(0));
    let (code, out, err) = ask(a.spec(), &["logs", "seldom"]);
    assert_eq!((code, out.as_str()), (Some(1), "here\n"), "{err}");
    assert!(err.contains(&format!("showing {run}, but the job may have run since")), "{err}");
}

/// Answers every request with the same text, and keeps the requests.
fn listen_to_all(answer: String) -> (SocketAddrV4, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(&stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).is_ok_and(|read| read > 0) {}
            kept.lock().unwrap().push(head);
            let length = answer.len();
            drop(write!(&stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{answer}"));
        }
    });
    (SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), requests)
}

/// Whoever may write in ZooKeeper can plant a member with any address. It is neither sent the token, nor can it make a
/// command print forever, or a node ask forever.
#[test]
fn a_planted_member_gets_no_token_and_its_answers_are_bounded() {
    let (place, dir) = (Place::shared(), Scratch::new("token"));
    let file = jobs(&[job("seldom", SELDOM, &shell("echo here"), "")]);
    let [a] = in_line([listening(place.node("a"), &dir, TOKEN).jobs(&file)]);
    let run = "seldom.20261120T023000Z";
    let line = json!({"at": "2026-11-20T02:30:00Z", "attempt": 1, "stream": "stdout", "line": "forged"});
    let attempts: Vec<u32> = (1..=200).collect();
    let page = json!({"run": run, "lines": [line], "next": "1.10", "state": "end", "attempts": attempts});
    let (address, requests) = listen_to_all(page.to_string());
    let nodes = place.path("/cronkeeper/nodes");
    let mut member = place.zk.json(&format!("{nodes}/{}", a.name())).expect("it is alive");
    (member["node"], member["listen"]) = (json!("evil"), json!({"address": address.to_string(), "tls": false}));
    place.zk.make_ephemeral(&format!("{nodes}/evil"), member.to_string().as_bytes());
    let mut shown = (None, String::new(), String::new());
    until("it is asked", || {
        shown = ask(a.spec(), &["logs", run]);
        !requests.lock().unwrap().is_empty()
    });
    let (code, out, err) = shown;
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("the answer of evil is garbled"), "{err}");
    assert!(err.contains("evil lists 168 earlier attempts: only its last 32 are fetched"), "{err}");
    let requests = requests.lock().unwrap();
    assert!(requests.len() <= 4, "{requests:#?}");
    assert!(
        requests.iter().all(|head| head.contains("Cronkeeper-Peer to=evil, ") && !head.contains(TOKEN)),
        "{requests:#?}"
    );
}

/// It can read nothing but its own files, and has all that the run has written so far.
#[test]
fn a_node_that_is_cut_off_says_in_one_line_that_its_run_still_writes() {
    let (place, gate) = (Place::shared(), Gate::new());
    let lines = Lines::new(shared(), &place);
    let writes = job("seldom", SELDOM, &shell(&format!("echo begun; {}", gate.command())), "");
    let file = jobs(&[writes, job("never", SELDOM, "[\"true\"]", "")]);
    let [only] = in_line([usual(node("a", &lines.connect())).jobs(&file)]);
    let (_, run, _) = ask(only.spec(), &["trigger", "seldom"]);
    let run = run.trim();
    // The status is published a moment after what it shows.
    until("it is kept and shown", || ask(only.spec(), &["logs", "seldom"]).1 == "begun\n");
    lines.part();
    only.await_event("coordination.suspended", LONG);
    for asked in ["seldom", run] {
        let (code, out, err) = ask(only.spec(), &["logs", asked]);
        assert_eq!((code, out.as_str()), (Some(0), "begun\n"), "{asked}: {err}");
        assert_eq!(err, format!("cronkeeper: run `{run}`: {} is still writing it\n", only.name()), "{asked}");
    }
    let but = "cronkeeper: no run of job `never` is known, but the ledger cannot be read: ";
    // What was read a moment ago counts as read.
    until("whoever asks for another job reads why", || {
        let (code, _, err) = ask(only.spec(), &["logs", "never"]);
        code == Some(1) && err.starts_with(but)
    });
}
