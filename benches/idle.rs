//! Benchmark of the cost of an idle node: `cargo bench --bench idle -- [--service NAME] [SECONDS] [JOBS]`.
//!
//! It runs real daemons with 100 jobs (or so many), none of which is due, with sessions of 10 s, as operators have it:
//! one leader and two followers on a real service, of ZooKeeper one server, and one node without a service. On a store
//! it also counts the commits of the three.

#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use service::Service;
use short::pick;
use support::node::{Node, Spec};
use support::zookeeper::Ensemble;
use support::{LONG, poll};

/// Jobs of each node, unless the command line says otherwise.
const JOBS: usize = 100;
/// Those on the service.
const NODES: [&str; 3] = ["leader", "follower", "another"];

fn main() {
    let mut numbers = service::words().into_iter().filter_map(|word| word.parse().ok());
    let (seconds, jobs) = (numbers.next().unwrap_or(pick(30, 1)), numbers.next().unwrap_or(pick(JOBS, 5)));
    let servers = if service::is_another() { Service::start() } else { Service::ZooKeeper(Ensemble::start(1)) };
    let place = servers.place();
    let nodes = NODES.map(|name| {
        let node = spec(name, jobs).on_service(&place).start();
        node.await_in_queue();
        node
    });
    let solo = spec("solo", jobs).start();
    solo.await_event("takeover.done", LONG);
    // By then the work of the start is done, and its memory given back.
    thread::sleep(Duration::from_secs(pick(5, 0)));
    let before = servers.commits(&place);
    let all: Vec<(&str, &Node)> = NODES.into_iter().zip(&nodes).chain([("solo", &solo)]).collect();
    let took = report(&all, seconds as u64);
    if let Some((before, after)) = before.zip(servers.commits(&place)) {
        let each_second = (after - before) as f64 / took.as_secs_f64();
        println!("commits of the three nodes on {}: {each_second:.1} a second", service::name());
    }
}

fn spec(name: &str, jobs: usize) -> Spec {
    let job = |n| format!("  job-{n:05}:\n    schedule: \"H H 29 2 *\"\n    command: [\"true\"]\n");
    Spec::new(env!("CARGO_BIN_EXE_cronkeeper"), name)
        .jobs(&(0..jobs).map(job).fold("jobs:\n".to_owned(), |all, job| all + &job))
}

/// Prints what each process has used in so many seconds. Returns how long that took.
fn report(nodes: &[(&str, &Node)], seconds: u64) -> Duration {
    let begun = Instant::now();
    let processes: Vec<(String, u32)> = nodes
        .iter()
        .flat_map(|(name, node)| {
            let watcher = poll(LONG, || child_of(node.pid())).expect("a daemon has a watcher");
            let warden = poll(LONG, || child_of(watcher)).expect("a watcher has a warden");
            [
                ((*name).to_owned(), node.pid()),
                ("  its watcher".to_owned(), watcher),
                ("  its warden".to_owned(), warden),
            ]
        })
        .collect();
    let before: Vec<Used> = processes.iter().map(|(_, pid)| Used::by(*pid)).collect();
    thread::sleep(Duration::from_secs(seconds));
    println!(
        "{:<14} {:>8} {:>9} {:>9} {:>8} {:>12} {:>10}",
        "", "RSS MB", "private", "anonymous", "threads", "CPU ms/s", "wake-ups/s"
    );
    for ((name, pid), before) in processes.iter().zip(before) {
        let (used, memory) = (Used::by(*pid), Memory::of(*pid));
        let (nanos, wake_ups) = used.since(&before);
        println!(
            "{name:<14} {:>8.1} {:>9.1} {:>9.1} {:>8} {:>12.2} {:>10.1}",
            memory.rss,
            memory.private,
            memory.anonymous,
            used.0.len(),
            nanos as f64 / 1e6 / seconds as f64,
            wake_ups as f64 / seconds as f64,
        );
    }
    begun.elapsed()
}

/// Processor time and voluntary context switches so far, by thread. A thread may end meanwhile.
struct Used(BTreeMap<OsString, (u64, u64)>);

impl Used {
    fn by(pid: u32) -> Self {
        let threads = fs::read_dir(proc(pid).join("task")).expect("the process lives").flatten();
        let used = |thread: fs::DirEntry| {
            let schedule = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let nanos = schedule.split(' ').next()?.parse().ok()?;
            let wake_ups = figures(&thread.path().join("status")).get("voluntary_ctxt_switches").copied()?;
            Some((thread.file_name(), (nanos, wake_ups)))
        };
        Self(threads.filter_map(used).collect())
    }

    /// Nanoseconds and wake-ups since then, of the threads that are alive.
    fn since(&self, before: &Self) -> (u64, u64) {
        let (nanos, wake_ups): (Vec<u64>, Vec<u64>) = self
            .0
            .iter()
            .map(|(thread, used)| (used, before.0.get(thread).copied().unwrap_or_default()))
            .map(|(used, before)| (used.0 - before.0, used.1 - before.1))
            .unzip();
        (nanos.iter().sum(), wake_ups.iter().sum())
    }
}

/// In MB.
struct Memory {
    rss: f64,
    private: f64,
    anonymous: f64,
}

impl Memory {
    fn of(pid: u32) -> Self {
        let all = figures(&proc(pid).join("smaps_rollup"));
        let mb = |name: &str| all.get(name).copied().unwrap_or_default() as f64 / 1024.0;
        Self { rss: mb("Rss"), private: mb("Private_Dirty") + mb("Private_Clean"), anonymous: mb("Anonymous") }
    }
}

/// The numbers in a file of lines `name: number`.
fn figures(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let figure = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        Some((name.to_owned(), rest.split_whitespace().next()?.parse().ok()?))
    };
    text.lines().filter_map(figure).collect()
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(proc(pid).join(format!("task/{pid}/children"))).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn proc(pid: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string())
}
