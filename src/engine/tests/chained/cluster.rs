//! A ledger that is kept by hand, and whoever leads on it.
//!
//! The [`Book`] accepts what is guarded by what stands in it, and tells what became true; the [`Cluster`] answers its leader from
//! it, as often as the test wants, and puts another in the leader's place.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::coordination::Request;
use crate::engine::tests::rig::*;
use crate::engine::{Command, Event};
use crate::job::{Job, JobName, JobSet};
use crate::ledger::{
    self, Change, Commit, ControlEntry, JobEntry, OwnerState, Running, Snapshot, TriggerEntry, Wishes,
};
use crate::run::{ControlRecord, JobRecord, Link, Pause, RunId, RunRecord, TriggerRecord, TriggerSeq, Version};
use crate::warden::wire::{Exit, Slot};

/// The ledger: it accepts what is guarded by what stands in it.
#[derive(Default)]
pub struct Book {
    pub jobs: BTreeMap<JobName, (JobRecord, Version)>,
    control: BTreeMap<JobName, ControlEntry>,
    pub running: BTreeMap<RunId, (RunRecord, Version)>,
    pub triggers: BTreeMap<TriggerSeq, TriggerRecord>,
    pub links: BTreeMap<TriggerSeq, Link>,
    pub last: u64,
    /// What became true, in order.
    told: Vec<String>,
}

impl Book {
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
                self.tell_skip(skip.as_ref().map(|write| (&write.skip, write.skip.count)));
                self.mark(job, *at, record)
            }
            Change::Begin { at, record, run } => self.mark(&run.job, Some(*at), record) && self.begin(run),
            Change::Fulfil { run } => {
                run.trigger.as_ref().is_some_and(|trigger| self.triggers.remove(&trigger.seq).is_some())
                    && self.begin(run)
            }
            Change::Follow { mark, run, links } => {
                let stands = mark.as_ref().is_none_or(|(at, _)| self.version(&run.job) == Some(*at));
                if !stands || !self.take(links) {
                    return false;
                }
                mark.as_ref().is_none_or(|(at, record)| self.mark(&run.job, Some(*at), record)) && self.begin(run)
            }
            Change::Forgo { links, skip, .. } => {
                if !self.take(links) {
                    return false;
                }
                self.tell_skip(skip.as_ref().map(|skip| (skip, skip.count)));
                true
            }
            Change::Settle { at, run } | Change::Reown { at, run } | Change::Kill { at, run } => {
                let known = self.running.get_mut(&run.id()).filter(|(_, version)| version == at);
                known.map(|known| *known = (run.clone(), at.next())).is_some()
            }
            Change::End { at, end, .. } => {
                let stands = self.running.get(&end.run.id()).is_some_and(|(_, version)| version == at);
                self.running.retain(|run, _| !stands || *run != end.run.id());
                self.told.extend(stands.then(|| format!("end {} {}", end.run.id(), end.outcome.as_str())));
                stands
            }
            Change::Dismiss { .. } | Change::Resume { .. } | Change::Miss { .. } => panic!("{change:?}"),
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
        assert!(!self.told.contains(&line), "{line} a second time");
        self.told.push(line);
        self.running.insert(id, (run.clone(), Version::FIRST)).is_none()
    }

    fn take(&mut self, links: &[TriggerSeq]) -> bool {
        let stands = links.iter().all(|link| self.links.contains_key(link));
        self.links.retain(|seq, _| !stands || !links.contains(seq));
        stands
    }

    fn tell_skip(&mut self, skip: Option<(&crate::run::Skip, u64)>) {
        let Some((skip, count)) = skip else { return };
        let many = if count > 1 { format!(" x{count}") } else { String::new() };
        self.told.push(format!("skip {} {}{many}", skip.id(), skip.reason.as_str()));
    }

    fn wishes(&self) -> Wishes {
        let triggers = self.triggers.iter();
        let triggers =
            triggers.map(|(seq, record)| (*seq, TriggerEntry { record: record.clone(), is_in_history: false }));
        Wishes { control: self.control.clone(), triggers: triggers.collect(), links: self.links.clone() }
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
            wishes: self.wishes(),
            damaged: Vec::new(),
        }
    }
}

/// A ledger and whoever leads.
pub struct Cluster {
    pub book: Book,
    pub rig: Rig,
    jobs: JobSet,
    pub slots: BTreeMap<String, Slot>,
    token: i64,
    /// How many more commits this leader gets answered.
    pub answers: usize,
    pub commits: usize,
}

impl Cluster {
    /// A leader since 10:00:00.
    pub fn new(jobs: impl IntoIterator<Item = Job>) -> Self {
        let jobs = set(jobs);
        let rig = Rig::new("10:00:00", jobs.clone());
        let mut cluster = Self {
            book: Book::default(),
            rig,
            jobs,
            slots: BTreeMap::new(),
            token: 1,
            answers: usize::MAX,
            commits: 0,
        };
        cluster.rig.join();
        cluster.lead(OwnerState::Dead);
        cluster
    }

    fn lead(&mut self, owner: OwnerState) {
        self.token += 1;
        self.rig.elect(self.token, self.book.snapshot(owner));
        self.work();
    }

    /// The leader dies with its runs; another leads.
    pub fn replace_leader(&mut self) {
        let now = self.rig.now;
        self.rig = Rig::new("10:00:00", self.jobs.clone());
        self.rig.now = now;
        self.slots.clear();
        self.rig.join();
        self.answers = usize::MAX;
        self.lead(OwnerState::Dead);
    }

    /// Answers all that is asked, until nothing more is.
    pub fn work(&mut self) {
        loop {
            let commands = self.rig.take();
            if commands.is_empty() || self.answers == 0 {
                return;
            }
            let links = self.book.links.clone();
            commands.into_iter().for_each(|command| self.obey(command));
            if self.book.links != links {
                self.hear();
            }
        }
    }

    pub fn obey(&mut self, command: Command) {
        match command {
            Command::Ask(Request::Ledger(ledger::Request::Commit { id, change })) if self.answers > 0 => {
                self.answers -= 1;
                self.commits += 1;
                let answer = self.book.apply(&change);
                self.rig.answer(id, answer);
            }
            Command::Ask(Request::Ledger(ledger::Request::ReadJob(job))) => {
                let known = self.book.jobs.get(&job);
                let entry = known.map(|(record, version)| JobEntry { record: Some(record.clone()), version: *version });
                let control = self.book.control.get(&job).cloned();
                self.rig.tell(Event::Ledger(ledger::Event::Job(job, entry, control)));
            }
            Command::Start(start) => {
                self.slots.insert(start.job.name.to_string(), start.slot);
                self.rig.started(start.slot);
            }
            _ => {}
        }
    }

    pub fn hear(&mut self) {
        self.rig.tell(Event::Ledger(ledger::Event::Wishes(self.book.wishes())));
    }

    /// An operator triggers a job, at 10:00:00 and as number 7.
    pub fn trigger(&mut self, job: &str) {
        let (uuid, at) = (Uuid::from_u128(1), at("10:00:00"));
        self.book.triggers.insert(TriggerSeq(7), TriggerRecord { v: 1, uuid, job: name(job), by: "alice".into(), at });
        self.book.last = 7;
        self.hear();
        self.work();
    }

    pub fn pass(&mut self, seconds: u64) {
        self.rig.pass(seconds);
        self.work();
    }

    pub fn end(&mut self, job: &str, code: i32) {
        let slot = self.slots.remove(job).unwrap_or_else(|| panic!("`{job}` does not run: {:?}", self.book.told));
        self.rig.ended(slot, Exit::Code(code), None);
        self.work();
    }

    pub fn load(&mut self, jobs: impl IntoIterator<Item = Job>) {
        self.jobs = set(jobs);
        self.rig.tell(Event::Loaded(self.jobs.clone()));
        self.work();
    }

    /// What was told of jobs since this was asked last, ends left out.
    pub fn told(&mut self) -> Vec<String> {
        std::mem::take(&mut self.book.told).into_iter().filter(|line| !line.starts_with("end ")).collect()
    }

    pub fn pause(&mut self, job: &str) {
        let pause = Pause { by: "alice".into(), at: at("09:00:00"), reason: None };
        let entry = ControlEntry { record: ControlRecord::new(Uuid::from_u128(1), pause), version: Version::FIRST };
        self.book.control.insert(name(job), entry);
        let (_, version) = self.book.jobs.get_mut(&name(job)).unwrap();
        *version = version.next();
    }
}
