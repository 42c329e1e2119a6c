//! Invariant: whatever the servers lose, what a living node knows counts.
//!
//! No run that is on record is begun again, and no process starts an attempt that it has started already. In peace, all
//! runs that a living process has started are on record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;

use super::super::facts::Fact;
use super::{Invariant, below, ops};
use crate::ledger::txn::Txn;

#[derive(Default)]
pub struct NothingKnownIsLost {
    /// What is committed and not lost.
    log: Vec<Arc<Txn>>,
    /// The runs that were begun by it.
    begun: BTreeSet<String>,
    /// The attempts that the process of each node has started.
    started: BTreeMap<usize, BTreeSet<(String, u32)>>,
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
    fn commit(&mut self, txn: &Arc<Txn>) -> Result<(), String> {
        for run in created(txn) {
            if !self.begun.insert(run.to_owned()) {
                return Err(format!("`{run}` is begun again, although it is on record"));
            }
        }
        self.log.push(txn.clone());
        Ok(())
    }

    fn lose(&mut self, lost: &[Arc<Txn>]) {
        let lost: BTreeSet<i64> = lost.iter().map(|txn| txn.zxid).collect();
        self.log.retain(|txn| !lost.contains(&txn.zxid));
        self.begun = self.log.iter().flat_map(|txn| created(txn)).map(str::to_owned).collect();
    }
}

impl Invariant for NothingKnownIsLost {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => self.commit(txn)?,
            Fact::Lost { txns } => self.lose(txns),
            Fact::Spawned(process) => {
                let attempt = (process.run.clone(), process.attempt);
                if !self.started.entry(process.node).or_default().insert(attempt) {
                    return Err(format!("the same process has started it before: {process:?}"));
                }
            }
            Fact::Died { node } => drop(self.started.remove(node)),
            _ => {}
        }
        Ok(())
    }

    fn conclude(&mut self) -> Result<(), String> {
        // A node that knew nothing of it may have recorded it as skipped.
        let recorded: BTreeSet<&str> = self.log.iter().flat_map(|txn| recorded(txn)).collect();
        let is_gone = |(run, _): &&(String, u32)| !self.begun.contains(run) && !recorded.contains(run.as_str());
        let gone = self.started.values().flatten().find(is_gone);
        gone.map_or(Ok(()), |(run, _)| Err(format!("in peace `{run}` is not on record, which was started")))
    }
}
