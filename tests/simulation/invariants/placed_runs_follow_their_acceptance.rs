//! Invariant: a process starts only for an attempt that the ledger has as running on its node, and of two attempts the later
//! one has the larger token.
//!
//! Two attempts that one leader begins on its own node, without placing them, have the same token.

use std::collections::BTreeMap;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{RunRecord, RunState};
use cronkeeper_core::term::NodeName;

use super::super::backend::node_name;
use super::super::facts::Fact;
use super::super::warden::Process;
use super::{Invariant, ops, written};

#[derive(Default)]
pub struct PlacedRunsFollowTheirAcceptance {
    /// The nodes on which attempts are or were running, by the records, and whether they were placed.
    running: BTreeMap<(String, u32), (NodeName, bool)>,
    /// The newest attempt of each run that had a process: its number, node and token.
    started: BTreeMap<String, (u32, usize, i64)>,
}

impl PlacedRunsFollowTheirAcceptance {
    fn spawn(&mut self, process: &Process) -> Result<(), String> {
        let Process { run, attempt, node, token, .. } = process;
        let Some((owner, is_placed)) = self.running.get(&(run.clone(), *attempt)) else {
            return Err(format!("attempt {attempt} of `{run}` is started, and no record has it as running"));
        };
        if *owner != node_name(*node) {
            return Err(format!("attempt {attempt} of `{run}` is {owner}'s, and is started on node-{node}"));
        }
        if let Some((before, other, earlier)) = self.started.insert(run.clone(), (*attempt, *node, *token))
            && before < *attempt
            && (token < &earlier || token == &earlier && (*is_placed || other != *node))
        {
            return Err(format!(
                "attempt {attempt} of `{run}` has the token {token}, and attempt {before} had {earlier}"
            ));
        }
        Ok(())
    }
}

impl Invariant for PlacedRunsFollowTheirAcceptance {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => {
                for (run, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running")) {
                    let Ok(record) = serde_json::from_slice::<RunRecord>(data) else { continue };
                    if record.state == RunState::Running {
                        let is_placed = record.placement.is_some();
                        let on = (record.owner.node, is_placed);
                        self.running.insert((run.to_owned(), record.attempt), on);
                    }
                }
                Ok(())
            }
            Fact::Spawned(process) => self.spawn(process),
            _ => Ok(()),
        }
    }
}
