//! A fake ledger, and the engine that leads on it.
//!
//! The [`FakeLedger`] accepts a write whose guards hold, and logs its effect; the [`Cluster`] answers its leader from
//! it, as often as the test wants, and replaces the leader.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::coordination::Request;
use crate::engine::tests::fixture::*;
use crate::engine::{Command, Event};
use crate::job::{Job, JobName, JobSet};
use crate::ledger::{
    self, Change, Commit, ControlEntry, JobEntry, OperatorRequests, OwnerState, Running, Snapshot, TriggerEntry,
};
use crate::process::{Exit, TreeId};
use crate::run::{ControlRecord, JobRecord, Link, Pause, RunId, RunRecord, TriggerRecord, TriggerSeq, Version};

/// A ledger that accepts a write if its guards hold.
#[derive(Default)]
pub struct FakeLedger {
    pub jobs: BTreeMap<JobName, (JobRecord, Version)>,
    control: BTreeMap<JobName, ControlEntry>,
    pub running: BTreeMap<RunId, (RunRecord, Version)>,
    pub triggers: BTreeMap<TriggerSeq, TriggerRecord>,
    pub links: BTreeMap<TriggerSeq, Link>,
    pub last: u64,
    /// The effects of accepted writes, in order.
    log: Vec<String>,
}

impl FakeLedger {
    fn apply(&mut self, change: &Change) -> Commit {
        if !self.write(change) {
            return Commit::Superseded;
        }
        for link in change.links() {
            self.last += 1;
            self.links.insert(TriggerSeq(self.last), link);
        }
        Commit::Accepted
    }

    fn write(&mut self, change: &Change) -> bool {
        match change {
            Change::Advance { job, at, record, skip } => {
                self.log_skip(skip.as_ref().map(|write| (&write.skip, write.skip.count)));
                self.mark(job, *at, record)
            }
            Change::Begin { at, record, run } => self.mark(&run.job, Some(*at), record) && self.begin(run),
            Change::BeginTriggered { run } => {
                run.trigger.as_ref().is_some_and(|trigger| self.triggers.remove(&trigger.seq).is_some())
                    && self.begin(run)
            }
            Change::BeginDownstream { mark, run, links } => {
                let stands = mark.as_ref().is_none_or(|(at, _)| self.version(&run.job) == Some(*at));
                if !stands || !self.take(links) {
                    return false;
                }
                mark.as_ref().is_none_or(|(at, record)| self.mark(&run.job, Some(*at), record)) && self.begin(run)
            }
            Change::DropLinks { links, skip, .. } => {
                if !self.take(links) {
                    return false;
                }
                self.log_skip(skip.as_ref().map(|skip| (skip, skip.count)));
                true
            }
            Change::UpdateRun { at, run, .. }
            | Change::RewriteRun { at, run, .. }
            | Change::Accept { at, run }
            | Change::Refuse { at, run }
            | Change::ChangeOwner { at, run }
            | Change::Kill { at, run } => {
                let known = self.running.get_mut(&run.id()).filter(|(_, version)| version == at);
                known.map(|known| *known = (run.clone(), at.next())).is_some()
            }
            Change::End { at, end, .. } => {
                let stands = self.running.get(&end.run.id()).is_some_and(|(_, version)| version == at);
                self.running.retain(|run, _| !stands || *run != end.run.id());
                self.log.extend(stands.then(|| format!("end {} {}", end.run.id(), end.outcome.as_str())));
                stands
            }
            Change::Noticed { change, .. } => self.write(change),
            Change::DropTrigger { .. }
            | Change::Resume { .. }
            | Change::SkipRun { .. }
            | Change::ShareOut { .. }
            | Change::Restore { .. } => {
                panic!("{change:?}")
            }
        }
    }

    fn version(&self, job: &JobName) -> Option<Version> {
        self.jobs.get(job).map(|(_, version)| *version)
    }

    fn mark(&mut self, job: &JobName, at: Option<Version>, record: &JobRecord) -> bool {
        let stands = self.version(job) == at;
        if stands {
            assert!(self.jobs.get(job).is_none_or(|(known, _)| known.last_scheduled <= record.last_scheduled));
            self.jobs.insert(job.clone(), (record.clone(), at.map_or(Version::FIRST, Version::next)));
        }
        stands
    }

    fn begin(&mut self, run: &RunRecord) -> bool {
        let id = run.id();
        let line = format!("begin {id}");
        assert!(!self.log.contains(&line), "{line} a second time");
        self.log.push(line);
        self.running.insert(id, (run.clone(), Version::FIRST)).is_none()
    }

    fn take(&mut self, links: &[TriggerSeq]) -> bool {
        let stands = links.iter().all(|link| self.links.contains_key(link));
        self.links.retain(|seq, _| !stands || !links.contains(seq));
        stands
    }

    fn log_skip(&mut self, skip: Option<(&crate::run::Skip, u64)>) {
        let Some((skip, count)) = skip else { return };
        let many = if count > 1 { format!(" x{count}") } else { String::new() };
        self.log.push(format!("skip {} {}{many}", skip.id(), skip.reason.as_str()));
    }

    fn requests(&self) -> OperatorRequests {
        let triggers = self.triggers.iter();
        let triggers =
            triggers.map(|(seq, record)| (*seq, TriggerEntry { record: record.clone(), is_in_history: false }));
        OperatorRequests { control: self.control.clone(), triggers: triggers.collect(), links: self.links.clone() }
    }

    fn snapshot(&self, owner: OwnerState) -> Snapshot {
        let entry =
            |(record, version): &(JobRecord, Version)| JobEntry { record: Some(record.clone()), version: *version };
        let running = self.running.values();
        Snapshot {
            jobs: self.jobs.iter().map(|(job, known)| (job.clone(), entry(known))).collect(),
            running: running
                .map(|(record, version)| Running { record: record.clone(), version: *version, owner })
                .collect(),
            requests: self.requests(),
            ..Snapshot::default()
        }
    }
}

/// A ledger and its leader.
pub struct Cluster {
    pub ledger: FakeLedger,
    pub fixture: Fixture,
    jobs: JobSet,
    pub tree_ids: BTreeMap<String, TreeId>,
    token: i64,
    /// Number of commits that are still answered to this leader.
    pub answers: usize,
    pub commits: usize,
}

impl Cluster {
    /// A leader since 10:00:00.
    pub fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        let jobs = set(jobs);
        let fixture = Fixture::new("10:00:00", jobs.clone());
        let mut cluster = Self {
            ledger: FakeLedger::default(),
            fixture,
            jobs,
            tree_ids: BTreeMap::new(),
            token: 1,
            answers: usize::MAX,
            commits: 0,
        };
        cluster.fixture.join();
        cluster.lead(OwnerState::Dead);
        cluster
    }

    fn lead(&mut self, owner: OwnerState) {
        self.token += 1;
        self.fixture.elect(self.token, self.ledger.snapshot(owner));
        self.work();
    }

    /// The leader dies with its runs; another leads.
    pub fn replace_leader(&mut self) {
        let now = self.fixture.now;
        self.fixture = Fixture::new("10:00:00", self.jobs.clone());
        self.fixture.now = now;
        self.tree_ids.clear();
        self.fixture.join();
        self.answers = usize::MAX;
        self.lead(OwnerState::Dead);
    }

    /// Answers all requests, until there are no more.
    pub fn work(&mut self) {
        loop {
            let commands = self.fixture.take();
            if commands.is_empty() || self.answers == 0 {
                return;
            }
            let links = self.ledger.links.clone();
            commands.into_iter().for_each(|command| self.apply_kill(command));
            if self.ledger.links != links {
                self.receive();
            }
        }
    }

    pub fn apply_kill(&mut self, command: Command) {
        match command {
            Command::Ask(Request::Ledger(ledger::Request::Commit { id, change })) if self.answers > 0 => {
                self.answers -= 1;
                self.commits += 1;
                let answer = self.ledger.apply(&change);
                self.fixture.answer(id, answer);
            }
            Command::Ask(Request::Ledger(ledger::Request::ReadJob(job))) => {
                let known = self.ledger.jobs.get(&job);
                let entry = known.map(|(record, version)| JobEntry { record: Some(record.clone()), version: *version });
                let control = self.ledger.control.get(&job).cloned();
                self.fixture.handle(Event::Ledger(ledger::Event::Job(job, entry, control)));
            }
            Command::Start(start) => {
                self.tree_ids.insert(start.job.name.to_string(), start.tree_id);
                self.fixture.started(start.tree_id);
            }
            _ => {}
        }
    }

    pub fn receive(&mut self) {
        self.fixture.handle(Event::Ledger(ledger::Event::OperatorRequests(self.ledger.requests())));
    }

    /// An operator triggers a job, at 10:00:00 and as number 7.
    pub fn trigger(&mut self, job: &str) {
        let (uuid, at) = (Uuid::from_u128(1), at("10:00:00"));
        self.ledger.triggers.insert(TriggerSeq(7), TriggerRecord::new(uuid, name(job), "alice".into(), at));
        self.ledger.last = 7;
        self.receive();
        self.work();
    }

    pub fn pass(&mut self, seconds: u64) {
        self.fixture.pass(seconds);
        self.work();
    }

    pub fn end(&mut self, job: &str, code: i32) {
        let tree_id =
            self.tree_ids.remove(job).unwrap_or_else(|| panic!("`{job}` does not run: {:?}", self.ledger.log));
        self.fixture.ended(tree_id, Exit::Code(code), None);
        self.work();
    }

    pub fn load(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.jobs = set(jobs);
        self.fixture.handle(Event::Loaded(self.jobs.clone()));
        self.work();
    }

    /// The log of the jobs since the last call, without ends.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.ledger.log).into_iter().filter(|line| !line.starts_with("end ")).collect()
    }

    pub fn pause(&mut self, job: &str) {
        let pause = Pause { by: "alice".into(), at: at("09:00:00"), reason: None, until: None };
        let entry = ControlEntry { record: ControlRecord::new(Uuid::from_u128(1), pause), version: Version::FIRST };
        self.ledger.control.insert(name(job), entry);
        let (_, version) = self.ledger.jobs.get_mut(&name(job)).unwrap();
        *version = version.next();
    }
}
