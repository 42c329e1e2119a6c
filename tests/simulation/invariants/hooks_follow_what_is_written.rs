//! Invariant: a hook starts once, and only after the record it follows was written with that outcome; `on_start` only
//! after a process of its run has begun.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::job::{Alarm, JobName};
use cronkeeper_core::run::{HistoryRecord, Outcome, RunEnd, RunId, Skip, SkipReason};
use jiff::Timestamp;

use super::super::facts::Fact;
use super::{Invariant, history_record, ops};
use crate::ledger::txn::Txn;

#[derive(Default)]
pub struct HooksFollowWhatIsWritten {
    ends: BTreeMap<String, End>,
    /// The outcomes of a job's runs, by zxid. Records in one write have no order.
    writes: BTreeMap<JobName, BTreeMap<i64, Vec<Outcome>>>,
    /// The missed occurrences of each job: the first and the last of each record.
    missed: BTreeMap<JobName, BTreeMap<Timestamp, Timestamp>>,
    started: BTreeSet<(String, String)>,
    /// The runs that have had a process.
    spawned: BTreeSet<String>,
}

struct End {
    outcome: Outcome,
    zxid: i64,
}

impl HooksFollowWhatIsWritten {
    fn written(&mut self, txn: &Txn) {
        for op in ops(txn) {
            match history_record(op) {
                Some(HistoryRecord::Run(end)) => self.ended(txn.zxid, &end),
                Some(HistoryRecord::Skip(skip)) if skip.reason == SkipReason::Missed => self.skipped(skip),
                _ => {}
            }
        }
    }

    fn ended(&mut self, zxid: i64, end: &RunEnd) {
        let outcome = end.outcome;
        self.writes.entry(end.run.job.clone()).or_default().entry(zxid).or_default().push(outcome);
        self.ends.insert(end.run.id().to_string(), End { outcome, zxid });
    }

    /// The outcomes that may count as that of the run before it.
    fn before(&self, run: &str, zxid: i64) -> Vec<Outcome> {
        let job = RunId::parse(run).ok().and_then(|run| self.writes.get(run.job()));
        job.into_iter()
            .flat_map(|writes| writes.range(..=zxid).rev().take(2))
            .flat_map(|(_, ends)| ends.clone())
            .collect()
    }

    fn skipped(&mut self, skip: Skip) {
        self.missed.entry(skip.job).or_default().insert(skip.first, skip.last);
    }

    fn started(&mut self, hook: &str, run: &str) -> Result<(), String> {
        if !self.started.insert((hook.to_owned(), run.to_owned())) {
            return Err(format!("`{hook}` of `{run}` is started a second time"));
        }
        if hook == "on_start" {
            let has_begun = self.spawned.contains(run);
            return has_begun.then_some(()).ok_or_else(|| format!("`{hook}` of `{run}`, which has had no process"));
        }
        if hook == "on_missed" {
            return if self.is_missed(run) { Ok(()) } else { Err(format!("`{hook}` of `{run}`, which is not missed")) };
        }
        let Some(end) = self.ends.get(run) else {
            return Err(format!("`{hook}` of `{run}` is started before its end is written"));
        };
        let (outcome, before) = (end.outcome, self.before(run, end.zxid));
        let is_right = match hook {
            "on_success" => outcome == Outcome::Success,
            "on_recovery" => outcome == Outcome::Success && before.iter().any(|one| *one != Outcome::Success),
            _ => outcome != Outcome::Success,
        };
        if is_right { Ok(()) } else { Err(format!("`{hook}` of `{run}`, which ended {outcome:?} after {before:?}")) }
    }

    /// Records are trimmed, and a skip record may have grown: each occurrence that was once missed lies in one of them.
    fn is_missed(&self, run: &str) -> bool {
        let Ok(run) = RunId::parse(run) else { return false };
        let records = self.missed.get(run.job());
        let before = records.and_then(|records| records.range(..=run.scheduled_at()).next_back());
        before.is_some_and(|(_, last)| *last >= run.scheduled_at())
    }
}

impl Invariant for HooksFollowWhatIsWritten {
    fn observe(&mut self, _at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => self.written(txn),
            Fact::Spawned(process) => {
                self.spawned.insert(process.run.clone());
            }
            // Another invariant is about the hooks of alarms.
            Fact::Hooked { hook, .. } if Alarm::ALL.iter().any(|alarm| alarm.hook().as_str() == hook) => {}
            Fact::Hooked { node, hook, run, .. } => {
                self.started(hook, run).map_err(|what| format!("on node {node}: {what}"))?;
            }
            _ => {}
        }
        Ok(())
    }
}
