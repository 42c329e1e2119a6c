//! Tests of `GET /metrics` over real sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::daemon::{Behaviour, Daemon};
use crate::status::{NodeState, sample};
use crate::test_records::{record, success};
use cronkeeper_core::engine::Report;
use cronkeeper_core::ledger::Last;
use cronkeeper_core::run::{Outcome, RunEnd, RunId};
use cronkeeper_core::term::FencingToken;

const OPEN_METRICS: &str = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3\r\n";

/// The value of a series.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[tokio::test]
async fn a_scrape_has_the_format_that_its_client_asks_for() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let (head, body) = daemon.get_text("/metrics", OPEN_METRICS).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    let (head, body) = daemon.get_text("/metrics", "").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    assert_eq!((value(&body, "cronkeeper_leader"), value(&body, "cronkeeper_queue_position")), (Some(1.0), Some(1.0)));
    assert_eq!((value(&body, "cronkeeper_members"), value(&body, "cronkeeper_jobs_drift")), (Some(2.0), Some(1.0)));
}

#[tokio::test]
async fn what_the_daemon_counts_is_shown() {
    let mut daemon = Daemon::start(Behaviour::Well).await;
    let run = RunId::scheduled(sample::job("load"), sample::at("2026-11-20T02:59:00Z"));
    for (attempt, lateness) in [(1, Some(Duration::from_millis(20))), (2, None)] {
        let (run, started_at) = (run.clone(), sample::at("2026-11-20T02:59:00.02Z"));
        let started = Report::Started { run, attempt, token: FencingToken(1), pid: 1, started_at, lateness };
        daemon.recorder.reported(&started, &cronkeeper_core::job::JobSet::default());
    }
    daemon.recorder.share();
    let (_, body) = daemon.get_text("/metrics", "").await;
    assert_eq!(
        value(&body, "cronkeeper_run_lateness_seconds_count"),
        Some(1.0),
        "no time was set for a second attempt"
    );
    assert_eq!(value(&body, "cronkeeper_run_lateness_seconds_bucket{le=\"0.01\"}"), Some(0.0));
    assert_eq!(value(&body, "cronkeeper_run_lateness_seconds_bucket{le=\"+Inf\"}"), Some(1.0));
}

#[tokio::test]
async fn a_leader_shows_the_last_successes_that_are_on_record_and_a_follower_none() {
    let daemon = Daemon::start(Behaviour::Well).await;
    let series = "cronkeeper_last_success_timestamp_seconds{job=\"load\"}";
    let end = success(record("load", 60, "0x1"));
    let failed = RunEnd { outcome: Outcome::Failure, ..success(record("load", 120, "0x1")) };
    let last = Last::after(Some(&Last::after(None, &end, end.ended_at)), &failed, failed.ended_at);
    daemon.ledger.lasts.lock().unwrap().insert(sample::job("load"), last);
    for _ in 0..3 {
        let (_, body) = daemon.get_text("/metrics", "").await;
        assert_eq!(value(&body, series), Some(end.ended_at.as_second() as f64), "{body}");
    }
    let reads = daemon.ledger.reads_of_lasts.load(Ordering::Relaxed);

    let mut status = super::daemon::published();
    status.role.token = None;
    status.state = NodeState::Following;
    daemon.status.send_replace(Arc::new(status.clone()));
    let (_, body) = daemon.get_text("/metrics", "").await;
    assert!(value(&body, series).is_none() && value(&body, "cronkeeper_leader") == Some(0.0), "{body}");
    assert_eq!(daemon.ledger.reads_of_lasts.load(Ordering::Relaxed), reads);
}

#[tokio::test]
async fn a_ledger_that_is_away_or_hung_leaves_gaps_but_no_failure() {
    for behaviour in [Behaviour::Away, Behaviour::Hung] {
        let daemon = Daemon::start(behaviour).await;
        let (head, body) = daemon.get_text("/metrics", "").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(value(&body, "cronkeeper_leader"), Some(1.0));
        assert_eq!((value(&body, "cronkeeper_queue_position"), value(&body, "cronkeeper_members")), (None, None));
        assert!(body.contains("# TYPE cronkeeper_queue_position gauge\n"));
    }
}
