//! Further attempts of a run: after a delay (`retries`) or at once (`interrupted: rerun`).
//!
//! ```text
//!   an attempt ends ─ its owner ─► retrying, retry_at ─ any leader ─► attempt + 1
//! ```
//!
//! The ledger holds `retry_at`, so it does not matter which node leads then. `limit` counts attempts that failed or
//! timed out; interrupted attempts do not count. If the job was changed meanwhile, its current definition counts; if it
//! was removed, there is no further attempt, and the run ends as its last attempt did. If the job does not take the
//! run's parameters, the next attempt fails without a process. The first attempt of a run that waited for others, or for
//! locks, is begun here too. If the owner dies before the ledger has `retrying`, the run counts as interrupted.

use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::active_run::ActiveRun;
use super::waiting::keep_until;
use crate::engine::context::Context;
use crate::escape::short;
use crate::job::{Job, Retries};
use crate::run::{BadParameters, Nonce, OnLoss, Outcome, Owner, Placement, Reason, RunEnd, RunId, RunRecord, RunState};
use crate::term::{FencingToken, NodeName};

/// Jitter of a delay, as a fraction of it, so that jobs that failed together are not retried together.
const JITTER: f64 = 0.1;
/// Most characters of what a record says about the reason for an outcome.
pub(super) const LONGEST_DETAIL: usize = 300;

/// Delay after a run's `failures`th failure: `delay`, times `backoff` for each earlier failure, at most `max_delay`.
///
/// The jitter is derived from the run's id and the count, so the delay is the same on every node.
pub(in crate::engine) fn delay(retries: &Retries, run: &RunId, failures: u32) -> Duration {
    let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let longest = retries.max_delay.as_secs_f64();
    // An infinite product is capped too.
    let base = (retries.delay.as_secs_f64() * retries.backoff.powi(exponent)).min(longest);
    Duration::try_from_secs_f64((base * (1.0 + JITTER * spread(run, failures))).min(longest))
        .unwrap_or(retries.max_delay)
}

/// A pseudo-random number from -1 to 1 for this run and count.
fn spread(run: &RunId, failures: u32) -> f64 {
    let hash = Sha256::digest(format!("{run} {failures}"));
    let drawn = hash.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    f64::from(drawn) / f64::from(u32::MAX) * 2.0 - 1.0
}

/// Delay from an attempt's end to the next attempt; `None` if there is no other.
pub(super) fn delay_after(cx: &Context, end: &RunEnd) -> Option<Duration> {
    let retries = &cx.job(&end.run.job)?.retries;
    let failures = end.run.past.failures;
    let may = end.outcome.is_failed() && end.run.kill.is_none();
    (may && failures < retries.limit).then(|| delay(retries, &end.run.id(), failures + 1))
}

/// Who gets the next attempt of a run.
pub(super) struct Attempt {
    pub owner: Owner,
    /// That of the term that decides.
    pub token: FencingToken,
    pub nonce: Nonce,
    /// If it is placed: what its node must know. It must accept it.
    pub placement: Option<Box<Placement>>,
}

/// The record of the next attempt of a run that no node has. `lost`: how its attempt ended, unless that is on record.
pub(super) fn next_attempt(cx: &Context, active: &ActiveRun, lost: &RunEnd, job: &Job, next: Attempt) -> RunRecord {
    let Attempt { owner, token, nonce, placement } = next;
    let record = &active.record;
    let mut past = record.past.clone();
    // An attempt that had no process is not recorded. One that was placed may have had one if a commit is lost.
    let had_none = match record.state {
        RunState::Unstarted => true,
        RunState::Placed => lost.outcome != Outcome::Abandoned,
        _ => false,
    };
    if !had_none {
        past.note(lost);
    }
    let dependents = match record.on {
        // As it was when the run was shared out.
        Some(_) => record.dependents.clone(),
        None => cx.jobs.dependents_of(&job.name).to_vec(),
    };
    let next = RunRecord {
        state: if placement.is_some() { RunState::Placed } else { RunState::Running },
        owner,
        token,
        attempt: record.attempt.saturating_add(1),
        begun_at: cx.now.wall,
        on_loss: OnLoss::of(job),
        keep_until: keep_until(job, cx.root_of(job), record.scheduled_at, cx.due),
        ready_at: if active.is_queued() { Some(cx.now.wall) } else { record.ready_at },
        no_node_since: None,
        retry_at: None,
        past,
        dependents,
        notify: cx.jobs.notices_of_runs(job),
        nonce,
        placement,
        ..record.clone()
    };
    next.in_its_format()
}

/// The end of a run whose `next` attempt must not be started, because the job does not take its parameters. What the
/// job would not take is not kept: it can be anything, of any size.
pub(super) fn end_for_parameters(next: RunRecord, job: &Job, why: &BadParameters) -> RunEnd {
    let (parameters, at) = (next.parameters.fitting(job), next.begun_at);
    let end = RunEnd::unseen(&next.with(parameters), Outcome::Failure, Some(Reason::Parameters), at);
    RunEnd { detail: Some(short(&why.to_string(), LONGEST_DETAIL)), ..end }
}

/// The end of a run whose job is no longer defined: the end of its last attempt, which is `lost` unless another is on
/// record.
pub(super) fn end_without_job(record: &RunRecord, lost: RunEnd) -> RunEnd {
    let mut end = lost;
    if let Some(last) = record.past.end_of(record) {
        (end.outcome, end.reason) = (last.outcome, last.reason);
        (end.exit_code, end.signal) = (last.exit_code, last.signal);
        (end.ended_at, end.duration_ms) = (last.ended_at, last.duration_ms);
    }
    end
}

/// When this node must begin a run again; `None`: at once. A pause for lack of resources binds only the node that
/// lacked them.
pub(super) fn retry_at(record: &RunRecord, node: &NodeName) -> Option<Timestamp> {
    let is_of_another = record.state == RunState::Unstarted && record.owner.node != *node;
    record.retry_at.filter(|_| !is_of_another)
}
