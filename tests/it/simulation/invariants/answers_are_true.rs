//! What a node is told of a write is what became of it: accepted is written, fenced and superseded never are.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper::clock::Uptime;
use cronkeeper::ledger::Commit;
use cronkeeper::run::JobRecord;

use super::super::facts::Fact;
use super::{Invariant, ops, written};

#[derive(Default)]
pub struct AnswersAreTrue {
    written: BTreeSet<String>,
    refused: BTreeMap<String, Commit>,
}

impl Invariant for AnswersAreTrue {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { entry, .. } => {
                for (_, data) in ops(entry).iter().filter_map(|op| written(op, "/cronkeeper/jobs")) {
                    let Ok(record) = serde_json::from_slice::<JobRecord>(data) else { continue };
                    let nonce = record.nonce.0;
                    if let Some(answer) = self.refused.get(&nonce) {
                        return Err(format!("the write {nonce} was committed after its answer {answer:?}"));
                    }
                    if !self.written.insert(nonce.clone()) {
                        return Err(format!("the write {nonce} was committed twice"));
                    }
                }
            }
            Fact::Answered { node, nonce, answer } => {
                let is_written = self.written.contains(nonce);
                match answer {
                    Commit::Accepted if !is_written => {
                        return Err(format!("node-{node} was told that {nonce} is written, and it is not"));
                    }
                    Commit::Fenced | Commit::Superseded if is_written => {
                        return Err(format!("node-{node} was told {answer:?} of {nonce}, which is written"));
                    }
                    Commit::Fenced | Commit::Superseded => {
                        self.refused.insert(nonce.clone(), *answer);
                    }
                    Commit::Accepted | Commit::Unknown => {}
                }
            }
            _ => {}
        }
        Ok(())
    }
}
