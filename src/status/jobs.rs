//! What the status shows of jobs and of runs in flight.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Status;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{Alarm, JobName};
use cronkeeper_core::ledger::{Last, LastEnd, LastShares};
use cronkeeper_core::run::{Outcome, Pause, RaisedAlarm, Reason, Refusal, RunId, RunRecord, RunState, StandingAlarms};
use cronkeeper_core::suggest::counted;
use cronkeeper_core::term::NodeName;

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
    /// The variables that a trigger may set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<String>,
    /// The run that ended last.
    pub last: Option<Box<LastRun>>,
    /// How the newest share of each node ended; absent unless the job runs on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shares: Option<Box<SharesStatus>>,
    /// The next occurrence.
    pub next: Option<Timestamp>,
    /// The job's runs in flight.
    pub running: Vec<RunId>,
    /// The runs in flight that are cut off: their node is gone, and it is not known whether they are still running.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_off: Vec<RunId>,
    /// Upstreams whose results are missing while those of other upstreams have arrived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<JobName>,
    /// Where the job runs, `any` or `every`, if the leader places it; absent: on the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_on: Option<String>,
    /// What a node must be to run it; empty also for those who see only the outline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_where: Vec<String>,
    /// Why no node can run the job now; absent if one can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unplaceable: Option<String>,
    /// A problem with the job, as text; only the leader knows it.
    #[serde(default)]
    pub error: Option<String>,
    /// Who paused the job, when and why; absent while it is not paused.
    #[serde(default)]
    pub paused: Option<Box<Pause>>,
    /// The active alarms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alarms: Vec<AlarmStatus>,
}

/// An active alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AlarmStatus {
    pub alarm: Alarm,
    /// When the run was due, when the attempt began, or when the job last succeeded.
    pub since: Timestamp,
    pub raised_at: Timestamp,
    /// The run that is late or takes long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunId>,
}

impl AlarmStatus {
    /// The alarms of a job's record.
    pub fn of(alarms: &StandingAlarms) -> Vec<Self> {
        let status = |(alarm, raised): (Alarm, &RaisedAlarm)| {
            let RaisedAlarm { since, raised_at, run } = raised.clone();
            Self { alarm, since, raised_at, run }
        };
        alarms.iter().map(status).collect()
    }
}

impl JobStatus {
    /// True if somebody should look at the job: its last run did not succeed, a run is cut off, an alarm is active, no node
    /// can run it, or the leader has a problem with it.
    pub fn is_failing(&self) -> bool {
        self.error.is_some()
            || self.unplaceable.is_some()
            || !self.alarms.is_empty()
            || !self.cut_off.is_empty()
            || match &self.shares {
                // The end of one share says nothing about the others.
                Some(shares) => shares.has_failed(),
                None => self.last.as_ref().is_some_and(|last| last.outcome != Outcome::Success),
            }
    }

    /// The end that tells most about the job: of its last run, or of shares on every node the worst.
    pub fn telling_end(&self) -> Option<&LastRun> {
        self.shares.as_ref().and_then(|shares| shares.worst()).or(self.last.as_deref())
    }
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

impl LastRun {
    /// The node that it is about: a share that ended before its node had it was the leader's.
    pub fn place(&self) -> &NodeName {
        self.run.node().unwrap_or(&self.node)
    }
}

/// How the newest share of each node ended, since the newest occurrence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharesStatus {
    /// The newest occurrence with a share that has ended.
    pub run: RunId,
    /// The nodes whose newest share succeeded.
    pub ok: BTreeSet<NodeName>,
    /// The ends of the newest shares that did not succeed, by node.
    pub failed: Vec<LastRun>,
    /// Further nodes whose newest share did not succeed: of many, only some are in `failed`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub also_failed: BTreeSet<NodeName>,
    /// The nodes whose share of `run` is in flight or waits.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub open: BTreeSet<NodeName>,
    /// While the ledger cannot be read: the nodes of which it is not known how their share of `run` ended.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unknown: BTreeSet<NodeName>,
}

impl SharesStatus {
    /// The worst of the ends, of equals that of the first node; `None` if all succeeded.
    pub fn worst(&self) -> Option<&LastRun> {
        let badness = |last: &&LastRun| match last.outcome {
            Outcome::Failure | Outcome::Timeout => 0,
            Outcome::Interrupted | Outcome::Abandoned => 1,
            Outcome::Killed => 2,
            Outcome::Success => 3,
        };
        self.failed.iter().min_by_key(badness)
    }

    /// True if the newest share of some node did not succeed.
    pub fn has_failed(&self) -> bool {
        self.failures() > 0
    }

    /// How many did not.
    pub fn failures(&self) -> usize {
        self.failed.len() + self.also_failed.len()
    }

    /// `2 of 3 ok`: of all nodes that have, or had, a share. `1 of 3 ok, 2 not known` while the others cannot be read.
    pub fn in_words(&self) -> String {
        let waiting = self.open.iter().filter(|node| !self.has_ended_on(node) && !self.unknown.contains(*node)).count();
        let all = self.ok.len() + self.failures() + self.unknown.len() + waiting;
        let unknown = match self.unknown.len() {
            0 => String::new(),
            unknown => format!(", {unknown} not known"),
        };
        format!("{} of {all} ok{unknown}", self.ok.len())
    }

    /// True if it is known how the node's newest share ended.
    fn has_ended_on(&self, node: &NodeName) -> bool {
        let has_failed = self.failed.iter().any(|failed| failed.run.node() == Some(node));
        has_failed || self.ok.contains(node) || self.also_failed.contains(node)
    }

    /// These nodes have a share too; how it ended is not known of those whose end is not among these.
    pub(super) fn expect(&mut self, nodes: impl Iterator<Item = NodeName>) {
        self.unknown = nodes.filter(|node| !self.has_ended_on(node)).collect();
    }

    /// The nodes with an end among these.
    pub(super) fn ended(&self) -> impl Iterator<Item = &NodeName> {
        let failed = self.failed.iter().filter_map(|failed| failed.run.node());
        self.ok.iter().chain(failed).chain(&self.also_failed)
    }

    /// `host-c`, or `host-b and 2 more`: the nodes that this is about, those that failed or else all.
    pub fn nodes_in_words(&self) -> String {
        match (self.worst(), self.failures()) {
            (Some(worst), 1) => worst.place().to_string(),
            (Some(worst), count) => format!("{} and {} more", worst.place(), count - 1),
            (None, _) => counted(self.ok.len() + self.unknown.len(), "node"),
        }
    }

    /// Leaves out the nodes that the cluster does not know any more.
    pub(super) fn keep(&mut self, is_known: impl Fn(&NodeName) -> bool) {
        self.ok.retain(|node| is_known(node));
        self.failed.retain(|failed| failed.run.node().is_some_and(&is_known));
        self.also_failed.retain(|node| is_known(node));
    }
}

impl From<LastShares> for SharesStatus {
    fn from(LastShares { run, ok, failed, also_failed, since: _ }: LastShares) -> Self {
        let failed = failed.into_iter().map(LastRun::from).collect();
        Self { run, ok, failed, also_failed, open: BTreeSet::new(), unknown: BTreeSet::new() }
    }
}

impl From<LastEnd> for LastRun {
    fn from(end: LastEnd) -> Self {
        let LastEnd { run, node, attempt, outcome, reason, exit_code, signal, at } = end;
        Self { run, node, attempt, outcome, reason, exit_code, signal, at, reported_at: None }
    }
}

impl From<LastRun> for LastEnd {
    fn from(end: LastRun) -> Self {
        let LastRun { run, node, attempt, outcome, reason, exit_code, signal, at, reported_at: _ } = end;
        Self { run, node, attempt, outcome, reason, exit_code, signal, at }
    }
}

/// The last end of each job as the ledger had it.
#[derive(Debug, PartialEq)]
pub struct RecordedEnds {
    pub lasts: BTreeMap<JobName, LastRun>,
    /// How the newest share of each node ended, of jobs on every node.
    pub shares: BTreeMap<JobName, LastShares>,
    /// When the last run of each job that succeeded ended.
    pub successes: BTreeMap<JobName, Timestamp>,
    /// When the ledger was read. What ended later may be missing.
    pub read_at: Uptime,
}

impl RecordedEnds {
    /// What the ledger had when it was read at this time.
    pub fn read(recorded: BTreeMap<JobName, Last>, read_at: Uptime) -> Self {
        let successes = recorded.iter().filter_map(|(job, last)| Some((job.clone(), last.success?))).collect();
        let shares = recorded.iter().filter_map(|(job, last)| Some((job.clone(), last.shares.as_deref()?.clone())));
        let shares = shares.collect();
        let lasts = recorded.into_iter().map(|(job, last)| (job, last.end.into())).collect();
        Self { lasts, shares, successes, read_at }
    }
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
    /// When the attempt began; if it was begun ahead of its time, that time.
    pub since: Timestamp,
    pub state: RunState,
    /// When the next attempt begins, while the run waits for it.
    pub retry_at: Option<Timestamp>,
    /// Until when the run may continue while its node is cut off; absent if there is no limit.
    #[serde(default)]
    pub keep_until: Option<Timestamp>,
    /// How the run ended, if it has ended and the ledger has not recorded that yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Outcome>,
    /// True while the ledger has not confirmed that the attempt has begun: it has no process yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// The last refusal by a node on which the leader had placed the run, while no node has accepted it since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Who triggered it; absent for a scheduled run. For the page, so no part of the document.
    #[serde(skip)]
    pub triggered_by: Option<String>,
    /// Who has requested its end; absent if nobody has. For the page, so no part of the document.
    #[serde(skip)]
    pub killed_by: Option<String>,
}

impl RunStatus {
    /// The node that it is about: a share that waits for its node has no owner of its own yet.
    pub fn place(&self) -> &NodeName {
        self.run.node().unwrap_or(&self.node)
    }

    /// True if the attempt has, or may have, a process on its node.
    pub fn is_running(&self) -> bool {
        self.state == RunState::Running && !self.unconfirmed
    }

    /// True if an attempt has, or may have, had a process, as far as its state says.
    pub fn has_begun(&self) -> bool {
        self.state == RunState::Retrying || self.state.has_process() && !self.unconfirmed
    }

    /// True if this end is the run's, and not that of an earlier attempt whose node has lost the run to another.
    pub(super) fn is_ended_by(&self, last: &LastRun) -> bool {
        (&self.run, &self.node, self.attempt) == (&last.run, &last.node, last.attempt)
    }
}

/// What the runs of a job in flight do, from what says most of the job to what says least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    Running,
    /// It ran on another node when the ledger was last read.
    WasRunning,
    /// For its next attempt, a node, a lock or other runs.
    Waiting,
    WasWaiting,
    /// It has ended, and the ledger has not recorded that yet.
    Unrecorded,
}

impl Activity {
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::WasRunning => "was running",
            Self::Waiting => "waiting",
            Self::WasWaiting => "was waiting",
            Self::Unrecorded => "not recorded yet",
        }
    }
}

impl Status {
    /// What a run in flight does; `None` if it is cut off, so that nobody knows.
    pub fn activity(&self, run: &RunStatus) -> Option<Activity> {
        match (self.is_old(run), run.state) {
            _ if run.ended.is_some() => Some(Activity::Unrecorded),
            (_, RunState::CutOff) => None,
            (false, _) if run.is_running() => Some(Activity::Running),
            (true, _) if run.is_running() => Some(Activity::WasRunning),
            (false, _) => Some(Activity::Waiting),
            (true, _) => Some(Activity::WasWaiting),
        }
    }

    /// How many runs have, as far as this node knows, a process.
    pub fn running(&self) -> usize {
        self.runs.iter().filter(|run| self.activity(run) == Some(Activity::Running)).count()
    }

    /// Of what the job's runs in flight do, what says most.
    pub fn activity_of(&self, job: &JobStatus) -> Option<Activity> {
        if job.running.is_empty() {
            return None;
        }
        let runs = self.runs.iter().filter(|run| *run.run.job() == job.name);
        runs.filter_map(|run| self.activity(run)).min()
    }
}

impl From<&RunRecord> for RunStatus {
    fn from(record: &RunRecord) -> Self {
        Self {
            run: record.id(),
            node: record.owner.node.clone(),
            attempt: record.attempt,
            since: record.begun_at.max(record.scheduled_at),
            state: record.state,
            retry_at: record.retry_at,
            keep_until: record.keep_until,
            ended: None,
            unconfirmed: false,
            refused: record
                .placement
                .as_ref()
                .filter(|_| matches!(record.state, RunState::Placed | RunState::Unstarted | RunState::Queued))
                .and_then(|placement| placement.refused.clone())
                .map(|refused| Refusal { digest: None, ..refused }),
            triggered_by: record.trigger.as_ref().map(|trigger| trigger.by.clone()),
            killed_by: record.kill.as_ref().map(|kill| kill.by.clone()),
        }
    }
}
