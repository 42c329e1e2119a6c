//! The hooks that wait and those that run. However many runs end or are missed at once, the host gets so many processes
//! and no more, and what waits takes a bounded amount of memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::recovery::Recovery;
use super::{AT_ONCE, Cause, HookCall};
use crate::job::Hook;
use crate::run::{RunEnd, RunId};
use crate::warden::wire::TreeId;

/// Most that wait; what comes then is dropped, and that is told.
const LONGEST: usize = 20_000;
/// Most bytes of output that wait with them; what comes then waits without.
const LARGEST: usize = 4 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::engine) struct Hooks {
    waiting: VecDeque<HookCall>,
    /// Bytes of output that wait.
    bytes: usize,
    running: BTreeMap<TreeId, Running>,
    pub(super) recovery: Recovery,
    /// The node ends, and starts no more.
    is_closed: bool,
}

/// A hook that the warden was asked to start.
#[derive(Debug)]
pub(in crate::engine) struct Running {
    pub hook: Hook,
    pub run: RunId,
    pub grace: Duration,
}

impl Hooks {
    /// Puts a hook at the end of the line.
    ///
    /// # Errors
    /// It is given back where there is no room.
    pub fn wait(&mut self, mut call: HookCall) -> Result<(), HookCall> {
        if !self.has_room() {
            return Err(call);
        }
        if self.bytes + call.input().len() > LARGEST {
            leave_output(&mut call);
        }
        self.bytes += call.input().len();
        self.waiting.push_back(call);
        Ok(())
    }

    /// True while one more may wait.
    pub fn has_room(&self) -> bool {
        !self.is_closed && self.waiting.len() + self.recovery.len() < LONGEST
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

    /// True while none runs, waits, or may be found to have to.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.recovery.len() == 0
    }

    /// Starts no more, and forgets those that run and those that waited.
    pub fn close(&mut self) -> (BTreeMap<TreeId, Running>, Vec<HookCall>) {
        self.is_closed = true;
        self.bytes = 0;
        let waiting = std::mem::take(&mut self.waiting).into_iter().chain(self.recovery.close());
        (std::mem::take(&mut self.running), waiting.collect())
    }
}

fn leave_output(call: &mut HookCall) {
    if let Cause::Ended(end) = &mut call.cause {
        *end = Arc::new(RunEnd { tail: String::new(), ..RunEnd::clone(end) });
    }
}
