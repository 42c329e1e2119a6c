//! The port through which the daemon takes part in the election, whichever backend holds it.
//!
//! Requests go in, events come out, both through channels: a backend is a task between them. Requests are
//! carried out in the order they were made, those of the [`ledger`](crate::ledger) among them. Nothing here names a backend.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Uptime;
use crate::clock::server::ServerTime;
use crate::job::{Digest, JobName};
use crate::ledger::Snapshot;
use crate::term::{CandidateName, NodeName, SessionId, Term, TermEnd};

/// What the daemon asks of the election.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Join the queue, and join it again whenever the place in it is lost, until [`Request::Resign`] or [`Request::Leave`].
    Campaign,
    /// Give up leadership, or the place in the queue. Commits already requested are answered first; the member stays.
    /// Answered by [`Event::Over`] if a term was open, and in any case by [`Event::Withdrawn`].
    Resign,
    /// Give leadership to this node, which waits in the queue. Commits already requested are answered first; the member stays.
    /// Answered by [`Event::Over`] and [`Event::Withdrawn`]; or by [`Event::NotTransferred`], and the term goes on unless it was over.
    /// Where the queue changed at the last moment both come, [`Event::Withdrawn`] last.
    Transfer(NodeName),
    /// Whether this node has runs in flight: then the lease is kept also while it does not lead.
    Busy(bool),
    /// What this node has loaded, for the others to compare.
    Publish(Published),
    /// The jobs of its files: what is kept of others that no node has may be removed.
    Define(Arc<Defined>),
    /// End the membership and the session. Answered by [`Event::Left`], within the backend's own bound even when nobody answers it.
    Leave,
}

/// The jobs that a node's files define.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defined {
    /// Of the files, as it is published.
    pub digest: Digest,
    /// Their names.
    pub jobs: BTreeSet<JobName>,
}

/// What a node tells the others of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Of its jobs files.
    pub digest: Digest,
    /// Version of the time zone data it evaluates schedules with.
    pub tzdata: String,
    /// How much the operator wants it to lead: leadership is handed to the one with the highest priority that is fit.
    #[serde(default)]
    pub priority: u32,
    /// Its jobs files are invalid now; `digest` is of those loaded before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobs_invalid: bool,
    /// It was told to end, and lets its runs end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
}

impl Published {
    /// True where its node has the jobs of these files, and no others.
    pub fn defines(&self, digest: &Digest) -> bool {
        self.digest == *digest && *digest != Digest::default() && !self.jobs_invalid
    }

    /// True where its node has other jobs; not where it does not say.
    pub fn has_other_jobs_than(&self, other: &Self) -> bool {
        self.digest != other.digest && self.digest != Digest::default()
    }

    /// True where its node has other time zone data; not where either does not say.
    pub fn has_other_zones_than(&self, other: &Self) -> bool {
        let is_told = |tzdata: &str| !tzdata.is_empty() && tzdata != "unknown";
        self.tzdata != other.tzdata && is_told(&self.tzdata) && is_told(&other.tzdata)
    }
}

/// The one with the highest priority; of several the first by name, so that all nodes agree. Whether it is fit is another question.
pub fn highest_priority<'m>(members: impl Iterator<Item = &'m Member>) -> Option<&'m Member> {
    members.max_by(|a, b| {
        let weight = a.published.priority.cmp(&b.published.priority);
        weight.then_with(|| b.node.cmp(&a.node))
    })
}

/// What happened in the election.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The node lives under this session from now on; it expires after `timeout`. Again, under the same session, when its member had
    /// gone and was made anew: meanwhile the node was gone to others, so it owns its runs anew each time.
    Session {
        /// What this node's runs belong to from now on.
        id: SessionId,
        /// As negotiated.
        timeout: Duration,
    },
    /// The node has a place in the queue.
    Joined {
        /// Its entry.
        candidate: CandidateName,
    },
    /// The node waits behind another. Again whenever the predecessor or the leader changed.
    Following {
        /// Its entry.
        candidate: CandidateName,
        /// The entry before its own.
        predecessor: CandidateName,
        /// Whose it is; absent for an entry that is not cronkeeper's.
        predecessor_node: Option<NodeName>,
        /// Whose the first entry is; absent for an entry that is not cronkeeper's.
        leader_node: Option<NodeName>,
    },
    /// The node leads: the ledger was read after every earlier candidate had gone.
    Elected {
        /// The term.
        term: Term,
        /// How long the node may act. It may be past: then the node acts once an [`Event::Lease`] lets it.
        lease_until: Uptime,
        /// The ledger.
        snapshot: Box<Snapshot>,
        /// From knowing to be first until now.
        took: Duration,
    },
    /// The term is over. No commit requested in it from now on will be accepted. One requested before may yet be answered
    /// [`Accepted`](crate::ledger::Commit::Accepted) where the connection was lost: it is on record, and must not be started.
    Over {
        /// The term.
        term: Term,
        /// Why.
        why: TermEnd,
    },
    /// [`Request::Resign`] is done: the node is not in the queue.
    Withdrawn,
    /// [`Request::Transfer`] cannot be done.
    NotTransferred {
        /// Who was to lead.
        to: NodeName,
        /// Why it does not.
        why: TransferError,
    },
    /// The lease now ends at this instant: later than before after a quorum write, [`Uptime::ZERO`] when it was taken away.
    Lease {
        /// When.
        until: Uptime,
    },
    /// The connection is lost; the session may live.
    Suspended {
        /// The session.
        session: SessionId,
    },
    /// The connection is back, the session is the same, and so are the node's entries.
    Resumed {
        /// The session.
        session: SessionId,
    },
    /// The session is gone.
    Expired {
        /// The session.
        session: SessionId,
    },
    /// Nobody answers; the next try comes after `retry`.
    Unreachable {
        /// When the next try comes.
        retry: Duration,
        /// What went wrong, for people.
        error: String,
    },
    /// Something that this node needs of the service has failed for some seconds, and is tried again: what, in words. Absent: it no
    /// longer does.
    Stalled(Option<String>),
    /// Paths of the service that cannot be read, written or trusted, each with why. They are passed over, and looked at again.
    Damaged {
        /// All of them.
        all: Vec<String>,
        /// Those that were not told before.
        new: Vec<String>,
    },
    /// The service's clock was read: as a write of this node was stamped. Before each [`Event::Elected`], and about every minute
    /// while the node leads, runs something or waits in the queue.
    Time(ServerTime),
    /// The nodes that live, read every 15 s.
    Members(Vec<Member>),
    /// [`Request::Leave`] is done.
    Left,
    /// The node cannot take part until an operator changes something. A term that was open is over with it.
    Failed(Failure),
}

/// A living node, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Format of the record.
    pub v: u32,
    /// The node.
    pub node: NodeName,
    /// Its host.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Of its program.
    pub version: String,
    /// When its process started.
    pub started_at: jiff::Timestamp,
    /// Of its session, in milliseconds, where it ends by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_timeout_ms: Option<u64>,
    /// What it has loaded.
    #[serde(flatten)]
    pub published: Published,
}

/// The queue as it stood when read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// The entries, the leader first.
    pub candidates: Vec<Candidate>,
    /// The nodes that live.
    pub members: Vec<Member>,
}

/// An entry of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub candidate: CandidateName,
    /// Whose it is; absent for an entry that is not cronkeeper's.
    pub node: Option<NodeName>,
}

/// Why a node cannot be given leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Only a leader has leadership to give.
    #[error("this node does not lead")]
    NotLeading,
    /// It leads itself.
    #[error("it leads already")]
    Leads,
    /// No entry of the queue is its.
    #[error("it has no place in the queue")]
    NotQueued,
    /// It has an entry, but nothing says that it lives.
    #[error("its member is gone")]
    NotAlive,
    /// An entry that is not cronkeeper's stands before it: nobody but its owner may remove that.
    #[error("`{entry}`, which is not cronkeeper's, is before it in the queue")]
    Foreign {
        /// The entry.
        entry: CandidateName,
    },
    /// The queue changed while leadership was handed over: it went to the next in line.
    #[error("the queue changed meanwhile; leadership went to the next in line")]
    Changed,
    /// Whether it can be given leadership was not found out soon enough: meanwhile nothing is decided.
    #[error("it took too long to find out whether it can lead")]
    NotInTime,
    /// The backend's order is fixed.
    #[error("another is before it in the queue, and on one host the order of the queue is fixed")]
    NotNext,
}

/// Why a node cannot take part until an operator changes something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Another living node has the name.
    #[error("node name `{node}` is taken: {holder} holds it")]
    NameTaken {
        /// The name.
        node: NodeName,
        /// Who holds it, for people.
        holder: String,
    },
    /// The service refuses this client.
    #[error("authentication was refused by {service}: {detail}")]
    Refused {
        /// The service, as configured.
        service: String,
        /// What it said.
        detail: String,
    },
    /// The chroot of the connect string does not exist.
    #[error("path `{chroot}` does not exist on {service}")]
    NoChroot {
        /// The path.
        chroot: String,
        /// The service, as configured.
        service: String,
    },
    /// The state directory belongs to another cluster.
    #[error("the state directory belongs to cluster {ours}, but {service} is cluster {theirs}")]
    OtherCluster {
        /// What the state directory remembers.
        ours: String,
        /// What the service says.
        theirs: String,
        /// The service, as configured.
        service: String,
    },
    /// The state directory cannot be written.
    #[error("the state directory cannot be written: {0}")]
    StateDir(String),
}
