//! Benchmark of jobs that are all due at one instant: `cargo bench --bench burst -- [--service NAME] [WORD]`.
//!
//! It measures how late each job's program ran after the instant: on one host, and on three real ZooKeeper servers,
//! or a real PostgreSQL, with two nodes and sessions of 4 s and of 10 s. For comparison, a bare loop of the standard library's `Command` starts
//! the same programs, and, for root, Debian's cron runs 200 of them at a minute. Slowness is only printed. The run fails
//! if a job did not run exactly once, if a job ended without a process, if a run in flight was touched, or if a term was
//! lost. With a word, it measures only the rows whose name contains it.

#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use self::service::Service;
use self::short::pick;
use self::support::burst::{Burst, MARKER, marks};
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::support::process::Process;
use self::support::scratch::Scratch;
use self::support::{LONG, poll};
use self::table::Table;

const JOBS: &[usize] = &[200, 1_000, 6_000, 10_000];
const SESSIONS: &[u64] = &[4, 10];
/// The entries of Debian's cron.
const ENTRIES: usize = 200;
const DEBIAN_CRON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/burst/debian-cron.sh");

fn main() -> ExitCode {
    let mut table = Table::new(service::words().into_iter().next());
    // In the short form a session outlives whatever else the machine does.
    let (sizes, sessions) = (pick(JOBS, &[20]), pick(SESSIONS, &SESSIONS[1..]));
    for &jobs in sizes {
        let name = format!("bare loop: {jobs} programs");
        if table.wants(&name) {
            table.times(&name, bare(jobs), &[], &[]);
        }
    }
    let name = format!("Debian's cron: {ENTRIES} entries");
    // It needs the package from the network, and up to two minutes.
    if table.wants(&name) && pick(true, false) {
        match debian_cron() {
            Some(lateness) => table.times(&name, lateness, &[], &[]),
            None => eprintln!("{name}: SKIPPED, because this is not root, or the package cannot be had"),
        }
    }
    for &jobs in sizes {
        measure(&format!("solo: {jobs} jobs"), jobs, &mut table, || vec![Spec::new(CRONKEEPER, "solo")]);
    }
    let servers = Service::start();
    for (session, &jobs) in sessions.iter().flat_map(|session| sizes.iter().map(move |jobs| (session, jobs))) {
        let name = format!("sessions of {session} s: {jobs} jobs");
        measure(&name, jobs, &mut table, || {
            let specs = servers.nodes(CRONKEEPER, ["a", "b"]);
            specs.map(|spec| spec.option("--session-timeout", &format!("{session}s"))).into()
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

/// How late Debian's cron runs entries of one minute; `None` if it cannot be had.
fn debian_cron() -> Option<Vec<Duration>> {
    let (folder, made) = (Scratch::new("debian-cron"), Scratch::new("marks"));
    let entry = |n| format!("* * * * * root {MARKER} {}/{n}\n", made.path().display());
    folder.write("entries", &(0..ENTRIES).map(entry).collect::<String>());
    let cron = Process::spawn(DEBIAN_CRON, |cron| {
        cron.arg(folder.path());
    })
    .expect("a script can be run");
    // The first minute may be over by the time it has started.
    poll(3 * LONG, || (marks(made.path()).count() == ENTRIES || cron.status().is_some()).then_some(()));
    let since_minute = |at: SystemTime| {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Duration::new(since.as_secs() % 60, since.subsec_nanos())
    };
    let lateness: Vec<Duration> = marks(made.path()).map(|(_, at)| since_minute(at)).collect();
    (lateness.len() == ENTRIES).then_some(lateness)
}
