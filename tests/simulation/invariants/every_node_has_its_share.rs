//! Invariant: of a run on every node, each node that it was for has one share, or a skip of it, once and forever.
//!
//! The write that moves the mark names the nodes: all that the cluster has known for a while and that have the labels. A
//! share is given by a write that changes the run at its version, and only to a node that it named. It is run by that
//! node alone. In peace no run is left that is to be shared out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cronkeeper_cluster::zookeeper::client::Op;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::election::Place;
use cronkeeper_core::job::RunOn;
use cronkeeper_core::run::{RunId, RunRecord, RunState, Skip, SkipReason};
use cronkeeper_core::term::NodeName;

use super::super::backend::node_name;
use super::super::facts::Fact;
use super::super::jobs;
use super::super::warden::Process;
use super::{Invariant, below, ops, skip, written};
use crate::ledger::txn::Txn;

const RUNNING: &str = "/cronkeeper/running";
const PLACES: &str = "/cronkeeper/places";

/// The longest time, without faults, until a run is shared out.
const SOON: Duration = Duration::from_secs(6);

/// The longest delay until a leader learns of a place.
const NEWS: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct EveryNodeHasItsShare {
    /// The runs that are to be shared out.
    whole: BTreeMap<RunId, Whole>,
    /// What became of each share, by its id.
    given: BTreeMap<RunId, Given>,
    /// The occurrences that each skip record of a node's shares counts.
    counted: BTreeMap<RunId, u64>,
    places: BTreeMap<NodeName, (Place, Uptime)>,
    /// The nodes that have been alive. A leader may know one before it knows its labels.
    members: BTreeSet<NodeName>,
    now: Uptime,
}

/// A run that is to be shared out.
struct Whole {
    version: i32,
    /// The nodes that have no share yet.
    left: BTreeSet<NodeName>,
    since: Uptime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Share,
    Skip,
}

impl EveryNodeHasItsShare {
    fn commit(&mut self, txn: &Txn) -> Result<(), String> {
        for op in ops(txn) {
            if let Some((node, data)) = written(op, PLACES)
                && let (Ok(node), Ok(place)) = (NodeName::parse(node), serde_json::from_slice(data))
            {
                let since = self.places.get(&node).map_or(self.now, |(_, since)| *since);
                self.places.insert(node, (place, since));
            }
            if let Some((node, _)) = written(op, "/cronkeeper/nodes") {
                self.members.extend(NodeName::parse(node));
            }
            if let Some((run, data)) = written(op, RUNNING)
                && let (Ok(run), Ok(record)) = (RunId::parse(run), serde_json::from_slice::<RunRecord>(data))
            {
                self.record(txn, op, &run, &record)?;
            }
            if let Some(skip) = skip(op).filter(|skip| skip.on.is_some() && !is_removed(txn, &skip.id())) {
                self.skipped(txn, op, &skip)?;
            }
        }
        self.take(txn)
    }

    fn record(&mut self, txn: &Txn, op: &Op, run: &RunId, record: &RunRecord) -> Result<(), String> {
        if record.on.as_ref() != run.node() {
            return Err(format!("`{run}` has a record that is {:?}'s", record.on));
        }
        let is_of_a_node = record.state != RunState::Queued;
        match &record.on {
            Some(on) if is_of_a_node && *on != record.owner.node => {
                return Err(format!("`{run}` is {on}'s share, and {} has it: {record:?}", record.owner.node));
            }
            None if is_of_a_node && record.share_among.is_some() => {
                return Err(format!("`{run}` is to be shared out, and is {:?}", record.state));
            }
            _ => {}
        }
        match (op, &record.share_among) {
            (Op::Create { .. }, Some(among)) => self.begin(run, record, among),
            (Op::Create { .. }, None) if run.node().is_some() => self.give(txn, run, Given::Share),
            _ => Ok(()),
        }
    }

    /// A run is begun that is to be shared out.
    fn begin(&mut self, run: &RunId, record: &RunRecord, among: &BTreeSet<NodeName>) -> Result<(), String> {
        // An operator may name any nodes; what does not fit is skipped.
        let is_named = record.trigger.is_some();
        let fits = |node: &NodeName, place: &Place| {
            let jobs = jobs::sets().into_iter().filter_map(|set| set.jobs.get(run.job()));
            jobs.into_iter().all(|job| job.run_on == RunOn::Every && job.run_where.is_met_by(node, &place.labels))
        };
        let fitting = self.places.iter().filter(|(node, (place, _))| fits(node, place));
        let known: BTreeMap<&NodeName, Uptime> = fitting.map(|(node, (_, since))| (node, *since)).collect();
        let is_without_place = |node: &NodeName| self.members.contains(node) && !self.places.contains_key(node);
        if let Some(other) = among.iter().find(|node| !is_named && !known.contains_key(node) && !is_without_place(node))
        {
            return Err(format!("`{run}` is for {other}, which is not known or does not fit"));
        }
        let is_left_out = |node: &NodeName, since: Uptime| since + NEWS < self.now && !among.contains(node);
        if let Some((node, _)) = known.into_iter().find(|&(node, since)| is_left_out(node, since))
            && !is_named
        {
            return Err(format!("`{run}` is not for {node}, which fits: {among:?}"));
        }
        self.whole.insert(run.clone(), Whole { version: 0, left: among.clone(), since: self.now });
        Ok(())
    }

    /// A node is given its share, or a skip of it.
    fn give(&mut self, txn: &Txn, share: &RunId, given: Given) -> Result<(), String> {
        let run = share.clone().on(None);
        let path = format!("{RUNNING}/{run}");
        let Some(whole) = self.whole.get(&run) else {
            return Err(format!("`{share}` is given, and `{run}` is not to be shared out"));
        };
        let is_guard = |op: &Op| match op {
            Op::Set { path: at, version, .. } | Op::Delete { path: at, version } => {
                *at == path && *version == whole.version
            }
            _ => false,
        };
        if !ops(txn).iter().any(is_guard) {
            return Err(format!("`{share}` is given, and `{run}` is not changed at its version {}", whole.version));
        }
        if !share.node().is_some_and(|node| whole.left.contains(node)) {
            return Err(format!("`{share}` is given, and `{run}` was for {:?}", whole.left));
        }
        match self.given.insert(share.clone(), given) {
            Some(before) => Err(format!("`{share}` is given a second time: {before:?}, {given:?}")),
            None => Ok(()),
        }
    }

    /// A share is skipped that was not given before. A record grows by one occurrence at a time.
    fn skipped(&mut self, txn: &Txn, op: &Op, skip: &Skip) -> Result<(), String> {
        let before = match op {
            Op::Create { .. } => 0,
            _ => self.counted.get(&skip.id()).copied().unwrap_or(0),
        };
        self.counted.insert(skip.id(), skip.count);
        if skip.count != before + 1 {
            return Err(format!("the skips of shares grow from {before}: {skip:?}"));
        }
        // Each node that a run was for can be waited for: none is forgotten here, or changes its labels.
        let is_known = skip.on.as_ref().is_some_and(|node| self.places.contains_key(node));
        if skip.reason == SkipReason::NoNode && skip.trigger.is_none() && is_known {
            return Err(format!("a share is given up at once: {skip:?}"));
        }
        self.give(txn, &skip.id_from(skip.last), Given::Skip)
    }

    /// Takes what is left to be shared out.
    fn take(&mut self, txn: &Txn) -> Result<(), String> {
        for op in ops(txn) {
            let (run, left) = match op {
                Op::Set { path, data, .. } => {
                    let record: Option<RunRecord> = serde_json::from_slice(data).ok();
                    (below(path, RUNNING), record.and_then(|record| record.share_among))
                }
                Op::Delete { path, .. } => (below(path, RUNNING), None),
                _ => continue,
            };
            let Some(Ok(run)) = run.map(RunId::parse) else { continue };
            let Some(mut whole) = self.whole.remove(&run) else { continue };
            let left = left.map(|left| *left);
            // It may end as a whole.
            if left.is_none() && is_recorded(txn, &run) {
                continue;
            }
            let now = left.clone().unwrap_or_default();
            let is_given = |node: &NodeName| self.given.contains_key(&run.clone().on(Some(node.clone())));
            if let Some(node) = whole.left.iter().find(|node| !now.contains(node) && !is_given(node)) {
                return Err(format!("`{run}` is not for {node} any more, which has no share of it"));
            }
            if let Some(node) = now.iter().find(|node| !whole.left.contains(node)) {
                return Err(format!("`{run}` is for {node}, and it was not before"));
            }
            if left.is_some() {
                (whole.left, whole.version) = (now, whole.version + 1);
                self.whole.insert(run, whole);
            }
        }
        Ok(())
    }

    fn spawn(process: &Process) -> Result<(), String> {
        let Ok(run) = RunId::parse(&process.run) else { return Ok(()) };
        match run.node() {
            Some(on) if *on != node_name(process.node) => {
                Err(format!("`{run}` is {on}'s share, and is started on node-{}", process.node))
            }
            _ => Ok(()),
        }
    }
}

/// True if the write removes the run.
fn is_removed(txn: &Txn, run: &RunId) -> bool {
    let run = format!("{RUNNING}/{run}");
    ops(txn).iter().any(|op| matches!(op, Op::Delete { path, .. } if *path == run))
}

/// True if the write records the end of the run, or why it was skipped.
fn is_recorded(txn: &Txn, run: &RunId) -> bool {
    let folder = format!("/cronkeeper/history/{}", run.job());
    ops(txn).iter().any(|op| written(op, &folder).is_some_and(|(id, _)| id == run.to_string()))
}

impl Invariant for EveryNodeHasItsShare {
    fn observe(&mut self, at: Uptime, fact: &Fact) -> Result<(), String> {
        self.now = self.now.max(at);
        match fact {
            Fact::Committed { txn, .. } => self.commit(txn),
            Fact::Spawned(process) => Self::spawn(process),
            _ => Ok(()),
        }
    }

    fn conclude(&mut self) -> Result<(), String> {
        match self.whole.iter().find(|(_, whole)| whole.since + SOON < self.now) {
            Some((run, whole)) => Err(format!("in peace `{run}` is not shared out to {:?}", whole.left)),
            None => Ok(()),
        }
    }
}
