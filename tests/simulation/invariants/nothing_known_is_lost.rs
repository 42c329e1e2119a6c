//! Invariant: whatever the servers lose, what a living node knows counts.
//!
//! No run that is on record is begun again. No attempt is started that the same node has started before, or another whose
//! process lives, does not stall, and was in touch with the servers when the attempt was begun. Nor is any attempt of a run
//! started while such a node has a process of that run. In peace, all runs that a living process has started are on record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{RunRecord, RunState};

use super::super::facts::Fact;
use super::{Invariant, below, ops, written};
use crate::ledger::txn::Txn;

/// So long after it is back a node has written again what it knows, even if one packet was lost.
const SEARCH: Duration = Duration::from_millis(1_300);

#[derive(Default)]
pub struct NothingKnownIsLost {
    /// What is committed and not lost.
    log: Vec<Arc<Txn>>,
    /// The runs that were begun by it.
    begun: BTreeSet<String>,
    /// When each attempt was last written as running. Its process may come later, by what its warden is at.
    running: BTreeMap<(String, u32), Uptime>,
    /// The attempts that each node has started.
    started: BTreeMap<usize, BTreeSet<(String, u32)>>,
    /// Those of its living process.
    known: BTreeMap<usize, BTreeSet<(String, u32)>>,
    /// The runs that each node has a process of.
    alive: BTreeMap<usize, BTreeSet<String>>,
    /// The nodes that have been in touch with the servers since the last loss, and since when.
    in_touch: BTreeMap<usize, Uptime>,
    /// The nodes whose loop is stalled: their backend may connect, and yet they write nothing.
    stalled: BTreeSet<usize>,
}

fn created(txn: &Txn) -> impl Iterator<Item = &str> {
    ops(txn).iter().filter_map(|op| match op {
        Op::Create { path, .. } => below(path, "/cronkeeper/running"),
        Op::Set { .. } | Op::Delete { .. } | Op::Check { .. } => None,
    })
}

fn recorded(txn: &Txn) -> impl Iterator<Item = &str> {
    ops(txn).iter().filter_map(|op| match op {
        Op::Create { path, data, .. } if !data.is_empty() => {
            path.strip_prefix("/cronkeeper/history/")?.split_once('/').map(|(_, run)| run)
        }
        Op::Create { .. } | Op::Set { .. } | Op::Delete { .. } | Op::Check { .. } => None,
    })
}

impl NothingKnownIsLost {
    fn commit(&mut self, at: Uptime, txn: &Arc<Txn>) -> Result<(), String> {
        for (run, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running")) {
            if let Ok(record) = serde_json::from_slice::<RunRecord>(data)
                && record.state == RunState::Running
            {
                self.running.insert((run.to_owned(), record.attempt), at);
            }
        }
        for run in created(txn) {
            if !self.begun.insert(run.to_owned()) {
                return Err(format!("`{run}` is begun again, although it is on record"));
            }
        }
        self.log.push(txn.clone());
        Ok(())
    }

    fn lose(&mut self, lost: &[Arc<Txn>]) {
        self.in_touch.clear();
        let lost: BTreeSet<i64> = lost.iter().map(|txn| txn.zxid).collect();
        self.log.retain(|txn| !lost.contains(&txn.zxid));
        self.begun = self.log.iter().flat_map(|txn| created(txn)).map(str::to_owned).collect();
    }
}

impl Invariant for NothingKnownIsLost {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => self.commit(at, txn)?,
            Fact::Lost { txns } => self.lose(txns),
            Fact::Spawned(process) => {
                let attempt = (process.run.clone(), process.attempt);
                if !self.started.entry(process.node).or_default().insert(attempt.clone()) {
                    return Err(format!("the same node has started it before: {process:?}"));
                }
                let begun = self.running.get(&attempt).copied().unwrap_or(at);
                let is_in_touch = |node: &usize| self.in_touch.get(node).is_some_and(|&since| since + SEARCH < begun);
                let mut others = self.known.iter().filter(|(node, _)| is_in_touch(node));
                if let Some((other, _)) = others.find(|(_, known)| known.contains(&attempt)) {
                    return Err(format!("node-{other} has started it before: {process:?}"));
                }
                let mut others = self.alive.iter().filter(|(node, _)| **node != process.node && is_in_touch(node));
                if let Some((other, _)) = others.find(|(_, runs)| runs.contains(&process.run)) {
                    return Err(format!("node-{other} has a process of the run: {process:?}"));
                }
                self.alive.entry(process.node).or_default().insert(process.run.clone());
                self.known.entry(process.node).or_default().insert(attempt);
            }
            Fact::Gone(process) => {
                self.alive.entry(process.node).or_default().remove(&process.run);
            }
            Fact::Died { node } => {
                self.known.remove(node);
                self.alive.remove(node);
                self.in_touch.remove(node);
                self.stalled.remove(node);
            }
            Fact::LoopResumed { node } => {
                self.stalled.remove(node);
                self.in_touch.insert(*node, at);
            }
            Fact::InTouch { node, is: true } | Fact::Thawed { node } if !self.stalled.contains(node) => {
                self.in_touch.insert(*node, at);
            }
            Fact::LoopStalled { node } => {
                self.stalled.insert(*node);
                self.in_touch.remove(node);
            }
            Fact::InTouch { node, is: false } | Fact::Frozen { node } => {
                self.in_touch.remove(node);
            }
            _ => {}
        }
        Ok(())
    }

    fn conclude(&mut self) -> Result<(), String> {
        // A node that knew nothing of it may have recorded it as skipped.
        let recorded: BTreeSet<&str> = self.log.iter().flat_map(|txn| recorded(txn)).collect();
        let is_gone = |(run, _): &&(String, u32)| !self.begun.contains(run) && !recorded.contains(run.as_str());
        let gone = self.known.values().flatten().find(is_gone);
        gone.map_or(Ok(()), |(run, _)| Err(format!("in peace `{run}` is not on record, which was started")))
    }
}
