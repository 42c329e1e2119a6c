//! How an attempt ended, from what the warden saw and why the attempt was told to stop.

use std::time::Duration;

use rustix::io::Errno;

use super::active_run::{ActiveRun, Process, StopCause};
use crate::clock::{Now, earlier};
use crate::process::{EndedBy, Ending, Exit, Step};
use crate::run::{Outcome, Reason, RunEnd, millis};

/// Its number.
const SIGKILL: i32 = 9;

/// Before the first new try of a start that failed for lack of resources.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Between two tries at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The tail kept of a successful run, in bytes; the warden hands on 4 KiB.
const TAIL_OF_SUCCESS: usize = 512;

/// The end of an attempt.
pub(super) struct Verdict {
    pub end: RunEnd,
    /// The attempt ended because the lease did.
    pub is_by_lease: bool,
}

/// What the end of `process` makes of its run.
pub(super) fn judge(now: Now, run: &ActiveRun, process: &Process, ending: &Ending) -> Verdict {
    // The warden may have seen it dead before it read the order to kill it.
    let was_killed_here = process.is_killed_here && matches!(ending.exit, Exit::Signal { signal: SIGKILL, .. });
    let ended_by = ending.ended_by.or(was_killed_here.then_some(EndedBy::Order));
    // SIGKILL gives no exit code: what has one ended by itself, whatever was about to end it.
    let by_sigkill = ended_by == Some(EndedBy::Deadline) || process.stopped == Some(StopCause::Lease);
    let ended_by = ended_by.filter(|_| !(by_sigkill && matches!(ending.exit, Exit::Code(_))));
    let is_by_lease = ended_by == Some(EndedBy::Deadline)
        || (ended_by == Some(EndedBy::Order) && process.stopped == Some(StopCause::Lease));
    let success = run.job().map(|job| &job.success_exit_codes);
    let is_success = |code: i32| success.map_or(code == 0, |codes| codes.contains(&code));
    let (outcome, reason) = match (ended_by, process.stopped) {
        (Some(EndedBy::Deadline), _) | (Some(EndedBy::Order), Some(StopCause::Lease)) => {
            (Outcome::Interrupted, Some(Reason::Lease))
        }
        (Some(EndedBy::Order), Some(StopCause::Timeout)) => (Outcome::Timeout, None),
        (Some(EndedBy::Order), Some(StopCause::Killed(reason))) => (Outcome::Killed, Some(reason)),
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
    let tail = if outcome == Outcome::Success { last_bytes(&ending.tail, TAIL_OF_SUCCESS) } else { &ending.tail };
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
    };
    Verdict { end, is_by_lease }
}

/// Before a start that failed for lack of resources is tried again: doubled each time, so that a host without them is not asked all the
/// time.
pub(super) fn pause_after(unstarted: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(2u32.saturating_pow(unstarted.saturating_sub(1))).min(LONGEST_PAUSE)
}

/// True where the job is not to blame: any other would have failed here too.
pub(super) fn is_for_lack_of_resources(errno: i32) -> bool {
    is_any(errno, &[Errno::NOMEM, Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::IO])
}

pub(super) fn reason_of(step: Step, errno: i32) -> Option<Reason> {
    match step {
        Step::Directory => Some(Reason::NoDirectory),
        Step::User => Some(Reason::NoUser),
        Step::Exec if is_any(errno, &[Errno::NOENT]) => Some(Reason::NotFound),
        _ if is_any(errno, &[Errno::NOMEM, Errno::AGAIN]) => Some(Reason::NoMemory),
        Step::Exec => Some(Reason::NotExecutable),
        // The log says which step failed, and how.
        Step::Fork | Step::Prepare | Step::Limits => None,
    }
}

/// Compared as numbers: what is no error number at all, as where the system gave none, is none of these.
fn is_any(errno: i32, of: &[Errno]) -> bool {
    of.iter().any(|one| one.raw_os_error() == errno)
}

/// The last `limit` bytes of a text, or a few less so as not to break a character.
fn last_bytes(text: &str, limit: usize) -> &str {
    let mut start = text.len().saturating_sub(limit);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
