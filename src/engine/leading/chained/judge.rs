//! Whether a run that follows others begins: what may stand against it, in the order in which that is looked at.
//!
//! What the upstreams say comes first, for it holds whatever else is so; whether there is room now comes last. Changes
//! nothing: what follows from a verdict is the business of those who asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Waiting;
use crate::engine::leading::manual::is_too_old;
use crate::engine::{Engine, Turn};
use crate::job::{Condition, Job, JobName};
use crate::run::{RunId, SkipReason};

/// So often a begin is refused, without a reason that would be known by then, before its place counts as taken.
const TRIES: u32 = 3;

/// Why a run does not begin now.
pub(super) enum Objection {
    Skip(SkipReason),
    /// It is not run, and nobody has asked to hear of it; those behind it have.
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

type Verdict<T = ()> = Result<T, Objection>;

/// A run and what bears on it.
struct Case<'a> {
    run: &'a RunId,
    waiting: &'a Waiting,
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

impl Engine {
    /// The job to begin, or what stands against it.
    pub(super) fn judge_chain(&self, t: &Turn, run: &RunId) -> Verdict<Arc<Job>> {
        let case = self.case(run)?;
        self.has_all_links(&case)?;
        self.is_wanted(&case)?;
        self.is_not_passed(&case)?;
        self.is_in_time(t, &case)?;
        self.has_room(&case)?;
        Ok(case.job.clone())
    }

    fn case<'a>(&'a self, run: &'a RunId) -> Verdict<Case<'a>> {
        if self.flights.is_refused(run.job()) {
            return Err(Objection::Wait);
        }
        let leading = self.leading.as_ref().ok_or(Objection::Wait)?;
        let waiting = leading.chains.open.get(run).ok_or(Objection::Wait)?;
        let job = self.jobs.jobs.get(run.job()).ok_or(Objection::Undefined)?;
        let upstreams = job.upstreams().ok_or(Objection::Skip(SkipReason::Upstream))?;
        if !job.enabled {
            return Err(Objection::Pass);
        }
        // A trigger's runs move no mark.
        let mark = match (run.trigger(), leading.timelines.get(run.job())) {
            (Some(_), _) => Timestamp::MIN,
            (None, Some(timeline)) if !timeline.is_in_conflict => timeline.mark,
            (None, _) => return Err(Objection::Wait),
        };
        Ok(Case { run, waiting, job, upstreams, is_passed: run.scheduled_at() <= mark })
    }

    fn has_all_links(&self, case: &Case<'_>) -> Verdict {
        let missing = case.missing();
        if missing.is_empty() {
            return Ok(());
        }
        self.is_not_passed(case)?;
        // It has run by what its job runs after now: a link that comes later is of a job after which it ran before an edit.
        if self.flights.contains_key(case.run) || self.is_followed(case.run) {
            return Err(Objection::Drop);
        }
        if missing.iter().any(|upstream| self.can_answer(upstream, case.run)) {
            return Err(Objection::Wait);
        }
        let has_any = missing.len() < case.upstreams.len();
        // Where it has none of those that it runs after, its links are of jobs after which it runs no more.
        Err(if has_any { Objection::Stuck } else { Objection::Skip(SkipReason::Upstream) })
    }

    /// True for a trigger's run that was begun in this term. No mark tells that of it.
    fn is_followed(&self, run: &RunId) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.chains.is_followed(run))
    }

    /// True while the upstream's run of this chain, or one before it, is in flight or waits for links itself.
    fn can_answer(&self, upstream: &JobName, run: &RunId) -> bool {
        let Some(leading) = &self.leading else { return false };
        self.jobs
            .lineage_of(upstream)
            .into_iter()
            .map(|job| run.of(job))
            .any(|before| self.flights.contains_key(&before) || leading.chains.open.contains_key(&before))
    }

    /// By the upstreams, and by operators.
    fn is_wanted(&self, case: &Case<'_>) -> Verdict {
        if !case.is_met() {
            return Err(Objection::Skip(SkipReason::Upstream));
        }
        let is_paused = self.leading.as_ref().is_some_and(|leading| leading.pauses.has(case.run.job()));
        if case.run.trigger().is_none() && is_paused { Err(Objection::Skip(SkipReason::Paused)) } else { Ok(()) }
    }

    fn is_not_passed(&self, case: &Case<'_>) -> Verdict {
        match case.is_passed {
            false => Ok(()),
            true if self.flights.contains_key(case.run) => Err(Objection::Drop),
            true => Err(Objection::Skip(SkipReason::Missed)),
        }
    }

    fn is_in_time(&self, t: &Turn, case: &Case<'_>) -> Verdict {
        let root = self.jobs.root_of(case.job).unwrap_or(case.job);
        // A node whose clock was behind left its link before the occurrence, by its own time.
        let since = case.waiting.newest().max(case.run.scheduled_at());
        let is_late = is_too_old(case.job, root, since, t.due) || case.waiting.refused >= TRIES;
        if is_late { Err(Objection::Skip(SkipReason::Missed)) } else { Ok(()) }
    }

    /// Beside the other runs.
    fn has_room(&self, case: &Case<'_>) -> Verdict {
        if self.flights.contains_key(case.run) || self.is_undecidable(case.run.job()) {
            return Err(Objection::Wait);
        }
        if self.overlaps(case.job) { Err(Objection::Skip(SkipReason::Overlap)) } else { Ok(()) }
    }
}
