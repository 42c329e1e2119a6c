//! Rules of `overlap` and `concurrency_group`: skip a run, begin it beside others, or queue it.
//!
//! ```text
//!   due ─ mark + running/<run> queued ─► waits ─ any leader, once nothing blocks it ─► attempt 1
//! ```
//!
//! A queued run is in the ledger from the write that moved the mark, so a change of leader neither loses it nor begins
//! it twice. It begins when the runs before it are gone from the ledger, the oldest first. `replace` means to wait and
//! to request that the runs before it end. Every leader repeats that request, so a request that was lost with the last
//! leader does no harm.
//!
//! A run whose job has locks is queued too, and begins once it holds them: see `locking`.
//!
//! A run occupies a position in its group from its first attempt until its end is in the ledger, also while it waits
//! for another attempt or is cut off.

use std::time::Duration;

use jiff::Timestamp;

use super::active_run::{ActiveRun, ActiveRunState, Phase, Release};
use super::active_runs::ActiveRuns;
use crate::clock::{earlier, later, stamp};
use crate::engine::context::Context;
use crate::job::{Group, Job, JobName, Overlap};
use crate::run::{OnLoss, RunId, RunRecord, RunState};

/// Most runs of one job that wait for others; further occurrences are skipped.
pub(super) const MOST_WAITING: usize = 100;
/// A cut-off run is killed this long before its job's next run begins.
const SECOND: Duration = Duration::from_secs(1);

impl ActiveRuns {
    pub fn runs_of(&self, job: &JobName) -> impl Iterator<Item = &ActiveRun> {
        self.of_job(job).map(|(_, run)| run)
    }

    /// The runs of the job that have a process, may have one, or wait.
    pub fn in_flight(&self, job: &JobName) -> impl Iterator<Item = &ActiveRun> {
        self.runs_of(job).filter(|run| run.ended().is_none())
    }

    /// True while a process of the job runs, or may run, anywhere.
    pub fn is_in_flight(&self, job: &JobName) -> bool {
        self.in_flight(job).next().is_some()
    }

    /// True if the run is to be replaced by shares of nodes.
    pub fn is_to_share(&self, run: &RunId) -> bool {
        self.get(run).is_some_and(ActiveRun::is_to_share)
    }

    /// True if no other run of the job's group may begin.
    pub fn is_group_full(&self, job: &Job) -> bool {
        let Some(Group { name, limit }) = &job.concurrency_group else { return false };
        self.in_group(name) >= *limit
    }

    /// True if another run of the job may neither begin nor wait. `is_shared`: its shares decide, each on its node.
    pub fn overlaps(&self, job: &Job, is_shared: bool) -> bool {
        match is_shared {
            true => self.runs_of(&job.name).filter(|run| run.is_to_share()).nth(MOST_WAITING - 1).is_some(),
            false => overlap(job, self.in_flight(&job.name)),
        }
    }

    /// True if a run of the job that begins now has to wait for others.
    ///
    /// `is_placed`: its node takes its locks.
    pub fn must_wait(&self, job: &Job, is_placed: bool) -> bool {
        let has_rivals = match job.overlap {
            Overlap::Queue => self.is_in_flight(&job.name),
            // A run whose end is not in the ledger yet counts too.
            Overlap::Replace => self.runs_of(&job.name).next().is_some(),
            Overlap::Skip | Overlap::Allow => false,
        };
        // With locks every run waits: it is in the ledger before it holds them.
        has_rivals || self.is_group_full(job) || (!job.lock.is_empty() && !is_placed)
    }

    /// True while only the answer to a commit can show if a run of the job is in flight.
    ///
    /// The run's end is being written. With `overlap: skip` also: its begin is being written, or that it has not
    /// started.
    pub fn is_undecidable(&self, cx: &Context, job: &JobName) -> bool {
        let overlap = cx.job(job).map(|job| job.overlap);
        self.runs_of(job).any(|run| match run.phase() {
            Some(
                Phase::Beginning
                | Phase::Accepting(_)
                | Phase::Unconfirmed
                | Phase::Releasing(Release { state: RunState::Unstarted, .. }),
            ) => overlap == Some(Overlap::Skip),
            _ => matches!(run.state(), ActiveRunState::Settling),
        })
    }

    /// The runs of the same job that block a waiting run: all that do not wait, and those that have waited for longer.
    pub fn runs_before(&self, run: &RunId) -> Vec<RunId> {
        let position = |run: &RunId| (run.scheduled_at(), run.trigger());
        let is_before = |other: &RunId, active: &ActiveRun| !active.is_queued() || position(other) < position(run);
        if self.is_to_share(run) {
            return Vec::new();
        }
        let is_rival = |active: &ActiveRun| match run.node() {
            Some(node) => active.counts_on(node),
            None => !active.is_to_share(),
        };
        let others = self.of_job(run.job()).filter(|(_, active)| is_rival(active));
        others
            .filter(|(other, active)| *other != run && is_before(other, active))
            .map(|(other, _)| other.clone())
            .collect()
    }
}

/// True if one more run of the job may neither begin nor wait in addition to these.
pub(super) fn overlap<'r>(job: &Job, mut in_flight: impl Iterator<Item = &'r ActiveRun>) -> bool {
    match job.overlap {
        Overlap::Skip => in_flight.next().is_some(),
        Overlap::Queue => in_flight.any(ActiveRun::is_queued),
        // Limits the queue when the job's runs become due faster than its group lets them begin.
        Overlap::Allow | Overlap::Replace => in_flight.filter(|run| run.is_queued()).nth(MOST_WAITING - 1).is_some(),
    }
}

/// Additional time after its deadline for which a cut-off run blocks a run that waits for it: another host's warden
/// ends it by that host's clock.
pub(super) fn margin(cx: &Context, run: &RunId) -> Duration {
    let waits = |job: &Job| matches!(job.overlap, Overlap::Queue | Overlap::Replace) || job.concurrency_group.is_some();
    let is_awaited = cx.job(run.job()).is_some_and(|job| waits(job));
    if is_awaited { Duration::from_secs(1) } else { Duration::ZERO }
}

/// Until when a run may continue while cut off: the second before another run of the job may begin. `None`: without
/// limit.
///
/// With `after` that is when its `root` is due next; any other job is its own root.
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

/// Why a cut-off run is not waited for any longer.
pub(super) fn why_abandoned(cx: &Context, record: &RunRecord, is_back: bool) -> String {
    let owner = &record.owner.node;
    if is_back {
        return format!("{owner} came back, but did not report the run in time");
    }
    let own_limit =
        cx.job(&record.job).and_then(|job| keep_until(job, cx.root_of(job), record.scheduled_at, record.begun_at));
    match record.keep_until {
        Some(until) if own_limit != Some(until) => format!("{owner} did not come back by {}Z", stamp(until)),
        Some(_) | None => format!("{owner} did not come back before the next occurrence"),
    }
}
