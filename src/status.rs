//! What a node shows of itself and of the cluster: the body of `GET /v1/status`, and what `cronkeeper status` reads.
//!
//! The daemon publishes it as a value after each turn that changed it; the API adds what only the ledger knows, and
//! what depends on the moment of asking. No decision rests on any of it. Deliberately without policy and without I/O.

mod history;
mod outline;
#[cfg(test)]
pub(crate) mod sample;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use history::{EndedRun, HistoryEntry, Skipped};
pub use outline::WITHHELD;

use crate::clock::{Now, Uptime};
use crate::election::{Member, Queue};
use crate::job::{Digest, JobName};
use crate::run::{Link, Outcome, Pause, RunId, RunRecord, RunState, millis};
use crate::term::{CandidateName, FencingToken, NodeName, SessionId};
use crate::warden::cgroup::hierarchy::Cgroups;

/// A node, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Format of the document.
    pub v: u32,
    /// When it was shown.
    pub at: Timestamp,
    /// The node that answers.
    pub node: NodeName,
    /// `zookeeper` or `solo`.
    pub backend: String,
    /// Of its program.
    pub version: String,
    /// When its process started.
    pub started_at: Timestamp,
    /// What it does.
    pub state: State,
    /// True while it takes part: it leads, or would when its turn comes.
    pub ready: bool,
    /// What it waits for, while it is not ready.
    pub awaiting: Option<String>,
    /// Its place in the election.
    pub role: Role,
    /// Its session, if it has one.
    pub session: Option<Session>,
    /// How its runs are kept together and limited.
    #[serde(default)]
    pub confinement: Confinement,
    /// Where its jobs come from.
    pub jobs_file: JobsFile,
    /// How far its clock is ahead of the coordination service's, as far as is sure, in milliseconds; negative: behind. Absent
    /// where that has no clock of its own, or was not read yet.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    /// Its jobs, by name.
    pub jobs: Vec<JobStatus>,
    /// What is in flight: everywhere as far as the node knows, else its own.
    pub runs: Vec<RunStatus>,
    /// The queue, the leader first.
    pub queue: Vec<Place>,
    /// The nodes that live.
    pub members: Vec<Member>,
    /// The nodes whose jobs or time zone data differ from the leader's.
    pub drift: Vec<NodeName>,
    /// Why the ledger could not be read; what it would have told is then missing, or as the node last heard it.
    pub unread: Option<String>,
    /// What this node cannot read, write or trust, each with why: it is passed over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It reads its jobs.
    Starting,
    /// It looks for the coordination service and its place in the queue.
    Joining,
    /// It waits behind another.
    Following,
    /// It is first, and settles what was left.
    TakingOver,
    /// It leads.
    Leading,
    /// It was told to end, and lets its runs end.
    Draining,
}

impl State {
    /// The word in logs and status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Following => "following",
            Self::TakingOver => "taking-over",
            Self::Leading => "leading",
            Self::Draining => "draining",
        }
    }
}

/// A node's place in the election.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// Its entry in the queue.
    pub candidate: Option<CandidateName>,
    /// The entry before its own.
    pub predecessor: Option<CandidateName>,
    /// Whose that is, where it is cronkeeper's.
    pub predecessor_node: Option<NodeName>,
    /// Who leads, as far as the node knows.
    pub leader_node: Option<NodeName>,
    /// Of its own term.
    pub token: Option<FencingToken>,
    /// When its own term began.
    pub term_since: Option<Timestamp>,
}

/// A session with the coordination service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// As negotiated, in milliseconds.
    pub timeout_ms: u64,
    /// False while the connection is lost.
    pub connected: bool,
    /// Since when it is so.
    pub since: Timestamp,
    /// When the lease ends; absent while none is kept.
    #[serde(skip)]
    pub lease_until: Option<Uptime>,
    /// What is left of the lease, in milliseconds.
    pub lease_remaining_ms: Option<u64>,
}

/// How a node keeps its runs together and limits them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Below which cgroup each run has one of its own; absent where there is none to be had.
    pub cgroup: Option<String>,
    /// What keeps `limits.memory` and `limits.processes`; all others are rlimits everywhere.
    pub limits: LimitedBy,
}

/// What keeps the limits of memory and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitedBy {
    /// The cgroup, for the run as a whole.
    Cgroup,
    /// rlimits, for each process, or each user.
    #[default]
    Rlimit,
}

impl Confinement {
    /// By these cgroups, if there are any.
    pub fn of(cgroups: Option<&Cgroups>) -> Self {
        let cgroup = cgroups.map(|cgroups| cgroups.path().display().to_string());
        let has_controllers = cgroups.is_some_and(Cgroups::has_controllers);
        Self { cgroup, limits: if has_controllers { LimitedBy::Cgroup } else { LimitedBy::Rlimit } }
    }
}

/// Where the jobs come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsFile {
    /// File or folder.
    pub path: String,
    /// Of what is loaded.
    pub digest: Digest,
    /// False while the file as it is now was rejected.
    pub valid: bool,
    /// Why: `file:line:column: message`.
    pub errors: Vec<String>,
    /// When what is in use was loaded.
    pub loaded_at: Timestamp,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStatus {
    /// Its name.
    pub name: JobName,
    /// For people.
    pub description: Option<String>,
    /// Its expressions, as written.
    pub schedule: String,
    /// The zone they are in.
    pub timezone: String,
    /// The jobs after which it runs, and how their runs are to end; empty where it has a schedule.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<JobName, String>,
    /// False: it has no occurrences.
    pub enabled: bool,
    /// How it ended last.
    pub last: Option<LastRun>,
    /// When it is due next.
    pub next: Option<Timestamp>,
    /// What of it is in flight.
    pub running: Vec<RunId>,
    /// The jobs whose link it waits for, while it has that of others in the same chain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<JobName>,
    /// What is wrong with it, in words; only the leader knows.
    #[serde(default)]
    pub error: Option<String>,
    /// Who paused it, when and why; absent while it is not paused.
    #[serde(default)]
    pub paused: Option<Pause>,
}

/// How a job ended last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// The run.
    pub run: RunId,
    /// Its outcome.
    pub outcome: Outcome,
    /// When it ended.
    pub at: Timestamp,
}

/// A run in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Its id.
    pub run: RunId,
    /// The node that has it.
    pub node: NodeName,
    /// Counts from 1.
    pub attempt: u32,
    /// When the attempt was begun.
    pub since: Timestamp,
    /// See [`RunState`].
    pub state: RunState,
    /// When the next attempt begins, while it waits for one.
    pub retry_at: Option<Timestamp>,
    /// How long it may go on while its node is cut off; absent where it may for ever.
    #[serde(default)]
    pub keep_until: Option<Timestamp>,
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
        }
    }
}

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its name.
    pub candidate: CandidateName,
    /// Whose it is; absent for an entry that is not cronkeeper's.
    pub node: Option<NodeName>,
    /// The entry that it waits for; the leader waits for none.
    pub predecessor: Option<CandidateName>,
}

impl Status {
    /// As it is to be shown now.
    #[must_use]
    pub fn at(mut self, now: Now) -> Self {
        self.at = now.wall;
        if let Some(session) = &mut self.session {
            session.lease_remaining_ms = session.lease_until.map(|until| millis(until.since(now.up)));
        }
        self
    }

    /// Puts in the queue and the living nodes, as read.
    pub fn put_queue(&mut self, queue: &Queue) {
        let mut predecessor = None;
        self.queue.clear();
        for entry in &queue.candidates {
            let place = Place { candidate: entry.candidate.clone(), node: entry.node.clone(), predecessor };
            predecessor = Some(entry.candidate.clone());
            self.queue.push(place);
        }
        self.members.clone_from(&queue.members);
        if let Some(first) = queue.candidates.first() {
            self.role.leader_node.clone_from(&first.node);
        }
        self.drift = self.differing();
    }

    /// Puts in what is in flight anywhere, as read.
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

    /// Puts in what is paused, as read.
    pub fn put_paused(&mut self, paused: &BTreeMap<JobName, Pause>) {
        for job in &mut self.jobs {
            job.paused = paused.get(&job.name).cloned();
        }
    }

    /// Puts in what jobs that run after others still wait for, by the links they have, as read.
    pub fn put_links<'a>(&mut self, links: impl Iterator<Item = &'a Link>) {
        let mut heard: BTreeMap<RunId, BTreeSet<&JobName>> = BTreeMap::new();
        for link in links {
            heard.entry(link.run()).or_default().insert(&link.upstream);
        }
        for job in &mut self.jobs {
            let of_job = heard.iter().filter(|(run, _)| *run.job() == job.name).map(|(_, heard)| heard);
            let missing = of_job.flat_map(|heard| job.after.keys().filter(|upstream| !heard.contains(upstream)));
            let missing: BTreeSet<&JobName> = missing.collect();
            job.waits_for = missing.into_iter().cloned().collect();
        }
    }

    /// Measured by the leader; while nobody leads, by this node.
    fn differing(&self) -> Vec<NodeName> {
        let measure = self.role.leader_node.as_ref().unwrap_or(&self.node);
        let Some(measure) = self.members.iter().find(|member| member.node == *measure) else { return Vec::new() };
        let measure = &measure.published;
        let differs = |member: &&Member| {
            member.published.has_other_jobs_than(measure) || member.published.has_other_zones_than(measure)
        };
        self.members.iter().filter(differs).map(|member| member.node.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Published;

    #[test]
    fn a_node_with_another_weight_or_on_its_way_out_has_the_same_jobs_all_the_same() {
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
