//! What is known of one job's records: which there are, and in what order they were written.
//!
//! A run's record counts from when it was made, a skip record from when it grew last, by the servers' order of writes. What this session
//! writes is newer than all that it has listed or written before.

use std::collections::VecDeque;

use jiff::Timestamp;

use super::KEPT;
use crate::job::JobName;
use crate::run::{RunId, TriggerSeq};
use crate::zookeeper::client::Stat;

/// Which of a job's records: its name without the job's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    at: Timestamp,
    manual: Option<TriggerSeq>,
}

/// What a record is of. Each kind is kept apart from the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A run that ended.
    Run,
    /// Occurrences that were skipped.
    Skip,
}

/// A record that this session wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The job.
    pub job: JobName,
    /// The id that the record goes by.
    pub run: RunId,
    /// What it is of.
    pub kind: Kind,
    /// The version that it has now.
    pub version: i32,
}

/// A record as it was found.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    key: Key,
    kind: Kind,
    written: i64,
    version: i32,
}

/// A job's records, each kind oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    runs: VecDeque<(Key, i32)>,
    skips: VecDeque<(Key, i32)>,
    /// Counts growths of all jobs: when this one grew last.
    pub grown: u64,
}

impl Key {
    fn new(run: &RunId) -> Self {
        Self { at: run.scheduled_at(), manual: run.trigger() }
    }

    /// Absent for a name that is none of the job's records.
    pub fn in_name(job: &JobName, name: &str) -> Option<Self> {
        RunId::parse(name).ok().filter(|run| run.job() == job).map(|run| Self::new(&run))
    }

    /// The record's id.
    pub fn of(self, job: &JobName) -> RunId {
        match self.manual {
            Some(seq) => RunId::manual(job.clone(), self.at, seq),
            None => RunId::scheduled(job.clone(), self.at),
        }
    }
}

impl Listed {
    /// Absent for a name that is none of the job's records.
    pub fn new(job: &JobName, name: &str, data: &[u8], stat: &Stat) -> Option<Self> {
        let key = Key::in_name(job, name)?;
        let kind = if is_skip(data) { Kind::Skip } else { Kind::Run };
        let written = if kind == Kind::Skip { stat.mzxid } else { stat.czxid };
        Some(Self { key, kind, written, version: stat.version })
    }
}

impl History {
    pub fn new(mut listed: Vec<Listed>) -> Self {
        // What shares a write is told apart by its time.
        listed.sort_by_key(|record| (record.written, record.key));
        let mut history = Self::default();
        for Listed { key, kind, version, .. } in listed {
            history.of_kind(kind).push_back((key, version));
        }
        history
    }

    fn of_kind(&mut self, kind: Kind) -> &mut VecDeque<(Key, i32)> {
        match kind {
            Kind::Run => &mut self.runs,
            Kind::Skip => &mut self.skips,
        }
    }

    /// A record was made, or written over.
    pub fn grew(&mut self, written: &Written) {
        let key = Key::new(&written.run);
        // New ones are the newest, so those that are written over are found soonest from there.
        let place = |records: &VecDeque<(Key, i32)>| records.iter().rposition(|(known, _)| *known == key);
        match (place(&self.runs), written.kind) {
            (Some(at), Kind::Run) => return self.runs[at].1 = written.version,
            (Some(at), Kind::Skip) => drop(self.runs.remove(at)),
            (None, _) => {}
        }
        if let Some(at) = place(&self.skips) {
            self.skips.remove(at);
        }
        self.of_kind(written.kind).push_back((key, written.version));
    }

    pub fn len(&self) -> usize {
        self.runs.len() + self.skips.len()
    }

    pub fn is_too_long(&self) -> bool {
        self.runs.len() > KEPT || self.skips.len() > KEPT
    }

    /// Takes out the oldest that are too many, at most so many.
    pub fn take_surplus(&mut self, most: usize) -> impl Iterator<Item = (Key, i32)> {
        let runs = self.runs.len().saturating_sub(KEPT).min(most);
        let skips = self.skips.len().saturating_sub(KEPT).min(most - runs);
        // A run's record is not written again; a skip record that grew meanwhile is no longer old.
        let runs: Vec<_> = self.runs.drain(..runs).map(|(key, _)| (key, -1)).collect();
        runs.into_iter().chain(self.skips.drain(..skips).collect::<Vec<_>>())
    }
}

/// Judges by the kind alone: an end's whole record, with what the run printed last, is not needed to count it.
fn is_skip(data: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(borrow)]
        kind: &'a str,
    }
    matches!(serde_json::from_slice(data), Ok(Kind { kind: "skip" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::HistoryRecord;
    use crate::zookeeper::context::json;
    use crate::zookeeper::lower::tests::{at, name, skip};

    fn listed(second: i64, kind: Kind, written: i64) -> Listed {
        let data = match kind {
            Kind::Skip => json(&HistoryRecord::Skip(skip("backup", second))),
            Kind::Run => b"a run".to_vec(),
        };
        let run = RunId::scheduled(name("backup"), at(second)).to_string();
        let stat = Stat { czxid: written, mzxid: written, ..Stat::default() };
        Listed::new(&name("backup"), &run, &data, &stat).unwrap()
    }

    fn written(second: i64, kind: Kind, version: i32) -> Written {
        let run = RunId::scheduled(name("backup"), at(second));
        Written { job: name("backup"), run, kind, version }
    }

    fn surplus(history: &mut History) -> Vec<i64> {
        history.take_surplus(100).map(|(key, _)| key.at.as_second()).collect()
    }

    #[test]
    fn the_newest_twenty_of_each_kind_stay() {
        let runs = (0..25).map(|second| listed(second, Kind::Run, 100 - second));
        let skips = (100..121).map(|second| listed(second, Kind::Skip, second));
        let mut history = History::new(runs.chain(skips).collect());
        assert_eq!(surplus(&mut history), [24, 23, 22, 21, 20, 100]);
        assert!(!history.is_too_long());
    }

    #[test]
    fn what_is_written_is_newer_than_what_was_listed() {
        let mut history = History::new((0..20).map(|second| listed(second, Kind::Run, second)).collect());
        history.grew(&written(60, Kind::Run, 0));
        history.grew(&written(30, Kind::Run, 0));
        assert_eq!(surplus(&mut history), [0, 1]);
    }

    #[test]
    fn a_skip_record_that_grows_is_new_again_and_a_run_that_is_written_over_is_not() {
        let kinds = [Kind::Run, Kind::Skip];
        let records = kinds.into_iter().flat_map(|kind| (0..20).map(move |second| (second, kind)));
        let mut history = History::new(records.map(|(at, kind)| listed(at + 100 * (kind as i64), kind, at)).collect());
        history.grew(&written(0, Kind::Run, 1));
        history.grew(&written(100, Kind::Skip, 1));
        assert_eq!(history.len(), 40);
        history.grew(&written(50, Kind::Run, 0));
        history.grew(&written(150, Kind::Skip, 0));
        assert_eq!(surplus(&mut history), [0, 101]);
    }

    #[test]
    fn a_skip_in_whose_place_a_run_was_written_is_a_run() {
        let mut history = History::new((0..20).map(|second| listed(second, Kind::Skip, second)).collect());
        history.grew(&written(3, Kind::Run, 1));
        assert_eq!((history.runs.len(), history.skips.len()), (1, 19));
    }

    #[test]
    fn what_is_called_otherwise_is_none_of_the_jobs_records() {
        for other in ["backup", "other.19700101T000100Z", "notes", "backup.19700101T000100Z.x"] {
            assert_eq!(Key::in_name(&name("backup"), other), None, "{other}");
        }
        let manual = "backup.19700101T000100Z.m7";
        assert_eq!(Key::in_name(&name("backup"), manual).unwrap().of(&name("backup")).to_string(), manual);
    }
}
