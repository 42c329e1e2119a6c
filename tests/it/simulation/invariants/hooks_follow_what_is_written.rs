//! A hook is started after what it follows was written, as it was written, and once.

use std::collections::{BTreeMap, BTreeSet};

use cronkeeper::clock::Uptime;
use cronkeeper::job::JobName;
use cronkeeper::run::{HistoryRecord, Outcome, RunEnd, RunId, Skip, SkipReason};
use cronkeeper::zookeeper::client::Op;
use jiff::Timestamp;

use super::super::facts::Fact;
use super::super::zookeeper::wire::Entry;
use super::{Invariant, ops};

#[derive(Default)]
pub struct HooksFollowWhatIsWritten {
    ends: BTreeMap<String, End>,
    /// How the newest run of a job ended.
    newest: BTreeMap<JobName, Outcome>,
    /// What was missed, by job: the first and the last of each record.
    missed: BTreeMap<JobName, BTreeMap<Timestamp, Timestamp>>,
    started: BTreeSet<(String, String)>,
}

struct End {
    outcome: Outcome,
    /// How the run of its job ended whose end was written before.
    before: Option<Outcome>,
}

impl HooksFollowWhatIsWritten {
    fn written(&mut self, entry: &Entry) {
        for op in ops(entry) {
            let (Op::Create { path, data, .. } | Op::Set { path, data, .. }) = op else { continue };
            if !path.starts_with("/cronkeeper/history/") {
                continue;
            }
            match serde_json::from_slice(data) {
                Ok(HistoryRecord::Run(end)) => self.ended(&end),
                Ok(HistoryRecord::Skip(skip)) if skip.reason == SkipReason::Missed => self.skipped(skip),
                _ => {}
            }
        }
    }

    fn ended(&mut self, end: &RunEnd) {
        let outcome = end.outcome;
        let before = self.newest.insert(end.run.job.clone(), outcome);
        self.ends.insert(end.run.id().to_string(), End { outcome, before });
    }

    fn skipped(&mut self, skip: Skip) {
        self.missed.entry(skip.job).or_default().insert(skip.first, skip.last);
    }

    fn started(&mut self, hook: &str, run: &str) -> Result<(), String> {
        if !self.started.insert((hook.to_owned(), run.to_owned())) {
            return Err(format!("`{hook}` of `{run}` is started a second time"));
        }
        if hook == "on_missed" {
            return if self.is_missed(run) { Ok(()) } else { Err(format!("`{hook}` of `{run}`, which is not missed")) };
        }
        let Some(end) = self.ends.get(run) else {
            return Err(format!("`{hook}` of `{run}` is started before its end is written"));
        };
        let is_right = match hook {
            "on_success" => end.outcome == Outcome::Success,
            "on_recovery" => end.outcome == Outcome::Success && end.before.is_some_and(|one| one != Outcome::Success),
            _ => end.outcome != Outcome::Success,
        };
        let (outcome, before) = (end.outcome, end.before);
        if is_right { Ok(()) } else { Err(format!("`{hook}` of `{run}`, which ended {outcome:?} after {before:?}")) }
    }

    /// Records are trimmed, and a run of them may have grown: what was missed once lies in one of them.
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
            Fact::Committed { entry, .. } => self.written(entry),
            Fact::Hooked { node, hook, run } => {
                self.started(hook, run).map_err(|what| format!("on node {node}: {what}"))?;
            }
            _ => {}
        }
        Ok(())
    }
}
