//! The queue of waiting hooks, and the running ones.
//!
//! However many runs end or are missed at once, at most [`AT_ONCE`] hook processes run, and the waiting ones take a
//! bounded amount of memory. The hooks of a run's end wait until its `on_start` has ended, so that whoever both report to
//! hears of the start first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::call::{Cause, HookCall, JobHookCall};
use crate::process::TreeId;
use crate::run::RunEnd;

/// Most hooks that run at once on a node; the others wait in order.
pub const AT_ONCE: usize = 16;
/// Most hooks that wait; further ones are dropped and reported.
const LONGEST: usize = 20_000;
/// Most bytes of output kept for waiting hooks; further ones wait without their output.
const LARGEST: usize = 4 << 20;

/// The hooks of a node, in the order of their causes.
#[derive(Debug, Default)]
pub(super) struct HookQueue {
    waiting: VecDeque<HookCall>,
    /// Bytes of output kept for waiting hooks.
    bytes: usize,
    /// The hooks that the warden was ordered to start.
    running: BTreeMap<TreeId, HookCall>,
    /// The node ends and starts no more hooks.
    is_closed: bool,
}

impl HookQueue {
    /// Puts a hook at the end of the queue. `recoveries` possible recoveries count as waiting.
    ///
    /// # Errors
    /// Returns the hook if there is no room.
    pub fn wait(&mut self, mut call: HookCall, recoveries: usize) -> Result<(), HookCall> {
        if !self.has_room(recoveries) {
            return Err(call);
        }
        if self.bytes + call.input().len() > LARGEST {
            leave_output(&mut call);
        }
        self.bytes += call.input().len();
        self.waiting.push_back(call);
        Ok(())
    }

    /// True while one more hook may wait, beside `recoveries` possible recoveries.
    pub fn has_room(&self, recoveries: usize) -> bool {
        !self.is_closed && self.waiting.len() + recoveries < LONGEST
    }

    /// Takes the next hook to start, if one may be started now.
    pub fn next(&mut self) -> Option<HookCall> {
        if self.running.len() >= AT_ONCE {
            return None;
        }
        // Few wait for a running `on_start`, so the search is short.
        let index = self.waiting.iter().position(|call| !self.waits_for_start(call))?;
        let call = self.waiting.remove(index)?;
        self.bytes -= call.input().len();
        Some(call)
    }

    /// True for a hook of a run's end while the run's `on_start` is running.
    fn waits_for_start(&self, call: &HookCall) -> bool {
        let HookCall::OfJob(JobHookCall { cause: Cause::Ended(end), .. }) = call else { return false };
        self.running.values().any(|running| match running {
            HookCall::OfJob(JobHookCall { cause: Cause::Started(run), .. }) => run.id() == end.run.id(),
            HookCall::OfJob(_) | HookCall::OfNode(_) => false,
        })
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
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Starts no more hooks. Returns the running and the waiting ones.
    pub fn close(&mut self) -> (BTreeMap<TreeId, HookCall>, VecDeque<HookCall>) {
        self.is_closed = true;
        self.bytes = 0;
        (std::mem::take(&mut self.running), std::mem::take(&mut self.waiting))
    }
}

fn leave_output(call: &mut HookCall) {
    if let HookCall::OfJob(JobHookCall { cause: Cause::Ended(end), .. }) = call {
        *end = Arc::new(RunEnd { tail: String::new(), ..RunEnd::clone(end) });
    }
}
