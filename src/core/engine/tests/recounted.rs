//! Jobs that an operator has recounted, after a clock that was ahead.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use uuid::Uuid;

use super::fixture::*;
use crate::coordination::Request;
use crate::election;
use crate::engine::{Command, Event, Report};
use crate::job::{Job, JobName, Misfire, Overlap};
use crate::ledger::{self, Change, Commit, JobEntry, OperatorRequests, Snapshot};
use crate::process::{Exit, TreeId};
use crate::run::{
    Decisions, HistoryRecord, JobRecord, NotRecounted, Recount, RecountRequest, Recounted, RunId, Version,
};
use crate::term::SessionId;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// A leader with one job, `a`, and the ledger that it writes to.
struct Story {
    fixture: Fixture,
    record: JobRecord,
    version: Version,
    /// All that were ever begun.
    begun: BTreeSet<RunId>,
    in_flight: Vec<(TreeId, RunId)>,
    /// In the order of the writes.
    history: Vec<HistoryRecord>,
    history_limit: usize,
}

impl Story {
    fn new(job: Job, history_limit: usize) -> Self {
        let (_, JobEntry { record, version }) = entry(&job, at("10:00:30"), 0);
        let record = record.expect("it is readable");
        let fixture = Fixture::settled("10:00:30", vec![job]);
        let (begun, in_flight, history) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { fixture, record, version, begun, in_flight, history, history_limit }
    }

    fn pass(&mut self, seconds: u64) {
        self.fixture.pass(seconds);
        self.start_all();
    }

    fn set_clock(&mut self, by: SignedDuration) {
        self.fixture.now.wall += by;
        self.fixture.handle(Event::Tick);
        self.start_all();
        // A clock that was set back has the leader look, too.
        self.answer_reads();
    }

    /// Accepts all that the leader decides, and starts its runs.
    fn start_all(&mut self) {
        loop {
            for change in self.fixture.accept_all() {
                self.write(&change);
            }
            let starts = self.fixture.starts();
            self.fixture.commands.retain(|command| !matches!(command, Command::Start(_)));
            if starts.is_empty() {
                return;
            }
            for start in starts {
                self.fixture.started(start.tree_id);
                self.in_flight.push((start.tree_id, start.run.id()));
            }
        }
    }

    fn end_all(&mut self) {
        for (tree_id, _) in std::mem::take(&mut self.in_flight) {
            self.fixture.ended(tree_id, Exit::Code(0), None);
        }
        self.start_all();
    }

    fn write(&mut self, change: &Change) {
        match change {
            Change::Advance { at, record, skip, .. } => {
                self.write_job(*at, record);
                if let Some(skip) = skip {
                    let record = HistoryRecord::Skip(skip.skip.clone());
                    let is_taken = self.history.iter().any(|other| other.id() == record.id());
                    assert_eq!(is_taken, skip.at.is_some(), "{record:?}");
                    self.history.retain(|other| other.id() != record.id());
                    self.history.push(record);
                }
            }
            Change::Begin { at, record, run } => {
                self.write_job(Some(*at), record);
                assert!(self.begun.insert(run.id()), "begun twice: {}", run.id());
            }
            Change::End { end, .. } => self.history.push(HistoryRecord::Run(end.clone())),
            _ => {}
        }
        let is_run = |record: &&HistoryRecord| matches!(record, HistoryRecord::Run(_));
        if self.history.iter().filter(is_run).count() > self.history_limit {
            let first = self.history.iter().position(|record| is_run(&record)).expect("there are some");
            self.history.remove(first);
        }
    }

    fn write_job(&mut self, at: Option<Version>, record: &JobRecord) {
        assert_eq!(at, Some(self.version), "a leader that does not know of the recount");
        (self.record, self.version) = (record.clone(), self.version.next());
    }

    /// An operator has the job recounted, and the leader is notified.
    fn recount(&mut self) -> Result<Recounted, NotRecounted> {
        let mut decisions = Decisions::default();
        self.in_flight.iter().for_each(|(_, run)| decisions.add_in_flight(run.clone()));
        self.history.iter().for_each(|record| decisions.add_record(record));
        let request = RecountRequest {
            id: Uuid::from_u128(7),
            by: "alice".into(),
            at: self.fixture.now.wall,
            history_limit: self.history_limit,
        };
        let (record, done) = self.record.clone().recounted(&decisions, &request)?;
        (self.record, self.version) = (record, self.version.next());
        // The leader may have looked just now, and then waits a while.
        self.notify();
        self.fixture.pass(1);
        assert!(self.answer_reads() > 0, "the leader reads the record");
        self.start_all();
        Ok(done)
    }

    fn notify(&mut self) {
        self.fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(OperatorRequests::default())));
    }

    /// Answers the leader's reads of the record. Returns how many there were.
    fn answer_reads(&mut self) -> usize {
        let reads = self.fixture.commands.iter().filter(|command| is_read(command)).count();
        self.fixture.commands.retain(|command| !is_read(command));
        for _ in 0..reads {
            let entry = JobEntry { record: Some(self.record.clone()), version: self.version };
            self.fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry), None)));
        }
        reads
    }

    fn has_begun(&self, time: &str) -> bool {
        self.begun.contains(&RunId::scheduled(name("a"), at(time)))
    }
}

fn is_read(command: &Command) -> bool {
    matches!(command, Command::Ask(Request::Ledger(ledger::Request::ReadJob(_))))
}

fn times(instants: &[Timestamp]) -> Vec<String> {
    instants.iter().map(|at| at.to_string().replace("2026-11-20T", "").replace(":00Z", "")).collect()
}

/// A job of every minute, whose clock has been an hour ahead for three minutes.
fn silent() -> Story {
    let mut story = Story::new(job("a", "* * * * *"), 20);
    story.pass(30);
    story.end_all();
    story.set_clock(HOUR);
    story.end_all();
    for _ in 0..3 {
        story.pass(60);
        story.end_all();
    }
    story.set_clock(-HOUR);
    story
}

#[test]
fn a_silent_job_runs_again_at_its_next_time_and_nothing_runs_twice() {
    let mut story = silent();
    story.pass(60);
    assert_eq!((story.has_begun("10:04:00"), story.has_begun("10:05:00")), (false, false));
    let done = story.recount().unwrap();
    assert_eq!(times(&done.listed), ["11:01", "11:02", "11:03", "11:04"]);
    assert_eq!(story.fixture.engine.marks_ahead(story.fixture.now).count(), 0, "it is no error any more");
    let reports = story.fixture.reports();
    let is_told = |report: &Report| matches!(report, Report::Recounted { by, listed: 4, .. } if by == "alice");
    assert_eq!(reports.iter().filter(|report| is_told(report)).count(), 1, "{reports:?}");
    for _ in 0..90 {
        story.pass(60);
        story.end_all();
    }
    let all: Vec<Timestamp> = (0..90).map(|minute| at("10:06:00") + SignedDuration::from_mins(minute)).collect();
    let missing: Vec<_> =
        all.into_iter().filter(|&at| !story.begun.contains(&RunId::scheduled(name("a"), at))).collect();
    assert_eq!(times(&missing), [""; 0]);
    assert_eq!(story.record.recount.as_ref().map(|recount| recount.listed.len()), Some(0), "all are passed");
    assert!(
        !story.history.iter().any(|record| matches!(record, HistoryRecord::Skip(skip) if skip.first > at("10:05:00")))
    );
}

#[test]
fn what_is_shown_as_the_next_time_is_none_that_has_run_already() {
    let mut story = silent();
    story.recount().unwrap();
    story.set_clock(HOUR - SignedDuration::from_mins(4));
    // At 11:00, all that is due until 11:04 has run.
    let marks: Vec<_> = story.fixture.engine.marks_after(story.fixture.now.wall).map(|(_, mark)| mark).collect();
    assert_eq!(times(&marks), ["11:04"]);
}

#[test]
fn a_read_that_brings_nothing_new_changes_nothing() {
    let mut story = silent();
    story.fixture.commands.clear();
    story.fixture.pass(1);
    story.notify();
    assert_eq!(story.answer_reads(), 1);
    assert_eq!(story.fixture.commits(), []);
    story.notify();
    assert_eq!(story.answer_reads(), 0, "it has just been read");
    assert_eq!(story.fixture.engine.wake(story.fixture.now).up.map(|at| at > story.fixture.now.up), Some(true));
    story.fixture.pass(1);
    assert_eq!(story.answer_reads(), 1);
}

/// The service has lost what the leader wrote since, and operators have paused and resumed the job.
#[test]
fn a_recount_that_the_leader_has_read_does_not_count_again() {
    let mut story = silent();
    story.recount().unwrap();
    let record = story.record.clone();
    story.pass(60);
    story.end_all();
    let (mark, version) = (story.record.count(), story.version.next());
    assert!(record.count() < mark);
    story.fixture.commands.clear();
    let entry = JobEntry { record: Some(record), version };
    story.fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry), None)));
    assert!(!story.fixture.reports().iter().any(|report| matches!(report, Report::Recounted { .. })));
    match &story.fixture.commits()[..] {
        [(_, Change::Advance { at, record, skip: None, .. })] => {
            assert_eq!((*at, record.count()), (Some(version), mark));
        }
        other => panic!("{other:?}"),
    }
}

/// As one may be that an operator's pause has written again: its mark is far later than its own stamp.
#[test]
fn a_record_that_cannot_be_read_does_not_end_the_silence() {
    let mut story = silent();
    let entry = JobEntry { record: None, version: story.version.next() };
    story.fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry.clone()), None)));
    story.fixture.commands.clear();
    // Another definition is a reason to write the record.
    story.fixture.handle(Event::Loaded(set([job("a", "*/2 * * * *")])));
    let commits = story.fixture.commits();
    assert!(!commits.is_empty());
    for (id, _) in commits {
        story.fixture.answer(id, Commit::Superseded);
    }
    story.fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), Some(entry), None)));
    story.fixture.accept_all();
    story.fixture.pass(1_200);
    assert_eq!(begun(&story.fixture.accept_all()), [""; 0]);
}

#[test]
fn the_records_of_many_silent_jobs_are_read_a_few_at_a_time() {
    let jobs: Vec<Job> = (0..450).map(|n| job(&format!("j{n:03}"), "0 12 * * *")).collect();
    let entries = jobs.iter().map(|job| entry(job, at("10:00:00") + HOUR * 48, 0)).collect();
    let mut fixture = Fixture::leading("10:00:00", set(jobs), Snapshot { jobs: entries, ..Snapshot::default() });
    let reads = |fixture: &mut Fixture| {
        let commands = fixture.take().into_iter();
        let names = commands.filter_map(|command| match command {
            Command::Ask(Request::Ledger(ledger::Request::ReadJob(name))) => Some(name),
            _ => None,
        });
        names.collect::<BTreeSet<JobName>>()
    };
    reads(&mut fixture);
    fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(OperatorRequests::default())));
    let mut read = vec![reads(&mut fixture)];
    for _ in 0..3 {
        fixture.pass(1);
        read.push(reads(&mut fixture));
    }
    let counts: Vec<usize> = read.iter().map(BTreeSet::len).collect();
    assert_eq!(counts, [200, 200, 50, 0]);
    assert_eq!(read.iter().flatten().collect::<BTreeSet<_>>().len(), 450, "each of them once");
}

/// A leader that finds this record at 10:10:30.
fn found(job: Job, counted: &str, listed: &[&str]) -> Fixture {
    let (name, JobEntry { record, version }) = entry(&job, at(counted), 4);
    let until = at("11:00:00") + HOUR * 24;
    let recount = Recount { by: "alice".into(), until, listed: listed.iter().map(|time| at(time)).collect() };
    let record = record.map(|record| JobRecord {
        last_scheduled: until,
        counted: Some(at(counted)),
        recount: Some(Box::new(recount)),
        ..record
    });
    let jobs = [(name, JobEntry { record, version })].into();
    Fixture::leading("10:10:30", set([job]), Snapshot { jobs, ..Snapshot::default() })
}

#[test]
fn what_a_later_leader_records_as_missed_leaves_out_what_has_run() {
    let minutely = job("a", "* * * * *");
    let mut fixture = found(minutely.clone(), "10:05:00", &["10:06:00", "10:08:00", "10:10:00"]);
    let changes = fixture.accept_all();
    assert_eq!(skipped(&changes), ["missed 2026-11-20T10:07:00Z 2026-11-20T10:09:00Z 2"]);
    assert_eq!(begun(&changes), [""; 0], "10:10 has run already");
    let all = ["10:06:00", "10:07:00", "10:08:00", "10:09:00", "10:10:00"];
    let mut fixture = found(Job { misfire: Misfire::Skip, ..minutely.clone() }, "10:05:00", &all);
    assert_eq!(skipped(&fixture.accept_all()), [""; 0]);
    let run_all = Job {
        misfire: Misfire::RunAll,
        overlap: Overlap::Allow,
        misfire_window: Some(std::time::Duration::from_secs(3600)),
        ..minutely
    };
    let mut fixture = found(run_all, "10:05:00", &["10:06:00", "10:09:00"]);
    let changes = fixture.accept_all();
    assert_eq!(begun(&changes), ["a.20261120T100700Z", "a.20261120T100800Z", "a.20261120T101000Z"]);
    assert_eq!(skipped(&changes), [""; 0]);
}

#[test]
fn a_mark_that_was_recounted_is_kept_until_it_is_passed_and_is_no_error() {
    let mut fixture = found(job("a", "* * * * *"), "10:10:00", &["10:12:00"]);
    assert_eq!(fixture.engine.marks_ahead(fixture.now).count(), 0);
    fixture.pass(30);
    let changes = fixture.accept_all();
    let [Change::Begin { record, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!((record.last_scheduled, record.counted), (at("11:00:00") + HOUR * 24, Some(at("10:11:00"))));
    assert_eq!(record.recount.as_ref().map(|recount| times(&recount.listed)), Some(vec!["10:12".into()]));
}

/// The mark moves over what has run, which is refused. What was to be moved over then is still known.
#[test]
fn what_has_run_is_known_until_the_ledger_has_a_later_mark() {
    let mut fixture = found(job("a", "* * * * *"), "10:10:00", &["10:11:00", "10:12:00"]);
    fixture.pass(30);
    let commits = fixture.commits();
    let [(id, Change::Advance { .. })] = &commits[..] else { panic!("{commits:?}") };
    fixture.answer(*id, Commit::Superseded);
    // Somebody has removed the record.
    fixture.handle(Event::Ledger(ledger::Event::Job(name("a"), None, None)));
    let changes = fixture.accept_all();
    let Some(Change::Advance { at: None, record, .. }) = changes.first() else { panic!("{changes:?}") };
    assert_eq!(record.recount.as_ref().map(|it| times(&it.listed)), Some(vec!["10:11".into(), "10:12".into()]));
    assert_eq!(begun(&changes), [""; 0], "10:11 has run already");
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()), [""; 0], "10:12 has run already");
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T101300Z"]);
}

/// The service has forgotten the recount, and has the mark again that silenced the job.
#[test]
fn a_recount_that_the_service_has_lost_is_written_again() {
    let minutely = Job { overlap: Overlap::Allow, ..job("a", "* * * * *") };
    let mut fixture = found(minutely.clone(), "10:10:00", &["10:12:00"]);
    fixture.pass(30);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T101100Z"]);
    fixture.commands.clear();
    let session = SessionId("a".into());
    fixture.handle(Event::Election(election::Event::Resumed { session }));
    assert!(fixture.commands.iter().any(is_read), "{:?}", fixture.commands);
    let (name, old) = entry(&minutely, at("11:00:00") + HOUR * 24, 3);
    fixture.handle(Event::Ledger(ledger::Event::Job(name, Some(old), None)));
    let changes = fixture.accept_all();
    let [Change::Advance { at: Some(Version(3)), record, skip: None, .. }] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!((record.last_scheduled, record.count()), (at("11:00:00") + HOUR * 24, at("10:11:00")));
    assert_eq!(record.recount.as_ref().map(|it| times(&it.listed)), Some(vec!["10:12".into()]));
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()), [""; 0], "10:12 has run already");
    fixture.pass(60);
    assert_eq!(begun(&fixture.accept_all()), ["a.20261120T101300Z"]);
}

/// What happens to a job.
#[derive(Clone, Debug)]
enum Happens {
    Pass(u64),
    Jump(i64),
    End,
    Recount,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (1_u64..200).prop_map(Happens::Pass),
        1 => (-400_i64..400).prop_map(Happens::Jump),
        1 => (-400_i64..400).prop_map(|minutes| Happens::Jump(minutes * 60)),
        2 => Just(Happens::End),
        2 => Just(Happens::Recount),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..crate::fuzz::proptest_config() })]
    /// However often the clock is set and the job recounted, in whatever order. The story fails when a run is begun twice.
    #[test]
    fn no_recount_has_an_occurrence_begun_twice(
        happens in prop::collection::vec(happens(), 1..60), limit in prop_oneof![Just(3_usize), Just(6), Just(1_000)],
        allow in any::<bool>(), run_all in any::<bool>(),
    ) {
        let overlap = if allow { Overlap::Allow } else { Overlap::Skip };
        let misfire = if run_all { Misfire::RunAll } else { Misfire::RunOnce };
        let mut story = Story::new(Job { overlap, misfire, ..job("a", "* * * * *") }, limit);
        for happens in happens {
            match happens {
                Happens::Pass(seconds) => story.pass(seconds),
                Happens::Jump(seconds) => story.set_clock(SignedDuration::from_secs(seconds)),
                Happens::End => story.end_all(),
                Happens::Recount => drop(story.recount()),
            }
        }
    }
}
