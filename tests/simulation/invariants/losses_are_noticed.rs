//! Invariant: whoever was shown a commit that the store has lost says so, and nothing that was begun by one begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_cluster::paths;
use cronkeeper_cluster::tree::Revision;
use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::{Invariant, below, ops};
use crate::ledger::txn::Txn;

/// So long after it is back in touch a node has left its record, even if one packet was lost.
const SEARCH: Duration = Duration::from_millis(1_300);

#[derive(Default)]
pub struct LossesAreNoticed {
    timeout: Duration,
    /// What each living process was shown last.
    shown: BTreeMap<usize, Revision>,
    /// The runs whose begin is lost, with the nodes that were shown it.
    lost: BTreeMap<String, BTreeSet<usize>>,
    /// The nodes that were shown what is lost, and have not said so yet.
    silent: BTreeSet<usize>,
    /// Since when each node is in touch with the store after the last loss.
    in_touch: BTreeMap<usize, Uptime>,
    started: BTreeSet<(String, u32)>,
}

impl LossesAreNoticed {
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }
}

fn begun(txn: &Txn) -> impl Iterator<Item = &str> {
    ops(txn).iter().filter_map(|op| match op {
        Op::Create { path, .. } => below(path, paths::RUNNING),
        Op::Set { .. } | Op::Delete { .. } | Op::Check { .. } => None,
    })
}

impl Invariant for LossesAreNoticed {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Shown { node, revision } => {
                self.shown.insert(*node, *revision);
            }
            Fact::Died { node } => {
                self.shown.remove(node);
                self.silent.remove(node);
                self.in_touch.remove(node);
                for nodes in self.lost.values_mut() {
                    nodes.remove(node);
                }
            }
            Fact::Lost { txns } => {
                // A server that has them may go on for a tenth of a timeout, and a node finds out with its next look.
                let since = at + self.timeout / 5;
                self.in_touch.values_mut().for_each(|at| *at = since);
                for txn in txns {
                    let was_shown = |(node, shown): (&usize, &Revision)| (shown.0 >= txn.zxid).then_some(*node);
                    let witnesses: BTreeSet<usize> = self.shown.iter().filter_map(was_shown).collect();
                    self.silent.extend(&witnesses);
                    self.lost.extend(begun(txn).map(|run| (run.to_owned(), witnesses.clone())));
                }
            }
            // One speaks for all.
            Fact::Committed { touched, .. } if touched.iter().any(|path| path == paths::REWOUND) => self.silent.clear(),
            Fact::InTouch { node, is: true } | Fact::Thawed { node } | Fact::LoopResumed { node } => {
                self.in_touch.insert(*node, at);
            }
            Fact::InTouch { node, is: false } | Fact::Frozen { node } | Fact::LoopStalled { node } => {
                self.in_touch.remove(node);
            }
            Fact::Spawned(process) => {
                let is_first = self.started.insert((process.run.clone(), process.attempt));
                let has_said = |node: &&usize| self.in_touch.get(node).is_some_and(|&since| since + SEARCH < at);
                let witness = self.lost.get(&process.run).and_then(|nodes| nodes.iter().find(has_said));
                if let (false, Some(witness)) = (is_first, witness) {
                    return Err(format!(
                        "node-{witness} was shown the begin that is lost, and it begins anew: {process:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn conclude(&mut self) -> Result<(), String> {
        match self.silent.iter().find(|node| self.in_touch.contains_key(node)) {
            Some(node) => Err(format!("in peace node-{node} has not said that commits are lost, which it was shown")),
            None => Ok(()),
        }
    }
}
