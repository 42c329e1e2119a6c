//! A run in flight: its record, its state at this node, and the allowed steps.
//!
//! ```text
//!             Begin                 Start              End
//!   Unowned ────────► Beginning ───────────► Alive ──────────► Ended
//!      ▲                 │  LoseAnswer         │                 ▲
//!      │                 ├──────────► Unconfirmed                │ End
//!      │ Disown          │    Release   │      │ Release         │
//!      └─────────────────┴───► Releasing ◄─────┴─────────────────┘
//!
//!   Offered ─ Accept ─► Accepting ─ Start ─► Alive;  LoseAnswer, Release as from Beginning;  Offered ─ Release: refused
//!
//!   Unowned, Placed, Remote, CutOff: runs that this node does not have, as recorded in the ledger. Only a leader keeps
//!   these. Unowned, Placed ─ Place ─► Placed ─ Offer ─► Offered, if the leader has placed it on its own node
//!   Unowned, Placed, CutOff ─ Settle ─► Settling ─ Disown ─► Unowned;  Alive, if superseded ─ FindRemote ─► Remote
//! ```

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Uptime, later};
use crate::engine::report::{IllegalStep, Report};
use crate::job::Job;
use crate::ledger::{CommitId, OwnerState};
use crate::process::TreeId;
use crate::run::{Outcome, OverAttempt, Reason, RefusalReason, RunEnd, RunRecord, RunState, Version};
use crate::term::NodeName;

/// A run in flight, as this node knows it.
#[derive(Clone, Debug)]
pub(in crate::engine) struct ActiveRun {
    /// The record as last read or written.
    pub record: RunRecord,
    /// Version of the record.
    pub version: Version,
    state: ActiveRunState,
    /// On a leader, of an attempt that is placed: when that was known, and when its node must have answered.
    pub placed: Option<PlacedAt>,
    /// The service has lost that this node accepted the attempt: the ledger has it as placed.
    pub is_placed_again: bool,
    /// The node has joined the cluster anew since the ledger had the run as its own: another may have been given it.
    pub is_of_earlier_stay: bool,
    /// When the record of a placed run was last read; and when it was last asked for, if it was not read since.
    pub read_at: Option<Uptime>,
    pub asked_at: Option<Uptime>,
    /// The record of a run that no node had, while the write that begins or moves it is not answered.
    pub waiting: Option<Box<RunRecord>>,
    /// The write that makes its record is not answered.
    pub is_new: bool,
    /// The in-flight commit about the run: never more than one.
    pub commit: Option<CommitId>,
    /// News of the run that arrived while a commit about it was in flight; handled if that commit is rejected.
    pub news: Option<News>,
}

/// When an attempt was placed.
#[derive(Clone, Debug)]
pub(in crate::engine) struct PlacedAt {
    /// When the ledger was known to have that.
    pub since: Uptime,
    /// When it is overdue, unless its node has accepted it.
    pub answer_by: Uptime,
    /// It was overdue already, and stays where it is.
    pub is_overdue: bool,
    /// At this version of the record its node was seen to have no offer of it.
    pub unlisted: Option<Version>,
    /// From which node it was moved, and why.
    pub moved: Option<(NodeName, &'static str)>,
}

impl PlacedAt {
    pub fn new(since: Uptime, answer_by: Uptime) -> Self {
        Self { since, answer_by, is_overdue: false, unlisted: None, moved: None }
    }
}

/// News of a watched run, from the ledger.
#[derive(Clone, Debug)]
pub(in crate::engine) enum News {
    /// The run's record; absent: the run is not in flight.
    Changed(Option<(RunRecord, Version)>),
    /// The run's owner is gone: the owner's state, and the run's record as read after that.
    OwnerGone(OwnerState, Option<(RunRecord, Version)>),
}

/// State of a run at this node: who has it, and how far it is.
#[derive(Clone, Debug)]
pub(in crate::engine) enum ActiveRunState {
    /// This node has it.
    Local(LocalRun),
    /// Another node has it, and was alive when last read.
    Remote,
    /// Its owner is gone and may still run it.
    CutOff,
    /// The leader has placed it, or is writing that, and does not know that its node has accepted it.
    Placed,
    /// No node has it: the leader must begin it or another attempt of it, or is marking it cut off.
    Unowned,
    /// No node has it: the leader is writing its end. The job is decided on once that write is answered.
    Settling,
}

/// A run that this node has.
#[derive(Clone, Debug)]
pub(in crate::engine) struct LocalRun {
    /// The job as it was when the attempt began; absent for a run of an earlier process.
    pub job: Option<Arc<Job>>,
    pub phase: Phase,
}

/// Progress of a local run.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Phase {
    /// The leader has placed it here. It is accepted, or refused, in time.
    Offered(Offer),
    /// Its acceptance is in flight to the ledger.
    Accepting(Offer),
    /// Its begin is in flight to the ledger.
    Beginning,
    /// The session ended before the ledger answered, so the run is read under the next one. Nothing was started.
    Unconfirmed,
    /// The warden was ordered to start it, or has started it.
    Alive(Process),
    /// It has ended; the ledger has not accepted the end yet.
    Ended(Ended),
    /// Another attempt must follow, under whichever leader; the ledger has not accepted the release yet.
    Releasing(Release),
}

/// An attempt that was placed on this node, and that it has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Offer {
    /// When this node learned of it.
    pub received: Uptime,
    /// Until when a job's locks may be awaited without a word to the leader.
    pub quiet_until: Option<Uptime>,
    /// From when on it may be accepted: before that, whoever has the run may write that the service has lost it.
    pub not_before: Uptime,
    /// When its acceptance was requested.
    pub accepted_at: Option<Uptime>,
}

impl Offer {
    pub fn new(received: Uptime, not_before: Uptime) -> Self {
        Self { received, quiet_until: None, not_before, accepted_at: None }
    }
}

/// The end of a run that the ledger does not have yet.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Ended {
    pub end: Box<RunEnd>,
    /// The end was reported.
    pub is_reported: bool,
    /// A write of the end was not answered: the ledger may have it.
    pub may_be_written: bool,
    /// The ledger had the end, and has lost it since.
    pub was_written: bool,
}

impl Ended {
    pub fn new(end: RunEnd, is_reported: bool) -> Self {
        Self { end: Box::new(end), is_reported, may_be_written: false, was_written: false }
    }
}

/// A release of a run by this node.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Release {
    /// The run's state in the ledger after the release: `retrying` or `unstarted`.
    pub state: RunState,
    /// Emitted once the ledger has the release.
    pub report: Option<Box<Report>>,
    /// Why the attempt was not accepted; absent if it was, or was not placed.
    pub refusal: Option<RefusalReason>,
}

impl Release {
    /// The release after an attempt that ended.
    pub fn retrying(report: Report) -> Self {
        Self { state: RunState::Retrying, report: Some(Box::new(report)), refusal: None }
    }
}

/// A process tree that the warden has started or was ordered to start.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Process {
    pub tree_id: TreeId,
    /// When the warden was ordered to start it.
    pub ordered: Uptime,
    /// Number of other starts that were under way then.
    pub starts_before: usize,
    /// Its program must not begin before this instant.
    pub not_before: Option<Uptime>,
    /// The warden has prepared it, and holds it until its time.
    pub is_held: bool,
    /// Its start was to be cancelled.
    pub is_cancelled: bool,
    /// When its program began; absent until the warden reports it.
    pub started: Option<Uptime>,
    /// When its `timeout` is over.
    pub timeout_at: Option<Uptime>,
    /// Why it was ordered to stop.
    pub stopped: Option<StopCause>,
    /// The daemon has killed it, because the warden has not.
    pub is_killed_here: bool,
    /// The node has a new session since the record was written.
    pub needs_change_owner: bool,
}

impl Process {
    /// A process tree that the warden is about to be ordered to start.
    pub fn new(tree_id: TreeId, ordered: Uptime, timeout_at: Option<Uptime>) -> Self {
        Self {
            tree_id,
            ordered,
            starts_before: 0,
            not_before: None,
            is_held: false,
            is_cancelled: false,
            started: None,
            timeout_at,
            stopped: None,
            is_killed_here: false,
            needs_change_owner: false,
        }
    }

    /// True while the warden prepares its start.
    pub fn is_starting(&self) -> bool {
        self.started.is_none() && !self.is_held
    }

    /// True while it is prepared and held until its time.
    pub fn is_waiting(&self) -> bool {
        self.started.is_none() && self.is_held
    }
}

/// Why a process tree was ordered to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum StopCause {
    /// It exceeded its `timeout`.
    Timeout,
    /// The drain timeout passed, or the node was requested to end at once.
    Drain,
    /// The term ended, and not by resigning.
    Lease,
    /// Somebody else has ended a lock that it held.
    LockLost,
    /// The run's end was requested, for this reason.
    Killed(Reason),
    /// Another attempt of the run counts now, so its outcome here no longer does.
    Superseded,
    /// Another node has ended the run, so its outcome here no longer counts.
    Settled,
}

impl StopCause {
    /// True if the run is the affair of other nodes.
    pub fn is_of_others(self) -> bool {
        matches!(self, Self::Superseded | Self::Settled)
    }
}

/// A step from one state of a run to another.
#[derive(Clone, Debug)]
pub(in crate::engine) enum RunStep {
    /// The leader requests from the ledger that it be placed on a node, or reads that it is.
    Place,
    /// The leader has placed it on its own node.
    Offer(Offer),
    /// This node requests from the ledger to accept it.
    Accept(Arc<Job>),
    /// This node requests an attempt from the ledger.
    Begin(Arc<Job>),
    /// The ledger has accepted the attempt, and the warden is ordered to start it.
    Start(Process),
    /// The answer to the begin was lost with the session.
    LoseAnswer,
    /// It ended here, or was ended before it was started.
    End(Ended),
    /// This node releases it for another attempt.
    Release(Release),
    /// No node has it any more: it waits to be begun.
    Disown,
    /// Another node has it.
    FindRemote,
    /// Its owner is gone and may still run it.
    CutOff,
    /// The leader writes its end.
    Settle,
}

impl ActiveRunState {
    /// A new attempt of this node.
    pub fn beginning(job: Arc<Job>) -> Self {
        Self::Local(LocalRun { job: Some(job), phase: Phase::Beginning })
    }

    /// A run of an earlier process of this node, which is dead.
    pub fn recovered(phase: Phase) -> Self {
        Self::Local(LocalRun { job: None, phase })
    }

    /// The state after a step. Total: returns the state unchanged if the step is not allowed.
    ///
    /// # Errors
    /// When the state does not allow the step.
    pub fn after(self, step: RunStep) -> Result<Self, (Self, IllegalStep)> {
        use Phase as P;
        let local = |job, phase| Ok(Self::Local(LocalRun { job, phase }));
        match (self, step) {
            // The run has no process here any more, so the ledger's record counts, whatever this node was about to
            // write.
            (_, RunStep::Disown) => Ok(Self::Unowned),
            (Self::Unowned, RunStep::Begin(job)) => Ok(Self::beginning(job)),
            (Self::Unowned | Self::Placed | Self::Remote | Self::CutOff, RunStep::Place) => Ok(Self::Placed),
            (Self::Placed, RunStep::Offer(offer)) => local(None, P::Offered(offer)),
            (Self::Local(LocalRun { phase: P::Offered(offer), .. }), RunStep::Accept(job)) => {
                local(Some(job), P::Accepting(offer))
            }
            (Self::Local(LocalRun { job, phase: P::Beginning | P::Accepting(_) }), RunStep::Start(process)) => {
                local(job, P::Alive(process))
            }
            (Self::Local(LocalRun { job, phase: P::Beginning | P::Accepting(_) }), RunStep::LoseAnswer) => {
                local(job, P::Unconfirmed)
            }
            (
                Self::Local(LocalRun {
                    job,
                    phase: P::Offered(_) | P::Accepting(_) | P::Beginning | P::Alive(_) | P::Releasing(_),
                }),
                RunStep::End(end),
            ) => local(job, P::Ended(end)),
            (
                Self::Local(LocalRun {
                    job,
                    phase: P::Offered(_) | P::Accepting(_) | P::Beginning | P::Unconfirmed | P::Alive(_),
                }),
                RunStep::Release(release),
            ) => local(job, P::Releasing(release)),
            // The process of a superseded attempt is gone, and the other one is another node's.
            (Self::Local(LocalRun { phase: P::Alive(_), .. }), RunStep::FindRemote)
            | (Self::Unowned | Self::Placed | Self::Remote | Self::CutOff, RunStep::FindRemote) => Ok(Self::Remote),
            (Self::Unowned | Self::Placed | Self::Remote | Self::CutOff, RunStep::CutOff) => Ok(Self::CutOff),
            (Self::Unowned | Self::Placed | Self::CutOff, RunStep::Settle) => Ok(Self::Settling),
            (state, step) => {
                let illegal = IllegalStep { state: state.name(), step: step.name() };
                Err((state, illegal))
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Local(LocalRun { phase, .. }) => match phase {
                Phase::Offered(_) => "offered",
                Phase::Accepting(_) => "accepting",
                Phase::Beginning => "beginning",
                Phase::Unconfirmed => "unconfirmed",
                Phase::Alive(_) => "alive",
                Phase::Ended(_) => "ended",
                Phase::Releasing(_) => "being released",
            },
            Self::Remote => "remote",
            Self::CutOff => "cut off",
            Self::Placed => "placed",
            Self::Unowned => "unowned",
            Self::Settling => "being settled",
        }
    }
}

impl RunStep {
    fn name(&self) -> &'static str {
        match self {
            Self::Place => "be placed",
            Self::Offer(_) => "be offered",
            Self::Accept(_) => "be accepted",
            Self::Begin(_) => "begin",
            Self::Start(_) => "start",
            Self::LoseAnswer => "lose its answer",
            Self::End(_) => "end",
            Self::Release(_) => "be released",
            Self::Disown => "be disowned",
            Self::FindRemote => "be remote",
            Self::CutOff => "be cut off",
            Self::Settle => "be settled",
        }
    }
}

impl ActiveRun {
    /// A run whose record was just read or written.
    pub fn new(record: RunRecord, version: Version, state: ActiveRunState) -> Self {
        Self {
            record,
            version,
            state,
            placed: None,
            is_placed_again: false,
            is_of_earlier_stay: false,
            read_at: None,
            asked_at: None,
            waiting: None,
            is_new: false,
            commit: None,
            news: None,
        }
    }

    pub fn state(&self) -> &ActiveRunState {
        &self.state
    }

    /// Takes the step.
    ///
    /// # Errors
    /// When the state does not allow it; then nothing changes.
    pub fn step(&mut self, step: RunStep) -> Result<(), IllegalStep> {
        let (state, taken) = match std::mem::replace(&mut self.state, ActiveRunState::Unowned).after(step) {
            Ok(state) => (state, Ok(())),
            Err((state, illegal)) => (state, Err(illegal)),
        };
        self.state = state;
        debug_assert_eq!(taken, Ok(()), "of {}", self.record.id());
        taken
    }

    /// Keeps the news until the commit in flight is answered. The watch reports a gone owner once, so a newer record of
    /// the same owner must not replace that report.
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

    pub fn local(&self) -> Option<&LocalRun> {
        match &self.state {
            ActiveRunState::Local(local) => Some(local),
            _ => None,
        }
    }

    pub fn phase(&self) -> Option<&Phase> {
        self.local().map(|local| &local.phase)
    }

    fn phase_mut(&mut self) -> Option<&mut Phase> {
        match &mut self.state {
            ActiveRunState::Local(local) => Some(&mut local.phase),
            _ => None,
        }
    }

    /// The job as it was when the attempt began here.
    pub fn job(&self) -> Option<&Arc<Job>> {
        self.local()?.job.as_ref()
    }

    pub fn is_local(&self) -> bool {
        self.local().is_some()
    }

    /// True while the leader has placed it, or is writing that, and does not know that its node has accepted it.
    pub fn is_placed(&self) -> bool {
        matches!(self.state, ActiveRunState::Placed)
    }

    /// True while this leader has placed it and has not read that its node has accepted it, although it may be known that
    /// its node has no offer of it any more.
    pub fn is_unanswered(&self) -> bool {
        self.placed.is_some() && (self.is_placed() || self.is_remote())
    }

    /// True if it was placed by then.
    pub fn is_placed_by(&self, at: Option<Uptime>) -> bool {
        self.placed.as_ref().is_some_and(|placed| Some(placed.since) <= at)
    }

    /// True if its node was seen to have no offer of it, and the record is still the same.
    pub fn has_no_offer(&self) -> bool {
        self.placed.as_ref().is_some_and(|placed| placed.unlisted == Some(self.version))
    }

    /// True if what was found of a run that a node has is what was there before that node had it.
    pub fn is_older(&self, found: &RunRecord) -> bool {
        let (known, is_placed) = (&self.record, self.is_placed());
        let is_accepted = matches!(self.state, ActiveRunState::CutOff) || self.is_remote() && !self.is_unanswered();
        let is_before = found.attempt == known.attempt && found.state == RunState::Placed && !is_placed;
        (is_placed || is_accepted && known.state.has_process()) && (found.attempt < known.attempt || is_before)
    }

    pub fn is_remote(&self) -> bool {
        matches!(self.state, ActiveRunState::Remote)
    }

    pub fn is_unowned(&self) -> bool {
        matches!(self.state, ActiveRunState::Unowned)
    }

    /// Takes back the record of a run that no node had: it could not be begun, or moved. Returns false if a node had it.
    pub fn put_back(&mut self) -> bool {
        let waiting = self.waiting.take();
        let is_waiting = waiting.is_some();
        if let Some(record) = waiting {
            self.record = *record;
        }
        is_waiting
    }

    /// Takes its record as just read. A kill that is requested here, and not written yet, stays requested.
    pub fn read(&mut self, record: RunRecord, version: Version) {
        let request = self.record.kill.take();
        (self.record, self.version) = (record, version);
        self.record.kill = self.record.kill.take().or(request);
    }

    /// True while this node has been offered it and has not answered.
    pub fn is_offered(&self) -> bool {
        matches!(self.phase(), Some(Phase::Offered(_)))
    }

    /// True while this node has been offered it and has not accepted it, or has refused it.
    pub fn is_unaccepted(&self) -> bool {
        match self.phase() {
            Some(Phase::Offered(_)) => true,
            Some(Phase::Releasing(release)) => release.refusal.is_some(),
            _ => false,
        }
    }

    /// True if this process has accepted it, and has a process for it or knows how that ended.
    pub fn was_accepted_here(&self) -> bool {
        let was_begun = self.job().is_some() || self.ended().is_some_and(|ended| ended.was_written);
        let is_over_or_alive = matches!(self.phase(), Some(Phase::Alive(_) | Phase::Ended(_)));
        self.record.placement.is_some() && was_begun && is_over_or_alive
    }

    /// What this node was offered, until it has begun it.
    pub fn offer(&self) -> Option<&Offer> {
        match self.phase() {
            Some(Phase::Offered(offer) | Phase::Accepting(offer)) => Some(offer),
            _ => None,
        }
    }

    pub fn offer_mut(&mut self) -> Option<&mut Offer> {
        match self.phase_mut() {
            Some(Phase::Offered(offer)) => Some(offer),
            _ => None,
        }
    }

    /// True while no node has it and no commit about it is in flight.
    pub fn is_idle(&self) -> bool {
        self.is_unowned() && self.commit.is_none()
    }

    /// True while it waits to be started and no attempt of it has had a process.
    pub fn never_started(&self) -> bool {
        self.record.state == RunState::Unstarted && !self.record.has_past()
    }

    /// True while no attempt of it can have had a process.
    pub fn awaits_first_start(&self) -> bool {
        self.is_queued() || self.never_started()
    }

    /// True if it is to be replaced by shares of nodes.
    pub fn is_to_share(&self) -> bool {
        self.record.share_among.is_some()
    }

    /// True if it is the node's share, or occupies the node as one would: an attempt of the job that the node has.
    pub fn counts_on(&self, node: &NodeName) -> bool {
        self.record.on.as_ref().unwrap_or(&self.record.owner.node) == node && !self.is_to_share()
    }

    /// True while it waits for other runs, or for locks.
    pub fn is_queued(&self) -> bool {
        self.record.state == RunState::Queued
    }

    /// True while it waits for other runs or for locks, and the leader may begin it.
    pub fn is_waiting(&self) -> bool {
        self.is_queued() && self.is_idle()
    }

    /// True if the ledger is known to have the run in flight.
    pub fn is_begun(&self) -> bool {
        !self.is_new && !matches!(self.phase(), Some(Phase::Beginning | Phase::Unconfirmed))
    }

    /// True if the ledger is known to have the run, even if its next attempt is just being begun.
    pub fn is_on_record(&self) -> bool {
        self.is_begun() || self.waiting.is_some()
    }

    /// When the run was due to start, so that its lateness counts from then. `job`: its definition, if known.
    pub fn due_at(&self, job: Option<&Job>) -> Timestamp {
        let record = &self.record;
        match job {
            // A trigger is recorded with whole seconds, so lateness counts from when the leader began its run.
            _ if record.trigger.is_some() => record.ready_at.unwrap_or(record.begun_at),
            // The time that its upstreams took does not count as lateness.
            Some(job) if job.schedule().is_none() => record.ready(),
            job => later(record.scheduled_at, job.map_or(Duration::ZERO, |job| job.splay.delay())),
        }
    }

    /// True while no attempt has had a process, as far as this node knows.
    pub fn has_not_run(&self) -> bool {
        let is_unstarted = match &self.state {
            ActiveRunState::Local(LocalRun {
                phase: Phase::Offered(_) | Phase::Accepting(_) | Phase::Beginning | Phase::Unconfirmed,
                ..
            })
            | ActiveRunState::Placed => true,
            ActiveRunState::Local(_) => self.process().is_some_and(|process| process.started.is_none()),
            ActiveRunState::Unowned => matches!(self.record.state, RunState::Queued | RunState::Unstarted),
            ActiveRunState::Remote | ActiveRunState::CutOff | ActiveRunState::Settling => false,
        };
        is_unstarted && !self.record.has_past()
    }

    /// Since when the current attempt has been running, as far as this node knows; `None` while it has no process.
    pub fn running_since(&self) -> Option<Timestamp> {
        let runs = match &self.state {
            ActiveRunState::Local(_) => self.process().is_some_and(|process| process.started.is_some()),
            // A run whose node is gone may continue there until it is settled or begun again.
            ActiveRunState::Remote
            | ActiveRunState::CutOff
            | ActiveRunState::Placed
            | ActiveRunState::Unowned
            | ActiveRunState::Settling => self.record.state.has_process(),
        };
        // An attempt that was begun ahead waited for its time.
        runs.then(|| self.record.begun_at.max(self.record.ready()))
    }

    /// The run's process tree, if there is one here.
    pub fn process(&self) -> Option<&Process> {
        match self.phase() {
            Some(Phase::Alive(process)) => Some(process),
            _ => None,
        }
    }

    pub fn process_mut(&mut self) -> Option<&mut Process> {
        match self.phase_mut() {
            Some(Phase::Alive(process)) => Some(process),
            _ => None,
        }
    }

    pub fn ended(&self) -> Option<&Ended> {
        match self.phase() {
            Some(Phase::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    /// The attempt as one that is over, with the run's end if it ended the run.
    pub fn over(&self) -> OverAttempt {
        OverAttempt::of(&self.record, self.ended().map(|ended| ended.end.as_ref()))
    }

    pub fn ended_mut(&mut self) -> Option<&mut Ended> {
        match self.phase_mut() {
            Some(Phase::Ended(ended)) => Some(ended),
            _ => None,
        }
    }

    /// How the attempt ended, while the ledger may not have that yet; the inner `None`: it was never started.
    pub fn unwritten_end(&self) -> Option<Option<Outcome>> {
        match self.phase() {
            Some(Phase::Ended(Ended { end, .. })) => Some(Some(end.outcome)),
            Some(Phase::Releasing(Release { report: Some(report), .. })) => Some(match report.as_ref() {
                Report::Retrying { end, .. } => Some(end.outcome),
                _ => None,
            }),
            _ => None,
        }
    }

    pub fn release_mut(&mut self) -> Option<&mut Release> {
        match self.phase_mut() {
            Some(Phase::Releasing(release)) => Some(release),
            _ => None,
        }
    }

    /// The job as it was for the run, and the run's end if it is known here.
    pub fn into_end(self) -> (Option<Arc<Job>>, Option<Ended>) {
        match self.state {
            ActiveRunState::Local(LocalRun { job, phase: Phase::Ended(ended) }) => (job, Some(ended)),
            ActiveRunState::Local(LocalRun { job, .. }) => (job, None),
            _ => (None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::fixture::{at, job};
    use crate::run::Outcome;
    use crate::test_records::record;

    fn ended() -> Ended {
        Ended::new(RunEnd::unseen(&record("load", 60, "s"), Outcome::Killed, None, at("10:00:00")), false)
    }

    fn release() -> Release {
        Release { state: RunState::Unstarted, report: None, refusal: None }
    }

    fn offer() -> Offer {
        Offer::new(Uptime::ZERO, Uptime::ZERO)
    }

    fn process() -> Process {
        Process::new(TreeId(1), Uptime::ZERO, None)
    }

    fn states() -> Vec<ActiveRunState> {
        let phases = [
            Phase::Offered(offer()),
            Phase::Accepting(offer()),
            Phase::Beginning,
            Phase::Unconfirmed,
            Phase::Alive(process()),
            Phase::Ended(ended()),
            Phase::Releasing(release()),
        ];
        let local = phases.map(|phase| ActiveRunState::Local(LocalRun { job: None, phase }));
        local
            .into_iter()
            .chain([
                ActiveRunState::Remote,
                ActiveRunState::CutOff,
                ActiveRunState::Placed,
                ActiveRunState::Unowned,
                ActiveRunState::Settling,
            ])
            .collect()
    }

    fn steps() -> Vec<RunStep> {
        vec![
            RunStep::Place,
            RunStep::Offer(offer()),
            RunStep::Accept(Arc::new(job("load", "* * * * * *"))),
            RunStep::Begin(Arc::new(job("load", "* * * * * *"))),
            RunStep::Start(process()),
            RunStep::LoseAnswer,
            RunStep::End(ended()),
            RunStep::Release(release()),
            RunStep::Disown,
            RunStep::FindRemote,
            RunStep::CutOff,
            RunStep::Settle,
        ]
    }

    /// A row for each state, a column for each step, in the order above; `-` is not allowed.
    const TABLE: &str = "
        state           Place   Offer    Accept     Begin      Start  LoseAnswer   End    Release         Disown   FindRemote  CutOff   Settle
        offered         -       -        accepting  -          -      -            ended  being_released  unowned  -           -        -
        accepting       -       -        -          -          alive  unconfirmed  ended  being_released  unowned  -           -        -
        beginning       -       -        -          -          alive  unconfirmed  ended  being_released  unowned  -           -        -
        unconfirmed     -       -        -          -          -      -            -      being_released  unowned  -           -        -
        alive           -       -        -          -          -      -            ended  being_released  unowned  remote      -        -
        ended           -       -        -          -          -      -            -      -               unowned  -           -        -
        being_released  -       -        -          -          -      -            ended  -               unowned  -           -        -
        remote          placed  -        -          -          -      -            -      -               unowned  remote      cut_off  -
        cut_off         placed  -        -          -          -      -            -      -               unowned  remote      cut_off  being_settled
        placed          placed  offered  -          -          -      -            -      -               unowned  remote      cut_off  being_settled
        unowned         placed  -        -          beginning  -      -            -      -               unowned  remote      cut_off  being_settled
        being_settled   -       -        -          -          -      -            -      -               unowned  -           -        -
    ";

    #[test]
    fn every_state_takes_the_steps_of_the_table_and_no_other() {
        let rows = TABLE.lines().map(str::trim).filter(|line| !line.is_empty()).skip(1);
        for (state, row) in states().into_iter().zip(rows) {
            let mut cells = row.split_whitespace();
            assert_eq!(cells.next(), Some(state.name().replace(' ', "_").as_str()));
            for (step, expected) in steps().into_iter().zip(cells) {
                let (from, named) = (state.name(), step.name());
                let found = match state.clone().after(step) {
                    Ok(after) => after.name().replace(' ', "_"),
                    Err((unchanged, illegal)) => {
                        assert_eq!((unchanged.name(), illegal), (from, IllegalStep { state: from, step: named }));
                        "-".to_owned()
                    }
                };
                assert_eq!(found, expected, "{from}: {named}");
            }
        }
    }

    #[test]
    fn the_job_of_an_attempt_stays_with_it() {
        let begun = ActiveRunState::Unowned.after(RunStep::Begin(Arc::new(job("load", "* * * * * *")))).unwrap();
        let alive = begun.after(RunStep::Start(process())).unwrap();
        let ActiveRunState::Local(local) = alive.after(RunStep::End(ended())).unwrap() else { panic!("it is local") };
        assert_eq!(local.job.unwrap().name.as_str(), "load");
    }
}
