//! Translates a [`Change`] into the operations of a multi and into the traces that prove that it was written.
//!
//! Pure. The fence, a check of the own candidate, is not among the operations, because a group of changes shares one.

#[cfg(test)]
pub(super) mod tests;

use serde::de::DeserializeOwned;

use super::client::{Mode, Op};
use super::context::json;
use super::{paths, requests};
use crate::ledger::Change;
use crate::run::{HistoryRecord, JobRecord, Link, Nonce, RunRecord, RunState, Skip, TriggerSeq, Version};

pub fn ops(change: &Change) -> Vec<Op> {
    let mut ops = own_ops(change);
    ops.extend(leave_links(&change.links()));
    ops
}

/// Creates links for downstream jobs, and notifies the leader if there are any.
fn leave_links(links: &[Link]) -> impl Iterator<Item = Op> {
    let path = || paths::under(paths::TRIGGERS, "");
    let create = move |link| Op::Create { path: path(), data: json(link), mode: Mode::PersistentSequential };
    links.iter().map(create).chain((!links.is_empty()).then(|| requests::notify_leader(paths::TRIGGERS)))
}

fn own_ops(change: &Change) -> Vec<Op> {
    match change {
        Change::Advance { job, at, record, skip } => {
            let mut ops = vec![write(paths::job(job), json(record), *at)];
            ops.extend(skip.as_ref().map(|skip| record_skip(&skip.skip, skip.at)));
            ops
        }
        Change::Begin { at, record, run } => {
            vec![
                write(paths::job(&run.job), json(record), Some(*at)),
                write(paths::running(&run.id()), json(run), None),
            ]
        }
        Change::BeginTriggered { run } => {
            let mut ops = vec![write(paths::running(&run.id()), json(run), None)];
            ops.extend(run.trigger.as_ref().map(|trigger| delete_trigger(trigger.seq)));
            ops
        }
        Change::DropTrigger { seq, skip, .. } => {
            std::iter::once(delete_trigger(*seq)).chain(skip.as_ref().map(|skip| record_skip(skip, None))).collect()
        }
        Change::BeginDownstream { mark, run, links } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(&run.job), json(record), Some(*at)));
            let begin = write(paths::running(&run.id()), json(run), None);
            mark.into_iter().chain([begin]).chain(links.iter().copied().map(delete_trigger)).collect()
        }
        Change::DropLinks { links, skip, .. } => {
            let deletes = links.iter().copied().map(delete_trigger);
            deletes.chain(skip.as_ref().map(|skip| record_skip(skip, None))).collect()
        }
        Change::Resume { job, control, mark, skip } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(job), json(record), *at));
            let lift = Op::Delete { path: paths::control(job), version: control.0 };
            mark.into_iter().chain([lift]).chain(skip.as_ref().map(|skip| record_skip(&skip.skip, skip.at))).collect()
        }
        Change::UpdateRun { at, run } | Change::ChangeOwner { at, run } | Change::Kill { at, run } => {
            vec![write(paths::running(&run.id()), json(run), Some(*at))]
        }
        Change::Miss { at, run, skip, .. } => {
            vec![Op::Delete { path: paths::running(run), version: at.0 }, record_skip(skip, None)]
        }
        Change::End { at, end, .. } => vec![
            Op::Delete { path: paths::running(&end.run.id()), version: at.0 },
            write(paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())), None),
        ],
    }
}

fn delete_trigger(trigger: TriggerSeq) -> Op {
    Op::Delete { path: paths::trigger(trigger), version: -1 }
}

fn record_skip(skip: &Skip, at: Option<Version>) -> Op {
    write(paths::history(&skip.id()), json(&HistoryRecord::Skip(skip.clone())), at)
}

fn write(path: String, data: Vec<u8>, at: Option<Version>) -> Op {
    match at {
        Some(Version(version)) => Op::Set { path, data, version },
        None => Op::Create { path, data, mode: Mode::Persistent },
    }
}

/// True if the token in the change's record shows that it was decided in a term other than that of `token`.
pub fn is_of_another_term(change: &Change, token: i64) -> bool {
    match change {
        Change::Begin { run, .. } | Change::BeginTriggered { run } | Change::BeginDownstream { run, .. } => {
            run.token.0 != token
        }
        Change::UpdateRun { run, .. } => run.state == RunState::Running && run.token.0 != token,
        Change::Advance { .. }
        | Change::DropTrigger { .. }
        | Change::DropLinks { .. }
        | Change::Resume { .. }
        | Change::Miss { .. }
        | Change::ChangeOwner { .. }
        | Change::Kill { .. }
        | Change::End { .. } => false,
    }
}

/// A place where a write of this node leaves evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub path: String,
    pub mark: Evidence,
    /// The version that the write is based on. Absent if the znode may be removed and recreated: then a different
    /// content proves nothing.
    pub base: Option<Base>,
}

/// The state that a write expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// The znode does not exist yet.
    Absent,
    /// The znode has this version.
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
    let nonce = |path, nonce: &Nonce, base| Trace { path, mark: Evidence::Nonce(nonce.clone()), base };
    let record = |path, record, base| Trace { path, mark: Evidence::Record(record), base };
    match change {
        Change::Advance { job, at, record, .. } => {
            let base = at.map_or(Base::Absent, Base::Version);
            vec![nonce(paths::job(job), &record.nonce, Some(base))]
        }
        Change::Begin { at, record, run } => vec![
            nonce(paths::job(&run.job), &record.nonce, Some(Base::Version(*at))),
            nonce(paths::running(&run.id()), &run.nonce, None),
            nonce(paths::history(&run.id()), &run.nonce, None),
        ],
        Change::BeginTriggered { run } => {
            vec![nonce(paths::running(&run.id()), &run.nonce, None), nonce(paths::history(&run.id()), &run.nonce, None)]
        }
        Change::BeginDownstream { mark, run, .. } => {
            let mark =
                mark.iter().map(|(at, record)| nonce(paths::job(&run.job), &record.nonce, Some(Base::Version(*at))));
            let run_at = [paths::running(&run.id()), paths::history(&run.id())];
            mark.chain(run_at.map(|path| nonce(path, &run.nonce, None))).collect()
        }
        Change::DropTrigger { skip, .. } | Change::DropLinks { skip, .. } => {
            let skip = skip.iter().map(|skip| (paths::history(&skip.id()), HistoryRecord::Skip(skip.clone())));
            skip.map(|(path, skip)| record(path, json(&skip), None)).collect()
        }
        Change::Miss { skip, .. } => {
            vec![record(paths::history(&skip.id()), json(&HistoryRecord::Skip(skip.clone())), None)]
        }
        Change::Resume { job, mark, .. } => {
            let mark = mark.iter().map(|(at, written)| (written, at.map_or(Base::Absent, Base::Version)));
            mark.map(|(written, base)| nonce(paths::job(job), &written.nonce, Some(base))).collect()
        }
        Change::UpdateRun { at, run } | Change::ChangeOwner { at, run } | Change::Kill { at, run } => {
            vec![record(paths::running(&run.id()), json(run), Some(Base::Version(*at)))]
        }
        Change::End { end, .. } => {
            vec![record(paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())), None)]
        }
    }
}

impl Base {
    /// True if the version found, whose content is not this write's, proves that the write was never carried out.
    ///
    /// That is so if the znode has not reached the version that the write would have made, or somebody else made that
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
