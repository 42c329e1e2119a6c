//! Handling of the warden's notices.
//!
//! Lines of output go to the observer, and new processes are recorded here; everything else goes to the engine.

use super::trees::WardenLeftovers;
use super::{EventLoop, Observer, Ports, Stopped, log};
use crate::clock::Now;
use crate::engine::Event;
use crate::process::{Notice, Processes as _, TreeId};
use crate::run::KnownBy;
use crate::run::journal::Journal as _;

impl<P: Ports> EventLoop<P> {
    pub(super) fn on_notice(&mut self, now: Now, notice: Notice) -> Option<Stopped> {
        if let Notice::Output { tree_id, stream, lines, continues } = notice {
            if let Some(tree) = self.trees.get(tree_id) {
                self.observer.on_output(now, tree, stream, lines, continues);
            }
            return self.turn_if_due(now);
        }
        match &notice {
            Notice::Output { .. } | Notice::Pong => return self.turn_if_due(now),
            Notice::WithoutFiles { .. } => {}
            Notice::Held { tree_id, pid } => self.record_start(*tree_id, *pid, None),
            Notice::Started { tree_id, pid, known_by, .. } => self.record_start(*tree_id, *pid, Some(known_by)),
            Notice::NotStarted { tree_id, .. } => {
                self.trees.remove(*tree_id);
            }
            Notice::Ended(ending) => {
                if let Some(tree) = self.trees.remove(ending.tree_id) {
                    self.observer.on_tree_ended(now, &tree, ending.unsent.clone());
                }
            }
        }
        self.turn(now, Event::Warden(notice))
    }

    /// Lets the engine do what is due by now, so that a flood of events it does not need cannot delay it.
    pub(super) fn turn_if_due(&mut self, now: Now) -> Option<Stopped> {
        let is_due = self.engine.wake(now).is_due(now);
        if is_due { self.turn(now, Event::Tick) } else { None }
    }

    /// The runs and hooks that are still running, as far as this node knows.
    pub(super) fn leftovers(&self) -> WardenLeftovers {
        WardenLeftovers { runs: self.journal.open_runs(), hooks: self.trees.hooks() }
    }

    /// Records a new process, so that it can be found again after a crash. `known_by`: how to recognize the processes of
    /// its tree; absent while its program has not begun.
    fn record_start(&mut self, tree_id: TreeId, pid: i32, known_by: Option<&KnownBy>) {
        if self.trees.is_recorded(tree_id, known_by) {
            return;
        }
        let start_time = self.processes.start_time(pid);
        let Some(known_by) = self.trees.started(tree_id, start_time.map(|start_time| (pid, start_time)), known_by)
        else {
            return;
        };
        // A process that has already ended need not be found later.
        let Some(start_time) = start_time else { return };
        let Some((run, attempt)) = self.trees.attempt(tree_id) else { return };
        if let Err(error) = self.journal.started(run, attempt, pid, start_time, &known_by) {
            log::state_failed(run, &format!("record process {pid}"), &error);
        }
    }
}
