//! Benchmark of many jobs that are due every second: `cargo bench --bench steady -- [--service NAME] [WORD]`.
//!
//! It measures how late each job's program ran, with 100 jobs due at each second of a minute, all at once or spread
//! over the second: on one host, on three real ZooKeeper servers, or a real PostgreSQL, with two nodes, and there on any of
//! three nodes. For comparison, a bare loop of the standard library's `Command` starts as many programs at the same times. Slowness is only printed. The run fails if a
//! promise was broken, as in the bench `burst`. With a word, it measures only the rows whose name contains it.

#[path = "shared/service.rs"]
mod service;
#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;
#[path = "failover/table.rs"]
mod table;

use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use self::service::Service;
use self::short::pick;
use self::support::burst::{Burst, DATE, printed_time};
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::table::{Bound, Table, ms};

const GOALS: [Bound; 2] = [Bound::Median(ms(1)), Bound::P99(ms(5))];

fn each_second() -> usize {
    pick(100, 5)
}

fn seconds() -> usize {
    pick(60, 3)
}

fn main() -> ExitCode {
    let mut table = Table::new(service::words().into_iter().next());
    for how in [How::AtOnce, How::Spread] {
        let name = how.row("bare loop");
        if table.wants(&name) {
            table.times(&name, bare(how), &[], &[]);
        }
        measure("solo", how, Where::Leader, &mut table, || vec![Spec::new(CRONKEEPER, "solo")]);
        if table.wants(&how.row(service::name())) {
            let servers = Service::start();
            measure(service::name(), how, Where::Leader, &mut table, || servers.nodes(CRONKEEPER, ["a", "b"]).into());
        }
        let any = &format!("{}, any node", service::name());
        if table.wants(&how.row(any)) {
            let servers = Service::start();
            measure(any, how, Where::Any, &mut table, || servers.nodes(CRONKEEPER, ["a", "b", "c"]).into());
        }
    }
    table.verdict()
}

/// Where the jobs run.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    Leader,
    Any,
}

/// How the jobs of one second are due.
#[derive(Clone, Copy, PartialEq)]
enum How {
    AtOnce,
    Spread,
}

impl How {
    fn row(self, on: &str) -> String {
        let how = if self == Self::AtOnce { "at once" } else { "spread" };
        format!("{on}: {} every second, {how}", each_second())
    }
}

fn measure(on: &str, how: How, at: Where, table: &mut Table, specs: impl Fn() -> Vec<Spec>) {
    let name = &how.row(on);
    if !table.wants(name) {
        return;
    }
    let (burst, nodes) = in_time(how, at, specs);
    burst.await_ends(&nodes);
    table.times(name, burst.lateness(&nodes), &GOALS, &burst.faults(&nodes));
}

/// Nodes that have loaded the jobs some time before the first of them are due.
fn in_time(how: How, at: Where, specs: impl Fn() -> Vec<Spec>) -> (Burst, Vec<Node>) {
    let tries = pick(&[30, 60], &[8, 60]);
    for &seconds in tries {
        let burst = burst(how, seconds);
        let burst = if at == Where::Any { burst.placed() } else { burst };
        let nodes: Vec<Node> = specs().into_iter().map(|spec| spec.jobs(&burst.yaml()).start()).collect();
        if burst.await_held(&nodes) {
            return (burst, nodes);
        }
    }
    panic!("the nodes need more than {} s to start", tries[1]);
}

/// The jobs, the first of which are due in this many seconds.
fn burst(how: How, seconds: i64) -> Burst {
    let burst = Burst::new(each_second() * self::seconds(), seconds).over(self::seconds()).timed();
    if how == How::Spread { burst.spread() } else { burst }
}

/// Starts as many programs at the same times, one after the other.
///
/// It waits for those of a second after it has started those of the next, so that waiting delays no start.
fn bare(how: How) -> Vec<Duration> {
    let burst = burst(how, 2);
    let mut due: Vec<Timestamp> = burst.names().map(|name| burst.due(&name)).collect();
    due.sort();
    let start = |&due: &Timestamp| {
        sleep(Duration::try_from(due.duration_since(Timestamp::now())).unwrap_or_default());
        let mut command = Command::new(DATE[0]);
        let command = command.arg(DATE[1]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        (due, command.spawn().expect("a process can be had"))
    };
    let lateness = |(due, child): (Timestamp, Child)| {
        let output = child.wait_with_output().expect("a child can be waited for").stdout;
        printed_time(&String::from_utf8_lossy(&output)).duration_since(SystemTime::from(due)).unwrap_or_default()
    };
    let (mut late, mut children) = (Vec::new(), Vec::new());
    for second in due.chunks(each_second()) {
        let started = second.iter().map(start).collect();
        late.extend(std::mem::replace(&mut children, started).into_iter().map(lateness));
    }
    late.extend(children.into_iter().map(lateness));
    late
}
