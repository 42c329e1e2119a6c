//! The node's candidate, its position in the queue, and its term.

use super::BoxFuture;
use super::transfer::Transfer;
use crate::zookeeper::place::Behind;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::term::{CandidateName, Term, TermEnd};

/// The candidate's position in the queue.
pub(super) enum Role {
    /// No position, or an unknown one: the next step reads it.
    None,
    /// Behind another candidate; the future resolves when that one goes.
    Waiting(BoxFuture<()>),
    /// First since this instant; the term is being opened.
    First(Uptime),
    /// This node leads.
    Leading(Leading),
}

/// The term in which this node leads.
pub(super) struct Leading {
    pub term: Term,
    /// The opening write of the term was acknowledged.
    pub is_written: bool,
}

/// The node's candidate and its progress towards a term.
pub(super) struct Candidacy {
    pub candidate: Option<CandidateName>,
    /// The result of creating a candidate is unknown: it may exist.
    pub is_join_unclear: bool,
    /// A candidate that resigned or whose term is over. It must be removed before another is created.
    pub retired: Option<CandidateName>,
    pub role: Role,
    /// The predecessor last reported to the daemon.
    pub following: Option<Behind>,
    /// When the queue and the members are read next.
    pub survey_at: Uptime,
    pub is_high_sequence_reported: bool,
    /// The parent znode of the queue is not writable for this node.
    pub is_queue_closed: bool,
    /// Deadline for in-flight commits before the node resigns anyway.
    pub resign_by: Option<Uptime>,
    /// The end of a term, not emitted yet because answers to its last commits are expected.
    pub over: Option<(Term, TermEnd)>,
    /// A requested handover to a named node.
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
