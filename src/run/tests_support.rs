//! Sample records for tests of other modules.

use super::*;

/// The first attempt of `job`'s run at `second`, owned by `session` of node `n`.
pub(crate) fn record(job: &str, second: i64, session: &str) -> RunRecord {
    let at = Timestamp::from_second(second).unwrap();
    RunRecord {
        v: 1,
        job: JobName::parse(job).unwrap(),
        scheduled_at: at,
        trigger: None,
        parameters: Parameters::default(),
        state: RunState::Running,
        owner: Owner { node: NodeName::new("n"), session: SessionId(session.to_owned()) },
        token: FencingToken(1),
        attempt: 1,
        nonce: Nonce(format!("1-{job}-{second}")),
        begun_at: at,
        on_loss: OnLoss::Interrupt,
        keep_until: None,
        ready_at: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        kill: None,
    }
}

/// A success of `run`, one second after its scheduled time.
pub(crate) fn success(run: RunRecord) -> RunEnd {
    let ended_at = run.scheduled_at + jiff::SignedDuration::from_secs(1);
    RunEnd {
        v: 1,
        run,
        outcome: Outcome::Success,
        reason: None,
        exit_code: Some(0),
        signal: None,
        ended_at,
        duration_ms: Some(1000),
        leftovers: 0,
        tail: String::new(),
        dropped_bytes: 0,
        detail: None,
    }
}

/// One missed occurrence of `job` at `second`.
pub(crate) fn skip(job: &str, second: i64) -> Skip {
    let at = Timestamp::from_second(second).unwrap();
    Skip {
        v: 1,
        job: JobName::parse(job).unwrap(),
        reason: SkipReason::Missed,
        first: at,
        last: at,
        count: 1,
        trigger: None,
        token: FencingToken(1),
        node: NodeName::new("n"),
        decided_at: at,
    }
}
