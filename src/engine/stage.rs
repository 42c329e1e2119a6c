//! The life of the node: at work, handing over, draining, leaving.
//!
//! Ending is: leave the queue first, then wait for the own runs and their hooks, then leave the cluster. A member goes only
//! after the node's processes are dead and their ends are written: it tells the others that they live, and without it a leader
//! would settle a run whose success is only known here. Where nobody writes the ends, the node goes and the member stays; the
//! state directory keeps the ends for `release` or the next start.

use std::time::Duration;

use super::flight::StopCause;
use super::{Command, Engine, Report, Turn};
use crate::clock::{Uptime, Wake};
use crate::election::{Request, TransferError};
use crate::term::{NodeName, TermEnd};

/// How long the last ends may take to be written, once no process is left or the time for that is over.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long the hooks of runs that the drain timeout ended may take, beside what is left of those runs.
const LAST_HOOKS: Duration = Duration::from_secs(5);
/// How long leaving the queue may take, where nothing else is waited for.
const RESIGN_WITHIN: Duration = Duration::from_secs(2);

/// Where the node stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// At work.
    Running,
    /// Leaves the queue, to join it again at its end.
    HandingOver,
    /// Leaves the queue and waits for its runs.
    Ending(Ending),
    /// Leaves the cluster.
    Leaving,
    /// Nothing is left to do.
    Gone,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// When the node counts as out of the queue; later than now while it waits for the election to say so.
    withdrawn_at: Uptime,
    /// When runs are told to stop; absent: they were.
    stop_at: Option<Uptime>,
    /// When the node goes whatever is left.
    give_up_at: Uptime,
    /// Since when no process is left; absent while there is one.
    quiet_from: Option<Uptime>,
    /// Until when hooks are waited for.
    hooks_until: Uptime,
    /// Nobody writes anything for this node any more.
    is_alone: bool,
}

impl Ending {
    /// When the node goes, as things stand, also if not all ends are written.
    fn goes_at(&self) -> Uptime {
        let words = if self.is_alone { Duration::ZERO } else { LAST_WORDS };
        self.quiet_from.map_or(self.give_up_at, |from| self.give_up_at.min(from + words))
    }

    fn wake(&self, now: Uptime, has_hooks: bool) -> Uptime {
        let goes_at = if has_hooks { self.goes_at().max(self.hooks_until) } else { self.goes_at() };
        let later = [self.withdrawn_at, self.hooks_until].into_iter().filter(|&at| at > now);
        later.chain(self.stop_at).fold(goes_at, Uptime::min)
    }
}

impl Stage {
    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Ending(_) | Self::Leaving | Self::Gone)
    }

    pub(super) fn is_resigning(self) -> bool {
        self == Self::HandingOver
    }

    /// With hooks that it may have to wait for, or without.
    pub(super) fn wake(self, now: Uptime, has_hooks: bool) -> Wake {
        match self {
            Self::Ending(ending) => Wake { wall: None, up: Some(ending.wake(now, has_hooks)) },
            _ => Wake::default(),
        }
    }
}

impl Engine {
    pub(super) fn on_drain(&mut self, t: &mut Turn, timeout: Duration) {
        if self.stage.is_ending() {
            return;
        }
        t.tell(Report::Draining { runs: self.own_runs(), timeout });
        self.end_by(t, t.now.up + timeout, self.longest_grace());
    }

    pub(super) fn on_stop(&mut self, t: &mut Turn) {
        if matches!(self.stage, Stage::Leaving | Stage::Gone) {
            return self.go(t);
        }
        self.end_by(t, t.now.up, Duration::ZERO);
        self.stop_all(t, true);
        self.give_up_hooks(t);
    }

    /// The backend does nothing for this node any more. The term is over; what runs goes on, for nobody else can start it, and for
    /// what another can start again there is the lease.
    pub(super) fn on_failed(&mut self, t: &mut Turn, timeout: Duration) {
        self.session = None;
        if let Some(term) = self.term().cloned() {
            self.on_term_over(t, &term, TermEnd::SessionExpired);
        }
        if matches!(self.stage, Stage::Leaving | Stage::Gone) {
            return self.go(t);
        }
        if self.has_trees() && !self.stage.is_ending() {
            t.tell(Report::Draining { runs: self.own_runs(), timeout });
        }
        self.end_by(t, t.now.up + timeout, self.longest_grace());
        if let Stage::Ending(ending) = &mut self.stage {
            ending.is_alone = true;
        }
    }

    pub(super) fn on_hand_over(&mut self, t: &mut Turn, to: Option<NodeName>) {
        match to {
            Some(to) if self.stage != Stage::Running || self.leading.is_none() => {
                t.tell(Report::NotTransferred { to, why: TransferError::NotLeading });
            }
            to if self.stage == Stage::Running && self.leading.is_some() => {
                self.stage = Stage::HandingOver;
                t.election(to.map_or(Request::Resign, Request::Transfer));
            }
            _ => {}
        }
    }

    /// The term goes on, unless it is over: then this changes nothing.
    pub(super) fn on_not_transferred(&mut self, t: &mut Turn, to: NodeName, why: TransferError) {
        // Given up, though not to that one: the election is still to say that the place is free.
        let is_given_up = why == TransferError::Changed;
        t.tell(Report::NotTransferred { to, why });
        if self.stage == Stage::HandingOver && !is_given_up {
            self.stage = Stage::Running;
        }
    }

    pub(super) fn on_withdrawn(&mut self, t: &mut Turn) {
        match &mut self.stage {
            Stage::HandingOver => {
                self.stage = Stage::Running;
                t.election(Request::Campaign);
            }
            Stage::Ending(ending) => ending.withdrawn_at = t.now.up,
            Stage::Running | Stage::Leaving | Stage::Gone => {}
        }
    }

    pub(super) fn on_left(&mut self, t: &mut Turn) {
        if self.stage == Stage::Leaving {
            self.go(t);
        }
    }

    fn go(&mut self, t: &mut Turn) {
        self.stage = Stage::Gone;
        t.commands.push(Command::Exit);
    }

    /// Nothing that was asked for before is put off.
    fn end_by(&mut self, t: &mut Turn, stop_at: Uptime, grace: Duration) {
        let give_up_at = stop_at + grace + LAST_WORDS;
        let ending = match self.stage {
            Stage::Ending(ending) => Ending {
                withdrawn_at: ending.withdrawn_at,
                stop_at: ending.stop_at.map(|at| at.min(stop_at)),
                give_up_at: ending.give_up_at.min(give_up_at),
                hooks_until: ending.hooks_until.min(stop_at),
                ..ending
            },
            _ => {
                t.election(Request::Resign);
                let withdrawn_at = t.now.up + RESIGN_WITHIN;
                Ending {
                    withdrawn_at,
                    stop_at: Some(stop_at),
                    give_up_at,
                    quiet_from: None,
                    hooks_until: stop_at,
                    is_alone: false,
                }
            }
        };
        self.stage = Stage::Ending(ending);
    }

    fn longest_grace(&self) -> Duration {
        let graces = self.flights.values().filter_map(|flight| flight.own()?.job.as_ref().map(|job| job.kill_grace));
        graces.max().unwrap_or_default()
    }

    /// Moves the end on, as far as it has come.
    pub(super) fn move_stage(&mut self, t: &mut Turn) {
        let Stage::Ending(mut ending) = self.stage else { return };
        if ending.stop_at.is_some_and(|at| at <= t.now.up) {
            ending.stop_at = None;
            if self.has_trees() {
                ending.hooks_until = ending.give_up_at + LAST_HOOKS;
            }
            self.stage = Stage::Ending(ending);
            self.stop_all(t, false);
        }
        ending.quiet_from = if self.has_trees() { None } else { ending.quiet_from.or(Some(t.now.up)) };
        self.stage = Stage::Ending(ending);
        if !self.hooks.is_idle() && t.now.up < ending.hooks_until {
            return;
        }
        let runs = self.own_runs();
        let must_go = t.now.up >= ending.goes_at();
        if runs == 0 && !ending.is_alone && (must_go || t.now.up >= ending.withdrawn_at) {
            self.stage = Stage::Leaving;
            self.give_up_hooks(t);
            t.election(Request::Leave);
        } else if must_go {
            self.give_up_hooks(t);
            // The member stays: something of this node lives, or its ends are not written. The warden, `release` or the next
            // start sees to that.
            if runs > 0 {
                t.tell(Report::Unsettled { runs });
            }
            self.go(t);
        }
    }

    /// Tells every own tree to stop, with its grace or at once.
    fn stop_all(&mut self, t: &mut Turn, at_once: bool) {
        let alive: Vec<_> =
            self.flights.iter().filter(|(_, f)| f.alive().is_some()).map(|(id, _)| id.clone()).collect();
        for run in alive {
            if at_once { self.kill_run(t, &run, StopCause::Drain) } else { self.stop_run(t, &run, StopCause::Drain) }
        }
    }

    /// True once runs are no longer waited for: what is not started yet is not started any more.
    pub(super) fn is_at_once(&self, now: Uptime) -> bool {
        match self.stage {
            Stage::Ending(ending) => ending.stop_at.is_none_or(|at| at <= now),
            Stage::Leaving | Stage::Gone => true,
            Stage::Running | Stage::HandingOver => false,
        }
    }
}
