//! What a node is told of a write is what became of it: accepted is written, fenced and superseded never are.
//!
//! With one exception, which no backend can avoid: a write whose answer was lost and whose trace another node's term
//! has written over since. That term has read what the write left, so nobody relies on the answer.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper::clock::Uptime;
use cronkeeper::ledger::Commit;
use cronkeeper::run::JobRecord;

use super::super::facts::Fact;
use super::{Invariant, ops, written};

#[derive(Default)]
pub struct AnswersAreTrue {
    written: BTreeSet<String>,
    /// The newest write of each job.
    stands: BTreeMap<String, String>,
    refused: BTreeMap<String, Commit>,
}

impl AnswersAreTrue {
    fn write(&mut self, job: &str, nonce: String) -> Result<(), String> {
        if let Some(answer) = self.refused.get(&nonce) {
            return Err(format!("the write {nonce} was committed after its answer {answer:?}"));
        }
        if !self.written.insert(nonce.clone()) {
            return Err(format!("the write {nonce} was committed twice"));
        }
        self.stands.insert(job.to_owned(), nonce);
        Ok(())
    }

    /// True where the record that bore the nonce is another node's by now.
    fn is_written_over(&self, nonce: &str) -> bool {
        let node = |nonce: &str| nonce.split('-').next().map(str::to_owned);
        !self.stands.values().any(|stands| node(stands) == node(nonce))
    }

    fn answer(&mut self, node: usize, nonce: &str, answer: Commit) -> Result<(), String> {
        let is_written = self.written.contains(nonce);
        match answer {
            Commit::Accepted if !is_written => {
                Err(format!("node-{node} was told that {nonce} is written, and it is not"))
            }
            Commit::Fenced | Commit::Superseded if is_written && self.is_written_over(nonce) => Ok(()),
            Commit::Fenced | Commit::Superseded if is_written => {
                Err(format!("node-{node} was told {answer:?} of {nonce}, which is written"))
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
            Fact::Committed { entry, .. } => {
                for (job, data) in ops(entry).iter().filter_map(|op| written(op, "/cronkeeper/jobs")) {
                    if let Ok(record) = serde_json::from_slice::<JobRecord>(data) {
                        self.write(job, record.nonce.0)?;
                    }
                }
                Ok(())
            }
            Fact::Answered { node, nonce, answer } => self.answer(*node, nonce, *answer),
            _ => Ok(()),
        }
    }
}
