//! Read-only documents under `/v1`: status and jobs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;

use super::health::awaits_turn;
use super::network::Visibility;
use super::reads::{Known, LeaderState, Old, Rest};
use super::{ApiState, RefusedRequest};
use crate::status::{self, HistoryEntry, JobStatus, LedgerPart, NodesDocument, Status};
use cronkeeper_core::clock::later;
use cronkeeper_core::coordination::ReadError;
use cronkeeper_core::election::Queue;
use cronkeeper_core::engine::unplaceable;
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::HistoryRecord;
use cronkeeper_core::suggest::{did_you_mean, nearest};

/// `GET /v1/status`.
pub(super) async fn status(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Status> {
    Json(state.full_status(visibility).await)
}

/// The body of `GET /v1/jobs`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Jobs {
    jobs: Vec<JobStatus>,
    #[serde(flatten)]
    reading: Reading,
}

/// How far the ledger was read for an answer, as in the status.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Reading {
    /// Why the ledger could not be read; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
    /// While it cannot be read: when all that is shown of it was read. Absent if none of it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_at: Option<Timestamp>,
    /// What this node has not read since its start: that a list of it is empty, or a value of it absent, means nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unknown: Vec<LedgerPart>,
}

impl Reading {
    fn of(status: &Status) -> Self {
        Self { unread: status.unread.clone(), read_at: status.read_at, unknown: status.unknown.clone() }
    }
}

/// `GET /v1/jobs`.
pub(super) async fn jobs(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<Jobs> {
    let status = state.full_status(visibility).await;
    Json(Jobs { reading: Reading::of(&status), jobs: status.jobs })
}

/// `GET /v1/nodes`.
pub(super) async fn nodes(State(state): State<Arc<ApiState>>, visibility: Visibility) -> Json<NodesDocument> {
    Json(NodesDocument::from(&state.full_status(visibility).await))
}

/// Coming occurrences in the document of one job.
const COMING: usize = 10;

/// The body of `GET /v1/jobs/{job}`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct OneJob {
    #[serde(flatten)]
    job: JobStatus,
    /// The next occurrences; empty while the job is disabled.
    coming: Vec<Timestamp>,
    #[serde(flatten)]
    reading: Reading,
}

/// `GET /v1/jobs/{job}`.
pub(super) async fn job(
    State(state): State<Arc<ApiState>>,
    visibility: Visibility,
    job: Result<Path<String>, PathRejection>,
) -> Result<Json<OneJob>, RefusedRequest> {
    let name = job_name(job)?;
    let status = state.full_status(visibility).await;
    // Not the guard: while somebody holds it, a reload waits.
    let set = Arc::clone(&state.sources.jobs.borrow());
    let coming = match set.jobs.get(&name) {
        Some(job) if job.enabled => {
            // Nothing is due before the next time that the status shows.
            let shown = status.jobs.iter().find(|job| job.name == name).and_then(|job| job.next);
            let first = job.next_after(status.at).map(|next| shown.map_or(next, |shown| next.max(shown)));
            std::iter::successors(first, |at| job.next_after(*at)).take(COMING).collect()
        }
        _ => Vec::new(),
    };
    match status.jobs.iter().find(|job| job.name == name) {
        Some(job) => Ok(Json(OneJob { job: job.clone(), coming, reading: Reading::of(&status) })),
        None => Err(RefusedRequest::new(StatusCode::NOT_FOUND, no_such_job(&name, &status))),
    }
}

/// The job's name in a path.
pub(super) fn job_name(job: Result<Path<String>, PathRejection>) -> Result<JobName, RefusedRequest> {
    let Path(job) = job.map_err(|bad| RefusedRequest::new(StatusCode::BAD_REQUEST, bad.body_text()))?;
    JobName::parse(&job).map_err(|bad| RefusedRequest::new(StatusCode::NOT_FOUND, bad.to_string()))
}

impl ApiState {
    /// The daemon's status, completed from the ledger.
    ///
    /// If a read fails, that part is what was read last, or else stays as the daemon published it: the status matters
    /// most when ZooKeeper is unreachable.
    pub(super) async fn full_status(&self, visibility: Visibility) -> Status {
        let state = self.sources.status.borrow().state;
        if let Some(led) = &*self.sources.led.borrow() {
            self.reads.led_with(led);
        }
        let (queue, runs, lasts) =
            futures_util::join!(self.reads.known_queue(), self.leader_state(state), self.reads.known_lasts());
        // No await from here on, so at most one handler at a time holds an answer that is not yet counted against
        // limits.
        let mut status = self.sources.status_now();
        let set = Arc::clone(&self.sources.jobs.borrow());
        status.put_next(&set);
        let queue_failure = put_queue(&mut status, queue);
        // The leader knows more: what the nodes have refused.
        if state != status::NodeState::Leading {
            let jobs = set.jobs.values().map(|job| &**job);
            status.put_unplaceable(&unplaceable(jobs, &status.places, &status.members));
        }
        let old = LedgerPart::ALL.into_iter().zip([queue_failure, runs.old(), lasts.old()]);
        for (part, Old { error: ReadError(why), read_at, .. }) in old.filter_map(|(part, old)| Some((part, old?))) {
            status.unread = Some(why);
            status.parts_read_at.extend(read_at.map(|read_at| (part, read_at)));
        }
        status.read_at = status.parts_read_at.values().min().copied();
        let is_old = runs.old().is_some();
        let has_old_ends = lasts.old().is_some();
        if let Some((leader_state, _)) = runs.value {
            status.learned(LedgerPart::Runs);
            status.put_read_runs(&leader_state.runs, is_old);
            status.put_paused(&leader_state.paused);
            status.put_alarms(&leader_state.alarms);
            match &leader_state.rest {
                Rest::Read { marks_ahead, links } => {
                    status.put_links(links.iter());
                    if state != status::NodeState::Leading {
                        status.put_marks_ahead(marks_ahead);
                        status.put_next_after(marks_ahead, &set);
                    }
                }
                Rest::Shown(led) => status.put_jobs_as_shown(&led.jobs),
            }
        }
        if let Some((lasts, _)) = lasts.value {
            status.learned(LedgerPart::Ends);
            status.put_lasts(&lasts, has_old_ends);
        }
        status.mark_ended();
        if let Some(idle) = self.standstill(&status) {
            status.ready = false;
            status.awaiting = Some(awaits_turn(idle));
        }
        match visibility {
            Visibility::All => status,
            Visibility::Outline => status.outlined(),
        }
    }

    /// Reads the leader's state from the ledger. Nothing on the leader, whose published status has it already, unless that
    /// may be older than what this node has just written.
    async fn leader_state(&self, state: status::NodeState) -> Known<LeaderState> {
        match state {
            status::NodeState::Leading if !self.reads.has_just_changed() => Known::NOT_ASKED,
            _ => self.reads.known_runs().await,
        }
    }
}

/// Sets the queue and the members. Returns why they are old, if they are, or unknown.
pub(super) fn put_queue(status: &mut Status, queue: Known<Queue>) -> Option<Old> {
    let old = queue.old();
    let read_at = queue.value.as_ref().map(|(_, read_at)| *read_at);
    // A listing from before the connection was lost does not say who leads now, and neither does the election. If the
    // service answers and still confirms nothing, the first of the queue may have lost its lease as well.
    let lost = status.session.as_ref().filter(|session| !session.connected);
    let lost = lost.zip(read_at).and_then(|(session, read_at)| {
        let lease_over = later(session.since, Duration::from_millis(session.timeout_ms));
        let error = if read_at < session.since {
            format!("the connection to {} is lost", status.backend)
        } else if status.at > lease_over {
            format!("{} answers, but does not confirm what this node writes", status.backend)
        } else {
            return None;
        };
        Some(Old { error: ReadError(error), since: session.since, read_at: Some(read_at) })
    });
    // That a read failed before the connection was made says nothing about this outage.
    let connected_since = status.session.as_ref().map(|session| session.since);
    let old = old.or(lost).map(|old| Old { since: connected_since.map_or(old.since, |at| at.max(old.since)), ..old });
    match (&old, queue.value) {
        (None, Some((queue, read_at))) => status.put_queue_of(&queue, read_at),
        (Some(old), Some((queue, read_at))) => status.put_old_queue(&queue, read_at, old.since),
        (Some(old), None) => status.forget_leader(old.since),
        (None, None) => {}
    }
    old
}

/// Says that this node's jobs file lacks the job, and if that of another node differs, which may have it.
pub(super) fn no_such_job(job: &JobName, status: &Status) -> String {
    let meant = did_you_mean(nearest(job.as_str(), status.jobs.iter().map(|known| known.name.as_str())));
    let differs = status.members.iter().any(|member| member.published.digest != status.jobs_file.digest);
    let elsewhere = if differs { "; the nodes' jobs files differ, see `cronkeeper status`" } else { "" };
    format!("there is no job `{job}`{meant}{elsewhere}")
}

impl Visibility {
    /// The records without what the caller may not see.
    pub(super) fn of_records(self, records: Vec<HistoryRecord>) -> Vec<HistoryEntry> {
        records.into_iter().map(|record| self.of_record(record.into())).collect()
    }

    /// Removes from a record what the caller may not see.
    pub(super) fn of_record(self, record: HistoryEntry) -> HistoryEntry {
        match self {
            Self::All => record,
            Self::Outline => record.outlined(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reads::ReadFailure;
    use crate::status::{LastLeader, Role, sample};
    use cronkeeper_core::term::NodeName;

    /// A service that takes no writes still answers, with the queue as it was.
    #[test]
    fn a_follower_whose_session_is_over_does_not_know_who_leads_whatever_the_service_answers() {
        let lost_at = "2026-11-20T02:59:30Z";
        let leader_at = |now: &str| {
            let mut status = sample::leader();
            status.node = NodeName::new("host-b");
            status.at = sample::at(now);
            status.role = Role { leader_node: Some(NodeName::new("host-a")), ..Role::default() };
            let session = status.session.as_mut().unwrap();
            (session.connected, session.since) = (false, sample::at(lost_at));
            let read_at = status.at;
            let old = put_queue(&mut status, Known { value: Some((sample::queue().into(), read_at)), failure: None });
            let until = status.role.last_leader.map(|last| (last.node.to_string(), last.unknown_since.to_string()));
            (status.role.leader_node.is_some(), until, old.map(|old| old.error.0))
        };
        assert_eq!(leader_at("2026-11-20T02:59:40Z"), (true, None, None), "its session may go on");
        let (knows, until, why) = leader_at("2026-11-20T02:59:41Z");
        assert_eq!((knows, until), (false, Some(("host-a".to_owned(), lost_at.to_owned()))));
        assert!(why.is_some_and(|why| why.ends_with("answers, but does not confirm what this node writes")));
    }

    #[test]
    fn the_leader_is_unknown_since_this_node_lost_sight_of_it_not_since_a_read_failed_in_an_earlier_outage() {
        let (read_at, failed_at) = (sample::at("2026-11-20T02:50:00Z"), sample::at("2026-11-20T02:51:00Z"));
        let since_at = sample::at("2026-11-20T02:59:30Z");
        let failing = || Known {
            value: Some((sample::queue().into(), read_at)),
            failure: Some(ReadFailure { error: ReadError("away".into()), since: failed_at }),
        };
        let unknown = |role: Role, connected: bool| {
            let mut status = sample::leader();
            (status.node, status.role) = (NodeName::new("host-b"), role);
            let session = status.session.as_mut().unwrap();
            (session.connected, session.since) = (connected, since_at);
            put_queue(&mut status, failing());
            status.role.last_leader
        };
        let last = |node: &str, unknown_since| LastLeader { node: NodeName::new(node), unknown_since };
        let lost = last("host-c", sample::at("2026-11-20T02:59:20Z"));
        let role = Role { last_leader: Some(lost.clone()), ..Role::default() };
        assert_eq!(unknown(role, false), Some(lost), "as the election has it");
        let knows = Role { leader_node: Some(NodeName::new("host-c")), ..Role::default() };
        assert_eq!(unknown(knows, true), Some(last("host-c", since_at)), "it has not noticed yet");
    }
}
