//! Whether a run that follows others begins: what may stand against it, in the order in which that is looked at.
//!
//! What the upstreams say comes first, for it holds whatever else is so; whether there is room now comes last. Changes
//! nothing: what follows from a verdict is the business of those who asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Chains;
use super::waiting::WaitingRun;
use crate::engine::context::Context;
use crate::engine::leader::book::Book;
use crate::engine::leader::pauses::Pauses;
use crate::engine::misfire::is_too_old;
use crate::engine::runs::Runs;
use crate::job::{Condition, Job, JobName};
use crate::run::{RunId, SkipReason};

/// So often a begin is refused, without a reason that would be known by then, before its place counts as taken.
const TRIES: u32 = 3;

/// Why a run does not begin now.
pub(super) enum Objection {
    Skip(SkipReason),
    /// It is skipped without a record of its own; its dependents still receive the result.
    Pass,
    /// It was decided on before.
    Drop,
    /// Something else is to happen first.
    Wait,
    /// A link is missing that nobody can leave.
    Stuck,
    /// This node's file lacks its job: it may be about to have it again.
    Undefined,
}

type Judgement<T = ()> = Result<T, Objection>;

/// A run and what bears on it.
struct Case<'a> {
    run: &'a RunId,
    waiting: &'a WaitingRun,
    job: &'a Arc<Job>,
    upstreams: &'a BTreeMap<JobName, Condition>,
    /// A later chain of the job was begun, or this one: then a link came that nobody waited for any more.
    is_passed: bool,
}

impl Case<'_> {
    /// The upstreams that have left it no link.
    fn missing(&self) -> Vec<&JobName> {
        self.upstreams.keys().filter(|upstream| self.waiting.link_of(upstream).is_none()).collect()
    }

    /// Every link is in, and says what the job wants to hear.
    fn is_met(&self) -> bool {
        let said = |upstream| self.waiting.link_of(upstream).map(|link| link.answer);
        self.upstreams.iter().all(|(upstream, &condition)| said(upstream).is_some_and(|answer| answer.meets(condition)))
    }
}

/// The job to begin, or what stands against it.
pub(super) fn judge(
    cx: &Context,
    runs: &Runs,
    book: &Book,
    pauses: &Pauses,
    chains: &Chains,
    run: &RunId,
) -> Judgement<Arc<Job>> {
    let case = case(cx, runs, book, chains, run)?;
    has_all_links(cx, runs, chains, &case)?;
    is_wanted(pauses, &case)?;
    is_not_passed(runs, &case)?;
    is_in_time(cx, &case)?;
    has_room(cx, runs, &case)?;
    Ok(case.job.clone())
}

fn case<'a>(cx: &'a Context, runs: &Runs, book: &Book, chains: &'a Chains, run: &'a RunId) -> Judgement<Case<'a>> {
    if runs.is_refused(run.job()) {
        return Err(Objection::Wait);
    }
    let waiting = chains.get(run).ok_or(Objection::Wait)?;
    let job = cx.job(run.job()).ok_or(Objection::Undefined)?;
    let upstreams = job.upstreams().ok_or(Objection::Skip(SkipReason::Upstream))?;
    if !job.enabled {
        return Err(Objection::Pass);
    }
    // A trigger's runs move no mark.
    let mark = match (run.trigger(), book.get(run.job())) {
        (Some(_), _) => Timestamp::MIN,
        (None, Some(timeline)) if !timeline.is_in_conflict => timeline.mark,
        (None, _) => return Err(Objection::Wait),
    };
    Ok(Case { run, waiting, job, upstreams, is_passed: run.scheduled_at() <= mark })
}

fn has_all_links(cx: &Context, runs: &Runs, chains: &Chains, case: &Case<'_>) -> Judgement {
    let missing = case.missing();
    if missing.is_empty() {
        return Ok(());
    }
    is_not_passed(runs, case)?;
    // It has run by what its job runs after now: a link that comes later is of a job after which it ran before an edit. No mark tells that
    // of a trigger's run.
    if runs.contains(case.run) || chains.is_followed(case.run) {
        return Err(Objection::Drop);
    }
    if missing.iter().any(|upstream| can_answer(cx, runs, chains, upstream, case.run)) {
        return Err(Objection::Wait);
    }
    let has_any = missing.len() < case.upstreams.len();
    // Where it has none of those that it runs after, its links are of jobs after which it runs no more.
    Err(if has_any { Objection::Stuck } else { Objection::Skip(SkipReason::Upstream) })
}

/// True while the upstream's run of this chain, or one before it, is in flight or waits for links itself.
fn can_answer(cx: &Context, runs: &Runs, chains: &Chains, upstream: &JobName, run: &RunId) -> bool {
    let lineage = cx.jobs.lineage_of(upstream).into_iter().map(|job| run.of(job));
    lineage.into_iter().any(|before| runs.contains(&before) || chains.get(&before).is_some())
}

/// By the upstreams, and by operators.
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

fn is_in_time(cx: &Context, case: &Case<'_>) -> Judgement {
    // A node whose clock was behind left its link before the occurrence, by its own time.
    let since = case.waiting.newest().max(case.run.scheduled_at());
    let is_late = is_too_old(case.job, cx.root_of(case.job), since, cx.due) || case.waiting.refused >= TRIES;
    if is_late { Err(Objection::Skip(SkipReason::Missed)) } else { Ok(()) }
}

/// Beside the other runs.
fn has_room(cx: &Context, runs: &Runs, case: &Case<'_>) -> Judgement {
    if runs.contains(case.run) || runs.is_undecidable(cx, case.run.job()) {
        return Err(Objection::Wait);
    }
    if runs.overlaps(case.job) { Err(Objection::Skip(SkipReason::Overlap)) } else { Ok(()) }
}
