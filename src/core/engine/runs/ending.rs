//! Outcome of an attempt, from its exit status and the reason for its stop.

use std::time::Duration;

use rustix::io::Errno;

use super::active_run::{ActiveRun, Process, StopCause};
use crate::clock::{Now, earlier};
use crate::process::{EndedBy, Ending, Exit, StartStep};
use crate::run::{LONGEST_TAIL_OF_SUCCESS, Outcome, Reason, RunEnd, millis};

const SIGKILL: i32 = 9;

/// Pause before the first retry of a start that failed for lack of resources.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause between two retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The end of an attempt.
pub(super) struct AttemptEnd {
    pub end: RunEnd,
    /// The attempt ended because the lease ended, or because a lock was lost.
    pub is_by_loss: bool,
}

/// The end of an attempt whose `process` has ended.
pub(super) fn judge(now: Now, run: &ActiveRun, process: &Process, ending: &Ending) -> AttemptEnd {
    // The warden may have seen the process dead before it read the kill order.
    let was_killed_here = process.is_killed_here && matches!(ending.exit, Exit::Signal { signal: SIGKILL, .. });
    let ended_by = ending.ended_by.or(was_killed_here.then_some(EndedBy::Order));
    // A process killed by SIGKILL has no exit code: one with an exit code ended by itself, even if it was about to be
    // killed.
    let stopped = process.stopped;
    let lost = stopped.filter(|stopped| matches!(stopped, StopCause::Lease | StopCause::LockLost));
    let by_sigkill = matches!(ended_by, Some(EndedBy::Deadline | EndedBy::TimeLimit)) || lost.is_some();
    let ended_by = ended_by.filter(|_| !(by_sigkill && matches!(ending.exit, Exit::Code(_))));
    let is_by_loss = ended_by == Some(EndedBy::Deadline) || (ended_by == Some(EndedBy::Order) && lost.is_some());
    let success = run.job().map(|job| &job.success_exit_codes);
    let is_success = |code: i32| success.map_or(code == 0, |codes| codes.contains(&code));
    let (outcome, reason) = match (ended_by, stopped) {
        (Some(EndedBy::Deadline), _) | (Some(EndedBy::Order), Some(StopCause::Lease)) => {
            (Outcome::Interrupted, Some(Reason::Lease))
        }
        (Some(EndedBy::Order), Some(StopCause::LockLost)) => (Outcome::Interrupted, Some(Reason::Lock)),
        (Some(EndedBy::Order), Some(StopCause::Timeout)) | (Some(EndedBy::TimeLimit), _) => (Outcome::Timeout, None),
        (Some(EndedBy::Order), Some(StopCause::Killed(reason))) => (Outcome::Killed, Some(reason)),
        (Some(EndedBy::Order), Some(StopCause::Superseded | StopCause::Settled)) => (Outcome::Interrupted, None),
        (Some(EndedBy::Order), _) => (Outcome::Interrupted, Some(Reason::Drain)),
        (None, _) => match ending.exit {
            Exit::Code(code) if is_success(code) => (Outcome::Success, None),
            _ if ending.out_of_memory => (Outcome::Failure, Some(Reason::NoMemory)),
            Exit::Code(_) => (Outcome::Failure, None),
            Exit::Signal { core, .. } => (Outcome::Failure, core.then_some(Reason::CoreDump)),
        },
    };
    let (exit_code, signal) = match ending.exit {
        Exit::Code(code) => (Some(code), None),
        Exit::Signal { signal, .. } => (None, Some(signal)),
    };
    let tail =
        if outcome == Outcome::Success { last_bytes(&ending.tail, LONGEST_TAIL_OF_SUCCESS) } else { &ending.tail };
    let end = RunEnd {
        v: 1,
        run: run.record.clone(),
        outcome,
        reason,
        exit_code,
        signal,
        ended_at: earlier(now.wall, now.up.since(ending.at)),
        duration_ms: process.started.map(|started| millis(ending.at.since(started))),
        leftovers: ending.leftovers,
        tail: tail.to_owned(),
        dropped_bytes: ending.dropped_bytes,
        detail: None,
    };
    AttemptEnd { end, is_by_loss }
}

/// Pause before a start that failed for lack of resources is retried. Doubles each time, so that the retries do not
/// load a host that is already short of them.
pub(super) fn pause_after(unstarted: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2u32.saturating_pow(unstarted.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// True if the job is not to blame: any other job would have failed here too.
///
/// Never for a file that the job is given: its owner or file server can cause any error, such as EAGAIN by a lease on it.
pub(super) fn is_for_lack_of_resources(step: StartStep, errno: i32) -> bool {
    let is_about_file = matches!(step, StartStep::Environment(_) | StartStep::Secret(_));
    !is_about_file && is_any(errno, &[Errno::NOMEM, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::IO])
}

pub(super) fn reason_of(step: StartStep, errno: i32) -> Option<Reason> {
    match step {
        StartStep::Directory => Some(Reason::NoDirectory),
        StartStep::User => Some(Reason::NoUser),
        StartStep::Exec if is_any(errno, &[Errno::NOENT]) => Some(Reason::NotFound),
        StartStep::Interpreter(_) => Some(Reason::NotFound),
        StartStep::Environment(_) => Some(Reason::NoEnvironment),
        StartStep::Secret(_) => Some(Reason::NoSecret),
        _ if is_any(errno, &[Errno::NOMEM, Errno::AGAIN]) => Some(Reason::NoMemory),
        StartStep::Exec => Some(Reason::NotExecutable),
        // The log names the step that failed, and the error.
        StartStep::Fork | StartStep::Prepare | StartStep::Limits => None,
    }
}

/// True if `errno` is one of these. Compared as numbers, because `errno` may not be an error number at all.
fn is_any(errno: i32, of: &[Errno]) -> bool {
    of.iter().any(|one| one.raw_os_error() == errno)
}

/// The last `limit` bytes of a text, or a few less so that no character is split.
fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
