//! Invariant: a process starts once, for an attempt on record, and no two processes of a run are alive together.
//!
//! Unless its job allows it, no two runs of a job have processes at the same time either; of a job on every node, no two on
//! the same node, and no two of a group.
//!
//! A process that is frozen with its whole host does nothing and is not judged, nor is it in the moment afterwards: no
//! clock inside counts a hypervisor's pause, and the warden needs an instant. The fencing token is for that case.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::run::{RunId, RunRecord};

use super::super::facts::Fact;
use super::super::jobs::{LOCKED, share_a_group};
use super::super::warden::Process;
use super::{Invariant, ops, written};

/// The longest time that a warden needs to kill a process that is due.
const KILLING: Duration = Duration::from_millis(20);

/// Jobs whose run may be alive together with the next run of the same job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successors {
    Never,
    /// Jobs whose names begin with one of these.
    Named(&'static [&'static str]),
}

pub struct NoTwoProcesses {
    successors: Successors,
    recorded: BTreeSet<(String, u32)>,
    started: BTreeSet<(String, u32)>,
    alive: BTreeMap<i32, Process>,
    hosts: Vec<Host>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Host {
    Runs,
    Frozen,
    ThawedAt(Uptime),
}

impl NoTwoProcesses {
    pub fn new(nodes: usize, successors: Successors) -> Self {
        Self {
            successors,
            recorded: BTreeSet::new(),
            started: BTreeSet::new(),
            alive: BTreeMap::new(),
            hosts: vec![Host::Runs; nodes],
        }
    }

    fn spawn(&mut self, at: Uptime, process: &Process) -> Result<(), String> {
        let attempt = (process.run.clone(), process.attempt);
        if !self.recorded.contains(&attempt) {
            return Err(format!("attempt {} of `{}` was started without a record", process.attempt, process.run));
        }
        if !self.started.insert(attempt) {
            return Err(format!("attempt {} of `{}` was started twice", process.attempt, process.run));
        }
        self.alive.insert(process.pid, process.clone());
        self.judge(at, process)
    }

    fn judge(&self, at: Uptime, process: &Process) -> Result<(), String> {
        for other in self.alive.values().filter(|other| other.pid != process.pid && self.acts(at, other)) {
            if other.run == process.run || self.are_rivals(&other.run, &process.run) {
                return Err(format!("two processes at a time: {process:?} and {other:?}"));
            }
        }
        Ok(())
    }

    fn acts(&self, at: Uptime, process: &Process) -> bool {
        match self.hosts[process.node] {
            Host::Runs => true,
            Host::Frozen => false,
            Host::ThawedAt(thawed) => thawed + KILLING < at,
        }
    }

    fn are_rivals(&self, a: &str, b: &str) -> bool {
        let (Ok(a), Ok(b)) = (RunId::parse(a), RunId::parse(b)) else { return false };
        let are_locked = [&a, &b].iter().all(|run| run.job().as_str().starts_with(LOCKED));
        if are_locked || share_a_group(&a, &b) {
            return true;
        }
        a.job() == b.job()
            && a.node() == b.node()
            && match self.successors {
                Successors::Never => true,
                Successors::Named(names) => !names.iter().any(|name| a.job().as_str().starts_with(name)),
            }
    }
}

impl Invariant for NoTwoProcesses {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Committed { txn, .. } => {
                for (run, data) in ops(txn).iter().filter_map(|op| written(op, "/cronkeeper/running")) {
                    if let Ok(record) = serde_json::from_slice::<RunRecord>(data) {
                        self.recorded.insert((run.to_owned(), record.attempt));
                    }
                }
            }
            Fact::Spawned(process) => return self.spawn(at, process),
            Fact::Gone(process) => {
                self.alive.remove(&process.pid);
            }
            Fact::Frozen { node } => self.hosts[*node] = Host::Frozen,
            Fact::Thawed { node } => self.hosts[*node] = Host::ThawedAt(at),
            _ => {}
        }
        Ok(())
    }
}
