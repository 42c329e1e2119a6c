//! Rule: an attempt names one node forever, a node has an offer as long as an attempt is placed there, and what was placed
//! runs only after its acceptance.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::run::{RunRecord, RunState};
use cronkeeper_core::term::NodeName;

use super::{Rule, Txn, below, ops, written};

const RUNNING: &str = "/cronkeeper/running";
const OFFERS: &str = "/cronkeeper/offers";

#[derive(Default)]
pub struct PlacedRunsKeepToTheirNodes {
    /// The node that has the newest attempt of each run, and the state of that.
    attempts: BTreeMap<String, (u32, NodeName, RunState)>,
    /// What is placed, by node and run, as the records say.
    placed: BTreeSet<(String, String)>,
    /// What nodes were offered.
    offers: BTreeSet<(String, String)>,
}

impl PlacedRunsKeepToTheirNodes {
    fn record(&mut self, run: &str, record: &RunRecord) -> Result<(), String> {
        let (attempt, node, state) = (record.attempt, record.owner.node.clone(), record.state);
        if let Some((known, other, before)) = self.attempts.get(run).filter(|_| state != RunState::Queued)
            && *known == attempt
        {
            if *other != node {
                return Err(format!("attempt {attempt} of `{run}` was on {other}, and is on {node}"));
            }
            if state == RunState::Placed && !matches!(before, RunState::Placed) {
                return Err(format!("attempt {attempt} of `{run}` was {before:?}, and is placed again"));
            }
        }
        self.placed.retain(|(_, placed)| placed != run);
        if state == RunState::Placed {
            self.placed.insert((node.to_string(), run.to_owned()));
        }
        self.attempts.insert(run.to_owned(), (attempt, node, state));
        Ok(())
    }
}

impl Rule for PlacedRunsKeepToTheirNodes {
    fn committed(&mut self, txn: &Txn, _: &[String]) -> Result<(), String> {
        for op in ops(txn) {
            if let Some((run, data)) = written(op, RUNNING) {
                let record: RunRecord =
                    serde_json::from_slice(data).map_err(|error| format!("the record of `{run}`: {error}"))?;
                self.record(run, &record)?;
            }
            let offer = |path: &str| {
                let (node, run) = path.strip_prefix(OFFERS)?.strip_prefix('/')?.split_once('/')?;
                Some((node.to_owned(), run.to_owned()))
            };
            match op {
                Op::Delete { path, .. } => {
                    if let Some(run) = below(path, RUNNING) {
                        self.attempts.remove(run);
                        self.placed.retain(|(_, placed)| placed != run);
                    }
                    if let Some(offer) = offer(path) {
                        self.offers.remove(&offer);
                    }
                }
                Op::Create { path, .. } => self.offers.extend(offer(path)),
                Op::Check { .. } | Op::Set { .. } => {}
            }
        }
        match self.placed.symmetric_difference(&self.offers).next() {
            Some((node, run)) => Err(format!("`{run}` is placed on {node} or is offered to it, but not both")),
            None => Ok(()),
        }
    }
}
