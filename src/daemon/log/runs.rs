//! Log lines about runs, their hooks and their locks.

use tracing::field::display;
use tracing::trace;

use super::{alarm, hook};
use cronkeeper_core::clock::instant;
use cronkeeper_core::engine::Report;
use cronkeeper_core::log;
use cronkeeper_core::log_event::TARGET;
use cronkeeper_core::run::{Outcome, Reason, RunEnd, Skip, SkipReason, millis};

/// The level of a line is fixed where it is logged.
macro_rules! finished {
    ($level:ident, $end:ident) => {
        log!(
            $level RUN_FINISHED,
            job = %$end.run.job,
            run = %$end.run.id(),
            attempt = $end.run.attempt,
            outcome = $end.outcome.as_str(),
            reason = $end.reason.map(Reason::as_str),
            detail = $end.detail,
            exit_code = $end.exit_code,
            signal = $end.signal,
            duration_ms = $end.duration_ms,
            leftovers = $end.leftovers,
            dropped_bytes = ($end.dropped_bytes > 0).then_some($end.dropped_bytes),
            by = $end.run.kill.as_ref().map(|kill| kill.by.as_str()),
        )
    };
}
/// Logs what became of a run or an occurrence.
pub(super) fn news(report: &Report) {
    match report {
        Report::Started { run, attempt, token, pid, started_at, lateness } => log!(
            RUN_STARTED,
            job = %run.job(),
            %run,
            scheduled_at = %instant(run.scheduled_at()),
            attempt,
            token = token.0,
            pid,
            started_at = %started_at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"),
            lateness_ms = lateness.map(millis),
        ),
        Report::Finished(end) if end.outcome == Outcome::Success => finished!(INFO, end),
        Report::Finished(end) => finished!(WARN, end),
        Report::Recorded(end) => trace!(target: TARGET, run = %end.run.id(), "the ledger has the end of a run"),
        Report::Retrying { end, delay } => retrying(end, millis(*delay)),
        Report::Killed { run, attempt, reason } => {
            log!(RUN_KILLED, job = %run.job(), %run, attempt, reason = reason.map(Reason::as_str));
        }
        Report::NotStarted { run, attempt, problem } => {
            let (step, path, error) = (problem.step.as_str(), &problem.path, &problem.error);
            log!(RUN_NOT_STARTED, job = %run.job(), %run, attempt, step, path, error, "{problem}");
        }
        Report::Unstarted { run, attempt, reason } => {
            log!(RUN_UNSTARTED, job = %run.job(), %run, attempt, reason = reason.map(Reason::as_str));
        }
        Report::Skipped { skip, first, count } => skipped(skip, *first, *count),
        Report::Superseded { run, outcome } => {
            log!(RUN_SUPERSEDED, job = %run.job(), %run, outcome = outcome.map(Outcome::as_str));
        }
        Report::BegunInDoubt { run, attempt } => log!(RUN_DOUBTFUL, job = %run.job(), %run, attempt),
        Report::CutOff { run, owner, keep_until } => {
            log!(RUN_CUT_OFF, job = %run.job(), %run, %owner, keep_until = keep_until.map(instant).map(display));
        }
        Report::Obstructed { job, run } => log!(RUN_OBSTRUCTED, %job, %run),
        Report::IllegalStep { run, why } => log!(INTERNAL_ERROR, %run, "{why}; run {run} was left as it is"),
        Report::Rewound { run, outcome } => {
            let outcome = outcome.map(Outcome::as_str);
            log!(COORDINATION_REWOUND, job = %run.job(), %run, outcome, "what it had acknowledged about {run}; writing it again");
        }
        _ => {}
    }
}

/// Logs what is new about the locks, hooks and alarms of a run.
pub(super) fn surroundings(report: &Report) {
    match report {
        Report::HookWithoutFile { hook, job, run, problem } => hook::without_file(hook, job, run.as_ref(), problem),
        Report::HookFinished { hook, job, run, how, problem } => {
            hook::finished(hook, job.as_ref(), run.as_ref(), *how, problem.as_ref());
        }
        Report::Alarm(news) => alarm::changed(news),
        Report::LockLost { run, path } => log!(LOCK_LOST, job = %run.job(), %run, path = path.as_str()),
        Report::LockRevokeRequested { run, path } => {
            log!(LOCK_REVOKE_REQUESTED, job = %run.job(), %run, path = path.as_str());
        }
        Report::LockRefused { run, why } => log!(LOCK_REFUSED, job = %run.job(), %run, "{why}"),
        _ => {}
    }
}

fn retrying(end: &RunEnd, delay_ms: u64) {
    log!(
        RUN_RETRYING,
        job = %end.run.job,
        run = %end.run.id(),
        attempt = end.run.attempt,
        delay_ms,
        outcome = end.outcome.as_str(),
        reason = end.reason.map(Reason::as_str),
        detail = end.detail,
        exit_code = end.exit_code,
        signal = end.signal,
        duration_ms = end.duration_ms,
    );
}

fn skipped(skip: &Skip, first: jiff::Timestamp, count: u64) {
    let (job, run, reason) = (&skip.job, skip.id_from(first), skip.reason.as_str());
    let is_one = count == 1;
    let scheduled_at = is_one.then_some(instant(first)).map(display);
    let count = (!is_one).then_some(count);
    let (first, last) = (count.map(|_| display(instant(first))), count.map(|_| display(instant(skip.last))));
    match skip.reason {
        // The operator wanted this, so it is not worth a warning.
        SkipReason::Paused | SkipReason::Drained => {
            log!(INFO RUN_SKIPPED, %job, %run, scheduled_at, reason, count, first, last);
        }
        _ => log!(WARN RUN_SKIPPED, %job, %run, scheduled_at, reason, count, first, last),
    }
}
