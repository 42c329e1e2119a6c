//! The queue of waiting hooks, and the running ones.
//!
//! However many runs end or are missed at once, at most [`AT_ONCE`] hook processes run, and the waiting ones take a
//! bounded amount of memory. The routine ones, which follow every run that goes well, have at most half of the places,
//! start after the others and are dropped first: a service that does not answer them must not delay a page.
//!
//! The hooks of a run's end wait while its `on_start` runs, so that the service to which both report hears of the start
//! first. An `on_start` that still waits when the `on_failure` of its run starts is dropped, because it would come too
//! late.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;

use super::call::{Cause, HookCall, JobHookCall};
use crate::job::Hook;
use crate::process::TreeId;
use crate::run::{RunEnd, RunRecord};

/// Most hooks that run at once on a node; the others wait in order.
pub const AT_ONCE: usize = 16;
/// Most routine hooks among them.
pub(in crate::engine) const ROUTINE_AT_ONCE: usize = AT_ONCE / 2;
/// Most hooks that wait; further ones are dropped and reported.
pub(in crate::engine) const LONGEST: usize = 20_000;
/// Most bytes that waiting hooks take without their output; further ones are dropped and reported.
pub(in crate::engine) const LARGEST: usize = 32 << 20;
/// Most bytes of output kept for waiting hooks; further ones wait without their output.
const MOST_OUTPUT: usize = 4 << 20;

/// What hooks take while they wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    hooks: usize,
    /// Without their output.
    bytes: usize,
}

impl Load {
    /// One hook that takes this many bytes.
    pub fn of(bytes: usize) -> Self {
        Self { hooks: 1, bytes }
    }
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.hooks += other.hooks;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.hooks -= other.hooks;
        self.bytes -= other.bytes;
    }
}

/// The hooks of a node, in the order of their causes.
#[derive(Debug, Default)]
pub(super) struct HookQueue {
    /// The waiting hooks that are not routine.
    notable: VecDeque<HookCall>,
    routine: VecDeque<HookCall>,
    load: Load,
    /// Bytes of output kept for waiting hooks.
    output: usize,
    /// The hooks that the warden was ordered to start.
    running: BTreeMap<TreeId, HookCall>,
    /// The node ends and starts no further hooks.
    is_closed: bool,
}

impl HookQueue {
    /// Puts a hook at the end of the queue.
    ///
    /// # Errors
    /// Returns the hook if there is no room.
    pub fn wait(&mut self, mut call: HookCall) -> Result<(), HookCall> {
        let load = Load::of(call.bytes());
        if !self.has_room(load) {
            return Err(call);
        }
        // The other half is for those that tell what went wrong.
        let most = if call.is_routine() { MOST_OUTPUT / 2 } else { MOST_OUTPUT };
        if self.output + call.input().len() > most {
            leave_output(&mut call);
        }
        self.output += call.input().len();
        self.load += load;
        let queue = if call.is_routine() { &mut self.routine } else { &mut self.notable };
        queue.push_back(call);
        Ok(())
    }

    /// True if this much more may wait.
    fn has_room(&self, mut load: Load) -> bool {
        load += self.load;
        !self.is_closed && load.hooks <= LONGEST && load.bytes <= LARGEST
    }

    /// Removes the routine hook that has waited longest, if a hook that is not routine needs its room.
    ///
    /// The oldest, because a start without its success would look like a run that hangs.
    pub fn give_way(&mut self, to: Load) -> Option<HookCall> {
        if self.is_closed || self.has_room(to) {
            return None;
        }
        let call = self.routine.pop_front()?;
        self.forget(&call);
        Some(call)
    }

    /// Takes the next hook to start, if one may be started now.
    pub fn next(&mut self) -> Option<HookCall> {
        if self.running.len() >= AT_ONCE {
            return None;
        }
        let call = match self.first(&self.notable) {
            Some(index) => self.notable.remove(index),
            None if self.running.values().filter(|call| call.is_routine()).count() >= ROUTINE_AT_ONCE => None,
            None => self.first(&self.routine).and_then(|index| self.routine.remove(index)),
        }?;
        self.forget(&call);
        Some(call)
    }

    /// The place of the first of these that does not wait for a running `on_start`. Few do, so the search is short.
    fn first(&self, queue: &VecDeque<HookCall>) -> Option<usize> {
        queue.iter().position(|call| match call {
            HookCall::OfJob(JobHookCall { cause: Cause::Ended(end), .. }) => {
                !self.running.values().any(|running| is_start_of(running, &end.run))
            }
            HookCall::OfJob(_) | HookCall::OfNode(_) => true,
        })
    }

    /// Removes the `on_start` of the run whose `on_failure` starts, if it still waits.
    pub fn overtaken_by(&mut self, call: &HookCall) -> Option<HookCall> {
        let HookCall::OfJob(JobHookCall { hook: Hook::Failure, cause: Cause::Ended(end), .. }) = call else {
            return None;
        };
        let index = self.routine.iter().position(|waiting| is_start_of(waiting, &end.run))?;
        let overtaken = self.routine.remove(index)?;
        self.forget(&overtaken);
        Some(overtaken)
    }

    /// Takes a hook that no longer waits out of the account.
    fn forget(&mut self, call: &HookCall) {
        self.output -= call.input().len();
        self.load -= Load::of(call.bytes());
    }

    pub fn started(&mut self, tree_id: TreeId, call: &HookCall) {
        self.running.insert(tree_id, call.clone());
    }

    pub fn get(&self, tree_id: TreeId) -> Option<&HookCall> {
        self.running.get(&tree_id)
    }

    pub fn ended(&mut self, tree_id: TreeId) -> Option<HookCall> {
        self.running.remove(&tree_id)
    }

    /// True while no hook runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.notable.is_empty() && self.routine.is_empty()
    }

    /// Starts no more hooks. Returns the running and the waiting ones.
    pub fn close(&mut self) -> (BTreeMap<TreeId, HookCall>, VecDeque<HookCall>) {
        let Self { mut notable, routine, running, .. } =
            std::mem::replace(self, Self { is_closed: true, ..Self::default() });
        notable.extend(routine);
        (running, notable)
    }
}

/// True for the `on_start` of this run.
fn is_start_of(call: &HookCall, run: &RunRecord) -> bool {
    let HookCall::OfJob(JobHookCall { cause: Cause::Started(started), .. }) = call else { return false };
    started.job == run.job && started.id() == run.id()
}

fn leave_output(call: &mut HookCall) {
    if let HookCall::OfJob(JobHookCall { cause: Cause::Ended(end), .. }) = call {
        *end = Arc::new(RunEnd { tail: String::new(), ..RunEnd::clone(end) });
    }
}
