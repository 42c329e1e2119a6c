//! What a node notes of its own runs, so that its next process, or its successor on the same host, knows what it left behind.
//!
//! The ledger says what was decided; the journal says what was *done* here: which process is a run's, and which end
//! could not be committed yet. It only has to survive the death of the process, not that of the host: with the host its
//! processes are gone too, and the ledger then says "begun, end unknown". Where it is kept is the affair of a [`Journal`].

use std::collections::BTreeMap;
use std::io;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{KnownBy, OnLoss, Outcome, Reason, RunEnd, RunId, RunRecord, Traces, Version};
use crate::term::NodeName;

/// One note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A begin was accepted; its process comes next.
    Begun {
        /// The run.
        record: Box<RunRecord>,
        /// The version of its record in the ledger.
        version: Version,
        /// Of the processes that are to come.
        #[serde(default)]
        traces: Traces,
    },
    /// Its process was started.
    Started {
        /// The run.
        run: RunId,
        /// Which attempt of it.
        attempt: u32,
        /// Its main process.
        pid: i32,
        /// When the kernel started that process, in clock ticks since boot: tells it from a later one of the same pid.
        start_time: u64,
        /// What it is known by in the end, if that is not what was noted before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known_by: Option<KnownBy>,
    },
    /// It ended; the end is not yet in the ledger. Stands alone where its begin was accepted but nothing was started.
    Ended {
        /// How.
        end: Box<RunEnd>,
        /// The version of its record in the ledger.
        version: Version,
    },
    /// Nothing is left to do about it here.
    Settled(RunId),
}

/// A run that was not settled when the notes end.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredRun {
    /// Its record, as last begun here.
    pub record: RunRecord,
    /// The version of its record in the ledger then.
    pub version: Version,
    /// Its main process and that one's start time; absent where none was started, or not noted, or that was not noted here.
    pub pid: Option<(i32, u64)>,
    /// By what its processes are known.
    pub traces: Traces,
    /// How it ended, if it did: the ledger may not know.
    pub end: Option<RunEnd>,
}

/// Where notes were made, seen from the process that reads them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Written {
    /// By an earlier process of this node, in this boot.
    #[default]
    Here,
    /// In another boot of this host, or on another: no process of theirs lives here.
    BeforeBoot,
    /// In this boot, by a process that kept them in another place: they are a copy, and it may live.
    Elsewhere,
    /// There are none: nothing follows from what they do not say.
    Nowhere,
}

/// What the notes amount to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// The runs that were not settled, by their ids.
    pub runs: Vec<RecoveredRun>,
    /// Where they were noted.
    pub written: Written,
}

/// The newest attempt of each run that was noted and not settled, by a node that notes each before it hands it to its warden.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noted(BTreeMap<RunId, u32>);

impl Noted {
    /// True where no process was ever started for this attempt: it was handed to no warden. Only of a run of the node whose notes these
    /// are, in this boot.
    pub fn never_started(&self, run: &RunRecord) -> bool {
        self.0.get(&run.id()).is_none_or(|&attempt| attempt < run.attempt)
    }
}

impl Recovered {
    /// What was handed to a warden here, as far as the notes can be trusted to say.
    pub fn noted(&self) -> Option<Noted> {
        let attempts = self.runs.iter().map(|run| (run.record.id(), run.record.attempt));
        (self.written == Written::Here).then(|| Noted(attempts.collect()))
    }

    /// The ends that the ledger may not know.
    pub fn ends(&self) -> Vec<RunEnd> {
        self.runs.iter().filter_map(|run| run.end.clone()).collect()
    }

    /// Leaves to the leader what is not this node's to judge: of notes that were not made here, the runs that may be alive on
    /// another node, and those that the leader is to begin again anyway. An end that is known is told whoever knows it.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn keep_own(&mut self, node: &NodeName, journal: &mut impl Journal) -> io::Result<()> {
        let is_own = |run: &RecoveredRun| match self.written {
            _ if run.end.is_some() => true,
            Written::Here => true,
            Written::BeforeBoot => run.record.owner.node == *node && run.record.on_loss != OnLoss::Rerun,
            Written::Elsewhere | Written::Nowhere => false,
        };
        let (own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.runs).into_iter().partition(is_own);
        self.runs = own;
        others.iter().try_for_each(|run| journal.settled(&run.record.id()))
    }

    /// Notes an end for every run that has none, whose process is dead. Written down, so that every later process tells of the
    /// same end: the ledger may have it already. A run that is to be begun again gets none: that is the leader's to say.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn end_dead(&mut self, journal: &mut impl Journal, now: Timestamp) -> io::Result<()> {
        for run in self.runs.iter_mut().filter(|run| run.end.is_none() && run.record.on_loss != OnLoss::Rerun) {
            let end = RunEnd::unseen(&run.record, Outcome::Interrupted, Some(Reason::NodeDied), now);
            journal.ended(&end, run.version)?;
            run.end = Some(end);
        }
        Ok(())
    }
}

/// Takes notes. Each is kept before the call returns.
pub trait Journal: Send {
    /// Notes an accepted begin, before its process starts.
    ///
    /// # Errors
    /// When it could not be noted: the process must then not start.
    fn begun(&mut self, record: &RunRecord, version: Version, traces: &Traces) -> io::Result<()>;

    /// Notes a started process.
    ///
    /// # Errors
    /// When it could not be noted.
    fn started(&mut self, run: &RunId, attempt: u32, pid: i32, start_time: u64, known_by: &KnownBy) -> io::Result<()>;

    /// Notes an end that is about to be committed.
    ///
    /// # Errors
    /// When it could not be noted.
    fn ended(&mut self, end: &RunEnd, version: Version) -> io::Result<()>;

    /// Notes that the ledger knows all.
    ///
    /// # Errors
    /// When it could not be noted.
    fn settled(&mut self, run: &RunId) -> io::Result<()>;

    /// What is noted and not settled.
    fn open_runs(&self) -> Vec<RecoveredRun>;
}

/// The state that notes add up to. Total: notes that contradict what stands before them change nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalState {
    open: BTreeMap<RunId, RecoveredRun>,
    written: Written,
}

impl JournalState {
    /// Takes one note.
    pub fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Begun { record, version, traces } => {
                self.open.insert(record.id(), RecoveredRun { record: *record, version, pid: None, traces, end: None });
            }
            Entry::Started { run, attempt, pid, start_time, known_by } => {
                if let Some(open) = self.open.get_mut(&run).filter(|open| open.record.attempt == attempt) {
                    open.pid = Some((pid, start_time));
                    open.traces.known_by = known_by.unwrap_or(std::mem::take(&mut open.traces.known_by));
                }
            }
            Entry::Ended { end, version } => self.end(*end, version),
            Entry::Settled(run) => {
                self.open.remove(&run);
            }
        }
    }

    /// An attempt that is not noted yet is taken as a whole; the end of one before the noted one is no news.
    fn end(&mut self, end: RunEnd, version: Version) {
        match self.open.get_mut(&end.run.id()) {
            Some(open) if open.record.attempt > end.run.attempt => {}
            Some(open) if open.record.attempt == end.run.attempt => open.end = Some(end),
            _ => {
                let (record, traces) = (end.run.clone(), Traces::default());
                let open = RecoveredRun { record, version, pid: None, traces, end: Some(end) };
                self.open.insert(open.record.id(), open);
            }
        }
    }

    /// Takes note of where it was written, and forgets every process if that was not here.
    pub fn found(&mut self, written: Written) {
        self.written = written;
        if written != Written::Here {
            for open in self.open.values_mut() {
                open.pid = None;
                open.traces = open.traces.elsewhere();
            }
        }
    }

    /// How many runs are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// True when nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The fewest notes that amount to the same.
    pub fn entries(&self) -> Vec<Entry> {
        self.open.iter().flat_map(|(id, open)| notes(id, open)).collect()
    }

    /// What is open.
    pub fn recovered(&self) -> Recovered {
        Recovered { runs: self.open.values().cloned().collect(), written: self.written }
    }
}

fn notes(id: &RunId, open: &RecoveredRun) -> Vec<Entry> {
    let attempt = open.record.attempt;
    let (record, traces) = (Box::new(open.record.clone()), open.traces.clone());
    let begun = Entry::Begun { record, version: open.version, traces };
    let started = |(pid, start_time)| Entry::Started { run: id.clone(), attempt, pid, start_time, known_by: None };
    let started = open.pid.map(started);
    let ended = open.end.clone().map(|end| Entry::Ended { end: Box::new(end), version: open.version });
    [Some(begun), started, ended].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::run::tests_support::{record, success};

    fn begun(attempt: u32) -> Entry {
        let record = Box::new(RunRecord { attempt, ..record("a", 0, "s") });
        Entry::Begun { record, version: Version(3), traces: Traces { uid: Some(7), ..Traces::default() } }
    }

    fn started(attempt: u32, pid: i32) -> Entry {
        let known_by = Some(KnownBy::AuditSession(attempt));
        Entry::Started { run: record("a", 0, "s").id(), attempt, pid, start_time: 9, known_by }
    }

    #[test]
    fn another_attempt_begins_without_the_process_of_the_last() {
        let mut state = JournalState::default();
        for entry in [begun(1), started(1, 77), begun(2), started(1, 78)] {
            state.take(entry);
        }
        let runs = state.recovered().runs;
        assert_eq!((runs.len(), runs[0].record.attempt, runs[0].pid), (1, 2, None));
    }

    #[test]
    fn what_a_process_is_known_by_is_forgotten_where_it_cannot_be() {
        let mut state = JournalState::default();
        [begun(1), started(1, 77)].into_iter().for_each(|entry| state.take(entry));
        let traces = |state: &JournalState| state.recovered().runs[0].traces.clone();
        assert_eq!(traces(&state), Traces { uid: Some(7), since: None, known_by: KnownBy::AuditSession(1) });
        state.found(Written::BeforeBoot);
        assert_eq!(traces(&state), Traces { uid: Some(7), since: None, known_by: KnownBy::Environment });
    }

    #[test]
    fn notes_of_an_older_version_are_read() {
        let record = serde_json::to_value(record("a", 0, "s")).unwrap();
        let begun = serde_json::json!({ "begun": { "record": record, "version": 3 } });
        let started =
            serde_json::json!({ "started": { "run": "a.19700101T000000Z", "attempt": 1, "pid": 7, "start_time": 9 } });
        let mut state = JournalState::default();
        [begun, started].into_iter().for_each(|note| state.take(serde_json::from_value(note).unwrap()));
        let run = state.recovered().runs.remove(0);
        assert_eq!((run.pid, run.traces), (Some((7, 9)), Traces::default()));
    }

    fn ended(attempt: u32) -> Entry {
        let run = RunRecord { attempt, ..record("a", 0, "s") };
        Entry::Ended { end: Box::new(success(run)), version: Version(5) }
    }

    #[test]
    fn an_end_without_a_begin_is_kept_whole() {
        for before in [vec![], vec![begun(1), started(1, 77)]] {
            let mut state = JournalState::default();
            before.into_iter().chain([ended(2)]).for_each(|entry| state.take(entry));
            let run = RunRecord { attempt: 2, ..record("a", 0, "s") };
            let (version, traces, end) = (Version(5), Traces::default(), Some(success(run.clone())));
            let open = RecoveredRun { record: run, version, pid: None, traces, end };
            assert_eq!(state.recovered().runs, [open]);
        }
    }

    #[test]
    fn the_end_of_an_earlier_attempt_is_no_news() {
        let mut state = JournalState::default();
        [begun(2), ended(1)].into_iter().for_each(|entry| state.take(entry));
        assert_eq!(state.recovered().runs[0].end, None);
    }

    /// Notes nothing.
    struct Blank;

    impl Journal for Blank {
        fn begun(&mut self, _: &RunRecord, _: Version, _: &Traces) -> io::Result<()> {
            Ok(())
        }

        fn started(&mut self, _: &RunId, _: u32, _: i32, _: u64, _: &KnownBy) -> io::Result<()> {
            Ok(())
        }

        fn ended(&mut self, _: &RunEnd, _: Version) -> io::Result<()> {
            Ok(())
        }

        fn settled(&mut self, _: &RunId) -> io::Result<()> {
            Ok(())
        }

        fn open_runs(&self) -> Vec<RecoveredRun> {
            Vec::new()
        }
    }

    #[test]
    fn of_notes_that_were_not_made_here_only_what_is_certain_is_kept() {
        let again = RunRecord { on_loss: OnLoss::Rerun, ..record("again", 0, "s") };
        let mut foreign = record("foreign", 0, "s");
        foreign.owner.node = NodeName::new("another");
        let mut state = JournalState::default();
        for record in [record("own", 0, "s"), again, foreign] {
            state.take(Entry::Begun { record: Box::new(record), version: Version(0), traces: Traces::default() });
        }
        let end = Box::new(success(record("ended", 0, "s")));
        state.take(Entry::Ended { end, version: Version(0) });
        let kept = |written| {
            let mut recovered = Recovered { written, ..state.recovered() };
            recovered.keep_own(&record("own", 0, "s").owner.node, &mut Blank).unwrap();
            recovered.runs.into_iter().map(|run| run.record.job.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(kept(Written::Here), ["again", "ended", "foreign", "own"]);
        assert_eq!(kept(Written::BeforeBoot), ["ended", "own"]);
        assert_eq!(kept(Written::Elsewhere), ["ended"]);
    }

    fn entry() -> impl Strategy<Value = Entry> {
        (0..4, 1..4u32).prop_map(|(kind, attempt)| match kind {
            0 => begun(attempt),
            1 => started(attempt, 77),
            2 => ended(attempt),
            _ => Entry::Settled(record("a", 0, "s").id()),
        })
    }

    proptest! {
        #[test]
        fn the_short_form_amounts_to_the_same(notes in prop::collection::vec(entry(), 0..12)) {
            let mut state = JournalState::default();
            notes.into_iter().for_each(|entry| state.take(entry));
            let mut again = JournalState::default();
            state.entries().into_iter().for_each(|entry| again.take(entry));
            prop_assert_eq!(again, state);
        }
    }
}
