//! Benchmark of jobs that wait for one place in a group: `cargo bench --bench groups -- [WORD]`.
//!
//! As many jobs as requested are due at one instant while another job has the place. After some seconds that job ends,
//! and they run one after the other. Beside them, five jobs run every second, each at its own part of the second; their
//! lateness, while the others wait and while they run, shows whether the daemon's loop turns. The processor time is the
//! daemon's. It runs on one host and on one real ZooKeeper server. Slowness is only printed. The run fails if a job
//! does not run exactly once, if a run of another job was touched, if a second was skipped, or if a term was lost.

#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use self::short::pick;
use self::support::burst::Burst;
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::support::process::processor_time;
use self::support::zookeeper::Ensemble;
use self::table::{Bound, Table, ms};

const WAITING: &[usize] = &[1_000, 3_000];
/// How long the jobs wait.
const HELD: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    // Cargo adds arguments of its own, which begin with a dash.
    let mut table = Table::new(std::env::args().skip(1).find(|word| !word.starts_with('-')));
    // In the short form a session outlives whatever else the machine does.
    let (waiting, session) = (pick(WAITING, &[20]), pick("4s", "10s"));
    for &jobs in waiting {
        measure(&format!("solo: {jobs}"), jobs, &mut table, || Spec::new(CRONKEEPER, "solo"));
    }
    let ensemble = Ensemble::start(1);
    for &jobs in waiting {
        let connect = || format!("{}{}", ensemble.connect_string(), ensemble.chroot());
        measure(&format!("ZooKeeper: {jobs}"), jobs, &mut table, || {
            Spec::new(CRONKEEPER, "a").zookeeper(&connect()).option("--session-timeout", session)
        });
    }
    table.verdict()
}

fn measure(name: &str, jobs: usize, table: &mut Table, spec: impl Fn() -> Spec) {
    if !table.wants(name) {
        return;
    }
    let (burst, nodes) = in_time(jobs, spec);
    let used = || processor_time(nodes[0].pid());
    let begun = used();
    thread::sleep(
        Duration::try_from(burst.at().duration_since(Timestamp::now())).unwrap_or_default() + pick(HELD, HELD / 5),
    );
    let (released, waited) = (Timestamp::now(), used() - begun);
    burst.release();
    burst.await_ends(&nodes);
    let (over, ran) = (Timestamp::now(), used() - begun - waited);
    let late = |from, until| burst.lateness_of_ticks(&nodes, from, until);
    let bounds = [Bound::Each(ms(50))];
    let mut faults = burst.faults(&nodes);
    faults.extend(burst.skipped_ticks(&nodes));
    let first = burst.at() - jiff::SignedDuration::from_secs(1);
    table.times(&format!("{name} wait, lateness beside them"), late(first, released), &bounds, &faults);
    table.times(&format!("{name} run, lateness beside them"), late(released, over), &bounds, &[]);
    let [waited, ran] = [waited, ran].map(|time| time.as_secs_f64());
    let lasted = over.duration_since(released).as_secs_f64();
    println!(
        "{name}: {waited:.2} s of processor time while they waited; {ran:.2} s while they ran, which took {lasted:.1} s"
    );
}

/// A node that has loaded the jobs some time before they are due.
fn in_time(jobs: usize, spec: impl Fn() -> Spec) -> (Burst, [Node; 1]) {
    for seconds in [8, 16, 32, 64] {
        let burst = Burst::new(jobs, seconds).grouped();
        let nodes = [spec().jobs(&burst.yaml()).start()];
        if burst.await_held(&nodes) {
            return (burst, nodes);
        }
    }
    panic!("the node needs more than 64 s to start with {jobs} jobs");
}
