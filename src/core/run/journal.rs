//! The journal of a node's own runs.
//!
//! The node's next process, or its successor on the same host, reads it to find out what was left behind. The ledger
//! records what was decided; the journal records what was *done* on this host: which process belongs to a run, and
//! which ends could not be committed yet, and which attempts are over. It must survive the death of the process but not that of the host: when the
//! host dies, its processes die too, and the ledger then says "begun, end unknown". An implementation of [`Journal`]
//! decides where the entries are stored.
//!
//! A service can forget what it has acknowledged, and then have a run in flight whose end it had. So the journal
//! remembers the attempts that are over for a while: such a run is not taken for one that was never started, and gets
//! the end that it had.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    BeginNote, KnownBy, LONGEST_HOLD, OnLoss, Outcome, OverAttempt, OverAttempts, Reason, RunEnd, RunId, RunRecord,
    Traces, Version,
};
use crate::clock::Uptime;
use crate::term::NodeName;

/// One entry of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// A begin was accepted; the process is started next.
    Begun {
        record: Box<RunRecord>,
        /// Version of its record in the ledger.
        version: Version,
        /// Identifies the processes about to be started.
        #[serde(default)]
        traces: Traces,
    },
    Started {
        run: RunId,
        attempt: u32,
        /// Pid of the main process.
        pid: i32,
        /// Start time of that process in clock ticks since boot, which distinguishes it from a later process with the
        /// same pid.
        start_time: u64,
        /// How its processes are identified, if this differs from the `traces` recorded before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        known_by: Option<KnownBy>,
    },
    /// The run ended, and the end is not yet in the ledger. Appears without [`Started`](JournalEntry::Started) if the
    /// begin was accepted but no process was started.
    Ended {
        end: Box<RunEnd>,
        /// Version of its record in the ledger.
        version: Version,
    },
    /// Nothing is left to do for the run on this host: its attempt is over, and the ledger has that.
    Settled(RunId),
    /// The attempt was never started, and this host no longer has it.
    Unstarted(RunId),
    /// An attempt that is over, in a rewritten journal.
    Over(Box<OverAttempt>),
    /// Attempts that are over and that began until then may be forgotten.
    Forgotten { begun_until: Timestamp },
}

/// A run that was not settled at the end of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoveredRun {
    /// Its record when the attempt began here.
    pub record: RunRecord,
    /// Version of its record in the ledger at that time.
    pub version: Version,
    /// Pid and start time of its main process. `None` if no process was started or recorded, or if the journal was not
    /// written here.
    pub pid: Option<(i32, u64)>,
    /// Identifies its processes.
    pub traces: Traces,
    /// Its end, if it ended. The ledger may not have it yet.
    pub end: Option<RunEnd>,
}

/// Where a journal was written, relative to the process that reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Written {
    /// By an earlier process of this node, in this boot.
    #[default]
    Here,
    /// In another boot of this host, or on another host. None of its processes can be running here.
    BeforeBoot,
    /// In this boot, by a process with another state directory. The journal is a copy, and its writer may still be
    /// running.
    Elsewhere,
    /// There is no journal, so the absence of an entry proves nothing.
    Nowhere,
}

/// The state that a journal's entries add up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// The runs that were not settled, ordered by id.
    pub runs: Vec<RecoveredRun>,
    pub written: Written,
    pub over: OverAttempts,
}

/// The attempts in the journal: the newest of each unsettled run, and those that are over.
///
/// A node records every attempt before it hands it to its warden, so an attempt that is missing was never started.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Noted {
    open: BTreeMap<RunId, u32>,
    over: OverAttempts,
}

impl Noted {
    /// True if no process was ever started for this attempt. Valid only for a run of the node that wrote the journal,
    /// in the same boot.
    pub fn never_started(&self, run: &RunRecord) -> bool {
        self.open.get(&run.id()).is_none_or(|&attempt| attempt < run.attempt) && !self.over.may_include(run)
    }

    /// The end of an attempt that the ledger had, and has forgotten since.
    pub fn end_of(&self, run: &RunRecord) -> Option<RunEnd> {
        self.over.end_of(run)
    }
}

impl Recovered {
    /// The attempts handed to a warden here; `None` if the journal cannot prove what was not.
    pub fn noted(&self) -> Option<Noted> {
        let open = self.runs.iter().map(|run| (run.record.id(), run.record.attempt));
        (self.written == Written::Here).then(|| Noted { open: open.collect(), over: self.over.clone() })
    }

    /// Drops the runs whose programs did not begin: their notes are among those that `unbegun` has, or their main
    /// processes are known and dead, and their time has not come.
    ///
    /// The caller must know that their processes were dead at `now`. Returns the dropped runs: as no journal records them
    /// any more, they count as never started. A run whose process is not recorded stays, unless `unbegun` has its note: a
    /// warden that hangs may still hold it.
    pub fn drop_unbegun(&mut self, now: Uptime, unbegun: &BTreeSet<BeginNote>) -> Vec<RunId> {
        // An uptime further ahead is not of this host's clock.
        let is_to_come = |at: Uptime| at > now && at.since(now) <= LONGEST_HOLD;
        let is_to_come = |run: &RecoveredRun| run.traces.not_before.is_some_and(is_to_come);
        let is_held = |run: &RecoveredRun| run.pid.is_some() && is_to_come(run);
        let is_noted = |run: &RecoveredRun| run.traces.begin.as_ref().is_some_and(|note| unbegun.contains(note));
        let is_unbegun = |run: &RecoveredRun| run.end.is_none() && (is_held(run) || is_noted(run));
        let (dropped, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.runs).into_iter().partition(is_unbegun);
        self.runs = others;
        dropped.iter().map(|run| run.record.id()).collect()
    }

    /// The ends that the ledger may not have yet.
    pub fn ends(&self) -> Vec<RunEnd> {
        self.runs.iter().filter_map(|run| run.end.clone()).collect()
    }

    /// Drops the runs that the leader must decide about, not this node.
    ///
    /// These are runs from a journal that was not written here which may be alive on another node, or which the leader
    /// begins again anyway. A known end is always kept.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn keep_own(&mut self, node: &NodeName, journal: &mut impl Journal) -> io::Result<()> {
        let is_own = |run: &RecoveredRun| match self.written {
            _ if run.end.is_some() => true,
            Written::Here => true,
            Written::BeforeBoot => run.record.owner.node == *node && run.record.on_loss != OnLoss::Rerun,
            Written::Elsewhere | Written::Nowhere => false,
        };
        let (own, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.runs).into_iter().partition(is_own);
        self.runs = own;
        if self.written == Written::BeforeBoot {
            let own = others.iter().filter(|run| run.record.owner.node == *node);
            own.for_each(|run| self.over.remember(OverAttempt::of(&run.record, None)));
        }
        others.iter().try_for_each(|run| journal.settled(&run.record.id()))
    }

    /// Records an end for every run without one. The caller must know that their processes are dead.
    ///
    /// The end is written to the journal, so that every later process reports the same one; the ledger may already have
    /// it. A run that is begun again after a loss gets no end, because that is the leader's decision.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn end_dead(&mut self, journal: &mut impl Journal, now: Timestamp) -> io::Result<()> {
        for run in self.runs.iter_mut().filter(|run| run.end.is_none() && run.record.on_loss != OnLoss::Rerun) {
            let end = RunEnd::unseen(&run.record, Outcome::Interrupted, Some(Reason::NodeDied), now);
            journal.ended(&end, run.version)?;
            run.end = Some(end);
        }
        Ok(())
    }
}

/// Storage for journal entries. Each entry is stored before the call returns.
pub trait Journal: Send {
    /// Stores an entry.
    ///
    /// # Errors
    /// If it could not be stored.
    fn store(&mut self, entry: JournalEntry) -> io::Result<()>;

    /// Records an accepted begin, before its process starts.
    ///
    /// # Errors
    /// If the entry could not be stored; then the process must not be started.
    fn begun(&mut self, record: &RunRecord, version: Version, traces: &Traces) -> io::Result<()> {
        self.store(JournalEntry::Begun { record: Box::new(record.clone()), version, traces: traces.clone() })
    }

    /// Records a started process.
    ///
    /// # Errors
    /// If the entry could not be stored.
    fn started(&mut self, run: &RunId, attempt: u32, pid: i32, start_time: u64, known_by: &KnownBy) -> io::Result<()> {
        let known_by = Some(known_by.clone());
        self.store(JournalEntry::Started { run: run.clone(), attempt, pid, start_time, known_by })
    }

    /// Records an end that is about to be committed.
    ///
    /// # Errors
    /// If the entry could not be stored.
    fn ended(&mut self, end: &RunEnd, version: Version) -> io::Result<()> {
        self.store(JournalEntry::Ended { end: Box::new(end.clone()), version })
    }

    /// Records that the ledger has everything about a run.
    ///
    /// # Errors
    /// If the entry could not be stored.
    fn settled(&mut self, run: &RunId) -> io::Result<()> {
        self.store(JournalEntry::Settled(run.clone()))
    }

    /// Records that the attempt of a run never had a process.
    ///
    /// # Errors
    /// If the entry could not be stored.
    fn unstarted(&mut self, run: &RunId) -> io::Result<()> {
        self.store(JournalEntry::Unstarted(run.clone()))
    }

    /// The recorded runs that are not settled.
    fn open_runs(&self) -> Vec<RecoveredRun>;
}

/// The state that journal entries add up to.
///
/// It accepts any sequence of entries: one that contradicts earlier entries changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalState {
    open: BTreeMap<RunId, RecoveredRun>,
    written: Written,
    over: OverAttempts,
}

impl JournalState {
    /// Applies one entry.
    pub fn take(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::Begun { record, version, traces } => {
                self.open.insert(record.id(), RecoveredRun { record: *record, version, pid: None, traces, end: None });
            }
            JournalEntry::Started { run, attempt, pid, start_time, known_by } => {
                if let Some(open) = self.open.get_mut(&run).filter(|open| open.record.attempt == attempt) {
                    open.pid = Some((pid, start_time));
                    open.traces.known_by = known_by.unwrap_or(std::mem::take(&mut open.traces.known_by));
                }
            }
            JournalEntry::Ended { end, version } => self.end(*end, version),
            JournalEntry::Settled(run) => {
                if let Some(RecoveredRun { record, end, .. }) = self.open.remove(&run) {
                    self.over.remember(OverAttempt::of(&record, end.as_ref()));
                }
            }
            JournalEntry::Unstarted(run) => {
                self.open.remove(&run);
            }
            JournalEntry::Over(over) => self.over.remember(*over),
            JournalEntry::Forgotten { begun_until } => self.over.forget_until(begun_until),
        }
    }

    /// An end creates a missing attempt. The end of an attempt before the recorded one is ignored.
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

    /// Sets where the journal was written. If that is not here, forgets all processes, because their pids are not valid
    /// here.
    pub fn found(&mut self, written: Written) {
        self.written = written;
        if written != Written::Here {
            for open in self.open.values_mut() {
                open.pid = None;
                open.traces = open.traces.elsewhere();
            }
        }
    }

    /// Number of open runs and of remembered attempts.
    pub fn len(&self) -> usize {
        self.open.len() + self.over.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shortest sequence of entries that adds up to this state.
    pub fn entries(&self) -> Vec<JournalEntry> {
        let forgotten = self.over.forgotten_until().map(|begun_until| JournalEntry::Forgotten { begun_until });
        let over = self.over.iter().map(|over| JournalEntry::Over(Box::new(over.clone())));
        let open = self.open.iter().flat_map(|(id, open)| entries_of(id, open));
        forgotten.into_iter().chain(over).chain(open).collect()
    }

    /// The open runs, and where they were recorded.
    pub fn recovered(&self) -> Recovered {
        Recovered { runs: self.open.values().cloned().collect(), written: self.written, over: self.over.clone() }
    }
}

fn entries_of(id: &RunId, open: &RecoveredRun) -> Vec<JournalEntry> {
    let attempt = open.record.attempt;
    let (record, traces) = (Box::new(open.record.clone()), open.traces.clone());
    let begun = JournalEntry::Begun { record, version: open.version, traces };
    let started =
        |(pid, start_time)| JournalEntry::Started { run: id.clone(), attempt, pid, start_time, known_by: None };
    let started = open.pid.map(started);
    let ended = open.end.clone().map(|end| JournalEntry::Ended { end: Box::new(end), version: open.version });
    [Some(begun), started, ended].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_records::{NullJournal, record, success};

    fn begun(attempt: u32) -> JournalEntry {
        let record = Box::new(RunRecord { attempt, ..record("a", 0, "s") });
        JournalEntry::Begun { record, version: Version(3), traces: Traces { uid: Some(7), ..Traces::default() } }
    }

    fn started(attempt: u32, pid: i32) -> JournalEntry {
        let known_by = Some(KnownBy::AuditSession(attempt));
        JournalEntry::Started { run: record("a", 0, "s").id(), attempt, pid, start_time: 9, known_by }
    }

    #[test]
    fn a_new_attempt_does_not_inherit_the_process_of_the_last() {
        let mut state = JournalState::default();
        for entry in [begun(1), started(1, 77), begun(2), started(1, 78)] {
            state.take(entry);
        }
        let runs = state.recovered().runs;
        assert_eq!((runs.len(), runs[0].record.attempt, runs[0].pid), (1, 2, None));
    }

    #[test]
    fn the_identity_of_processes_is_forgotten_after_a_reboot() {
        let mut state = JournalState::default();
        [begun(1), started(1, 77)].into_iter().for_each(|entry| state.take(entry));
        let traces = |state: &JournalState| state.recovered().runs[0].traces.clone();
        assert_eq!(traces(&state), Traces { uid: Some(7), known_by: KnownBy::AuditSession(1), ..Traces::default() });
        state.found(Written::BeforeBoot);
        assert_eq!(traces(&state), Traces { uid: Some(7), ..Traces::default() });
    }

    #[test]
    fn a_run_that_died_before_its_time_never_started() {
        let (due, before) = (Uptime::from_nanos(10), Uptime::from_nanos(9));
        let held = |not_before| {
            let mut begun = begun(1);
            if let JournalEntry::Begun { traces, .. } = &mut begun {
                traces.not_before = not_before;
            }
            begun
        };
        let state = |entries: Vec<JournalEntry>| {
            let mut state = JournalState::default();
            state.found(Written::Here);
            entries.into_iter().for_each(|entry| state.take(entry));
            state
        };
        let never_started = |state: &JournalState, now| {
            let mut recovered = state.recovered();
            let dropped = recovered.drop_unbegun(now, &BTreeSet::new()).len();
            assert_eq!(dropped + recovered.runs.len(), 1);
            recovered.noted().unwrap().never_started(&record("a", 0, "s"))
        };
        let known = state(vec![held(Some(due)), started(1, 77)]);
        assert!(never_started(&known, before) && !never_started(&known, due));
        assert!(!never_started(&state(vec![held(Some(due))]), before), "nobody knows its process");
        assert!(!never_started(&state(vec![held(None), started(1, 77)]), before), "it was not held");
        let mut elsewhere = known;
        elsewhere.found(Written::BeforeBoot);
        let dropped = elsewhere.recovered().drop_unbegun(before, &BTreeSet::new());
        assert!(dropped.is_empty(), "uptimes of another boot mean nothing");
    }

    #[test]
    fn a_run_of_which_it_is_noted_that_it_did_not_begin_never_started_unless_it_has_an_end() {
        let note = |tree| BeginNote { file: "begins.7".into(), tree };
        let noted = |attempt: u32| match begun(attempt) {
            JournalEntry::Begun { record, version, traces } => {
                let traces = Traces { begin: Some(note(attempt.into())), ..traces };
                JournalEntry::Begun { record, version, traces }
            }
            entry => entry,
        };
        let is_dropped = |entries: Vec<JournalEntry>, unbegun| {
            let mut state = JournalState::default();
            entries.into_iter().for_each(|entry| state.take(entry));
            !state.recovered().drop_unbegun(Uptime::ZERO, &BTreeSet::from([note(unbegun)])).is_empty()
        };
        assert!(is_dropped(vec![noted(1)], 1) && is_dropped(vec![noted(1), started(1, 77)], 1));
        assert!(!is_dropped(vec![noted(1), ended(1)], 1));
        assert!(!is_dropped(vec![noted(2), started(2, 77)], 1), "that was an earlier attempt");
        assert!(!is_dropped(vec![begun(1)], 1), "it has no note");
    }

    #[test]
    fn entries_of_an_older_version_are_read() {
        let record = serde_json::to_value(record("a", 0, "s")).unwrap();
        let begun = serde_json::json!({ "begun": { "record": record, "version": 3 } });
        let started =
            serde_json::json!({ "started": { "run": "a.19700101T000000Z", "attempt": 1, "pid": 7, "start_time": 9 } });
        let mut state = JournalState::default();
        [begun, started].into_iter().for_each(|entry| state.take(serde_json::from_value(entry).unwrap()));
        let run = state.recovered().runs.remove(0);
        assert_eq!((run.pid, run.traces), (Some((7, 9)), Traces::default()));
    }

    fn ended(attempt: u32) -> JournalEntry {
        let run = RunRecord { attempt, ..record("a", 0, "s") };
        JournalEntry::Ended { end: Box::new(success(run)), version: Version(5) }
    }

    /// The service may forget an end that it has acknowledged.
    #[test]
    fn an_attempt_that_is_over_is_never_taken_for_one_that_never_started() {
        let run = |attempt| RunRecord { attempt, ..record("a", 0, "s") };
        let noted = |last: JournalEntry| {
            let mut state = JournalState::default();
            [begun(2), started(2, 77), ended(2), last].into_iter().for_each(|entry| state.take(entry));
            let mut again = JournalState::default();
            state.entries().into_iter().for_each(|entry| again.take(entry));
            assert!(state.recovered().runs.is_empty() && again == state);
            state.recovered().noted().unwrap()
        };
        let over = noted(JournalEntry::Settled(run(2).id()));
        assert_eq!([1, 2, 3].map(|attempt| over.never_started(&run(attempt))), [false, false, true]);
        assert_eq!(over.end_of(&run(2)), Some(success(run(2))).map(|end| RunEnd { tail: String::new(), ..end }));
        assert_eq!(over.end_of(&run(3)), None);
        let unstarted = noted(JournalEntry::Unstarted(run(2).id()));
        assert!(unstarted.never_started(&run(2)) && unstarted.end_of(&run(2)).is_none());
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
    fn the_end_of_an_earlier_attempt_is_ignored() {
        let mut state = JournalState::default();
        [begun(2), ended(1)].into_iter().for_each(|entry| state.take(entry));
        assert_eq!(state.recovered().runs[0].end, None);
    }

    #[test]
    fn of_a_journal_not_written_here_only_certain_runs_are_kept() {
        let again = RunRecord { on_loss: OnLoss::Rerun, ..record("again", 0, "s") };
        let mut foreign = record("foreign", 0, "s");
        foreign.owner.node = NodeName::new("another");
        let mut state = JournalState::default();
        for record in [record("own", 0, "s"), again, foreign] {
            state.take(JournalEntry::Begun {
                record: Box::new(record),
                version: Version(0),
                traces: Traces::default(),
            });
        }
        let end = Box::new(success(record("ended", 0, "s")));
        state.take(JournalEntry::Ended { end, version: Version(0) });
        let kept = |written| {
            let mut recovered = Recovered { written, ..state.recovered() };
            recovered.keep_own(&record("own", 0, "s").owner.node, &mut NullJournal).unwrap();
            recovered.runs.into_iter().map(|run| run.record.job.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(kept(Written::Here), ["again", "ended", "foreign", "own"]);
        assert_eq!(kept(Written::BeforeBoot), ["ended", "own"]);
        assert_eq!(kept(Written::Elsewhere), ["ended"]);
    }

    fn entry() -> impl Strategy<Value = JournalEntry> {
        (0..5, 1..4u32).prop_map(|(kind, attempt)| match kind {
            0 => begun(attempt),
            1 => started(attempt, 77),
            2 => ended(attempt),
            3 => JournalEntry::Unstarted(record("a", 0, "s").id()),
            _ => JournalEntry::Settled(record("a", 0, "s").id()),
        })
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn the_shortest_sequence_adds_up_to_the_same_state(entries in prop::collection::vec(entry(), 0..12)) {
            let mut state = JournalState::default();
            entries.into_iter().for_each(|entry| state.take(entry));
            let mut again = JournalState::default();
            state.entries().into_iter().for_each(|entry| again.take(entry));
            prop_assert_eq!(again, state);
        }
    }
}
