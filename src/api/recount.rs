//! Requests of operators to count a job from now on again, which a clock that was ahead has left silent.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::authorize::{Actor, ApiActor, log_requested};
use super::control::{PathParam, RequestBody, parse_body, whole_second};
use super::{ApiState, RefusedRequest};
use cronkeeper_core::clock::instant;
use cronkeeper_core::job::{Job, JobName};
use cronkeeper_core::run::{NotRecounted, RecountRequest, Recounted, RunId};

/// The body of `POST /v1/jobs/{job}/recount`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecountBody {}

/// What was done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Recounting {
    /// Now, by the ledger's clock.
    pub at: Timestamp,
    /// The time from which the job is counted: now, unless more occurrences were decided on than can be noted.
    pub from: Timestamp,
    /// When the job is due next, with its splay; absent if that is never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Number of later occurrences that ran or were skipped before, and are not decided on again.
    pub listed: usize,
    /// The last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed_until: Option<Timestamp>,
    /// Runs in flight that were begun for occurrences which are yet to come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_flight: Vec<RunId>,
}

/// `POST /v1/jobs/{job}/recount`. 409 if the job cannot be recounted.
pub(super) async fn recount(
    State(state): State<Arc<ApiState>>,
    ApiActor(actor): ApiActor,
    job: PathParam,
    body: RequestBody,
) -> Result<Json<Recounting>, RefusedRequest> {
    let job = state.known_job(job)?;
    let RecountBody {} = parse_body(body)?;
    state.recount(actor, job).await.map(Json)
}

impl ApiState {
    async fn recount(&self, actor: Actor, job: JobName) -> Result<Recounting, RefusedRequest> {
        self.refuse_other_versions(&job).await?;
        let definition = self.sources.jobs.borrow().jobs.get(&job).cloned();
        let at = whole_second(self.ledger_time());
        // The history of a job that is not loaded here counts as full: nobody here knows its limit.
        let history_limit = definition.as_ref().map_or(0, |job| usize::from(job.history_limit));
        let request = RecountRequest { id: Uuid::new_v4(), by: actor.by.clone(), at, history_limit };
        match self.recorded(self.sources.operator.recount(job.clone(), request)).await? {
            Ok(Recounted { from, listed, in_flight }) => {
                log_requested!(actor, request = "recount", %job);
                let next = definition.and_then(|job| next_due(&job, from, &listed));
                let listed_until = listed.last().copied();
                Ok(Recounting { at, from, next, listed: listed.len(), listed_until, in_flight })
            }
            Err(why) => {
                let next = match (&why, definition) {
                    (NotRecounted::NotAhead(count), Some(definition)) => next_due(&definition, at.max(*count), &[]),
                    _ => None,
                };
                let next = next.map(|next| format!("; it is next due at {}", instant(next))).unwrap_or_default();
                Err(not_possible(&job, &format!("{why}{next}")))
            }
        }
    }

    /// A node that does not know the list in the job's record would decide on its occurrences a second time. The members
    /// are read for this: after its start this node may not have read them yet, and none of them would be another version.
    async fn refuse_other_versions(&self, job: &JobName) -> Result<(), RefusedRequest> {
        let members = self.read_queue().await?.members;
        let own = self.sources.status.borrow().version.clone();
        let Some(other) = members.iter().find(|member| member.version != own) else { return Ok(()) };
        let (node, version) = (&other.node, cronkeeper_core::escape::short(&other.version, 100));
        let why = format!(
            "node {node} runs cronkeeper {version} and this one {own}, and another version may run again what ran \
             while the clock was ahead; install the same version on all nodes first"
        );
        Err(not_possible(job, &why))
    }
}

fn not_possible(job: &JobName, why: &str) -> RefusedRequest {
    RefusedRequest::new(StatusCode::CONFLICT, format!("{job} is not recounted: {why}"))
}

/// When the job is first due after this instant, without the occurrences that are listed.
fn next_due(job: &Job, after: Timestamp, listed: &[Timestamp]) -> Option<Timestamp> {
    let mut next = job.next_after(after)?;
    while listed.contains(&next) {
        next = job.next_after(next)?;
    }
    next.checked_add(job.splay.delay()).ok().filter(|_| job.enabled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records;

    fn at(text: &str) -> Timestamp {
        format!("2026-11-20T{text}Z").parse().unwrap()
    }

    #[test]
    fn what_is_listed_is_not_due() {
        let minutely = test_records::job("a", "* * * * *");
        let listed = [at("10:01:00"), at("10:02:00"), at("10:04:00")];
        assert_eq!(next_due(&minutely, at("10:00:30"), &listed), Some(at("10:03:00")));
        assert_eq!(next_due(&minutely, at("10:03:00"), &listed), Some(at("10:05:00")));
        assert_eq!(next_due(&Job { enabled: false, ..minutely }, at("10:03:00"), &[]), None);
    }
}
