//! What to do now: takes one observed fact at a time and says what should follow.
//!
//! The engine holds what the node knows of its term, its jobs and its runs. It neither waits nor fails, reads no
//! clock and does no I/O: [`Engine::handle`] takes an [`Event`] and returns [`Command`]s, whose results come back as
//! events. Whoever performs them must do so in order.
//!
//! ```text
//!   election, ledger ──► Event ──►  Engine::handle  ──► Command ──► ledger, election, warden, log
//!   warden, operator                    │
//!   timer ◄──────────── Wake ◄──────────┘
//! ```

mod admission;
mod clocks;
mod flight;
mod flights;
pub mod group;
mod transfer;
pub mod hooks;
mod kill;
mod leading;
mod misfire;
mod overdue;
mod own;
mod pending;
mod report;
mod retry;
mod stage;
mod takeover;
mod turn;
mod unstarted;
mod waiting;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use leading::MarkAhead;
pub use report::Report;

use self::admission::Admission;
use self::clocks::Clocks;
use self::flight::{Flight, News, RunOwner};
use self::flights::Flights;
use self::hooks::{HookStart, Hooks};
use self::leading::Leadership;
use self::overdue::OverdueKills;
use self::pending::{Asked, Pending, Told};
use self::stage::Stage;
use self::transfer::LeadershipTransfer;
use self::turn::Turn;
use crate::clock::{Now, Uptime, Wake, later};
use crate::coordination::Request;
use crate::election::Published;
use crate::job::{Job, JobSet};
use crate::ledger::{Change, CommitId};
use crate::run::journal::RecoveredRun;
use crate::run::{Nonce, RunEnd, RunId, RunRecord, Version};
use crate::term::{NodeName, SessionId, TermEnd};
use crate::warden::wire::{Deadline, Notice, Order, TreeId};
use crate::{election, ledger};

/// A fact the engine is told.
#[expect(clippy::large_enum_variant, reason = "one at a time, and most are of the ledger")]
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed, or may have.
    Tick,
    /// From the election.
    Election(election::Event),
    /// From the ledger.
    Ledger(ledger::Event),
    /// From the warden; its lines of output are not the engine's business.
    Warden(Notice),
    /// A valid set of jobs was read.
    Loaded(JobSet),
    /// The jobs file was read and is invalid: the jobs loaded before stay.
    Rejected,
    /// Runs of an earlier process of this node, which are known to be dead. To be told before anything else.
    Recovered(Vec<RecoveredRun>),
    /// The operator wants the node to end once its runs have, after `timeout` at the latest.
    Drain {
        /// How long runs may take.
        timeout: Duration,
    },
    /// The operator wants the node to end now.
    Stop,
    /// The operator wants another node to lead: this one, or the next in line.
    HandOver {
        /// Who is to lead.
        to: Option<NodeName>,
    },
    /// The node cannot take part until an operator changes something: nobody is heard from now on. It ends once its runs have, after
    /// `timeout` at the latest.
    Failed {
        /// How long runs may take.
        timeout: Duration,
    },
}

/// Something to be done.
#[expect(clippy::large_enum_variant, reason = "most ask for commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Ask the election or the ledger.
    Ask(Request),
    /// Note the run in the state directory, then tell the warden to start it. Where that cannot be noted, it is not
    /// started: [`Notice::NotStarted`] comes back.
    Start(Box<Start>),
    /// Tell the warden to start a hook. Where that cannot be done, [`Notice::NotStarted`] comes back.
    RunHook(Box<HookStart>),
    /// Tell the warden.
    Order(Order),
    /// Kill these trees without the warden, which has not said in time that they are dead.
    EndTrees(Vec<TreeId>),
    /// Keep an end in the state directory until the ledger has it.
    KeepEnd {
        /// How the run ended.
        end: Box<RunEnd>,
        /// Of its record in the ledger.
        version: Version,
    },
    /// Forget a run in the state directory: the ledger knows all about it.
    Forget(RunId),
    /// Tell people.
    Tell(Report),
    /// End the daemon: all is done.
    Exit,
}

/// An attempt to start.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// The tree's name to the warden.
    pub tree_id: TreeId,
    /// The run, as the ledger has it.
    pub run: RunRecord,
    /// Of the record.
    pub version: Version,
    /// What to start.
    pub job: Arc<Job>,
    /// Not to be started at or after this instant.
    pub not_after: Uptime,
    /// When it is killed without being told to.
    pub deadline: Deadline,
}

/// See the module.
#[derive(Debug)]
pub struct Engine {
    node: NodeName,
    jobs: JobSet,
    session: Option<SessionId>,
    /// All that this process has lived under.
    sessions: BTreeSet<SessionId>,
    lease_until: Uptime,
    leading: Option<Leadership>,
    flights: Flights,
    admission: Admission,
    tree_ids: BTreeMap<TreeId, RunId>,
    /// When attempts have taken their `timeout`.
    timeouts: BTreeSet<(Uptime, TreeId)>,
    /// When own attempts are watched for what others want of them.
    watch_own: BTreeSet<(Uptime, TreeId)>,
    overdue: OverdueKills,
    /// Commits without an answer.
    commits: BTreeMap<CommitId, Asked>,
    /// Counts commits, tree ids and decisions: never used twice by one process.
    counter: u64,
    is_busy: bool,
    stage: Stage,
    transfer: LeadershipTransfer,
    /// Other nodes live.
    has_others: bool,
    clocks: Clocks,
    hooks: Hooks,
}

impl Engine {
    /// The engine of a node that has not joined yet.
    pub fn new(node: NodeName, jobs: JobSet) -> Self {
        let mut engine = Self::without_jobs(node);
        engine.flights.define(&jobs);
        engine.jobs = jobs;
        engine
    }

    fn without_jobs(node: NodeName) -> Self {
        Self {
            node,
            jobs: JobSet::default(),
            session: None,
            sessions: BTreeSet::new(),
            lease_until: Uptime::ZERO,
            leading: None,
            flights: Flights::default(),
            admission: Admission::default(),
            tree_ids: BTreeMap::new(),
            timeouts: BTreeSet::new(),
            watch_own: BTreeSet::new(),
            overdue: OverdueKills::default(),
            commits: BTreeMap::new(),
            counter: 0,
            is_busy: false,
            stage: Stage::Running,
            transfer: LeadershipTransfer::default(),
            has_others: false,
            clocks: Clocks::default(),
            hooks: Hooks::default(),
        }
    }

    /// The same, of a node that is to lead rather than lighter ones.
    pub fn with_priority(mut self, weight: u32) -> Self {
        self.transfer.priority = weight;
        self
    }

    /// What the others are to know of this node's jobs and weight.
    pub fn published(&self) -> Published {
        Published {
            digest: self.jobs.digest.clone(),
            priority: self.transfer.priority,
            jobs_invalid: self.transfer.has_invalid_file,
            draining: self.is_ending(),
            ..Published::default()
        }
    }

    /// Takes one observed fact and says what should follow.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Command> {
        self.note_time(now, &event);
        let mut turn = Turn { now, due: self.clocks.due(now), commands: Vec::new() };
        let t = &mut turn;
        match event {
            Event::Tick => {}
            Event::Election(event) => self.on_election(t, event),
            Event::Ledger(event) => self.on_ledger(t, event),
            Event::Warden(notice) => self.on_notice(t, notice),
            Event::Loaded(jobs) => {
                self.transfer.has_invalid_file = false;
                self.on_loaded(t, jobs);
            }
            Event::Rejected => self.transfer.has_invalid_file = true,
            Event::Recovered(runs) => self.on_recovered(t, runs),
            Event::Drain { timeout } => self.on_drain(t, timeout),
            Event::Stop => self.on_stop(t),
            Event::HandOver { to } => self.on_hand_over(t, to),
            Event::Failed { timeout } => self.on_failed(t, timeout),
        }
        self.act(t);
        turn.commands
    }

    /// When something will next happen by itself, on either clock. Asking too often is harmless.
    pub fn wake(&self, now: Now) -> Wake {
        let timers = [self.timeouts.first(), self.watch_own.first()].into_iter().flatten();
        let timeout = Wake { wall: None, up: timers.map(|&(at, _)| at).chain(self.overdue.next_at()).min() };
        let agenda = match &self.leading {
            Some(leading) if self.may_decide(now) => {
                let held = now.wall.duration_since(self.clocks.due(now)).unsigned_abs();
                // While as many as may be are being started, only that can change what is to be begun.
                let has_room = self.admission.has_room(self.flights.starting());
                let next = if has_room { leading.next_at() } else { leading.give_up_runs_at() };
                Wake { wall: next.map(|at| later(at, held)), up: leading.give_up_at() }
            }
            _ => Wake::default(),
        };
        timeout.or(agenda).or(self.stage.wake(now.up, !self.hooks.is_idle()))
    }

    /// The jobs as last loaded.
    pub fn jobs(&self) -> &JobSet {
        &self.jobs
    }

    /// The term this node leads in.
    pub fn term(&self) -> Option<&crate::term::Term> {
        self.leading.as_ref().map(|leading| &leading.term)
    }

    /// True once takeover is done, while leading.
    pub fn is_settled(&self) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.takeover.is_none())
    }

    /// How long the node may act without hearing from the quorum.
    pub fn lease_until(&self) -> Uptime {
        self.lease_until
    }

    /// The runs in flight that this node knows of, its own and, while it leads, all others.
    pub fn runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.flights.values().map(|flight| &flight.record)
    }

    /// How many runs this node has.
    pub fn own_runs(&self) -> usize {
        self.flights.own()
    }

    /// True while a process of a run is here, or about to be.
    pub fn has_trees(&self) -> bool {
        self.flights.trees() > 0
    }

    /// True once the node was told to end.
    pub fn is_ending(&self) -> bool {
        self.stage.is_ending()
    }

    /// What time it is comes before what follows from it.
    fn note_time(&mut self, now: Now, event: &Event) {
        match event {
            Event::Election(election::Event::Time(time)) => self.clocks.read(*time, now.up),
            Event::Election(election::Event::Expired { .. }) => self.clocks.forget(),
            _ => {}
        }
    }

    fn on_election(&mut self, t: &mut Turn, event: election::Event) {
        use election::Event as E;
        match event {
            E::Session { id, timeout } => {
                self.overdue.under(timeout);
                self.admission.under(timeout);
                self.on_session(t, id);
            }
            E::Elected { term, lease_until, snapshot, took } => {
                self.renew(t, lease_until);
                self.take_over(t, term, *snapshot, took);
            }
            E::Over { term, why } => self.on_term_over(t, &term, why),
            E::Lease { until } => self.renew(t, until),
            E::Expired { .. } => {
                self.session = None;
                // Also of a node that led no more.
                self.kill_for_lease(t, TermEnd::SessionExpired);
                self.hold_to_their_time(t);
            }
            E::Withdrawn => self.on_withdrawn(t),
            E::NotTransferred { to, why } => self.on_not_transferred(t, to, why),
            E::Left => self.on_left(t),
            E::Time(_)
            | E::Joined { .. }
            | E::Following { .. }
            | E::Suspended { .. }
            | E::Resumed { .. }
            | E::Unreachable { .. }
            | E::Stalled(_)
            | E::Damaged { .. }
            // Told as an event of its own, with the time that runs have.
            | E::Failed(_) => {}
            E::Members(members) => self.on_members(t, &members),
        }
    }

    fn on_ledger(&mut self, t: &mut Turn, event: ledger::Event) {
        use ledger::Event as E;
        match event {
            E::Answered { id, answer } => self.on_answer(t, id, answer),
            E::PutOff(id) => self.on_refused(id),
            E::Forgotten { job, records } => self.on_forgotten(t, &job, records),
            E::Job(job, entry, control) => self.on_job_read(t, &job, entry, control),
            E::OperatorRequests(requests) => self.on_requests(t, requests),
            E::Run(run, found) => self.on_run_read(t, &run, found),
            E::OwnerGone(run, owner, found) => self.on_news(t, &run, News::OwnerGone(owner, found)),
            E::Ended { end, .. } => self.on_ended_for_the_dead(t, *end),
            E::Before(run, before) => self.on_before_read(t, &run, before),
        }
    }

    /// The run that a commit was about, if it still waits for that commit and not for a later one.
    fn answered_flight(&mut self, run: &RunId, id: CommitId) -> Option<&mut Flight> {
        let flight = self.flights.get_mut(run).filter(|flight| flight.commit == Some(id))?;
        flight.commit = None;
        Some(flight)
    }

    /// A run is none of this node's affairs any more, or over: what waits for it may begin.
    fn forget(&mut self, run: &RunId) -> Option<Flight> {
        self.lose_sight(run.job());
        self.close(run)
    }

    /// A run is over, and this node has written how it ended.
    fn close(&mut self, run: &RunId) -> Option<Flight> {
        let closed = self.flights.remove(run);
        self.mark_job_changed(run.job());
        closed
    }

    /// What a run's record says now: of an own run, or of one this leader watches.
    fn on_run_read(&mut self, t: &mut Turn, run: &RunId, found: Option<(RunRecord, Version)>) {
        match self.flights.get_mut(run) {
            // Read before the last write of this node, and heard of after it.
            Some(flight) if found.as_ref().is_some_and(|(_, version)| *version < flight.version) => {}
            Some(flight) if flight.commit.is_some() => flight.note_news(News::Changed(found)),
            Some(Flight { holder: RunOwner::Own(_), .. }) => self.on_own_run_read(t, run, found),
            Some(_) => self.on_news(t, run, News::Changed(found)),
            None => self.take_note(t, run, found),
        }
    }

    /// What follows from the passing of time, and from whatever the event changed.
    fn act(&mut self, t: &mut Turn) {
        self.watch_clocks(t);
        self.end_overdue(t);
        self.stop_overdue(t);
        self.lift_pauses(t);
        self.watch_due(t);
        self.give_up_cut_off(t);
        self.begin_waiting(t);
        self.decide_due(t);
        self.decide_triggers(t);
        self.decide_chains(t);
        self.report_takeover(t);
        self.start_hooks(t);
        self.move_stage(t);
        self.tell_busy(t);
    }

    fn renew(&mut self, t: &mut Turn, until: Uptime) {
        self.lease_until = until;
        self.overdue.lease(until, t.now.up);
        t.order(Order::Lease { until });
    }

    fn tell_busy(&mut self, t: &mut Turn) {
        let is_busy = self.flights.own() > 0;
        if is_busy != self.is_busy {
            self.is_busy = is_busy;
            t.election(election::Request::Busy(is_busy));
        }
    }

    /// True while this node may begin runs and move marks.
    fn may_decide(&self, now: Now) -> bool {
        let leads = self.leading.as_ref().is_some_and(|leading| !leading.is_fenced);
        leads
            && self.session.is_some()
            && now.up < self.lease_until
            && !self.stage.is_ending()
            && !self.stage.is_resigning()
    }

    /// True while, besides, one more run can be started soon.
    fn may_begin(&mut self, now: Now) -> bool {
        self.may_decide(now) && self.admission.admits(self.flights.starting())
    }

    fn count(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn nonce(&mut self) -> Nonce {
        let count = self.count();
        let by = match (&self.leading, &self.session) {
            (Some(leading), _) => leading.term.token.to_string(),
            (None, Some(session)) => session.to_string(),
            (None, None) => self.node.to_string(),
        };
        Nonce(format!("{by}-{count}"))
    }

    fn commit(&mut self, t: &mut Turn, change: Change, pending: Pending) -> CommitId {
        let id = CommitId(self.count());
        let token = self.term().map(|term| term.token);
        self.commits.insert(id, Asked { token, job: change.job().clone(), pending });
        t.ledger(ledger::Request::Commit { id, change });
        id
    }
}
