//! Tests of settling the runs of dead processes, beside other writers and without rights.

use futures_util::FutureExt as _;

use super::*;
use crate::recipes::context::json;
use crate::recipes::tests_support::{ByHand, Right, Server};
use crate::recipes::transaction::tests::{at, name, run};
use crate::test_records::success;
use cronkeeper_core::ledger::Last;
use tokio::sync::mpsc::unbounded_channel;

const LAST: &str = "/cronkeeper/last/backup";

/// Settles a run of a dead process that has succeeded. Returns the outcome before it, if the end was written.
fn settled(server: &Server) -> Option<Option<Outcome>> {
    let record = run("backup", 60, "7-1");
    server.tree().put(&paths::running(&record.id()), json(&record));
    let (successor, mut written) = unbounded_channel();
    let left = Leftover {
        dead: [record.owner.session.clone()].into(),
        ends: vec![success(record.clone())],
        successor: Some(successor),
        ..Leftover::default()
    };
    let context = server.context(ByHand::default());
    end_runs(&context, &left).now_or_never().expect("answered at once").expect("nothing else is wrong");
    let is_ended = server.tree().has(&paths::history(&record.id()));
    assert_eq!(server.tree().has(&paths::running(&record.id())), !is_ended);
    let ended = match written.try_recv().ok()? {
        Event::Ledger(ledger::Event::Ended { before, .. }) => before,
        other => panic!("an end: {other:?}"),
    };
    assert!(is_ended);
    Some(ended)
}

#[test]
fn an_end_moves_the_jobs_record_and_says_what_was_before() {
    let server = Server::default();
    let failed = RunEnd { outcome: Outcome::Failure, ..success(run("backup", 30, "7-0")) };
    server.tree().put(LAST, json(&Last::after(None, &failed, at(31))));
    assert_eq!(settled(&server), Some(Some(Outcome::Failure)));
    let last: Last = serde_json::from_slice(&server.tree().data(LAST).unwrap()).unwrap();
    assert_eq!((last.written.outcome, last.written.before), (Outcome::Success, Some(Outcome::Failure)));
}

#[test]
fn an_end_does_not_wait_for_a_record_that_cannot_be_written() {
    for closed in ["/cronkeeper/last", LAST] {
        let server = Server::default();
        if closed == LAST {
            let before = success(run("backup", 30, "7-0"));
            server.tree().put(LAST, json(&Last::after(None, &before, at(31))));
        }
        server.tree().close(closed, Right::Write);
        assert!(settled(&server).is_some(), "{closed}");
    }
}

#[test]
fn an_end_that_the_history_refuses_is_left_to_the_daemon() {
    let server = Server::default();
    server.tree().put(&paths::job_history(&name("backup")), "");
    server.tree().close(&paths::job_history(&name("backup")), Right::Write);
    assert_eq!(settled(&server), None);
}
