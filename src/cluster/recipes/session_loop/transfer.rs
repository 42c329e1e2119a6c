//! Handover of leadership to a named node.
//!
//! The successor is looked up while the term continues. The term ends once all of its commits are answered; then the
//! position goes to the successor.

use std::time::Duration;

use crate::recipes::transfer::Successor;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::{Event, TransferError};
use cronkeeper_core::term::NodeName;

/// A handover takes at most this long, because the leader decides nothing meanwhile.
const WITHIN: Duration = Duration::from_secs(5);

/// Progress of a handover.
#[derive(Default)]
pub(super) enum Transfer {
    /// No handover was requested.
    #[default]
    None,
    /// The named node should lead; its candidate is being looked up, until the deadline.
    Wanted(NodeName, Uptime),
    /// The successor is known: the term ends as soon as its commits are answered, if they are before the deadline.
    Certain(Successor, Uptime),
    /// The term is over: the position must be given to the successor.
    Due(Successor),
}

impl Transfer {
    /// Starts a handover. Returns what the daemon must know if it fails at once.
    pub fn start(&mut self, to: NodeName, leads: bool, now: Uptime) -> Option<Event> {
        if !leads || !matches!(self, Self::None) {
            return Some(not_transferred(to, TransferError::NotLeading));
        }
        *self = Self::Wanted(to, now + WITHIN);
        None
    }

    /// The node whose candidate must be looked up.
    pub fn wanted(&self) -> Option<NodeName> {
        match self {
            Self::Wanted(to, _) => Some(to.clone()),
            Self::None | Self::Certain(..) | Self::Due(_) => None,
        }
    }

    /// The successor that the position must be given to.
    pub fn successor(&self) -> Option<Successor> {
        match self {
            Self::Due(successor) => Some(successor.clone()),
            Self::None | Self::Wanted(..) | Self::Certain(..) => None,
        }
    }

    /// The deadline, after which the handover is cancelled and the term continues.
    pub fn until(&self) -> Option<Uptime> {
        match self {
            Self::Wanted(_, until) | Self::Certain(_, until) => Some(*until),
            Self::None | Self::Due(_) => None,
        }
    }

    /// The lookup is done.
    pub fn found(&mut self, found: Result<Successor, TransferError>) -> Option<Event> {
        // The term may have ended meanwhile, and with it the handover.
        let Self::Wanted(to, until) = std::mem::take(self) else { return None };
        match found {
            Ok(successor) => {
                *self = Self::Certain(successor, until);
                None
            }
            Err(why) => Some(not_transferred(to, why)),
        }
    }

    /// The successor, once it is known. The caller ends the term and then makes the handover [`Due`](Self::Due).
    pub fn take_certain(&mut self) -> Option<Successor> {
        match std::mem::take(self) {
            Self::Certain(successor, _) => Some(successor),
            other => {
                *self = other;
                None
            }
        }
    }

    /// Cancels a handover after its deadline: the leader decides nothing while it waits.
    pub fn end_late(&mut self, now: Uptime) -> Option<Event> {
        self.until().filter(|&until| now >= until)?;
        self.cancel(TransferError::NotInTime)
    }

    /// Cancels the handover, unless the term was ended for it. Returns what the daemon must know.
    pub fn cancel(&mut self, why: TransferError) -> Option<Event> {
        match std::mem::take(self) {
            Self::Wanted(to, _) | Self::Certain(Successor { node: to, .. }, _) => Some(not_transferred(to, why)),
            Self::None | Self::Due(_) => None,
        }
    }

    /// The own place was given up. Returns what the daemon must know if the successor did not get it.
    pub fn handed_over(&mut self, is_to_successor: bool) -> Option<Event> {
        match std::mem::take(self) {
            Self::Due(successor) if !is_to_successor => Some(not_transferred(successor.node, TransferError::Changed)),
            _ => None,
        }
    }
}

fn not_transferred(to: NodeName, why: TransferError) -> Event {
    Event::NotTransferred { to, why }
}
