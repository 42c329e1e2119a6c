//! Handover of leadership to a named node.
//!
//! The successor is looked up while the term goes on. The term ends once all of its commits are answered; then the
//! position goes to the successor.

use std::time::Duration;

use super::SessionLoop;
use crate::recipes::transfer::Successor;
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::election::{self, Event, TransferError};
use cronkeeper_core::term::{NodeName, TermEnd};

/// A handover takes at most this long, because the leader decides nothing meanwhile.
const WITHIN: Duration = Duration::from_secs(5);

/// Progress of a handover.
pub(super) enum Transfer {
    /// No handover was requested.
    None,
    /// The named node should lead; its candidate is being looked up, until the deadline.
    Wanted(NodeName, Uptime),
    /// The successor is known: the term ends as soon as its commits are answered, if they are before the deadline.
    Certain(Successor, Uptime),
    /// The term is over: the position must be given to the successor.
    Due(Successor),
}

impl Transfer {
    /// The node whose candidate must be looked up.
    pub(super) fn wanted(&self) -> Option<NodeName> {
        match self {
            Self::Wanted(to, _) => Some(to.clone()),
            Self::None | Self::Certain(..) | Self::Due(_) => None,
        }
    }

    /// The successor that the position must be given to.
    pub(super) fn successor(&self) -> Option<Successor> {
        match self {
            Self::Due(successor) => Some(successor.clone()),
            Self::None | Self::Wanted(..) | Self::Certain(..) => None,
        }
    }

    /// True once the successor is known: the term ends when the earlier commits are answered.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self, Self::Certain(..))
    }

    /// The deadline, after which the handover is cancelled and the term goes on.
    pub(super) fn until(&self) -> Option<Uptime> {
        match self {
            Self::Wanted(_, until) | Self::Certain(_, until) => Some(*until),
            Self::None | Self::Due(_) => None,
        }
    }
}

impl<C: Session, K: Clock> SessionLoop<'_, C, K> {
    pub(super) fn transfer(&mut self, to: NodeName) {
        if self.candidacy.leads() && matches!(self.candidacy.transfer, Transfer::None) {
            self.candidacy.transfer = Transfer::Wanted(to, self.now() + WITHIN);
        } else {
            self.not_transferred(to, TransferError::NotLeading);
        }
    }

    pub(super) fn found_successor(&mut self, found: Result<Successor, TransferError>) {
        // The term may have ended meanwhile, and with it the handover.
        let Transfer::Wanted(to, until) = std::mem::replace(&mut self.candidacy.transfer, Transfer::None) else {
            return;
        };
        match found {
            Ok(successor) => self.candidacy.transfer = Transfer::Certain(successor, until),
            Err(why) => self.not_transferred(to, why),
        }
    }

    /// Ends the term for the successor once the earlier commits are answered.
    pub(super) fn transfer_when_answered(&mut self) {
        if !self.candidacy.transfer.is_certain() || self.committer.has_fenced() {
            return;
        }
        let Transfer::Certain(successor, _) = std::mem::replace(&mut self.candidacy.transfer, Transfer::None) else {
            return;
        };
        self.node.note(election::Request::Resign);
        self.lose_term(TermEnd::Resigned);
        self.candidacy.transfer = Transfer::Due(successor);
    }

    /// Cancels a handover after its deadline: the leader decides nothing while it waits.
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

    /// Cancels the handover: the term ended for another reason first.
    pub(super) fn forget_transfer(&mut self) {
        match std::mem::replace(&mut self.candidacy.transfer, Transfer::None) {
            Transfer::Wanted(to, _) | Transfer::Certain(Successor { node: to, .. }, _) => {
                self.not_transferred(to, TransferError::NotLeading);
            }
            Transfer::None | Transfer::Due(_) => {}
        }
    }

    fn not_transferred(&self, to: NodeName, why: TransferError) {
        self.node.emit(Event::NotTransferred { to, why });
    }
}
