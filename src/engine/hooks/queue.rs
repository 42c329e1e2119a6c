//! The hooks that wait and those that run. However many runs end or are missed at once, the host gets so many processes
//! and no more, and what waits takes a bounded amount of memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::call::{Cause, HookCall};
use crate::job::Hook;
use crate::process::TreeId;
use crate::run::{RunEnd, RunId};

/// How many run at once on a node; the others wait in order.
pub const AT_ONCE: usize = 16;
/// Most that wait; what comes then is dropped, and that is told.
const LONGEST: usize = 20_000;
/// Most bytes of output that wait with them; what comes then waits without.
const LARGEST: usize = 4 << 20;

/// Hooks in the order of their causes.
#[derive(Debug, Default)]
pub(super) struct HookQueue {
    waiting: VecDeque<HookCall>,
    /// Bytes of output that wait.
    bytes: usize,
    running: BTreeMap<TreeId, Running>,
    /// The node ends, and starts no more.
    is_closed: bool,
}

/// A hook that the warden was asked to start.
#[derive(Debug)]
pub(super) struct Running {
    pub hook: Hook,
    pub run: RunId,
    pub grace: Duration,
}

impl HookQueue {
    /// Puts a hook at the end of the line.
    ///
    /// # Errors
    /// It is given back where there is no room.
    pub fn wait(&mut self, mut call: HookCall, asked: usize) -> Result<(), HookCall> {
        if !self.has_room(asked) {
            return Err(call);
        }
        if self.bytes + call.input().len() > LARGEST {
            leave_output(&mut call);
        }
        self.bytes += call.input().len();
        self.waiting.push_back(call);
        Ok(())
    }

    /// True while one more may wait, beside so many of which it is asked whether they have to.
    pub fn has_room(&self, asked: usize) -> bool {
        !self.is_closed && self.waiting.len() + asked < LONGEST
    }

    /// The next that may be started.
    pub fn next(&mut self) -> Option<HookCall> {
        if self.running.len() >= AT_ONCE {
            return None;
        }
        let call = self.waiting.pop_front()?;
        self.bytes -= call.input().len();
        Some(call)
    }

    pub fn started(&mut self, tree_id: TreeId, call: &HookCall) {
        let running = Running { hook: call.hook, run: call.run(), grace: call.job.kill_grace };
        self.running.insert(tree_id, running);
    }

    pub fn get(&self, tree_id: TreeId) -> Option<&Running> {
        self.running.get(&tree_id)
    }

    pub fn ended(&mut self, tree_id: TreeId) -> Option<Running> {
        self.running.remove(&tree_id)
    }

    /// True while none runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Starts no more, and forgets those that run and those that waited.
    pub fn close(&mut self) -> (BTreeMap<TreeId, Running>, VecDeque<HookCall>) {
        self.is_closed = true;
        self.bytes = 0;
        (std::mem::take(&mut self.running), std::mem::take(&mut self.waiting))
    }
}

fn leave_output(call: &mut HookCall) {
    if let Cause::Ended(end) = &mut call.cause {
        *end = Arc::new(RunEnd { tail: String::new(), ..RunEnd::clone(end) });
    }
}
