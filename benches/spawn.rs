//! Benchmark of runs per second: `cargo bench --bench spawn -- [RUNS]`.
//!
//! It runs /bin/true many times, all due at one instant, through the whole path: decided, begun in the ledger, started
//! by the warden, ended, recorded, logged; on the solo backend, and on three real ZooKeeper servers. For comparison, a
//! bare loop of the standard library's `Command` keeps as many in flight. Then it measures the memory of daemon and
//! warden on solo with as many runs at once.
//!
//! A rate counts from the instant at which all runs are due to the last end. Some hundred processes are prepared before
//! that instant, so the rate of a thousand runs is higher than one that lasts; ask for 5,000 to measure that.

#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use jiff::{Timestamp, ToSpan as _};
use short::pick;
use support::command::CRONKEEPER;
use support::node::{Event, Node, Spec};
use support::zookeeper::Ensemble;
use support::{LONG, poll};

const ROUNDS: usize = 5;

fn main() {
    // Cargo adds arguments of its own, which begin with a dash.
    let runs = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(pick(1_000, 20));
    let rounds = rounds();
    let bare = median((0..rounds).map(|_| bare(runs)).collect());
    println!("{runs} in flight, median of {rounds} rounds");
    println!("{:<28} {bare:>8.0} runs/s", "bare loop of Command");
    let print = |name: &str, rates| {
        let whole = median(rates);
        println!("{name:<28} {whole:>8.0} runs/s, {:.2} of it", whole / bare);
    };
    print("whole path, solo", whole(Spec::new(CRONKEEPER, "spawn"), runs));
    let ensemble = Ensemble::start(3);
    let connect = format!("{}{}", ensemble.connect_string(), ensemble.chroot());
    print("whole path, three servers", whole(Spec::new(CRONKEEPER, "spawn").zookeeper(&connect), runs));
    drop(ensemble);
    let [daemon, warden] = memory(runs);
    println!("{:<28} {:>8.1} MB ({daemon:.1} daemon, {warden:.1} warden)", "memory with all at once", daemon + warden);
}

fn rounds() -> usize {
    pick(ROUNDS, 1)
}

/// Starts all programs, then waits for all.
fn bare(runs: usize) -> f64 {
    let started = Instant::now();
    let start = |_| {
        let mut command = Command::new("/bin/true");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process can be had")
    };
    let children: Vec<Child> = (0..runs).map(start).collect();
    for mut child in children {
        child.wait().expect("a child can be waited for");
    }
    runs as f64 / started.elapsed().as_secs_f64()
}

fn whole(spec: Spec, runs: usize) -> Vec<f64> {
    let first = next_second(5);
    // The previous round is over by then.
    let pause = 4 + runs / 250;
    let instants: Vec<Timestamp> = (0..rounds()).map(|round| first + ((round * pause) as i64).seconds()).collect();
    let node = node(spec, runs, &instants, "[/bin/true]");
    let rate = |&at: &Timestamp| {
        let ends = ends(&node, at, runs);
        let last = ends.iter().map(|end| end.text("timestamp").parse::<Timestamp>().expect("a time")).max();
        let took = last.expect("runs").duration_since(at);
        runs as f64 / took.as_secs_f64()
    };
    instants.iter().map(rate).collect()
}

/// Waits for the ends of all runs of one round.
fn ends(node: &Node, at: Timestamp, runs: usize) -> Vec<Event> {
    let of_round = at.strftime("%Y%m%dT%H%M%SZ").to_string();
    wait_until(at + 1.second());
    // Seldom, because checking takes processor time from the daemon.
    let found = poll(LONG, || {
        thread::sleep(Duration::from_secs(1));
        let ends = node.events().named("run.finished").into_iter();
        let ends: Vec<Event> = ends.filter(|end| end.text("run").ends_with(&of_round)).collect();
        (ends.len() == runs).then_some(ends)
    });
    found.unwrap_or_else(|| panic!("not all runs ended; the log:\n{}", node.events().tail()))
}

/// Memory of daemon and warden, in MB, while all runs are in flight.
fn memory(runs: usize) -> [f64; 2] {
    let at = next_second(5);
    let node = node(Spec::new(CRONKEEPER, "spawn"), runs, &[at], "[sleep, '20']");
    wait_until(at);
    let all = poll(LONG, || (node.job_processes().len() >= runs).then_some(()));
    assert!(all.is_some(), "not all runs stand; the log:\n{}", node.events().tail());
    let child_of = |pid: u32| -> u32 {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the process lives");
        children.trim().parse().expect("it has one child")
    };
    // Between the two is the watcher.
    [node.pid(), child_of(child_of(node.pid()))].map(resident)
}

fn node(spec: Spec, runs: usize, instants: &[Timestamp], command: &str) -> Node {
    let schedule: Vec<String> = instants.iter().map(|at| format!("'@at {at}'")).collect();
    let schedule = schedule.join(", ");
    let job = |n| format!("  job-{n:04}: {{schedule: [{schedule}], command: {command}, overlap: allow}}\n");
    let jobs = (0..runs).map(job).fold("jobs:\n".to_owned(), |all, job| all + &job);
    let node = spec.jobs(&jobs).start();
    node.await_event("takeover.done", LONG);
    node
}

fn next_second(later: i64) -> Timestamp {
    let now = Timestamp::now();
    now - jiff::SignedDuration::new(0, now.subsec_nanosecond()) + later.seconds()
}

fn wait_until(at: Timestamp) {
    thread::sleep(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
}

fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a figure");
    let kib: f64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib / 1024.0
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
