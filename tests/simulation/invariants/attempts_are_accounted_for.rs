//! Invariant: a run's record lists its earlier attempts in order and counts the failed ones.
//!
//! Attempts that had no process are not listed. At most `retries` attempts fail.

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{HistoryRecord, RunRecord};

use super::super::facts::Fact;
use super::super::jobs::RETRIES;
use super::{Invariant, ops, written};

/// Number of earlier attempts that a record lists.
const LISTED: usize = 10;

#[derive(Default)]
pub struct AttemptsAreAccountedFor;

fn judge(record: &RunRecord) -> Result<(), String> {
    let (past, wrong) = (&record.past, |what: &str| Err(format!("`{}`: {what}: {record:?}", record.id())));
    let listed: Vec<u32> = past.attempts.iter().map(|past| past.attempt).collect();
    let failed = past.attempts.iter().filter(|past| past.outcome.is_failed()).count();
    let counted = past.failures as usize;
    if failed > counted || (listed.len() < LISTED && failed != counted) {
        return wrong("its failures are miscounted");
    }
    if listed.windows(2).any(|pair| pair[0] >= pair[1]) || listed.last().is_some_and(|last| *last > record.attempt) {
        return wrong("its attempts are not in order");
    }
    if past.failures > RETRIES {
        return wrong("it was tried again too often");
    }
    Ok(())
}

impl Invariant for AttemptsAreAccountedFor {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        let Fact::Committed { txn, .. } = fact else { return Ok(()) };
        for op in ops(txn) {
            let running = written(op, "/cronkeeper/running").map(|(_, data)| serde_json::from_slice::<RunRecord>(data));
            if let Some(Ok(record)) = running {
                judge(&record)?;
            }
            let job = "/cronkeeper/history/retry";
            if let Some(Ok(HistoryRecord::Run(end))) = written(op, job).map(|(_, data)| serde_json::from_slice(data)) {
                judge(&end.run)?;
            }
        }
        Ok(())
    }
}
