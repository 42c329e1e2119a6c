//! A [`Change`] as operations of a multi, and how to know afterwards that it was written.
//!
//! Pure. The fence, a check of the own candidate, is not among the operations: a group of changes shares one.

#[cfg(test)]
pub(super) mod tests;

use serde::de::DeserializeOwned;

use super::client::{Mode, Op};
use super::context::json;
use super::{paths, requests};
use crate::ledger::Change;
use crate::run::{HistoryRecord, JobRecord, Link, Nonce, RunRecord, RunState, Skip, TriggerSeq, Version};

/// The operations of a change, in order.
pub fn ops(change: &Change) -> Vec<Op> {
    let mut ops = own_ops(change);
    ops.extend(leave(&change.links()));
    ops
}

/// Links for jobs that run after others, and the sign that there are some.
fn leave(links: &[Link]) -> impl Iterator<Item = Op> {
    let path = || paths::under(paths::TRIGGERS, "");
    let create = move |link| Op::Create { path: path(), data: json(link), mode: Mode::PersistentSequential };
    links.iter().map(create).chain((!links.is_empty()).then(|| requests::ring(paths::TRIGGERS)))
}

fn own_ops(change: &Change) -> Vec<Op> {
    match change {
        Change::Advance { job, at, record, skip } => {
            let mut ops = vec![write(paths::job(job), json(record), *at)];
            ops.extend(skip.as_ref().map(|skip| say(&skip.skip, skip.at)));
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
            ops.extend(run.trigger.as_ref().map(|trigger| take_away(trigger.seq)));
            ops
        }
        Change::DropTrigger { seq, skip, .. } => {
            std::iter::once(take_away(*seq)).chain(skip.as_ref().map(|skip| say(skip, None))).collect()
        }
        Change::BeginDownstream { mark, run, links } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(&run.job), json(record), Some(*at)));
            let begin = write(paths::running(&run.id()), json(run), None);
            mark.into_iter().chain([begin]).chain(links.iter().copied().map(take_away)).collect()
        }
        Change::DropLinks { links, skip, .. } => {
            let taken = links.iter().copied().map(take_away);
            taken.chain(skip.as_ref().map(|skip| say(skip, None))).collect()
        }
        Change::Resume { job, control, mark, skip } => {
            let mark = mark.as_ref().map(|(at, record)| write(paths::job(job), json(record), *at));
            let lift = Op::Delete { path: paths::control(job), version: control.0 };
            mark.into_iter().chain([lift]).chain(skip.as_ref().map(|skip| say(&skip.skip, skip.at))).collect()
        }
        Change::UpdateRun { at, run } | Change::ChangeOwner { at, run } | Change::Kill { at, run } => {
            vec![write(paths::running(&run.id()), json(run), Some(*at))]
        }
        Change::Miss { at, run, skip, .. } => {
            vec![Op::Delete { path: paths::running(run), version: at.0 }, say(skip, None)]
        }
        Change::End { at, end, .. } => vec![
            Op::Delete { path: paths::running(&end.run.id()), version: at.0 },
            write(paths::history(&end.run.id()), json(&HistoryRecord::Run(end.clone())), None),
        ],
    }
}

fn take_away(trigger: TriggerSeq) -> Op {
    Op::Delete { path: paths::trigger(trigger), version: -1 }
}

fn say(skip: &Skip, at: Option<Version>) -> Op {
    write(paths::history(&skip.id()), json(&HistoryRecord::Skip(skip.clone())), at)
}

fn write(path: String, data: Vec<u8>, at: Option<Version>) -> Op {
    match at {
        Some(Version(version)) => Op::Set { path, data, version },
        None => Op::Create { path, data, mode: Mode::Persistent },
    }
}

/// True when the change was decided in a term other than that of `token`: it says which by the token in its record.
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

/// What an own write leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Where.
    pub path: String,
    /// What.
    pub mark: Evidence,
    /// The version it was written at, where what stands at the path is never removed and made again; absent: nothing follows
    /// from what stands there otherwise.
    pub base: Option<Base>,
}

/// What a write rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// That there is nothing yet.
    Absent,
    /// This version.
    Version(Version),
}

/// How an own write is told from another's.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// A nonce, drawn for this one decision: it proves the whole multi.
    Nonce(Nonce),
    /// The record as written. Another may have written the same, so it proves this change alone.
    Record(Vec<u8>),
}

/// Where to look for a change, each place enough by itself.
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
    /// True when what stands, and is not the own write, shows that the own one was never carried out: the version it would have made
    /// was not reached, or is another's. A later version shows nothing, the own write may be under it.
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
    /// True when what was found is the own write.
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
