//! The decision core of a node: observed facts in, commands out.
//!
//! The engine keeps the node's knowledge of its term, its jobs and its runs. It does not wait, fail, read a clock or do
//! I/O: [`Engine::handle`] takes an [`Event`] and returns [`Command`]s, whose results come back as events. The caller
//! must perform the commands in order.
//!
//! ```text
//!   election, ledger ──► Event ──►  Engine::handle  ──► Command ──► ledger, election, warden, log
//!   warden, operator                    │
//!   timer ◄──────────── Wake ◄──────────┘
//!
//!   engine ─┬─ runs       every run in flight, each a state machine
//!           ├─ leader     occurrences, triggers, pauses and chains, while this node leads
//!           ├─ hooks      hooks that follow the end or the skip of a run
//!           ├─ transfer   decides when another node should lead instead
//!           ├─ shutdown   the stages of the node: running, handing over, drained, ending, leaving
//!           ├─ clocks     the node's clock and the coordination service's
//!           └─ context    shared by all of them: node, session, term, lease, commands
//! ```
//!
//! Each part owns its fields and receives everything else as arguments; `parts` routes events and facts between them.

mod clocks;
mod command;
mod commits;
mod context;
pub mod hooks;
mod leader;
mod misfire;
mod parts;
mod report;
mod runs;
mod shutdown;
#[cfg(test)]
mod tests;
mod transfer;

use jiff::{SignedDuration, Timestamp};

pub use self::command::{Command, Event, Start};
pub use self::misfire::too_old_from;
pub use self::report::{AlarmChange, AlarmNews, END_OF_PAUSE, MarkAhead, Report, Unfit};
pub use self::runs::unplaceable;

use self::clocks::{AHEAD, Clocks};
use self::context::Context;
use self::leader::Leader;
use self::parts::Parts;
use crate::clock::{Now, Uptime, Wake, later};
use crate::election::{self, Place, Published};
use crate::job::{JobName, JobSet};
use crate::ledger::ControlEntry;
use crate::run::{Link, Outcome, RunId, RunRecord, StandingAlarms};
use crate::term::{NodeName, Term};

/// The decisions of one node.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    clocks: Clocks,
    parts: Parts,
}

impl Engine {
    /// Creates the engine of a node that has not joined yet.
    pub fn new(node: NodeName, jobs: JobSet) -> Self {
        let mut engine = Self { cx: Context::new(node), clocks: Clocks::default(), parts: Parts::default() };
        engine.parts.runs.define(&jobs);
        engine.cx.jobs = jobs;
        engine
    }

    /// Sets the node's priority: leadership is handed to the node with the highest.
    pub fn with_priority(mut self, priority: u32) -> Self {
        self.parts.transfer.priority = priority;
        self
    }

    /// Sets whether the node may lead. If not, it never joins the queue.
    pub fn with_lead(mut self, may_lead: bool) -> Self {
        self.parts.transfer.never_leads = !may_lead;
        self
    }

    /// Makes the node a place to run jobs that the leader places.
    pub fn with_place(mut self, place: Place) -> Self {
        self.cx.place = Some(place);
        self
    }

    /// Sets where the random part of nonces comes from. It must not repeat itself in a copy of this process.
    pub fn with_random(mut self, random: fn() -> u64) -> Self {
        self.cx.random = Some(random);
        self
    }

    /// The data that this node publishes to the other nodes.
    pub fn published(&self) -> Published {
        Published {
            digest: self.cx.jobs.digest.clone(),
            priority: self.parts.transfer.priority,
            jobs_invalid: self.parts.transfer.has_invalid_file,
            draining: self.is_ending(),
            drained: self.is_drained(),
            never_leads: self.parts.transfer.never_leads,
            ..Published::default()
        }
    }

    /// Handles one observed fact and returns the commands that follow from it.
    pub fn handle(&mut self, now: Now, event: Event) -> Vec<Command> {
        match &event {
            Event::Election(election::Event::Time(time)) => self.clocks.read(*time, now.up),
            Event::Election(election::Event::Expired { .. }) => self.clocks.forget(),
            _ => {}
        }
        (self.cx.now, self.cx.due, self.cx.latest) = (now, self.clocks.due(now), self.clocks.latest(now));
        self.cx.clock_step = self.clocks.step(now);
        self.cx.is_clock_far = self.clocks.skew(now).is_some_and(|skew| skew.abs() > AHEAD);
        self.parts.take(&mut self.cx, event);
        self.clocks.report(&mut self.cx);
        self.parts.act(&mut self.cx);
        std::mem::take(&mut self.cx.commands)
    }

    /// The next instant, on either clock, at which [`Event::Tick`] is due. Calling too often is harmless.
    pub fn wake(&self, now: Now) -> Wake {
        let timers = self.parts.runs.process_due_at().into_iter().chain(self.parts.hooks.next_at());
        let timers = timers.chain(self.parts.runs.offer_at(&self.cx)).chain(self.parts.runs.placing_at(&self.cx));
        let timers = Wake { wall: None, up: timers.min() };
        let agenda = match &self.parts.leader {
            Some(leader) if self.cx.may_decide_at(now) => {
                let alarm = leader.alarm_at();
                let behind = now.wall.duration_since(self.clocks.due(now)).unsigned_abs();
                let runs = &self.parts.runs;
                let due = self.clocks.due(now);
                let lead = |count| runs.lead(&self.cx, (now, due), count);
                // While the most starts allowed are in flight, nothing can be begun before one of them returns.
                let (next, up) = match runs.has_room() {
                    true => {
                        let next = leader.next_at(lead).into_iter().chain(runs.next_at()).min();
                        (next, leader.next_up_at(runs.is_quiet()))
                    }
                    false => (runs.give_up_at().into_iter().chain(runs.next_placed_retry(&self.cx)).min(), None),
                };
                let placed = leader.next_placed_at(runs.placing_lead(&self.cx, lead(1)));
                let next = next.into_iter().chain(placed.filter(|_| runs.may_place(&self.cx))).min();
                let pause_end = leader.next_pause_end(self.clocks.due(now));
                let next = next.into_iter().chain(alarm).chain(pause_end).min();
                Wake { wall: next.map(|at| later(at, behind)), up }
            }
            _ => Wake::default(),
        };
        timers.or(agenda).or(self.parts.shutdown.wake(now.up, !self.parts.hooks.is_idle()))
    }

    /// The jobs as last loaded.
    pub fn jobs(&self) -> &JobSet {
        &self.cx.jobs
    }

    /// The name of this node.
    pub fn node(&self) -> &NodeName {
        &self.cx.node
    }

    /// The term this node leads in.
    pub fn term(&self) -> Option<&Term> {
        self.cx.term()
    }

    /// True once the takeover is done, while this node leads.
    pub fn is_settled(&self) -> bool {
        self.cx.is_settled()
    }

    /// End of the lease: how long the node may act unless a quorum acknowledges another write.
    pub fn lease_until(&self) -> Uptime {
        self.cx.lease_until
    }

    /// The runs in flight that this node knows of: its own and, while it leads, those of all other nodes.
    pub fn runs(&self) -> impl Iterator<Item = &RunRecord> {
        self.parts.runs.records()
    }

    /// The runs of this node whose begin, or whose next attempt's, the ledger is not known to have: they have no process.
    pub fn unconfirmed_runs(&self) -> impl Iterator<Item = RunId> {
        self.parts.runs.unconfirmed()
    }

    /// The runs whose attempt here is over, and that the ledger may still have as running: how each ended, or `None` if it
    /// was never started.
    pub fn unwritten_ends(&self) -> impl Iterator<Item = (RunId, Option<Outcome>)> {
        self.parts.runs.unwritten_ends()
    }

    /// Number of runs that this node has.
    pub fn own_runs(&self) -> usize {
        self.parts.runs.own_count()
    }

    /// True while a run has a process here, or is about to.
    pub fn has_trees(&self) -> bool {
        self.parts.runs.has_trees()
    }

    /// True once the node was requested to end.
    pub fn is_ending(&self) -> bool {
        self.parts.shutdown.is_ending()
    }

    /// True while an operator keeps the node from leading.
    pub fn is_drained(&self) -> bool {
        self.parts.shutdown.is_drained()
    }

    /// How far this node's clock is at least ahead of the coordination service's; negative: behind.
    pub fn skew(&self, now: Now) -> Option<SignedDuration> {
        self.clocks.skew(now)
    }

    /// The jobs whose marks are in the future; none while this node does not lead.
    pub fn marks_ahead(&self, now: Now) -> impl Iterator<Item = (&JobName, MarkAhead)> {
        let latest = self.clocks.latest(now);
        self.parts.leader.iter().flat_map(move |leader| leader.marks_ahead(latest))
    }

    /// The jobs that are not due before a time later than `now`, each with that time: its mark, as a rule. None while
    /// this node does not lead.
    pub fn marks_after(&self, now: Timestamp) -> impl Iterator<Item = (&JobName, Timestamp)> {
        self.parts.leader.iter().flat_map(move |leader| leader.marks_after(now))
    }

    /// The pauses that the node knows of; none while it does not lead.
    pub fn pauses(&self) -> impl Iterator<Item = (&JobName, &ControlEntry)> {
        self.parts.leader.iter().flat_map(Leader::pauses)
    }

    /// The active alarms; none while the node does not lead.
    pub fn alarms(&self) -> impl Iterator<Item = (&JobName, &StandingAlarms)> {
        self.parts.leader.iter().flat_map(Leader::alarms)
    }

    /// The jobs that no node can run now, each with what keeps the nodes from it; none while the node does not lead.
    pub fn unplaceable(&self) -> impl Iterator<Item = (&JobName, &str)> {
        self.parts.leader.iter().flat_map(|_| self.parts.runs.unplaceable())
    }

    /// The nodes that have not accepted in time what was placed there; none while the node does not lead.
    pub fn suspects(&self) -> impl Iterator<Item = &NodeName> {
        self.parts.leader.iter().flat_map(|_| self.parts.runs.suspects())
    }

    /// The links of runs that wait for more links; none while the node does not lead.
    pub fn links(&self) -> impl Iterator<Item = &Link> {
        self.parts.leader.iter().flat_map(Leader::links)
    }
}
