//! Requests of operators to pause and resume jobs: one, those that match, those of a group, or all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};
use uuid::Uuid;

use super::authorize::{Actor, ApiActor, log_requested};
use super::control::{PathParam, RequestBody, TIMEOUT, limited_reason, parse_body, whole_second};
use super::show::job_name;
use super::{ApiState, RefusedRequest};
use cronkeeper_core::clock::{later, system};
use cronkeeper_core::duration;
use cronkeeper_core::job::{Job, JobName, JobSet};
use cronkeeper_core::ledger::filter::JobPattern;
use cronkeeper_core::ledger::{ControlEntry, Each};
use cronkeeper_core::run::{LONGEST_HOLD, Pause, Resume, RunId};
use cronkeeper_core::suggest::{counted, did_you_mean, nearest};

/// Interval at which the pauses are read while the leader ends many of them.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Most patterns in a request.
const MOST_PATTERNS: usize = 100;

/// The body of `POST /v1/jobs/{job}/pause`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long: `2h`; absent: until the job is resumed.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub length: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Paused {
    /// As shown in the status.
    pub paused: Pause,
    /// The pause that this one replaced: the job was paused already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<Pause>,
}

/// The body of `POST /v1/jobs/{job}/resume`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeBody {}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Resumed {
    pub was_paused: bool,
}

/// Which jobs a request is about: all, or those that match or are in the group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobSelection {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Names, or patterns with `*` and `?`; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<String>,
    /// The name of a concurrency group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// The body of `POST /v1/pause`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseManyBody {
    pub select: JobSelection,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long: `2h`; absent: until the jobs are resumed.
    #[serde(default, rename = "for", skip_serializing_if = "Option::is_none")]
    pub length: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PausedMany {
    /// As shown in the status.
    pub paused: Pause,
    pub jobs: Vec<JobName>,
    /// The pauses that were replaced: those jobs were paused already.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub replaced: BTreeMap<JobName, Pause>,
    /// The jobs that could not be paused, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<JobName, String>,
}

/// The body of `POST /v1/resume`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResumeManyBody {
    pub select: JobSelection,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResumedMany {
    pub jobs: Vec<JobName>,
    /// Jobs that no leader has resumed yet; one will do so later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<JobName>,
    /// The jobs whose resumption could not be requested, each with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<JobName, String>,
}

/// `POST /v1/jobs/{job}/pause`.
pub(super) async fn pause(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    job: PathParam,
    body: RequestBody,
) -> Result<Json<Paused>, RefusedRequest> {
    let (job, PauseBody { reason, length }) = (state.known_job(job)?, parse_body(body)?);
    state.pause(actor, job, reason, length.as_deref()).await.map(Json)
}

/// `POST /v1/jobs/{job}/resume`. A job that is no longer defined can be resumed too.
pub(super) async fn resume(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    job: PathParam,
    body: RequestBody,
) -> Result<Json<Resumed>, RefusedRequest> {
    let (job, ResumeBody {}) = (job_name(job)?, parse_body(body)?);
    state.resume(actor, job).await.map(Json)
}

/// `POST /v1/pause`.
pub(super) async fn pause_many(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    body: RequestBody,
) -> Result<Json<PausedMany>, RefusedRequest> {
    let PauseManyBody { select, reason, length } = parse_body(body)?;
    state.pause_many(actor, &select, reason, length.as_deref()).await.map(Json)
}

/// `POST /v1/resume`.
pub(super) async fn resume_many(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    body: RequestBody,
) -> Result<Json<ResumedMany>, RefusedRequest> {
    let ResumeManyBody { select } = parse_body(body)?;
    state.resume_many(actor, &select).await.map(Json)
}

impl ApiState {
    pub(super) async fn pause(
        &self,
        actor: Actor,
        job: JobName,
        reason: Option<String>,
        length: Option<&str>,
    ) -> Result<Paused, RefusedRequest> {
        let paused = self.new_pause(actor.by.clone(), reason, length)?;
        let pausing = self.sources.operator.pause(job.clone(), Uuid::new_v4(), paused.clone());
        let replaced = self.recorded(pausing).await?;
        log_requested!(actor, request = "pause", %job, reason = paused.reason.as_deref());
        self.await_held(|of| *of == job).await;
        Ok(Paused { paused, replaced })
    }

    /// Waits until what was begun ahead of its time has begun or was cancelled: whoever has paused these jobs relies on
    /// nothing of them beginning afterwards.
    async fn await_held(&self, is_of: impl Fn(&JobName) -> bool) {
        let now = system::now().wall;
        // If it cannot be read, the longest hold is enough.
        let until = match self.reads.runs().await {
            Ok(state) => {
                let runs = state.runs.iter().map(|run| &run.run);
                runs.filter(|run| run.trigger().is_none() && is_of(run.job())).map(RunId::scheduled_at).max()
            }
            Err(_) => Some(later(now, LONGEST_HOLD)),
        };
        let held = until.map(|until| until.duration_since(now)).filter(SignedDuration::is_positive);
        // Not longer, because a mark can be years ahead.
        sleep(held.map_or(Duration::ZERO, SignedDuration::unsigned_abs).min(LONGEST_HOLD)).await;
    }

    pub(super) async fn resume(&self, actor: Actor, job: JobName) -> Result<Resumed, RefusedRequest> {
        let (operator, until) = (&self.sources.operator, Instant::now() + TIMEOUT);
        let resume = Resume { by: actor.by.clone(), at: whole_second(system::now().wall) };
        let Some(pause) = self.recorded(operator.request_resume(job.clone(), resume)).await? else {
            self.require_job(&job)?;
            return Ok(Resumed { was_paused: false });
        };
        log_requested!(actor, request = "resume", %job);
        let resumed = timeout_at(until, operator.resumed(job.clone(), pause)).await;
        self.reads.changed();
        let error = match resumed {
            Ok(Ok(())) => return Ok(Resumed { was_paused: true }),
            Ok(Err(error)) => {
                format!("the request is written, but it is not known whether job `{job}` is resumed: {error}")
            }
            Err(_) => format!("no leader resumed job `{job}` within {} s; one will do so later", TIMEOUT.as_secs()),
        };
        Err(RefusedRequest::new(StatusCode::GATEWAY_TIMEOUT, error))
    }

    async fn pause_many(
        &self,
        actor: Actor,
        select: &JobSelection,
        reason: Option<String>,
        length: Option<&str>,
    ) -> Result<PausedMany, RefusedRequest> {
        let paused = self.new_pause(actor.by.clone(), reason, length)?;
        let set = Arc::clone(&self.sources.jobs.borrow());
        let selected = Selected::of(select, &set)?;
        let jobs: Vec<_> = set.jobs.keys().filter(|job| selected.has(job)).cloned().collect();
        if jobs.is_empty() {
            return Err(none_matches(select, &set));
        }
        let count = counted(jobs.len(), "job");
        let asked = jobs.into_iter().map(|job| (job, Uuid::new_v4())).collect();
        let Each { done, failed } = self.recorded(self.sources.operator.pause_all(asked, paused.clone())).await?;
        log_requested!(actor, request = "pause", reason = paused.reason.as_deref(), "{count}");
        self.await_held(|job| done.contains_key(job)).await;
        let jobs = done.keys().cloned().collect();
        let replaced = done.into_iter().filter_map(|(job, was)| Some((job, was?))).collect();
        Ok(PausedMany { paused, jobs, replaced, failed })
    }

    /// Resumes those of the selected jobs that are paused, also some that are no longer defined.
    async fn resume_many(&self, actor: Actor, select: &JobSelection) -> Result<ResumedMany, RefusedRequest> {
        let until = Instant::now() + TIMEOUT;
        let set = Arc::clone(&self.sources.jobs.borrow());
        let selected = Selected::of(select, &set)?;
        let operator = &self.sources.operator;
        let paused = self.found(operator.pauses()).await?;
        let jobs: Vec<JobName> = paused.into_keys().filter(|job| selected.has(job)).collect();
        if jobs.is_empty() {
            // Of all jobs none may be paused, but a name or pattern that no job has is a mistake.
            if !selected.all && !set.jobs.keys().any(|job| selected.has(job)) {
                return Err(none_matches(select, &set));
            }
            return Ok(ResumedMany { jobs, pending: Vec::new(), failed: BTreeMap::new() });
        }
        let count = counted(jobs.len(), "job");
        let resume = Resume { by: actor.by.clone(), at: whole_second(system::now().wall) };
        let Each { done, failed } = self.recorded(operator.request_resumes(jobs, resume)).await?;
        log_requested!(actor, request = "resume", "{count}");
        let asked: BTreeMap<JobName, Uuid> = done.into_iter().filter_map(|(job, id)| Some((job, id?))).collect();
        let pending = self.still_paused(&asked, until).await;
        let jobs = asked.into_keys().filter(|job| !pending.contains(job)).collect();
        Ok(ResumedMany { jobs, pending: pending.into_iter().collect(), failed })
    }

    /// Waits for the leader to end these pauses. Returns the jobs whose pauses are left at this instant.
    async fn still_paused(&self, asked: &BTreeMap<JobName, Uuid>, until: Instant) -> BTreeSet<JobName> {
        let mut left: BTreeSet<JobName> = asked.keys().cloned().collect();
        loop {
            let remaining = until.saturating_duration_since(Instant::now());
            // A read that fails is made again.
            if let Ok(Ok(paused)) = timeout(remaining, self.sources.operator.pauses()).await {
                let id = |entry: &ControlEntry| entry.record.id;
                left.retain(|job| paused.get(job).map(id).as_ref() == asked.get(job));
            }
            self.reads.changed();
            if left.is_empty() || remaining < LOOK_EVERY {
                return left;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn new_pause(&self, by: String, reason: Option<String>, length: Option<&str>) -> Result<Pause, RefusedRequest> {
        let reason = limited_reason(reason)?;
        // The leader ends the pause by the ledger's clock.
        let until = length.map(|length| end(self.ledger_time(), length)).transpose()?;
        Ok(Pause { by, at: whole_second(system::now().wall), reason, until })
    }
}

/// Says that none of these names and patterns is that of a job.
pub fn no_job_matches<'a>(
    wanted: impl IntoIterator<Item = &'a str>,
    known: impl Iterator<Item = &'a JobName> + Clone,
) -> String {
    // A pattern is like no name.
    let mut names = wanted.into_iter().filter(|name| !name.contains(['*', '?']));
    let meant = names.find_map(|name| nearest(name, known.clone().map(|job| job.as_str())));
    format!("no job matches{}", did_you_mean(meant))
}

fn none_matches(select: &JobSelection, set: &JobSet) -> RefusedRequest {
    let names = select.jobs.iter().map(String::as_str);
    RefusedRequest::new(StatusCode::NOT_FOUND, no_job_matches(names, set.jobs.keys()))
}

/// When a pause of this length ends that begins now, by the ledger's clock.
fn end(now: Timestamp, length: &str) -> Result<Timestamp, RefusedRequest> {
    let bad = |error: &dyn std::fmt::Display| RefusedRequest::new(StatusCode::BAD_REQUEST, error.to_string());
    let length = duration::parse(length).map_err(|error| bad(&error))?;
    let end = now.checked_add(length).map_err(|error| bad(&error))?;
    if length < Duration::from_secs(1) {
        return Err(bad(&"a pause lasts at least a second"));
    }
    Ok(whole_second(end))
}

/// A selection that was checked.
struct Selected {
    all: bool,
    patterns: Vec<JobPattern>,
    grouped: BTreeSet<JobName>,
}

impl Selected {
    fn of(select: &JobSelection, set: &JobSet) -> Result<Self, RefusedRequest> {
        let bad = |error: String| RefusedRequest::new(StatusCode::BAD_REQUEST, error);
        let JobSelection { all, jobs, group } = select;
        if *all == (group.is_some() || !jobs.is_empty()) {
            return Err(bad("select all jobs, or some by `jobs` and `group`".to_owned()));
        }
        if jobs.len() > MOST_PATTERNS {
            return Err(bad(format!("more than {MOST_PATTERNS} patterns")));
        }
        let patterns: Result<Vec<_>, _> = jobs.iter().map(|text| JobPattern::parse(text)).collect();
        let patterns = patterns.map_err(|error| bad(error.to_string()))?;
        let grouped = group.as_deref().map(|group| members_of(group, set)).transpose()?;
        Ok(Self { all: *all, patterns, grouped: grouped.unwrap_or_default() })
    }

    fn has(&self, job: &JobName) -> bool {
        self.all || self.grouped.contains(job) || self.patterns.iter().any(|pattern| pattern.matches(job.as_str()))
    }
}

/// The jobs of a concurrency group.
fn members_of(group: &str, set: &JobSet) -> Result<BTreeSet<JobName>, RefusedRequest> {
    fn group_of(job: &Arc<Job>) -> Option<&str> {
        job.concurrency_group.as_ref().map(|group| group.name.as_str())
    }
    let jobs: BTreeSet<_> =
        set.jobs.iter().filter(|(_, job)| group_of(job) == Some(group)).map(|(name, _)| name.clone()).collect();
    if jobs.is_empty() {
        let meant = did_you_mean(nearest(group, set.jobs.values().filter_map(group_of)));
        let group = cronkeeper_core::escape::short(group, 100);
        let error = format!("no job names the concurrency group `{group}`{meant}");
        return Err(RefusedRequest::new(StatusCode::NOT_FOUND, error));
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> JobSet {
        let yaml = b"jobs:\n\
            \x20 backup-a: {schedule: '@daily', command: 'true', concurrency_group: {name: disk, limit: 1}}\n\
            \x20 backup-b: {schedule: '@daily', command: 'true'}\n\
            \x20 report: {schedule: '@daily', command: 'true', concurrency_group: {name: disk, limit: 1}}\n";
        crate::config::parse("jobs.yaml", yaml).unwrap().0
    }

    fn selected(select: &JobSelection) -> Result<Vec<String>, String> {
        let set = set();
        let selected = Selected::of(select, &set).map_err(|refused| refused.error)?;
        Ok(set.jobs.keys().filter(|job| selected.has(job)).map(ToString::to_string).collect())
    }

    #[test]
    fn jobs_are_selected_by_name_pattern_and_group() {
        let all = JobSelection { all: true, ..JobSelection::default() };
        assert_eq!(selected(&all).unwrap(), ["backup-a", "backup-b", "report"]);
        let named = JobSelection { jobs: vec!["backup-?".into()], ..JobSelection::default() };
        assert_eq!(selected(&named).unwrap(), ["backup-a", "backup-b"]);
        let group = JobSelection { group: Some("disk".into()), ..JobSelection::default() };
        assert_eq!(selected(&group).unwrap(), ["backup-a", "report"]);
        assert_eq!(
            selected(&JobSelection { all: true, ..group }).unwrap_err(),
            "select all jobs, or some by `jobs` and `group`"
        );
        assert!(selected(&JobSelection::default()).is_err());
        let unknown = JobSelection { group: Some("disc".into()), ..JobSelection::default() };
        assert!(selected(&unknown).unwrap_err().ends_with("`disc`, did you mean `disk`?"));
    }

    #[test]
    fn a_selection_without_a_job_says_what_a_plain_name_may_mean() {
        let error = |jobs: &[&str]| {
            let jobs = jobs.iter().map(|&job| job.to_owned()).collect();
            none_matches(&JobSelection { jobs, ..JobSelection::default() }, &set()).error
        };
        assert_eq!(error(&["zzz*"]), "no job matches");
        assert_eq!(error(&["zzz*", "raport"]), "no job matches, did you mean `report`?");
    }

    #[test]
    fn a_pause_ends_when_its_length_is_over() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let end = |length: &str| end(at("2026-11-20T03:00:00.5Z"), length).map_err(|refused| refused.error);
        assert_eq!(end("2h").unwrap(), at("2026-11-20T05:00:00Z"));
        assert_eq!(end("500ms").unwrap_err(), "a pause lasts at least a second");
        assert!(end("soon").is_err());
    }
}
