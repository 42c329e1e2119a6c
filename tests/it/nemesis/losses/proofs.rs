//! Tests that losses are found, and that ZooKeeper is blamed for nothing else: logs and trees made by hand, and a sound
//! server.

use std::time::SystemTime;

use cronkeeper_cluster::zookeeper::client::Mode;

use super::super::admin::Admin;
use super::*;
use crate::failover::cluster::Zk;
use crate::ledger::txn::{Change, Txn};
use crate::support::zookeeper::Ensemble;

const RUN: &str = "tick.20261126T101500Z";
const RUNNING: &str = "/cronkeeper/running/tick.20261126T101500Z";
const ENDED: &str = "/cronkeeper/history/tick/tick.20261126T101500Z";
const BEGIN: i64 = 0x1_0000_00a2;
const END: i64 = 0x1_0000_00a3;

/// Three servers, of which the run's beginning is in all logs and its end in those of some.
struct Scene {
    logs: [Vec<Txn>; 3],
    trees: Vec<Tree>,
    ends: Vec<AcceptedEnd>,
}

impl Scene {
    fn with_end_at(servers: &[usize]) -> Self {
        let begun = || Txn { zxid: BEGIN, time_ms: 0, session: 1, change: Change::Ops(vec![create(RUNNING)]) };
        let mut scene = Self { logs: [0; 3].map(|_| vec![begun()]), trees: Vec::new(), ends: Vec::new() };
        scene.log(servers, END, || vec![delete(RUNNING), create(ENDED)]);
        scene
    }

    fn log(&mut self, servers: &[usize], zxid: i64, ops: impl Fn() -> Vec<Op>) {
        for server in servers {
            self.logs[*server].push(Txn { zxid, time_ms: 0, session: 1, change: Change::Ops(ops()) });
        }
    }

    /// What a server shows, after it has carried out everything up to `zxid`.
    fn shown(mut self, zxid: i64, paths: &[&str]) -> Self {
        let znodes = paths.iter().map(|path| ((*path).to_owned(), b"{}".to_vec())).collect();
        self.trees.push(Tree { server: self.trees.len(), zxid, znodes });
        self
    }

    fn acknowledged(mut self) -> Self {
        self.ends.push(AcceptedEnd { node: "a".into(), run: RUN.into() });
        self
    }

    fn losses(self) -> Vec<String> {
        let losses = Losses::of(&Logs::of(self.logs.into_iter()), &self.trees, &self.ends);
        losses.all().cloned().collect()
    }
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), data: b"{}".into(), mode: Mode::Persistent }
}

fn set(path: &str, data: &[u8]) -> Op {
    Op::Set { path: path.into(), data: data.into(), version: 0 }
}

fn delete(path: &str) -> Op {
    Op::Delete { path: path.into(), version: -1 }
}

#[test]
fn what_a_majority_has_and_a_server_does_not_show_is_lost() {
    let scene = Scene::with_end_at(&[0, 2]).shown(END, &[ENDED]).shown(END, &[RUNNING]);
    let lost = "ZooKeeper lost 0x1000000a3 (servers 0, 2 of 3 have it in their logs): it";
    let writes = format!("{lost} writes {ENDED}, which server 1 does not have");
    assert_eq!(scene.losses(), [writes, format!("{lost} deletes {RUNNING}, which server 1 has")]);

    let mut scene = Scene::with_end_at(&[]).shown(END, &[RUNNING]);
    scene.log(&[0, 1, 2], END, || vec![set(RUNNING, b"new")]);
    let lost = "ZooKeeper lost 0x1000000a3 (servers 0, 1, 2 of 3 have it in their logs): it";
    assert_eq!(scene.losses(), [format!("{lost} writes {RUNNING}, which server 0 has with other data")]);
}

#[test]
fn an_end_that_a_node_was_told_is_written_and_that_no_majority_has_is_lost() {
    let lost_by = |servers: &[usize]| Scene::with_end_at(servers).shown(END, &[RUNNING]).acknowledged().losses();
    let what = format!("the end of {RUN}, which was acknowledged to node a");
    let by_the_others = format!("ZooKeeper lost 0x1000000a3 (servers 0 of 3 have it in their logs): {what}");
    assert_eq!(lost_by(&[0]), [by_the_others]);
    assert_eq!(lost_by(&[]), [format!("ZooKeeper lost a transaction (none of 3 servers has it in its log): {what}")]);
}

/// A server that has forgotten them came to lead, and has carried out what came later.
#[test]
fn what_a_majority_has_and_a_later_write_did_not_find_is_lost() {
    const MARK: &str = "/cronkeeper/jobs/tick";
    let set = |version| Op::Set { path: MARK.into(), data: b"{}".to_vec(), version };
    let with = |writes: &[Op]| {
        let mut scene = Scene::with_end_at(&[0, 1, 2]);
        for (zxid, op) in (END + 1..).zip(writes) {
            scene.log(&[0, 1, 2], zxid, || vec![op.clone()]);
        }
        scene.losses()
    };
    assert_eq!(with(&[create(MARK), set(0), set(1), delete(MARK), create(MARK), set(0)]), [""; 0]);
    assert_eq!(with(&[set(7), set(8), delete(MARK)]), [""; 0], "it was made before these logs");
    let lost = |zxid: i64, at: i64| {
        format!(
            "ZooKeeper lost {zxid:#x} (servers 0, 1, 2 of 3 have it in their logs): {at:#x} writes {MARK} and found it otherwise"
        )
    };
    assert_eq!(with(&[create(MARK), set(0), set(0)]), [lost(END + 2, END + 3)]);
    assert_eq!(with(&[set(7), set(3)]), [lost(END + 1, END + 2)]);
    assert_eq!(with(&[create(MARK), set(0), create(MARK)]), [lost(END + 2, END + 3)]);
    assert_eq!(with(&[create(MARK), delete(MARK), set(0)]), [lost(END + 2, END + 3)]);
}

#[test]
fn a_run_that_does_not_end_is_not_zookeepers_fault_if_nobody_was_told_of_its_end() {
    let unended = |servers: &[usize]| Scene::with_end_at(servers).shown(END, &[RUNNING]);
    assert_eq!(unended(&[]).losses(), [""; 0]);
    // Logged by a leader that was cut off, and never acknowledged.
    assert_eq!(unended(&[0]).losses(), [""; 0]);
}

#[test]
fn what_is_as_the_logs_have_it_is_not_zookeepers_fault() {
    let ended = Scene::with_end_at(&[0, 1, 2]).shown(END, &[ENDED]).acknowledged();
    assert_eq!(ended.losses(), [""; 0]);
    // A server that has not carried out the end yet, and one that did so while it was read.
    let soon = Scene::with_end_at(&[0, 1, 2]).shown(BEGIN, &[RUNNING]).shown(BEGIN, &[ENDED]).acknowledged();
    assert_eq!(soon.losses(), [""; 0]);
    let mut twice = Scene::with_end_at(&[0, 1, 2]).shown(END + 1, &[RUNNING, ENDED]).acknowledged();
    twice.log(&[0, 1, 2], END + 1, || vec![create(RUNNING)]);
    assert_eq!(twice.losses(), [""; 0]);
    let mut members = Scene::with_end_at(&[0, 1, 2]).shown(END + 1, &[ENDED]);
    members.log(&[0, 1, 2], END + 1, || vec![create("/cronkeeper/nodes/a"), create("/leader/a")]);
    assert_eq!(members.losses(), [""; 0]);
}

#[test]
fn a_sound_server_has_lost_nothing_and_one_that_shows_less_has() {
    let ensemble = Ensemble::start(1);
    let admin = Admin::new(&ensemble.connect_string(), "/place");
    let zk = Zk::connect(&format!("{}/place", ensemble.connect_string()));
    ["/cronkeeper", "/cronkeeper/running", RUNNING].iter().for_each(|path| zk.create(path));
    zk.put(RUNNING, b"{}");
    zk.make("/cronkeeper/jobs", b"");
    zk.delete("/cronkeeper/jobs").unwrap();
    let mut trees = admin.trees(&ensemble);
    let logs = Logs::read(&[ensemble.data_of(0)], "/place", SystemTime::UNIX_EPOCH);
    assert_eq!(trees[0].znodes[RUNNING], b"{}");
    assert_eq!(Losses::of(&logs, &trees, &[]).all().count(), 0);
    trees[0].znodes.remove(RUNNING);
    assert_eq!(Losses::of(&logs, &trees, &[]).unshown.len(), 1);
}
