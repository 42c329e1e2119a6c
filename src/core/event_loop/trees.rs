//! The process trees that the warden runs, by id.
//!
//! Each entry links a tree to its run or hook, for its lines of output, and records how to find its processes if the
//! warden is gone.

use std::collections::BTreeMap;

use crate::engine::hooks::HookCall;
use crate::job::JobName;
use crate::process::{Recorded, TreeId};
use crate::run::journal::RecoveredRun;
use crate::run::{KnownBy, RunId, Traces};

/// The trees that the warden was ordered to start and that have not ended.
#[derive(Debug, Default)]
pub(super) struct Trees(BTreeMap<TreeId, Tree>);

/// A process tree: what it is for.
#[derive(Debug)]
pub struct Tree {
    /// `None` for a hook of the node itself.
    pub job: Option<JobName>,
    /// `None` for a hook that is about no run.
    pub run: Option<RunId>,
    /// Whether it is an attempt or a hook.
    pub kind: TreeKind,
    /// PID and start time of the main process, once the warden has reported them.
    main: Option<(i32, u64)>,
    /// How to recognize the tree's processes, as far as is known.
    traces: Traces,
}

/// What a process tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeKind {
    /// An attempt of the run, counted from 1.
    Attempt(u32),
    /// A hook, by its key.
    Hook(&'static str),
}

/// Runs and hooks that a dead warden may have left behind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WardenLeftovers {
    /// The runs that the journal has in flight.
    pub runs: Vec<RecoveredRun>,
    /// Each under the id of the run that it reports on.
    pub hooks: Vec<Recorded>,
}

impl Tree {
    /// What the tree is for: its run, else its job, else its hook.
    fn subject(&self) -> String {
        match (&self.run, &self.job, self.kind) {
            (Some(run), _, _) => run.to_string(),
            (None, Some(job), _) => job.to_string(),
            (None, None, TreeKind::Hook(name)) => name.to_owned(),
            (None, None, TreeKind::Attempt(_)) => String::new(),
        }
    }

    /// The run and attempt of the tree; absent for a hook.
    pub fn attempt(&self) -> Option<(&RunId, u32)> {
        match self {
            Self { run: Some(run), kind: TreeKind::Attempt(attempt), .. } => Some((run, *attempt)),
            Self { .. } => None,
        }
    }

    fn recorded(&self) -> Recorded {
        let main = self.main.map(|(pid, start_time)| (pid, Some(start_time)));
        Recorded { run: self.subject(), main, traces: self.traces.clone() }
    }
}

impl Trees {
    /// The trees of all hooks, as records with which to find their processes without the warden.
    pub fn hooks(&self) -> Vec<Recorded> {
        let hooks = self.0.values().filter(|tree| matches!(tree.kind, TreeKind::Hook(_)));
        hooks.map(Tree::recorded).collect()
    }

    pub fn insert_attempt(&mut self, tree_id: TreeId, run: RunId, attempt: u32, traces: Traces) {
        let job = Some(run.job().clone());
        let kind = TreeKind::Attempt(attempt);
        self.0.insert(tree_id, Tree { job, run: Some(run), kind, main: None, traces });
    }

    pub fn insert_hook(&mut self, tree_id: TreeId, call: &HookCall, traces: Traces) {
        let job = call.job().map(|job| job.name.clone());
        let (run, kind) = (call.run(), TreeKind::Hook(call.name()));
        self.0.insert(tree_id, Tree { job, run, kind, main: None, traces });
    }

    /// True if the main process of a tree is recorded, and how to recognize the others has not changed since.
    pub fn is_recorded(&self, tree_id: TreeId, known_by: Option<&KnownBy>) -> bool {
        let is_same = |tree: &Tree| known_by.is_none_or(|known_by| *known_by == tree.traces.known_by);
        self.0.get(&tree_id).is_some_and(|tree| tree.main.is_some() && is_same(tree))
    }

    /// Records the main process of a tree, and how to recognize the others if that is known by now. Returns how to
    /// recognize them; `None` if there is no such tree.
    pub fn started(
        &mut self,
        tree_id: TreeId,
        main: Option<(i32, u64)>,
        known_by: Option<&KnownBy>,
    ) -> Option<KnownBy> {
        let tree = self.0.get_mut(&tree_id)?;
        tree.main = main;
        if let Some(known_by) = known_by {
            tree.traces.known_by = known_by.clone();
        }
        Some(tree.traces.known_by.clone())
    }

    /// A record with which to find the tree's processes without the warden.
    pub fn recorded(&self, tree_id: TreeId) -> Option<Recorded> {
        self.0.get(&tree_id).map(Tree::recorded)
    }

    /// The trees of all runs, as records with which to find their processes without the warden.
    pub fn attempts(&self) -> Vec<Recorded> {
        let attempts = self.0.values().filter(|tree| matches!(tree.kind, TreeKind::Attempt(_)));
        attempts.map(Tree::recorded).collect()
    }

    /// The ids of all runs' trees.
    pub fn ids_of_attempts(&self) -> Vec<TreeId> {
        let attempts = self.0.iter().filter(|(_, tree)| matches!(tree.kind, TreeKind::Attempt(_)));
        attempts.map(|(tree_id, _)| *tree_id).collect()
    }

    pub fn get(&self, tree_id: TreeId) -> Option<&Tree> {
        self.0.get(&tree_id)
    }

    pub fn remove(&mut self, tree_id: TreeId) -> Option<Tree> {
        self.0.remove(&tree_id)
    }

    /// The run and attempt of a tree; absent for a hook.
    pub fn attempt(&self, tree_id: TreeId) -> Option<(&RunId, u32)> {
        self.get(tree_id)?.attempt()
    }
}
