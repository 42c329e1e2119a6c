//! Executor of a plan: each fault at its time, each repair at its time, then peace.
//!
//! Faults overlap freely. A fault whose victim is already down, or that takes hosts where there are none, is left out,
//! and the transcript says so. An action that cannot be done at its time, such as deleting an entry while no server
//! answers, is retried until it can.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use jiff::{Timestamp, ToSpan};
use rustix::process::Signal;

use super::admin::{Admin, Target};
use super::history::Span;
use super::plan::{Fault, Part, Plan};
use super::supervisors::{Supervisors, send};
use super::testbed::{SERVERS, Testbed};
use super::work::Work;
use crate::support::LONG;

mod faults;

/// Pause between two tries.
const AGAIN: Duration = Duration::from_millis(100);

/// An action that is due at some time.
enum Action {
    Begin(Fault),
    Cure(Cure),
}

/// The repair of a fault.
#[derive(Debug)]
enum Cure {
    /// Repairs what the fault of this number did to the links.
    Links(usize),
    /// The processes, and the index in [`FaultInjector::stood_still`].
    Continue(Vec<OwnedFd>, usize),
    Revive(usize),
    Server(usize, Health),
    MakeRoom(usize),
    /// Not a repair, but an action that is still to be done.
    Delete(Target),
}

/// The action must be retried.
struct NotYet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Serves,
    Killed,
    Paused,
}

pub struct FaultInjector<'a> {
    testbed: &'a mut Testbed,
    supervisors: &'a mut Supervisors,
    admin: &'a Admin,
    servers: [Health; SERVERS],
    agenda: BTreeMap<(Instant, usize), Action>,
    /// Number of actions scheduled so far.
    count: usize,
    began: Instant,
    /// Actions that cannot be done by then are given up; the missing peace then reports the failure.
    give_up_at: Instant,
    transcript: Vec<String>,
    stood_still: Vec<Still>,
}

/// A time when a part of a node was stopped.
struct Still {
    i: usize,
    part: Part,
    span: Span,
}

impl Still {
    /// The time when both parts of a node were stopped, so that nobody could kill what should have been killed.
    fn both(&self, other: &Self) -> Option<Span> {
        let is_pair = self.i == other.i && self.part != Part::Warden && other.part != Part::Daemon;
        let (from, to) = (self.span.from.max(other.span.from), self.span.to.min(other.span.to));
        (is_pair && from < to).then_some(Span { from, to })
    }
}

impl<'a> FaultInjector<'a> {
    pub fn new(testbed: &'a mut Testbed, supervisors: &'a mut Supervisors, admin: &'a Admin) -> Self {
        Self {
            testbed,
            supervisors,
            admin,
            servers: [Health::Serves; SERVERS],
            agenda: BTreeMap::new(),
            count: 0,
            began: Instant::now(),
            give_up_at: Instant::now(),
            transcript: Vec::new(),
            stood_still: Vec::new(),
        }
    }

    /// Carries out the plan; returns when everything that can be is repaired.
    pub fn run(&mut self, plan: &Plan) {
        self.began = Instant::now();
        for fault in &plan.faults {
            self.put(self.began + fault.at, Action::Begin(fault.clone()));
            self.give_up_at = self.give_up_at.max(self.began + fault.at + fault.lasts + LONG);
        }
        while let Some(((at, _), action)) = self.agenda.pop_first() {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            self.revive_silent();
            match action {
                Action::Begin(fault) => self.begin(&fault),
                Action::Cure(cure) => self.cure(cure),
            }
        }
    }

    /// Waits until one node leads, two follow, and everything due before now is settled. On timeout, returns what is
    /// not.
    pub fn await_peace(&mut self, work: &Work) -> Result<Timestamp, Vec<String>> {
        // Only the log of a server that is part of the ensemble can be judged.
        self.testbed.ensemble.await_serving();
        let horizon = Timestamp::now() + 2.seconds();
        let end = Instant::now() + 2 * LONG;
        let mut missing;
        loop {
            self.revive_silent();
            let ends = self.supervisors.unexplained_ends();
            if !ends.is_empty() {
                return Err(ends);
            }
            missing = self.admin.unsettled(work, horizon, &self.supervisors.names());
            if missing.as_ref().is_some_and(Vec::is_empty) && Timestamp::now() > horizon {
                self.note("peace");
                return Ok(horizon);
            }
            if Instant::now() > end {
                return Err(missing.unwrap_or_else(|| vec!["no server answers".into()]));
            }
            thread::sleep(AGAIN);
        }
    }

    /// The transcript for people, and the times when a daemon and its warden were both stopped.
    pub fn into_account(mut self) -> (Vec<String>, Vec<Span>) {
        let still = std::mem::take(&mut self.stood_still);
        let both = still.iter().flat_map(|one| still.iter().filter_map(|other| one.both(other))).collect();
        (std::mem::take(&mut self.transcript), both)
    }

    fn revive_silent(&mut self) {
        for i in self.supervisors.revive_silent() {
            self.note(&format!("{} is started again, its warden was silent", self.supervisors.name(i)));
        }
    }

    fn begin(&mut self, fault: &Fault) {
        if !self.testbed.allows(fault.kind) {
            return self.note(&format!("{:?} (left out: it takes hosts)", fault.kind));
        }
        let i = self.supervisors.pick(fault.node);
        let cures = self.inject(fault, i);
        let left_out = if cures.is_empty() { " (left out: it is down already)" } else { "" };
        self.note(&format!("{:?} {}, server {:?}{left_out}", fault.kind, self.supervisors.name(i), fault.server));
        for cure in cures {
            let at = if matches!(cure, Cure::Delete(_)) { Instant::now() } else { Instant::now() + fault.lasts };
            self.put(at, Action::Cure(cure));
        }
    }

    fn cure(&mut self, cure: Cure) {
        match self.try_cure(&cure) {
            Ok(what) => self.note(&what),
            Err(NotYet) if Instant::now() > self.give_up_at => self.note(&format!("given up: {cure:?}")),
            Err(NotYet) => self.put(Instant::now() + AGAIN, Action::Cure(cure)),
        }
    }

    fn try_cure(&mut self, cure: &Cure) -> Result<String, NotYet> {
        match cure {
            Cure::Links(fault) => {
                self.testbed.links.heal(*fault);
                Ok("the links are sound again".into())
            }
            Cure::Continue(stopped, still) => {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
                self.stood_still[*still].span.to = Timestamp::now();
                Ok("what stood still goes on".into())
            }
            // Another fault's repair was quicker, or the signal was one that ends nothing.
            Cure::Revive(i) if !self.supervisors.may_end(*i) => Ok(format!("{} lives", self.supervisors.name(*i))),
            Cure::Revive(i) if !self.supervisors.revive(*i) => Err(NotYet),
            Cure::Revive(i) => Ok(format!("{} is started again", self.supervisors.name(*i))),
            Cure::Server(i, how) => {
                match how {
                    Health::Paused => self.testbed.ensemble.cont(*i),
                    _ => self.testbed.ensemble.restart(*i),
                }
                self.servers[*i] = Health::Serves;
                Ok(format!("server {i} goes on"))
            }
            Cure::MakeRoom(i) => {
                self.supervisors.make_room(*i);
                Ok("there is room again".into())
            }
            Cure::Delete(target) => match self.admin.delete(target) {
                true => Ok(format!("{target:?} is deleted")),
                false => Err(NotYet),
            },
        }
    }

    fn put(&mut self, at: Instant, action: Action) {
        self.count += 1;
        self.agenda.insert((at, self.count), action);
    }

    fn note(&mut self, what: &str) {
        self.transcript.push(format!("  {} {:6.2} s  {what}", Timestamp::now(), self.began.elapsed().as_secs_f64()));
    }
}

impl Drop for FaultInjector<'_> {
    /// A warden that stays stopped forever would outlive the test.
    fn drop(&mut self) {
        for action in self.agenda.values() {
            if let Action::Cure(Cure::Continue(stopped, _)) = action {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
            }
        }
    }
}
