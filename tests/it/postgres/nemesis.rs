//! Three nodes on PostgreSQL while nodes and servers fail. The jobs' own marks and what the servers have committed are
//! judged as on ZooKeeper.
//!
//! Each seed has its faults, one of them of the servers: killed, stopped for longer than the session, restarted,
//! disconnecting everybody again and again, or replaced by the standby that each commit waits for, while the old one
//! goes on. `CRONKEEPER_NEMESIS_SEED` and `CRONKEEPER_NEMESIS_MINUTES` as in the nemesis on ZooKeeper.

mod audit;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use cronkeeper_cluster::observed;
use cronkeeper_core::run::{JobRecord, RunId};
use fastrand::Rng;
use jiff::{Timestamp, ToSpan as _};
use rustix::process::Signal;

use self::audit::Audit;
use crate::nemesis::history::{History, Span};
use crate::nemesis::plan::{Part, Pick, SentSignal, TIMEOUT};
use crate::nemesis::supervisors::{Supervisors, send};
use crate::nemesis::work::Work;
use crate::nemesis::{SEED, broken_by_the_nodes, logged, seeds};
use crate::support::LONG;
use crate::support::postgres::Server;

/// Seeds of an ordinary run, which have each fault of the servers once.
const ORDINARILY: u64 = SERVER_FAULTS.len() as u64;
/// Between two looks whether all is well.
const AGAIN: Duration = Duration::from_millis(500);

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerFault {
    /// With all its processes, by SIGKILL.
    Killed,
    Stopped,
    Restarted,
    Disconnects,
    /// It is stopped, the standby takes its place, and then it goes on, a second server that accepts connections.
    Replaced,
}

const SERVER_FAULTS: [ServerFault; 5] = [
    ServerFault::Killed,
    ServerFault::Replaced,
    ServerFault::Disconnects,
    ServerFault::Stopped,
    ServerFault::Restarted,
];

/// Something to do at its time.
enum Step {
    HitNode(NodeFault, Pick, Duration),
    HitServer(ServerFault, Duration),
    Continue(Vec<OwnedFd>, usize),
    Revive(usize),
    ContinueServer,
    StartServer,
    Disconnect,
    EndOldServer,
}

/// A cluster, and what happens to it.
struct Trial {
    server: Server,
    standby: Option<Server>,
    /// A server that another one has replaced.
    old: Option<Server>,
    supervisors: Supervisors,
    agenda: Vec<(Instant, Step)>,
    stood_still: Vec<Span>,
    transcript: Vec<String>,
    began: Instant,
}

/// Runs those of the seeds that have this fault of the servers.
fn hold(fault: ServerFault) {
    seeds(ORDINARILY).filter(|seed| fault_of(*seed) == fault).for_each(run_seed);
}

fn fault_of(seed: u64) -> ServerFault {
    SERVER_FAULTS[usize::try_from(seed % ORDINARILY).expect("it is small")]
}

#[test]
fn the_promises_hold_when_the_server_is_killed() {
    hold(ServerFault::Killed);
}

#[test]
fn the_promises_hold_when_the_server_is_stopped() {
    hold(ServerFault::Stopped);
}

#[test]
fn the_promises_hold_when_the_server_is_restarted() {
    hold(ServerFault::Restarted);
}

#[test]
fn the_promises_hold_when_the_server_disconnects_everybody() {
    hold(ServerFault::Disconnects);
}

#[test]
fn the_promises_hold_when_the_server_is_replaced_and_goes_on() {
    hold(ServerFault::Replaced);
}

fn run_seed(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let fault = fault_of(seed);
    let server = Server::start(&[], &[]);
    let audit = Audit::begin(&server);
    let standby = (fault == ServerFault::Replaced).then(|| server.standby());
    if standby.is_some() {
        server.set("synchronous_standby_names", "*");
    }
    let ports: Vec<String> =
        [Some(&server), standby.as_ref()].into_iter().flatten().map(|it| it.port().to_string()).collect();
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let connect = format!("host={hosts} port={} dbname=postgres user=postgres", ports.join(","));
    let work = Work::new();
    let supervisors = Supervisors::start(&work, |spec, _| spec.postgres(&connect), |_| None);
    let (agenda, stood_still, transcript) = Default::default();
    let began = Instant::now();
    let mut trial = Trial { server, standby, old: None, supervisors, agenda, stood_still, transcript, began };
    trial.plan(fault, &mut rng);
    trial.run();
    let peace = trial.await_peace(&work);
    let seen = work.witness.entries();
    let committed = audit.committed(&trial.server);
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
    // Each commit waited for the standby: nothing is lost.
    let lost = story.iter().filter(|event| event.name() == "coordination.rewound" && !event.text("path").is_empty());
    broken.extend(lost.map(|event| format!("commits are lost: {}", event.json())));
    assert!(
        broken.is_empty(),
        "seed {seed}; again with {SEED}={seed}\nwhat happened:\n{}\nbroken:\n  {}\n{}committed:\n{}",
        trial.transcript.join("\n"),
        broken.join("\n  "),
        logged(&story, &broken),
        history.about(&broken),
    );
}

impl Trial {
    /// One fault of the servers, and several of the nodes around it.
    fn plan(&mut self, fault: ServerFault, rng: &mut Rng) {
        let mut faults = NODE_FAULTS;
        rng.shuffle(&mut faults);
        let mut at = TIMEOUT.mul_f64(0.6);
        let of_server = rng.usize(..3);
        for (i, node_fault) in faults.into_iter().take(3).enumerate() {
            if i == of_server {
                let lasts = if rng.bool() { rng.f64() } else { 1.2 + 0.5 * rng.f64() };
                self.put(at, Step::HitServer(fault, TIMEOUT.mul_f64(lasts)));
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

    fn put(&mut self, after: Duration, step: Step) {
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

    fn take(&mut self, step: Step) {
        match step {
            Step::HitNode(fault, pick, lasts) => self.hit_node(fault, pick, lasts),
            Step::HitServer(fault, lasts) => self.hit_server(fault, lasts),
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
            Step::ContinueServer => {
                self.server.signal(Signal::CONT);
                self.note("the server goes on");
            }
            Step::StartServer => {
                self.server.start_again();
                self.note("the server is started again");
            }
            Step::Disconnect => {
                let all =
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cronkeeper'";
                self.server.sql("postgres", all);
                self.note("the server disconnects everybody");
            }
            Step::EndOldServer => {
                self.old = None;
                self.note("the old server ends");
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

    fn hit_server(&mut self, fault: ServerFault, lasts: Duration) {
        self.note(&format!("the server: {fault:?}, {:.1} s", lasts.as_secs_f64()));
        match fault {
            ServerFault::Killed => {
                self.server.kill();
                self.put(lasts, Step::StartServer);
            }
            ServerFault::Stopped => {
                self.server.signal(Signal::STOP);
                self.put(lasts, Step::ContinueServer);
            }
            ServerFault::Restarted => {
                self.server.end();
                self.put(Duration::ZERO, Step::StartServer);
            }
            ServerFault::Disconnects => {
                (0..8).for_each(|i| self.put(lasts.mul_f64(f64::from(i) / 8.0), Step::Disconnect));
            }
            ServerFault::Replaced => {
                self.server.signal(Signal::STOP);
                let standby = self.standby.take().expect("a server that is to be replaced has a standby");
                standby.promote();
                let old = std::mem::replace(&mut self.server, standby);
                old.signal(Signal::CONT);
                self.old = Some(old);
                self.note("the standby is promoted, and the old server goes on");
                self.put(lasts, Step::EndOldServer);
            }
        }
    }

    fn revive_silent(&mut self) {
        for i in self.supervisors.revive_silent() {
            self.note(&format!("{} is started again, its warden was silent", self.supervisors.name(i)));
        }
    }

    /// Waits until one node leads, two follow, and everything due before now is settled. On timeout, returns what is not.
    fn await_peace(&mut self, work: &Work) -> Result<Timestamp, Vec<String>> {
        let (horizon, end) = (Timestamp::now() + 2.seconds(), Instant::now() + 2 * LONG);
        loop {
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

    fn unsettled(&self, work: &Work, horizon: Timestamp) -> Vec<String> {
        let (records, mut missing) = (self.records(), Vec::new());
        let below = |folder: &str| {
            let name = |path: &str| Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned());
            let each = records.iter().filter_map(|(path, data)| Some((name(path)?, data.as_slice())));
            each.collect::<Vec<(String, &[u8])>>()
        };
        let marks: BTreeMap<String, &[u8]> = below("/cronkeeper/jobs").into_iter().collect();
        for (name, job) in &work.jobs.jobs {
            let mark = marks.get(name.as_str()).and_then(|data| serde_json::from_slice::<JobRecord>(data).ok());
            let due = |mark: &JobRecord| job.last_before_or_at(horizon, mark.last_scheduled).is_some();
            if mark.as_ref().is_none_or(due) {
                missing.push(format!("the mark of {name} is {:?}", mark.map(|mark| mark.last_scheduled)));
            }
        }
        for (run, _) in below("/cronkeeper/running") {
            if RunId::parse(&run).is_ok_and(|run| run.scheduled_at() <= horizon) {
                missing.push(format!("{run} has not ended"));
            }
        }
        let node = |data: &[u8]| {
            let said = serde_json::from_slice::<serde_json::Value>(data).ok();
            said.and_then(|said| said["node"].as_str().map(str::to_owned)).unwrap_or_default()
        };
        for folder in ["/leader", "/cronkeeper/nodes"] {
            let mut found: Vec<String> = below(folder).iter().map(|(_, data)| node(data)).collect();
            found.sort();
            if found != self.supervisors.names() {
                missing.push(format!("in {folder} are {found:?}"));
            }
        }
        missing
    }

    /// Paths and data of the records that show whether all is well.
    fn records(&self) -> Vec<(String, Vec<u8>)> {
        // One statement, because each starts a program.
        let text = self.server.sql(
            "postgres",
            "SELECT path, encode(data, 'hex') FROM cronkeeper.record
             WHERE parent IN ('/leader', '/cronkeeper/nodes', '/cronkeeper/jobs', '/cronkeeper/running')",
        );
        let rows = text.lines().filter_map(|line| line.split_once('|'));
        rows.map(|(path, hex)| (path.to_owned(), observed::unwrap(path, audit::bytes(hex)).1)).collect()
    }

    fn note(&mut self, what: &str) {
        self.transcript.push(format!("  {} {:6.2} s  {what}", Timestamp::now(), self.began.elapsed().as_secs_f64()));
    }
}

impl Drop for Trial {
    /// What stays stopped for ever would outlive the test.
    fn drop(&mut self) {
        for (_, step) in &self.agenda {
            if let Step::Continue(stopped, _) = step {
                stopped.iter().for_each(|process| send(process, Signal::CONT));
            }
        }
    }
}
