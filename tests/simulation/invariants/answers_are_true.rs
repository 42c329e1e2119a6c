//! Invariant: the answer to a write is true. An accepted write is committed; a fenced or superseded one never is.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::ledger::Commit;
use cronkeeper_core::run::JobRecord;

use super::super::facts::Fact;
use super::{Invariant, is_an_operators, ops, written};

#[derive(Default)]
pub struct AnswersAreTrue {
    written: BTreeSet<String>,
    refused: BTreeMap<String, Commit>,
}

impl AnswersAreTrue {
    fn write(&mut self, nonce: String) -> Result<(), String> {
        if let Some(answer) = self.refused.get(&nonce) {
            return Err(format!("the write {nonce} was committed after its answer {answer:?}"));
        }
        if self.written.contains(&nonce) {
            return Err(format!("the write {nonce} was committed twice"));
        }
        self.written.insert(nonce);
        Ok(())
    }

    fn answer(&mut self, node: usize, nonce: &str, answer: Commit) -> Result<(), String> {
        let is_written = self.written.contains(nonce);
        match answer {
            Commit::Accepted if !is_written => {
                Err(format!("node-{node} got the answer that {nonce} is written, and it is not"))
            }
            Commit::Fenced | Commit::Superseded if is_written => {
                Err(format!("node-{node} got the answer {answer:?} for {nonce}, which is written"))
            }
            Commit::Fenced | Commit::Superseded => {
                self.refused.insert(nonce.to_owned(), answer);
                Ok(())
            }
            Commit::Accepted | Commit::Unknown => Ok(()),
        }
    }
}

impl Invariant for AnswersAreTrue {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            // A pause sets a job's record unchanged, nonce included.
            Fact::Committed { txn, .. } if is_an_operators(txn) => Ok(()),
            Fact::Committed { txn, .. } => {
                for (_, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/jobs")) {
                    if let Ok(record) = serde_json::from_slice::<JobRecord>(data) {
                        self.write(record.nonce.0)?;
                    }
                }
                Ok(())
            }
            Fact::Answered { node, nonce, answer } => self.answer(*node, nonce, *answer),
            _ => Ok(()),
        }
    }
}
