//! Translates a [`Change`] into the operations of a multi and into the traces that prove that it was written.
//!
//! Pure. What a group of changes shares is not among the operations: the fence, a check of the own candidate; the check
//! of the own member; and the bells.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;

use super::context::json;
use super::requests;
use crate::paths;
use crate::tree::{AtVersion, Life, Op};
use cronkeeper_core::ledger::{Bell, Change, Write};
use cronkeeper_core::run::{HistoryRecord, JobRecord, Nonce, Notice, NoticeKey, RunId, RunRecord, Version};
use cronkeeper_core::term::NodeName;

/// A change in the words of a multi.
pub struct Planned {
    /// The operations of the change by itself.
    pub ops: Vec<Op>,
    /// The path of the member that must exist.
    pub member: Option<String>,
    /// Who is notified.
    pub rung: Vec<Rung>,
}

impl Planned {
    pub fn of(change: &Change) -> Self {
        let writes = change.writes();
        let leaves_links = writes.iter().any(|write| matches!(write, Write::Link(_)));
        let mut ops: Vec<Op> = writes.iter().flat_map(op).collect();
        keep_offer(&mut ops);
        ops.extend(leaves_links.then(|| requests::notify_leader(paths::TRIGGERS)));
        let (mut member, mut rung) = (None, Vec::new());
        for write in &writes {
            match write {
                Write::Member(node) => member = Some(paths::member(node)),
                Write::Ring(Bell::Node(node)) => rung.push(Rung::Node((*node).clone())),
                Write::Ring(Bell::Leader(run)) => rung.push(Rung::Leader(run.clone())),
                _ => {}
            }
        }
        Self { ops, member, rung }
    }
}

/// The operations of a change by itself.
#[cfg(test)]
pub fn ops(change: &Change) -> Vec<Op> {
    Planned::of(change).ops
}

/// The offer of an attempt that is placed where the one before was stays: not every service can remove a record and make
/// it again in one commit.
fn keep_offer(ops: &mut Vec<Op>) {
    let made = ops.iter().find_map(|op| match op {
        Op::Create { path, .. } if paths::is_offer(path) => Some(path.clone()),
        _ => None,
    });
    let Some(made) = made else { return };
    let removes = |op: &Op| matches!(op, Op::Delete { path, .. } if *path == made);
    if ops.iter().any(removes) {
        ops.retain(|op| !removes(op));
        for op in ops.iter_mut().filter(|op| matches!(op, Op::Create { path, .. } if *path == made)) {
            *op = Op::Set { path: made.clone(), data: Vec::new(), at: AtVersion::Any };
        }
    }
}

/// Who is notified of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// The node on which an attempt is placed.
    Node(NodeName),
    /// The leader, because of this run.
    Leader(RunId),
}

/// The operations that notify these: one for each node, and one for the leader, which names all its runs.
pub fn bells<'r>(rung: impl IntoIterator<Item = &'r Rung>) -> Vec<Op> {
    let ring = |path, data| Op::Set { path, data, at: AtVersion::Any };
    let (mut nodes, mut runs) = (BTreeSet::new(), BTreeSet::new());
    for rung in rung {
        match rung {
            Rung::Node(node) => _ = nodes.insert(node),
            Rung::Leader(run) => _ = runs.insert(run.to_string()),
        }
    }
    let of_leader = (!runs.is_empty()).then(|| ring(paths::RUNNING.to_owned(), json(&runs)));
    nodes.into_iter().map(|node| ring(paths::offers(node), Vec::new())).chain(of_leader).collect()
}

/// The operations that leave these notifications.
pub fn notices(notices: &[Notice]) -> impl Iterator<Item = Op> {
    let create = |notice: &Notice| Op::Create {
        path: paths::notice(NoticeKey::of(notice)),
        data: json(notice),
        life: Life::Lasting,
    };
    notices.iter().map(create)
}

/// The runs that the leader's bell names; `None` if nobody knows which.
pub fn rung_for(data: &[u8]) -> Option<BTreeSet<RunId>> {
    let names: Vec<String> = serde_json::from_slice(data).ok()?;
    names.iter().map(|name| RunId::parse(name).ok()).collect()
}

fn op(write: &Write<'_>) -> Vec<Op> {
    let op = match write {
        Write::Job { job, at, record } => put(paths::job(job), json(record), *at),
        Write::Run { at, record } => put(paths::running(&record.id()), json(record), *at),
        Write::RemoveRun { run, at } => Op::Delete { path: paths::running(run), at: (*at).into() },
        Write::RemoveTrigger(seq) => Op::Delete { path: paths::trigger(*seq), at: AtVersion::Any },
        Write::RemovePause { job, at } => Op::Delete { path: paths::control(job), at: (*at).into() },
        // A record that stays is found by the refusal, and checked for then.
        Write::History { at, record, .. } => put(paths::history(&Write::history_id(record)), json(record), *at),
        // No operation checks that a record is absent, but a create fails if it is not.
        Write::NotEnded(run) => {
            let path = paths::history(run);
            return vec![put(path.clone(), Vec::new(), None), Op::Delete { path, at: AtVersion::Any }];
        }
        Write::Offer { node, run } => put(paths::offer(node, run), Vec::new(), None),
        Write::RemoveOffer { node, run } => Op::Delete { path: paths::offer(node, run), at: AtVersion::Any },
        Write::Member(_) | Write::Ring(_) => return Vec::new(),
        Write::Link(link) => {
            let (folder, prefix) = (paths::TRIGGERS.to_owned(), String::new());
            Op::Append { folder, prefix, data: json(link), life: Life::Lasting }
        }
    };
    vec![op]
}

fn put(path: String, data: Vec<u8>, at: Option<Version>) -> Op {
    match at {
        Some(version) => Op::Set { path, data, at: version.into() },
        None => Op::Create { path, data, life: Life::Lasting },
    }
}

/// A place where a write of this node leaves evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub path: String,
    pub mark: Evidence,
    /// The version that the write is based on. Absent if the record may be removed and recreated: then a different
    /// content proves nothing.
    pub base: Option<Base>,
}

/// The state that a write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The record does not exist yet.
    Absent,
    /// The record has this version.
    Version(Version),
}

/// Evidence by which a write of this node is distinguished from others.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// A nonce drawn for this one decision. It proves the whole multi.
    Nonce(Nonce),
    /// The record as written. Somebody else may have written the same, so it proves only this change.
    Record(Vec<u8>),
}

/// The traces of a change. Each is sufficient by itself.
pub fn traces(change: &Change) -> Vec<Trace> {
    let writes = change.writes();
    // The nonce of a mark proves the whole multi, so the history record of a skip beside it adds nothing.
    let moves_mark = writes.iter().any(|write| matches!(write, Write::Job { .. }));
    writes.iter().flat_map(|write| traces_of(write, moves_mark)).collect()
}

fn traces_of(write: &Write<'_>, moves_mark: bool) -> Vec<Trace> {
    let nonce = |path, nonce: &Nonce, base| Trace { path, mark: Evidence::Nonce(nonce.clone()), base };
    let record = |path, record, base| Trace { path, mark: Evidence::Record(record), base };
    match write {
        Write::Job { job, at, record } => {
            vec![nonce(paths::job(job), &record.nonce, Some(at.map_or(Base::Absent, Base::Version)))]
        }
        Write::Run { at: None, record } => {
            let (run, nonced) = (record.id(), &record.nonce);
            vec![nonce(paths::running(&run), nonced, None), nonce(paths::history(&run), nonced, None)]
        }
        Write::Run { at: Some(at), record: run } => {
            vec![record(paths::running(&run.id()), json(run), Some(Base::Version(*at)))]
        }
        Write::History { record: written, .. } if !moves_mark => {
            vec![record(paths::history(&Write::history_id(written)), json(written), None)]
        }
        Write::History { .. }
        | Write::RemoveRun { .. }
        | Write::RemoveTrigger(_)
        | Write::RemovePause { .. }
        | Write::NotEnded(_)
        | Write::Link(_)
        | Write::Member(_)
        | Write::Offer { .. }
        | Write::RemoveOffer { .. }
        | Write::Ring(_) => Vec::new(),
    }
}

impl Base {
    /// True if the version found, whose content is not this write's, proves that the write was never carried out.
    ///
    /// That is so if the record has not reached the version that the write would have made, or somebody else made that
    /// version. A later version proves nothing, because the write may have been overwritten.
    pub fn is_unwritten(self, found: Option<Version>) -> bool {
        match (self, found) {
            (Self::Absent, None) => true,
            (Self::Absent, Some(found)) => found == Version::FIRST,
            (Self::Version(at), Some(found)) => found <= at.next(),
            (Self::Version(_), None) => false,
        }
    }
}

impl Evidence {
    /// True if this data was written by the write in question.
    pub fn is_in(&self, data: &[u8]) -> bool {
        match self {
            Self::Record(record) => record == data,
            Self::Nonce(nonce) => nonces(data).contains(nonce),
        }
    }
}

fn nonces(data: &[u8]) -> Vec<Nonce> {
    fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
        serde_json::from_slice(data).ok()
    }
    let job = read::<JobRecord>(data).map(|record| record.nonce);
    let run = read::<RunRecord>(data).map(|record| record.nonce);
    let ended = match read::<HistoryRecord>(data) {
        Some(HistoryRecord::Run(end)) => Some(end.run.nonce),
        Some(HistoryRecord::Skip(_)) | None => None,
    };
    [job, run, ended].into_iter().flatten().collect()
}
