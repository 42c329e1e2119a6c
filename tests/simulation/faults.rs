//! The faults of a seed and their times: a plan that is drawn before anything runs.
//!
//! Every fault ends by itself, after a fraction or a few multiples of the session timeout, because the promises are
//! hardest to keep around those times. Faults overlap freely.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use fastrand::Rng;
use jiff::SignedDuration;

use super::foreign_entries::ForeignEntry;
use super::network::Host;
use super::targeted_fault::TargetedFault;
use super::triggered_stall::{Moment, Stall, TriggeredStall};
use super::world::{Event, Health, World};
use super::zookeeper::{SERVERS, Server};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A node's process dies, alone or with its host, whose warden and jobs die too.
    Kill {
        node: usize,
        with_host: bool,
    },
    Start {
        node: usize,
    },
    /// A node's daemon is stopped, swapped out or stuck.
    Pause {
        node: usize,
    },
    Resume {
        node: usize,
    },
    /// A node's host freezes, including its jobs, as under a hypervisor.
    Freeze {
        node: usize,
    },
    Thaw {
        node: usize,
    },
    /// A node's warden hangs, and nothing else does. Its daemon must notice.
    HangWarden {
        node: usize,
    },
    WakeWarden {
        node: usize,
    },
    StepClock {
        node: usize,
        by: SignedDuration,
    },
    Cut {
        from: Host,
        to: Host,
    },
    Slow {
        from: Host,
        to: Host,
    },
    Heal {
        from: Host,
        to: Host,
    },
    CrashServer {
        server: usize,
        with_host: bool,
    },
    StartServer {
        server: usize,
    },
    PauseServer {
        server: usize,
    },
    ResumeServer {
        server: usize,
    },
    /// The server that leads the ensemble hangs.
    PauseLeadingServer {
        lasts: Duration,
    },
    /// The disks of all servers hang: writes are accepted and committed late, and everything else continues.
    StallDisks,
    ResumeDisks,
    /// The loop of a node's daemon hangs, as on a disk that does not answer, while its backend continues.
    StallLoop {
        node: usize,
    },
    ResumeLoop {
        node: usize,
    },
    /// From now on each start takes the wardens of all nodes this long.
    SlowStarts {
        each: Duration,
    },
    QuickStarts,
    /// A foreign client leaves a record.
    ForeignEntry {
        entry: ForeignEntry,
        is_closed: bool,
    },
    /// The daemon's socket to its warden accepts messages again, starting with those that were held back.
    Unclog {
        node: usize,
    },
    /// The servers lose the transactions that they committed last.
    Rewind {
        lost: usize,
    },
    /// A fault that chooses its own moment.
    TargetedFault(TargetedFault),
}

/// Draws the faults of one run, from `begin` to `end`, with the instants at which they start and end.
pub fn plan(rng: &mut Rng, nodes: usize, timeout: Duration, begin: Uptime, end: Uptime) -> Vec<(Uptime, Fault)> {
    let mut plan = Vec::new();
    // Seeds with few faults find other bugs than seeds with many.
    let mean_gap = timeout.mul_f64(0.3 + 2.7 * rng.f64());
    let mut at = begin;
    loop {
        at = at + mean_gap.mul_f64(2.0 * rng.f64());
        if at >= end {
            break;
        }
        let kind = rng.u8(..16);
        if kind < 4 {
            match kind {
                0 | 1 => {
                    plan.push((at, Fault::TargetedFault(targeted_fault(rng, at + timeout))));
                    plan.push((at, Fault::TargetedFault(TargetedFault::Clog { until: at + timeout })));
                }
                2 => plan.push((at, triggered_stall(rng, timeout, at + 2 * timeout).into())),
                _ => plan.extend(stall(rng, nodes, timeout, at)),
            }
            // Most faults need some time in which nothing else happens.
            at = at + timeout.mul_f64(2.0 * rng.f64());
            continue;
        }
        let lasts = timeout.mul_f64(0.02 * 200_f64.powf(rng.f64()));
        for (fault, cure) in trouble(rng, nodes, timeout) {
            plan.push((at, fault));
            if let Some(cure) = cure {
                plan.push((at + lasts, cure));
            }
        }
    }
    for _ in 0..rng.u8(..3) {
        let at = begin + end.since(begin).mul_f64(rng.f64());
        plan.extend(hang(rng, nodes, timeout, at));
    }
    if rng.u8(..6) == 0 {
        let at = begin + end.since(begin).mul_f64(rng.f64());
        plan.push((
            at,
            Fault::ForeignEntry {
                entry: ForeignEntry::ALL[rng.usize(..ForeignEntry::ALL.len())],
                is_closed: rng.bool(),
            },
        ));
    }
    plan
}

/// Losses of what the servers have committed, so that a seed has few other faults between them.
pub fn rewinds(rng: &mut Rng, timeout: Duration, begin: Uptime, end: Uptime) -> Vec<(Uptime, Fault)> {
    let mut plan = Vec::new();
    let mut at = begin;
    loop {
        at = at + timeout.mul_f64(0.5 + 2.0 * rng.f64());
        if at >= end {
            return plan;
        }
        plan.push((at, Fault::Rewind { lost: rng.usize(1..=12) }));
    }
}

/// A hanging warden: at any time, or around the time at which it would have to kill, while its node is cut off.
fn hang(rng: &mut Rng, nodes: usize, timeout: Duration, at: Uptime) -> Vec<(Uptime, Fault)> {
    let node = rng.usize(..nodes);
    let lasts = timeout.mul_f64(0.2 * 20_f64.powf(rng.f64()));
    let mut plan = vec![(at, Fault::HangWarden { node }), (at + lasts, Fault::WakeWarden { node })];
    if rng.bool() {
        let (from, cut_for) = (at + timeout.mul_f64(0.2 * rng.f64()), timeout.mul_f64(1.0 + rng.f64()));
        for (fault, cure) in cut(&[Host::Node(node)], &servers(|_| true), rng) {
            plan.push((from, fault));
            plan.extend(cure.map(|cure| (from + cut_for, cure)));
        }
    }
    plan
}

/// A fault that gives up waiting for its moment at `until`.
fn targeted_fault(rng: &mut Rng, until: Uptime) -> TargetedFault {
    match rng.u8(..3) {
        0 => TargetedFault::Doze,
        1 => TargetedFault::Echo { until },
        _ => TargetedFault::Island { until },
    }
}

/// A stall that leaves sessions alive, for long enough that leases end.
fn stall(rng: &mut Rng, nodes: usize, timeout: Duration, at: Uptime) -> Vec<(Uptime, Fault)> {
    let (node, server) = (rng.usize(..nodes), rng.usize(..SERVERS));
    let (fault, cure, lasts) = match rng.u8(..5) {
        0 => return vec![(at, Fault::PauseLeadingServer { lasts: drawn(rng, timeout, SERVER_STALLS) })],
        1 => (Fault::PauseServer { server }, Fault::ResumeServer { server }, SERVER_STALLS),
        2 => (Fault::StallDisks, Fault::ResumeDisks, DISKS_STALL),
        3 => (Fault::StallLoop { node }, Fault::ResumeLoop { node }, LOOP_STALLS),
        _ => (Fault::SlowStarts { each: drawn(rng, timeout, (0.02, 0.15)) }, Fault::QuickStarts, (1.0, 3.0)),
    };
    vec![(at, fault), (at + drawn(rng, timeout, lasts), cure)]
}

/// Shortest and longest stall of a server, in session timeouts.
const SERVER_STALLS: (f64, f64) = (1.0, 2.5);
const DISKS_STALL: (f64, f64) = (0.3, 1.5);
const LOOP_STALLS: (f64, f64) = (0.5, 3.0);

/// A random duration between two fractions of the session timeout.
fn drawn(rng: &mut Rng, timeout: Duration, (least, most): (f64, f64)) -> Duration {
    timeout.mul_f64(least + (most - least) * rng.f64())
}

/// A stall that waits for its moment until `until`.
fn triggered_stall(rng: &mut Rng, timeout: Duration, until: Uptime) -> TriggeredStall {
    let moment = [Moment::Begin, Moment::Again, Moment::Opening][rng.usize(..3)];
    let (stall, lasts) = [
        (Stall::LeadingServer, SERVER_STALLS),
        (Stall::OwnServer, SERVER_STALLS),
        (Stall::Disks, DISKS_STALL),
        (Stall::Loop, LOOP_STALLS),
    ][rng.usize(..4)];
    TriggeredStall { moment, stall, until, lasts: drawn(rng, timeout, lasts) }
}

type Trouble = Vec<(Fault, Option<Fault>)>;

fn trouble(rng: &mut Rng, nodes: usize, timeout: Duration) -> Trouble {
    let node = rng.usize(..nodes);
    let server = rng.usize(..SERVERS);
    let with_host = rng.u8(..3) == 0;
    match rng.u8(..16) {
        0 | 1 => vec![(Fault::Kill { node, with_host }, Some(Fault::Start { node }))],
        2 | 3 => vec![(Fault::Pause { node }, Some(Fault::Resume { node }))],
        4 => vec![(Fault::Freeze { node }, Some(Fault::Thaw { node }))],
        5 => vec![(Fault::StepClock { node, by: step(rng, timeout) }, None)],
        6 | 7 => cut(&[Host::Node(node)], &servers(|_| true), rng),
        8 => cut(&[Host::Node(node)], &[Host::Server(server)], rng),
        9 | 10 => cut(&[Host::Server(server)], &servers(|other| other != server), rng),
        11 => partition(node, server, nodes),
        12 => slow(Host::Node(node), Host::Server(server)),
        13 => vec![(Fault::PauseServer { server }, Some(Fault::ResumeServer { server }))],
        14 => vec![(Fault::CrashServer { server, with_host }, Some(Fault::StartServer { server }))],
        _ => outage(rng, with_host),
    }
}

fn servers(which: impl Fn(usize) -> bool) -> Vec<Host> {
    (0..SERVERS).filter(|server| which(*server)).map(Host::Server).collect()
}

/// Mostly about as long as a failover takes; sometimes minutes, which is too far ahead for a node to begin anything.
fn step(rng: &mut Rng, timeout: Duration) -> SignedDuration {
    let by = match rng.u8(..4) {
        0 => SignedDuration::from_secs(rng.i64(30..3_600)),
        _ => SignedDuration::try_from(timeout.mul_f64(0.01 * 1000_f64.powf(rng.f64()))).unwrap_or_default(),
    };
    if rng.bool() { by } else { -by }
}

/// Cuts all links between two groups, in one direction or both.
fn cut(these: &[Host], those: &[Host], rng: &mut Rng) -> Trouble {
    let (there, back) = [(true, true), (true, true), (true, false), (false, true)][rng.usize(..4)];
    let mut trouble = Trouble::new();
    for &a in these {
        for &b in those {
            let ways = [(there, a, b), (back, b, a)];
            trouble.extend(ways.into_iter().filter(|(cut, ..)| *cut).map(|(_, from, to)| cut_way(from, to)));
        }
    }
    trouble
}

fn cut_way(from: Host, to: Host) -> (Fault, Option<Fault>) {
    (Fault::Cut { from, to }, Some(Fault::Heal { from, to }))
}

/// Separates a node and a server from all others: the server answers the node, but cannot commit.
fn partition(node: usize, server: usize, nodes: usize) -> Trouble {
    let inside = [Host::Node(node), Host::Server(server)];
    let outside =
        servers(|other| other != server).into_iter().chain((0..nodes).filter(|other| *other != node).map(Host::Node));
    let mut trouble = Trouble::new();
    for b in outside {
        for a in inside {
            if !matches!((a, b), (Host::Node(_), Host::Node(_))) {
                trouble.extend([cut_way(a, b), cut_way(b, a)]);
            }
        }
    }
    trouble
}

fn slow(a: Host, b: Host) -> Trouble {
    [(a, b), (b, a)].into_iter().map(|(from, to)| (Fault::Slow { from, to }, Some(Fault::Heal { from, to }))).collect()
}

/// The quorum is gone, or the whole ensemble.
fn outage(rng: &mut Rng, with_host: bool) -> Trouble {
    let spared = rng.usize(..2 * SERVERS);
    (0..SERVERS)
        .filter(|server| *server != spared)
        .map(|server| (Fault::CrashServer { server, with_host }, Some(Fault::StartServer { server })))
        .collect()
}

impl World {
    /// Schedules the faults of a plan.
    pub fn expect(&mut self, plan: Vec<(Uptime, Fault)>) {
        for (at, fault) in plan {
            self.env.queue.at(at, Event::Fault(fault));
        }
    }

    /// Executes a fault, unless it is the executor's. In peace no fault happens, whoever planned it.
    pub fn inject(&mut self, fault: Fault) {
        if self.env.network.is_calm() {
            return;
        }
        // A targeted fault checks often; the fault that it finally causes is noted by itself.
        if !matches!(fault, Fault::TargetedFault(_)) {
            self.env.note(|| format!("fault: {fault:?}"));
        }
        match fault {
            Fault::Kill { .. } | Fault::Start { .. } => unreachable!("the executor's"),
            Fault::Pause { node } => self.pause(node),
            Fault::Resume { node } if !self.wardens.is_frozen(node) => self.resume(node),
            Fault::Resume { .. } => {}
            Fault::Freeze { node } => {
                self.pause(node);
                self.wardens.freeze(&mut self.env, node);
            }
            Fault::Thaw { node } => {
                self.wardens.thaw(&mut self.env, node);
                self.resume(node);
            }
            // Warden and loop hanging together is a frozen host; systemd handles a daemon that hangs alone.
            Fault::HangWarden { node } if self.has_loop(node) => self.wardens.hang(node),
            Fault::HangWarden { .. } => {}
            Fault::WakeWarden { node } => self.wardens.go_on(&mut self.env, node),
            Fault::StepClock { node, by } => self.step_clock(node, by),
            Fault::Cut { from, to } => self.env.network.cut(from, to),
            Fault::Slow { from, to } => self.env.network.slow(from, to),
            Fault::Heal { from, to } => self.heal(from, to),
            Fault::CrashServer { server, with_host } => self.ensemble.servers[server].crash(&mut self.env, with_host),
            Fault::StartServer { server } => self.ensemble.servers[server].start(&mut self.env),
            Fault::PauseServer { server } => self.ensemble.servers[server].pause(),
            Fault::PauseLeadingServer { lasts } => self.pause_leading_server(lasts),
            Fault::StallDisks => {
                self.store.is_stalled = true;
                self.ensemble.servers.iter_mut().for_each(Server::stall_disk);
            }
            Fault::Rewind { lost } if self.store.rewinds => self.rewind_store(lost),
            Fault::Rewind { lost } => self.ensemble.rewind(&mut self.env, lost),
            Fault::ResumeDisks => self.resume_disks(),
            Fault::StallLoop { node } => self.stall_loop(node),
            Fault::ResumeLoop { node } => self.resume_loop(node),
            Fault::SlowStarts { each } => self.wardens.slow(Some(each)),
            Fault::QuickStarts => self.wardens.slow(None),
            Fault::ForeignEntry { entry, is_closed } => self.leave_foreign_entry(entry, is_closed),
            Fault::Unclog { node } => self.wardens.unclog(&mut self.env, node),
            Fault::TargetedFault(targeted_fault) => self.targeted_fault(targeted_fault),
            Fault::ResumeServer { server } => self.ensemble.servers[server].resume(&mut self.env),
        }
    }

    /// Repairs all links, servers and processes, and sets the clocks right. Dead processes stay dead.
    pub fn heal_all(&mut self) {
        self.env.network.calm();
        let nodes = self.nodes.len();
        let hosts: Vec<Host> = servers(|_| true).into_iter().chain((0..nodes).map(Host::Node)).collect();
        for &from in &hosts {
            for &to in &hosts {
                self.heal(from, to);
            }
        }
        self.ensemble.calm();
        self.resume_disks();
        self.wardens.slow(None);
        for server in 0..SERVERS {
            self.ensemble.servers[server].resume(&mut self.env);
            self.ensemble.servers[server].start(&mut self.env);
        }
        for node in 0..nodes {
            self.wardens.thaw(&mut self.env, node);
            self.wardens.go_on(&mut self.env, node);
            self.wardens.unclog(&mut self.env, node);
            self.resume(node);
            self.resume_loop(node);
            self.step_clock(node, -self.nodes[node].skew);
        }
    }

    fn resume_disks(&mut self) {
        self.store.is_stalled = false;
        for server in &mut self.ensemble.servers {
            server.resume_disk(&mut self.env);
        }
    }

    fn pause(&mut self, node: usize) {
        if self.nodes[node].health == Health::Running {
            self.nodes[node].health = Health::Paused;
            self.wardens.go_on(&mut self.env, node);
        }
    }

    fn heal(&mut self, from: Host, to: Host) {
        // At once, because packets sent later are still under way and must not overtake these.
        for packet in self.env.network.heal(from, to, &mut self.env.rng) {
            self.take(Event::Packet(packet));
        }
    }
}
