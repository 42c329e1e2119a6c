//! The interface between the daemon and the backend that runs the election.
//!
//! The daemon sends requests and receives events through channels; the backend is a task between the two. The backend
//! carries out requests in the order they were made, including those to the [`ledger`](crate::ledger). This module
//! names no backend.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::clock::Uptime;
use crate::clock::server::ServerTime;
use crate::job::{Digest, HISTORY_LIMIT, JobName, JobSet, LEAST_HISTORY_LIMIT, Labels};
use crate::ledger::Snapshot;
use crate::lock::LockPath;
use crate::run::{Drain, NodeControl};
use crate::term::{CandidateName, NodeName, SessionId, Term, TermEnd};

/// What is wrong with an entry that is ahead of all candidates of nodes and belongs to no session. Its
/// [damage](Event::Damaged) begins with this.
pub const BLOCKED: &str =
    "nobody can lead until somebody deletes this: it is the first in the queue and not ephemeral, so it stays";

/// A request from the daemon to the election.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Join the queue, and rejoin it whenever the candidate is lost, until [`Request::Resign`] or [`Request::Leave`].
    /// A node that is drained does not join.
    Campaign,
    /// Give up leadership, or leave the queue. Commits already requested are answered first; the member stays. Answered
    /// by [`Event::Over`] if the node was leading, and in any case by [`Event::Withdrawn`].
    Resign,
    /// Hand leadership over to this node, which must be in the queue. Commits already requested are answered first; the
    /// member stays. Answered by [`Event::Over`] and [`Event::Withdrawn`], or by [`Event::NotTransferred`]; then the
    /// term continues unless it was already over. If the queue changes at the last moment, all three are sent,
    /// [`Event::Withdrawn`] last.
    Transfer(NodeName),
    /// Report whether this node has runs in flight. If it has, the backend renews the lease even while the node does
    /// not lead.
    Busy(bool),
    /// Publish what this node has loaded, so that other nodes can compare.
    Publish(Published),
    /// Report the jobs in this node's files. Records of jobs that no node has may be removed.
    Define(Arc<Defined>),
    /// End the membership and the session. Answered by [`Event::Left`], within a time limit of the backend even if the
    /// service does not answer.
    Leave,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defined {
    /// Digest of the jobs files, as published in [`Published::digest`].
    pub digest: Digest,
    pub jobs: BTreeSet<JobName>,
    /// How many records of each kind the ledger keeps, of the jobs for which this is not [`HISTORY_LIMIT`].
    pub history_limits: BTreeMap<JobName, u16>,
    /// The locks of all jobs.
    pub locks: BTreeSet<LockPath>,
}

impl Defined {
    pub fn of(jobs: &JobSet) -> Self {
        let limits = jobs.jobs.iter().map(|(name, job)| (name, job.history_limit));
        let limits = limits.filter(|(_, limit)| *limit != HISTORY_LIMIT).map(|(name, limit)| (name.clone(), limit));
        Self {
            digest: jobs.digest.clone(),
            jobs: jobs.jobs.keys().cloned().collect(),
            history_limits: limits.collect(),
            locks: jobs.jobs.values().flat_map(|job| &job.lock).cloned().collect(),
        }
    }

    /// How many run records, and how many skip records, the ledger keeps of a job.
    pub fn history_limit(&self, job: &JobName) -> usize {
        usize::from(self.history_limits.get(job).copied().unwrap_or(HISTORY_LIMIT))
    }

    /// The same, or the least that a file can set if no file has been read yet.
    pub fn least_kept(defined: Option<&Self>, job: &JobName) -> usize {
        defined.map_or(usize::from(LEAST_HISTORY_LIMIT), |defined| defined.history_limit(job))
    }

    /// The jobs that now keep fewer records than by `before`.
    pub fn lowered(&self, before: &Self) -> BTreeSet<JobName> {
        let named = self.history_limits.keys().chain(before.history_limits.keys());
        named.filter(|job| self.history_limit(job) < before.history_limit(job)).cloned().collect()
    }
}

/// What a node publishes about itself for the other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Published {
    /// Digest of its jobs files.
    pub digest: Digest,
    /// Version of the time zone data with which it evaluates schedules.
    pub tzdata: String,
    /// The configured priority. The leader hands leadership over to the fit node with the highest priority.
    #[serde(default)]
    pub priority: u32,
    /// Its jobs files are invalid now; `digest` is that of the last valid ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobs_invalid: bool,
    /// It is stopping and lets its runs finish.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// An operator has drained it, and it is out of the queue, or about to be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// Where it serves its API on TCP; absent if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<ApiAddress>,
    /// It never joins the queue, because its operator has said so, and runs what is placed there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub never_leads: bool,
    /// The newest format of placed attempts that it knows; 0: nothing may be placed there.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub places: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The newest format of placed attempts that this version knows.
pub const PLACES: u32 = 1;

/// The record of a node as a place to run jobs, `places/<node>`. It stays when the node is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Place {
    /// Format version of the record.
    pub v: u32,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: Labels,
    /// Its share of what is spread over nodes, in proportion to those of the others; 0: nothing is spread to it.
    pub weight: u32,
    /// Start time of the process that last left the cluster because it was asked to stop. The node's next process
    /// removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Timestamp>,
}

impl Default for Place {
    /// A place without labels.
    fn default() -> Self {
        Self { v: 1, labels: Labels::new(), weight: 1, stopped: None }
    }
}

impl Place {
    /// True if the process that started then was asked to stop, and has left the cluster.
    pub fn was_stopped(&self, started_at: Timestamp) -> bool {
        self.stopped == Some(started_at)
    }
}

/// Where a node serves its API on TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApiAddress {
    /// If the address is unspecified, such as 0.0.0.0, the node is reached by the name of its host.
    pub address: SocketAddr,
    /// The name that its certificate is for, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tls: bool,
}

impl Published {
    /// True if the node may lead when its turn comes.
    pub fn may_lead(&self) -> bool {
        !self.drained && !self.never_leads
    }

    /// True if the node has loaded exactly the files with this digest.
    pub fn defines(&self, digest: &Digest) -> bool {
        self.digest == *digest && *digest != Digest::default() && !self.jobs_invalid
    }

    /// True if the node has loaded different jobs; false if it publishes no digest.
    pub fn has_other_jobs_than(&self, other: &Self) -> bool {
        self.digest != other.digest && self.digest != Digest::default()
    }

    /// True if the node has different time zone data; false if either version is unknown.
    pub fn has_other_zones_than(&self, other: &Self) -> bool {
        let is_known = |tzdata: &str| !tzdata.is_empty() && tzdata != "unknown";
        self.tzdata != other.tzdata && is_known(&self.tzdata) && is_known(&other.tzdata)
    }
}

/// The member with the highest priority that may lead. Among equals the first by name, so that all nodes agree.
/// Does not check fitness.
pub fn highest_priority<'m>(members: impl Iterator<Item = &'m Member>) -> Option<&'m Member> {
    members.filter(|member| member.published.may_lead()).max_by(|a, b| {
        let weight = a.published.priority.cmp(&b.published.priority);
        weight.then_with(|| b.node.cmp(&a.node))
    })
}

/// An event from the election to the daemon.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The node has this session from now on. Also sent, with the same session, when the node's member was lost and
    /// recreated: in between, other nodes considered the node gone, so it must take ownership of its runs again each
    /// time.
    Session {
        /// The session that owns this node's runs from now on.
        id: SessionId,
        /// The negotiated session timeout.
        timeout: Duration,
    },
    /// What the service's commits are worth. Sent at the begin of a session, by services that say so.
    Examined(Worth),
    /// The node has joined the queue.
    Joined {
        candidate: CandidateName,
    },
    /// The node waits behind another candidate. Sent again whenever the predecessor or the leader changes.
    Following {
        candidate: CandidateName,
        /// The candidate directly ahead of its own.
        predecessor: CandidateName,
        /// Node of the predecessor; `None` if the entry was not created by cronkeeper.
        predecessor_node: Option<NodeName>,
        /// Node of the first candidate, once it has opened a term; `None` also if the entry was not created by
        /// cronkeeper.
        leader_node: Option<NodeName>,
    },
    /// The node is first in the queue, and opens a term: until [`Event::Elected`] nobody leads.
    First,
    /// A node that never joins the queue has looked who leads. Sent once the node is a member, and again
    /// whenever that has changed.
    Observing {
        /// Node of the first candidate, once it has opened a term; `None` also if there is none, or it was not created
        /// by cronkeeper.
        leader_node: Option<NodeName>,
    },
    /// The node leads. The ledger was read after every earlier candidate was gone.
    Elected {
        term: Term,
        /// The end of the lease. If it is in the past, the node must wait for an [`Event::Lease`] before it acts.
        lease_until: Uptime,
        snapshot: Box<Snapshot>,
        /// Time since the node learned that it is first in the queue.
        took: Duration,
    },
    /// The term is over. No commit requested in it from now on is accepted. If the connection was lost, a commit
    /// requested earlier may still be answered [`Accepted`](crate::ledger::Commit::Accepted): the run is in the ledger
    /// but must not be started.
    Over {
        term: Term,
        why: TermEnd,
    },
    /// What operators want of this node. Sent before the first [`Event::Joined`] of each session, and again whenever it
    /// may have changed. Until it is no longer drained, the backend does not let the node join the queue; to leave the
    /// queue is the daemon's part.
    Wanted(NodeControl),
    /// [`Request::Resign`] is done: the node is no longer in the queue.
    Withdrawn,
    /// [`Request::Transfer`] failed.
    NotTransferred {
        /// The node that leadership should have gone to.
        to: NodeName,
        why: TransferError,
    },
    /// The lease changed: later than before after a quorum write, [`Uptime::ZERO`] when it was withdrawn.
    Lease {
        /// The new end of the lease.
        until: Uptime,
    },
    /// The connection is lost; the session may still exist. Sent again if the reason changes.
    Suspended {
        session: SessionId,
        /// Why the service does not carry out what it is asked, if it says so; for display.
        error: Option<String>,
    },
    /// The connection is back. The session and the node's entries are the same as before.
    Resumed {
        session: SessionId,
    },
    Expired {
        session: SessionId,
    },
    /// No server answers.
    Unreachable {
        /// Time until the next attempt.
        retry: Duration,
        /// The error, for display.
        error: String,
    },
    /// A request to the service has kept failing for some seconds and is being retried; the text describes it. `None`
    /// when it no longer fails.
    Stalled(Option<String>),
    /// Paths of the service that cannot be read, written or trusted, each with the reason. They are skipped and checked
    /// again later.
    Damaged {
        all: Vec<String>,
        /// Those that no earlier event reported.
        new: Vec<String>,
    },
    /// The service's clock, read from the timestamp of a write by this node. Sent before each [`Event::Elected`], and
    /// about every minute while the node leads, runs something or waits in the queue.
    Time(ServerTime),
    /// Another node has left the cluster because its daemon was asked to stop. Sent before the [`Event::Members`] without
    /// it.
    Stopped(NodeName),
    /// The nodes that are alive, read every 15 s.
    Members(Vec<Member>),
    /// The places that the cluster knows, alive or not. Sent before [`Event::Members`], to a leader.
    Places(BTreeMap<NodeName, Place>),
    Left,
    /// The node cannot take part until an operator intervenes. If the node was leading, its term is over.
    Failed(Failure),
}

/// What a commit is worth that the service has acknowledged, as far as the service says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Worth {
    /// The service and its version, `PostgreSQL 15.9`.
    pub service: String,
    /// Where such a commit is, a sentence without its end.
    pub durability: String,
    /// True if a failover may lose it.
    pub may_rewind: bool,
}

/// A node that is alive, as it describes itself in its member record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Member {
    /// Format version of the record.
    pub v: u32,
    pub node: NodeName,
    pub host: String,
    pub pid: u32,
    /// Version of cronkeeper.
    pub version: String,
    pub started_at: Timestamp,
    /// Session timeout in milliseconds; absent with a backend whose sessions do not expire by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_timeout_ms: Option<u64>,
    #[serde(flatten)]
    pub published: Published,
    /// The candidate with which it leads, if it may not write that to the queue's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<CandidateName>,
    /// The session that its record ends with; absent if it was not read from the service.
    #[serde(skip)]
    pub session: Option<SessionId>,
}

impl Member {
    /// True if it says that it has opened a term with this candidate.
    pub fn has_opened(&self, candidate: &str) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.0 == candidate)
    }
}

/// The queue at the time it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The candidates in order. The first leads once it has opened a term.
    pub candidates: Vec<Candidate>,
    /// The leader; absent if the first candidate has not opened a term, or is not cronkeeper's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<NodeName>,
    /// The nodes that are alive.
    pub members: Vec<Member>,
    /// The nodes that operators have drained, alive or not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drained: BTreeMap<NodeName, Drain>,
    /// The places that the cluster knows, alive or not.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub places: BTreeMap<NodeName, Place>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    pub candidate: CandidateName,
    /// `None` if the entry was not created by cronkeeper.
    pub node: Option<NodeName>,
}

/// The reason why leadership cannot be handed over to a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("this node does not lead")]
    NotLeading,
    #[error("it already leads")]
    Leads,
    #[error("it is not in the queue")]
    NotQueued,
    /// It has a candidate but no member.
    #[error("its member is gone")]
    NotAlive,
    #[error("{node} is drained; `cronkeeper undrain {node}` lets it lead again")]
    Drained { node: NodeName },
    #[error("{node} never leads: it was started with `--lead false`")]
    NeverLeads { node: NodeName },
    /// A foreign entry is ahead of it, and only the owner of that entry may remove it.
    #[error("`{entry}`, which was not created by cronkeeper, is ahead of it in the queue")]
    Foreign { entry: CandidateName },
    /// The queue changed during the handover.
    #[error("the queue changed during the handover; leadership went to the next node in the queue")]
    Changed,
    /// The check took too long. It is limited in time, because the leader decides nothing while it runs.
    #[error("the check whether it can lead took too long")]
    NotInTime,
    /// The backend cannot reorder its queue.
    #[error("another node is ahead of it in the queue, and on a single host the order of the queue is fixed")]
    NotNext,
}

/// The reason why a node cannot take part until an operator intervenes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Another node that is alive has the same name.
    #[error("node name `{node}` is already in use by {holder}")]
    NameTaken {
        node: NodeName,
        /// Description of the other node, for display.
        holder: String,
    },
    #[error("{service} refused the authentication: {detail}")]
    Refused {
        /// The service's address, as configured.
        service: String,
        /// The service's error.
        detail: String,
    },
    /// The service cannot be used until somebody changes something.
    #[error("{service} cannot be used: {detail}")]
    Unusable {
        /// The service's address, as configured.
        service: String,
        /// What is wrong, and what to do.
        detail: String,
    },
    /// The root that the service's address names does not exist.
    #[error("path `{root}` does not exist on {service}")]
    NoRoot {
        root: String,
        /// The service's address, as configured.
        service: String,
    },
    /// The root that the service's address names is a path where another cluster keeps its data, or below one.
    #[error("path `{root}` on {service} is in the data of another cluster, whose path is `{cluster}`")]
    RootInCluster {
        root: String,
        /// The other cluster's root; `/` if it has none.
        cluster: String,
        /// The service's address, as configured.
        service: String,
    },
    #[error("the state directory belongs to cluster {ours}, but {service} is cluster {theirs}")]
    OtherCluster {
        /// The cluster recorded in the state directory.
        ours: String,
        /// The cluster that the service reports.
        theirs: String,
        /// The service's address, as configured.
        service: String,
    },
    #[error("the state directory cannot be written: {0}")]
    StateDir(String),
}
