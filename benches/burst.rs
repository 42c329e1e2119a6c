//! Benchmark of jobs that are all due at one instant: `cargo bench --bench burst -- [WORD]`.
//!
//! It measures how late each job's program ran after the instant: on one host, and on three real ZooKeeper servers with
//! two nodes and sessions of 4 s and of 10 s. For comparison, a bare loop of the standard library's `Command` starts
//! the same programs, and, for root, Debian's cron runs 200 of them at a minute. Slowness is only printed. The run fails if a job did not run exactly once, if a job ended without
//! a process, if a run in flight was touched, or if a term was lost. With a word, it measures only the rows whose name
//! contains it.

#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::fmt::Write as _;
use std::fs;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use self::support::burst::{Burst, MARKER, marks};
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::support::scratch::Scratch;
use self::support::zookeeper::Ensemble;
use self::table::Table;

const JOBS: [usize; 4] = [200, 1_000, 6_000, 10_000];
const SESSIONS: [u64; 2] = [4, 10];
/// The entries of Debian's cron.
const ENTRIES: usize = 200;
const DEBIAN_CRON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/burst/debian-cron.sh");

fn main() -> ExitCode {
    // Cargo adds arguments of its own, which begin with a dash.
    let word = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut table = Table::new(word);
    for jobs in JOBS {
        let name = format!("bare loop: {jobs} programs");
        if table.wants(&name) {
            table.times(&name, bare(jobs), &[], &[]);
        }
    }
    let name = format!("Debian's cron: {ENTRIES} entries");
    if table.wants(&name) {
        match debian_cron() {
            Some(lateness) => table.times(&name, lateness, &[], &[]),
            None => eprintln!("{name}: SKIPPED, because this is not root, or the package cannot be had"),
        }
    }
    for jobs in JOBS {
        measure(&format!("solo: {jobs} jobs"), jobs, &mut table, || vec![Spec::new(CRONKEEPER, "solo")]);
    }
    let ensemble = Ensemble::start(3);
    for (session, jobs) in SESSIONS.iter().flat_map(|session| JOBS.map(|jobs| (session, jobs))) {
        let name = format!("sessions of {session} s: {jobs} jobs");
        measure(&name, jobs, &mut table, || {
            let connect = format!("{}{}", ensemble.connect_string(), ensemble.chroot());
            let spec = |name| Spec::new(CRONKEEPER, name).zookeeper(&connect);
            ["a", "b"].map(|name| spec(name).option("--session-timeout", &format!("{session}s"))).into()
        });
    }
    table.verdict()
}

fn measure(name: &str, jobs: usize, table: &mut Table, specs: impl Fn() -> Vec<Spec>) {
    if !table.wants(name) {
        return;
    }
    let (burst, nodes) = in_time(jobs, specs);
    burst.await_ends(&nodes);
    table.times(name, burst.lateness(&nodes), &[], &burst.faults(&nodes));
}

/// Nodes that have loaded the jobs some time before they are due.
fn in_time(jobs: usize, specs: impl Fn() -> Vec<Spec>) -> (Burst, Vec<Node>) {
    for seconds in [10, 20, 40, 80] {
        let burst = Burst::new(jobs, seconds);
        let nodes: Vec<Node> = specs().into_iter().map(|spec| spec.jobs(&burst.yaml()).start()).collect();
        if burst.await_held(&nodes) {
            return (burst, nodes);
        }
    }
    panic!("the nodes need more than 80 s to start with {jobs} jobs");
}

/// Starts all programs, then waits for all.
fn bare(jobs: usize) -> Vec<Duration> {
    let folder = Scratch::new("bare");
    let due = SystemTime::now();
    let start = |n| {
        let mut command = Command::new(MARKER);
        command.arg(folder.path().join(format!("{n}")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a process can be had")
    };
    let children: Vec<Child> = (0..jobs).map(start).collect();
    for mut child in children {
        child.wait().expect("a child can be waited for");
    }
    marks(folder.path()).map(|(_, made)| made.duration_since(due).unwrap_or_default()).collect()
}

/// How late Debian's cron runs entries for each minute; `None` if it ran none.
fn debian_cron() -> Option<Vec<Duration>> {
    let folder = Scratch::new("debian-cron");
    let (entries, marks_folder) = (folder.path().join("entries"), folder.path().join("marks"));
    fs::create_dir(&marks_folder).expect("a folder can be made");
    let text = (0..ENTRIES).fold(String::new(), |mut text, n| {
        writeln!(text, "* * * * * root {MARKER} {}/{n}", marks_folder.display()).expect("memory can be written to");
        text
    });
    fs::write(&entries, text).expect("a file can be written");
    let mut cron = Command::new(DEBIAN_CRON).arg(&entries).spawn().expect("a script can be run");
    // The first minute may be over by the time it has started.
    let until = Instant::now() + Duration::from_secs(150);
    while marks(&marks_folder).count() < ENTRIES && Instant::now() < until && matches!(cron.try_wait(), Ok(None)) {
        thread::sleep(Duration::from_millis(200));
    }
    let _ = cron.kill();
    let _ = cron.wait();
    let since_minute = |made: SystemTime| {
        let since = made.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Duration::new(since.as_secs() % 60, since.subsec_nanos())
    };
    let lateness: Vec<Duration> = marks(&marks_folder).map(|(_, made)| since_minute(made)).collect();
    (lateness.len() == ENTRIES).then_some(lateness)
}
