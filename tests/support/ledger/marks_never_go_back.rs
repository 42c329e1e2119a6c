//! Rule: a job's mark never goes back, and its record is never removed.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::run::JobRecord;
use jiff::Timestamp;

use super::{Rule, Txn, below, ops, written};

const JOBS: &str = "/cronkeeper/jobs";

#[derive(Default)]
pub struct MarksNeverGoBack {
    marks: BTreeMap<String, Timestamp>,
}

impl Rule for MarksNeverGoBack {
    fn committed(&mut self, txn: &Txn, _: &[String]) -> Result<(), String> {
        for op in ops(txn) {
            if let Op::Delete { path, .. } = op
                && let Some(job) = below(path, JOBS)
            {
                return Err(format!("the record of `{job}` was removed"));
            }
            let Some((job, data)) = written(op, JOBS) else { continue };
            let record: JobRecord = serde_json::from_slice(data)
                .map_err(|error| format!("the record of `{job}` cannot be read: {error}"))?;
            let mark = self.marks.entry(job.to_owned()).or_insert(record.last_scheduled);
            if record.last_scheduled < *mark {
                return Err(format!("the mark of `{job}` went back from {mark} to {}", record.last_scheduled));
            }
            *mark = record.last_scheduled;
        }
        Ok(())
    }
}
