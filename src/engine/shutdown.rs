//! The stages of the node: at work, handing over, draining, leaving.
//!
//! Ending is: leave the queue first, then wait for the own runs and their hooks, then leave the cluster. A member goes only
//! after the node's processes are dead and their ends are written: it tells the others that they live, and without it a leader
//! would settle a run whose success is only known here. Where nobody writes the ends, the node goes and the member stays; the
//! state directory keeps the ends for `release` or the next start.

use std::time::Duration;

use super::command::Command;
use super::context::Context;
use super::hooks::Hooks;
use super::report::Report;
use super::runs::Runs;
use crate::clock::{Uptime, Wake};
use crate::election::{Request, TransferError};
use crate::term::NodeName;

/// How long the last ends may take to be written, once no process is left or the time for that is over.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// How long the hooks of runs that the drain timeout ended may take, beside what is left of those runs.
const LAST_HOOKS: Duration = Duration::from_secs(5);
/// How long leaving the queue may take, where nothing else is waited for.
const RESIGN_WITHIN: Duration = Duration::from_secs(2);

/// The stage of the node.
#[derive(Debug)]
pub(super) struct Shutdown {
    stage: Stage,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: Stage::Running }
    }
}

impl Shutdown {
    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_) | Stage::Leaving | Stage::Gone)
    }

    /// True once the node only waits for the election to report that it has left, or for nothing any more.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Gone)
    }

    /// With hooks that it may have to wait for, or without.
    pub fn wake(&self, now: Uptime, has_hooks: bool) -> Wake {
        match self.stage {
            Stage::Ending(ending) => Wake { wall: None, up: Some(ending.wake(now, has_hooks)) },
            _ => Wake::default(),
        }
    }

    /// What the other parts have to know of it.
    pub fn note_in(&self, cx: &mut Context) {
        cx.is_ending = self.is_ending();
        cx.is_leaving_the_term = self.is_ending() || self.stage == Stage::HandingOver;
        // Once runs are no longer waited for, nothing that has not started yet is started.
        cx.is_at_once = match self.stage {
            Stage::Ending(ending) => ending.stop_at.is_none_or(|at| at <= cx.now.up),
            Stage::Leaving | Stage::Gone => true,
            Stage::Running | Stage::HandingOver => false,
        };
    }

    pub fn on_drain(&mut self, cx: &mut Context, runs: &Runs, timeout: Duration) {
        if self.is_ending() {
            return;
        }
        cx.report(Report::Draining { runs: runs.own_count(), timeout });
        self.end_by(cx, cx.now.up + timeout, runs.longest_grace());
    }

    pub fn on_stop(&mut self, cx: &mut Context, runs: &mut Runs, hooks: &mut Hooks) {
        if self.is_leaving() {
            return self.exit(cx);
        }
        self.end_by(cx, cx.now.up, Duration::ZERO);
        runs.stop_all(cx, true);
        hooks.give_up(cx);
    }

    /// The backend does nothing for this node any more. What runs goes on, because nobody else can start it, and for what another can
    /// start again there is the lease.
    pub fn on_failed(&mut self, cx: &mut Context, runs: &Runs, timeout: Duration) {
        if self.is_leaving() {
            return self.exit(cx);
        }
        if runs.has_trees() && !self.is_ending() {
            cx.report(Report::Draining { runs: runs.own_count(), timeout });
        }
        self.end_by(cx, cx.now.up + timeout, runs.longest_grace());
        if let Stage::Ending(ending) = &mut self.stage {
            ending.is_alone = true;
        }
    }

    pub fn on_hand_over(&mut self, cx: &mut Context, to: Option<NodeName>) {
        if self.stage == Stage::Running && cx.leads() {
            self.stage = Stage::HandingOver;
            cx.election(to.map_or(Request::Resign, Request::Transfer));
        } else if let Some(to) = to {
            cx.report(Report::NotTransferred { to, why: TransferError::NotLeading });
        }
    }

    /// The term goes on, unless it is over: then this changes nothing.
    pub fn on_not_transferred(&mut self, cx: &mut Context, to: NodeName, why: TransferError) {
        // Given up, though not to that one: the election is still to report that the place is free.
        let is_given_up = why == TransferError::Changed;
        cx.report(Report::NotTransferred { to, why });
        if self.stage == Stage::HandingOver && !is_given_up {
            self.stage = Stage::Running;
        }
    }

    pub fn on_withdrawn(&mut self, cx: &mut Context) {
        match &mut self.stage {
            Stage::HandingOver => {
                self.stage = Stage::Running;
                cx.election(Request::Campaign);
            }
            Stage::Ending(ending) => ending.withdrawn_at = cx.now.up,
            Stage::Running | Stage::Leaving | Stage::Gone => {}
        }
    }

    pub fn on_left(&mut self, cx: &mut Context) {
        if self.stage == Stage::Leaving {
            self.exit(cx);
        }
    }

    fn exit(&mut self, cx: &mut Context) {
        self.stage = Stage::Gone;
        cx.commands.push(Command::Exit);
    }

    /// Nothing that was requested before is postponed.
    fn end_by(&mut self, cx: &mut Context, stop_at: Uptime, grace: Duration) {
        let give_up_at = stop_at + grace + LAST_WRITES;
        let ending = match self.stage {
            Stage::Ending(ending) => Ending {
                withdrawn_at: ending.withdrawn_at,
                stop_at: ending.stop_at.map(|at| at.min(stop_at)),
                give_up_at: ending.give_up_at.min(give_up_at),
                hooks_until: ending.hooks_until.min(stop_at),
                ..ending
            },
            _ => {
                cx.election(Request::Resign);
                let withdrawn_at = cx.now.up + RESIGN_WITHIN;
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

    /// Moves the end on, as far as it has come.
    pub fn act(&mut self, cx: &mut Context, runs: &mut Runs, hooks: &mut Hooks) {
        let Stage::Ending(mut ending) = self.stage else { return };
        if ending.stop_at.is_some_and(|at| at <= cx.now.up) {
            ending.stop_at = None;
            if runs.has_trees() {
                ending.hooks_until = ending.give_up_at + LAST_HOOKS;
            }
            runs.stop_all(cx, false);
        }
        ending.quiet_from = if runs.has_trees() { None } else { ending.quiet_from.or(Some(cx.now.up)) };
        self.stage = Stage::Ending(ending);
        if !hooks.is_idle() && cx.now.up < ending.hooks_until {
            return;
        }
        let own = runs.own_count();
        let must_go = cx.now.up >= ending.goes_at();
        if own == 0 && !ending.is_alone && (must_go || cx.now.up >= ending.withdrawn_at) {
            self.stage = Stage::Leaving;
            hooks.give_up(cx);
            cx.election(Request::Leave);
        } else if must_go {
            hooks.give_up(cx);
            // The member stays: something of this node is still alive, or its ends are not written. The warden, `release` or the next
            // start sees to that.
            if own > 0 {
                cx.report(Report::Unsettled { runs: own });
            }
            self.exit(cx);
        }
    }
}

/// The stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
struct Ending {
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
        let writes = if self.is_alone { Duration::ZERO } else { LAST_WRITES };
        self.quiet_from.map_or(self.give_up_at, |from| self.give_up_at.min(from + writes))
    }

    fn wake(&self, now: Uptime, has_hooks: bool) -> Uptime {
        let goes_at = if has_hooks { self.goes_at().max(self.hooks_until) } else { self.goes_at() };
        let later = [self.withdrawn_at, self.hooks_until].into_iter().filter(|&at| at > now);
        later.chain(self.stop_at).fold(goes_at, Uptime::min)
    }
}
