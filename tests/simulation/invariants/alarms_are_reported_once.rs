//! Invariant: the hook of an alarm starts at most once each time that the alarm is raised, and only after the job's
//! record says that it is active.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::Alarm;
use cronkeeper_core::run::JobRecord;

use super::super::facts::Fact;
use super::{Invariant, ops};
use crate::ledger::txn::Txn;

#[derive(Default)]
pub struct AlarmsAreReportedOnce {
    /// The active alarms: the job, and the alarm's hook.
    standing: BTreeSet<(String, &'static str)>,
    /// How often each was raised and not reported since.
    untold: BTreeMap<(String, &'static str), usize>,
}

impl AlarmsAreReportedOnce {
    fn written(&mut self, txn: &Txn) {
        for op in ops(txn) {
            let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { continue };
            let (Some(job), Ok(record)) =
                (path.strip_prefix("/cronkeeper/jobs/"), serde_json::from_slice::<JobRecord>(data))
            else {
                continue;
            };
            for alarm in Alarm::ALL {
                let key = (job.to_owned(), alarm.hook().as_str());
                if record.alarms.get(alarm).is_none() {
                    // What was not reported by then is not reported any more.
                    self.standing.remove(&key);
                } else if self.standing.insert(key.clone()) {
                    *self.untold.entry(key).or_default() += 1;
                }
            }
        }
    }

    fn reported(&mut self, hook: &str, job: &str) -> Result<(), String> {
        let Some(alarm) = Alarm::ALL.into_iter().find(|alarm| alarm.hook().as_str() == hook) else { return Ok(()) };
        let untold = self.untold.entry((job.to_owned(), alarm.hook().as_str())).or_default();
        match untold.checked_sub(1) {
            Some(fewer) => *untold = fewer,
            None => return Err(format!("`{hook}` of `{job}` is started more often than it was raised")),
        }
        Ok(())
    }
}

impl Invariant for AlarmsAreReportedOnce {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => self.written(txn),
            Fact::Hooked { node, hook, job, .. } => {
                self.reported(hook, job).map_err(|what| format!("on node {node}: {what}"))?;
            }
            _ => {}
        }
        Ok(())
    }
}
