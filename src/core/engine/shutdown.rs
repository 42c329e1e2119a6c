//! The stages of the node: running, handing over, drained, ending, leaving.
//!
//! A drained node leaves the queue as a node does that ends, but it stays a member, and waits for nothing: its runs go on
//! to their end, and leaders elsewhere start what comes next. Once it is no longer drained, it joins the queue again, at
//! the end.
//!
//! A node ends in this order: it leaves the queue, waits for its own runs and their hooks, and leaves the cluster. Its
//! member is removed only after its processes are dead and their ends are written: the member shows other nodes that
//! these processes are alive, and without it a leader would settle a run whose success only this node knows. If the
//! ends cannot be written, the node exits and its member stays; the state directory keeps the ends for `release` or the
//! next start.

use std::time::Duration;

use uuid::Uuid;

use super::command::Command;
use super::context::Context;
use super::hooks::Hooks;
use super::report::Report;
use super::runs::Runs;
use crate::clock::{Uptime, Wake};
use crate::election::{Request, TransferError};
use crate::run::{Drain, NodeControl};
use crate::term::NodeName;

/// Time to write the last ends, once no process is left or the time for that is over.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// Additional time for the hooks of runs that the drain timeout ended.
const LAST_HOOKS: Duration = Duration::from_secs(5);
/// Time to leave the queue, if the node waits for nothing else.
const RESIGN_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of runs that the report of a drain names.
const NAMED: usize = 10;

#[derive(Debug)]
pub(super) struct Shutdown {
    stage: Stage,
    /// An operator has drained the node.
    drain: Option<Drain>,
    /// The newest handover requested through the ledger that was decided on: it is read more than once.
    handover: Option<Uuid>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { stage: Stage::Running, drain: None, handover: None }
    }
}

impl Shutdown {
    pub fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Ending(_) | Stage::Leaving | Stage::Gone)
    }

    /// True while an operator keeps the node out of the queue.
    pub fn is_drained(&self) -> bool {
        self.drain.is_some()
    }

    /// True once the node waits only for the election to report that it has left, or for nothing.
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving | Stage::Gone)
    }

    /// When [`Self::act`] is due next. `has_hooks`: there are hooks that the node may have to wait for.
    pub fn wake(&self, now: Uptime, has_hooks: bool) -> Wake {
        match self.stage {
            Stage::Ending(ending) => Wake { wall: None, up: Some(ending.wake(now, has_hooks)) },
            _ => Wake::default(),
        }
    }

    /// Publishes the stage to the other parts.
    pub fn note_in(&self, cx: &mut Context) {
        cx.is_ending = self.is_ending();
        cx.is_drained = self.is_drained();
        cx.is_leaving_the_term = !matches!(self.stage, Stage::Running);
        // Once the node no longer waits for runs, it starts no more attempts.
        cx.is_at_once = match self.stage {
            Stage::Ending(ending) => ending.stop_at.is_none_or(|at| at <= cx.now.up),
            Stage::Leaving | Stage::Gone => true,
            Stage::Running | Stage::HandingOver | Stage::Drained { .. } => false,
        };
    }

    /// Handles what operators want of this node. Returns true if the node is drained from now on.
    pub fn on_wanted(&mut self, cx: &mut Context, runs: &Runs, wanted: NodeControl) -> bool {
        let NodeControl { drained, handover, .. } = wanted;
        if let Some(request) = handover.filter(|request| self.handover != Some(request.id)) {
            self.handover = Some(request.id);
            // A request to an earlier term is over with it.
            if drained.is_none() && cx.term().is_some_and(|term| term.candidate == request.candidate) {
                self.on_hand_over(cx, request.to);
            }
        }
        let was = std::mem::replace(&mut self.drain, drained.clone());
        match (was, drained) {
            (was, Some(drain)) => {
                let is_new = was.is_none();
                if was.as_ref() != Some(&drain) {
                    let (runs, first) = (runs.own_count(), runs.first_own(NAMED));
                    cx.report(Report::Drained { drain, runs, first });
                }
                if is_new {
                    self.drained(cx);
                }
                is_new
            }
            (Some(drain), None) => {
                cx.report(Report::Undrained { drain });
                self.undrained(cx);
                false
            }
            (None, None) => false,
        }
    }

    fn drained(&mut self, cx: &mut Context) {
        if matches!(self.stage, Stage::Running | Stage::HandingOver) {
            self.stage = Stage::Drained { is_out: false };
            cx.election(Request::Resign);
        }
    }

    fn undrained(&mut self, cx: &mut Context) {
        match self.stage {
            // It joins again as after a handover: once it is out of the queue.
            Stage::Drained { is_out: false } => self.stage = Stage::HandingOver,
            Stage::Drained { is_out: true } => {
                self.stage = Stage::Running;
                cx.election(Request::Campaign);
            }
            _ => {}
        }
    }

    pub fn on_drain(&mut self, cx: &mut Context, runs: &Runs, timeout: Duration) {
        if self.is_ending() {
            return;
        }
        cx.report(draining(runs, timeout));
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

    /// The coordination backend has stopped serving this node. Runs continue, because no other node can start them;
    /// those that another node can start again are ended by the lease.
    pub fn on_failed(&mut self, cx: &mut Context, runs: &Runs, timeout: Duration) {
        if self.is_leaving() {
            return self.exit(cx);
        }
        if runs.has_trees() && !self.is_ending() {
            cx.report(draining(runs, timeout));
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

    /// Leadership was not handed over, so the term continues if it is not over yet.
    pub fn on_not_transferred(&mut self, cx: &mut Context, to: NodeName, why: TransferError) {
        // Leadership was given up, but not to that node. The election has yet to report that the candidate is removed.
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
            Stage::Drained { is_out } => *is_out = true,
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

    /// Ends the node by `stop_at`. Never postpones a deadline that was set before.
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

    /// Advances the end of the node, if it is ending.
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
            // The member stays, because a process of this node is alive or an end is not written. The warden, `release`
            // or the next start handles those.
            if own > 0 {
                cx.report(Report::Unsettled { runs: own });
            }
            self.exit(cx);
        }
    }
}

fn draining(runs: &Runs, timeout: Duration) -> Report {
    Report::Draining { runs: runs.own_count(), first: runs.first_own(NAMED), timeout }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Takes part in the cluster.
    Running,
    /// Leaves the queue, and then joins it again at its end.
    HandingOver,
    /// Leaves the queue and stays out of it until an operator undrains the node. `is_out`: the election has reported
    /// that it has left.
    Drained { is_out: bool },
    /// Leaves the queue and waits for its own runs.
    Ending(Ending),
    /// Leaves the cluster.
    Leaving,
    /// Nothing is left to do.
    Gone,
}

/// Deadlines and progress of a node that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ending {
    /// When the node counts as out of the queue; in the future until the election reports it.
    withdrawn_at: Uptime,
    /// When runs are stopped; absent once they were.
    stop_at: Option<Uptime>,
    /// When the node exits, whatever is left.
    give_up_at: Uptime,
    /// Since when no process is left; absent while there is one.
    quiet_from: Option<Uptime>,
    /// Deadline for hooks.
    hooks_until: Uptime,
    /// The coordination backend has failed: nothing can be written for this node any more.
    is_alone: bool,
}

impl Ending {
    /// When the node exits as things are now, even if not all ends are written.
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
