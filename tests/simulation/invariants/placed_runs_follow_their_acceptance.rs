//! Invariant: a process starts only for an attempt that the ledger has as running on its node, and of two attempts the later
//! one has the larger token. One that was placed runs what the leader decided: by the definition in its record, and on a
//! node that has the labels which its job asks for.
//!
//! Two attempts that one leader begins on its own node, without placing them, have the same token.

use std::collections::BTreeMap;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::Digest;
use cronkeeper_core::run::{RunId, RunRecord, RunState};
use cronkeeper_core::term::NodeName;

use super::super::backend::{node_name, place};
use super::super::facts::Fact;
use super::super::jobs::sets;
use super::super::warden::Process;
use super::{Invariant, ops, written};

#[derive(Default)]
pub struct PlacedRunsFollowTheirAcceptance {
    /// The nodes on which attempts are or were running, by the records, and the definitions of those that were placed.
    running: BTreeMap<(String, u32), (NodeName, Option<Digest>)>,
    /// The newest attempt of each run that had a process: its number, node and token.
    started: BTreeMap<String, (u32, usize, i64)>,
}

impl PlacedRunsFollowTheirAcceptance {
    fn spawn(&mut self, process: &Process) -> Result<(), String> {
        let Process { run, attempt, node, token, definition, .. } = process;
        let Some((owner, placed)) = self.running.get(&(run.clone(), *attempt)) else {
            return Err(format!("attempt {attempt} of `{run}` is started, and no record has it as running"));
        };
        if *owner != node_name(*node) {
            return Err(format!("attempt {attempt} of `{run}` is {owner}'s, and is started on node-{node}"));
        }
        if let Some(decided) = placed.as_ref().filter(|decided| decided.as_str() != definition) {
            return Err(format!(
                "attempt {attempt} of `{run}` runs by {definition}, and the leader decided on {decided}"
            ));
        }
        if placed.is_some() && !has_labels(*node, run) {
            return Err(format!("attempt {attempt} of `{run}` is placed on node-{node}, which lacks the labels"));
        }
        if let Some((before, other, earlier)) = self.started.insert(run.clone(), (*attempt, *node, *token))
            && before < *attempt
            && (token < &earlier || token == &earlier && (placed.is_some() || other != *node))
        {
            return Err(format!(
                "attempt {attempt} of `{run}` has the token {token}, and attempt {before} had {earlier}"
            ));
        }
        Ok(())
    }
}

/// True if the node has the labels that the run's job asks for, as far as it is in the cast: in all sets these are the same.
fn has_labels(node: usize, run: &str) -> bool {
    let job = RunId::parse(run).ok().and_then(|run| sets()[0].jobs.get(run.job()));
    job.is_none_or(|job| job.run_where.is_met_by(&node_name(node), &place(node).labels))
}

impl Invariant for PlacedRunsFollowTheirAcceptance {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => {
                for (run, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running")) {
                    let Ok(record) = serde_json::from_slice::<RunRecord>(data) else { continue };
                    if record.state == RunState::Running {
                        let definition = record.placement.map(|placement| placement.definition);
                        self.running.insert((run.to_owned(), record.attempt), (record.owner.node, definition));
                    }
                }
                Ok(())
            }
            Fact::Spawned(process) => self.spawn(process),
            _ => Ok(()),
        }
    }
}
