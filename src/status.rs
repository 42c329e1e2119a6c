//! The status document: the body of `GET /v1/status`, which `cronkeeper status` shows.
//!
//! The daemon publishes it after each turn that changed it. The API adds what only the ledger knows, and what depends
//! on the time of the request. No decision depends on it, and this module contains neither policy nor I/O.

mod history;
pub mod outline;
#[cfg(test)]
pub(crate) mod sample;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use history::{EndedRun, HistoryEntry, Skipped, ending_details};
pub use outline::WITHHELD;

use crate::clock::{Now, Uptime};
use crate::election::{Member, Queue};
use crate::job::{Digest, JobName, JobSet};
use crate::ledger::LastEnd;
use crate::run::{Drain, Link, Outcome, Pause, Reason, RunId, RunRecord, RunState, millis};
use crate::term::{CandidateName, FencingToken, NodeName, SessionId};
use crate::warden::cgroup::hierarchy::Cgroups;

/// A node and its view of the cluster, as shown to operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    /// Version of the document's format.
    pub v: u32,
    /// When the document was made.
    pub at: Timestamp,
    /// The node that answers.
    pub node: NodeName,
    /// `zookeeper` or `solo`.
    pub backend: String,
    /// Version of the node's program.
    pub version: String,
    /// When the node's process started.
    pub started_at: Timestamp,
    pub state: NodeState,
    /// True while the node takes part: it leads, or would lead when its turn comes.
    pub ready: bool,
    /// What the node waits for while it is not ready.
    pub awaiting: Option<String>,
    pub role: Role,
    pub session: Option<Session>,
    #[serde(default)]
    pub confinement: Confinement,
    pub jobs_file: JobsFile,
    /// How far the node's clock is ahead of the coordination service's clock, at least, in milliseconds; negative:
    /// behind. Absent if the service has no clock of its own, or has not been read yet.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    /// Sorted by name.
    pub jobs: Vec<JobStatus>,
    /// The runs in flight: those of all nodes as far as this node knows them, otherwise its own.
    pub runs: Vec<RunStatus>,
    /// The queue, with the leader first.
    pub queue: Vec<QueuedCandidate>,
    /// The nodes that are alive.
    pub members: Vec<Member>,
    /// Nodes that this node has seen since its start and that are not alive now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingMember>,
    /// The nodes that operators have drained, alive or not, each with who did it, when and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drained: BTreeMap<NodeName, Drain>,
    /// The nodes whose jobs or time zone data differ from the leader's.
    pub drift: Vec<NodeName>,
    /// Why the ledger could not be read. What it would have added is missing then, or is what the node last knew.
    pub unread: Option<String>,
    /// What this node cannot read, write or trust, each with the reason. The node ignores it for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

/// What a node is doing, from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum NodeState {
    /// Reading its jobs.
    Starting,
    /// Connecting to the coordination service and joining the queue.
    Joining,
    /// Waiting in the queue behind another candidate.
    Following,
    /// Elected, and settling what earlier leaders left open.
    TakingOver,
    Leading,
    /// Out of the queue until an operator undrains it. Its runs in flight go on.
    Drained,
    /// Stopping: waiting for its runs to end.
    Draining,
}

impl NodeState {
    /// The name in logs and in the document.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Following => "following",
            Self::TakingOver => "taking-over",
            Self::Leading => "leading",
            Self::Drained => "drained",
            Self::Draining => "draining",
        }
    }
}

/// A node's position in the election.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Role {
    /// The node's entry in the queue.
    pub candidate: Option<CandidateName>,
    pub predecessor: Option<CandidateName>,
    /// Absent also if the predecessor's entry is not cronkeeper's.
    pub predecessor_node: Option<NodeName>,
    /// The leader, as far as the node knows.
    pub leader_node: Option<NodeName>,
    /// The token of the node's own term.
    pub token: Option<FencingToken>,
    /// When the node's own term began.
    pub term_since: Option<Timestamp>,
}

/// A session with the coordination service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Session {
    pub id: SessionId,
    /// The negotiated timeout, in milliseconds.
    pub timeout_ms: u64,
    /// False while the connection is lost.
    pub connected: bool,
    /// When `connected` last changed.
    pub since: Timestamp,
    /// When the lease ends; absent while the node keeps none.
    #[serde(skip)]
    pub lease_until: Option<Uptime>,
    /// Remaining time of the lease, in milliseconds.
    pub lease_remaining_ms: Option<u64>,
}

/// How a node keeps its runs together and limits them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Confinement {
    /// The cgroup under which each run has one of its own; absent if none is available.
    pub cgroup: Option<String>,
    /// What enforces `limits.memory` and `limits.processes`. All other limits are always rlimits.
    pub limits: LimitedBy,
}

/// Enforces the limits of memory and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LimitedBy {
    /// The run's cgroup, which limits the run as a whole.
    Cgroup,
    /// rlimits, which limit each process's memory, and each user's number of processes.
    #[default]
    Rlimit,
}

impl Confinement {
    /// The confinement that these cgroups provide.
    pub fn of(cgroups: Option<&Cgroups>) -> Self {
        let cgroup = cgroups.map(|cgroups| cgroups.path().display().to_string());
        let has_controllers = cgroups.is_some_and(Cgroups::has_controllers);
        Self { cgroup, limits: if has_controllers { LimitedBy::Cgroup } else { LimitedBy::Rlimit } }
    }
}

/// The jobs file and the result of reading it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobsFile {
    /// A file or a directory.
    pub path: String,
    /// Digest of the loaded jobs.
    pub digest: Digest,
    /// False if the current content was rejected.
    pub valid: bool,
    /// Why it was rejected: `file:line:column: message`.
    pub errors: Vec<String>,
    /// When the jobs in use were loaded.
    pub loaded_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobStatus {
    pub name: JobName,
    pub description: Option<String>,
    /// The job's expressions as written; empty for a job with `after`.
    pub schedule: Vec<String>,
    /// The time zone of `schedule`.
    pub timezone: String,
    /// The upstream jobs, each with the condition on its outcome; empty for a job with a schedule.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<JobName, String>,
    /// False if the job has no occurrences.
    pub enabled: bool,
    /// The run that ended last.
    pub last: Option<LastRun>,
    /// The next occurrence.
    pub next: Option<Timestamp>,
    /// The job's runs in flight.
    pub running: Vec<RunId>,
    /// Upstreams whose results are missing while those of other upstreams have arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<JobName>,
    /// A problem with the job, as text; only the leader knows it.
    #[serde(default)]
    pub error: Option<String>,
    /// Who paused the job, when and why; absent while it is not paused.
    #[serde(default)]
    pub paused: Option<Pause>,
}

impl JobStatus {
    /// True if somebody should look at the job: its last run did not succeed, or the leader has a problem with it.
    pub fn is_failing(&self) -> bool {
        self.error.is_some() || self.last.as_ref().is_some_and(|last| last.outcome != Outcome::Success)
    }
}

/// A node that was alive and is no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissingMember {
    pub node: NodeName,
    pub host: String,
    /// When this node last saw it.
    pub last_seen: Timestamp,
}

/// Who drained a node, when and why.
pub fn drain_in_words(node: &NodeName, drain: &Drain) -> String {
    let reason = drain.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{node} is drained by {}, since {}{reason}", drain.by, drain.at)
}

/// The end of a job's last run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastRun {
    pub run: RunId,
    /// The node that owned the run.
    pub node: NodeName,
    /// The number of the last attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    pub outcome: Outcome,
    /// Details that the outcome does not contain.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// The exit code of the main process, if it exited.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// The signal that ended the main process, if one did.
    #[serde(default)]
    pub signal: Option<i32>,
    /// When the run ended.
    pub at: Timestamp,
    /// When this node learned of the end itself; absent if it was read from the ledger.
    #[serde(skip)]
    pub reported_at: Option<Uptime>,
}

impl From<LastEnd> for LastRun {
    fn from(end: LastEnd) -> Self {
        let LastEnd { run, node, attempt, outcome, reason, exit_code, signal, at } = end;
        Self { run, node, attempt, outcome, reason, exit_code, signal, at, reported_at: None }
    }
}

/// The last end of each job as the ledger had it.
#[derive(Debug, PartialEq)]
pub struct RecordedEnds {
    pub lasts: BTreeMap<JobName, LastRun>,
    /// When the ledger was read. What ended later may be missing.
    pub read_at: Uptime,
}

/// A run in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RunStatus {
    pub run: RunId,
    /// The node that owns the run.
    pub node: NodeName,
    /// Counts from 1.
    pub attempt: u32,
    /// When the attempt began.
    pub since: Timestamp,
    pub state: RunState,
    /// When the next attempt begins, while the run waits for it.
    pub retry_at: Option<Timestamp>,
    /// Until when the run may go on while its node is cut off; absent if there is no limit.
    #[serde(default)]
    pub keep_until: Option<Timestamp>,
    /// How the run ended, if it has ended and the ledger has not recorded that yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Outcome>,
}

impl RunStatus {
    /// True if this end is the run's, and not that of an earlier attempt whose node has lost the run to another.
    fn is_ended_by(&self, last: &LastRun) -> bool {
        (&self.run, &self.node, self.attempt) == (&last.run, &last.node, last.attempt)
    }
}

impl From<&RunRecord> for RunStatus {
    fn from(record: &RunRecord) -> Self {
        Self {
            run: record.id(),
            node: record.owner.node.clone(),
            attempt: record.attempt,
            since: record.begun_at,
            state: record.state,
            retry_at: record.retry_at,
            keep_until: record.keep_until,
            ended: None,
        }
    }
}

/// A candidate, or a foreign entry, in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct QueuedCandidate {
    pub candidate: CandidateName,
    /// Absent for an entry that is not cronkeeper's.
    pub node: Option<NodeName>,
    /// Absent for the first entry.
    pub predecessor: Option<CandidateName>,
}

impl Status {
    /// The status with the time-dependent fields as of `now`.
    #[must_use]
    pub fn at(mut self, now: Now) -> Self {
        self.at = now.wall;
        if let Some(session) = &mut self.session {
            session.lease_remaining_ms = session.lease_until.map(|until| millis(until.since(now.up)));
        }
        self
    }

    /// Sets the queue and the live members.
    pub fn put_queue(&mut self, queue: &Queue) {
        let mut predecessor = None;
        self.queue.clear();
        for entry in &queue.candidates {
            let queued = QueuedCandidate { candidate: entry.candidate.clone(), node: entry.node.clone(), predecessor };
            predecessor = Some(entry.candidate.clone());
            self.queue.push(queued);
        }
        self.members.clone_from(&queue.members);
        self.drained.clone_from(&queue.drained);
        self.missing.retain(|missing| !queue.members.iter().any(|member| member.node == missing.node));
        // A node that leads knows it better than a listing, which may be older.
        if let (None, Some(first)) = (self.role.token, queue.candidates.first()) {
            self.role.leader_node.clone_from(&first.node);
        }
        self.drift = self.differing();
    }

    /// True if operators have drained every node that is alive, so that nobody leads.
    pub fn is_all_drained(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(|member| self.drained.contains_key(&member.node))
    }

    /// Sets the last end of each job as the ledger has it.
    ///
    /// What this node has seen end itself counts only while the ledger may not have it yet: after the read, or while
    /// the run is still recorded as in flight. Anything else that this node saw may have been followed by a run on
    /// another node.
    pub fn put_lasts(&mut self, recorded: &RecordedEnds) {
        let in_flight: BTreeMap<&RunId, &RunStatus> = self.runs.iter().map(|run| (&run.run, run)).collect();
        for job in &mut self.jobs {
            let is_newer = |own: &LastRun| {
                let is_open = in_flight.get(&own.run).is_some_and(|run| run.is_ended_by(own));
                own.reported_at.is_some_and(|at| at >= recorded.read_at) || is_open
            };
            if !job.last.as_ref().is_some_and(is_newer) {
                job.last = recorded.lasts.get(&job.name).cloned();
            }
        }
    }

    /// Marks the runs that have ended although the ledger still has them as in flight.
    pub fn mark_ended(&mut self) {
        let ended = self.jobs.iter().filter_map(|job| job.last.as_ref()).map(|last| (&last.run, last));
        let ended: BTreeMap<&RunId, &LastRun> = ended.collect();
        for run in &mut self.runs {
            run.ended = ended.get(&run.run).filter(|last| run.is_ended_by(last)).map(|last| last.outcome);
        }
    }

    /// Computes the next occurrences anew where they have passed since the status was published.
    pub fn put_next(&mut self, jobs: &JobSet) {
        let now = self.at;
        for status in self.jobs.iter_mut().filter(|status| status.next.is_some_and(|next| next <= now)) {
            status.next = jobs.jobs.get(&status.name).and_then(|job| job.next_after(now));
        }
    }

    /// Sets the runs in flight.
    pub fn put_runs(&mut self, runs: &[RunStatus]) {
        self.runs = runs.to_vec();
        let mut of_job: BTreeMap<&JobName, Vec<RunId>> = BTreeMap::new();
        for run in runs {
            of_job.entry(run.run.job()).or_default().push(run.run.clone());
        }
        for job in &mut self.jobs {
            job.running = of_job.remove(&job.name).unwrap_or_default();
        }
    }

    /// Sets which jobs are paused.
    pub fn put_paused(&mut self, paused: &BTreeMap<JobName, Pause>) {
        for job in &mut self.jobs {
            job.paused = paused.get(&job.name).cloned();
        }
    }

    /// Sets the upstreams that jobs still wait for, given the links that have arrived.
    pub fn put_links<'a>(&mut self, links: impl Iterator<Item = &'a Link>) {
        let mut arrived: BTreeMap<RunId, BTreeSet<&JobName>> = BTreeMap::new();
        for link in links {
            arrived.entry(link.run()).or_default().insert(&link.upstream);
        }
        for job in &mut self.jobs {
            let of_job = arrived.iter().filter(|(run, _)| *run.job() == job.name).map(|(_, arrived)| arrived);
            let missing = of_job.flat_map(|arrived| job.after.keys().filter(|upstream| !arrived.contains(upstream)));
            let missing: BTreeSet<&JobName> = missing.collect();
            job.waits_for = missing.into_iter().cloned().collect();
        }
    }

    /// The members that differ from the leader, or from this node while nobody leads.
    fn differing(&self) -> Vec<NodeName> {
        let reference = self.role.leader_node.as_ref().unwrap_or(&self.node);
        let Some(reference) = self.members.iter().find(|member| member.node == *reference) else { return Vec::new() };
        let reference = &reference.published;
        let differs = |member: &&Member| {
            member.published.has_other_jobs_than(reference) || member.published.has_other_zones_than(reference)
        };
        self.members.iter().filter(differs).map(|member| member.node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Published;

    /// The leader's status, and one end of its first job.
    fn with_end() -> (Status, LastRun) {
        let status = sample::leader();
        let last = status.jobs[0].last.clone().unwrap();
        (status, last)
    }

    fn recorded(last: &LastRun, read_at: Uptime) -> RecordedEnds {
        RecordedEnds { lasts: [(last.run.job().clone(), last.clone())].into(), read_at }
    }

    #[test]
    fn the_ledger_knows_the_last_end_better_than_a_node_that_ran_the_job_earlier() {
        let at = |seconds| Uptime::ZERO + std::time::Duration::from_secs(seconds);
        let (mut status, last) = with_end();
        let failed = LastRun { outcome: Outcome::Failure, node: NodeName::new("host-c"), ..last.clone() };
        status.jobs[0].last = Some(LastRun { reported_at: Some(at(9)), ..last.clone() });
        status.put_lasts(&recorded(&failed, at(10)));
        assert_eq!(status.jobs[0].last.as_ref(), Some(&failed));
        let own = LastRun { reported_at: Some(at(10)), ..last };
        status.jobs[0].last = Some(own.clone());
        status.put_lasts(&recorded(&failed, at(10)));
        assert_eq!(status.jobs[0].last, Some(own), "it may have ended after the read");
    }

    #[test]
    fn a_run_that_has_ended_is_not_shown_as_running_while_its_end_is_not_recorded() {
        let (mut status, last) = with_end();
        let run = status.runs[0].run.clone();
        let node = status.runs[0].node.clone();
        let last = LastRun { run: run.clone(), node, ..last };
        let own = LastRun { outcome: Outcome::Interrupted, reported_at: Some(Uptime::ZERO), ..last };
        status.jobs[1].last = Some(own.clone());
        let later = Uptime::ZERO + std::time::Duration::from_secs(9);
        status.put_lasts(&RecordedEnds { lasts: BTreeMap::new(), read_at: later });
        status.mark_ended();
        assert_eq!((status.jobs[1].last.as_ref(), status.runs[0].ended), (Some(&own), Some(Outcome::Interrupted)));
        assert_eq!(status.jobs[0].last, None, "the ledger has no end of that job");
    }

    #[test]
    fn an_end_of_an_earlier_attempt_is_not_the_end_of_the_next_ones() {
        let (mut status, last) = with_end();
        status.runs[0].attempt = 2;
        let (run, node) = (status.runs[0].run.clone(), status.runs[0].node.clone());
        status.jobs[1].last = Some(LastRun { run, node, reported_at: Some(Uptime::ZERO), ..last });
        let later = Uptime::ZERO + std::time::Duration::from_secs(9);
        status.put_lasts(&RecordedEnds { lasts: BTreeMap::new(), read_at: later });
        status.mark_ended();
        assert_eq!((&status.jobs[1].last, status.runs[0].ended), (&None, None));
    }

    #[test]
    fn a_listing_that_is_older_does_not_contradict_a_node_that_leads() {
        let mut status = sample::leader();
        let mut queue = sample::queue();
        queue.candidates.remove(0);
        status.put_queue(&queue);
        assert_eq!(status.role.leader_node, Some(status.node.clone()));
        status.role = Role::default();
        status.put_queue(&queue);
        assert_eq!(status.role.leader_node, None, "the first entry is not cronkeeper's");
    }

    #[test]
    fn an_occurrence_that_has_passed_is_not_the_next_one() {
        let mut status = sample::leader();
        let yaml = b"jobs:\n  load: {schedule: '* * * * *', command: 'true'}\n";
        let (loaded, _) = crate::config::parse("jobs.yaml", yaml).unwrap();
        status.at = sample::at("2026-11-20T03:01:30Z");
        status.put_next(&loaded);
        assert_eq!(status.jobs[1].next, Some(sample::at("2026-11-20T03:02:00Z")));
        assert_eq!(status.jobs[0].next, Some(sample::at("2026-11-21T01:30:00Z")), "it has not passed");
    }

    #[test]
    fn a_node_with_another_priority_or_that_drains_does_not_count_as_drift() {
        let mut queue = sample::queue();
        let same = queue.members[0].published.clone();
        queue.members[1].published = Published { priority: 10, draining: true, jobs_invalid: true, ..same.clone() };
        let mut status = sample::leader();
        status.put_queue(&queue);
        assert_eq!(status.drift, []);
        queue.members[1].published.tzdata = "2024a".into();
        status.put_queue(&queue);
        assert_eq!(status.drift, [queue.members[1].node.clone()]);
    }
}
