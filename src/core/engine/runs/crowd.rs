//! What waits for room on the nodes that fit: each has as many open attempts as it may.
//!
//! An accepted attempt makes room for one more, so one run is tried again that fits there, not all of them: the one that
//! has waited for longest. The others are tried with the next ones: the leader looks for room as long as any waits here.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::job::RunWhere;
use crate::term::NodeName;

/// Runs, or jobs that are due, in the order in which they get room.
#[derive(Debug)]
pub(super) struct Crowd<T> {
    waiting: BTreeMap<WaitsFor, BTreeSet<(Timestamp, T)>>,
    known: BTreeMap<T, (WaitsFor, Timestamp)>,
}

/// Where something waits for room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WaitsFor {
    Node(NodeName),
    /// Any node that is what its job asks for.
    Any(RunWhere),
    /// The list of all nodes.
    Nodes,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), known: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Crowd<T> {
    /// Adds something that waits since then, unless it is here already.
    pub fn insert(&mut self, item: &T, since: Timestamp, waits_for: WaitsFor) {
        if self.known.get(item).is_none_or(|(known, _)| *known != waits_for) {
            self.remove(item);
            self.waiting.entry(waits_for.clone()).or_default().insert((since, item.clone()));
            self.known.insert(item.clone(), (waits_for, since));
        }
    }

    /// Returns true if it was here.
    pub fn remove(&mut self, item: &T) -> bool {
        let Some((waits_for, since)) = self.known.remove(item) else { return false };
        if let Some(items) = self.waiting.get_mut(&waits_for) {
            items.remove(&(since, item.clone()));
            if items.is_empty() {
                self.waiting.remove(&waits_for);
            }
        }
        true
    }

    /// True if something waits for room, and not only for the list of nodes.
    pub fn wants_room(&self) -> bool {
        self.waiting.keys().any(|waits_for| *waits_for != WaitsFor::Nodes)
    }

    /// Takes what a node with this room may take now: so many that wait for it, and as many of each kind that it fits.
    /// `takes`: it takes this one.
    pub fn take(
        &mut self,
        node: &NodeName,
        room: usize,
        fits: impl Fn(&RunWhere) -> bool,
        takes: impl Fn(&T) -> bool,
    ) -> Vec<T> {
        let mut taken = Vec::new();
        for (waits_for, items) in &self.waiting {
            let items = items.iter().map(|(_, item)| item);
            match waits_for {
                WaitsFor::Node(own) if own == node => taken.extend(items.take(room).cloned()),
                WaitsFor::Any(run_where) if fits(run_where) => {
                    taken.extend(items.filter(|item| takes(item)).take(room).cloned());
                }
                WaitsFor::Node(_) | WaitsFor::Any(_) | WaitsFor::Nodes => {}
            }
        }
        taken.iter().for_each(|item| _ = self.remove(item));
        taken
    }

    /// Takes all.
    pub fn take_all(&mut self) -> Vec<T> {
        self.waiting.clear();
        std::mem::take(&mut self.known).into_keys().collect()
    }
}
