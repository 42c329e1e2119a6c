//! Fault injection on real processes: three servers, three nodes, and the links between them.
//!
//! ```text
//! testbed      servers and links          plan      seed ─► faults
//! ├ hosts      in namespaces              injector  carries faults out, then makes peace
//! │ └ net      the rules of their links   admin     an operator's view of ZooKeeper, and access to it
//! └ proxies    links on this machine      txnlog    what the servers committed
//! supervisors  the nodes                  history   checks whether the promises were kept
//! work         the jobs                   losses    whether ZooKeeper is to blame if not
//!
//! stores       the same on PostgreSQL, Redis and etcd, whose servers and faults are in their own folders
//! ```
//!
//! Each node and server has its own host, in namespaces, which takes root and a kernel that allows them. Without them,
//! all are on this machine and each node reaches the servers through proxies; the faults that take hosts are then left
//! out, and the test reports which.
//!
//! An ordinary run has one round of seeds, which contains every kind of fault. `CRONKEEPER_NEMESIS_SEED=n` runs only
//! that seed; `CRONKEEPER_NEMESIS_MINUTES=n` continues with the next seeds for this long. The same seed gives the same
//! plan, but not the same interleaving, because the processes are real.

mod admin;
mod history;
mod hosts;
mod injector;
mod losses;
mod net;
mod plan;
mod proxies;
pub mod stores;
mod supervisors;
mod testbed;
mod txnlog;
mod work;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use uuid::Uuid;

use self::admin::Admin;
use self::history::History;
use self::injector::FaultInjector;
use self::losses::{AcceptedEnd, Losses};
use self::plan::{Plan, ROUND};
use self::supervisors::Supervisors;
use self::testbed::{SERVERS, Testbed};
use self::txnlog::Logs;
use self::work::Work;
use crate::support::node::{Event, Spec};
use crate::support::test_name;

const SEED: &str = "CRONKEEPER_NEMESIS_SEED";
const MINUTES: &str = "CRONKEEPER_NEMESIS_MINUTES";

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`, which is no number")))
}

/// The requested seeds, for as long as requested; otherwise so many.
fn seeds(ordinarily: u64) -> impl Iterator<Item = u64> {
    let (only, began) = (number(SEED), Instant::now());
    let lasts = number(MINUTES).map(|minutes| Duration::from_secs(60 * minutes));
    let (first, count) = only.map_or((0, ordinarily), |seed| (seed, 1));
    (first..).take_while(move |seed| match lasts {
        Some(lasts) => began.elapsed() < lasts,
        None => *seed < first + count,
    })
}

/// Held by each of these tests while it runs. They begin one after the other in the order of names, and with four
/// clusters at once a machine with two processors elects a leader more slowly than terms end.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other of these tests runs.
fn alone() -> MutexGuard<'static, ()> {
    // One that failed has ended too.
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_promises_hold_whatever_fails_on_hosts_and_links() {
    let _alone = alone();
    // On a thread of its own, because it may move to another network.
    let ordeals = thread::Builder::new().name(test_name()).spawn(|| {
        let mut testbed = Testbed::new();
        let is_judged = |seed| run_seed(&mut testbed, seed);
        let judged: Vec<bool> = seeds(ROUND).map(is_judged).collect();
        let is_any = judged.len() < 2 || judged.contains(&true);
        assert!(is_any, "ZooKeeper has lost transactions in every seed, so no record was judged");
    });
    if let Err(panic) = ordeals.expect("a thread can be had").join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs one seed, from the start of the nodes to the verdict, under its own chroot on the servers.
///
/// Returns false if only what the jobs saw could be judged: the servers have lost what they had acknowledged, which
/// nodes write again as far as they know it.
fn run_seed(testbed: &mut Testbed, seed: u64) -> bool {
    let (plan, began) = (Plan::of(seed), SystemTime::now());
    let chroot = format!("/{}", Uuid::new_v4());
    testbed.ensemble.await_serving();
    let admin = Admin::new(&testbed.ensemble.connect_string(), &chroot);
    let work = Work::new();
    let connect = |spec: Spec, i| spec.zookeeper(&format!("{}{chroot}", testbed.links.connect(&testbed.ensemble, i)));
    let mut supervisors = Supervisors::start(&work, connect, |i| testbed.links.host(i));
    let mut injector = FaultInjector::new(testbed, &mut supervisors, &admin);
    injector.run(&plan);
    let peace = injector.await_peace(&work);
    let (transcript, still) = injector.into_account();
    let folders: Vec<PathBuf> = (0..SERVERS).map(|i| testbed.ensemble.data_of(i)).collect();
    let seen = work.witness.entries();
    let logs = || Logs::read(&folders, &chroot, began);
    let committed = logs().into_committed();
    let horizon = peace.as_ref().copied().unwrap_or(Timestamp::MAX);
    let history = History::new(seen, committed, still, horizon);
    let mut broken = history.broken(&work);
    let missing = peace.err().unwrap_or_default();
    if !missing.is_empty() {
        // What is not settled yet cannot be judged by its record.
        broken.by_the_record.clear();
    }
    let (story, ends) = (supervisors.story(), supervisors.accepted_ends());
    let others = broken_by_the_nodes(&story, &ends);
    if broken.by_the_jobs.is_empty() && broken.by_the_record.is_empty() && others.is_empty() && missing.is_empty() {
        return true;
    }
    // The trees first: the logs must have everything that a server has carried out.
    let trees = admin.trees(&testbed.ensemble);
    let losses = Losses::of(&logs(), &trees, &ends);
    let lost: String = losses.all().map(|loss| format!("{loss}\n")).collect();
    let mut broken = broken.that_counts(!lost.is_empty());
    broken.extend(others);
    if losses.unshown.is_empty() {
        broken.extend(missing.into_iter().map(|what| format!("no peace: {what}")));
    }
    if broken.is_empty() {
        eprintln!("seed {seed}: only what the jobs saw is judged\n{lost}");
        return false;
    }
    panic!(
        "{lost}seed {seed}; again with {SEED}={seed}\n{plan}what happened:\n{}\nbroken:\n  {}\n{}committed:\n{}",
        transcript.join("\n"),
        broken.join("\n  "),
        logged(&story, &broken),
        history.about(&broken),
    );
}

/// What the logs of the nodes show to be wrong.
fn broken_by_the_nodes(story: &[Event], ends: &[AcceptedEnd]) -> Vec<String> {
    let panics = story.iter().filter_map(|event| event.json().as_str()).filter(|line| line.contains("panicked"));
    let mut broken: Vec<String> = elected_twice(story).into_iter().chain(panics.map(str::to_owned)).collect();
    if ends.is_empty() {
        broken.push("no node logs that the end of a run is written".into());
    }
    broken
}

/// Terms that nodes announced more than once: a token belongs to one.
fn elected_twice(story: &[Event]) -> Vec<String> {
    let mut tokens = BTreeSet::new();
    let elected = story.iter().filter(|event| event.name() == "leader.elected");
    let again = elected.filter(|event| !tokens.insert(event.number("token")));
    again.map(|event| format!("elected a second time: {}", event.json())).collect()
}

/// What the nodes logged about everything that the violations name.
fn logged(story: &[Event], broken: &[String]) -> String {
    let is_of_a_node = |event: &Event| {
        ["node.", "leader.", "election.", "coordination."].iter().any(|of| event.name().starts_with(of))
    };
    let is_named =
        |event: &Event| !event.text("run").is_empty() && broken.iter().any(|what| what.contains(event.text("run")));
    let lines = story.iter().filter(|event| is_of_a_node(event) || is_named(event));
    lines.map(|event| format!("  {}\n", event.json())).collect()
}
