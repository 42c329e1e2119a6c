//! The history of several nodes, asked on one of them.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use super::daemon::{Behaviour, Daemon, exchange, private_file};
use crate::api::network::Files;
use crate::api::peers::Peers;
use crate::api::serve::Serving;
use crate::archive::{Archive, HistoryRetention};
use crate::option_file::OptionFile;
use crate::status::sample;
use crate::test_records::{record, success};
use cronkeeper_core::election::{ApiAddress, Member};
use cronkeeper_core::run::{HistoryRecord, RunEnd};
use cronkeeper_core::term::NodeName;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// An archive with runs that ended at these seconds.
fn archive(dir: &TempDir, seconds: &[i64]) -> Archive {
    let archive = Archive::start(dir.path(), NodeName::new("n"), HistoryRetention::Unlimited).unwrap();
    seconds.iter().for_each(|second| archive.put(HistoryRecord::Run(ended(*second))));
    archive
}

fn ended(second: i64) -> RunEnd {
    let mut run = record("load", second - 1, "s");
    run.owner.node = NodeName::new("host-a");
    success(run)
}

fn member(node: &str, at: Option<SocketAddr>) -> Member {
    let mut member = sample::queue().members.remove(0);
    member.node = NodeName::new(node);
    member.published.listen = at.map(|address| ApiAddress { address, name: None, tls: false });
    member
}

/// The asked node `host-a`, and `host-b`, which serves what it has in its archive.
struct Two {
    asked: Daemon,
    own: Archive,
    _other: Daemon,
    _serving: Serving,
    at: SocketAddr,
    _dirs: [TempDir; 3],
}

impl Two {
    async fn start(own: &[i64], others: &[i64]) -> Self {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let token = private_file(&dirs[2].path().join("token"), TOKEN);
        let token = Some(OptionFile::given("--api-token-file", token));
        let files = Files { token, tls: None };
        let other = Daemon::start_with(Behaviour::Well, archive(&dirs[1], others)).await;
        let (at, serving) = other.listen_as("host-b", files.clone()).await;
        let peers = Peers::new(files, None).unwrap();
        let own = archive(&dirs[0], own);
        let asked = Daemon::start_among(Behaviour::Well, own.clone(), Some(peers)).await;
        *asked.ledger.complete_since.lock().unwrap() = Some(sample::at("2026-11-20T02:39:00Z"));
        let two = Self { asked, own, _other: other, _serving: serving, at, _dirs: dirs };
        two.with(Vec::new());
        two
    }

    /// With these nodes besides.
    fn with(&self, more: Vec<Member>) {
        let both = vec![member("host-a", None), member("host-b", Some(self.at))];
        *self.asked.ledger.members.lock().unwrap() = Some([both, more].concat());
    }

    async fn get(&self, path: &str) -> Value {
        let (code, answer) = self.asked.get(path).await;
        assert_eq!(code, 200, "{answer}");
        answer
    }
}

/// When the records ended.
fn ends(answer: &Value) -> Vec<&str> {
    let records = answer["records"].as_array().unwrap().iter();
    records.map(|record| record["ended_at"].as_str().or(record["decided_at"].as_str()).unwrap()).collect()
}

#[tokio::test]
async fn one_node_shows_what_the_archives_of_all_nodes_have_page_by_page_and_each_record_once() {
    let two = Two::start(&[60, 90, 120], &[90, 100, 30]).await;
    let all = two.get("/v1/history?limit=100").await;
    let expected = [
        "1970-01-01T00:02:00Z",
        "1970-01-01T00:01:40Z",
        "1970-01-01T00:01:30Z",
        "1970-01-01T00:01:00Z",
        "1970-01-01T00:00:30Z",
    ];
    assert!(ends(&all).len() == 8 && ends(&all).ends_with(&expected), "{all}");
    assert_eq!(all["nodes"], serde_json::json!(["host-a", "host-b"]));
    for absent in ["missing", "incomplete_before", "next", "older_elsewhere"] {
        assert_eq!(all[absent], Value::Null, "{all}");
    }
    let (mut paged, mut before) = (Vec::new(), String::new());
    loop {
        let page = two.get(&format!("/v1/history?limit=2{before}")).await;
        paged.extend(ends(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    assert_eq!(paged, ends(&all));
    let of_job = two.get("/v1/jobs/load/history?limit=100&outcome=success&until=1970-01-01T00:01:35Z").await;
    assert_eq!(ends(&of_job), expected[2..]);
    let own = two.get("/v1/history?limit=100&local=true").await;
    assert_eq!(ends(&own), ["1970-01-01T00:02:00Z", "1970-01-01T00:01:30Z", "1970-01-01T00:01:00Z"]);
}

#[tokio::test]
async fn the_record_of_a_run_is_found_wherever_it_is() {
    let two = Two::start(&[60], &[100]).await;
    let run = ended(100).run.id();
    let found = two.get(&format!("/v1/history?run={run}")).await;
    assert_eq!(ends(&found), ["1970-01-01T00:01:40Z"]);
    assert_eq!(ends(&two.get(&format!("/v1/history?run={run}&local=true")).await), [""; 0]);
    let (head, page) = two.asked.get_text(&format!("/runs/{run}"), "").await;
    assert!(head.starts_with("HTTP/1.1 200") && page.contains("success"), "{page}");
    let (_, page) = two.asked.get_text("/history", "").await;
    assert!(page.contains(&run.to_string()), "{page}");
}

#[tokio::test]
async fn other_nodes_are_asked_only_if_they_can_add_something() {
    let two = Two::start(&[60], &[100]).await;
    two.with(vec![member("host-c", None)]);
    // The ledger is complete since before the oldest of these.
    let newest = two.get("/v1/history?limit=2").await;
    assert_eq!((ends(&newest).len(), &newest["missing"], &newest["nodes"]), (2, &Value::Null, &Value::Null));
    let recent = two.get("/v1/history?limit=50&since=2026-11-20T02:39:30Z").await;
    assert_eq!((ends(&recent).len(), &recent["missing"]), (3, &Value::Null));
    *two.asked.ledger.complete_since.lock().unwrap() = None;
    assert_eq!(two.get("/v1/history?limit=50").await["missing"], Value::Null, "nothing was ever trimmed");
}

/// A node of another version, which does not know what it is asked for.
fn old_node() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4_096]);
            let body = r#"{"error":"there is no parameter `local`"}"#;
            let _ = write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    at
}

#[tokio::test]
async fn nodes_that_do_not_answer_are_named_and_the_answer_says_where_gaps_begin() {
    let two = Two::start(&[60], &[100]).await;
    let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    two.with(vec![
        member("host-c", None),
        member("host-d", Some(([127, 0, 0, 1], 1).into())),
        member("host-e", Some(old_node())),
        member("host-f", Some(hung.local_addr().unwrap())),
    ]);
    let answer = two.get("/v1/history?limit=100").await;
    assert_eq!(ends(&answer).len(), 5, "{answer}");
    assert_eq!(answer["nodes"], serde_json::json!(["host-a", "host-b"]));
    assert_eq!(answer["incomplete_before"], "2026-11-20T02:39:00Z");
    assert_eq!(answer["older_elsewhere"], true);
    let missing: Vec<_> =
        answer["missing"].as_array().unwrap().iter().map(|missing| missing["why"].as_str().unwrap()).collect();
    let words = [
        "does not listen on TCP",
        "cannot be reached at 127.0.0.1:1",
        "another version of cronkeeper",
        "does not answer in time",
    ];
    assert!(missing.len() == 4 && missing.iter().zip(words).all(|(why, words)| why.contains(words)), "{missing:?}");
    let (_, page) = two.asked.get_text("/history", "").await;
    for text in ["02:39:00 only what host-a and host-b ran themselves", "host-c: host-c does not listen on TCP"] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[tokio::test]
async fn a_node_that_ran_something_and_is_gone_is_missing_too() {
    let two = Two::start(&[60], &[]).await;
    let mut gone = ended(50);
    gone.run.owner.node = NodeName::new("host-z");
    two.own.put(HistoryRecord::Run(gone));
    let answer = two.get("/v1/history?limit=100").await;
    assert_eq!((ends(&answer).len(), &answer["missing"][0]["why"]), (5, &"host-z is away".into()), "{answer}");
}

#[tokio::test]
async fn of_hundreds_of_nodes_a_bounded_number_is_asked_and_named() {
    let two = Two::start(&[60], &[100]).await;
    two.with((0..300).map(|number| member(&format!("node-{number:03}"), None)).collect());
    let answer = two.get("/v1/history?limit=100").await;
    assert_eq!(answer["nodes"], serde_json::json!(["host-a", "host-b"]));
    assert_eq!((answer["missing"].as_array().unwrap().len(), &answer["missing_more"]), (100, &200.into()));
}

#[tokio::test]
async fn a_node_without_a_token_says_so_and_who_shows_none_learns_nothing_of_other_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start_with(Behaviour::Well, archive(&dir, &[60])).await;
    *daemon.ledger.complete_since.lock().unwrap() = Some(sample::at("2026-11-20T02:39:00Z"));
    let (_, answer) = daemon.get("/v1/history?limit=100").await;
    let why = answer["missing"][0]["why"].as_str().unwrap();
    assert!(why.contains("set `--listen` and `--api-token-file`"), "{why}");
    let (at, _serving) = daemon.listen().await;
    let request = format!("GET /v1/history?limit=100 HTTP/1.1\r\nHost: {at}\r\n\r\n");
    let (code, outline) = exchange(move || std::net::TcpStream::connect(at), request).await;
    assert_eq!((code, &outline["missing"], &outline["older_elsewhere"]), (200, &Value::Null, &true.into()));
    assert_eq!(outline["incomplete_before"], Value::Null);
}

#[tokio::test]
async fn a_node_that_keeps_no_archive_is_missing_too() {
    let daemon = Daemon::start(Behaviour::Well).await;
    *daemon.ledger.complete_since.lock().unwrap() = Some(sample::at("2026-11-20T02:39:00Z"));
    *daemon.ledger.members.lock().unwrap() = Some(vec![member("host-a", None)]);
    let (_, answer) = daemon.get("/v1/history?limit=100").await;
    let expected = "host-a keeps no archive of the history: see `--history-retention`";
    assert_eq!((&answer["missing"][0]["why"], answer["missing"][1].is_null()), (&expected.into(), true));
    assert_eq!(daemon.get("/v1/history?local=true").await.1["archive_error"], expected);
}
