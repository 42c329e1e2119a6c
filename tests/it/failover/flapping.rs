//! A connection that is lost again and again: no resources leak.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::cluster::{Lines, Place, in_line, job, jobs, node, usual};
use crate::support::node::Node;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;
use crate::support::{LONG, poll, until};

/// Number of cuts to measure. The first few warm up the allocator and the pools.
const CUTS: usize = 40;
/// Cuts that last until the session has expired.
const EXPIRIES: usize = 2;
/// Additional memory that the daemon may use afterwards.
const FLAT_KIB: u64 = 4 * 1024;

/// Threads by which the count may differ: the runtime starts and ends a few as it sees fit.
const THREADS_OF_THE_RUNTIME: usize = 4;

/// Resources held by a node and the ensemble, by name.
type Held = BTreeMap<&'static str, usize>;

fn held(ensemble: &Ensemble, nodes: &[Node]) -> Held {
    let listed = |node: &Node, folder: &str| {
        let entries = fs::read_dir(format!("/proc/{}/{folder}", node.pid())).into_iter().flatten().flatten();
        entries.filter(|entry| !is_of_the_archive(&entry.path())).count()
    };
    let over_nodes = |folder: &'static str| nodes.iter().map(|node| listed(node, folder)).sum();
    BTreeMap::from([
        ("descriptors", over_nodes("fd")),
        ("threads", over_nodes("task")),
        ("connections", ensemble.connections(0)),
        ("ephemerals", ensemble.ephemerals(0)),
        ("watches", ensemble.watch_count(0)),
    ])
}

/// True for the files of the archive, which a node opens with its first end and closes again when it is idle.
fn is_of_the_archive(descriptor: &Path) -> bool {
    fs::read_link(descriptor).is_ok_and(|file| file.to_string_lossy().contains("/archive.db"))
}

fn resident_kib(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("the node lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("memory is shown");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn count(node: &Node, name: &str) -> usize {
    node.events().named(name).len()
}

/// Cuts all lines at once, as a rebooting switch does, and waits until each node is back.
fn flap(lines: &[Lines], nodes: &[Node]) {
    let more = more_of(nodes, "coordination.resumed");
    lines.iter().for_each(Lines::cut);
    until("the connections are back", more);
}

/// Cuts all lines until the sessions have expired, and waits until each node is in the queue again.
fn expire(lines: &[Lines], nodes: &[Node]) {
    let (expired, joined) = (more_of(nodes, "coordination.expired"), more_of(nodes, "election.joined"));
    lines.iter().for_each(Lines::part);
    until("the sessions have expired", expired);
    lines.iter().for_each(Lines::pass);
    until("the nodes are in the queue again", joined);
}

/// Waits until all nodes have logged this event once more than now.
fn more_of(nodes: &[Node], name: &'static str) -> impl Fn() -> bool {
    let before: Vec<usize> = nodes.iter().map(|node| count(node, name)).collect();
    move || nodes.iter().zip(&before).all(|(node, before)| count(node, name) > *before)
}

/// The most that is held until another run has ended.
///
/// One look is not enough: after `coordination.resumed` the client still sends the server its watches.
fn most_held(ensemble: &Ensemble, nodes: &[Node]) -> Held {
    let mut most = Held::new();
    let has_run = more_of(&nodes[..1], "run.finished");
    let has_run = poll(LONG, || {
        for (what, count) in held(ensemble, nodes) {
            let most = most.entry(what).or_default();
            *most = count.max(*most);
        }
        has_run().then_some(())
    });
    assert!(has_run.is_some(), "no run ends");
    most
}

fn slack(what: &str) -> usize {
    if what == "threads" { THREADS_OF_THE_RUNTIME } else { 0 }
}

/// Waits until no more resources are held than before. Those of a session are released when it expires.
fn await_no_more(ensemble: &Ensemble, nodes: &[Node], before: &Held) {
    let mut found = Held::new();
    let quiet = poll(LONG, || {
        found = held(ensemble, nodes);
        found.iter().all(|(what, count)| *count <= before[what] + slack(what)).then_some(())
    });
    assert!(quiet.is_some(), "{before:?} grew to {found:?}; watched by sessions: {:#?}", ensemble.watches(0));
}

#[test]
fn a_connection_that_flaps_leaves_no_session_watch_thread_or_descriptor_behind() {
    let ensemble = Ensemble::start(1);
    let place = Place::on(&ensemble);
    let witness = Witness::new();
    let file = jobs(&[job("tick", "@every 2s", &witness.command(&[]), "")]);
    let lines = ["a", "b"].map(|_| Lines::new(&ensemble, &place));
    let connects = lines.each_ref().map(Lines::connect);
    let specs = [node("a", &connects[0]), node("b", &connects[1])].map(|spec| usual(spec).jobs(&file));
    let nodes = in_line(specs);
    (0..CUTS / 4).for_each(|_| flap(&lines, &nodes));
    let before = most_held(&ensemble, &nodes);
    let memory = nodes.each_ref().map(resident_kib);

    (0..CUTS).for_each(|_| flap(&lines, &nodes));
    (0..EXPIRIES).for_each(|_| expire(&lines, &nodes));
    until("one leads", || nodes.iter().any(|node| count(node, "takeover.done") > 0));
    await_no_more(&ensemble, &nodes, &before);
    for (node, before) in nodes.iter().zip(memory) {
        let now = resident_kib(node);
        assert!(now <= before + FLAT_KIB, "{} grew from {before} to {now} KiB", node.name());
    }
    witness.assert_fine(&[]);
}
