//! One node's way through the queue to leadership and out of it.
//!
//! ```text
//! Out ─▶ Waiting ─▶ Taking ─▶ Settling ─▶ Leading
//!        for the    for the    the dead seen to,
//!        predecessor  lock     then the term opened
//! ```
//!
//! Every step is taken from the facts as they stand when it is taken; a notice only says that it is time to look.

use std::io;
use std::path::PathBuf;

use tokio::sync::mpsc::UnboundedSender;

use super::backend::Trouble;
use super::errand::{Errands, Notice, Turn};
use super::queue::{Entry, Place, Queue};
use super::reap::{DeadMember, ReapError};
use super::store::Store;
use crate::clock::{Uptime, system};
use crate::coordination::Event;
use crate::election::{self, TransferError};
use crate::state_dir::lock::FileLock;
use crate::term::{FencingToken, NodeName, Term, TermEnd};

#[derive(Debug)]
pub(super) struct Contender {
    node: NodeName,
    queue: Queue,
    leader_lock: PathBuf,
    campaigning: bool,
    stand: Stand,
    turn: u64,
}

#[derive(Debug)]
enum Stand {
    Out,
    /// `behind`: the predecessor that is being waited for, and who led when that was told.
    Waiting {
        place: Place,
        behind: Option<(Entry, NodeName)>,
    },
    Taking {
        place: Place,
    },
    Settling {
        place: Place,
        lock: FileLock,
        since: Uptime,
        dead: Dead,
    },
    Leading {
        place: Place,
        lock: FileLock,
        term: Term,
    },
}

/// How far the dead members are seen to.
#[derive(Debug)]
enum Dead {
    ToDo,
    UnderWay,
    /// Some live on; again at the next retry.
    Failed,
    Seen(Vec<DeadMember>),
}

impl Contender {
    pub(super) fn new(node: NodeName, queue: Queue, leader_lock: PathBuf) -> Self {
        Self { node, queue, leader_lock, campaigning: false, stand: Stand::Out, turn: 0 }
    }

    pub(super) fn campaign(&mut self) {
        self.campaigning = true;
    }

    /// Leaves the queue, and does not join it again.
    pub(super) fn withdraw(&mut self, why: TermEnd, events: &UnboundedSender<Event>) {
        self.campaigning = false;
        self.give_up(why, events);
    }

    /// Leaves the queue; the next step joins it again.
    pub(super) fn give_up(&mut self, why: TermEnd, events: &UnboundedSender<Event>) {
        self.turn += 1;
        if let Stand::Leading { place, lock, term } = std::mem::replace(&mut self.stand, Stand::Out) {
            drop(lock); // before the place: whoever waits for the place then finds the lock free
            drop(place);
            tell(events, election::Event::Over { term, why });
        }
    }

    /// The token to commit under, if this node leads and its lock still keeps others out.
    pub(super) fn token(&mut self, events: &UnboundedSender<Event>) -> Option<FencingToken> {
        self.leave_a_lost_place(events);
        match &self.stand {
            Stand::Leading { term, .. } => Some(term.token),
            _ => None,
        }
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.stand, Stand::Leading { .. })
    }

    /// Whether resigning makes `to` the leader: on one host the next in line leads, and only a candidate itself can leave the queue.
    pub(super) fn may_transfer(&self, to: &NodeName) -> io::Result<Result<(), TransferError>> {
        let Stand::Leading { place, .. } = &self.stand else { return Ok(Err(TransferError::NotLeading)) };
        if *to == self.node {
            return Ok(Err(TransferError::Leads));
        }
        let behind: Vec<Entry> = self.queue.living()?.into_iter().filter(|entry| entry > place.entry()).collect();
        Ok(match behind.iter().position(|entry| entry.node == *to) {
            Some(0) => Ok(()),
            Some(_) => Err(TransferError::NotNext),
            None => Err(TransferError::NotQueued),
        })
    }

    /// What failed to be seen to is tried again by the next step.
    pub(super) fn retry(&mut self) {
        if let Stand::Settling { dead: dead @ Dead::Failed, .. } = &mut self.stand {
            *dead = Dead::ToDo;
        }
    }

    /// Takes what an errand brought; the next step goes on from there. A stale one is dropped, its lock with it.
    pub(super) fn take(&mut self, notice: Notice) -> Result<(), Trouble> {
        let current = Turn(self.turn);
        match notice {
            Notice::Ahead(turn, result) if turn == current => self.predecessor_gone(result),
            Notice::LeaderLock(turn, result) if turn == current => self.got_lock(result),
            Notice::AllReaped(turn, result) if turn == current => self.dead_seen(result),
            _ => Ok(()),
        }
    }

    fn predecessor_gone(&mut self, result: io::Result<()>) -> Result<(), Trouble> {
        if let Stand::Waiting { behind, .. } = &mut self.stand {
            *behind = None;
        }
        Ok(result?)
    }

    fn got_lock(&mut self, result: io::Result<FileLock>) -> Result<(), Trouble> {
        self.stand = match (std::mem::replace(&mut self.stand, Stand::Out), result) {
            (Stand::Taking { place }, Ok(lock)) => {
                Stand::Settling { place, lock, since: system::uptime(), dead: Dead::ToDo }
            }
            (Stand::Taking { place }, Err(error)) => {
                self.stand = Stand::Waiting { place, behind: None };
                return Err(error.into());
            }
            (other, _) => other,
        };
        Ok(())
    }

    fn dead_seen(&mut self, result: Result<Vec<DeadMember>, ReapError>) -> Result<(), Trouble> {
        let Stand::Settling { dead, .. } = &mut self.stand else { return Ok(()) };
        match result {
            Ok(reaped) => *dead = Dead::Seen(reaped),
            Err(error) => {
                *dead = Dead::Failed;
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Goes as far as it can without waiting.
    pub(super) fn step(
        &mut self,
        store: &mut Store,
        errands: &Errands,
        events: &UnboundedSender<Event>,
    ) -> Result<(), Trouble> {
        self.leave_a_lost_place(events);
        if self.campaigning && matches!(self.stand, Stand::Out) {
            let place = self.queue.join(&self.node)?;
            tell(events, election::Event::Joined { candidate: place.entry().name() });
            self.stand = Stand::Waiting { place, behind: None };
        }
        if matches!(self.stand, Stand::Waiting { .. }) {
            self.look(errands, events)?;
        }
        if matches!(self.stand, Stand::Settling { .. }) {
            self.settle(store, errands, events)?;
        }
        Ok(())
    }

    /// A place whose file was removed by hand is none: another may have taken it.
    fn leave_a_lost_place(&mut self, events: &UnboundedSender<Event>) {
        let stands = match &self.stand {
            Stand::Out => true,
            Stand::Waiting { place, .. } | Stand::Taking { place } => place.stands(),
            Stand::Settling { place, lock, .. } | Stand::Leading { place, lock, .. } => {
                place.stands() && lock.is_current()
            }
        };
        if !stands {
            self.give_up(TermEnd::EntryGone, events);
        }
    }

    /// Reads the queue; waits for the predecessor, or where there is none for the lock.
    fn look(&mut self, errands: &Errands, events: &UnboundedSender<Event>) -> Result<(), Trouble> {
        let Stand::Waiting { place, behind } = &mut self.stand else { return Ok(()) };
        let mut ahead = self.queue.living()?;
        ahead.retain(|entry| entry < place.entry());
        let (Some(leader), Some(next)) = (ahead.first(), ahead.last()) else { return self.reach_for_the_lock(errands) };
        let now = (next.clone(), leader.node.clone());
        if behind.as_ref() == Some(&now) {
            return Ok(());
        }
        if behind.as_ref().is_none_or(|(entry, _)| entry != next) {
            self.turn += 1;
            errands.wait_for_predecessor(Turn(self.turn), self.queue.path(next))?;
        }
        tell(events, following(place.entry(), &now));
        *behind = Some(now);
        Ok(())
    }

    fn reach_for_the_lock(&mut self, errands: &Errands) -> Result<(), Trouble> {
        self.turn += 1;
        errands.take_leader_lock(Turn(self.turn), self.leader_lock.clone())?;
        if let Stand::Waiting { place, .. } = std::mem::replace(&mut self.stand, Stand::Out) {
            self.stand = Stand::Taking { place };
        }
        Ok(())
    }

    fn settle(&mut self, store: &mut Store, errands: &Errands, events: &UnboundedSender<Event>) -> Result<(), Trouble> {
        let Stand::Settling { place, since, dead, .. } = &mut self.stand else { return Ok(()) };
        let reaped = match dead {
            Dead::UnderWay | Dead::Failed => return Ok(()),
            Dead::ToDo => {
                self.turn += 1;
                errands.reap_all(Turn(self.turn))?;
                *dead = Dead::UnderWay;
                return Ok(());
            }
            Dead::Seen(reaped) => reaped,
        };
        let (token, rows, ended) = store.open_term(reaped)?;
        // Files that cannot be removed now are found again by the next leader, who finds nothing to do.
        reaped.iter().try_for_each(|member| errands.members.remove(&member.name)).ok();
        let snapshot = Box::new(rows.with_owners(&errands.members));
        let term = Term { token, candidate: place.entry().name() };
        let took = system::uptime().since(*since);
        self.lead(term.clone());
        tell(events, election::Event::Elected { term, lease_until: Uptime::NEVER, snapshot, took });
        for end in ended {
            let _ = events.send(Event::Ledger(end)); // as with `tell`
        }
        Ok(())
    }

    fn lead(&mut self, term: Term) {
        self.stand = match std::mem::replace(&mut self.stand, Stand::Out) {
            Stand::Settling { place, lock, .. } => Stand::Leading { place, lock, term },
            other => other,
        };
    }
}

fn following(own: &Entry, (predecessor, leader): &(Entry, NodeName)) -> election::Event {
    election::Event::Following {
        candidate: own.name(),
        predecessor: predecessor.name(),
        predecessor_node: Some(predecessor.node.clone()),
        leader_node: Some(leader.clone()),
    }
}

fn tell(events: &UnboundedSender<Event>, event: election::Event) {
    let _ = events.send(Event::Election(event)); // nobody there: the daemon has ended, and so will the backend
}
