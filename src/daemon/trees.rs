//! What each process tree is: whose lines its output is, and what is noted of its start.

use std::collections::BTreeMap;

use tracing::info;

use crate::job::{Hook, JobName};
use crate::run::journal::RecoveredRun;
use crate::run::{KnownBy, RunId, Traces};
use crate::telemetry::{OUTPUT, event};
use crate::warden::recover::Recorded;
use crate::warden::wire::{Slot, Stream};

/// The trees that the warden was asked to start.
#[derive(Debug, Default)]
pub(super) struct Trees(BTreeMap<Slot, Tree>);

/// One of them.
#[derive(Debug)]
pub(super) struct Tree {
    pub job: JobName,
    pub run: RunId,
    pub deed: Deed,
    /// Its main process and that one's start time, once the warden has told of it.
    main: Option<(i32, u64)>,
    /// What tells its processes from others, as far as is known.
    traces: Traces,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// It is this attempt of the run.
    Attempt(u32),
    /// It follows the run.
    Hook(Hook),
}

/// What a warden that is gone may have left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Left {
    /// Runs.
    pub runs: Vec<RecoveredRun>,
    /// Hooks, under the runs that they follow.
    pub hooks: Vec<Recorded>,
}

impl Tree {
    fn recorded(&self) -> Recorded {
        let main = self.main.map(|(pid, start_time)| (pid, Some(start_time)));
        Recorded { run: self.run.to_string(), main, traces: self.traces.clone() }
    }
}

impl Trees {
    /// All hooks' trees, to be found without the warden.
    pub fn hooks(&self) -> Vec<Recorded> {
        let hooks = self.0.values().filter(|tree| matches!(tree.deed, Deed::Hook(_)));
        hooks.map(Tree::recorded).collect()
    }

    pub fn insert(&mut self, slot: Slot, run: RunId, deed: Deed, traces: Traces) {
        self.0.insert(slot, Tree { job: run.job().clone(), run, deed, main: None, traces });
    }

    pub fn started(&mut self, slot: Slot, main: Option<(i32, u64)>, known_by: &KnownBy) {
        if let Some(tree) = self.0.get_mut(&slot) {
            tree.main = main;
            tree.traces.known_by = known_by.clone();
        }
    }

    /// How a tree is found without the warden.
    pub fn recorded(&self, slot: Slot) -> Option<Recorded> {
        self.0.get(&slot).map(Tree::recorded)
    }

    /// All runs' trees, to be found without the warden.
    pub fn attempts(&self) -> Vec<Recorded> {
        let attempts = self.0.values().filter(|tree| matches!(tree.deed, Deed::Attempt(_)));
        attempts.map(Tree::recorded).collect()
    }

    pub fn remove(&mut self, slot: Slot) -> Option<Tree> {
        self.0.remove(&slot)
    }

    /// The run whose attempt it is.
    pub fn attempt(&self, slot: Slot) -> Option<(&RunId, u32)> {
        match self.0.get(&slot)? {
            Tree { run, deed: Deed::Attempt(attempt), .. } => Some((run, *attempt)),
            Tree { deed: Deed::Hook(_), .. } => None,
        }
    }

    /// A line of output; a hook's streams are one, named after it.
    pub fn log_line(&self, slot: Slot, stream: Stream, line: &str, continues: bool) {
        let Some(Tree { job, run, deed, .. }) = self.0.get(&slot) else { return };
        let stream = match (deed, stream) {
            (Deed::Hook(hook), _) => hook.as_str(),
            (Deed::Attempt(_), Stream::Stdout) => "stdout",
            (Deed::Attempt(_), Stream::Stderr) => "stderr",
        };
        let continues = continues.then_some(true);
        info!(target: OUTPUT, event = event::RUN_OUTPUT, %job, %run, stream, line, continues);
    }
}
