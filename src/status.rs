//! The status document: the body of `GET /v1/status`, which `cronkeeper status` shows.
//!
//! The daemon publishes it after each turn that changed it. The API adds what only the ledger knows, and what depends
//! on the time of the request. No decision depends on it, and this module contains neither policy nor I/O.

mod completion;
mod history;
mod in_order;
mod jobs;
mod nodes;
pub mod outline;
#[cfg(test)]
pub(crate) mod sample;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

pub use self::history::{EndedRun, HistoryEntry, Skipped, ending_details};
pub(crate) use self::in_order::InOrder;
pub use self::jobs::{Activity, AlarmStatus, JobStatus, LastRun, RecordedEnds, RunStatus, SharesStatus};
pub use self::nodes::{NodeStatus, NodesDocument, PlaceState, away_at, away_in_words};
pub use self::outline::WITHHELD;

use crate::warden::cgroup::hierarchy::Cgroups;
use cronkeeper_core::clock::stamp;
use cronkeeper_core::election::{Member, Place, Worth};
use cronkeeper_core::job::{ChannelName, Digest};
use cronkeeper_core::run::Drain;
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::{CandidateName, FencingToken, NodeName, SessionId};

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
    /// What the service's acknowledged commits are worth; absent if it does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Worth>,
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
    /// When this node read the members for itself; absent if they were read for an answer only.
    #[serde(skip)]
    pub members_at: Option<Timestamp>,
    /// Nodes that this node has seen since its start and that are not alive now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingMember>,
    /// The nodes that operators have drained, alive or not, each with who did it, when and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drained: BTreeMap<NodeName, Drain>,
    /// The nodes as places to run jobs that the leader places, alive or not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<NodeName, Place>,
    /// The nodes that have not accepted in time what was placed there, and get nothing while another can take it. Only the
    /// leader knows them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub suspects: BTreeSet<NodeName>,
    /// The channels of notifications to which no attempt succeeds. Only the leader knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing_channels: Vec<FailingChannel>,
    /// The nodes whose jobs or time zone data differ from the leader's.
    pub drift: Vec<NodeName>,
    /// Why the ledger could not be read. What it would have added is missing then, or is what the node last knew.
    pub unread: Option<String>,
    /// While the ledger cannot be read: when all that is shown of it was read. Absent if none of it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_at: Option<Timestamp>,
    /// While the ledger cannot be read: when each part of it was read that is shown as it was then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts_read_at: BTreeMap<LedgerPart, Timestamp>,
    /// What this node has not read from the ledger since its start: that a list of it is empty, or a value of it absent,
    /// means nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<LedgerPart>,
    /// What this node cannot read, write or trust, each with the reason. The node ignores it for now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

/// A part of the ledger that a status shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LedgerPart {
    /// The queue, the members and the drained nodes.
    Queue,
    /// The runs in flight on other nodes, and the pauses, alarms and upstream results of jobs.
    Runs,
    /// How each job ended last.
    Ends,
}

impl LedgerPart {
    pub const ALL: [Self; 3] = [Self::Queue, Self::Runs, Self::Ends];

    /// The part in a sentence about what is not known.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Queue => "who is in the queue",
            Self::Runs => "what runs on other nodes, and which jobs are paused",
            Self::Ends => "how the jobs ended last",
        }
    }

    /// The part in a list of what is shown, each as of its own time.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "the queue and nodes",
            Self::Runs => "the runs",
            Self::Ends => "the ends",
        }
    }
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
    /// Out of the queue until an operator undrains it. Its runs in flight continue.
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

    /// As people read it. `draining` is too close to `drained`, which an operator does.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Draining => "stopping",
            other => other.as_str(),
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
    /// The leader, as far as the node knows now; absent while it is not connected, unless it leads itself.
    pub leader_node: Option<NodeName>,
    /// While no leader is known: the last one that was, and since when none is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_leader: Option<LastLeader>,
    /// It is first in the queue, and does not lead yet. Then `leader_node` is who led when that was last read.
    #[serde(skip)]
    pub is_first: bool,
    /// The token of the node's own term.
    pub token: Option<FencingToken>,
    /// When the node's own term began.
    pub term_since: Option<Timestamp>,
}

/// The leader that was known last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LastLeader {
    pub node: NodeName,
    /// Since when no leader is known.
    pub unknown_since: Timestamp,
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
    /// Remaining time of the lease, in milliseconds; absent while the node keeps none.
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
    /// True while the node uses the last good jobs, because its jobs file was rejected at its start. `loaded_at` is when
    /// the node, or one that shares its state directory, had accepted them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last_good: bool,
}

/// A node that was alive and is no longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MissingMember {
    pub node: NodeName,
    pub host: String,
    /// When this node noticed that it is gone.
    pub gone_since: Timestamp,
    /// When it was last seen alive: it went between the two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Timestamp>,
    /// Somebody has asked it to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Runs could be placed there: the cluster has a record of it as a place until it is forgotten.
    #[serde(skip)]
    pub was_place: bool,
}

/// A channel of notifications to which nothing can be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FailingChannel {
    pub channel: ChannelName,
    /// When the first of the attempts failed.
    pub since: Timestamp,
    /// The number of notifications that wait.
    pub waiting: u64,
    pub error: String,
}

impl FailingChannel {
    /// Since when, and how much waits: `nothing delivered since …, 3 notifications waiting`.
    pub fn in_words(&self, since: &str) -> String {
        let waiting = counted(usize::try_from(self.waiting).unwrap_or(usize::MAX), "notification");
        format!("{}: nothing delivered since {since}, {waiting} waiting", self.channel)
    }
}

/// Between the last look at a node that was alive and the first at which it was gone, if they are close together.
const CLOSE: SignedDuration = SignedDuration::from_secs(2);

impl MissingMember {
    /// A node that is gone since, and what was known of it.
    pub fn of(member: Member, gone_since: Timestamp, last_seen: Option<Timestamp>) -> Self {
        let Member { node, host, published, .. } = member;
        Self { node, host, gone_since, last_seen, stopped: published.draining, was_place: published.places > 0 }
    }

    /// True if it was forgotten: it has no place among these any more.
    pub fn is_forgotten(&self, places: &BTreeMap<NodeName, Place>) -> bool {
        self.was_place && !places.contains_key(&self.node)
    }

    /// When it was last seen, if it may have gone well before that was noticed.
    pub fn seen_well_before(&self) -> Option<Timestamp> {
        self.last_seen.filter(|last_seen| self.gone_since.duration_since(*last_seen) > CLOSE)
    }
}

/// Who drained a node, when and why, as far as that is shown: `host-b was drained by alice at …: disks`.
pub fn drain_in_words(node: &NodeName, drain: &Drain) -> String {
    let by = shown(&drain.by).map(|by| format!(" by {by}")).unwrap_or_default();
    let reason = drain.reason.as_deref().and_then(shown).map(|reason| format!(": {reason}")).unwrap_or_default();
    let at = drain.since().map_or_else(|| "an unknown time".to_owned(), |at| format!("{}Z", stamp(at)));
    format!("{node} was drained{by} at {at}{reason}")
}

/// A text, unless it is left out for those who see only the outline.
pub fn shown(text: &str) -> Option<&str> {
    (text != WITHHELD).then_some(text)
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

#[cfg(test)]
mod tests {
    use cronkeeper_core::run::{HistoryRecord, RunRecord};

    use std::time::Duration;

    use super::*;
    use crate::fuzz::{Fuzz, LEDGER_WORDS, is_read_back};

    /// A start that is held until its time has its record before.
    #[test]
    fn a_run_runs_since_it_was_due_at_the_earliest() {
        let mut run = crate::test_records::record("a", 60, "s");
        let due = run.scheduled_at;
        for (begun_at, since) in
            [(due - Duration::from_millis(300), due), (due + Duration::from_secs(2), due + Duration::from_secs(2))]
        {
            run.begun_at = begun_at;
            assert_eq!(RunStatus::from(&run).since, since);
        }
    }

    #[test]
    fn fuzz_shown_records() {
        Fuzz { longest: 32 << 10, ..Fuzz::of("records", LEDGER_WORDS) }.run(|json| {
            let run = serde_json::from_slice::<RunRecord>(json).map(|run| RunStatus::from(&run)).is_ok();
            let history = serde_json::from_slice::<HistoryRecord>(json).inspect(is_shown).is_ok();
            run || history
        });
    }

    fn is_shown(record: &HistoryRecord) {
        // An id has whole seconds, and every occurrence is a whole second.
        if record.id().scheduled_at().subsec_nanosecond() == 0 {
            is_read_back(&HistoryEntry::from(record.clone()));
        }
    }
}
