//! What each process tree is: whose lines its output is, and what is noted of its start.

use std::collections::BTreeMap;

use tracing::info;

use crate::job::{Hook, JobName};
use crate::run::journal::RecoveredRun;
use crate::run::{KnownBy, RunId, Traces};
use crate::telemetry::{OUTPUT, event};
use crate::warden::recover::Recorded;
use crate::warden::wire::{Stream, TreeId};

/// The trees that the warden was asked to start.
#[derive(Debug, Default)]
pub(super) struct Trees(BTreeMap<TreeId, Tree>);

/// One of them.
#[derive(Debug)]
pub(super) struct Tree {
    pub job: JobName,
    pub run: RunId,
    pub kind: TreeKind,
    /// Its main process and that one's start time, once the warden has told of it.
    main: Option<(i32, u64)>,
    /// What tells its processes from others, as far as is known.
    traces: Traces,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeKind {
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
        let hooks = self.0.values().filter(|tree| matches!(tree.kind, TreeKind::Hook(_)));
        hooks.map(Tree::recorded).collect()
    }

    pub fn insert(&mut self, tree_id: TreeId, run: RunId, kind: TreeKind, traces: Traces) {
        self.0.insert(tree_id, Tree { job: run.job().clone(), run, kind, main: None, traces });
    }

    pub fn started(&mut self, tree_id: TreeId, main: Option<(i32, u64)>, known_by: &KnownBy) {
        if let Some(tree) = self.0.get_mut(&tree_id) {
            tree.main = main;
            tree.traces.known_by = known_by.clone();
        }
    }

    /// How a tree is found without the warden.
    pub fn recorded(&self, tree_id: TreeId) -> Option<Recorded> {
        self.0.get(&tree_id).map(Tree::recorded)
    }

    /// All runs' trees, to be found without the warden.
    pub fn attempts(&self) -> Vec<Recorded> {
        let attempts = self.0.values().filter(|tree| matches!(tree.kind, TreeKind::Attempt(_)));
        attempts.map(Tree::recorded).collect()
    }

    pub fn remove(&mut self, tree_id: TreeId) -> Option<Tree> {
        self.0.remove(&tree_id)
    }

    /// The run whose attempt it is.
    pub fn attempt(&self, tree_id: TreeId) -> Option<(&RunId, u32)> {
        match self.0.get(&tree_id)? {
            Tree { run, kind: TreeKind::Attempt(attempt), .. } => Some((run, *attempt)),
            Tree { kind: TreeKind::Hook(_), .. } => None,
        }
    }

    /// A line of output; a hook's streams are one, named after it.
    pub fn log_line(&self, tree_id: TreeId, stream: Stream, line: &str, continues: bool) {
        let Some(Tree { job, run, kind, .. }) = self.0.get(&tree_id) else { return };
        let stream = match (kind, stream) {
            (TreeKind::Hook(hook), _) => hook.as_str(),
            (TreeKind::Attempt(_), Stream::Stdout) => "stdout",
            (TreeKind::Attempt(_), Stream::Stderr) => "stderr",
        };
        let continues = continues.then_some(true);
        info!(target: OUTPUT, event = event::RUN_OUTPUT, %job, %run, stream, line, continues);
    }
}
