//! A client that fills the cluster's folders with records of nearly a megabyte each.
//!
//! Nobody reads them: the nodes stay small, name them in a few words, and work on, before a failover and after it.

use serde_json::Value;

use crate::failover::cluster::{Place, Zk, in_line, job, jobs, usual};
use crate::failover::records::{SELDOM, assert_answers, await_ticks, names, stranger};
use crate::solo::fixture::{history, kib, status};
use crate::support::node::Node;
use crate::support::until;
use crate::support::witness::Witness;
use crate::support::zookeeper::Ensemble;

const FOLDERS: [&str; 7] = [
    "/leader",
    "/cronkeeper/nodes",
    "/cronkeeper/jobs",
    "/cronkeeper/running",
    "/cronkeeper/control",
    "/cronkeeper/triggers",
    "/cronkeeper/wanted",
];
/// Records in each folder. The server has memory for some seventy of all.
const EACH: usize = 8;
/// The folders that are read in parts, with the number of records in them. They do not exist before the first run has
/// ended, and before a job is gone.
const IN_PARTS: [(&str, usize); 2] = [("/cronkeeper/history/large-0", 32), ("/cronkeeper/gone", EACH)];
/// The znode of the cluster's own that is no folder.
const CLUSTER: &str = "/cronkeeper/cluster";
const BYTES: usize = 900_000;
/// Allowed growth of a node's memory, in KiB: a third of what they have, and a tenth of what reading them takes.
const GROWTH: u64 = 16 << 10;
/// Allowed length of a line of the log about one of them, and of the status.
const LINE: usize = 1_500;
const STATUS: usize = 100_000;

/// Records of a folder: strings, which a parser quotes in its error, and objects that differ in one text.
fn planted(folder: &str, count: usize) -> Vec<(String, Vec<u8>)> {
    let text = "x".repeat(BYTES);
    let data = |number| match number % 2 {
        0 => format!("{text:?}"),
        _ => format!(r#"{{"v":1,"node":"large-{number}","host":{text:?},"pid":1,"reason":{text:?}}}"#)[..BYTES]
            .to_owned(),
    };
    let name = |number: usize| match folder {
        "/cronkeeper/history/large-0" => format!("large-0.20261120T0230{number:02}Z"),
        "/cronkeeper/running" => format!("large-{number}.20261120T023000Z"),
        "/cronkeeper/triggers" => format!("{:010}", 1_000 + number),
        _ => format!("large-{number}"),
    };
    (0..count).map(|number| (format!("{folder}/{}", name(number)), data(number).into_bytes())).collect()
}

fn anonymous(node: &Node) -> u64 {
    kib(node.pid(), "VmHWM")
}

fn assert_small(node: &Node, before: u64) {
    let after = anonymous(node);
    assert!(after < before + GROWTH, "{}: from {before} to {after} KiB", node.name());
    let long = node.events().all().into_iter().map(|event| event.json().to_string()).find(|line| line.len() > LINE);
    assert!(long.is_none(), "{}", long.unwrap_or_default());
    let shown: Value = status(node.spec());
    assert!(shown.to_string().len() < STATUS, "{} bytes", shown.to_string().len());
}

fn assert_damage_is_shown(node: &Node) {
    let shown: Value = status(node.spec());
    assert!(shown["damaged"].as_array().is_some_and(|damaged| !damaged.is_empty()), "{shown}");
}

struct Scene {
    place: Place,
    witness: Witness,
    stranger: Zk,
    nodes: [Node; 2],
}

/// Two nodes that run a job every second, and have another that is seldom due.
fn scene(ensemble: &Ensemble) -> Scene {
    let (place, witness, stranger) = (Place::on(ensemble), Witness::new(), stranger(ensemble));
    let tick = job("tick", "* * * * * *", &witness.command(&[]), "");
    let file = jobs(&[tick, job("large-0", SELDOM, "['true']", "")]);
    let nodes = in_line(["a", "b"].map(|name| usual(place.node(name)).jobs(&file)));
    await_ticks(&witness, &nodes.each_ref());
    Scene { place, witness, stranger, nodes }
}

#[test]
fn records_that_are_larger_than_any_of_cronkeepers_are_named_and_never_read() {
    let ensemble = Ensemble::start(1);
    let Scene { place, witness, stranger, nodes: [a, b] } = scene(&ensemble);
    [&a, &b].iter().for_each(|node| assert_answers(node.spec()));
    let before = [&a, &b].map(anonymous);

    let planted = FOLDERS.into_iter().flat_map(|folder| planted(folder, EACH));
    planted.for_each(|(path, data)| stranger.put(&place.path(&path), &data));
    for node in [&a, &b] {
        until("the members are looked at", || names(&[node.log()], "/cronkeeper/nodes/large-0"));
    }
    await_ticks(&witness, &[&a]);
    [(&a, before[0]), (&b, before[1])].iter().for_each(|(node, before)| assert_small(node, *before));
    [&a, &b].iter().for_each(|node| assert_damage_is_shown(node));

    a.kill9();
    await_ticks(&witness, &[&b]);
    for folder in ["nodes", "jobs", "running", "control"] {
        until("the new leader has looked at it", || names(&[b.log()], &format!("/cronkeeper/{folder}/large-1")));
    }
    assert_small(&b, before[1]);
    assert_damage_is_shown(&b);
    assert_answers(b.spec());
    witness.assert_fine(&[]);
}

#[test]
fn what_is_read_in_parts_is_not_read_where_it_is_larger_than_any_of_cronkeepers() {
    let ensemble = Ensemble::start(1);
    let Scene { place, witness, stranger, nodes: [a, b] } = scene(&ensemble);
    let no_records: [Value; 0] = [];
    [&a, &b].iter().for_each(|node| assert_eq!(history(node.spec(), "large-0"), no_records));
    let before = [&a, &b].map(anonymous);

    for (folder, count) in IN_PARTS {
        stranger.make(&place.path(folder), b"");
        planted(folder, count).iter().for_each(|(path, data)| stranger.put(&place.path(path), data));
    }
    let id = place.zk.data(&place.path(CLUSTER));
    stranger.put(&place.path(CLUSTER), &[b'x'; BYTES]);
    until("the leader has written the id again", || place.zk.data(&place.path(CLUSTER)) == id);
    await_ticks(&witness, &[&a]);
    for (node, before) in [(&a, before[0]), (&b, before[1])] {
        assert_eq!(history(node.spec(), "large-0"), no_records);
        assert_small(node, before);
    }

    a.kill9();
    await_ticks(&witness, &[&b]);
    assert_eq!(history(b.spec(), "large-0"), no_records);
    assert_small(&b, before[1]);
    witness.assert_fine(&[]);
}
