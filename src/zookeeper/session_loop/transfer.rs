//! Giving leadership to a named node, step by step: looked for while the term goes on, done once nothing of it is open.

use std::time::Duration;

use super::SessionLoop;
use crate::clock::{Clock, Uptime};
use crate::election::{self, Event, TransferError};
use crate::term::{NodeName, TermEnd};
use crate::zookeeper::client::Connect;
use crate::zookeeper::transfer::Successor;

/// How long a leader that is to give leadership to another decides nothing for that.
const WITHIN: Duration = Duration::from_secs(5);

/// How far an transfer has come.
pub(super) enum Transfer {
    /// Nobody is to be appointed.
    None,
    /// This node is to lead; whether it can is looked up, until then.
    Wanted(NodeName, Uptime),
    /// It can: the term ends as soon as its commits are answered, if they are by then.
    Certain(Successor, Uptime),
    /// The term is over: the place is to be given up to the successor.
    Due(Successor),
}

impl Transfer {
    /// Who is to be looked for.
    pub(super) fn wanted(&self) -> Option<NodeName> {
        match self {
            Self::Wanted(to, _) => Some(to.clone()),
            Self::None | Self::Certain(..) | Self::Due(_) => None,
        }
    }

    /// Who the place is to be given up to.
    pub(super) fn successor(&self) -> Option<Successor> {
        match self {
            Self::Due(successor) => Some(successor.clone()),
            Self::None | Self::Wanted(..) | Self::Certain(..) => None,
        }
    }

    /// True when the next leader is chosen: the term ends once what was requested before it is answered.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self, Self::Certain(..))
    }

    /// When the term goes on, if nothing has come of it.
    pub(super) fn until(&self) -> Option<Uptime> {
        match self {
            Self::Wanted(_, until) | Self::Certain(_, until) => Some(*until),
            Self::None | Self::Due(_) => None,
        }
    }
}

impl<C: Connect, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn transfer(&mut self, to: NodeName) {
        if self.candidacy.leads() && matches!(self.candidacy.transfer, Transfer::None) {
            self.candidacy.transfer = Transfer::Wanted(to, self.now() + WITHIN);
        } else {
            self.not_transferred(to, TransferError::NotLeading);
        }
    }

    pub(super) fn found_successor(&mut self, found: Result<Successor, TransferError>) {
        // The term may have ended meanwhile, and the answer with it.
        let Transfer::Wanted(to, until) = std::mem::replace(&mut self.candidacy.transfer, Transfer::None) else {
            return;
        };
        match found {
            Ok(successor) => self.candidacy.transfer = Transfer::Certain(successor, until),
            Err(why) => self.not_transferred(to, why),
        }
    }

    /// Like resigning, it waits for the answers to what was requested before it.
    pub(super) fn transfer_when_answered(&mut self) {
        if !self.candidacy.transfer.is_certain() || self.committer.has_fenced() {
            return;
        }
        let Transfer::Certain(successor, _) = std::mem::replace(&mut self.candidacy.transfer, Transfer::None) else {
            return;
        };
        self.supervisor.note(election::Request::Resign);
        self.lose_term(TermEnd::Resigned);
        self.candidacy.transfer = Transfer::Due(successor);
    }

    /// The leader decides nothing while it waits: not for longer than this.
    pub(super) fn end_late_transfer(&mut self, now: Uptime) {
        if self.candidacy.transfer.until().is_none_or(|until| now < until) {
            return;
        }
        match std::mem::replace(&mut self.candidacy.transfer, Transfer::None) {
            Transfer::Wanted(to, _) | Transfer::Certain(Successor { node: to, .. }, _) => {
                self.not_transferred(to, TransferError::NotInTime);
            }
            Transfer::None | Transfer::Due(_) => {}
        }
    }

    pub(super) fn handed_over(&mut self, is_to_successor: bool) {
        let successor = std::mem::replace(&mut self.candidacy.transfer, Transfer::None);
        if let (Transfer::Due(successor), false) = (successor, is_to_successor) {
            self.not_transferred(successor.node, TransferError::Changed);
        }
        self.withdrawn();
    }

    /// The term ended otherwise before leadership could be given away.
    pub(super) fn forget_transfer(&mut self) {
        match std::mem::replace(&mut self.candidacy.transfer, Transfer::None) {
            Transfer::Wanted(to, _) | Transfer::Certain(Successor { node: to, .. }, _) => {
                self.not_transferred(to, TransferError::NotLeading);
            }
            Transfer::None | Transfer::Due(_) => {}
        }
    }

    fn not_transferred(&self, to: NodeName, why: TransferError) {
        self.supervisor.tell(Event::NotTransferred { to, why });
    }
}
