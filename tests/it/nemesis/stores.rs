//! Three nodes on a store while nodes and servers fail: what is alike for all stores. The jobs' own marks and what the
//! servers have committed are judged as on ZooKeeper.
//!
//! Each seed has its faults, one of them of the servers. `CRONKEEPER_NEMESIS_SEED` and `CRONKEEPER_NEMESIS_MINUTES` as
//! in the nemesis on ZooKeeper.
//!
//! ```text
//! commits  what the servers have committed, in ZooKeeper's words
//! tap      what clients have asked for, where the servers do not note it
//! ```

pub mod commits;
pub mod tap;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use cronkeeper_cluster::observed;
use cronkeeper_cluster::paths::{JOBS, LEADER, NODES, RUNNING};
use cronkeeper_core::run::{JobRecord, RunId};
use fastrand::Rng;
use jiff::{Timestamp, ToSpan as _};
use rustix::process::Signal;

use super::history::{History, Span};
use super::plan::{Part, Pick, SentSignal, TIMEOUT};
use super::supervisors::{Supervisors, send};
use super::work::Work;
use super::{SEED, alone, broken_by_the_nodes, logged, seeds};
use crate::ledger::txn::Txn;
use crate::support::LONG;
use crate::support::node::{Event, Spec};

/// Between two looks whether all is well.
const AGAIN: Duration = Duration::from_millis(500);
/// Servers whose writes take longer than this are too busy for a takeover within a lease, which is many writes.
const BUSY: Duration = TIMEOUT.checked_div(10).expect("it is divided by ten");

/// The servers of a store.
pub trait Servers: Sized {
    type Fault: Copy + Debug + PartialEq + 'static;
    /// What a fault leaves to be done later.
    type Step;

    /// The faults. The seeds of an ordinary run have each of them once.
    const FAULTS: &'static [Self::Fault];

    /// Servers that can suffer this fault.
    fn start(fault: Self::Fault, seed: u64) -> Self;

    /// Names the servers to a node.
    fn place(&self, spec: Spec, node: usize) -> Spec;

    /// Says what happens, and what is to be done later, and how much later.
    fn hit(&mut self, fault: Self::Fault, lasts: Duration) -> (String, Vec<(Duration, Self::Step)>);

    /// Says what is done.
    fn take(&mut self, step: Self::Step) -> &'static str;

    /// Writes something that is not the cluster's.
    fn write(&self);

    /// Paths and data of the records directly below these folders, and maybe of others.
    fn records(&self, folders: &[&str]) -> Vec<(String, Vec<u8>)>;

    /// All that the servers have committed, in their order.
    fn committed(&self) -> Vec<Txn>;

    /// What of that which was acknowledged is lost, for people. `rewound`: what nodes say of it.
    fn lost(&self, rewound: &[&Event]) -> Vec<String> {
        noticed(rewound).collect()
    }
}

/// What nodes say of lost commits, for people.
pub fn noticed(rewound: &[&Event]) -> impl Iterator<Item = String> {
    rewound.iter().map(|event| format!("commits are lost: {}", event.json()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeFault {
    Signal(SentSignal, Part),
    /// All its processes are stopped, jobs included.
    Suspended,
    /// All its processes are killed.
    HostLost,
}

const NODE_FAULTS: [NodeFault; 7] = [
    NodeFault::Signal(SentSignal::Kill, Part::Daemon),
    NodeFault::Signal(SentSignal::Kill, Part::Both),
    NodeFault::Signal(SentSignal::Stop, Part::Daemon),
    NodeFault::Signal(SentSignal::Term, Part::Daemon),
    NodeFault::Signal(SentSignal::Usr2, Part::Daemon),
    NodeFault::Suspended,
    NodeFault::HostLost,
];

/// Something to do at its time.
enum Step<S: Servers> {
    HitNode(NodeFault, Pick, Duration),
    HitServers(S::Fault, Duration),
    Continue(Vec<OwnedFd>, usize),
    Revive(usize),
    OfServers(S::Step),
}

/// A cluster, and what happens to it.
struct Trial<S: Servers> {
    servers: S,
    supervisors: Supervisors,
    agenda: Vec<(Instant, Step<S>)>,
    stood_still: Vec<Span>,
    transcript: Vec<String>,
    began: Instant,
}

/// Makes `Fault` of the faults of some servers, in the order of the seeds, with a test of each.
macro_rules! faults {
    ($Servers:ty: $($(#[$about:meta])* $fault:ident $test:ident)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Fault {
            $($(#[$about])* $fault),+
        }

        const FAULTS: &[Fault] = &[$(Fault::$fault),+];

        $(#[test]
        fn $test() {
            $crate::nemesis::stores::hold::<$Servers>(Fault::$fault);
        })+
    };
}
pub(crate) use faults;

/// Runs those of the seeds that have this fault of the servers.
pub fn hold<S: Servers>(fault: S::Fault) {
    let _alone = alone();
    let ordinarily = u64::try_from(S::FAULTS.len()).expect("there are few");
    let fault_of = |seed: u64| S::FAULTS[usize::try_from(seed % ordinarily).expect("it is small")];
    seeds(ordinarily).filter(|seed| fault_of(*seed) == fault).for_each(|seed| run_seed::<S>(seed, fault));
}

fn run_seed<S: Servers>(seed: u64, fault: S::Fault) {
    let servers = S::start(fault, seed);
    let work = Work::new();
    let supervisors = Supervisors::start(&work, |spec, i| servers.place(spec, i), |_| None);
    let (agenda, stood_still, transcript) = Default::default();
    let mut trial = Trial { servers, supervisors, agenda, stood_still, transcript, began: Instant::now() };
    trial.plan(fault, &mut Rng::with_seed(seed));
    trial.run();
    let peace = trial.await_peace(&work);
    let seen = work.witness.entries();
    let committed = trial.servers.committed();
    let horizon = peace.as_ref().copied().unwrap_or(Timestamp::MAX);
    let history = History::new(seen, committed, std::mem::take(&mut trial.stood_still), horizon);
    let found = history.broken(&work);
    let mut broken = found.by_the_jobs;
    match peace {
        Ok(_) => broken.extend(found.by_the_record),
        // What is not settled yet cannot be judged by its record.
        Err(missing) => broken.extend(missing.into_iter().map(|what| format!("no peace: {what}"))),
    }
    let story = trial.supervisors.story();
    broken.extend(broken_by_the_nodes(&story, &trial.supervisors.accepted_ends()));
    // Each commit is as safe as its service can make it: nothing is lost.
    let rewound = |event: &&Event| event.name() == "coordination.rewound" && !event.text("path").is_empty();
    broken.extend(trial.servers.lost(&story.iter().filter(rewound).collect::<Vec<_>>()));
    assert!(
        broken.is_empty(),
        "seed {seed}; again with {SEED}={seed}\nwhat happened:\n{}\nbroken:\n  {}\n{}committed:\n{}",
        trial.transcript.join("\n"),
        broken.join("\n  "),
        logged(&story, &broken),
        history.about(&broken),
    );
}

impl<S: Servers> Trial<S> {
    /// One fault of the servers, and several of the nodes around it.
    fn plan(&mut self, fault: S::Fault, rng: &mut Rng) {
        let mut faults = NODE_FAULTS;
        rng.shuffle(&mut faults);
        let mut at = TIMEOUT.mul_f64(0.6);
        let of_servers = rng.usize(..3);
        for (i, node_fault) in faults.into_iter().take(3).enumerate() {
            if i == of_servers {
                let lasts = if rng.bool() { rng.f64() } else { 1.2 + 0.5 * rng.f64() };
                self.put(at, Step::HitServers(fault, TIMEOUT.mul_f64(lasts)));
                at += TIMEOUT.mul_f64(0.8 * rng.f64());
            }
            let node = if rng.u8(..5) > 0 { Pick::Leader } else { Pick::Other(rng.usize(..2)) };
            let lasts = match node_fault {
                NodeFault::Signal(SentSignal::Kill, _) => 0.6 * rng.f64(),
                NodeFault::Signal(SentSignal::Term | SentSignal::Usr2, _) => 1.5 * rng.f64(),
                _ => 1.3 + 0.4 * rng.f64(),
            };
            self.put(at, Step::HitNode(node_fault, node, TIMEOUT.mul_f64(lasts)));
            at += TIMEOUT.mul_f64(1.6 * rng.f64());
        }
    }

    fn put(&mut self, after: Duration, step: Step<S>) {
        self.agenda.push((Instant::now() + after, step));
    }

    fn run(&mut self) {
        while let Some(next) = (0..self.agenda.len()).min_by_key(|&i| self.agenda[i].0) {
            let (at, step) = self.agenda.swap_remove(next);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            self.revive_silent();
            self.take(step);
        }
    }

    fn take(&mut self, step: Step<S>) {
        match step {
            Step::HitNode(fault, pick, lasts) => self.hit_node(fault, pick, lasts),
            Step::HitServers(fault, lasts) => self.hit_servers(fault, lasts),
            Step::Continue(stopped, still) => {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
                if let Some(span) = self.stood_still.get_mut(still) {
                    span.to = Timestamp::now();
                }
                self.note("what stood still goes on");
            }
            // A signal that ends nothing.
            Step::Revive(i) if !self.supervisors.may_end(i) => {}
            Step::Revive(i) if self.supervisors.revive(i) => {
                self.note(&format!("{} is started again", self.supervisors.name(i)));
            }
            Step::Revive(i) => self.put(AGAIN, Step::Revive(i)),
            Step::OfServers(step) => {
                let done = self.servers.take(step);
                self.note(done);
            }
        }
    }

    fn hit_node(&mut self, fault: NodeFault, pick: Pick, lasts: Duration) {
        let i = self.supervisors.pick(pick);
        let hit = match fault {
            NodeFault::Signal(signal, part) => self.supervisors.signal(i, signal, part),
            NodeFault::Suspended => self.supervisors.suspend(i),
            NodeFault::HostLost => self.supervisors.kill_all(i),
        };
        let left_out = if hit.is_none() { " (left out: it is down already)" } else { "" };
        self.note(&format!("{fault:?} {}, {:.1} s{left_out}", self.supervisors.name(i), lasts.as_secs_f64()));
        let Some(processes) = hit else { return };
        match fault {
            NodeFault::Suspended => {
                self.stood_still.push(Span { from: Timestamp::now(), to: Timestamp::MAX });
                self.put(lasts, Step::Continue(processes, self.stood_still.len() - 1));
            }
            NodeFault::Signal(SentSignal::Stop, _) => self.put(lasts, Step::Continue(processes, usize::MAX)),
            NodeFault::Signal(..) | NodeFault::HostLost => self.put(lasts, Step::Revive(i)),
        }
    }

    fn hit_servers(&mut self, fault: S::Fault, lasts: Duration) {
        let (done, later) = self.servers.hit(fault, lasts);
        self.note(&format!("{done}, {:.1} s", lasts.as_secs_f64()));
        later.into_iter().for_each(|(after, step)| self.put(after, Step::OfServers(step)));
    }

    fn revive_silent(&mut self) {
        for i in self.supervisors.revive_silent() {
            self.note(&format!("{} is started again, its warden was silent", self.supervisors.name(i)));
        }
    }

    /// Waits until one node leads, two follow, and everything due before now is settled. Returns what is not, on
    /// timeout.
    fn await_peace(&mut self, work: &Work) -> Result<Timestamp, Vec<String>> {
        let (horizon, began) = (Timestamp::now() + 2.seconds(), Instant::now());
        let mut end = began + 2 * LONG;
        loop {
            // Other tests may keep the machine busy: the time counts once that is over.
            if self.is_busy() {
                end = (Instant::now() + 2 * LONG).min(began + 10 * LONG);
            }
            self.revive_silent();
            let ends = self.supervisors.unexplained_ends();
            if !ends.is_empty() {
                return Err(ends);
            }
            let missing = self.unsettled(work, horizon);
            if missing.is_empty() && Timestamp::now() > horizon {
                self.note("peace");
                return Ok(horizon);
            }
            if Instant::now() > end {
                return Err(missing);
            }
            thread::sleep(AGAIN);
        }
    }

    fn is_busy(&self) -> bool {
        let began = Instant::now();
        self.servers.write();
        began.elapsed() > BUSY
    }

    fn unsettled(&self, work: &Work, horizon: Timestamp) -> Vec<String> {
        let (records, mut missing) = (self.records(), Vec::new());
        let below = |folder: &str| {
            let name = |path: &str| Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
            let each = records.iter().filter_map(|(path, data)| Some((name(path)?, data.as_slice())));
            each.collect::<Vec<(String, &[u8])>>()
        };
        let marks: BTreeMap<String, &[u8]> = below(JOBS).into_iter().collect();
        for (name, job) in &work.jobs.jobs {
            let mark = marks.get(name.as_str()).and_then(|data| serde_json::from_slice::<JobRecord>(data).ok());
            let due = |mark: &JobRecord| job.last_before_or_at(horizon, mark.last_scheduled).is_some();
            if mark.as_ref().is_none_or(due) {
                missing.push(format!("the mark of {name} is {:?}", mark.map(|mark| mark.last_scheduled)));
            }
        }
        for (run, _) in below(RUNNING) {
            if RunId::parse(&run).is_ok_and(|run| run.scheduled_at() <= horizon) {
                missing.push(format!("{run} has not ended"));
            }
        }
        let node = |data: &[u8]| {
            let said = serde_json::from_slice::<serde_json::Value>(data).ok();
            said.and_then(|said| said["node"].as_str().map(str::to_owned)).unwrap_or_default()
        };
        for folder in [LEADER, NODES] {
            let mut found: Vec<String> = below(folder).iter().map(|(_, data)| node(data)).collect();
            found.sort();
            if found != self.supervisors.names() {
                missing.push(format!("in {folder} are {found:?}"));
            }
        }
        missing
    }

    /// The records that show whether all is well, without what they say of their sessions.
    fn records(&self) -> Vec<(String, Vec<u8>)> {
        let records = self.servers.records(&[LEADER, NODES, JOBS, RUNNING]).into_iter();
        let without_session = |(path, data): (String, Vec<u8>)| {
            let (_, data) = observed::unwrap(&path, data);
            (path, data)
        };
        records.map(without_session).collect()
    }

    fn note(&mut self, what: &str) {
        self.transcript.push(format!("  {} {:6.2} s  {what}", Timestamp::now(), self.began.elapsed().as_secs_f64()));
    }
}

impl<S: Servers> Drop for Trial<S> {
    /// What stays stopped forever would outlive the test.
    fn drop(&mut self) {
        for (_, step) in &self.agenda {
            if let Step::Continue(stopped, _) = step {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
            }
        }
    }
}
