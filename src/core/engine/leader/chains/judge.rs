//! Decides if a run with upstreams may begin, by a series of checks.
//!
//! The results of the upstreams are checked first, because they count whatever else is true; the room beside other runs
//! is checked last. This module changes nothing: the caller acts on the verdict.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::DownstreamRuns;
use super::waiting::WaitingRun;
use crate::engine::context::Context;
use crate::engine::leader::book::Book;
use crate::engine::leader::pauses::Pauses;
use crate::engine::misfire::is_too_old;
use crate::engine::runs::Runs;
use crate::job::{Condition, Job, JobName};
use crate::run::{RunId, SkipReason};

/// Rejected begins without a known reason after which the path of the run counts as taken.
const TRIES: u32 = 3;

/// Reason why a run does not begin now.
pub(super) enum Objection {
    Skip(SkipReason),
    /// Skipped without its own record; its dependents still receive the result.
    Pass,
    /// The run was decided on before.
    Drop,
    /// Something else must happen first.
    Wait,
    /// A missing link cannot arrive any more.
    Stuck,
    /// This node's file does not define the job, perhaps only for a moment.
    Undefined,
}

type Judgement<T = ()> = Result<T, Objection>;

/// A run, and the facts that decide on it.
struct Case<'a> {
    run: &'a RunId,
    waiting: &'a WaitingRun,
    job: &'a Arc<Job>,
    upstreams: &'a BTreeMap<JobName, Condition>,
    /// This chain or a later one of the job was begun already: the link arrived too late. Or it was decided on before an
    /// operator had the job recounted.
    is_passed: bool,
}

impl Case<'_> {
    /// The upstreams whose links are missing.
    fn missing(&self) -> Vec<&JobName> {
        self.upstreams.keys().filter(|upstream| self.waiting.link_of(upstream).is_none()).collect()
    }

    /// True if every link is in and meets its condition.
    fn is_met(&self) -> bool {
        let result_of = |upstream| self.waiting.link_of(upstream).map(|link| link.result);
        self.upstreams
            .iter()
            .all(|(upstream, &condition)| result_of(upstream).is_some_and(|result| result.meets(condition)))
    }
}

/// Returns the job to begin, or the reason not to begin it.
pub(super) fn judge(
    cx: &Context,
    runs: &Runs,
    book: &Book,
    pauses: &Pauses,
    downstream: &DownstreamRuns,
    run: &RunId,
) -> Judgement<Arc<Job>> {
    let case = case(cx, runs, book, downstream, run)?;
    has_all_links(cx, runs, downstream, &case)?;
    is_wanted(pauses, &case)?;
    is_not_passed(runs, &case)?;
    is_not_lost(runs, &case)?;
    is_in_time(cx, &case)?;
    has_room(cx, runs, &case)?;
    Ok(case.job.clone())
}

fn case<'a>(
    cx: &'a Context,
    runs: &Runs,
    book: &Book,
    downstream: &'a DownstreamRuns,
    run: &'a RunId,
) -> Judgement<Case<'a>> {
    if runs.is_refused(run.job()) {
        return Err(Objection::Wait);
    }
    let waiting = downstream.get(run).ok_or(Objection::Wait)?;
    let job = cx.job(run.job()).ok_or(Objection::Undefined)?;
    let upstreams = job.upstreams().ok_or(Objection::Skip(SkipReason::Upstream))?;
    if !job.enabled {
        return Err(Objection::Pass);
    }
    if runs.is_over(run) || downstream.is_followed(run) && !runs.contains(run) {
        // The service has lost that it was begun; or an edit has removed the upstream that left the link.
        return Err(Objection::Drop);
    }
    // A trigger's runs move no mark.
    let is_passed = match (run.trigger(), book.get(run.job())) {
        (Some(_), _) => false,
        (None, Some(timeline)) if !timeline.is_in_conflict => {
            run.scheduled_at() <= timeline.mark || timeline.was_decided(run.scheduled_at())
        }
        (None, _) => return Err(Objection::Wait),
    };
    Ok(Case { run, waiting, job, upstreams, is_passed })
}

fn has_all_links(cx: &Context, runs: &Runs, downstream: &DownstreamRuns, case: &Case<'_>) -> Judgement {
    let missing = case.missing();
    if missing.is_empty() {
        return Ok(());
    }
    is_not_passed(runs, case)?;
    // It runs after the job's current upstreams. The new link is from an upstream that an edit has removed. For a
    // trigger's run, which moves no mark, only this check finds it.
    if runs.contains(case.run) {
        return Err(Objection::Drop);
    }
    if missing.iter().any(|upstream| can_answer(cx, runs, downstream, upstream, case.run)) {
        return Err(Objection::Wait);
    }
    let has_any = missing.len() < case.upstreams.len();
    // If it has no link of a current upstream, all of its links are from upstreams that an edit has removed.
    Err(if has_any { Objection::Stuck } else { Objection::Skip(SkipReason::Upstream) })
}

/// True while the upstream's run of this chain, or one further up, is in flight or waits for links itself.
fn can_answer(cx: &Context, runs: &Runs, downstream: &DownstreamRuns, upstream: &JobName, run: &RunId) -> bool {
    let lineage = cx.jobs.lineage_of(upstream).into_iter().map(|job| run.of(job));
    lineage.into_iter().any(|before| runs.contains(&before) || downstream.get(&before).is_some())
}

/// Checks the upstreams' results, and the job's pause.
fn is_wanted(pauses: &Pauses, case: &Case<'_>) -> Judgement {
    if !case.is_met() {
        return Err(Objection::Skip(SkipReason::Upstream));
    }
    let is_paused = case.run.trigger().is_none() && pauses.has(case.run.job());
    if is_paused { Err(Objection::Skip(SkipReason::Paused)) } else { Ok(()) }
}

fn is_not_passed(runs: &Runs, case: &Case<'_>) -> Judgement {
    match case.is_passed {
        false => Ok(()),
        true if runs.contains(case.run) => Err(Objection::Drop),
        true => Err(Objection::Skip(SkipReason::Missed)),
    }
}

/// Checks that no commit can have begun it which the store has lost: its last link cannot have been there earlier.
fn is_not_lost(runs: &Runs, case: &Case<'_>) -> Judgement {
    let may_be_lost = runs.may_be_lost(case.waiting.earliest()) && !runs.contains(case.run);
    if may_be_lost { Err(Objection::Skip(SkipReason::Rewound)) } else { Ok(()) }
}

fn is_in_time(cx: &Context, case: &Case<'_>) -> Judgement {
    // A node whose clock was behind may have stamped its link with a time before the occurrence.
    let since = case.waiting.newest().max(case.run.scheduled_at());
    let is_late = is_too_old(case.job, cx.root_of(case.job), since, cx.due) || case.waiting.rejected >= TRIES;
    if is_late { Err(Objection::Skip(SkipReason::Missed)) } else { Ok(()) }
}

/// Checks whether the job's other runs leave room.
fn has_room(cx: &Context, runs: &Runs, case: &Case<'_>) -> Judgement {
    if runs.contains(case.run) || runs.is_undecidable(cx, case.run.job()) {
        return Err(Objection::Wait);
    }
    if runs.overlaps(cx, case.job) { Err(Objection::Skip(SkipReason::Overlap)) } else { Ok(()) }
}
