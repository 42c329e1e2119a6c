//! Tests of the API over real sockets: its answers, and its behaviour under hostile requests.

mod access;
pub mod daemon;
mod fuzz;
mod history;
mod metrics;
mod page;
mod requests;
mod roles;

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use self::daemon::{Behaviour, Daemon, exchange};
use super::client::{AskError, Client, SocketSearch};
use super::socket::NAME;
use super::*;
use crate::archive::{Archive, HistoryRetention};
use crate::status::{RunStatus, sample};
use crate::test_records::{record, success};
use cronkeeper_core::run::{HistoryRecord, Outcome, RunId};

#[tokio::test]
async fn a_status_joins_what_the_daemon_says_with_what_the_ledger_knows() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["state"], &status["role"]["token"]), (200, &"leading".into(), &4_294_967_301_i64.into()));
    assert_eq!(status["queue"][2]["predecessor"], status["queue"][1]["candidate"]);
    assert_eq!(status["members"][1]["node"], "host-b");
    assert_eq!(status["drift"], serde_json::json!(["host-b"]));
    assert_eq!(status["unread"], Value::Null);
    let left = status["session"]["lease_remaining_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_status_is_served_while_the_ledger_is_unreachable() {
    let daemon = Daemon::start(Behaviour::Away).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["unread"]), (200, &"nobody answers".into()));
    assert_eq!(status["jobs"][0]["name"], "nightly-backup");
    assert_eq!(status["unknown"], serde_json::json!(["queue", "ends"]), "a leader knows the runs");
    for path in ["/v1/jobs", "/v1/jobs/load"] {
        let (_, jobs) = daemon.get(path).await;
        assert_eq!((&jobs["unread"], &jobs["unknown"]), (&status["unread"], &status["unknown"]), "{path}");
    }
    let (_, jobs) = Daemon::start(Behaviour::Well).await.get("/v1/jobs").await;
    assert_eq!((jobs.get("unread"), jobs.get("unknown")), (None, None));
    let (code, refusal) = daemon.get("/v1/history").await;
    assert_eq!((code, &refusal["error"]), (503, &"the ledger cannot be read: nobody answers".into()));
}

#[tokio::test]
async fn a_follower_that_cannot_read_the_queue_does_not_know_who_leads() {
    for behaviour in [Behaviour::Away, Behaviour::Hung] {
        let daemon = Daemon::start(behaviour).await;
        daemon.status.send_replace(Arc::new(daemon::follower()));
        let (_, status) = daemon.get("/v1/status").await;
        assert_eq!(
            (&status["role"]["leader_node"], &status["role"]["last_leader"]["node"]),
            (&Value::Null, &"host-a".into())
        );
        assert_eq!(status["unknown"], serde_json::json!(["queue", "runs", "ends"]));
    }
    let daemon = Daemon::start(Behaviour::Well).await;
    daemon.status.send_replace(Arc::new(daemon::follower()));
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!((&status["role"]["leader_node"], status.get("unknown")), (&"host-a".into(), None));
}

/// A leader that has lost its lease in an outage: what the ledger had is as old as its last question.
#[tokio::test]
async fn what_a_node_knows_of_its_own_runs_counts_more_than_an_old_reading() {
    let daemon = Daemon::start(Behaviour::Away).await;
    let leader = sample::leader();
    let [running] = &leader.runs[..] else { panic!("{:?}", leader.runs) };
    let begun = RunStatus { run: RunId::scheduled(sample::job("other"), running.since), ..running.clone() };
    let mut led = leader.clone();
    led.jobs[0].error = Some("its mark is ahead".to_owned());
    let mut status = daemon::follower();
    status.node = leader.node.clone();
    status.put_runs(&[RunStatus { ended: Some(Outcome::Killed), ..running.clone() }, begun.clone()]);
    daemon.led.send_replace(Some(Arc::new(led)));
    daemon.status.send_replace(Arc::new(status));
    let (_, after) = daemon.get("/v1/status").await;
    let runs: Vec<_> = after["runs"].as_array().unwrap().iter().map(|run| (&run["run"], run.get("ended"))).collect();
    let killed = serde_json::json!("killed");
    let expected = [running.run.to_string().into(), begun.run.to_string().into()];
    assert_eq!(runs, [(&expected[0], Some(&killed)), (&expected[1], None)], "{after}");
    assert_eq!(after["jobs"][0]["error"], "its mark is ahead", "{after}");
    assert_eq!((after["unread"].is_string(), &after["read_at"]), (true, &leader.at.to_string().into()), "{after}");
}

#[tokio::test]
async fn a_node_whose_loop_stands_still_is_not_shown_as_ready() {
    let daemon = Daemon::start(Behaviour::Well).await;
    daemon.turns.send_replace(Uptime::ZERO);
    let (_, status) = daemon.get("/v1/status").await;
    assert_eq!(status["ready"], false);
    assert!(status["awaiting"].as_str().unwrap().starts_with("the daemon's loop, whose last turn was "), "{status}");
}

#[tokio::test]
async fn while_the_ledger_is_unreachable_the_history_is_that_of_the_archive() {
    let (directory, end) = (tempfile::tempdir().unwrap(), success(record("load", 60, "s")));
    let archive = || {
        Archive::start(directory.path(), cronkeeper_core::term::NodeName::new("n"), HistoryRetention::Unlimited)
            .unwrap()
    };
    let written = archive();
    written.put(HistoryRecord::Run(end.clone()));
    written.close(true);
    let daemon = Daemon::start_with(Behaviour::Away, archive()).await;
    for path in ["/v1/history", "/v1/jobs/load/history"] {
        let (code, history) = daemon.get(path).await;
        assert_eq!((code, &history["ledger_error"]), (200, &"nobody answers".into()), "{path}");
        assert_eq!(history["records"][0]["run"], end.run.id().to_string());
    }
    let (code, refusal) = daemon.get("/v1/jobs/nothing/history").await;
    assert_eq!((code, &refusal["error"]), (503, &"the ledger cannot be read: nobody answers".into()));
    for path in ["/history", "/jobs/load"] {
        let (head, page) = daemon.get_text(path, "").await;
        assert!(head.starts_with("HTTP/1.1 200") && page.contains("The ledger was not reachable."), "{head} {page}");
    }
    let (head, page) = daemon.get_text(&format!("/runs/{}", end.run.id()), "").await;
    assert!(head.starts_with("HTTP/1.1 200") && page.contains("success"), "{head} {page}");
    assert!(daemon.get_text("/runs/load.20261120T024000Z", "").await.0.starts_with("HTTP/1.1 503"));
    let stale = Daemon::start_with(Behaviour::Stale, archive()).await;
    for daemon in [&daemon, &stale] {
        let (code, output) = daemon.get(&format!("/v1/runs/{}/output", end.run.id())).await;
        assert_eq!((code, &output["state"]), (200, &"end".into()), "{output}");
    }

    let daemon = Daemon::start_with(Behaviour::Well, archive()).await;
    let (_, history) = daemon.get("/v1/history").await;
    assert_eq!((history["records"].as_array().unwrap().len(), &history["ledger_error"]), (4, &Value::Null));
}

#[tokio::test]
async fn a_ledger_that_gives_no_answer_is_not_waited_for_long() {
    let daemon = Daemon::start(Behaviour::Hung).await;
    let (code, status) = daemon.get("/v1/status").await;
    assert_eq!((code, &status["unread"]), (200, &"no answer within 3 s".into()));
}

#[tokio::test]
async fn many_clients_share_one_read() {
    let daemon = Daemon::start(Behaviour::Well).await;
    futures_util::future::join_all((0..10).map(|_| daemon.get("/v1/status"))).await;
    // Not exactly one: on a loaded machine, ten requests may take longer than an answer stays fresh.
    assert!(daemon.ledger.queues.load(Ordering::Relaxed) < 10);
}

#[tokio::test]
async fn healthz_reports_the_loop_and_readyz_the_node() {
    let daemon = Daemon::start(Behaviour::Well).await;
    assert_eq!(daemon.get("/healthz").await.0, 200);
    assert_eq!(daemon.get("/readyz").await.0, 200);

    daemon.status.send_replace(Arc::new(sample::cut_off()));
    let (code, readiness) = daemon.get("/readyz").await;
    assert_eq!((code, &readiness["awaiting"]), (503, &"ZooKeeper at zk1:2181,zk2:2181".into()));
    assert_eq!(daemon.get("/healthz").await.0, 200);

    daemon.status.send_replace(Arc::new(sample::leader()));
    daemon.turns.send_replace(Uptime::ZERO);
    assert_eq!(daemon.get("/healthz").await.0, 503);
    let (code, readiness) = daemon.get("/readyz").await;
    assert_eq!((code, &readiness["ready"]), (503, &false.into()), "{readiness}");
}

#[tokio::test]
async fn a_history_is_of_one_job_or_of_all_and_limited() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (code, history) = daemon.get("/v1/jobs/load/history?limit=2").await;
    assert_eq!((code, history["records"].as_array().unwrap().len()), (200, 2));
    assert_eq!(history["records"][0]["kind"], "skip");
    assert_eq!(history["records"][0]["first"], "2026-11-20T02:40:00Z");
    assert_eq!(daemon.get("/v1/history").await.1["records"].as_array().unwrap().len(), 3);
    for path in ["/v1/history?limit=0", "/v1/history?limit=1001", "/v1/history?limit=x"] {
        assert_eq!(daemon.get(path).await.0, 400, "{path}");
    }
}

#[tokio::test]
async fn unknown_paths_and_jobs_are_json_errors() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let unknown = daemon.get("/v1/jobs/nothing/history").await;
    assert_eq!(unknown, (404, serde_json::json!({ "error": "there is no job `nothing`" })));
    daemon.status.send_modify(|status| Arc::make_mut(status).members = sample::queue().members);
    let (_, elsewhere) = daemon.get("/v1/jobs/nothing").await;
    let expected = "there is no job `nothing`; the nodes' jobs files differ, see `cronkeeper status`";
    assert_eq!(elsewhere["error"], expected);
    let defined = daemon.get("/v1/jobs/nightly-backup/history").await;
    assert_eq!(defined, (200, serde_json::json!({ "records": [] })));
    for path in ["/v2", "/v1/jobs/..%2f..%2fetc/history", "/v1/jobs//history"] {
        let (code, refusal) = daemon.get(path).await;
        assert!(code == 404 && refusal["error"].is_string(), "{path}: {code} {refusal}");
    }
    let (code, refusal) = daemon.get("/v1/jobs/%ff/history").await;
    assert!(code == 400 && refusal["error"].is_string());
    let (code, refusal) = daemon.send("POST /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
    assert!(code == 405 && refusal["error"].is_string());
}

#[tokio::test]
async fn a_panic_fails_only_its_own_request() {
    let daemon = Daemon::start(Behaviour::Broken).await;
    for _ in 0..2 {
        let (code, refusal) = daemon.get("/v1/status").await;
        assert!(code == 500 && refusal["error"].is_string());
        assert_eq!(daemon.get("/healthz").await.0, 200);
    }
}

#[tokio::test]
async fn an_oversized_or_malformed_request_is_cut_off() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let large = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(daemon.send(large).await.0, 431);
    assert_eq!(daemon.send(vec![0x16, 3, 1, 2, 0, 1, 0, 0]).await.0, 400);
    let endless = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(daemon.send(endless).await.0, 200);
}

#[tokio::test]
async fn slow_clients_on_tcp_do_not_block_the_socket() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (address, _tcp) = daemon.listen().await;
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            // A write may fail: connections beyond the limit are closed at once.
            drop(stream.write_all(b"GET /healthz HTT"));
            stream
        })
        .collect();
    assert_eq!(daemon.get("/healthz").await.0, 200);
    drop(slow);
    let answered = async {
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        // The connections are free again once the listener has noticed that the clients closed them.
        while exchange(move || TcpStream::connect(address), request).await.0 != 200 {}
    };
    timeout(Duration::from_secs(60), answered).await.unwrap();
}

#[tokio::test]
async fn a_command_reads_what_the_daemon_writes() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let directory = daemon.directory.path().to_owned();
    let answers = spawn_blocking(move || {
        let client = Client::new(SocketSearch::new(Some(&directory), None)).unwrap();
        (client.get::<Status>("/v1/status"), client.get::<Value>("/v1/jobs/nothing/history"))
    });
    let (status, history) = answers.await.unwrap();
    let (status, history) = (status.unwrap(), history.unwrap_err());
    assert_eq!((status.queue.len(), status.drift.len()), (3, 1));
    assert_eq!((history.to_string().as_str(), history.is_unreachable()), ("there is no job `nothing`", false));
}

#[test]
fn the_error_for_a_missing_daemon_names_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::new(SocketSearch::new(Some(directory.path()), None)).unwrap();
    let error = client.get::<Status>("/v1/status").unwrap_err();
    assert!(matches!(error, AskError::NoDaemon(_)));
    assert!(error.is_unreachable());
    let socket = directory.path().join(NAME);
    assert!(error.to_string().contains(&socket.display().to_string()), "{error}");
}
