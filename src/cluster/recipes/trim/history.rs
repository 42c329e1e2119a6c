//! The known records of one job, in the order in which they were written.
//!
//! A run's record counts from its creation, a skip record from its last change, in the servers' order of writes. What
//! this session writes is newer than everything it has listed or written before. Of the nodes that the cluster has
//! forgotten, the shares count together, by the times that they were due at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;

use crate::tree::{AtVersion, Revision, Stat};
use cronkeeper_core::job::JobName;
use cronkeeper_core::run::{RunId, TriggerSeq, Version};
use cronkeeper_core::term::NodeName;

/// Name of a record within its job's history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    at: Timestamp,
    manual: Option<TriggerSeq>,
    on: Option<NodeName>,
}

/// Kind of a history record. Each kind has its own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A run that ended.
    Run,
    /// Skipped occurrences.
    Skip,
}

/// A record that this session wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRecord {
    pub job: JobName,
    /// The id that names the record.
    pub run: RunId,
    pub kind: RecordKind,
    /// The version after the write.
    pub version: Version,
}

/// A record found in a listing.
#[derive(Clone, Debug)]
pub(super) struct ListedRecord {
    key: RecordKey,
    kind: RecordKind,
    /// The write that counts for its age.
    written: Revision,
    version: Version,
}

/// A job's records: those of each node's shares, and the others. A limit holds for each of them.
#[derive(Debug, Default)]
pub(super) struct JobHistory {
    by_node: BTreeMap<Option<NodeName>, Records>,
    /// When the history grew last, as a count of the growths of all jobs.
    pub grown: u64,
}

/// Records, each kind oldest first.
#[derive(Debug, Default)]
struct Records {
    runs: VecDeque<(RecordKey, Version)>,
    skips: VecDeque<(RecordKey, Version)>,
}

impl RecordKey {
    fn new(run: &RunId) -> Self {
        Self { at: run.scheduled_at(), manual: run.trigger(), on: run.node().cloned() }
    }

    /// `None` if the name is not that of a record of this job.
    pub fn in_name(job: &JobName, name: &str) -> Option<Self> {
        RunId::parse(name).ok().filter(|run| run.job() == job).map(|run| Self::new(&run))
    }

    /// The id of the record, for the job whose history it is in.
    pub fn of(&self, job: &JobName) -> RunId {
        let run = match self.manual {
            Some(seq) => RunId::manual(job.clone(), self.at, seq),
            None => RunId::scheduled(job.clone(), self.at),
        };
        run.on(self.on.clone())
    }
}

impl ListedRecord {
    /// `None` if the name is not that of a record of this job.
    pub fn new(job: &JobName, name: &str, data: &[u8], stat: &Stat) -> Option<Self> {
        let key = RecordKey::in_name(job, name)?;
        let kind = if is_skip(data) { RecordKind::Skip } else { RecordKind::Run };
        let written = if kind == RecordKind::Skip { stat.changed } else { stat.created };
        Some(Self { key, kind, written, version: stat.version })
    }
}

impl JobHistory {
    pub fn new(mut listed: Vec<ListedRecord>) -> Self {
        // Records written in the same transaction are ordered by their time.
        listed.sort_by(|one, other| (one.written, &one.key).cmp(&(other.written, &other.key)));
        let mut history = Self::default();
        for ListedRecord { key, kind, version, .. } in listed {
            history.of(&key).of_kind(kind).push_back((key, version));
        }
        history
    }

    fn of(&mut self, key: &RecordKey) -> &mut Records {
        self.by_node.entry(key.on.clone()).or_default()
    }

    /// Notes a record that was created or overwritten.
    pub fn grew(&mut self, written: &WrittenRecord) {
        let key = RecordKey::new(&written.run);
        self.of(&key).grew(key, written.kind, written.version);
    }

    pub fn len(&self) -> usize {
        self.by_node.values().map(|records| records.runs.len() + records.skips.len()).sum()
    }

    /// True if there are more than `kept` records of a kind, of some node, or of all forgotten ones together.
    pub fn is_longer_than(&self, kept: usize, roster: &Roster) -> bool {
        let mut of_forgotten = [0, 0];
        self.by_node.iter().any(|(node, records)| {
            let counts = [records.runs.len(), records.skips.len()];
            if !roster.has_forgotten(node.as_ref()) {
                return counts.iter().any(|&count| count > kept);
            }
            of_forgotten.iter_mut().zip(counts).any(|(sum, count)| {
                *sum += count;
                *sum > kept
            })
        })
    }

    /// Removes the oldest records beyond the newest `kept` of each kind and node, at most `most`, and returns them with
    /// the version to delete.
    pub fn take_surplus(
        &mut self,
        kept: usize,
        most: usize,
        roster: &Roster,
    ) -> impl Iterator<Item = (RecordKey, AtVersion)> {
        let mut taken = Vec::new();
        for (_, records) in self.by_node.iter_mut().filter(|(node, _)| !roster.has_forgotten(node.as_ref())) {
            taken.extend(records.take_surplus(kept, most - taken.len()));
        }
        for kind in [RecordKind::Run, RecordKind::Skip] {
            taken.extend(self.take_surplus_of_forgotten(kind, kept, most - taken.len(), roster));
        }
        self.by_node.retain(|_, records| !records.is_empty());
        taken.into_iter()
    }

    fn take_surplus_of_forgotten(
        &mut self,
        kind: RecordKind,
        kept: usize,
        most: usize,
        roster: &Roster,
    ) -> Vec<(RecordKey, AtVersion)> {
        let forgotten = self.by_node.iter_mut().filter(|(node, _)| roster.has_forgotten(node.as_ref()));
        let mut lists: Vec<_> = forgotten.map(|(_, records)| records.of_kind(kind)).collect();
        let count: usize = lists.iter().map(|list| list.len()).sum();
        let take_oldest = || {
            let list = lists.iter_mut().filter(|list| !list.is_empty()).min_by(|a, b| age(a).cmp(&age(b)))?;
            list.pop_front().map(|record| to_delete(kind, record))
        };
        std::iter::from_fn(take_oldest).take(count.saturating_sub(kept).min(most)).collect()
    }
}

/// The time of the oldest record, by its name.
fn age(list: &VecDeque<(RecordKey, Version)>) -> Option<&RecordKey> {
    list.front().map(|(key, _)| key)
}

/// A run's record is not written again, so any version will do. A skip record that has grown meanwhile is no longer old.
fn to_delete(kind: RecordKind, (key, version): (RecordKey, Version)) -> (RecordKey, AtVersion) {
    match kind {
        RecordKind::Run => (key, AtVersion::Any),
        RecordKind::Skip => (key, version.into()),
    }
}

/// The nodes that the cluster knows, alive or not, as the leader has read them; unknown to other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster(pub Option<BTreeSet<NodeName>>);

impl Roster {
    /// True if these are the shares of a node that the cluster does not know any more.
    fn has_forgotten(&self, node: Option<&NodeName>) -> bool {
        self.0.as_ref().zip(node).is_some_and(|(known, node)| !known.contains(node))
    }
}

impl Records {
    fn of_kind(&mut self, kind: RecordKind) -> &mut VecDeque<(RecordKey, Version)> {
        match kind {
            RecordKind::Run => &mut self.runs,
            RecordKind::Skip => &mut self.skips,
        }
    }

    fn grew(&mut self, key: RecordKey, kind: RecordKind, version: Version) {
        // Overwritten records are usually recent ones, so search from the newest.
        let position = |records: &VecDeque<(RecordKey, Version)>| records.iter().rposition(|(known, _)| *known == key);
        match (position(&self.runs), kind) {
            (Some(at), RecordKind::Run) => return self.runs[at].1 = version,
            (Some(at), RecordKind::Skip) => drop(self.runs.remove(at)),
            (None, _) => {}
        }
        if let Some(at) = position(&self.skips) {
            self.skips.remove(at);
        }
        self.of_kind(kind).push_back((key, version));
    }

    fn take_surplus(&mut self, kept: usize, most: usize) -> impl Iterator<Item = (RecordKey, AtVersion)> + use<> {
        let runs = self.runs.len().saturating_sub(kept).min(most);
        let skips = self.skips.len().saturating_sub(kept).min(most - runs);
        let runs: Vec<_> = self.runs.drain(..runs).map(|record| to_delete(RecordKind::Run, record)).collect();
        let skips: Vec<_> = self.skips.drain(..skips).map(|record| to_delete(RecordKind::Skip, record)).collect();
        runs.into_iter().chain(skips)
    }

    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.skips.is_empty()
    }
}

/// Reads the kind only: an end's whole record, which holds the run's last output, is not needed.
fn is_skip(data: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct KindField<'a> {
        #[serde(borrow)]
        kind: &'a str,
    }
    matches!(serde_json::from_slice(data), Ok(KindField { kind: "skip" }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipes::context::json;
    use crate::recipes::transaction::tests::{at, name, skip};
    use cronkeeper_core::run::HistoryRecord;

    fn listed(second: i64, kind: RecordKind, written: i64) -> ListedRecord {
        let data = match kind {
            RecordKind::Skip => json(&HistoryRecord::Skip(skip("backup", second))),
            RecordKind::Run => b"a run".to_vec(),
        };
        let run = RunId::scheduled(name("backup"), at(second)).to_string();
        let stat = Stat { created: Revision(written), changed: Revision(written), ..Stat::default() };
        ListedRecord::new(&name("backup"), &run, &data, &stat).unwrap()
    }

    fn written(second: i64, kind: RecordKind, version: i32) -> WrittenRecord {
        let run = RunId::scheduled(name("backup"), at(second));
        WrittenRecord { job: name("backup"), run, kind, version: Version(version) }
    }

    fn surplus(history: &mut JobHistory) -> Vec<i64> {
        history.take_surplus(20, 100, &Roster::default()).map(|(key, _)| key.at.as_second()).collect()
    }

    #[test]
    fn the_newest_twenty_of_each_kind_stay() {
        let runs = (0..25).map(|second| listed(second, RecordKind::Run, 100 - second));
        let skips = (100..121).map(|second| listed(second, RecordKind::Skip, second));
        let mut history = JobHistory::new(runs.chain(skips).collect());
        assert_eq!(surplus(&mut history), [24, 23, 22, 21, 20, 100]);
        assert!(!history.is_longer_than(20, &Roster::default()));
    }

    #[test]
    fn written_records_are_newer_than_listed_ones() {
        let mut history = JobHistory::new((0..20).map(|second| listed(second, RecordKind::Run, second)).collect());
        history.grew(&written(60, RecordKind::Run, 0));
        history.grew(&written(30, RecordKind::Run, 0));
        assert_eq!(surplus(&mut history), [0, 1]);
    }

    #[test]
    fn a_skip_record_that_grows_is_new_again_and_an_overwritten_run_is_not() {
        let kinds = [RecordKind::Run, RecordKind::Skip];
        let records = kinds.into_iter().flat_map(|kind| (0..20).map(move |second| (second, kind)));
        let mut history =
            JobHistory::new(records.map(|(at, kind)| listed(at + 100 * (kind as i64), kind, at)).collect());
        history.grew(&written(0, RecordKind::Run, 1));
        history.grew(&written(100, RecordKind::Skip, 1));
        assert_eq!(history.len(), 40);
        history.grew(&written(50, RecordKind::Run, 0));
        history.grew(&written(150, RecordKind::Skip, 0));
        assert_eq!(surplus(&mut history), [0, 101]);
    }

    #[test]
    fn a_skip_record_overwritten_by_a_run_counts_as_a_run() {
        let mut history = JobHistory::new((0..20).map(|second| listed(second, RecordKind::Skip, second)).collect());
        history.grew(&written(3, RecordKind::Run, 1));
        let records = &history.by_node[&None];
        assert_eq!((records.runs.len(), records.skips.len()), (1, 19));
    }

    fn share(second: i64, node: &str) -> WrittenRecord {
        let run = RunId::scheduled(name("backup"), at(second)).on(Some(NodeName::new(node)));
        WrittenRecord { job: name("backup"), run, kind: RecordKind::Run, version: Version(0) }
    }

    #[test]
    fn forgotten_nodes_have_the_newest_twenty_of_their_shares_together() {
        let mut history = JobHistory::default();
        for second in 0..30 {
            history.grew(&share(second, &format!("pod-{}", second % 10)));
        }
        (0..20).for_each(|second| history.grew(&share(second, "host-a")));
        (0..20).for_each(|second| history.grew(&written(second, RecordKind::Run, 0)));
        let roster = Roster(Some([NodeName::new("host-a")].into()));
        assert!(!history.is_longer_than(20, &Roster::default()), "only a leader knows who is forgotten");
        let mut taken = |most| -> Vec<String> {
            let surplus = history.take_surplus(20, most, &roster);
            surplus.map(|(key, _)| key.of(&name("backup")).to_string()).collect()
        };
        assert_eq!(taken(2), ["backup.19700101T000000Z@pod-0", "backup.19700101T000001Z@pod-1"]);
        assert_eq!(taken(100).len(), 8);
        assert_eq!((history.len(), history.is_longer_than(20, &roster)), (60, false));
    }

    #[test]
    fn each_node_has_the_newest_twenty_of_its_shares() {
        let mut history = JobHistory::default();
        (0..21).for_each(|second| history.grew(&share(second, "host-a")));
        (0..20).for_each(|second| history.grew(&share(second, "host-b")));
        let roster = Roster(Some(["host-a", "host-b"].map(NodeName::new).into()));
        assert!(history.is_longer_than(20, &roster));
        let taken: Vec<String> =
            history.take_surplus(20, 100, &roster).map(|(key, _)| key.of(&name("backup")).to_string()).collect();
        assert_eq!(taken, ["backup.19700101T000000Z@host-a"]);
        assert_eq!((history.len(), history.is_longer_than(20, &roster)), (40, false));
    }

    #[test]
    fn other_names_are_not_records_of_the_job() {
        for other in ["backup", "other.19700101T000100Z", "notes", "backup.19700101T000100Z.x"] {
            assert_eq!(RecordKey::in_name(&name("backup"), other), None, "{other}");
        }
        let manual = "backup.19700101T000100Z.m7";
        assert_eq!(RecordKey::in_name(&name("backup"), manual).unwrap().of(&name("backup")).to_string(), manual);
    }
}
