//! State machine of a candidate: join the queue, wait, take the leader's lock, lead, leave.
//!
//! ```text
//! Out ─▶ Waiting ─▶ Taking ─▶ Settling ─▶ Leading
//!        for the    for the    reap dead members,
//!        predecessor  lock     then open the term
//! ```
//!
//! Every step reads the current state of the files. A notice only says that it is time to do so.

use std::io;
use std::path::PathBuf;

use tokio::sync::mpsc::UnboundedSender;

use super::backend::BackendError;
use super::background::{BackendNotice, BackgroundWork, WaitId};
use super::queue::{Queue, QueueEntry, QueuePosition};
use super::reap::{DeadMember, ReapError};
use super::store::Store;
use crate::state_dir::lock::FileLock;
use cronkeeper_core::clock::{Uptime, system};
use cronkeeper_core::coordination::Event;
use cronkeeper_core::election::{self, TransferError};
use cronkeeper_core::term::{FencingToken, NodeName, Term, TermEnd};

#[derive(Debug)]
pub(super) struct Contender {
    node: NodeName,
    queue: Queue,
    leader_lock: PathBuf,
    campaigning: bool,
    /// The node is not drained.
    may_join: bool,
    state: ContenderState,
    wait_id: u64,
}

#[derive(Debug)]
enum ContenderState {
    Out,
    Waiting {
        position: QueuePosition,
        /// The predecessor, which a thread waits for, and the leader, both as last reported to the daemon.
        behind: Option<(QueueEntry, NodeName)>,
    },
    Taking {
        position: QueuePosition,
    },
    Settling {
        position: QueuePosition,
        lock: FileLock,
        since: Uptime,
        cleanup: Cleanup,
    },
    Leading {
        position: QueuePosition,
        lock: FileLock,
        term: Term,
    },
}

/// Progress of reaping the dead members.
#[derive(Debug)]
enum Cleanup {
    ToDo,
    Running,
    /// To be tried again at the next retry, for example because processes survived.
    Failed,
    Done(Vec<DeadMember>),
}

impl Contender {
    pub(super) fn new(node: NodeName, queue: Queue, leader_lock: PathBuf) -> Self {
        Self { node, queue, leader_lock, campaigning: false, may_join: false, state: ContenderState::Out, wait_id: 0 }
    }

    pub(super) fn campaign(&mut self) {
        self.campaigning = true;
    }

    /// Sets whether the node may join the queue. A place that it has stays until the daemon resigns.
    pub(super) fn may_join(&mut self, may_join: bool) {
        self.may_join = may_join;
    }

    /// Leaves the queue for good.
    pub(super) fn withdraw(&mut self, why: TermEnd, events: &UnboundedSender<Event>) {
        self.campaigning = false;
        self.give_up(why, events);
    }

    /// Leaves the queue; the next step joins it again.
    pub(super) fn give_up(&mut self, why: TermEnd, events: &UnboundedSender<Event>) {
        self.wait_id += 1;
        if let ContenderState::Leading { position, lock, term } =
            std::mem::replace(&mut self.state, ContenderState::Out)
        {
            drop(lock); // before the position, so that the follower that waits for it then finds the lock free
            drop(position);
            emit(events, election::Event::Over { term, why });
        }
    }

    /// The token to commit with, if this node leads and its lock still keeps others out.
    pub(super) fn token(&mut self, events: &UnboundedSender<Event>) -> Option<FencingToken> {
        self.leave_if_lost(events);
        match &self.state {
            ContenderState::Leading { term, .. } => Some(term.token),
            _ => None,
        }
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.state, ContenderState::Leading { .. })
    }

    /// Checks that `to` would lead if this node resigned.
    ///
    /// On one host the next in line always leads: a candidate's lock can only be released by its own process, so no
    /// other candidate can be moved out of the way.
    pub(super) fn may_transfer(&self, to: &NodeName) -> io::Result<Result<(), TransferError>> {
        let ContenderState::Leading { position, .. } = &self.state else { return Ok(Err(TransferError::NotLeading)) };
        if *to == self.node {
            return Ok(Err(TransferError::Leads));
        }
        let behind: Vec<QueueEntry> =
            self.queue.alive()?.into_iter().filter(|entry| entry > position.entry()).collect();
        Ok(match behind.iter().position(|entry| entry.node == *to) {
            Some(0) => Ok(()),
            Some(_) => Err(TransferError::NotNext),
            None => Err(TransferError::NotQueued),
        })
    }

    /// Lets the next step reap the dead members again if it failed.
    pub(super) fn retry(&mut self) {
        if let ContenderState::Settling { cleanup: cleanup @ Cleanup::Failed, .. } = &mut self.state {
            *cleanup = Cleanup::ToDo;
        }
    }

    /// Records the result of background work, for the next step. A stale result is dropped, with any lock in it.
    pub(super) fn on_notice(&mut self, notice: BackendNotice) -> Result<(), BackendError> {
        let current = WaitId(self.wait_id);
        match notice {
            BackendNotice::PredecessorGone(id, result) if id == current => self.on_predecessor_gone(result),
            BackendNotice::LeaderLock(id, result) if id == current => self.on_leader_lock(result),
            BackendNotice::AllReaped(id, result) if id == current => self.on_cleanup_done(result),
            _ => Ok(()),
        }
    }

    fn on_predecessor_gone(&mut self, result: io::Result<()>) -> Result<(), BackendError> {
        if let ContenderState::Waiting { behind, .. } = &mut self.state {
            *behind = None;
        }
        Ok(result?)
    }

    fn on_leader_lock(&mut self, result: io::Result<FileLock>) -> Result<(), BackendError> {
        self.state = match (std::mem::replace(&mut self.state, ContenderState::Out), result) {
            (ContenderState::Taking { position }, Ok(lock)) => {
                ContenderState::Settling { position, lock, since: system::uptime(), cleanup: Cleanup::ToDo }
            }
            (ContenderState::Taking { position }, Err(error)) => {
                self.state = ContenderState::Waiting { position, behind: None };
                return Err(error.into());
            }
            (other, _) => other,
        };
        Ok(())
    }

    fn on_cleanup_done(&mut self, result: Result<Vec<DeadMember>, ReapError>) -> Result<(), BackendError> {
        let ContenderState::Settling { cleanup, .. } = &mut self.state else { return Ok(()) };
        match result {
            Ok(reaped) => *cleanup = Cleanup::Done(reaped),
            Err(error) => {
                *cleanup = Cleanup::Failed;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Goes on as far as possible without waiting.
    pub(super) fn step(
        &mut self,
        store: &mut Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        self.leave_if_lost(events);
        if self.campaigning && self.may_join && matches!(self.state, ContenderState::Out) {
            let position = self.queue.join(&self.node)?;
            emit(events, election::Event::Joined { candidate: position.entry().name() });
            self.state = ContenderState::Waiting { position, behind: None };
        }
        if matches!(self.state, ContenderState::Waiting { .. }) {
            self.read_queue(background, events)?;
        }
        if matches!(self.state, ContenderState::Settling { .. }) {
            self.settle(store, background, events)?;
        }
        Ok(())
    }

    /// Gives up a position whose file, or whose leader lock, was removed by hand: another process may have taken it.
    fn leave_if_lost(&mut self, events: &UnboundedSender<Event>) {
        let is_intact = match &self.state {
            ContenderState::Out => true,
            ContenderState::Waiting { position, .. } | ContenderState::Taking { position } => position.is_intact(),
            ContenderState::Settling { position, lock, .. } | ContenderState::Leading { position, lock, .. } => {
                position.is_intact() && lock.is_current()
            }
        };
        if !is_intact {
            self.give_up(TermEnd::EntryGone, events);
        }
    }

    /// Reads the queue and waits for the predecessor; without one, requests the leader's lock.
    fn read_queue(&mut self, background: &BackgroundWork, events: &UnboundedSender<Event>) -> Result<(), BackendError> {
        let ContenderState::Waiting { position, behind } = &mut self.state else { return Ok(()) };
        let mut ahead = self.queue.alive()?;
        ahead.retain(|entry| entry < position.entry());
        let (Some(leader), Some(next)) = (ahead.first(), ahead.last()) else {
            return self.request_leader_lock(background);
        };
        let now = (next.clone(), leader.node.clone());
        if behind.as_ref() == Some(&now) {
            return Ok(());
        }
        if behind.as_ref().is_none_or(|(entry, _)| entry != next) {
            self.wait_id += 1;
            background.wait_for_predecessor(WaitId(self.wait_id), self.queue.path(next))?;
        }
        emit(events, following(position.entry(), &now));
        *behind = Some(now);
        Ok(())
    }

    fn request_leader_lock(&mut self, background: &BackgroundWork) -> Result<(), BackendError> {
        self.wait_id += 1;
        background.take_leader_lock(WaitId(self.wait_id), self.leader_lock.clone())?;
        if let ContenderState::Waiting { position, .. } = std::mem::replace(&mut self.state, ContenderState::Out) {
            self.state = ContenderState::Taking { position };
        }
        Ok(())
    }

    fn settle(
        &mut self,
        store: &mut Store,
        background: &BackgroundWork,
        events: &UnboundedSender<Event>,
    ) -> Result<(), BackendError> {
        let ContenderState::Settling { position, since, cleanup, .. } = &mut self.state else { return Ok(()) };
        let reaped = match cleanup {
            Cleanup::Running | Cleanup::Failed => return Ok(()),
            Cleanup::ToDo => {
                self.wait_id += 1;
                background.reap_all(WaitId(self.wait_id))?;
                *cleanup = Cleanup::Running;
                return Ok(());
            }
            Cleanup::Done(reaped) => reaped,
        };
        let (token, rows, ended) = store.open_term(reaped)?;
        // If files cannot be removed now, the next leader finds and removes them; there is nothing left to settle.
        for member in reaped.iter() {
            let _ = background.members.remove(&member.name);
        }
        let snapshot = Box::new(rows.with_owners(&background.members));
        let term = Term { token, candidate: position.entry().name() };
        let took = system::uptime().since(*since);
        self.lead(term.clone());
        emit(events, election::Event::Elected { term, lease_until: Uptime::NEVER, snapshot, took });
        for end in ended {
            let _ = events.send(Event::Ledger(end)); // see `emit`
        }
        Ok(())
    }

    fn lead(&mut self, term: Term) {
        self.state = match std::mem::replace(&mut self.state, ContenderState::Out) {
            ContenderState::Settling { position, lock, .. } => ContenderState::Leading { position, lock, term },
            other => other,
        };
    }
}

fn following(own: &QueueEntry, (predecessor, leader): &(QueueEntry, NodeName)) -> election::Event {
    election::Event::Following {
        candidate: own.name(),
        predecessor: predecessor.name(),
        predecessor_node: Some(predecessor.node.clone()),
        leader_node: Some(leader.clone()),
    }
}

fn emit(events: &UnboundedSender<Event>, event: election::Event) {
    let _ = events.send(Event::Election(event)); // without a receiver the daemon has ended, and the backend will
}
