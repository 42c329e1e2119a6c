//! The misfire window of runs that were begun and never had a process.
//!
//! Such runs are released to be started again, until their misfire window is over.
//!
//! ```text
//!   begun ─ no lease, too late, drain, no means ─► unstarted ─ any leader ─► attempt + 1
//!                                                      └─ its window is over ─► skip record `missed`
//! ```
//!
//! The node that began the attempt knows that it started no process, or its next process proves it: an attempt that no
//! journal records was not passed to a warden. If neither can prove it, the run counts as interrupted, by the rule of
//! its job. An attempt that never had a process is not a failure, an interruption or a retry. A run whose earlier
//! attempt had a process is begun again without limit.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::engine::context::Context;
use crate::engine::misfire::{DEFAULT_WINDOW, STAMP, is_too_old, missed_from, too_old_from};
use crate::job::Job;
use crate::run::{RunRecord, RunState};

/// A begin that is accepted later than this was refused meanwhile. It is late even if its job sets no window.
///
/// A commit is answered within a session, or the session ends. A refused begin is repeated until an operator has fixed
/// the reason for the refusal, which can take hours, and a solo node's until its disk has room.
const PROMPT: Duration = Duration::from_secs(60);

/// State of the misfire window of a run that never had a process.
pub(super) enum Window {
    /// The run may still be started.
    Open,
    /// It is too late to start the run.
    Over,
    /// This node's file does not define the job. The run waits until this instant for a leader whose file does.
    UndefinedUntil(Timestamp),
}

/// State of the misfire window of a run that never had a process.
pub(super) fn of(cx: &Context, run: &RunRecord) -> Window {
    match cx.job(&run.job) {
        Some(job) if over_from(cx, job, run) <= cx.due => Window::Over,
        Some(_) => Window::Open,
        None => {
            let until = later(run.ready(), DEFAULT_WINDOW);
            if until <= cx.due { Window::Over } else { Window::UndefinedUntil(until) }
        }
    }
}

/// The instant from which it is too late to start the run. What waits for a node is counted from when it began to.
pub(super) fn over_from(cx: &Context, job: &Job, run: &RunRecord) -> Timestamp {
    let waits_since = run.no_node_since.filter(|_| run.state == RunState::Queued);
    if waits_since.is_some() || run.trigger.is_some() || job.upstreams().is_some() {
        return too_old_from(job, cx.root_of(job), waits_since.unwrap_or_else(|| since(run)));
    }
    // The same rule as for an occurrence that nobody has decided on yet. For a run that waited for others, the window begins
    // when it could start.
    later(missed_from(job, run.ready()), delay_of(job, run))
}

/// True if the ledger accepted the run's begin so late that the misfire window is over.
///
/// Only if [`of`] agrees: otherwise the run would be begun again at once, and found too late again.
pub(super) fn is_accepted_too_late(cx: &Context, run: &RunRecord) -> bool {
    is_too_late(cx, run, run.begun_at >= earlier(cx.now.wall, PROMPT))
}

/// True if an attempt that was placed, and not accepted, must not be started any more: it is past the job's own window, or
/// over a minute late and past any.
pub(super) fn is_too_late_to_accept(cx: &Context, run: &RunRecord) -> bool {
    let delay = cx.job(&run.job).map_or(Duration::ZERO, |job| delay_of(job, run));
    is_too_late(cx, run, later(run.ready(), delay) >= earlier(cx.due, PROMPT))
}

/// True if a run that never had a process is past its window. While it is prompt, only the job's own window counts.
fn is_too_late(cx: &Context, run: &RunRecord, is_prompt: bool) -> bool {
    let is_over_own = cx.job(&run.job).is_some_and(|job| is_over_own_window(cx, job, run));
    (is_over_own || !is_prompt) && !run.has_past() && matches!(of(cx, run), Window::Over)
}

/// True if the job sets a window, and the run is past it.
fn is_over_own_window(cx: &Context, job: &Job, run: &RunRecord) -> bool {
    job.misfire_window.is_some() && is_too_old(job, cx.root_of(job), later(since(run), delay_of(job, run)), cx.due)
}

/// From when the window counts, but for what an occurrence is delayed by.
fn since(run: &RunRecord) -> Timestamp {
    match run.trigger {
        Some(_) if run.ready_at.is_none() => later(run.ready(), STAMP),
        _ => run.ready(),
    }
}

/// By how much its time is later than what its record says: an occurrence starts later by its job's splay.
fn delay_of(job: &Job, run: &RunRecord) -> Duration {
    let is_occurrence = run.trigger.is_none() && job.upstreams().is_none() && run.ready_at.is_none();
    if is_occurrence { job.splay.delay() } else { Duration::ZERO }
}
