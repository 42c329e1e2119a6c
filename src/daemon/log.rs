//! Log lines of the daemon: which event, with which fields, stands for what happened to election, engine and jobs file.
//!
//! Core's `log_event` has their levels and sentences.

mod alarm;
mod hook;
mod jobs;
mod names;
mod others;
mod outage;
mod placing;
mod runs;
mod standing;

use std::time::Duration;

use jiff::SignedDuration;
use tracing::field::display;
use tracing::{debug, info, trace};

pub(super) use self::jobs::{loaded, not_copied, rejected, warnings};
pub(super) use self::outage::Outage;
pub(super) use self::standing::Leaderless;
use super::drift::DriftNews;
use super::view::NodeNews;
use crate::status::Status;
use crate::telemetry::OUTPUT;
use cronkeeper_core::election::{BLOCKED, Event as Election, TransferError, Worth};
use cronkeeper_core::engine::Report;
use cronkeeper_core::event_loop::{Tree, TreeKind};
use cronkeeper_core::log;
use cronkeeper_core::log_event::{self, TARGET};
use cronkeeper_core::process::Stream;
use cronkeeper_core::run::millis;
use cronkeeper_core::term::{NodeName, Term, TermEnd};

/// Logs an event of the election, except beginnings and ends of terms, and [outages](Outage).
///
/// [`report`] logs terms, because only the engine knows what followed from them.
pub(super) fn election(fact: &Election) {
    match fact {
        Election::Session { id, timeout } => {
            debug!(target: TARGET, session = %id, timeout_ms = millis(*timeout), "session established");
        }
        Election::Examined(Worth { service, durability, may_rewind: may_rewind @ true }) => {
            log!(WARN COORDINATION_EXAMINED, service, durability, may_rewind);
        }
        Election::Examined(Worth { service, durability, may_rewind: may_rewind @ false }) => {
            log!(INFO COORDINATION_EXAMINED, service, durability, may_rewind);
        }
        Election::Joined { candidate } => log!(ELECTION_JOINED, %candidate),
        Election::Following { candidate, predecessor, predecessor_node, leader_node } => log!(
            ELECTION_FOLLOWING,
            %candidate,
            %predecessor,
            predecessor_node = predecessor_node.as_ref().map(display),
            leader_node = leader_node.as_ref().map(display),
        ),
        Election::Observing { leader_node } => {
            log!(ELECTION_OBSERVING, leader_node = leader_node.as_ref().map(display));
        }
        Election::Suspended { session, error } => {
            log!(COORDINATION_SUSPENDED, %session, error = error.as_deref());
        }
        Election::Resumed { session } => log!(COORDINATION_RESUMED, %session),
        Election::Expired { session } => log!(COORDINATION_EXPIRED, %session),
        Election::Stalled(Some(error)) => log!(COORDINATION_STALLED, error),
        Election::Stalled(None) => log!(COORDINATION_RECOVERED),
        Election::Damaged { new, .. } => new.iter().for_each(|damage| damaged(damage)),
        Election::Failed(failure) => log!(COORDINATION_FAILED, error = %failure),
        Election::Withdrawn => debug!(target: TARGET, "the node left the queue"),
        Election::Time(time) => trace!(target: TARGET, ?time, "read the service's clock"),
        Election::Unreachable { .. }
        | Election::Wanted(_)
        | Election::First
        | Election::Elected { .. }
        | Election::Over { .. }
        | Election::Lease { .. }
        | Election::Stopped(_)
        | Election::Members(_)
        | Election::Places(_)
        | Election::NotTransferred { .. }
        | Election::Left => {}
    }
}

/// `damage` is `path: what is wrong with it`.
fn damaged(damage: &str) {
    let path = path_of(damage);
    // All other damage is passed over. This stops the whole cluster.
    if damage[path.len()..].trim_start_matches(": ").starts_with(BLOCKED) {
        log!(ERROR COORDINATION_DAMAGED, path, "{damage}");
    } else {
        log!(WARN COORDINATION_DAMAGED, path, "ignoring {damage}");
    }
}

fn path_of(damage: &str) -> &str {
    damage.split_once(": ").map_or(damage, |(path, _)| path)
}

/// Logs a report of the engine.
pub(super) fn report(report: &Report) {
    match report {
        Report::Elected { term, took } => leads(term, *took, None),
        Report::TermOver { token, why: why @ TermEnd::Resigned } => {
            log!(LEADER_RESIGNED, token = token.0, reason = why.as_str());
        }
        Report::TermOver { token, why } => log!(LEADER_LOST, token = token.0, reason = why.as_str()),
        Report::GivingUp { to, why } => {
            log!(LEADER_HANDING_OVER, to = to.as_ref().map(display), reason = why.as_str());
        }
        // Nothing was to be done.
        Report::NotTransferred { why: TransferError::Leads, .. } => {}
        Report::NotTransferred { to, why } => log!(LEADER_HANDOVER_FAILED, %to, reason = %why),
        Report::TakeoverDone { token, settled, cut_off, missed, took } => {
            log!(TAKEOVER_DONE, token = token.0, settled, cut_off, missed, took_ms = millis(*took));
        }
        Report::ForgottenNode { node: other } => log!(NODE_FORGOTTEN, %other),
        Report::Draining { runs, first, timeout } => {
            log!(NODE_DRAINING, runs, waits_for = names::listed(first, *runs), timeout_ms = millis(*timeout));
        }
        Report::Drained { drain, runs, first } => {
            let (by, reason, waits_for) = (&drain.by, drain.reason.as_deref(), names::listed(first, *runs));
            log!(NODE_DRAINED, by, reason, runs, waits_for);
        }
        Report::Undrained { drain } => log!(NODE_UNDRAINED, by = drain.by),
        Report::Unsettled { runs } => log!(NODE_UNSETTLED, runs),
        Report::ClockStepped { by } => log!(CLOCK_STEPPED, by_ms = clamped(by.as_millis())),
        Report::ClockSkewed { by, holds } => skewed(*by, *holds),
        Report::Damaged(damage) => {
            log!(ERROR COORDINATION_DAMAGED, path = path_of(damage), "ignoring a record of the ledger, {damage}");
        }
        Report::Placed { .. }
        | Report::Refused { .. }
        | Report::Moved { .. }
        | Report::Unplaced { .. }
        | Report::Unplaceable { .. }
        | Report::Placeable { .. }
        | Report::Suspect { .. } => placing::news(report),
        Report::Started { .. }
        | Report::Finished(_)
        | Report::Recorded(_)
        | Report::Retrying { .. }
        | Report::Killed { .. }
        | Report::NotStarted { .. }
        | Report::Unstarted { .. }
        | Report::Skipped { .. }
        | Report::Superseded { .. }
        | Report::Rewound { .. }
        | Report::BegunInDoubt { .. }
        | Report::CutOff { .. }
        | Report::Obstructed { .. }
        | Report::IllegalStep { .. } => runs::news(report),
        Report::HookWithoutFile { .. }
        | Report::HookFinished { .. }
        | Report::Alarm(_)
        | Report::LockLost { .. }
        | Report::LockRevokeRequested { .. }
        | Report::LockRefused { .. } => runs::surroundings(report),
        Report::Triggered { .. }
        | Report::Paused { .. }
        | Report::Resumed { .. }
        | Report::Forgotten { .. }
        | Report::Edited { .. }
        | Report::MarkAhead { .. }
        | Report::Recounted { .. }
        | Report::MarkRewound { .. } => jobs::news(report),
    }
}

fn skewed(by: SignedDuration, holds: bool) {
    let by_ms = clamped(by.as_millis());
    match (holds, by.abs() >= SignedDuration::from_secs(1)) {
        (true, _) => log!(ERROR CLOCK_SKEWED, by_ms, "an occurrence waits until that clock is within a minute of it"),
        (false, true) => log!(WARN CLOCK_SKEWED, by_ms),
        (false, false) => log!(INFO CLOCK_SKEWED, by_ms),
    }
}

fn clamped(ms: i128) -> i64 {
    i64::try_from(ms).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
}

/// Logs that this node leads. `after`: the node before it, if it knows that.
pub(super) fn leads(term: &Term, took: Duration, after: Option<&NodeName>) {
    let (candidate, token, took_ms) = (&term.candidate, term.token.0, millis(took));
    log!(LEADER_ELECTED, %candidate, token, took_ms, after = after.map(display));
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
    log!(NODE_STATE, state = text);
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
