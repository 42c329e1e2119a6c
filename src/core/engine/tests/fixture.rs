//! An engine with a clock moved by hand, and helpers for its events and commands.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Now, Uptime};
use crate::coordination::Request;
use crate::engine::runs::keep_until;
use crate::engine::{Command, Engine, Event, Report, Start};
use crate::job::{Digest, Job, JobName, JobSet};
use crate::ledger::{Change, Commit, CommitId, JobEntry, LastSuccess, RunLookup, Running, Snapshot};
use crate::process::{Ending, Exit, Notice, TreeId};
use crate::run::journal::RecoveredRun;
use crate::run::{
    JobRecord, KnownBy, Nonce, OnLoss, OverAttempts, Owner, Parameters, Past, RunId, RunRecord, RunState, Version,
};
use crate::term::{CandidateName, FencingToken, NodeName, SessionId, Term};
pub use crate::test_records::job;
use crate::{election, ledger};

/// Half of the session timeout of the tests.
pub const LEASE: Duration = Duration::from_secs(5);

pub fn at(text: &str) -> Timestamp {
    format!("2026-11-20T{text}Z").parse().unwrap()
}

/// The start of a process whose journal lists these runs as open.
pub fn recovered_runs(runs: Vec<RecoveredRun>) -> Event {
    Event::Recovered { runs, over: OverAttempts::default() }
}

pub fn name(job: &str) -> JobName {
    JobName::parse(job).unwrap()
}

pub fn set(jobs: impl IntoIterator<Item = Job>) -> JobSet {
    let jobs = jobs.into_iter().map(|job| (job.name.clone(), Arc::new(job))).collect();
    JobSet::new(jobs, Digest::of(b"set"))
}

/// `jobs/<job>` as an earlier leader left it.
pub fn entry(job: &Job, mark: Timestamp, version: i32) -> (JobName, JobEntry) {
    let schedule = Some(job.schedule_digest(mark));
    let record = JobRecord { schedule, counted: Some(mark), ..JobRecord::new(mark, Nonce("1-1".into())) };
    (job.name.clone(), JobEntry { record: Some(record), version: Version(version) })
}

/// A run in flight as an earlier leader, `host-b`, left it.
pub fn running(job: &Job, scheduled_at: Timestamp, owner: ledger::OwnerState) -> Running {
    let record = RunRecord {
        v: 1,
        job: job.name.clone(),
        scheduled_at,
        trigger: None,
        on: None,
        share_among: None,
        parameters: Parameters::default(),
        state: RunState::Running,
        owner: Owner { node: NodeName::new("host-b"), session: SessionId("b".into()) },
        token: FencingToken(7),
        attempt: 1,
        nonce: Nonce("7-1".into()),
        begun_at: scheduled_at,
        on_loss: OnLoss::of(job),
        keep_until: keep_until(job, job, scheduled_at, scheduled_at),
        ready_at: None,
        no_node_since: None,
        retry_at: None,
        past: Past::default(),
        dependents: Vec::new(),
        notify: std::collections::BTreeSet::new(),
        placement: None,
        kill: None,
    };
    Running { record, version: Version(0), owner }
}

pub struct Fixture {
    pub engine: Engine,
    pub now: Now,
    /// All commands since they were last taken.
    pub commands: Vec<Command>,
}

impl Fixture {
    pub fn new(wall: &str, jobs: JobSet) -> Self {
        let now = Now { wall: at(wall), up: Uptime::ZERO + Duration::from_secs(1000) };
        Self { engine: Engine::new(NodeName::new("host-a"), jobs), now, commands: Vec::new() }
    }

    /// A node that leads with a fresh lease, and with the ledger as in `snapshot`.
    pub fn leading(wall: &str, jobs: JobSet, snapshot: Snapshot) -> Self {
        let mut fixture = Self::new(wall, jobs);
        fixture.join();
        fixture.elect(9, snapshot);
        fixture
    }

    /// A node that leads, and whose jobs are all decided on until now.
    pub fn settled(wall: &str, jobs: Vec<Job>) -> Self {
        let entries = jobs.iter().map(|job| entry(job, at(wall), 0)).collect();
        let mut fixture = Self::leading(wall, set(jobs), Snapshot { jobs: entries, ..Snapshot::default() });
        fixture.commands.clear();
        fixture
    }

    pub fn join(&mut self) {
        let session = election::Event::Session { id: SessionId("a".into()), timeout: LEASE * 2 };
        self.handle(Event::Election(session));
    }

    pub fn elect(&mut self, token: i64, snapshot: Snapshot) {
        let term = Self::term(token);
        let snapshot = Box::new(snapshot);
        let (lease_until, took) = (self.now.up + LEASE, Duration::from_millis(3));
        self.handle(Event::Election(election::Event::Elected { term, lease_until, snapshot, took }));
    }

    pub fn term(token: i64) -> Term {
        Term { token: FencingToken(token), candidate: CandidateName(format!("_c_a-lock-{token:010}")) }
    }

    /// Whatever the records say, no attempt has parameters that its job does not take.
    pub fn handle(&mut self, event: Event) {
        let commands = self.engine.handle(self.now, event);
        for command in &commands {
            let Command::Start(start) = command else { continue };
            assert_eq!(start.run.parameters.fit(&start.job), Ok(()), "{start:?}");
        }
        self.commands.extend(commands);
    }

    /// Time passes; the lease is renewed.
    pub fn pass(&mut self, seconds: u64) {
        self.pass_by(Duration::from_secs(seconds));
    }

    /// Time passes; the lease is renewed.
    pub fn pass_by(&mut self, by: Duration) {
        self.pass_cut_off_by(by);
        let until = self.now.up + LEASE;
        self.handle(Event::Election(election::Event::Lease { until }));
    }

    /// Time passes, and the lease is not renewed.
    pub fn pass_cut_off(&mut self, seconds: u64) {
        self.pass_cut_off_by(Duration::from_secs(seconds));
    }

    pub fn pass_cut_off_by(&mut self, by: Duration) {
        self.now = Now { wall: self.now.wall + by, up: self.now.up + by };
        self.handle(Event::Tick);
    }

    pub fn take(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// The commits requested since the commands were last taken; drops all other commands.
    pub fn commits(&mut self) -> Vec<(CommitId, Change)> {
        let requested = self.take().into_iter().filter_map(|command| match command {
            Command::Ask(Request::Ledger(ledger::Request::Commit { id, change })) => Some((id, change)),
            _ => None,
        });
        requested.collect()
    }

    pub fn answer(&mut self, id: CommitId, answer: Commit) {
        self.handle(Event::Ledger(ledger::Event::Answered { id, answer, before: None, token: None }));
    }

    /// The answer to a read of a job's last success.
    pub fn succeeded(&mut self, job: &str, success: LastSuccess) {
        self.handle(Event::Ledger(ledger::Event::LastSuccesses([(name(job), success)].into())));
    }

    /// Accepts all requested commits, until no more are requested.
    pub fn accept_all(&mut self) -> Vec<Change> {
        let mut accepted = Vec::new();
        let mut others = Vec::new();
        loop {
            let commands = self.take();
            let (commits, rest): (Vec<_>, Vec<_>) = commands
                .into_iter()
                .partition(|command| matches!(command, Command::Ask(Request::Ledger(ledger::Request::Commit { .. }))));
            others.extend(rest);
            if commits.is_empty() {
                self.commands = others;
                return accepted;
            }
            for commit in commits {
                if let Command::Ask(Request::Ledger(ledger::Request::Commit { id, change })) = commit {
                    accepted.push(change);
                    self.answer(id, Commit::Accepted);
                }
            }
        }
    }

    /// The answer to a look-up of a run, which must have been requested.
    pub fn looked_up(&mut self, run: &RunId, found: RunLookup) {
        let asked = Command::Ask(Request::Ledger(ledger::Request::ReadAgain(run.clone())));
        assert!(self.commands.contains(&asked), "{:?}", self.commands);
        self.handle(Event::Ledger(ledger::Event::Again(run.clone(), found)));
    }

    pub fn starts(&self) -> Vec<Start> {
        let starts = self.commands.iter().filter_map(|command| match command {
            Command::Start(start) => Some(start.as_ref().clone()),
            _ => None,
        });
        starts.collect()
    }

    pub fn reports(&self) -> Vec<Report> {
        let reports = self.commands.iter().filter_map(|command| match command {
            Command::Report(report) => Some(report.clone()),
            _ => None,
        });
        reports.collect()
    }

    pub fn started(&mut self, tree_id: TreeId) {
        let at = self.now.up;
        self.handle(Event::Warden(Notice::Started { tree_id, pid: 4242, at, known_by: KnownBy::default() }));
    }

    /// Accepts and starts all due runs, however many are begun at a time. Returns the changes, and the tree ids in
    /// order.
    pub fn start_all(&mut self) -> (Vec<Change>, Vec<TreeId>) {
        let (mut changes, mut tree_ids) = (Vec::new(), Vec::new());
        loop {
            changes.extend(self.accept_all());
            let new: Vec<TreeId> =
                self.starts().iter().map(|start| start.tree_id).filter(|tree_id| !tree_ids.contains(tree_id)).collect();
            if new.is_empty() {
                return (changes, tree_ids);
            }
            self.commands.retain(|command| !matches!(command, Command::Start(_)));
            new.iter().for_each(|&tree_id| self.started(tree_id));
            tree_ids.extend(new);
        }
    }

    pub fn ended(&mut self, tree_id: TreeId, exit: Exit, ended_by: Option<crate::process::EndedBy>) {
        let ending = self.ending(tree_id, exit, ended_by);
        self.handle(Event::Warden(Notice::Ended(Box::new(ending))));
    }

    pub fn ending(&self, tree_id: TreeId, exit: Exit, ended_by: Option<crate::process::EndedBy>) -> Ending {
        let (at, tail) = (self.now.up, "bye\n".into());
        Ending { tree_id, exit, ended_by, at, leftovers: 0, tail, dropped_bytes: 0, unsent: None, out_of_memory: false }
    }
}

/// The ids of the runs that these changes begin.
pub fn begun(changes: &[Change]) -> Vec<String> {
    let ids = changes.iter().filter_map(|change| match change {
        Change::Begin { run, .. } => Some(run.id().to_string()),
        _ => None,
    });
    ids.collect()
}

/// The skips that these changes write, as `reason first last count`.
pub fn skipped(changes: &[Change]) -> Vec<String> {
    let skips = changes.iter().filter_map(|change| match change {
        Change::Advance { skip: Some(write), .. } => {
            let skip = &write.skip;
            Some(format!("{} {} {} {}", skip.reason.as_str(), skip.first, skip.last, skip.count))
        }
        _ => None,
    });
    skips.collect()
}

/// A leader whose run of `job`, due at 10:00:01, has just started.
pub fn running_one(job: Job) -> (Fixture, TreeId) {
    let mut fixture = Fixture::settled("10:00:00", vec![job]);
    fixture.pass(1);
    fixture.accept_all();
    let tree_id = fixture.starts()[0].tree_id;
    fixture.started(tree_id);
    fixture.commands.clear();
    (fixture, tree_id)
}
