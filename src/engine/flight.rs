//! A run in flight as the engine sees it: its record, and who has it.

use std::sync::Arc;

use super::Report;
use crate::clock::Uptime;
use crate::job::Job;
use crate::ledger::{CommitId, OwnerState};
use crate::run::{Reason, RunEnd, RunRecord, RunState, Version};
use crate::warden::wire::TreeId;

/// A run in flight.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    /// As last read or written.
    pub record: RunRecord,
    /// Of the record.
    pub version: Version,
    /// Who has it.
    pub holder: RunOwner,
    /// The commit about it that has no answer yet: there is never more than one.
    pub commit: Option<CommitId>,
    /// What was heard of another node's run while a commit about it was under way; looked at if that commit is refused.
    pub news: Option<News>,
}

/// What the ledger tells of a watched run.
#[derive(Clone, Debug)]
pub(super) enum News {
    /// Its record as it stands.
    Changed(Option<(RunRecord, Version)>),
    /// Its owner is gone, with what is known of it; and its record as read after that.
    OwnerGone(OwnerState, Option<(RunRecord, Version)>),
}

/// Who has a run.
#[derive(Clone, Debug)]
pub(super) enum RunOwner {
    /// This node.
    Own(Own),
    /// Another node, alive when last heard of. Only a leader keeps these.
    Other,
    /// Nobody knows: its owner is gone without a word. Only a leader keeps these.
    CutOff,
    /// Nobody: the leader is to begin it, or another attempt of it, or is just marking it cut off.
    Nobody,
    /// Nobody: the leader is just writing its end. Its job is decided on when that is answered.
    Settling,
}

/// A run that this node has.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// The job as it was when the attempt began; absent for a run of an earlier process.
    pub job: Option<Arc<Job>>,
    /// How far it is.
    pub phase: Phase,
    /// The node has a new session since the record was written.
    pub needs_change_owner: bool,
    /// Its end was told to people.
    pub is_told: bool,
    /// Its end was asked to be written and never answered: it may be written.
    pub may_be_written: bool,
}

impl Own {
    /// A run that is about to be begun here.
    pub fn beginning(job: Arc<Job>) -> Self {
        Self { job: Some(job), ..Self::dead(Phase::Beginning) }
    }

    /// A run whose process is no more, or never was.
    pub fn dead(phase: Phase) -> Self {
        Self { job: None, phase, needs_change_owner: false, is_told: false, may_be_written: false }
    }
}

/// How far an own run is.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// The ledger was asked to accept it.
    Beginning,
    /// The session went before the ledger answered: it is looked up under the next one. Nothing was started.
    Unsure,
    /// The warden was asked to start it, or has started it.
    Alive(Alive),
    /// It has ended; the ledger is still to accept that.
    Ended(Box<RunEnd>),
    /// Another attempt is to follow, whoever leads then; the ledger is still to accept that.
    LettingGo(LetGo),
}

/// How a run is let go.
#[derive(Clone, Debug)]
pub(super) struct LetGo {
    /// As what it waits in the ledger: `retrying`, or `unstarted`.
    pub state: RunState,
    /// What is told then.
    pub report: Option<Box<Report>>,
}

impl LetGo {
    /// After an attempt that ended.
    pub fn retrying(report: Report) -> Self {
        Self { state: RunState::Retrying, report: Some(Box::new(report)) }
    }
}

/// A process tree, or one about to be.
#[derive(Clone, Debug)]
pub(super) struct Alive {
    /// Its name to the warden.
    pub tree_id: TreeId,
    /// When the warden was asked to start it.
    pub ordered: Uptime,
    /// When it started; absent until the warden says so.
    pub started: Option<Uptime>,
    /// When it has taken its `timeout`.
    pub timeout_at: Option<Uptime>,
    /// Why it was told to stop.
    pub stopped: Option<StopCause>,
    /// The daemon has killed it, for the warden had not.
    pub is_ended_here: bool,
}

impl Alive {
    /// A tree that the warden is about to be asked to start.
    pub fn new(tree_id: TreeId, ordered: Uptime) -> Self {
        Self { tree_id, ordered, started: None, timeout_at: None, stopped: None, is_ended_here: false }
    }
}

/// Why a tree was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// It took longer than its `timeout`.
    Timeout,
    /// The drain timeout passed, or the node was told to end at once.
    Drain,
    /// The term ended otherwise than by resigning.
    Lease,
    /// Somebody wanted it, for this reason.
    Killed(Reason),
    /// Another settled it: whatever comes of it counts no more.
    Superseded,
}

impl Flight {
    /// A run as read.
    pub fn new(record: RunRecord, version: Version, holder: RunOwner) -> Self {
        Self { record, version, holder, commit: None, news: None }
    }

    /// Keeps what was heard of it for when the commit under way is answered. That its owner is gone is told once: a newer record of the
    /// same owner does not make it untrue.
    pub fn note_news(&mut self, news: News) {
        self.news = Some(match (self.news.take(), news) {
            (Some(News::OwnerGone(state, Some((old, _)))), News::Changed(Some((record, version))))
                if record.owner == old.owner =>
            {
                News::OwnerGone(state, Some((record, version)))
            }
            (_, news) => news,
        });
    }

    /// The own part, where this node has it.
    pub fn own(&self) -> Option<&Own> {
        match &self.holder {
            RunOwner::Own(own) => Some(own),
            _ => None,
        }
    }

    /// The own part, to be changed.
    pub fn own_mut(&mut self) -> Option<&mut Own> {
        match &mut self.holder {
            RunOwner::Own(own) => Some(own),
            _ => None,
        }
    }

    /// True while nobody has it and nothing is being written about it.
    pub fn is_nobodys(&self) -> bool {
        matches!(self.holder, RunOwner::Nobody) && self.commit.is_none()
    }

    /// True while it waits to be started, and no attempt of it ever had a process.
    pub fn never_started(&self) -> bool {
        self.record.state == RunState::Unstarted && !self.record.has_past()
    }

    /// True while it waits for other runs.
    pub fn is_queued(&self) -> bool {
        self.record.state == RunState::Queued
    }

    /// True while the leader is to begin it once nothing is in its way.
    pub fn is_waiting(&self) -> bool {
        self.is_queued() && self.is_nobodys()
    }

    /// The process tree, where there is one here.
    pub fn alive(&self) -> Option<&Alive> {
        match self.own().map(|own| &own.phase) {
            Some(Phase::Alive(alive)) => Some(alive),
            _ => None,
        }
    }

    /// True where the ledger is known to have the run in flight.
    pub fn is_begun(&self) -> bool {
        !matches!(self.own().map(|own| &own.phase), Some(Phase::Beginning | Phase::Unsure))
    }

    /// The process tree, to be changed.
    pub fn alive_mut(&mut self) -> Option<&mut Alive> {
        match self.own_mut().map(|own| &mut own.phase) {
            Some(Phase::Alive(alive)) => Some(alive),
            _ => None,
        }
    }
}
