//! Log lines of the daemon: one per event of election, engine and jobs file.
//!
//! Levels: `error` when a human must act; `warn` when something did not go as promised; `info` for terms and runs;
//! `debug` for the reasons behind decisions.

mod alarm;
mod hook;
mod jobs;
mod names;
mod others;
mod outage;
mod placing;
mod standing;

use std::time::Duration;

use jiff::SignedDuration;
use tracing::field::display;
use tracing::{debug, error, info, trace, warn};

pub(super) use self::jobs::{loaded, not_copied, rejected, warnings};
pub(super) use self::outage::Outage;
pub(super) use self::standing::Leaderless;
use super::drift::DriftNews;
use super::view::NodeNews;
use crate::status::Status;
use crate::telemetry::OUTPUT;
use cronkeeper_core::clock::instant;
use cronkeeper_core::election::{BLOCKED, Event as Election, TransferError, Worth};
use cronkeeper_core::engine::{END_OF_PAUSE, Report};
use cronkeeper_core::event_loop::{Tree, TreeKind};
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::process::Stream;
use cronkeeper_core::run::{Outcome, RunEnd, SkipReason, millis};
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::{NodeName, Term, TermEnd};

/// Logs an event of the election, except beginnings and ends of terms.
///
/// [`report`] logs those, because only the engine knows what followed from them.
pub(super) fn election(fact: &Election) {
    match fact {
        Election::Session { id, timeout } => {
            debug!(target: TARGET, session = %id, timeout_ms = millis(*timeout), "session established");
        }
        Election::Examined(Worth { service, durability, may_rewind: may_rewind @ true }) => {
            warn!(target: TARGET, event = log_event::COORDINATION_EXAMINED, service, durability, may_rewind, "{service}: {durability}");
        }
        Election::Examined(Worth { service, durability, may_rewind: may_rewind @ false }) => {
            info!(target: TARGET, event = log_event::COORDINATION_EXAMINED, service, durability, may_rewind, "{service}: {durability}");
        }
        Election::Joined { candidate } => info!(target: TARGET, event = log_event::ELECTION_JOINED, %candidate),
        Election::Following { candidate, predecessor, predecessor_node, leader_node } => info!(
            target: TARGET,
            event = log_event::ELECTION_FOLLOWING,
            %candidate,
            %predecessor,
            predecessor_node = predecessor_node.as_ref().map(tracing::field::display),
            leader_node = leader_node.as_ref().map(tracing::field::display),
        ),
        Election::Observing { leader_node } => info!(
            target: TARGET,
            event = log_event::ELECTION_OBSERVING,
            leader_node = leader_node.as_ref().map(tracing::field::display),
        ),
        Election::Suspended { session, error: None } => {
            warn!(target: TARGET, event = log_event::COORDINATION_SUSPENDED, %session);
        }
        Election::Suspended { session, error: Some(error) } => {
            warn!(
                target: TARGET,
                event = log_event::COORDINATION_SUSPENDED,
                %session,
                error,
                "the service does not do what it is asked: {error}",
            );
        }
        Election::Resumed { session } => info!(target: TARGET, event = log_event::COORDINATION_RESUMED, %session),
        Election::Expired { session } => warn!(target: TARGET, event = log_event::COORDINATION_EXPIRED, %session),
        Election::Unreachable { retry, error } => {
            warn!(target: TARGET, event = log_event::COORDINATION_UNREACHABLE, retry_ms = millis(*retry), "{error}");
        }
        Election::Stalled(Some(error)) => {
            warn!(target: TARGET, event = log_event::COORDINATION_STALLED, error, "the node is stalled: {error}");
        }
        Election::Stalled(None) => {
            info!(target: TARGET, event = log_event::COORDINATION_RECOVERED, "the node is no longer stalled");
        }
        Election::Damaged { new, .. } => new.iter().for_each(|damage| damaged(damage)),
        Election::Failed(failure) => {
            error!(target: TARGET, event = log_event::COORDINATION_FAILED, error = %failure, "{failure}");
        }
        Election::Withdrawn => debug!(target: TARGET, "the node left the queue"),
        Election::Time(time) => trace!(target: TARGET, ?time, "read the coordination service's clock"),
        Election::Wanted(_)
        | Election::Elected { .. }
        | Election::Over { .. }
        | Election::Lease { .. }
        | Election::Members(_)
        | Election::Places(_)
        | Election::NotTransferred { .. }
        | Election::Left => {}
    }
}

/// `damage` is `path: what is wrong with it`.
fn damaged(damage: &str) {
    let (path, event) = (path_of(damage), log_event::COORDINATION_DAMAGED);
    // All other damage is passed over. This stops the whole cluster.
    if damage[path.len()..].trim_start_matches(": ").starts_with(BLOCKED) {
        error!(target: TARGET, event, path, "{damage}");
    } else {
        warn!(target: TARGET, event, path, "ignoring damaged path {damage}");
    }
}

fn path_of(damage: &str) -> &str {
    damage.split_once(": ").map_or(damage, |(path, _)| path)
}

/// Logs a report of the engine.
pub(super) fn report(report: &Report) {
    match report {
        Report::Elected { term, took } => leads(term, *took, None),
        Report::TermOver { token, why: TermEnd::Resigned } => {
            info!(target: TARGET, event = log_event::LEADER_RESIGNED, token = token.0, reason = TermEnd::Resigned.as_str());
        }
        Report::TermOver { token, why } => {
            warn!(target: TARGET, event = log_event::LEADER_LOST, token = token.0, reason = why.as_str());
        }
        Report::GivingUp { to, why } => {
            let name = to.as_ref().map_or("the next in line", |to| to.as_str());
            let (to, reason) = (to.as_ref().map(|to| to.as_str()), why.as_str());
            info!(
                target: TARGET,
                event = log_event::LEADER_HANDING_OVER,
                to,
                reason,
                "handing leadership over to {name}: {}",
                why.describe(),
            );
        }
        // Nothing was to be done.
        Report::NotTransferred { why: TransferError::Leads, .. } => {}
        Report::NotTransferred { to, why } => {
            let reason = why.to_string();
            warn!(
                target: TARGET,
                event = log_event::LEADER_HANDOVER_FAILED,
                %to,
                reason,
                "leadership was not handed over to {to}: {why}",
            );
        }
        Report::TakeoverDone { token, settled, cut_off, missed, took } => {
            let (token, took_ms) = (token.0, millis(*took));
            info!(target: TARGET, event = log_event::TAKEOVER_DONE, token, settled, cut_off, missed, took_ms);
        }
        Report::Placed { .. }
        | Report::Refused { .. }
        | Report::Moved { .. }
        | Report::Unplaced { .. }
        | Report::Unplaceable { .. }
        | Report::Placeable { .. }
        | Report::Suspect { .. } => placing::news(report),
        Report::Started { run, attempt, token, pid, started_at, lateness } => info!(
            target: TARGET,
            event = log_event::RUN_STARTED,
            job = %run.job(),
            %run,
            scheduled_at = %instant(run.scheduled_at()),
            attempt,
            token = token.0,
            pid,
            started_at = %started_at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"),
            lateness_ms = lateness.map(millis),
        ),
        Report::Finished(end) => finished(end),
        Report::Recorded(end) => trace!(target: TARGET, run = %end.run.id(), "the ledger has the end of a run"),
        Report::Retrying { end, delay } => warn!(
            target: TARGET,
            event = log_event::RUN_RETRYING,
            job = %end.run.job,
            run = %end.run.id(),
            attempt = end.run.attempt,
            delay_ms = millis(*delay),
            outcome = end.outcome.as_str(),
            reason = end.reason.map(|reason| reason.as_str()),
            detail = end.detail,
            exit_code = end.exit_code,
            signal = end.signal,
            duration_ms = end.duration_ms,
        ),
        Report::Killed { run, attempt, reason } => warn!(
            target: TARGET,
            event = log_event::RUN_KILLED,
            job = %run.job(),
            %run,
            attempt,
            reason = reason.map(|reason| reason.as_str()),
        ),
        Report::NotStarted { run, attempt, problem } => warn!(
            target: TARGET,
            event = log_event::RUN_NOT_STARTED,
            job = %run.job(),
            %run,
            attempt,
            step = problem.step.as_str(),
            path = problem.path,
            error = problem.error,
            "not started: {problem}",
        ),
        Report::Unstarted { run, attempt, reason } => warn!(
            target: TARGET,
            event = log_event::RUN_UNSTARTED,
            job = %run.job(),
            %run,
            attempt,
            reason = reason.map(|reason| reason.as_str()),
        ),
        Report::HookWithoutFile { hook, job, run, problem } => {
            hook::without_file(hook, job, run.as_ref(), problem);
        }
        Report::HookFinished { hook, job, run, how, problem } => {
            hook::finished(hook, job.as_ref(), run.as_ref(), *how, problem.as_ref());
        }
        Report::Alarm(news) => alarm::changed(news),
        Report::Skipped { skip, first, count } => skipped(skip, *first, *count),
        Report::Triggered { run, by, parameters } => {
            let parameters = Some(parameters).filter(|names| !names.is_empty());
            info!(target: TARGET, event = log_event::JOB_TRIGGERED, job = %run.job(), %run, by, parameters);
        }
        Report::Paused { job, pause } => {
            info!(target: TARGET, event = log_event::JOB_PAUSED, %job, by = pause.by, reason = pause.reason);
        }
        Report::Resumed { job, by } => match by.strip_prefix(END_OF_PAUSE) {
            Some(whose) => {
                let event = log_event::JOB_RESUMED;
                info!(target: TARGET, event, %job, by, "resumed: the pause of {whose} is over");
            }
            None => info!(target: TARGET, event = log_event::JOB_RESUMED, %job, by),
        },
        Report::Forgotten { job, records } => info!(target: TARGET, event = log_event::JOB_FORGOTTEN, %job, records),
        Report::ForgottenNode { node: other } => info!(target: TARGET, event = log_event::NODE_FORGOTTEN, %other),
        Report::LockLost { run, path } => {
            warn!(target: TARGET, event = log_event::LOCK_LOST, job = %run.job(), %run, path = path.as_str());
        }
        Report::LockRevokeRequested { run, path } => {
            info!(target: TARGET, event = log_event::LOCK_REVOKE_REQUESTED, job = %run.job(), %run, path = path.as_str());
        }
        Report::LockRefused { run, why } => {
            error!(target: TARGET, event = log_event::LOCK_REFUSED, job = %run.job(), %run, "the run's lock is refused: {why}");
        }
        Report::Superseded { run, outcome } => warn!(
            target: TARGET,
            event = log_event::RUN_SUPERSEDED,
            job = %run.job(),
            %run,
            outcome = outcome.map(|outcome| outcome.as_str()),
        ),
        Report::Rewound { run, outcome } => error!(
            target: TARGET,
            event = log_event::COORDINATION_REWOUND,
            job = %run.job(),
            %run,
            outcome = outcome.map(|outcome| outcome.as_str()),
            "the coordination service has lost what it had acknowledged about run {run}; writing it again",
        ),
        Report::BegunInDoubt { run, attempt } => {
            warn!(target: TARGET, event = log_event::RUN_DOUBTFUL, job = %run.job(), %run, attempt);
        }
        Report::MarkRewound { job, found, mark } => error!(
            target: TARGET,
            event = log_event::COORDINATION_REWOUND,
            %job,
            mark = %instant(*mark),
            found = found.map(|found| tracing::field::display(instant(found))),
            "the coordination service has lost that the occurrences of {job} until {} are decided; writing it again",
            instant(*mark),
        ),
        Report::CutOff { run, owner, keep_until } => warn!(
            target: TARGET,
            event = log_event::RUN_CUT_OFF,
            job = %run.job(),
            %run,
            %owner,
            keep_until = keep_until.map(|until| tracing::field::display(instant(until))),
        ),
        Report::Draining { runs, first, timeout } => {
            let waits_for = names::listed(first, *runs);
            info!(target: TARGET, event = log_event::NODE_DRAINING, runs, waits_for, timeout_ms = millis(*timeout));
        }
        Report::Drained { drain, runs, first } => {
            let (by, reason, waits_for) = (&drain.by, drain.reason.as_deref(), names::listed(first, *runs));
            info!(target: TARGET, event = log_event::NODE_DRAINED, by, reason, runs, waits_for);
        }
        Report::Undrained { drain } => info!(target: TARGET, event = log_event::NODE_UNDRAINED, by = drain.by),
        Report::Unsettled { runs } => warn!(
            target: TARGET,
            event = log_event::NODE_UNSETTLED,
            runs,
            "the node stops before the ledger has recorded the ends of all its runs: the state directory keeps them, \
             and `cronkeeper release` or the next start records them",
        ),
        Report::ClockStepped { by } => {
            let by_ms = by.as_millis();
            warn!(target: TARGET, event = log_event::CLOCK_STEPPED, by_ms = clamped(by_ms), "the system clock was stepped");
        }
        Report::ClockSkewed { by, holds } => skewed(*by, *holds),
        Report::Edited { job, since, until } => {
            let (since, until) = (instant(*since), instant(*until));
            warn!(target: TARGET, event = log_event::JOB_EDITED, %job, %since, %until);
        }
        Report::MarkAhead { job, ahead } => {
            error!(target: TARGET, event = log_event::JOB_MARK_AHEAD, %job, "{ahead}");
        }
        Report::Recounted { job, by, from, listed } => {
            let from = instant(*from);
            info!(
                target: TARGET,
                event = log_event::JOB_RECOUNTED,
                %job,
                by,
                %from,
                listed,
                "{by} had the job recounted: it is counted from {from} on, and {} after that {} not decided on again",
                counted(*listed, "occurrence"),
                if *listed == 1 { "is" } else { "are" },
            );
        }
        Report::Damaged(damage) => {
            let path = path_of(damage);
            let event = log_event::COORDINATION_DAMAGED;
            error!(target: TARGET, event, path, "ignoring a record of the ledger that cannot be read: {damage}");
        }
        Report::Obstructed { job, run } => error!(
            target: TARGET,
            event = log_event::RUN_OBSTRUCTED,
            %job,
            %run,
            "the occurrence was not run: its record in the ledger is taken by something that is not its run",
        ),
        Report::IllegalStep { run, why } => error!(
            target: TARGET,
            event = log_event::INTERNAL_ERROR,
            %run,
            "internal error, please report it: {why}; the run was left as it is",
        ),
    }
}

fn skewed(by: SignedDuration, holds: bool) {
    let by_ms = clamped(by.as_millis());
    match (holds, by.abs() >= SignedDuration::from_secs(1)) {
        (true, _) => error!(
            target: TARGET,
            event = log_event::CLOCK_SKEWED,
            by_ms,
            "this node's clock is ahead of the coordination service's clock: \
             an occurrence waits until that clock is within a minute of it",
        ),
        (false, true) => warn!(
            target: TARGET,
            event = log_event::CLOCK_SKEWED,
            by_ms,
            "this node's clock differs from the coordination service's clock",
        ),
        (false, false) => info!(
            target: TARGET,
            event = log_event::CLOCK_SKEWED,
            by_ms,
            "this node's clock agrees with the coordination service's clock again",
        ),
    }
}

fn clamped(ms: i128) -> i64 {
    i64::try_from(ms).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
}

fn finished(end: &RunEnd) {
    let run = end.run.id();
    macro_rules! line {
        ($level:ident) => {
            $level!(
                target: TARGET,
                event = log_event::RUN_FINISHED,
                job = %end.run.job,
                %run,
                attempt = end.run.attempt,
                outcome = end.outcome.as_str(),
                reason = end.reason.map(|reason| reason.as_str()),
                detail = end.detail,
                exit_code = end.exit_code,
                signal = end.signal,
                duration_ms = end.duration_ms,
                leftovers = end.leftovers,
                dropped_bytes = (end.dropped_bytes > 0).then_some(end.dropped_bytes),
                by = end.run.kill.as_ref().map(|kill| kill.by.as_str()),
            )
        };
    }
    match end.outcome {
        Outcome::Success => line!(info),
        Outcome::Failure | Outcome::Timeout | Outcome::Killed | Outcome::Interrupted | Outcome::Abandoned => {
            line!(warn)
        }
    }
}

fn skipped(skip: &cronkeeper_core::run::Skip, first: jiff::Timestamp, count: u64) {
    let run = skip.id_from(first);
    let reason = skip.reason.as_str();
    let (job, first) = (&skip.job, instant(first));
    let last = instant(skip.last);
    match (skip.reason, count) {
        // The operator wanted this, so it is not worth a warning.
        (SkipReason::Paused | SkipReason::Drained, 1) => {
            info!(target: TARGET, event = log_event::RUN_SKIPPED, %job, %run, scheduled_at = %first, reason)
        }
        (SkipReason::Paused | SkipReason::Drained, _) => {
            info!(target: TARGET, event = log_event::RUN_SKIPPED, %job, %run, reason, count, first = %first, last = %last)
        }
        (_, 1) => warn!(target: TARGET, event = log_event::RUN_SKIPPED, %job, %run, scheduled_at = %first, reason),
        (_, _) => {
            warn!(target: TARGET, event = log_event::RUN_SKIPPED, %job, %run, reason, count, first = %first, last = %last)
        }
    }
}

/// Logs that this node leads. `after`: the node before it, if it knows that.
pub(super) fn leads(term: &Term, took: Duration, after: Option<&NodeName>) {
    info!(
        target: TARGET,
        event = log_event::LEADER_ELECTED,
        candidate = %term.candidate,
        token = term.token.0,
        took_ms = millis(took),
        after = after.map(display),
    );
}

/// Logs what is new about another node.
pub(super) fn other_node(news: &NodeNews) {
    match news {
        NodeNews::Member(news) => others::member(news),
        NodeNews::Drift(DriftNews::Begun(drift)) => others::drift_begun(drift),
        NodeNews::Drift(DriftNews::Ended(drift)) => others::drift_ended(drift),
    }
}

/// Logs the node's state as JSON, because an operator asked for it.
pub(super) fn state(status: &Status) {
    let text = serde_json::to_string(status).unwrap_or_default();
    info!(target: TARGET, event = log_event::NODE_STATE, state = text);
}

/// Logs lines of output. Both streams of a hook are logged as one, named after the hook.
pub(super) fn lines(Tree { job, run, kind, .. }: &Tree, stream: Stream, lines: &[String], continues: bool) {
    let stream = match (kind, stream) {
        (TreeKind::Hook(hook), _) => hook,
        (TreeKind::Attempt(_), Stream::Stdout) => "stdout",
        (TreeKind::Attempt(_), Stream::Stderr) => "stderr",
    };
    for (number, line) in (1..).zip(lines) {
        let (job, run) = (job.as_ref().map(display), run.as_ref().map(display));
        let continues = (continues && number == lines.len()).then_some(true);
        info!(target: OUTPUT, event = log_event::RUN_OUTPUT, job, run, stream, line, continues);
    }
}
