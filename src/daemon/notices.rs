//! What the warden tells: lines are logged, processes noted, and all else is for the engine.

use tracing::error;

use super::trees::{Left, Tree, TreeKind};
use super::{Daemon, Processes, Stopped, log};
use crate::clock::{Clock, Now};
use crate::engine::Event;
use crate::run::KnownBy;
use crate::run::journal::Journal;
use crate::telemetry::TARGET;
use crate::warden::wire::{Notice, TreeId};

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    pub(super) fn noticed(&mut self, now: Now, notice: Notice) -> Option<Stopped> {
        match &notice {
            Notice::Output { tree_id, stream, line, continues } => {
                self.trees.log_line(*tree_id, *stream, line, *continues);
                return self.turn_if_due(now);
            }
            Notice::Pong => return self.turn_if_due(now),
            Notice::Started { tree_id, pid, known_by, .. } => self.note_started(*tree_id, *pid, known_by),
            Notice::NotStarted { tree_id, why } => {
                // A hook's end says so itself.
                if let Some(Tree { job, run, kind: TreeKind::Attempt(_), .. }) = self.trees.remove(*tree_id) {
                    log::not_started(&job, &run, *why);
                }
            }
            Notice::Ended(ending) => {
                self.trees.remove(ending.tree_id);
            }
        }
        self.turn(now, Event::Warden(notice))
    }

    /// A flood of what is not the engine's business does not hold the clock up.
    pub(super) fn turn_if_due(&mut self, now: Now) -> Option<Stopped> {
        let is_due = self.engine.wake(now).is_due(now);
        if is_due { self.turn(now, Event::Tick) } else { None }
    }

    /// What runs, as far as it is known here.
    pub(super) fn left(&self) -> Left {
        Left { runs: self.journal.open_runs(), hooks: self.trees.hooks() }
    }

    fn note_started(&mut self, tree_id: TreeId, pid: i32, known_by: &KnownBy) {
        let start_time = self.processes.start_time(pid);
        self.trees.started(tree_id, start_time.map(|start_time| (pid, start_time)), known_by);
        // A process that is gone already needs no finding later.
        let Some(start_time) = start_time else { return };
        let Some((run, attempt)) = self.trees.attempt(tree_id) else { return };
        if let Err(error) = self.journal.started(run, attempt, pid, start_time, known_by) {
            error!(target: TARGET, %run, "the process cannot be noted in the state directory: {error}");
        }
    }
}
