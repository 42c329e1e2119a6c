//! The node's candidate, its position in the queue, and its term.

use std::time::Duration;

use super::transfer::Transfer;
use super::{BoxFuture, FIRST_SURVEY, LEADER_EVERY, SURVEY_EVERY};
use crate::queue;
use crate::recipes::place::Behind;
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
    /// A term is not opened before: until then the nodes that are back restore what the servers may have lost.
    pub opens_at: Uptime,
    /// The predecessor last reported to the daemon.
    pub following: Option<Behind>,
    /// When the leader's entry is looked for next, if that is not the watched predecessor.
    pub leader_look_at: Uptime,
    /// When the queue and the members are read next.
    pub survey_at: Uptime,
    /// When they were read last.
    pub surveyed_at: Uptime,
    /// From the next time until the one after it.
    pub survey_pause: Duration,
    pub is_high_sequence_reported: bool,
    /// The folder of the queue is not writable for this node.
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
            opens_at: Uptime::ZERO,
            following: None,
            leader_look_at: Uptime::ZERO,
            survey_at,
            surveyed_at: Uptime::ZERO,
            survey_pause: SURVEY_EVERY,
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

    /// When a term may be opened, if it may not be yet and this node is the first.
    pub fn waits_to_open(&self, now: Uptime) -> Option<Uptime> {
        Some(self.opens_at).filter(|&at| now < at && matches!(self.role, Role::First(_)))
    }

    /// Looks for the leader's entry within [`LEADER_EVERY`]. Those that found their positions at the same time, as after
    /// an outage, look at different times, by their numbers in the queue.
    pub fn look_for_leader_soon(&mut self, now: Uptime, own: &CandidateName) {
        const TURNS: u8 = 16;
        let number = queue::sequence(&own.0).unwrap_or_default().rem_euclid(TURNS.into());
        let turn = u32::try_from(number).unwrap_or_default() + 1;
        self.leader_look_at = now + LEADER_EVERY * turn / TURNS.into();
    }

    /// The leader's entry and when it is looked for next; `None` if the watch on the predecessor says enough.
    pub fn distant_leader(&self) -> Option<(Uptime, CandidateName)> {
        let is_waiting = matches!(self.role, Role::Waiting(_));
        let behind = self.following.as_ref().filter(|behind| is_waiting && behind.leader != behind.predecessor)?;
        Some((self.leader_look_at, behind.leader.clone()))
    }

    /// Reads the queue and the members soon, and then less and less often.
    pub fn survey_soon(&mut self, now: Uptime) {
        self.survey_pause = FIRST_SURVEY;
        self.survey_at = self.survey_at.min(now + FIRST_SURVEY);
    }

    /// The queue and the members were read.
    pub fn surveyed(&mut self, now: Uptime) {
        (self.surveyed_at, self.survey_at) = (now, now + self.survey_pause);
        self.survey_pause = (self.survey_pause * 2).min(SURVEY_EVERY);
    }
}
