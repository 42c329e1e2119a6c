//! The node's candidate, its position in the queue, and its term.

use super::Pending;
use super::transfer::Transfer;
use crate::clock::Uptime;
use crate::term::{CandidateName, Term, TermEnd};
use crate::zookeeper::place::Behind;

/// The position in the queue.
pub(super) enum Role {
    /// None, or not known.
    None,
    /// Behind another.
    Waiting(Pending<()>),
    /// First since then; the term is being opened.
    First(Uptime),
    /// The leader.
    Leading(Leading),
}

/// A term that is open.
pub(super) struct Leading {
    pub term: Term,
    /// The opening write of the term is answered.
    pub is_written: bool,
}

/// The own candidate, and what comes of it.
pub(super) struct Candidacy {
    pub candidate: Option<CandidateName>,
    /// A create of a candidate was never answered: it may exist.
    pub is_join_unclear: bool,
    /// A candidate whose term is over, or that was resigned: to be removed before another is made.
    pub retired: Option<CandidateName>,
    pub role: Role,
    /// What the daemon knows of the predecessor.
    pub following: Option<Behind>,
    /// When the queue and the members are read next.
    pub survey_at: Uptime,
    pub is_high_sequence_reported: bool,
    /// The parent of the queue cannot be written to.
    pub is_queue_closed: bool,
    /// Until when commits are waited for before leadership is given up.
    pub resign_by: Option<Uptime>,
    /// A term's end that waits for the last answers.
    pub over: Option<(Term, TermEnd)>,
    /// Who is to be given leadership.
    pub transfer: Transfer,
}

impl Candidacy {
    pub fn new(survey_at: Uptime) -> Self {
        Self {
            candidate: None,
            is_join_unclear: false,
            retired: None,
            role: Role::None,
            following: None,
            survey_at,
            is_high_sequence_reported: false,
            is_queue_closed: false,
            resign_by: None,
            over: None,
            transfer: Transfer::None,
        }
    }

    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Leading(_))
    }
}
