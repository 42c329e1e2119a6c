//! Rule: a run begins once and ends once, and each of its attempts begins once and in order.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::run::{RunRecord, RunState};
use cronkeeper_core::term::FencingToken;

use super::{Rule, Txn, below, ops, written};

const RUNNING: &str = "/cronkeeper/running";

#[derive(Default)]
pub struct NoRunBeginsTwice {
    runs: BTreeMap<String, Run>,
}

struct Run {
    attempt: u32,
    /// The token of the term that began the attempt.
    token: FencingToken,
    ended: bool,
}

impl NoRunBeginsTwice {
    fn begin(&mut self, run: &str, record: &RunRecord) -> Result<(), String> {
        let new = Run { attempt: record.attempt, token: record.token, ended: false };
        match self.runs.insert(run.to_owned(), new) {
            Some(_) => Err(format!("`{run}` was begun a second time")),
            None if record.attempt != u32::from(record.state != RunState::Queued) => {
                Err(format!("`{run}` began with attempt {}", record.attempt))
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, run: &str, record: &RunRecord) -> Result<(), String> {
        let Some(known) = self.runs.get_mut(run) else { return Err(format!("`{run}` was changed and never begun")) };
        if record.attempt == known.attempt {
            return if record.token == known.token {
                Ok(())
            } else {
                Err(format!("attempt {} of `{run}` was begun a second time", record.attempt))
            };
        }
        if record.attempt != known.attempt + 1 {
            return Err(format!("`{run}` went from attempt {} to {}", known.attempt, record.attempt));
        }
        known.attempt = record.attempt;
        known.token = record.token;
        Ok(())
    }
}

impl Rule for NoRunBeginsTwice {
    fn committed(&mut self, txn: &Txn, _: &[String]) -> Result<(), String> {
        for op in ops(txn) {
            if let Some((run, data)) = written(op, RUNNING) {
                let record: RunRecord =
                    serde_json::from_slice(data).map_err(|error| format!("the record of `{run}`: {error}"))?;
                match op {
                    Op::Create { .. } => self.begin(run, &record)?,
                    _ => self.change(run, &record)?,
                }
            }
            if let Op::Delete { path, .. } = op
                && let Some(run) = below(path, RUNNING)
                && let Some(known) = self.runs.get_mut(run)
                && std::mem::replace(&mut known.ended, true)
            {
                return Err(format!("`{run}` ended twice"));
            }
        }
        Ok(())
    }
}
