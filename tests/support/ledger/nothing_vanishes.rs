//! Rule: the write that moves a mark past an occurrence also begins it or counts it in a skip record.
//!
//! The nodes' shares of a run on every node come later, and are another rule's.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::job::Digest;
use cronkeeper_core::run::{HistoryRecord, JobRecord, RunRecord, Skip};
use cronkeeper_core::schedule::Schedule;

use super::{Rule, Txn, ops, written};

/// Every schedule that a job's record may be counted with, by its digest.
pub type Schedules = BTreeMap<(String, Digest), Schedule>;

pub struct NothingVanishes {
    schedules: Cow<'static, Schedules>,
    records: BTreeMap<String, JobRecord>,
    /// The count of each skip record when it was last written.
    counted: BTreeMap<String, u64>,
}

impl NothingVanishes {
    pub fn of(schedules: Cow<'static, Schedules>) -> Self {
        Self { schedules, records: BTreeMap::new(), counted: BTreeMap::new() }
    }

    fn moved(&mut self, job: &str, records: &[JobRecord], txn: &Txn) -> Result<(), String> {
        let skipped = self.skipped(job, txn);
        let Some(record) = records.last().cloned() else { return Ok(()) };
        let Some(before) = self.records.insert(job.to_owned(), record.clone()) else { return Ok(()) };
        // Another schedule counts from now.
        if records.iter().any(|record| record.schedule != before.schedule) {
            return Ok(());
        }
        let Some(digest) = record.schedule else { return Ok(()) };
        let Some(schedule) = self.schedules.get(&(job.to_owned(), digest)) else { return Ok(()) };
        let (from, to) = (before.last_scheduled, record.last_scheduled);
        let passed: Vec<_> = schedule.occurrences(from, to).collect();
        let begun = begun(job, txn);
        if let Some(unpassed) = begun.iter().find(|at| !passed.contains(at)) {
            return Err(format!("`{job}` is begun for {unpassed}, which the mark does not pass from {from} to {to}"));
        }
        if passed.len() as u64 != begun.len() as u64 + skipped {
            return Err(format!(
                "the mark of `{job}` passes {} occurrences from {from} to {to}; {} were begun and {skipped} skipped",
                passed.len(),
                begun.len(),
            ));
        }
        Ok(())
    }

    /// The occurrences of `job` that the skip records of this write add.
    fn skipped(&mut self, job: &str, txn: &Txn) -> u64 {
        let mut more = 0;
        // In order, because a record that grew twice in a write has the count of the last one.
        for (id, Skip { count, .. }) in skips(job, txn) {
            let before = self.counted.insert(id, count).unwrap_or(0);
            more += count - before.min(count);
        }
        more
    }
}

fn begun(job: &str, txn: &Txn) -> Vec<jiff::Timestamp> {
    let creates = ops(txn).iter().filter(|op| matches!(op, Op::Create { .. }));
    let records = creates.filter_map(|op| written(op, "/cronkeeper/running"));
    let records = records.filter_map(|(_, data)| serde_json::from_slice::<RunRecord>(data).ok());
    records
        .filter(|record| record.job.as_str() == job && record.trigger.is_none() && record.on.is_none())
        .map(|record| record.scheduled_at)
        .collect()
}

fn skips(job: &str, txn: &Txn) -> Vec<(String, Skip)> {
    let folder = format!("/cronkeeper/history/{job}");
    // Skips that replace a run without a process: their occurrence was begun, and the mark passed it then.
    let is_a_runs = |id: &str| {
        let run = format!("/cronkeeper/running/{id}");
        ops(txn).iter().any(|op| matches!(op, Op::Delete { path, .. } if *path == run))
    };
    let records = ops(txn).iter().filter_map(|op| written(op, &folder));
    let records = records.filter_map(|(id, data)| match serde_json::from_slice(data) {
        Ok(HistoryRecord::Skip(skip)) if skip.trigger.is_none() && skip.on.is_none() && !is_a_runs(id) => {
            Some((id.to_owned(), skip))
        }
        _ => None,
    });
    records.collect()
}

impl Rule for NothingVanishes {
    fn committed(&mut self, txn: &Txn, _: &[String]) -> Result<(), String> {
        let records = ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/jobs"));
        let records = records.filter_map(|(job, data)| Some((job, serde_json::from_slice::<JobRecord>(data).ok()?)));
        // Several decisions about a job can share a write, so they are judged together.
        let mut moved: BTreeMap<String, Vec<JobRecord>> = BTreeMap::new();
        for (job, record) in records {
            moved.entry(job.to_owned()).or_default().push(record);
        }
        moved.into_iter().try_for_each(|(job, records)| self.moved(&job, &records, txn))
    }
}
