//! A node that stands still as a whole, daemon, warden and children, beyond its lease, while its session lasts: what it
//! held for its time has come to nothing, and is begun again, once.

use std::time::{Duration, Instant};
use std::{fs, thread};

use jiff::{SignedDuration, Timestamp};
use rustix::process::{Pid, Signal, kill_process};

use super::cluster::{Lines, Place, TIMEOUT, give, in_line, job, jobs, node, run_id, shared, usual};
use crate::support::node::Node;
use crate::support::process::watcher_and_warden_of;
use crate::support::witness::{Entry, Mark, Witness};
use crate::support::{LONG, poll, until};

/// How long a request takes to the servers: a start is ordered about so long before its time.
const DELAY: Duration = Duration::from_millis(150);

/// A process that stands still until it is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        let stopped = Self(pid);
        stopped.signal(Signal::STOP);
        let started = Instant::now();
        // Sooner than `until` would look again, a start may be held no longer.
        while threads(pid).iter().any(|state| !matches!(state, 'T' | 'Z')) {
            assert!(started.elapsed() < LONG, "{pid} does not stop");
            thread::sleep(Duration::from_millis(1));
        }
        stopped
    }

    fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ended = Pid::from_raw(self.0.cast_signed()).map(|pid| kill_process(pid, signal));
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// The states of a process's threads; none if it is gone.
fn threads(pid: u32) -> Vec<char> {
    let state = |stat: String| stat.rsplit_once(") ")?.1.chars().next();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| state(fs::read_to_string(task.path().join("stat")).ok()?)).collect()
}

/// A child that has not become its program has the name of its parent.
fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok()
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
}

/// All processes of a node, with a start that is held and whose time is to come.
struct Frozen {
    held: Stopped,
    /// The run that it was held for.
    run: String,
    warden: Stopped,
    daemon: Stopped,
    /// The watcher, and what else the warden has started.
    others: Vec<Stopped>,
}

impl Frozen {
    /// Stops the node while it holds a start. The hold is short, so that takes some tries.
    fn try_of(node: &Node, place: &Place) -> Option<Self> {
        let [watcher, warden] = watcher_and_warden_of(node.pid())?;
        let of_warden = name(warden)?;
        let is_held = |pid: &u32| name(*pid).as_ref() == Some(&of_warden);
        let held = Stopped::new(children(warden).into_iter().find(is_held)?);
        let now = Timestamp::now();
        let (warden, daemon) = (Stopped::new(warden), Stopped::new(node.pid()));
        let started = children(warden.0).into_iter().filter(|&pid| pid != held.0);
        let others = started.chain([watcher]).map(Stopped::new).collect();
        if !is_held(&held.0) || threads(held.0) != ['T'] {
            return None;
        }
        let runs = place.zk.children(&place.path("/cronkeeper/running"));
        let is_to_come = |run: &String| scheduled_at(place, run).is_some_and(|at| at > now);
        let run = runs.into_iter().find(is_to_come)?;
        Some(Self { held, run, warden, daemon, others })
    }

    fn of(node: &Node, place: &Place) -> Self {
        let started = Instant::now();
        loop {
            // A hold lasts for some ten milliseconds, so this looks more often than `until`.
            if let Some(frozen) = Self::try_of(node, place) {
                return frozen;
            }
            assert!(started.elapsed() < LONG, "no start is held; the log:\n{}", node.events().tail());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn scheduled_at(place: &Place, run: &str) -> Option<Timestamp> {
    place.running(run)?["scheduled_at"].as_str()?.parse().ok()
}

/// What goes on first when the node is thawed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Child,
    Warden,
    Daemon,
}

fn a_node_is_thawed_after_its_lease(first: First) {
    let (place, witness) = (Place::shared(), Witness::new());
    let lines = Lines::new(shared(), &place);
    let more = "overlap: allow\nmisfire: run-all\nmisfire_window: 10m\nhistory_limit: 1000";
    let file = jobs(&[job("tick", "* * * * * *", &witness.command(&[]), more)]);
    let [a, b] = in_line([usual(node("a", &lines.connect())), usual(place.node("b"))]);
    give(&[&a, &b], &file);
    lines.delay_requests(DELAY);
    let member = place.path(&format!("/cronkeeper/nodes/{}", a.name()));
    let session = place.zk.owner(&member);

    let frozen = Frozen::of(&a, &place);
    let run = frozen.run.clone();
    lines.pass();
    // The lease, which begins before its newest proof, is shorter than this.
    let over = Instant::now() + TIMEOUT;
    while Instant::now() < over {
        lines.ping();
        thread::sleep(TIMEOUT / 40);
    }
    assert_eq!(place.zk.owner(&member), session, "the session has outlasted the lease");
    assert!(b.events().named("leader.elected").is_empty(), "nobody else leads meanwhile");
    let Frozen { held, warden, daemon, others, .. } = frozen;
    match first {
        First::Child => {
            let pid = held.0;
            drop(held);
            until("the child has ended", || threads(pid).iter().all(|&state| state == 'Z'));
            drop((warden, daemon, others));
        }
        First::Warden => drop((warden, others, held, daemon)),
        First::Daemon => {
            drop(daemon);
            a.await_event("leader.lost", LONG);
            drop((others, held, warden));
        }
    }

    let lost = a.await_event("leader.lost", LONG);
    assert_eq!(lost.text("reason"), "lease");
    b.await_event("takeover.done", LONG);
    let thawed = Timestamp::now();
    let end = place.await_end(&run);
    assert!(end["outcome"] == "success" && end["run"]["attempt"].as_u64() > Some(1), "{end}");
    assert_eq!(a.events().named("coordination.expired"), [], "it was the same session all the time");
    // Those before it are decided then.
    let begun = |entry: &Entry| entry.mark == Mark::Start && entry.scheduled_at.parse().is_ok_and(|at| thawed < at);
    let last = poll(LONG, || witness.entries().into_iter().find(begun)).expect("what comes due is started");
    let is_start = |entry: &Entry, run: &str| entry.mark == Mark::Start && entry.run == run;
    let starts = |run: &str| witness.entries().iter().filter(|entry| is_start(entry, run)).count();
    let instant = |entry: &Entry| entry.scheduled_at.parse::<Timestamp>().expect("it is a time");
    let (mut at, last) = (witness.entries().iter().map(instant).min().expect("some were started"), instant(&last));
    while at <= last {
        let run = run_id("tick", at);
        assert_eq!(place.await_end(&run)["outcome"], "success", "{run}");
        assert_eq!(starts(&run), 1, "{run}");
        at += SignedDuration::from_secs(1);
    }
    let first_attempt = |entry: &Entry| entry.run == run && entry.attempt == 1;
    assert!(!witness.entries().iter().any(first_attempt), "its time had passed");
    let started = a.events().named("run.started");
    assert!(!started.iter().any(|event| event.text("run") == run), "and that is how it was reported");
    witness.assert_fine(&["tick"]);
}

#[test]
fn a_held_start_is_begun_again_when_its_node_is_thawed_after_its_lease() {
    a_node_is_thawed_after_its_lease(First::Warden);
}

/// Then nobody but the child itself can keep its program from beginning.
#[test]
fn a_held_start_is_begun_again_when_its_child_is_thawed_before_its_warden() {
    a_node_is_thawed_after_its_lease(First::Child);
}

#[test]
fn a_held_start_is_begun_again_when_its_daemon_is_thawed_before_its_warden() {
    a_node_is_thawed_after_its_lease(First::Daemon);
}
