//! Runs that were begun and never had a process: they go back to be started, and only their misfire window ends that.
//!
//! ```text
//!   begun ─ no lease, too late, drain, no means ─► unstarted ─ whoever leads ─► attempt + 1
//!                                                      └─ its window is over ─► skip record `missed`
//! ```
//!
//! That no process was started is known to the node that begun it, or proven by its next process: what is noted in no journal was
//! handed to no warden. Where nobody can prove it the run counts as interrupted, by the rule of its job. An attempt that never had a
//! process is no failure, no interruption and no retry; a run of which an earlier attempt had one is begun again without a limit.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::engine::context::Context;
use crate::engine::misfire::{DEFAULT_WINDOW, LATE, is_in_window, is_too_old};
use crate::job::{Job, Misfire};
use crate::run::RunRecord;

/// A change is answered within a session, or the session ends. A begin that was accepted longer after its decision was refused
/// meanwhile and asked for again, for hours where an operator has to mend what refuses it.
const PROMPT: Duration = Duration::from_secs(60);

/// Whether a run that never had a process may still be started.
pub(super) enum Window {
    /// It may.
    Open,
    /// It is too late.
    Over,
    /// Not here: its job is not defined in this node's file. It may be in another's; so long it waits for that.
    UndefinedUntil(Timestamp),
}

/// Whether a run that never had a process may still be started.
pub(super) fn of(cx: &Context, run: &RunRecord) -> Window {
    let Some(job) = cx.job(&run.job) else {
        let until = later(run.ready(), DEFAULT_WINDOW);
        return if until <= cx.due { Window::Over } else { Window::UndefinedUntil(until) };
    };
    let is_over = if run.trigger.is_some() || job.upstreams().is_some() {
        is_too_old(job, cx.root_of(job), run.ready(), cx.due)
    } else {
        is_occurrence_over(cx, job, run)
    };
    if is_over { Window::Over } else { Window::Open }
}

/// True where the ledger accepted its begin so long after the decision that its misfire window is over.
pub(super) fn is_accepted_too_late(cx: &Context, run: &RunRecord) -> bool {
    let is_prompt = run.begun_at >= earlier(cx.now.wall, PROMPT);
    !is_prompt && !run.has_past() && matches!(of(cx, run), Window::Over)
}

/// As for an occurrence that nobody has decided on yet. One that waited for other runs counts from when it could start.
fn is_occurrence_over(cx: &Context, job: &Job, run: &RunRecord) -> bool {
    let now = if run.ready_at.is_some() { cx.due } else { cx.due_for(job) };
    let is_late = run.ready() < earlier(now, LATE);
    is_late && (job.misfire == Misfire::Skip || !is_in_window(job, run.ready(), now))
}
