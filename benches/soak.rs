//! Benchmark of the growth of the ledger in ZooKeeper: `cargo bench --bench soak -- [MINUTES]`.
//!
//! It runs 200 jobs every five seconds and 1,000 every minute, for ten minutes, on two nodes and three real servers.
//! Twenty records of each kind must remain of each job. So the jobs of every five seconds must have all their records
//! after the first three minutes, while those of every minute may still gain one a minute each; those are counted
//! separately. The run fails if a job ever has more than thirty records of a kind, if the number of all other znodes
//! grows after the third minute, or if a job does not run. It counts in the middle of each minute, between the crowds; in
//! the short form, of which the trimming sees little, after a few seconds.

#[path = "shared/short.rs"]
mod short;
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::Timestamp;
use zookeeper_client::Client;

use self::short::pick;
use self::support::LONG;
use self::support::command::CRONKEEPER;
use self::support::node::{Node, Spec};
use self::support::process::processor_time;
use self::support::zookeeper::Ensemble;

/// A job never has more records of one kind than this.
const MOST: usize = 30;
/// Minutes after which the jobs of every five seconds have all their records.
const FULL: usize = 3;
/// Requests at a time.
const BESIDE: usize = 32;

fn fast() -> usize {
    pick(200, 5)
}

fn slow() -> usize {
    pick(1_000, 10)
}

fn main() -> ExitCode {
    // Cargo adds arguments of its own, which begin with a dash.
    let minutes = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(pick(10, 1));
    let ensemble = Ensemble::start(3);
    let chroot = ensemble.chroot();
    let connect = format!("{}{chroot}", ensemble.connect_string());
    let spec = |name| Spec::new(CRONKEEPER, name).zookeeper(&connect).jobs(&jobs());
    let first = spec("a").start();
    // Of two nodes that start at once, either may lead.
    first.await_event("takeover.done", LONG);
    let nodes = [first, spec("b").start()];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be had");
    let client = runtime.block_on(Client::connect(&connect)).expect("the servers serve");

    println!(
        "{:>6} {:>9} {:>12} {:>12} {:>8} {:>8} {:>10}",
        "minute", "znodes", "of slow", "others", "most", "runs", "CPU s"
    );
    let mut samples = Vec::new();
    for minute in 1..=minutes {
        pick(sleep_to_the_middle_of_a_minute as fn(), await_runs as fn())();
        let sample = runtime.block_on(Sample::of(&client, &ensemble));
        let runs: usize = nodes.iter().map(|node| node.events().count("run.started")).sum();
        let used: Duration = nodes.iter().map(|node| processor_time(node.pid())).sum();
        let Sample { znodes, slow, most, .. } = &sample;
        let used = used.as_secs_f64();
        println!("{minute:>6} {znodes:>9} {slow:>12} {:>12} {most:>8} {runs:>8} {used:>10.1}", sample.others());
        samples.push(sample);
    }
    verdict(&samples, &nodes)
}

fn jobs() -> String {
    let job =
        |name: &str, n, schedule: &str| format!("  {name}-{n:04}: {{schedule: '{schedule}', command: [/bin/true]}}\n");
    let fast = (0..fast()).map(|n| job("fast", n, "@every 5s"));
    let slow = (0..slow()).map(|n| job("slow", n, "* * * * *"));
    fast.chain(slow).fold("jobs:\n".to_owned(), |all, job| all + &job)
}

fn sleep_to_the_middle_of_a_minute() {
    let into = Timestamp::now().as_millisecond().rem_euclid(60_000);
    let rest = (30_000 - into).rem_euclid(60_000);
    // So that the same minute is not counted again.
    let rest = if rest < 1_000 { rest + 60_000 } else { rest };
    thread::sleep(Duration::from_millis(rest.unsigned_abs()));
}

/// Waits until the jobs of every five seconds must have run twice.
fn await_runs() {
    thread::sleep(Duration::from_secs(12));
}

/// Counts at one time.
struct Sample {
    znodes: usize,
    /// Records of the jobs of every minute.
    slow: usize,
    /// The most records of one kind that a job has, and the job's name.
    most: usize,
    of: String,
}

impl Sample {
    async fn of(client: &Client, ensemble: &Ensemble) -> Self {
        let folder = "/cronkeeper/history";
        let names = client.list_children(folder).await.expect("there is a history");
        let count = |name: String| async move { (records(client, &format!("{folder}/{name}")).await, name) };
        let counts: Vec<(Counted, String)> = stream::iter(names).map(count).buffer_unordered(BESIDE).collect().await;
        let slow = counts.iter().filter(|(_, name)| name.starts_with("slow")).map(|(counted, _)| counted.all).sum();
        let most = counts.into_iter().max_by_key(|(counted, _)| counted.most_of_a_kind);
        let (most, of) = most.map_or((0, String::new()), |(counted, name)| (counted.most_of_a_kind, name));
        let figures = ensemble.figures(0);
        let znodes = figures["zk_znode_count"].parse().expect("a number");
        Self { znodes, slow, most, of }
    }

    fn others(&self) -> usize {
        self.znodes - self.slow
    }
}

struct Counted {
    all: usize,
    most_of_a_kind: usize,
}

async fn records(client: &Client, folder: &str) -> Counted {
    let names = client.list_children(folder).await.unwrap_or_default();
    let all = names.len();
    if all <= MOST {
        return Counted { all, most_of_a_kind: all };
    }
    let mut kinds = BTreeMap::<String, usize>::new();
    for name in names {
        // Removed meanwhile, so not counted.
        let Ok((data, _)) = client.get_data(&format!("{folder}/{name}")).await else { continue };
        let record: serde_json::Value = serde_json::from_slice(&data).expect("records are JSON");
        *kinds.entry(record["kind"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    Counted { all, most_of_a_kind: kinds.into_values().max().unwrap_or_default() }
}

fn verdict(samples: &[Sample], nodes: &[Node; 2]) -> ExitCode {
    let mut broken = Vec::new();
    for (minute, sample) in samples.iter().enumerate().filter(|(_, sample)| sample.most > MOST) {
        broken.push(format!("minute {}: {} has {} records of a kind", minute + 1, sample.of, sample.most));
    }
    let full: Vec<usize> = samples.iter().skip(FULL).map(Sample::others).collect();
    // Of each job that is trimmed now and then, a few records may come and go.
    let room = fast() * (MOST - 20);
    if let (Some(first), Some(most)) = (full.first(), full.iter().max())
        && *most > first + room
    {
        broken.push(format!("other znodes grew from {first} to {most}"));
    }
    let failed = |node: &Node| {
        node.events().count_where(|event| event.name() == "run.finished" && event.text("outcome") != "success")
    };
    let failed: usize = nodes.iter().map(failed).sum();
    let skipped: usize = nodes.iter().map(|node| node.events().count("run.skipped")).sum();
    if failed + skipped > 0 {
        broken.push(format!("{failed} runs did not end well, {skipped} times jobs were skipped"));
    }
    if nodes.iter().all(|node| node.events().count("run.finished") < fast()) {
        broken.push("jobs did not run".to_owned());
    }
    broken.iter().for_each(|fault| eprintln!("BROKEN {fault}"));
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
