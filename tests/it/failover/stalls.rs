//! A ZooKeeper server that hangs when jobs come due: occurrences that had not begun are begun afterwards, once.
//!
//! The server hangs for times around half a session, at which a lease ends while the session goes on, and for one time
//! longer than a session. A normal run tries one or two times per server; `CRONKEEPER_LONG=1` tries all.

use std::thread;
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};

use super::cluster::{Lines, Place, await_begun, give, in_line, is_long, jobs, node, once, run_id, soon};
use crate::support::node::Node;
use crate::support::scratch::Scratch;
use crate::support::witness::{Entry, Mark, Witness};
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll};

/// Seconds for which a server hangs. The nodes' sessions last 10.
const TIMES: [u64; 4] = [5, 7, 9, 15];
/// The jobs that are due at the instant and a second later.
const KINDS: [(&str, &str); 3] =
    [("plain", ""), ("rerun", "interrupted: rerun"), ("retries", "retries: {limit: 3, delay: 1s}")];
const WINDOW: &str = "misfire_window: 1h";
/// Tolerance: a start ordered before the server hung may be seen a little later.
const ON_ITS_WAY: Duration = Duration::from_millis(300);

/// The server that hangs. The leading node is a client of a server that does not lead the ensemble.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Leading,
    Following,
    Single,
}

struct Scene {
    place: Place,
    _lines: Lines,
    nodes: [Node; 2],
    witness: Witness,
    gate: Scratch,
    at: Timestamp,
}

impl Scene {
    /// Two nodes with jobs that are due soon and two runs in flight. One of these may be begun again; the other fails
    /// and is retried, until [`Self::open`].
    fn new(ensemble: &Ensemble, server: usize) -> Self {
        let place = Place::on(ensemble);
        let lines = Lines::new(ensemble, &place);
        lines.only(server);
        let [a, b] = in_line([node("a", &lines.connect()), place.node("b")]);
        lines.pass();
        let (witness, gate, at) = (Witness::new(), Scratch::new("gate"), soon());
        let open = format!("{}/open", gate.path().display());
        let waits = witness.command(&["sh", "-c", &format!("until [ -e {open} ]; do sleep 0.1; done")]);
        let fails = witness.command(&["test", "-e", &open]);
        let mut each = vec![
            once("waits", at - 2.seconds(), &waits, "interrupted: rerun"),
            once("fails", at - 2.seconds(), &fails, "retries: {limit: 100, delay: 1s}"),
        ];
        for (kind, (name, more)) in KINDS.iter().flat_map(|kind| [("at", kind), ("later", kind)]) {
            let at = if kind == "at" { at } else { at + 1.second() };
            each.push(once(&format!("{name}-{kind}"), at, &witness.command(&[]), &format!("{WINDOW}\n{more}")));
        }
        give(&[&a, &b], &jobs(&each));
        ["waits", "fails"].iter().for_each(|job| await_begun(&witness, job, 1));
        Self { place, _lines: lines, nodes: [a, b], witness, gate, at }
    }

    /// Each job with the instant at which it is due.
    fn due(&self) -> Vec<(String, Timestamp)> {
        let each = |(name, _): &(&str, &str)| {
            [(format!("{name}-at"), self.at), (format!("{name}-later"), self.at + 1.second())]
        };
        let before = ["waits", "fails"].map(|name| (name.to_owned(), self.at - 2.seconds()));
        KINDS.iter().flat_map(each).chain(before).collect()
    }

    /// Lets the runs in flight end.
    fn open(&self) {
        self.gate.write("open", "");
    }

    /// The jobs for which the promise was broken, once nothing more is to come.
    fn faults(&self, stopped: Timestamp) -> Vec<String> {
        let mut faults: Vec<String> =
            self.due().iter().filter_map(|(job, at)| self.fault(job, &run_id(job, *at), stopped)).collect();
        for node in self.nodes.iter().filter(|node| node.status().is_some()) {
            faults.push(format!("{} ended: {}", node.name(), node.events().tail()));
        }
        faults
    }

    fn fault(&self, job: &str, run: &str, stopped: Timestamp) -> Option<String> {
        let end = poll(LONG, || self.place.history(job).remove(run));
        let entries = self.witness.entries();
        let of_run = |mark: Mark| entries.iter().filter(move |entry| entry.mark == mark && entry.run == run);
        let starts = of_run(Mark::Start).count();
        let ended = end.as_ref().is_some_and(|end| end["outcome"] == "success") && of_run(Mark::End).count() > 0;
        // Runs in flight may be begun again or retried.
        let had_begun = of_run(Mark::Start).any(|start| nanos(start) < (stopped + ON_ITS_WAY).as_nanosecond());
        let is_once = starts == 1 || (had_begun && starts > 1 && !job.starts_with("plain"));
        let outcome = end.map_or_else(|| "no record".to_owned(), |end| format!("{} {}", end["outcome"], end["reason"]));
        (!ended || !is_once).then(|| format!("{job}: {outcome}, {starts} starts"))
    }
}

fn nanos(entry: &Entry) -> i128 {
    entry.at_ns
}

fn sleep_until(at: Timestamp) {
    thread::sleep(Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
}

/// Tries one stall and returns the broken promises.
fn stall(ensemble: &Ensemble, victim: Victim, seconds: u64) -> Vec<String> {
    let (leading, following) = (ensemble.leader(), ensemble.followers().first().copied());
    let server = following.unwrap_or(leading);
    let mut scene = Scene::new(ensemble, server);
    let hangs = match victim {
        Victim::Leading | Victim::Single => leading,
        Victim::Following => server,
    };
    sleep_until(scene.at - 30.milliseconds());
    ensemble.pause(hangs);
    let stopped = Timestamp::now();
    thread::sleep(Duration::from_secs(seconds));
    ensemble.cont(hangs);
    scene.open();
    ensemble.await_healed();
    scene.place.reconnect();
    let faults = scene.faults(stopped);
    ensemble.await_healed();
    scene.witness.assert_fine(&[]);
    faults.into_iter().map(|fault| format!("{victim:?} server, {seconds} s: {fault}")).collect()
}

fn stalls(victim: Victim, servers: usize, sample: &[u64]) {
    // As recommended for sessions of this length.
    let ensemble = Ensemble::builder(servers).tick(Duration::from_secs(1)).start();
    let times = TIMES.into_iter().filter(|&time| is_long() || sample.contains(&time));
    let faults: Vec<String> = times.flat_map(|seconds| stall(&ensemble, victim, seconds)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn what_is_due_while_the_leading_server_hangs_is_run_once() {
    stalls(Victim::Leading, 3, &[5, 7]);
}

#[test]
fn what_is_due_while_a_following_server_hangs_is_run_once() {
    stalls(Victim::Following, 3, &[15]);
}

#[test]
fn what_is_due_while_the_only_server_hangs_is_run_once() {
    stalls(Victim::Single, 1, &[7]);
}
