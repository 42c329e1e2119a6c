//! Rule: terms open in the order of their tokens, and an opened term shuts out all older ones.
//!
//! Once a term has opened, no write that an older token fences is accepted. Every attempt of a run begins behind a
//! check of the candidate whose token it has.
//!
//! The rule reads what the ensemble commits: the opening sets `/leader` behind a check of the own candidate, and
//! every fenced write has such a check. A term's token is the creation of its candidate.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::run::{RunRecord, RunState};

use super::{Rule, Txn, below, ops, written};

const QUEUE: &str = "/leader";

#[derive(Default)]
pub struct TokensGrow {
    candidates: BTreeMap<String, i64>,
    opened: i64,
    /// The newest attempt of each run.
    attempts: BTreeMap<String, u32>,
}

impl TokensGrow {
    /// The token of the candidate that the write checks.
    fn fence(&self, txn: &Txn) -> Option<i64> {
        let token = |op: &Op| match op {
            Op::Check { path, .. } => self.candidates.get(path).copied(),
            _ => None,
        };
        ops(txn).iter().find_map(token)
    }

    /// Rejects an attempt that begins behind no fence or another fence than its own. Before the first term none begins.
    fn begins(&mut self, txn: &Txn, fence: Option<i64>) -> Result<(), String> {
        for (run, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running")) {
            let Ok(record) = serde_json::from_slice::<RunRecord>(data) else { continue };
            let before = self.attempts.insert(run.to_owned(), record.attempt);
            // Its node accepts it later, with the same number, and needs no term.
            let is_new = matches!(record.state, RunState::Running | RunState::Placed) && before != Some(record.attempt);
            let is_begun = before.is_none() || is_new;
            if is_begun && self.opened > 0 && fence != Some(record.token.0) {
                let (attempt, token) = (record.attempt, record.token);
                return Err(format!("attempt {attempt} of `{run}` is begun by the term {token}, fenced by {fence:?}"));
            }
        }
        Ok(())
    }
}

impl Rule for TokensGrow {
    fn committed(&mut self, txn: &Txn, touched: &[String]) -> Result<(), String> {
        for path in touched.iter().filter(|path| below(path, QUEUE).is_some()) {
            self.candidates.entry(path.clone()).or_insert(txn.zxid);
        }
        let fence = self.fence(txn);
        // If the whole queue was deleted by hand, its numbers restart, and a name may occur again.
        for op in ops(txn) {
            if let Op::Delete { path, .. } = op {
                self.candidates.remove(path);
            }
        }
        self.begins(txn, fence)?;
        let Some(token) = fence else { return Ok(()) };
        if token < self.opened {
            return Err(format!(
                "a write fenced by the token {token} was accepted after the term {} opened",
                self.opened
            ));
        }
        if ops(txn).iter().any(|op| matches!(op, Op::Set { path, .. } if path == QUEUE)) {
            self.opened = token;
        }
        Ok(())
    }
}
