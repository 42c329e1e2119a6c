//! Sample records and changes for tests of the ports.

use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::Change;
use cronkeeper_core::run::{
    JobRecord, Nonce, OnLoss, Outcome, Owner, RunEnd, RunId, RunRecord, Skip, SkipReason, Version,
};
use cronkeeper_core::term::{FencingToken, NodeName, SessionId};
use jiff::Timestamp;

use super::test_records;

pub fn job(name: &str) -> JobName {
    JobName::parse(name).expect("a good name")
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

pub fn mark(second: i64, nonce: &str) -> JobRecord {
    JobRecord::new(at(second), Nonce(nonce.into()))
}

pub fn first_mark(name: &str, nonce: &str) -> Change {
    Change::Advance { job: job(name), at: None, record: mark(0, nonce), skip: None }
}

pub fn run(name: &str, second: i64, node: &str, session: &SessionId, token: FencingToken) -> RunRecord {
    RunRecord {
        owner: Owner { node: NodeName::new(node), session: session.clone() },
        token,
        nonce: Nonce(format!("{token}-{name}-{second}")),
        on_loss: OnLoss::CutOff,
        ..test_records::record(name, second, &session.0)
    }
}

pub fn skip(name: &str, second: i64, reason: SkipReason, node: &str, token: FencingToken) -> Skip {
    Skip { reason, token, node: NodeName::new(node), ..test_records::skip(name, second) }
}

pub fn run_id(name: &str, second: i64) -> RunId {
    RunId::scheduled(job(name), at(second))
}

pub fn begin(version: i32, run: &RunRecord) -> Change {
    let record = mark(run.scheduled_at.as_second(), &run.nonce.0);
    Change::Begin { at: Version(version), record, run: run.clone() }
}

/// A success of the run.
pub fn success(run: &RunRecord) -> RunEnd {
    RunEnd {
        v: 1,
        run: run.clone(),
        outcome: Outcome::Success,
        reason: None,
        exit_code: Some(0),
        signal: None,
        ended_at: run.begun_at,
        duration_ms: Some(1),
        leftovers: 0,
        tail: String::new(),
        dropped_bytes: 0,
        detail: None,
    }
}

/// The end of a run whose record nobody has changed.
pub fn end_as(run: &RunRecord, outcome: Outcome) -> Change {
    Change::End { at: Version::FIRST, end: RunEnd { outcome, ..success(run) }, as_leader: false }
}

pub fn end(version: i32, run: &RunRecord) -> Change {
    Change::End { at: Version(version), end: success(run), as_leader: false }
}
