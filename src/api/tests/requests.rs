//! Tests of operators' requests: recorded in the ledger, passed to the loop, or refused.

use std::net::TcpStream;

use super::daemon::{Behaviour, Daemon, exchange, post, published};
use crate::api::*;
use crate::status::Role;
use cronkeeper_core::election::TransferError;
use cronkeeper_core::term::NodeName;

const TRIGGER: &str = r#"{"uuid":"6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d"}"#;

#[tokio::test]
async fn a_request_is_written_with_the_callers_name() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let uid = nix::unistd::geteuid();
    let user = nix::unistd::User::from_uid(uid).unwrap().map(|user| format!(" ({})", user.name)).unwrap_or_default();
    let by = format!("by uid {uid}{user} on host-a");

    let (code, triggered) = daemon.post("/v1/jobs/load/trigger", TRIGGER).await;
    let run = triggered["run"].as_str().unwrap_or_default();
    assert!(code == 200 && run.starts_with("load.") && run.ends_with("Z.m7"), "{code} {triggered}");
    assert_eq!(daemon.requests(), [format!("trigger load {by}")]);
    assert_eq!(daemon.post("/v1/jobs/load/trigger", "").await.0, 200, "a uuid is optional");
    daemon.requests();

    let (code, paused) = daemon.post("/v1/jobs/load/pause", r#"{"reason":"new disks"}"#).await;
    assert_eq!((code, &paused["paused"]["reason"]), (200, &"new disks".into()));
    assert_eq!(daemon.post("/v1/jobs/load/pause", "").await.0, 200);
    let paused = |reason: &str| format!("pause load {by} for {reason}");
    assert_eq!(daemon.requests(), [paused(r#"Some("new disks")"#), paused("None")]);

    let resumed = daemon.post("/v1/jobs/load/resume", "{}").await;
    assert_eq!(resumed, (200, serde_json::json!({ "was_paused": true })));
    let resumed = daemon.post("/v1/jobs/nightly-backup/resume", "{}").await;
    assert_eq!(resumed, (200, serde_json::json!({ "was_paused": false })));
    daemon.requests();

    let (code, recounted) = daemon.post("/v1/jobs/load/recount", "").await;
    assert_eq!((code, &recounted["from"], &recounted["listed"]), (200, &recounted["at"], &2.into()), "{recounted}");
    assert!(recounted["in_flight"][0].as_str().is_some_and(|run| run.starts_with("load.")), "{recounted}");
    let (code, refusal) = daemon.post("/v1/jobs/nightly-backup/recount", "{}").await;
    let error = refusal["error"].as_str().unwrap_or_default();
    assert!(
        code == 409 && error.starts_with("nightly-backup is not recounted: it already counts correctly"),
        "{error}"
    );
    assert_eq!(daemon.requests(), [format!("recount load {by}"), format!("recount nightly-backup {by}")]);

    let run = "load.20261120T024000Z";
    let killing = daemon.post(&format!("/v1/runs/{run}/kill"), r#"{"force":true}"#).await;
    assert_eq!(killing, (200, serde_json::json!({ "state": "running" })));
    assert_eq!(daemon.requests(), [format!("kill {run} {by} by force")]);
    let (code, refusal) = daemon.post("/v1/runs/nightly-backup.20261120T024000Z/kill", "").await;
    let error = "run `nightly-backup.20261120T024000Z` is not in flight";
    assert_eq!((code, &refusal["error"]), (404, &error.into()));
}

#[tokio::test]
async fn a_repeated_trigger_is_answered_with_its_run_even_if_the_job_no_longer_takes_its_parameters() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let trigger = async |uuid: u128| {
        let uuid = uuid::Uuid::from_u128(uuid);
        let body = serde_json::json!({ "uuid": uuid, "environment": { "DAY": "1" } });
        daemon.post("/v1/jobs/load/trigger", &body.to_string()).await
    };
    let known = serde_json::json!({ "run": "load.20261120T024000Z.m7" });
    assert_eq!(trigger(1).await, (200, known));
    let (code, refusal) = trigger(2).await;
    assert!(code == 400 && refusal["error"].as_str().unwrap().contains("does not take the parameter `DAY`"));
    assert_eq!(daemon.requests(), [""; 0], "nothing was written");
}

#[tokio::test]
async fn a_request_for_a_job_that_is_not_there_is_refused_with_the_nearest_name() {
    let daemon = Daemon::start(Behaviour::Well).await;
    for (request, body) in [("trigger", TRIGGER), ("pause", "{}"), ("resume", "{}"), ("recount", "{}")] {
        let (code, refusal) = daemon.post(&format!("/v1/jobs/nightly-backp/{request}"), body).await;
        let error = "there is no job `nightly-backp`, did you mean `nightly-backup`?";
        assert_eq!((code, &refusal["error"]), (404, &error.into()), "{request}");
    }
    assert!(
        daemon.requests().iter().all(|request| request.starts_with("resume")),
        "only a resume reads the ledger first"
    );
}

#[tokio::test]
async fn an_invalid_request_is_refused_and_a_large_one_is_not_read() {
    let daemon = Daemon::start(Behaviour::Well).await;
    for body in ["x", r#"{"uuid":"7"}"#, r#"{"uuid":"6f7ae15e-4e0f-4c5e-9d0f-6f3f0a1b2c3d","at":0}"#] {
        assert_eq!(daemon.post("/v1/jobs/load/trigger", body).await.0, 400, "{body}");
    }
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1_001));
    assert_eq!(daemon.post("/v1/jobs/load/pause", &long).await.0, 400);
    let large = format!(r#"{{"reason":"{}"}}"#, "x".repeat(1 << 20));
    let (code, refused) = daemon.post("/v1/jobs/load/pause", &large).await;
    assert_eq!((code, &refused["error"]), (413, &"the request is longer than 64 KiB".into()));
    assert_eq!(daemon.post("/v1/jobs/load/recount", r#"{"force":true}"#).await.0, 400);
    assert_eq!(daemon.get("/v1/jobs/load/pause").await.0, 405);
    assert!(daemon.requests().is_empty());
}

#[tokio::test]
async fn a_job_is_not_recounted_while_a_node_of_another_version_is_in_the_cluster() {
    let daemon = Daemon::start(Behaviour::Well).await;
    daemon.status.send_modify(|status| {
        let own = Arc::make_mut(status);
        // It has not read the members yet.
        own.members.clear();
        own.version = "0.0.1".into();
    });
    let (code, refusal) = daemon.post("/v1/jobs/load/recount", "").await;
    let error = refusal["error"].as_str().unwrap_or_default();
    assert!(code == 409 && error.contains("runs cronkeeper 0.1.0 and this one 0.0.1,"), "{code} {error}");
    assert!(daemon.requests().is_empty(), "nothing was written");
}

#[tokio::test]
async fn requests_over_tcp_are_refused() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (address, _tcp) = daemon.listen().await;
    let answer = exchange(move || TcpStream::connect(address), post("/v1/jobs/load/trigger", TRIGGER));
    assert_eq!(answer.await.0, 403);
    assert!(daemon.requests().is_empty());
}

#[tokio::test]
async fn a_request_that_the_ledger_does_not_record_fails() {
    for behaviour in [Behaviour::Away, Behaviour::Hung] {
        let daemon = Daemon::start(behaviour).await;
        let (code, refusal) = daemon.post("/v1/jobs/load/trigger", TRIGGER).await;
        assert!(code == 503 && refusal["error"].is_string(), "{code} {refusal}");
    }
}

#[tokio::test]
async fn the_end_of_a_run_can_be_awaited() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (code, answer) = daemon.get("/v1/runs/load.20261120T024000Z.m7").await;
    assert_eq!((code, &answer["state"], &answer["record"]["reason"]), (200, &"ended".into(), &"missed".into()));
    let (code, unknown) = daemon.get("/v1/runs/load.20261120T024000Z").await;
    let error = "the ledger has no record of run `load.20261120T024000Z`";
    assert_eq!((code, &unknown["error"]), (404, &error.into()));
    assert_eq!(daemon.get("/v1/runs/load").await.0, 404);
}

#[tokio::test]
async fn a_run_on_every_node_is_answered_with_its_shares() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let shares = serde_json::json!(["shared.20261120T024000Z@host-a"]);
    let (code, answer) = daemon.get("/v1/runs/shared.20261120T024000Z").await;
    assert_eq!((code, answer), (200, serde_json::json!({ "state": "shared", "shares": shares })));
    let (code, page) = daemon.get("/v1/runs/shared.20261120T024000Z/output").await;
    assert_eq!((code, &page["state"], &page["shares"]), (200, &"end".into(), &shares), "{page}");
    assert_eq!(page["note"], "each node has its own share of it: shared.20261120T024000Z@host-a");
}

#[tokio::test]
async fn a_trigger_names_nodes_on_which_its_job_may_run() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let yaml = b"jobs:\n  load: {schedule: '@daily', command: 'true', run_on: any, run_where: gpu}\n  \
                 nightly-backup: {schedule: '@daily', command: 'true'}\n";
    let set = || crate::config::parse("jobs.yaml", yaml).unwrap().0;
    daemon.jobs.send_replace(Arc::new(set()));
    *daemon.ledger.places.lock().unwrap() = crate::status::sample::places();
    let asked = async |job: &str, on: &[&str]| {
        let body = serde_json::json!({ "on": on }).to_string();
        let (code, answer) = daemon.post(&format!("/v1/jobs/{job}/trigger"), &body).await;
        (code, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(asked("load", &["host-a", "host-a"]).await, (200, String::new()));
    let [requested] = &daemon.requests()[..] else { panic!("one request was written") };
    assert!(requested.starts_with("trigger load on host-a by "), "{requested}");

    let unfit = "job `load` does not run on node `host-b`, only on nodes with gpu; its labels: none";
    let on_leader = "job `nightly-backup` runs on the leader, so no other node can be named; \
                     `cronkeeper exec nightly-backup` runs it on the host where you call it";
    for (job, on, error) in [("load", "host-b", unfit), ("nightly-backup", "host-a", on_leader)] {
        assert_eq!(asked(job, &[on]).await, (400, error.to_owned()));
    }
    let unknown = "the cluster knows no node `host-d`, did you mean `host-a`?";
    assert_eq!(asked("load", &["host-d"]).await, (404, unknown.to_owned()));
    assert_eq!(asked("load", &["no name"]).await.0, 400);
    daemon.status.send_modify(|status| Arc::make_mut(status).backend = "solo".into());
    let solo = "without a service all jobs run on this host: node `host-b` cannot be named, only `host-a`";
    assert_eq!(asked("load", &["host-a", "host-b"]).await, (400, solo.to_owned()));
    assert_eq!(daemon.requests(), [""; 0], "nothing was written");
    assert_eq!(asked("load", &["host-a"]).await.0, 200);
    let [requested] = &daemon.requests()[..] else { panic!("one request was written") };
    assert!(requested.starts_with("trigger load by "), "here it runs anyway: {requested}");
}

#[tokio::test]
async fn a_run_is_made_for_a_whole_second_of_the_past_only() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let asked = async |at: &str| {
        let (code, answer) = daemon.post("/v1/jobs/load/trigger", &format!("{{\"scheduled_at\":\"{at}\"}}")).await;
        (code, answer["error"].as_str().map(str::to_owned))
    };
    assert_eq!(asked("2026-01-01T00:00:00.000Z").await, (200, None));
    for (at, why) in [
        ("2026-01-01T00:00:00.5Z", "has a fraction of a second, which no occurrence has"),
        ("2098-01-01T00:00:00Z", "is in the future"),
        ("1969-12-31T23:59:59.5Z", "is before 1970"),
    ] {
        assert_eq!(asked(at).await, (400, Some(format!("`scheduled_at`: {at} {why}"))), "{at}");
    }
}

#[tokio::test]
async fn a_handover_is_passed_to_the_loop_and_its_result_returned() {
    let mut daemon = Daemon::start(Behaviour::Well).await;
    let mut handovers = std::mem::replace(&mut daemon.handovers, mpsc::unbounded_channel().1);
    let looped = tokio::spawn(async move {
        let mut received = Vec::new();
        for result in [Ok(()), Err(TransferError::NotQueued), Err(TransferError::NotLeading)] {
            let Handover { to, answer } = handovers.recv().await.expect("three requests");
            received.push(to);
            answer.send(result).expect("the caller waits");
        }
        received
    });
    assert_eq!(daemon.post("/v1/handover", "").await, (200, serde_json::json!({ "node": "host-a" })));
    for impossible in [r#"{"to":""}"#, r#"{"to":"../../x"}"#] {
        assert_eq!(daemon.post("/v1/handover", impossible).await.0, 400, "{impossible}");
    }
    let (code, refused) = daemon.post("/v1/handover", r#"{"to":"nowhere"}"#).await;
    assert_eq!((code, &refused["error"]), (404, &"the cluster knows no node `nowhere`".into()));
    let (code, refused) = daemon.post("/v1/handover", r#"{"to":"host-b"}"#).await;
    assert_eq!((code, &refused["error"]), (409, &"no handover to host-b: it is not in the queue".into()));
    let (code, refused) = daemon.post("/v1/handover", "").await;
    assert_eq!((code, &refused["error"]), (409, &"no handover: this node does not lead".into()));
    assert_eq!(looped.await.unwrap(), [None, Some(NodeName::new("host-b")), None]);
    assert_eq!(daemon.post("/v1/handover", "").await.0, 503, "the loop is gone");
}

#[tokio::test]
async fn a_leader_whose_status_is_older_than_its_term_passes_a_handover_to_the_loop_too() {
    let mut daemon = Daemon::start(Behaviour::Well).await;
    let mut handovers = std::mem::replace(&mut daemon.handovers, mpsc::unbounded_channel().1);
    let looped = tokio::spawn(async move {
        let Handover { answer, .. } = handovers.recv().await.expect("a request");
        answer.send(Ok(())).expect("the caller waits");
    });
    let mut earlier = published();
    earlier.role = Role::default();
    daemon.status.send_replace(Arc::new(earlier));
    assert_eq!(daemon.post("/v1/handover", "").await.0, 200);
    looped.await.unwrap();
}

#[tokio::test]
async fn a_node_that_does_not_lead_refuses_a_handover_only_if_the_leader_would() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let mut follower = published();
    (follower.role.token, follower.node) = (None, NodeName::new("host-b"));
    daemon.status.send_replace(Arc::new(follower));
    let (code, refused) = daemon.post("/v1/handover", r#"{"to":"host-b"}"#).await;
    let error = refused["error"].as_str().unwrap_or_default();
    assert!(code == 409 && error.starts_with("no handover to host-b: "), "{code} {error}");
    assert_eq!(daemon.post("/v1/handover", r#"{"to":"host-z"}"#).await.0, 404, "nobody knows that one");

    // host-a is first, and would neither resign nor read the request.
    daemon.ledger.leaderless.store(true, std::sync::atomic::Ordering::Relaxed);
    for body in ["", r#"{"to":"host-a"}"#] {
        let (code, refused) = daemon.post("/v1/handover", body).await;
        let error = "no handover: host-a is first in the queue, but does not lead yet";
        assert_eq!((code, &refused["error"]), (409, &error.into()), "{body}");
    }
    assert_eq!(daemon.requests(), [""; 0]);
}

#[tokio::test]
async fn a_handover_to_the_node_that_leads_is_fulfilled_whichever_node_is_asked() {
    let mut daemon = Daemon::start(Behaviour::Well).await;
    let mut handovers = std::mem::replace(&mut daemon.handovers, mpsc::unbounded_channel().1);
    // Only the leader's own loop knows that it leads, and a follower's is not asked.
    let looped = tokio::spawn(async move {
        let Handover { answer, .. } = handovers.recv().await.expect("a request");
        answer.send(Err(TransferError::Leads)).expect("the caller waits");
        handovers.recv().await.map(|Handover { to, .. }| to)
    });
    let mut follower = published();
    (follower.role.token, follower.node) = (None, NodeName::new("host-b"));
    for status in [published(), follower] {
        daemon.status.send_replace(Arc::new(status));
        let answer = serde_json::json!({ "node": "host-a", "leader": "host-a" });
        assert_eq!(daemon.post("/v1/handover", r#"{"to":"host-a"}"#).await, (200, answer));
    }
    drop(daemon);
    assert_eq!(looped.await.unwrap(), None);
}

#[tokio::test]
async fn a_node_is_drained_with_who_asked_and_a_mistyped_one_is_refused() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (code, refused) = daemon.post("/v1/nodes/host-c/drain", "").await;
    let error = "the cluster knows no node `host-c`, did you mean `host-a`?";
    assert_eq!((code, &refused["error"]), (404, &error.into()));
    // The queue of these tests never changes, so only a member that is not in it is out of it at once.
    let (code, undrained) = daemon.post("/v1/nodes/host-a/undrain", "").await;
    assert_eq!((code, undrained), (200, serde_json::json!({ "node": "host-a" })));
}

#[tokio::test]
async fn a_node_that_is_gone_is_forgotten_and_one_that_is_alive_or_unknown_is_not() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (code, refused) = daemon.post("/v1/nodes/host-a/forget", "").await;
    let error = "host-a is alive, and would come back at once: stop its daemon first; if its daemon is dead, its session ends \
                 within the session timeout";
    assert_eq!((code, &refused["error"]), (409, &error.into()));
    let (code, refused) = daemon.post("/v1/nodes/nowhere/forget", "").await;
    assert_eq!((code, &refused["error"]), (404, &"the cluster knows no node `nowhere`".into()));
    let (code, forgotten) = daemon.post("/v1/nodes/host-z/forget", "{}").await;
    assert_eq!((code, forgotten), (200, serde_json::json!({ "node": "host-z" })));
}

#[tokio::test]
async fn many_jobs_are_paused_at_once_and_a_selection_that_says_nothing_is_refused() {
    let daemon = Daemon::start(Behaviour::Well).await;
    for nothing in ["{}", r#"{"select":{}}"#, r#"{"select":{"all":true,"jobs":["a"]}}"#] {
        assert_eq!(daemon.post("/v1/pause", nothing).await.0, 400, "{nothing}");
    }
    let (code, refused) = daemon.post("/v1/pause", r#"{"select":{"jobs":["none-*"]}}"#).await;
    assert_eq!((code, &refused["error"]), (404, &"no job matches".into()));
    let (code, resumed) = daemon.post("/v1/resume", r#"{"select":{"all":true}}"#).await;
    assert_eq!((code, resumed), (200, serde_json::json!({ "jobs": [] })));
}
