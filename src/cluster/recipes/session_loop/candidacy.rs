//! The node's candidate, its position in the queue, and its term.
//!
//! ```text
//!   Out ─ Create ─► Unclear ─ Join ─► Queued ─┬─ Wait ──► Waiting ─ LosePosition ─► Queued
//!    ▲                 │                ▲     └─ BeFirst ─► First ─ Lead ─► Leading
//!    └──── Leave ──────┘                └─ LosePosition ────┘
//!
//!   Queued, Waiting, First, Leading:  Retire ─► Retired ─ Leave ─► Out;  FindGone ─► Out
//! ```

use std::time::Duration;

use super::futures::{BoxFuture, under_way};
use crate::paths;
use crate::queue;
use crate::recipes::place::Behind;
use crate::tree::Limits;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::term::{CandidateName, FencingToken, Term, TermEnd};

/// Interval at which a follower looks whether the first entry is still there, if it does not watch that entry, and
/// whether its node leads by now.
const FIRST_EVERY: Duration = Duration::from_secs(2);
/// Resigning waits at most this long for the answers to commits.
const RESIGN_WITHIN: Duration = Duration::from_secs(5);

/// How far this node is on its way through the queue.
enum Progress {
    /// It has no candidate.
    Out,
    /// A candidate is being created, or the answer is missing: it may exist.
    Unclear,
    /// It has a candidate. No position, or an unknown one: the next step reads it.
    Queued(CandidateName),
    /// Behind another candidate; the future resolves when that one goes.
    Waiting(CandidateName, BoxFuture<()>),
    /// First since this instant; the term is being opened.
    First(CandidateName, Uptime),
    /// This node leads.
    Leading(Term, OpeningWrite),
    /// The candidate resigned, or its term is over. It must be removed before another is created.
    Retired(CandidateName),
}

/// The opening write of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpeningWrite {
    /// It is still to be acknowledged: the lease was the proof.
    Due,
    Acknowledged,
}

/// The record of a term's opening write, which also checks the own candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpeningRecord {
    Queue,
    /// The folder of the queue is not writable for this node.
    Member,
}

/// What happens to the candidate.
pub(super) enum QueueStep {
    /// Its creation was sent.
    Create,
    Join(CandidateName),
    /// It is behind another one, and this watch on that one was set.
    Wait(CandidateName, BoxFuture<()>),
    BeFirst(CandidateName, Uptime),
    /// Its position is not what it was, or may not be.
    LosePosition,
    Lead(FencingToken, OpeningWrite),
    /// The opening write was acknowledged.
    Write,
    /// The opening write is gone: it is written again.
    LoseWrite,
    /// It must be removed.
    Retire,
    /// It is gone, although this node did not remove it.
    FindGone,
    /// It was removed, or does not exist after all.
    Leave,
}

impl Progress {
    /// The state after a step. Total: a step that does not apply changes nothing.
    fn after(self, step: QueueStep) -> Self {
        use QueueStep as S;
        match (self, step) {
            (Self::Out, S::Create) => Self::Unclear,
            (Self::Out | Self::Unclear, S::Join(candidate)) => Self::Queued(candidate),
            // The lowest of the node's own candidates counts: it may be one that an unanswered create left.
            (Self::Queued(_), S::Wait(candidate, gone)) => Self::Waiting(candidate, gone),
            (Self::Queued(_), S::BeFirst(candidate, since)) => Self::First(candidate, since),
            (Self::Waiting(candidate, _) | Self::First(candidate, _), S::LosePosition) => Self::Queued(candidate),
            (Self::First(candidate, _), S::Lead(token, write)) => Self::Leading(Term { token, candidate }, write),
            (Self::Leading(term, _), S::Write) => Self::Leading(term, OpeningWrite::Acknowledged),
            (Self::Leading(term, _), S::LoseWrite) => Self::Leading(term, OpeningWrite::Due),
            (
                Self::Queued(candidate)
                | Self::Waiting(candidate, _)
                | Self::First(candidate, _)
                | Self::Leading(Term { candidate, .. }, _),
                S::Retire,
            ) => Self::Retired(candidate),
            (Self::Queued(_) | Self::Waiting(..) | Self::First(..) | Self::Leading(..), S::FindGone) => Self::Out,
            (Self::Unclear | Self::Retired(_), S::Leave) => Self::Out,
            (state, _) => state,
        }
    }

    fn candidate(&self) -> Option<&CandidateName> {
        match self {
            Self::Queued(candidate) | Self::Waiting(candidate, _) | Self::First(candidate, _) => Some(candidate),
            Self::Leading(term, _) => Some(&term.candidate),
            Self::Out | Self::Unclear | Self::Retired(_) => None,
        }
    }
}

/// The next request on the way into the queue, to its front and into a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextInQueue {
    /// Creates a candidate.
    Join,
    /// Finds the candidate that may exist, or creates one.
    FindOrJoin,
    /// Reads the position.
    Look,
    Open(CandidateName),
    WriteOpening(CandidateName),
}

/// The node's candidate and its progress towards a term.
pub(super) struct Candidacy {
    progress: Progress,
    /// A term is not opened before: until then the nodes that are back restore what the servers may have lost.
    opens_at: Uptime,
    /// The predecessor last reported to the daemon.
    following: Option<Behind>,
    /// When the first entry is looked for next, if the watch on the predecessor does not say enough.
    first_look_at: Uptime,
    opening_record: OpeningRecord,
    /// A candidate with a high sequence number was reported.
    is_high_sequence_reported: bool,
    /// Deadline for in-flight commits before the node resigns anyway.
    resign_by: Option<Uptime>,
    /// The end of a term, not emitted yet because answers to its last commits are expected.
    over: Option<(Term, TermEnd)>,
}

impl Candidacy {
    pub fn new() -> Self {
        Self {
            progress: Progress::Out,
            opens_at: Uptime::ZERO,
            following: None,
            first_look_at: Uptime::ZERO,
            opening_record: OpeningRecord::Queue,
            is_high_sequence_reported: false,
            resign_by: None,
            over: None,
        }
    }

    /// Takes a step.
    pub fn step(&mut self, step: QueueStep) {
        self.progress = std::mem::replace(&mut self.progress, Progress::Out).after(step);
    }

    /// The candidate, unless it must be removed.
    pub fn candidate(&self) -> Option<&CandidateName> {
        self.progress.candidate()
    }

    /// The candidate that must be removed.
    pub fn retired(&self) -> Option<&CandidateName> {
        match &self.progress {
            Progress::Retired(candidate) => Some(candidate),
            _ => None,
        }
    }

    /// True if a candidate may exist that is not known.
    pub fn is_unclear(&self) -> bool {
        matches!(self.progress, Progress::Unclear)
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self.progress, Progress::Waiting(..))
    }

    pub fn leads(&self) -> bool {
        self.term().is_some()
    }

    /// True if it leads, or is first and about to.
    pub fn is_first(&self) -> bool {
        matches!(self.progress, Progress::First(..) | Progress::Leading(..))
    }

    /// The term in which this node leads.
    pub fn term(&self) -> Option<&Term> {
        match &self.progress {
            Progress::Leading(term, _) => Some(term),
            _ => None,
        }
    }

    /// The token of its term, once the opening write is acknowledged.
    pub fn opened(&self) -> Option<FencingToken> {
        match &self.progress {
            Progress::Leading(term, OpeningWrite::Acknowledged) => Some(term.token),
            _ => None,
        }
    }

    /// The candidate that is first, and since when, while the term is being opened.
    pub fn first(&self) -> Option<(CandidateName, Uptime)> {
        match &self.progress {
            Progress::First(candidate, since) => Some((candidate.clone(), *since)),
            _ => None,
        }
    }

    /// Waits until the predecessor is gone, or forever if none is watched. Cancellation safe: the watch is kept.
    pub async fn predecessor_gone(&mut self) {
        let gone = match &mut self.progress {
            Progress::Waiting(_, gone) => Some(gone),
            _ => None,
        };
        under_way(gone).await;
    }

    /// The next request on the way to a term. `may_join`: the daemon, its operators and its loop let the node join.
    pub fn next(&self, now: Uptime, may_join: bool) -> Option<NextInQueue> {
        match &self.progress {
            // The daemon is notified of the end of a term before it is of a new candidate.
            Progress::Out if may_join && self.over.is_none() => Some(NextInQueue::Join),
            Progress::Unclear if may_join && self.over.is_none() => Some(NextInQueue::FindOrJoin),
            Progress::Queued(_) => Some(NextInQueue::Look),
            Progress::First(candidate, _) if now >= self.opens_at => Some(NextInQueue::Open(candidate.clone())),
            Progress::Leading(term, OpeningWrite::Due) => Some(NextInQueue::WriteOpening(term.candidate.clone())),
            _ => None,
        }
    }

    /// Opens no term before: a leader begins what is not on record, so whoever knows more writes it first.
    pub fn open_from(&mut self, at: Uptime) {
        self.opens_at = at;
    }

    /// When a term may be opened, if it may not be yet and this node is the first.
    pub fn waits_to_open(&self, now: Uptime) -> Option<Uptime> {
        Some(self.opens_at).filter(|&at| now < at && matches!(self.progress, Progress::First(..)))
    }

    pub fn opening_record(&self) -> OpeningRecord {
        self.opening_record
    }

    /// Changes the record of the opening write.
    pub fn open_by(&mut self, record: OpeningRecord) {
        self.opening_record = record;
    }

    /// Takes a candidate that this node has created. Returns true if its sequence number is high, for the first time.
    pub fn join(&mut self, candidate: CandidateName, limits: Limits) -> bool {
        let is_high = queue::sequence(&candidate.0).is_some_and(|sequence| limits.is_high(sequence));
        self.following = None;
        self.step(QueueStep::Join(candidate));
        is_high && !std::mem::replace(&mut self.is_high_sequence_reported, true)
    }

    /// This node's candidate is first.
    pub fn be_first(&mut self, candidate: CandidateName, now: Uptime) {
        self.following = None;
        self.step(QueueStep::BeFirst(candidate, now));
    }

    /// The predecessor as last read.
    pub fn following(&self) -> Option<&Behind> {
        self.following.as_ref()
    }

    /// Records the candidates ahead. Returns true if that is news to the daemon.
    ///
    /// The first entry is then looked for within [`FIRST_EVERY`]. Those that found their positions at the same
    /// time, as after an outage, look at different times, by their numbers in the queue.
    pub fn follow(&mut self, behind: Behind, now: Uptime) -> bool {
        const TURNS: u8 = 16;
        let number = queue::sequence(&behind.candidate.0).unwrap_or_default().rem_euclid(TURNS.into());
        let turn = u32::try_from(number).unwrap_or_default() + 1;
        self.first_look_at = now + FIRST_EVERY * turn / TURNS.into();
        let known = self.following.replace(behind.clone());
        // One entry of a stranger after another is the same to the daemon.
        !known.is_some_and(|known| Behind { first: behind.first.clone(), ..known } == behind)
    }

    /// When the first entry is looked for next; `None` if the watch on the predecessor says enough. That watch does not
    /// say when a node that is first begins to lead.
    pub fn first_look_at(&self) -> Option<Uptime> {
        let behind = self.following.as_ref().filter(|_| self.is_waiting())?;
        let is_about_to_lead = behind.first_node.is_some() && !behind.leads;
        (behind.first != behind.predecessor || is_about_to_lead).then_some(self.first_look_at)
    }

    /// The first entry if it is due to be looked for, and whether its node leads. The next look follows after
    /// [`FIRST_EVERY`].
    pub fn look_for_first(&mut self, now: Uptime) -> Option<(CandidateName, bool)> {
        self.first_look_at().filter(|at| now >= *at)?;
        self.first_look_at = now + FIRST_EVERY;
        self.following.as_ref().map(|behind| (behind.first.clone(), behind.leads))
    }

    /// Gives up the position in the queue by this step, and the term that depends on it, if any. Returns true if there
    /// was a term.
    pub fn lose(&mut self, step: QueueStep, why: TermEnd) -> bool {
        self.following = None;
        let term = self.term().cloned();
        self.step(step);
        let led = term.is_some();
        if let Some(term) = term {
            self.over = Some((term, why));
        }
        led
    }

    /// Why a term is over whose end was not emitted yet.
    pub fn over(&self) -> Option<&TermEnd> {
        self.over.as_ref().map(|(_, why)| why)
    }

    /// The end of a term that must be emitted now.
    pub fn take_ended(&mut self) -> Option<(Term, TermEnd)> {
        self.over.take()
    }

    /// Until when resigning waits for the answers to commits.
    pub fn resign_by(&mut self, now: Uptime) -> Uptime {
        *self.resign_by.get_or_insert(now + RESIGN_WITHIN)
    }

    /// There is nothing to resign.
    pub fn forget_resigning(&mut self) {
        self.resign_by = None;
    }

    /// When resigning stops waiting for answers; `None` once that instant has passed, or if it does not wait.
    ///
    /// After it, resigning waits at most for a join, which ends by itself. An instant in the past would wake the loop
    /// over and over.
    pub fn resign_at(&self, now: Uptime) -> Option<Uptime> {
        self.resign_by.filter(|&by| now < by && self.retired().is_none())
    }

    /// The path of the candidate that guards the leader's writes, and the fencing token; `None` while this node does
    /// not lead.
    pub fn fence(&self) -> Option<(String, i64)> {
        self.term().map(|term| (paths::candidate(&term.candidate), term.token.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::session_loop::table::assert_table;

    fn name() -> CandidateName {
        CandidateName("c".into())
    }

    fn gone() -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn term() -> Term {
        Term { token: FencingToken(7), candidate: name() }
    }

    fn states() -> Vec<Progress> {
        vec![
            Progress::Out,
            Progress::Unclear,
            Progress::Queued(name()),
            Progress::Waiting(name(), gone()),
            Progress::First(name(), Uptime::ZERO),
            Progress::Leading(term(), OpeningWrite::Due),
            Progress::Leading(term(), OpeningWrite::Acknowledged),
            Progress::Retired(name()),
        ]
    }

    fn steps() -> Vec<QueueStep> {
        vec![
            QueueStep::Create,
            QueueStep::Join(name()),
            QueueStep::Wait(name(), gone()),
            QueueStep::BeFirst(name(), Uptime::ZERO),
            QueueStep::LosePosition,
            QueueStep::Lead(FencingToken(7), OpeningWrite::Due),
            QueueStep::Write,
            QueueStep::LoseWrite,
            QueueStep::Retire,
            QueueStep::FindGone,
            QueueStep::Leave,
        ]
    }

    fn label(state: &Progress) -> &'static str {
        match state {
            Progress::Out => "out",
            Progress::Unclear => "unclear",
            Progress::Queued(_) => "queued",
            Progress::Waiting(..) => "waiting",
            Progress::First(..) => "first",
            Progress::Leading(_, OpeningWrite::Due) => "opening",
            Progress::Leading(_, OpeningWrite::Acknowledged) => "leading",
            Progress::Retired(_) => "retired",
        }
    }

    /// A row for each state, a column for each step, in the order above; `-` changes nothing.
    const TABLE: &str = "
        state    Create   Join    Wait     BeFirst  LosePosition  Lead     Write    LoseWrite  Retire   FindGone  Leave
        out      unclear  queued  -        -        -             -        -        -          -        -         -
        unclear  -        queued  -        -        -             -        -        -          -        -         out
        queued   -        -       waiting  first    -             -        -        -          retired  out       -
        waiting  -        -       -        -        queued        -        -        -          retired  out       -
        first    -        -       -        -        queued        opening  -        -          retired  out       -
        opening  -        -       -        -        -             -        leading  -          retired  out       -
        leading  -        -       -        -        -             -        -        opening    retired  out       -
        retired  -        -       -        -        -             -        -        -          -        -         out
    ";

    #[test]
    fn every_state_takes_the_steps_of_the_table_and_no_other() {
        let after = |row: usize, column: usize| {
            let (before, step) = (states().swap_remove(row), steps().swap_remove(column));
            let (from, to) = (label(&before), label(&before.after(step)));
            (from != to).then(|| to.to_owned())
        };
        assert_table(TABLE, |row| label(&states()[row]).to_owned(), after);
    }

    #[test]
    fn a_term_that_is_lost_is_over_until_that_is_reported() {
        let mut candidacy = Candidacy::new();
        candidacy.join(name(), Limits::OF_TESTS);
        candidacy.be_first(name(), Uptime::ZERO);
        candidacy.step(QueueStep::Lead(FencingToken(7), OpeningWrite::Due));
        assert_eq!(candidacy.fence(), Some((paths::candidate(&name()), 7)));
        assert!(candidacy.lose(QueueStep::Retire, TermEnd::Resigned) && !candidacy.leads());
        assert!(!candidacy.lose(QueueStep::Retire, TermEnd::LeaseOver), "the first reason counts");
        assert_eq!(candidacy.retired(), Some(&name()));
        candidacy.step(QueueStep::Leave);
        assert_eq!(candidacy.next(Uptime::ZERO, true), None, "the daemon does not know yet");
        assert_eq!(candidacy.take_ended(), Some((term(), TermEnd::Resigned)));
        assert_eq!(candidacy.next(Uptime::ZERO, true), Some(NextInQueue::Join));
    }
}
