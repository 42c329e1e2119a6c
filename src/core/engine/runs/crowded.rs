//! Runs that wait for room on the nodes that fit: each has as many open attempts as it may.
//!
//! An accepted attempt makes room for one more, so one run is tried again, not all of them. The others are tried with the
//! next ones: the leader looks for room as long as any waits here.

use std::collections::{BTreeMap, BTreeSet};

use crate::run::RunId;
use crate::term::NodeName;

/// The runs, by the node that each waits for; `None`: any node may take it.
#[derive(Debug, Default)]
pub(super) struct Crowded {
    by_node: BTreeMap<Option<NodeName>, BTreeSet<RunId>>,
}

impl Crowded {
    pub fn insert(&mut self, run: &RunId) {
        self.by_node.entry(run.node().cloned()).or_default().insert(run.clone());
    }

    pub fn remove(&mut self, run: &RunId) {
        let node = run.node().cloned();
        if let Some(runs) = self.by_node.get_mut(&node) {
            runs.remove(run);
            if runs.is_empty() {
                self.by_node.remove(&node);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_node.is_empty()
    }

    /// Takes what the node may have room for now: `count` of its own, and as many that any node may take.
    pub fn take(&mut self, node: &NodeName, count: usize) -> Vec<RunId> {
        let mut taken = Vec::new();
        for waits_for in [Some(node.clone()), None] {
            let runs = self.by_node.get(&waits_for).into_iter().flatten();
            taken.extend(runs.take(count).cloned());
        }
        taken.iter().for_each(|run| self.remove(run));
        taken
    }

    /// Takes all.
    pub fn take_all(&mut self) -> impl Iterator<Item = RunId> + use<> {
        std::mem::take(&mut self.by_node).into_values().flatten()
    }
}
