//! The life of the node: at work, handing over, draining, leaving.
//!
//! Ending is: leave the queue first, then wait for the own runs, then leave the cluster. A member goes only
//! after the node's processes are dead: it is what tells the others that they live.

use std::time::Duration;

use super::flight::StopCause;
use super::{Command, Engine, Report, Turn};
use crate::clock::{Uptime, Wake};
use crate::election::{Request, Unappointable};
use crate::term::NodeName;

/// How long the last ends may take to be written, beyond the drain timeout and the grace.
const LAST_WORDS: Duration = Duration::from_secs(2);
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
}

impl Stage {
    pub(super) fn is_ending(self) -> bool {
        matches!(self, Self::Ending(_) | Self::Leaving | Self::Gone)
    }

    pub(super) fn is_resigning(self) -> bool {
        self == Self::HandingOver
    }

    pub(super) fn wake(self, now: Uptime) -> Wake {
        match self {
            Self::Ending(ending) => {
                let next = ending.stop_at.unwrap_or(ending.give_up_at);
                let resigned = Some(ending.withdrawn_at).filter(|&at| at > now);
                Wake { wall: None, up: Some(resigned.map_or(next, |at| at.min(next))) }
            }
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
            self.stage = Stage::Gone;
            t.commands.push(Command::Exit);
            return;
        }
        self.end_by(t, t.now.up, Duration::ZERO);
        self.stop_all(t, true);
    }

    pub(super) fn on_hand_over(&mut self, t: &mut Turn, to: Option<NodeName>) {
        match to {
            Some(to) if self.stage != Stage::Running || self.leading.is_none() => {
                t.tell(Report::NotAppointed { to, why: Unappointable::NotLeading });
            }
            to if self.stage == Stage::Running && self.leading.is_some() => {
                self.stage = Stage::HandingOver;
                t.election(to.map_or(Request::Resign, Request::Appoint));
            }
            _ => {}
        }
    }

    /// The term goes on, unless it is over: then this changes nothing.
    pub(super) fn on_not_appointed(&mut self, t: &mut Turn, to: NodeName, why: Unappointable) {
        t.tell(Report::NotAppointed { to, why });
        if self.stage == Stage::HandingOver {
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
            self.stage = Stage::Gone;
            t.commands.push(Command::Exit);
        }
    }

    /// Nothing that was asked for before is put off.
    fn end_by(&mut self, t: &mut Turn, stop_at: Uptime, grace: Duration) {
        let give_up_at = stop_at + grace + LAST_WORDS;
        let ending = match self.stage {
            Stage::Ending(ending) => Ending {
                withdrawn_at: ending.withdrawn_at,
                stop_at: ending.stop_at.map(|at| at.min(stop_at)),
                give_up_at: ending.give_up_at.min(give_up_at),
            },
            _ => {
                t.election(Request::Resign);
                Ending { withdrawn_at: t.now.up + RESIGN_WITHIN, stop_at: Some(stop_at), give_up_at }
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
            self.stage = Stage::Ending(ending);
            self.stop_all(t, false);
        }
        let gives_up = t.now.up >= ending.give_up_at;
        let has_trees = self.has_trees();
        let has_runs = self.flights.values().any(|flight| flight.own().is_some());
        if gives_up && has_trees {
            // The member stays: it tells the others that something of this node lives. The warden, or `release`, ends it.
            self.stage = Stage::Gone;
            t.commands.push(Command::Exit);
        } else if gives_up || (t.now.up >= ending.withdrawn_at && !has_runs) {
            self.stage = Stage::Leaving;
            t.election(Request::Leave);
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
