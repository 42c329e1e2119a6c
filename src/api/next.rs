//! `GET /v1/next`: coming occurrences of the jobs that this node has loaded.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::admission::Admitted;
use super::network::Visibility;
use super::show::no_such_job;
use super::slow_answers::LONGEST;
use super::{ApiState, RefusedRequest};
use crate::status::Status;
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::duration;
use cronkeeper_core::escape;
use cronkeeper_core::job::{Job, JobName, JobSet};
use cronkeeper_core::schedule::Schedule;

/// Most occurrences of each job.
const MOST_EACH: usize = 1_000;
/// Most occurrences of an answer.
const MOST: usize = 100_000;
/// Most parameters of a request.
const MOST_PARAMETERS: usize = 200;

/// The body of `GET /v1/next`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Coming {
    /// Sorted by time.
    pub occurrences: Vec<ComingOccurrence>,
    /// The jobs without any, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub none: Vec<NoOccurrence>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ComingOccurrence {
    pub job: JobName,
    pub at: Timestamp,
    /// The job's time zone.
    pub timezone: String,
    /// What a clock shift does to it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_shift: Option<String>,
    /// What the job's calendar leaves out between the occurrence before, or `from`, and this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// Instants that a schedule names and its calendar leaves out.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeftOut {
    pub count: u64,
    /// The first few of them.
    pub first: Vec<LeftOutInstant>,
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LeftOutInstant {
    pub at: Timestamp,
    /// The calendar file with its date, or those that all lack it.
    pub calendar: String,
}

impl LeftOut {
    /// What a calendar leaves out after one instant and up to another; absent if nothing.
    pub fn between(schedule: &Schedule, after: Timestamp, until: Timestamp) -> Option<Self> {
        const FEW: NonZeroUsize = NonZeroUsize::new(5).unwrap();
        let (count, first) = schedule.left_out(after, until, FEW);
        let first = first.into_iter().map(|(at, calendar)| LeftOutInstant { at, calendar }).collect();
        (count > 0).then_some(Self { count, first })
    }
}

/// Why a schedule without occurrences after an instant has none, if its calendar is why.
pub fn all_left_out(schedule: &Schedule, after: Timestamp) -> Option<String> {
    let (at, calendar) = schedule.next_left_out(after)?;
    let local = schedule.local(at).strftime("%a %Y-%m-%d %H:%M:%S");
    Some(format!("its calendar leaves out all that would follow, the first on {local} ({calendar})"))
}

/// The occurrences of a schedule after an instant, each with the one before.
pub fn steps(schedule: &Schedule, from: Timestamp) -> impl Iterator<Item = (Timestamp, Timestamp)> {
    let step = |before: Timestamp| Some((before, schedule.next_after(before)?));
    std::iter::successors(step(from), move |(_, at)| step(*at))
}

#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct NoOccurrence {
    pub job: JobName,
    pub why: String,
}

/// What is asked for.
struct Asked {
    jobs: Vec<String>,
    each: usize,
    from: Timestamp,
}

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// `GET /v1/next`.
pub(super) async fn next(
    State(state): State<Arc<ApiState>>,
    Extension(admitted): Extension<Arc<Admitted>>,
    visibility: Visibility,
    parameters: Parameters,
) -> Result<Response, RefusedRequest> {
    let bad = |why: String| RefusedRequest::new(StatusCode::BAD_REQUEST, why);
    let Query(parameters) = parameters.map_err(|rejected| bad(rejected.body_text()))?;
    let asked = Asked::of(&parameters).map_err(bad)?;
    let set = Arc::clone(&state.sources.jobs.borrow());
    let jobs = asked.selected(&set, &state.sources.status.borrow())?;
    if jobs.len().saturating_mul(asked.each) > MOST {
        return Err(bad(format!("that would be more than {MOST} occurrences; ask for fewer, or for some jobs")));
    }
    let work = move |until: Uptime| {
        let coming = Coming::of(&jobs, &asked, visibility, || system::uptime() >= until)?;
        // The text of the answer is long too.
        serde_json::to_vec(&coming).ok()
    };
    Ok(match state.slow_answers.compute(admitted.slow_answer_permit(), work).await {
        Ok(Some(json)) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Ok(None) => {
            let limit = duration::format(LONGEST);
            return Err(bad(format!("that takes longer than {limit}; ask for fewer occurrences, or for some jobs")));
        }
        Err(refused) => refused.into_response(),
    })
}

impl Asked {
    fn of(parameters: &[(String, String)]) -> Result<Self, String> {
        if parameters.len() > MOST_PARAMETERS {
            return Err(format!("more than {MOST_PARAMETERS} parameters"));
        }
        let mut asked = Self { jobs: Vec::new(), each: 1, from: system::now().wall };
        for (name, value) in parameters {
            match name.as_str() {
                "job" => asked.jobs.push(value.clone()),
                "n" => {
                    asked.each = value
                        .parse()
                        .ok()
                        .filter(|n| (1..=MOST_EACH).contains(n))
                        .ok_or_else(|| format!("`n` must be 1 to {MOST_EACH}, not {}", escape::short(value, 20)))?
                }
                "from" => asked.from = value.parse().map_err(|error| format!("`from`: {error}"))?,
                other => return Err(format!("there is no parameter `{}`", escape::short(other, 40))),
            }
        }
        Ok(asked)
    }

    fn selected(&self, set: &JobSet, status: &Status) -> Result<Vec<Arc<Job>>, RefusedRequest> {
        if self.jobs.is_empty() {
            return Ok(set.jobs.values().cloned().collect());
        }
        let find = |name: &String| {
            let missing = |why: String| RefusedRequest::new(StatusCode::NOT_FOUND, why);
            let name = JobName::parse(name).map_err(|bad| missing(bad.to_string()))?;
            set.jobs.get(&name).cloned().ok_or_else(|| missing(no_such_job(&name, status)))
        };
        self.jobs.iter().map(find).collect()
    }
}

impl Coming {
    /// Absent if that takes too long.
    fn of(
        jobs: &[Arc<Job>],
        asked: &Asked,
        visibility: Visibility,
        mut is_too_long: impl FnMut() -> bool,
    ) -> Option<Self> {
        let mut coming = Self::default();
        for job in jobs {
            if is_too_long() {
                return None;
            }
            let before = coming.occurrences.len();
            let schedule = job.schedule().filter(|_| job.enabled);
            for occurrence in schedule.into_iter().flat_map(|schedule| of(job, schedule, asked, visibility)) {
                if is_too_long() {
                    return None;
                }
                coming.occurrences.push(occurrence);
            }
            let why = match (job.enabled, schedule) {
                (false, _) => "it is disabled".to_owned(),
                (true, None) => "it has no schedule: it runs after others".to_owned(),
                (true, Some(schedule)) if coming.occurrences.len() == before => {
                    // It names files.
                    let is_shown = visibility == Visibility::All;
                    let left_out = all_left_out(schedule, asked.from).filter(|_| is_shown);
                    format!(
                        "it has no further occurrences{}",
                        left_out.map(|why| format!(": {why}")).unwrap_or_default()
                    )
                }
                (true, Some(_)) => continue,
            };
            coming.none.push(NoOccurrence { job: job.name.clone(), why });
        }
        coming.occurrences.sort_by(|a, b| (a.at, &a.job).cmp(&(b.at, &b.job)));
        Some(coming)
    }
}

fn of(job: &Job, schedule: &Schedule, asked: &Asked, visibility: Visibility) -> impl Iterator<Item = ComingOccurrence> {
    steps(schedule, asked.from).take(asked.each).map(move |(before, at)| ComingOccurrence {
        job: job.name.clone(),
        at,
        timezone: schedule.zone_name().to_owned(),
        clock_shift: schedule.dst_effect(at).map(|effect| effect.describe(&schedule.local(at))),
        left_out: match visibility {
            Visibility::All => LeftOut::between(schedule, before, at),
            // It names files.
            Visibility::Outline => None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Content;

    fn asked(parameters: &[(&str, &str)]) -> Result<Asked, String> {
        let own: Vec<_> = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Asked::of(&own)
    }

    #[test]
    fn occurrences_come_in_the_order_of_their_times_and_jobs_without_any_say_why() {
        let yaml = b"jobs:\n  a: {schedule: '0 3 * * *', command: 'true', timezone: Europe/Berlin}\n  \
            b: {schedule: '0 1 * * *', command: 'true'}\n  c: {after: {a: success}, command: 'true'}\n  \
            d: {schedule: '@daily', command: 'true', enabled: false}\n";
        let (loaded, _) = crate::config::parse("jobs.yaml", yaml).unwrap();
        let jobs: Vec<Arc<Job>> = loaded.jobs.values().cloned().collect();
        let asked = asked(&[("n", "2"), ("from", "2026-11-20T03:00:00Z")]).unwrap();
        let coming = Coming::of(&jobs, &asked, Visibility::All, || false).unwrap();
        let times: Vec<_> = coming.occurrences.iter().map(|at| format!("{} {}", at.job, at.at)).collect();
        let expected =
            ["b 2026-11-21T01:00:00Z", "a 2026-11-21T02:00:00Z", "b 2026-11-22T01:00:00Z", "a 2026-11-22T02:00:00Z"];
        assert_eq!(times, expected);
        assert_eq!(coming.none.iter().map(|none| none.job.as_str()).collect::<Vec<_>>(), ["c", "d"]);
    }

    /// However many days a calendar leaves out, whoever may not see them does not have them counted.
    #[test]
    fn what_is_left_out_is_only_for_callers_who_see_everything_and_no_work_is_endless() {
        let yaml = b"jobs: {a: {schedule: '@daily', command: x, calendar: {only: x.txt}}}".to_vec();
        let content = Content::of_files("j.yaml".as_ref(), [("j.yaml".into(), yaml)]);
        let content = content.with_calendars([("x.txt".into(), b"12-25\n".to_vec())]);
        let jobs: Vec<Arc<Job>> = content.load_for_any_host().unwrap().set.jobs.values().cloned().collect();
        let asked = asked(&[("n", "3"), ("from", "2026-11-20T03:00:00Z")]).unwrap();
        let left_out = |visibility| -> Vec<u64> {
            let coming = Coming::of(&jobs, &asked, visibility, || false).unwrap();
            coming.occurrences.iter().map(|at| at.left_out.as_ref().map_or(0, |left_out| left_out.count)).collect()
        };
        assert_eq!(left_out(Visibility::All), [34, 364, 365]);
        assert_eq!(left_out(Visibility::Outline), [0, 0, 0]);
        let over = Asked::of(&[("from".to_owned(), "2100-12-25T00:00:00Z".to_owned())]).unwrap();
        let why = |visibility| Coming::of(&jobs, &over, visibility, || false).unwrap().none.remove(0).why;
        let expected = "it has no further occurrences: its calendar leaves out all that would follow, the first on Sun 2100-12-26 00:00:00 (x.txt)";
        assert_eq!(why(Visibility::All), expected);
        assert_eq!(why(Visibility::Outline), "it has no further occurrences");
        let mut left = 3;
        let is_too_long = || {
            left -= 1;
            left == 0
        };
        assert!(Coming::of(&jobs, &asked, Visibility::All, is_too_long).is_none());
    }

    #[test]
    fn a_parameter_that_is_not_known_or_out_of_bounds_is_refused() {
        for bad in [("n", "0"), ("n", "1001"), ("from", "soon"), ("until", "x")] {
            assert!(asked(&[bad]).is_err(), "{bad:?}");
        }
    }
}
