//! Random faults, also several at a time, on nodes and servers; then a quiet phase, in which every promise is checked.
//!
//! A failure prints its seed. `CRONKEEPER_SEED` chooses one, `CRONKEEPER_LONG` makes the test long. The same seed gives
//! the same faults, but not the same interleaving, because these are real processes.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use rustix::process::Signal;

use super::cluster::{Lines, Place, again, in_line, is_long, job, jobs, node, run_id, usual};
use crate::support::node::{Event, Node};
use crate::support::witness::{Entry, Mark, Witness, faults};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, until};

/// xorshift: small, and the same on every platform.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("it is small")
    }
}

/// A fault that is to be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActiveFault {
    Killed(usize),
    Stopped(usize),
    CutOff(usize),
    ServerKilled(usize),
    ServerPaused(usize),
}

struct FaultSchedule {
    ensemble: Ensemble,
    lines: Vec<Lines>,
    nodes: Vec<Option<Node>>,
    /// Logs of processes that are gone.
    logged: Vec<Event>,
    open: Vec<ActiveFault>,
    random: Random,
}

impl FaultSchedule {
    fn inject(&mut self) {
        let at = self.random.one_of(self.nodes.len());
        let is_hit = |fault: &ActiveFault| match *fault {
            ActiveFault::Killed(i) | ActiveFault::Stopped(i) | ActiveFault::CutOff(i) => i == at,
            ActiveFault::ServerKilled(_) | ActiveFault::ServerPaused(_) => false,
        };
        let is_server_hit =
            self.open.iter().any(|w| matches!(w, ActiveFault::ServerKilled(_) | ActiveFault::ServerPaused(_)));
        if self.open.iter().any(is_hit) {
            return;
        }
        match self.random.below(8) {
            0 => self.replace(at, |node| node.signal(Signal::TERM)),
            1 => self.replace(at, Node::kill9),
            2 => {
                self.node(at).kill9();
                self.open.push(ActiveFault::Killed(at));
            }
            3 => {
                self.node(at).stop();
                self.open.push(ActiveFault::Stopped(at));
            }
            4 => {
                self.lines[at].part();
                self.open.push(ActiveFault::CutOff(at));
            }
            5 => self.node(at).signal(Signal::USR2),
            6 if !is_server_hit => {
                self.ensemble.kill(at);
                self.open.push(ActiveFault::ServerKilled(at));
            }
            7 if !is_server_hit => {
                self.ensemble.pause(at);
                self.open.push(ActiveFault::ServerPaused(at));
            }
            _ => {}
        }
    }

    fn heal(&mut self, fault: ActiveFault) {
        match fault {
            ActiveFault::Killed(i) => self.replace(i, |_| {}),
            ActiveFault::Stopped(i) => self.node(i).cont(),
            ActiveFault::CutOff(i) => self.lines[i].pass(),
            ActiveFault::ServerKilled(i) => self.ensemble.restart(i),
            ActiveFault::ServerPaused(i) => self.ensemble.cont(i),
        }
    }

    fn node(&self, at: usize) -> &Node {
        self.nodes[at].as_ref().expect("it is only taken out to be replaced")
    }

    /// Starts a new process of the same node after `end` has ended the old one.
    fn replace(&mut self, at: usize, end: impl FnOnce(&Node)) {
        let node = self.nodes[at].take().expect("it is only taken out to be replaced");
        end(&node);
        // Waits also for the log lines that were not read yet.
        node.wait_exit(LONG);
        self.logged.extend(node.events().all());
        self.nodes[at] = Some(again(node));
    }

    fn run(&mut self, faults: usize) {
        for _ in 0..faults {
            self.inject();
            thread::sleep(Duration::from_millis(200 + self.random.below(4_000)));
            // Some faults last: up to three at a time.
            while !self.open.is_empty() && (self.open.len() > 2 || self.random.below(2) == 0) {
                let fault = self.open.remove(0);
                self.heal(fault);
            }
        }
        for fault in std::mem::take(&mut self.open) {
            self.heal(fault);
        }
    }
}

fn seed() -> u64 {
    let chosen = std::env::var("CRONKEEPER_SEED").ok().and_then(|text| text.parse().ok());
    chosen.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs())
}

#[test]
fn whatever_fails_on_nodes_and_servers_nothing_runs_twice_and_nothing_is_lost_silently() {
    let seed = seed();
    eprintln!("CRONKEEPER_SEED={seed}");
    let ensemble = Ensemble::start(3);
    let place = Place::on(&ensemble);
    let witness = Witness::new();
    // The ledger keeps all: it must explain what the log of a killed node does not.
    let run_all = "misfire: run-all\nmisfire_window: 1h\nmisfire_limit: 1000\nhistory_limit: 1000";
    let sleeping = |seconds: &str| witness.command(&["sleep", seconds]);
    let file = jobs(&[
        job("tick", "* * * * * *", &witness.command(&[]), run_all),
        job("again", "*/3 * * * * *", &sleeping("2"), "interrupted: rerun"),
        job("die", "*/5 * * * * *", &sleeping("3"), "on_lease_end: kill"),
        job("keep", "*/11 * * * * *", &sleeping("6"), ""),
    ]);
    let lines: Vec<Lines> = (0..3).map(|_| Lines::new(&ensemble, &place)).collect();
    let specs = [0, 1, 2].map(|i| usual(node(["a", "b", "c"][i], &lines[i].connect())).jobs(&file));
    let nodes = in_line(specs).map(Some).into();
    let mut schedule =
        FaultSchedule { ensemble, lines, nodes, logged: Vec::new(), open: Vec::new(), random: Random(seed | 1) };
    schedule.run(if is_long() { 100 } else { 6 });

    schedule.ensemble.await_serving();
    let peace = Timestamp::now();
    until("all that was missed is made up for", || {
        let is_new = |at: &str| at.parse::<Timestamp>().is_ok_and(|at| at > peace + 3.seconds());
        witness
            .entries()
            .iter()
            .any(|entry| entry.mark == Mark::End && entry.job == "tick" && is_new(&entry.scheduled_at))
    });
    // The runs first: what comes after them must explain all that is missing between them.
    let entries = witness.entries();
    let ledger = place.history("tick");
    for node in schedule.nodes.iter().flatten() {
        schedule.logged.extend(node.events().all());
    }
    let logged = std::mem::take(&mut schedule.logged);
    drop(schedule);
    let faults = faults(&entries, &[]);
    let tokens: Vec<_> = logged.iter().filter(|event| event.name() == "leader.elected").collect();
    let distinct: BTreeSet<_> = tokens.iter().map(|event| event.number("token")).collect();
    let lost = unexplained(&entries, &logged, &ledger);
    if !faults.is_empty() || distinct.len() < tokens.len() || !lost.is_empty() {
        // The log first: of a long report, the end is what is read.
        let mut log: Vec<String> = logged.iter().map(|event| event.json().to_string()).collect();
        log.sort_by_key(|line| line.find("\"timestamp\"").map(|at| line[at..].to_owned()));
        eprintln!("the log of all nodes:\n  {}\nthe ledger: {ledger:#?}", log.join("\n  "));
        panic!("seed {seed}: broken promises: {faults:#?}; elected: {tokens:#?}; neither run nor explained: {lost:?}");
    }
}

/// The seconds in which `tick` did not run and for which neither a log nor the ledger gives a reason.
fn unexplained(entries: &[Entry], logged: &[Event], ledger: &BTreeMap<String, serde_json::Value>) -> Vec<String> {
    let second = |text: &str| text.parse::<Timestamp>().expect("it is a time").as_second();
    let ended = entries.iter().filter(|entry| entry.job == "tick" && entry.mark == Mark::End);
    let ended: BTreeSet<i64> = ended.map(|entry| second(&entry.scheduled_at)).collect();
    let of_tick = |event: &&Event| event.text("job") == "tick";
    let settled: BTreeSet<&str> = logged
        .iter()
        .filter(of_tick)
        .filter(|event| ["interrupted", "abandoned"].contains(&event.text("outcome")))
        .map(|event| event.text("run"))
        .collect();
    let skips = logged.iter().filter(of_tick).filter(|event| event.name() == "run.skipped");
    let logged_skips = skips.map(|event| match event.text("first") {
        "" => (second(event.text("scheduled_at")), second(event.text("scheduled_at"))),
        first => (second(first), second(event.text("last"))),
    });
    // Only the record of a skip has these fields. Skips that follow each other share one.
    let recorded_skips = ledger.values().filter_map(|record| {
        let at = |field: &str| record.get(field)?.as_str().map(second);
        Some((at("first")?, at("last")?))
    });
    let skipped: Vec<(i64, i64)> = logged_skips.chain(recorded_skips).collect();
    let (Some(&first), Some(&last)) = (ended.first(), ended.last()) else { return vec!["none ended".into()] };
    (first..=last)
        .filter(|second| !ended.contains(second))
        .filter(|second| !skipped.iter().any(|(first, last)| (first..=last).contains(&second)))
        .map(|second| run_id("tick", Timestamp::from_second(second).expect("it is a time")))
        .filter(|run| !settled.contains(&**run) && !ledger.contains_key(run))
        .collect()
}
