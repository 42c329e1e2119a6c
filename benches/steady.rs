//! Benchmark of many jobs that are due every second: `cargo bench --bench steady -- [WORD]`.
//!
//! It measures how late each job's program ran, with 100 jobs due at each second of a minute: on one host, and on three
//! real ZooKeeper servers with two nodes. For comparison, a bare loop of the standard library's `Command` starts as many
//! programs every second. Slowness is only printed. The run fails if a promise was broken, as in the bench `burst`. With
//! a word, it measures only the rows whose name contains it.

#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use self::support::burst::{Burst, MARKER, marks};
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::support::scratch::Scratch;
use self::support::zookeeper::Ensemble;
use self::table::{Bound, Table, ms};

const EACH_SECOND: usize = 100;
const SECONDS: usize = 60;
const GOALS: [Bound; 2] = [Bound::Median(ms(1)), Bound::P99(ms(5))];

fn main() -> ExitCode {
    // Cargo adds arguments of its own, which begin with a dash.
    let word = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let mut table = Table::new(word);
    let name = format!("bare loop: {EACH_SECOND} every second");
    if table.wants(&name) {
        table.times(&name, bare(), &[], &[]);
    }
    measure(&format!("solo: {EACH_SECOND} every second"), &mut table, || vec![Spec::new(CRONKEEPER, "solo")]);
    let name = format!("three servers: {EACH_SECOND} every second");
    if table.wants(&name) {
        let ensemble = Ensemble::start(3);
        measure(&name, &mut table, || {
            let connect = format!("{}{}", ensemble.connect_string(), ensemble.chroot());
            ["a", "b"].map(|name| Spec::new(CRONKEEPER, name).zookeeper(&connect)).into()
        });
    }
    table.verdict()
}

fn measure(name: &str, table: &mut Table, specs: impl Fn() -> Vec<Spec>) {
    if !table.wants(name) {
        return;
    }
    let burst = Burst::new(EACH_SECOND * SECONDS, 30).over(SECONDS);
    let nodes: Vec<Node> = specs().into_iter().map(|spec| spec.jobs(&burst.yaml()).start()).collect();
    assert!(burst.await_held(&nodes), "the nodes need more than 30 s to start");
    burst.await_ends(&nodes);
    table.times(name, burst.lateness(), &GOALS, &burst.faults(&nodes));
}

/// Starts the programs of each second one after the other, and waits for them.
fn bare() -> Vec<Duration> {
    let (folder, begin, due) = (Scratch::new("bare"), Instant::now(), SystemTime::now());
    for second in 0..SECONDS {
        sleep((begin + Duration::from_secs(second as u64)).saturating_duration_since(Instant::now()));
        let start = |n| {
            let mut command = Command::new(MARKER);
            command.arg(folder.path().join(format!("{second} {n}")));
            let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("a process can be had")
        };
        let children: Vec<Child> = (0..EACH_SECOND).map(start).collect();
        for mut child in children {
            child.wait().expect("a child can be waited for");
        }
    }
    let late = |(name, made): (String, SystemTime)| {
        let second = name.split(' ').next().and_then(|second| second.parse().ok()).expect("a second");
        made.duration_since(due + Duration::from_secs(second)).unwrap_or_default()
    };
    marks(folder.path()).map(late).collect()
}
