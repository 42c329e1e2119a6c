//! What ZooKeeper itself has lost, so that a failure says who is to blame.
//!
//! A server that crashes while it catches up with a new leader may forget transactions that were acknowledged
//! (ZOOKEEPER-4643, 4646, 4685), and a cluster that relies on them then breaks its promises. Three comparisons show it:
//!
//! - what a majority of the logs has, with what each server shows;
//! - what a write found, with what a majority of the logs had written before;
//! - what nodes count as written, with both. This rests on the nodes' word, so it is asked only about the ends of runs
//!   that are still in flight: that no process starts on a mere belief is what the nemesis is there to find out.

use std::collections::BTreeMap;

use cronkeeper_cluster::zookeeper::client::Op;

use super::txnlog::{LoggedTxn, Logs};
use crate::ledger::ops;

#[cfg(test)]
mod proofs;

/// The records that a server shows.
pub struct Tree {
    pub server: usize,
    /// The newest transaction that it had carried out before it was read.
    pub zxid: i64,
    pub znodes: BTreeMap<String, Vec<u8>>,
}

/// The end of a run that was acknowledged to a node.
pub struct AcceptedEnd {
    pub node: String,
    pub run: String,
}

/// What ZooKeeper has lost, for people; empty if it is not to blame.
pub struct Losses {
    /// What a majority of the logs has, and a server does not show. Such a server does not get it any more: from then on
    /// nodes read something else than what their writes are compared with, and no cluster works on that.
    pub unshown: Vec<String>,
    /// What a majority of the logs has, and a later write did not find.
    pub unfound: Vec<String>,
    /// What was acknowledged to nodes, and no majority has.
    pub undone: Vec<String>,
}

impl Losses {
    pub fn of(logs: &Logs, trees: &[Tree], ends: &[AcceptedEnd]) -> Self {
        Self {
            unshown: trees.iter().flat_map(|tree| unshown(logs, tree)).collect(),
            unfound: unfound(logs),
            undone: ends.iter().filter_map(|end| undone(logs, trees, end)).collect(),
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &String> {
        self.unshown.iter().chain(&self.unfound).chain(&self.undone)
    }
}

/// What a majority of the logs has, and the server does not show.
fn unshown(logs: &Logs, tree: &Tree) -> Vec<String> {
    let mut newest = BTreeMap::<&str, (&LoggedTxn, Option<&[u8]>)>::new();
    for logged in logs.of_majority() {
        for op in ops(&logged.txn) {
            match op {
                Op::Create { path, data, .. } | Op::Set { path, data, .. } => newest.insert(path, (logged, Some(data))),
                Op::Delete { path, .. } => newest.insert(path, (logged, None)),
                Op::Check { .. } => None,
            };
        }
    }
    let server = tree.server;
    // Later ones may or may not have been carried out when the tree was read.
    let judged = newest.iter().filter(|(path, (logged, _))| is_lasting(path) && logged.txn.zxid <= tree.zxid);
    let wrong = judged.filter_map(|(path, (logged, data))| {
        let what = match (*data, tree.znodes.get(*path)) {
            (None, Some(_)) => format!("it deletes {path}, which server {server} has"),
            (Some(_), None) => format!("it writes {path}, which server {server} does not have"),
            (Some(data), Some(shown)) if data != shown => {
                format!("it writes {path}, which server {server} has with other data")
            }
            _ => return None,
        };
        Some(format!("ZooKeeper lost {}: {what}", described(logs, logged)))
    });
    wrong.collect()
}

/// What a majority of the logs has, and a later write did not find: the log has the version that it made.
fn unfound(logs: &Logs) -> Vec<String> {
    // The last write of each record, and its version; absent: it deleted the record.
    let mut known = BTreeMap::<&str, (&LoggedTxn, Option<i32>)>::new();
    let mut unfound = Vec::new();
    for logged in logs.of_majority() {
        for op in ops(&logged.txn) {
            let (path, found, made) = match op {
                Op::Create { path, .. } => (path, None, Some(0)),
                Op::Set { path, version, .. } => (path, Some(*version), Some(version + 1)),
                // The log does not have the version.
                Op::Delete { path, .. } => (path, known.get(&**path).and_then(|(_, version)| *version), None),
                Op::Check { .. } => continue,
            };
            if !is_lasting(path) {
                continue;
            }
            if let Some((lost, version)) = known.insert(path, (logged, made))
                && version != found
            {
                let (lost, at) = (described(logs, lost), logged.txn.zxid);
                unfound.push(format!("ZooKeeper lost {lost}: {at:#x} writes {path} and found it otherwise"));
            }
        }
    }
    unfound
}

/// Members end with their sessions, and the queue is not in the tree.
fn is_lasting(path: &str) -> bool {
    path.starts_with("/cronkeeper/") && !path.starts_with("/cronkeeper/nodes/")
}

/// An end that was acknowledged to a node, while the run is in flight and no majority has logged its end.
fn undone(logs: &Logs, trees: &[Tree], end: &AcceptedEnd) -> Option<String> {
    let AcceptedEnd { node, run } = end;
    let running = format!("/cronkeeper/running/{run}");
    let ends = |logged: &&LoggedTxn| {
        ops(&logged.txn).iter().any(|op| matches!(op, Op::Delete { path, .. } if *path == running))
    };
    let is_in_flight = trees.iter().any(|tree| tree.znodes.contains_key(&running));
    if !is_in_flight || logs.of_majority().any(|logged| ends(&logged)) {
        return None;
    }
    let lost = logs.txns.iter().rfind(ends).map(|logged| described(logs, logged));
    let lost = lost.unwrap_or_else(|| format!("a transaction (none of {} servers has it in its log)", logs.servers));
    Some(format!("ZooKeeper lost {lost}: the end of {run}, which was acknowledged to node {node}"))
}

fn described(logs: &Logs, logged: &LoggedTxn) -> String {
    let servers: Vec<String> = logged.servers.iter().map(usize::to_string).collect();
    let (zxid, servers, all) = (logged.txn.zxid, servers.join(", "), logs.servers);
    format!("{zxid:#x} (servers {servers} of {all} have it in their logs)")
}
