//! What stands in the way of a run, as `overlap` and `concurrency_group` have it: skipped, begun beside others, or waiting for their end.
//!
//! ```text
//!   due ─ mark + running/<run> queued ─► waits ─ whoever leads, once nothing is in its way ─► attempt 1
//! ```
//!
//! A queued run is in the ledger from the write that moved the mark, so a change of leader neither loses it nor begins it twice. It
//! begins when the runs before it are gone from the ledger, the oldest first. `replace` is to wait and to ask those before to
//! end; it asks again under every leader, so the next leader repeats a request that was lost with the last one.
//!
//! A run takes a place in its group from its first attempt until its end is in the ledger, also while it waits for another attempt or is
//! cut off.

use std::time::Duration;

use jiff::Timestamp;

use super::active_run::{ActiveRun, Phase, Release, State};
use super::active_runs::ActiveRuns;
use crate::clock::{earlier, later};
use crate::engine::context::Context;
use crate::job::{Group, Job, JobName, Overlap};
use crate::run::{OnLoss, RunId, RunState};

/// Most runs of one job that wait for others; the next occurrence is skipped then.
const MOST_WAITING: usize = 100;
/// A cut-off run is killed so long before the next of its job begins.
const SECOND: Duration = Duration::from_secs(1);

impl ActiveRuns {
    pub fn runs_of(&self, job: &JobName) -> impl Iterator<Item = &ActiveRun> {
        self.of_job(job).map(|(_, run)| run)
    }

    /// True while a process of the job runs, or may run, anywhere.
    pub fn is_in_flight(&self, job: &JobName) -> bool {
        self.runs_of(job).any(|run| !matches!(run.phase(), Some(Phase::Ended(_))))
    }

    /// True where no other run of the job's group may begin.
    pub fn is_group_full(&self, job: &Job) -> bool {
        let Some(Group { name, limit }) = &job.concurrency_group else { return false };
        self.in_group(name) >= *limit
    }

    /// True where another run of the job may neither begin nor wait.
    pub fn overlaps(&self, job: &Job) -> bool {
        match job.overlap {
            Overlap::Skip => self.is_in_flight(&job.name),
            Overlap::Queue => self.runs_of(&job.name).any(ActiveRun::is_queued),
            // Where the job's runs come faster than its group lets them begin.
            Overlap::Allow | Overlap::Replace => {
                self.runs_of(&job.name).filter(|run| run.is_queued()).nth(MOST_WAITING - 1).is_some()
            }
        }
    }

    /// True where a run of the job that begins now has to wait for others.
    pub fn must_wait(&self, job: &Job) -> bool {
        let has_rivals = match job.overlap {
            Overlap::Queue => self.is_in_flight(&job.name),
            // Also for an end that is not in the ledger yet.
            Overlap::Replace => self.runs_of(&job.name).next().is_some(),
            Overlap::Skip | Overlap::Allow => false,
        };
        has_rivals || self.is_group_full(job)
    }

    /// True while only an answer tells whether a run of the job is in flight: its end is being written, or, where no other may run
    /// beside it, its beginning, or that it has not begun.
    pub fn is_undecidable(&self, cx: &Context, job: &JobName) -> bool {
        let overlap = cx.job(job).map(|job| job.overlap);
        self.runs_of(job).any(|run| match run.phase() {
            Some(
                Phase::Beginning | Phase::Unconfirmed | Phase::Releasing(Release { state: RunState::Unstarted, .. }),
            ) => overlap == Some(Overlap::Skip),
            _ => matches!(run.state(), State::Settling),
        })
    }

    /// The runs of the same job that are in a waiting run's way: all that do not wait, and those that do for longer.
    pub fn runs_before(&self, run: &RunId) -> Vec<RunId> {
        let position = |run: &RunId| (run.scheduled_at(), run.trigger());
        let is_before = |other: &RunId, active: &ActiveRun| !active.is_queued() || position(other) < position(run);
        let others = self.of_job(run.job());
        others
            .filter(|(other, active)| *other != run && is_before(other, active))
            .map(|(other, _)| other.clone())
            .collect()
    }
}

/// How much longer than its own end a cut-off run stands in the way of one that waits for it: a warden elsewhere ends it by its
/// own clock.
pub(super) fn margin(cx: &Context, run: &RunId) -> Duration {
    let waits = |job: &Job| matches!(job.overlap, Overlap::Queue | Overlap::Replace) || job.concurrency_group.is_some();
    let is_awaited = cx.job(run.job()).is_some_and(|job| waits(job));
    if is_awaited { Duration::from_secs(1) } else { Duration::ZERO }
}

/// How long a run may go on while cut off: until the second before whatever may begin beside it. With `after` that is when its
/// `root` is due next; any other job is its own.
pub(in crate::engine) fn keep_until(
    job: &Job,
    root: &Job,
    scheduled_at: Timestamp,
    now: Timestamp,
) -> Option<Timestamp> {
    if OnLoss::of(job) != OnLoss::CutOff || job.overlap == Overlap::Allow {
        return None;
    }
    let delay = root.splay.delay();
    let next = root.next_after(scheduled_at.max(earlier(now, delay)))?;
    Some(earlier(later(next, delay), SECOND))
}
