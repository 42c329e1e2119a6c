//! Changes that share a multi. Pure: what to send, and what an answer means for whom.

use crate::job::JobName;
use crate::ledger::{Change, Commit, CommitId};
use crate::run::{RunId, RunRecord, RunState, Version};
use crate::zookeeper::client::{Error, Mode, MultiError, Op, Read};
use crate::zookeeper::lower::{self, Evidence, Trace};
use crate::zookeeper::paths;
use crate::zookeeper::trim::{Kind, Written};

const MOST_OPS: usize = 200;
const MOST_BYTES: usize = 128 * 1024;
/// Folders that go as often as they are made are somebody's doing: then it is a refusal.
const MOST_FOLDERS_MADE: u32 = 3;

/// A change that waits for its answer.
pub struct Pending {
    /// To answer by.
    pub id: CommitId,
    /// Its place among those that were requested.
    pub number: u64,
    /// What to write.
    pub change: Change,
    /// Whether an earlier try was carried out can no longer be found out.
    pub is_untraceable: bool,
    fence: Option<String>,
    ops: Vec<Op>,
}

/// Changes that share a multi.
#[derive(Default)]
pub struct Group {
    /// The candidate that guards those of its changes that only a leader may write.
    pub fence: Option<String>,
    /// The changes, in the order requested.
    pub members: Vec<Pending>,
    /// True while an earlier try has no answer.
    pub is_in_doubt: bool,
    folders_made: u32,
}

/// What the failure of a multi means.
pub enum Failed {
    /// The candidate is gone: these changes with it.
    Fence(Vec<Pending>),
    /// Another wrote what the first of these rests on, and the others rest on that one.
    Superseded(Vec<Pending>),
    /// A history record stood otherwise than assumed; the operation now fits it.
    Rewritten,
    /// A folder above this path is gone.
    NoFolder(String),
    /// The server refuses an operation of this change, for a reason that is none of these.
    Refused {
        /// The change, and those of its job that were requested after it.
        pending: Vec<Pending>,
        /// The path that it is about.
        path: String,
    },
}

/// What the traces of an earlier try say.
pub enum Verdict {
    /// It was carried out.
    All,
    /// These changes stand as written, whoever wrote them; of the others there is no trace.
    Some(Vec<Pending>),
    /// It was not.
    None,
    /// Others have written since where its traces would be.
    Untraceable,
}

impl Pending {
    /// A change as it was requested.
    pub fn new(id: CommitId, number: u64, change: Change, fence: Option<String>) -> Self {
        let ops = lower::ops(&change);
        Self { id, number, change, is_untraceable: false, fence, ops }
    }

    /// True where the candidate guards it.
    pub fn is_fenced(&self) -> bool {
        self.fence.is_some()
    }

    /// What is to be said of it once it is known that it is not carried out now. Of an end all that counts is that another's stands.
    pub fn refused_as(&self, answer: Commit) -> Commit {
        let is_end = matches!(self.change, Change::End { .. } | Change::Miss { .. });
        let is_known = !self.is_untraceable || (is_end && answer == Commit::Superseded);
        if is_known { answer } else { Commit::Unknown }
    }

    /// The attempt that it begins, and the version of its record then.
    pub fn begun(&self) -> Option<(RunRecord, Version)> {
        let (run, version) = match &self.change {
            Change::Begin { run, .. } | Change::BeginTriggered { run } | Change::BeginDownstream { run, .. } => {
                (run, Version::FIRST)
            }
            Change::UpdateRun { at, run } => (run, at.next()),
            _ => return None,
        };
        (run.state == RunState::Running).then(|| (run.clone(), version))
    }

    /// The record of the history that it makes or grows.
    pub fn written(&self) -> Option<Written> {
        let is_end = matches!(self.change, Change::End { .. });
        let (path, version) = self.ops.iter().find_map(|op| match op {
            Op::Create { path, .. } if is_history(path) => Some((path, 0)),
            Op::Set { path, version, .. } if is_history(path) => Some((path, version.wrapping_add(1))),
            _ => None,
        })?;
        Some(Written {
            job: self.change.job().clone(),
            run: RunId::parse(paths::name(path)).ok()?,
            kind: if is_end { Kind::Run } else { Kind::Skip },
            version,
        })
    }

    fn bytes(&self) -> usize {
        self.ops.iter().map(bytes).sum()
    }
}

impl Group {
    /// True where the change may share this multi: there is room, and no other candidate guards it.
    pub fn fits(&self, pending: &Pending) -> bool {
        let has_room =
            1 + self.operations() + pending.ops.len() <= MOST_OPS && self.bytes() + pending.bytes() <= MOST_BYTES;
        let is_of_another = self.fence.is_some() && pending.fence.is_some() && self.fence != pending.fence;
        self.members.is_empty() || (has_room && !is_of_another)
    }

    /// Adds a change that fits.
    pub fn add(&mut self, pending: Pending) {
        self.fence = self.fence.take().or_else(|| pending.fence.clone());
        self.members.push(pending);
    }

    /// The job of each change.
    pub fn jobs(&self) -> Vec<JobName> {
        self.members.iter().map(|pending| pending.change.job().clone()).collect()
    }

    fn operations(&self) -> usize {
        self.members.iter().map(|pending| pending.ops.len()).sum()
    }

    fn bytes(&self) -> usize {
        self.members.iter().map(Pending::bytes).sum()
    }

    /// The multi: the fence first, if any change needs it.
    pub fn ops(&self) -> Vec<Op> {
        let fence = self.fence.as_deref().map(super::check);
        fence.into_iter().chain(self.members.iter().flat_map(|pending| pending.ops.iter().cloned())).collect()
    }

    /// The jobs whose history it adds to.
    pub fn histories(&self) -> impl Iterator<Item = JobName> {
        let adds = |op: &Op| matches!(op, Op::Create { path, .. } if is_history(path));
        self.members
            .iter()
            .filter(move |pending| pending.ops.iter().any(adds))
            .map(|pending| pending.change.job().clone())
    }

    /// Where its traces would be, change by change.
    pub fn traces(&self) -> impl Iterator<Item = Trace> {
        self.members.iter().flat_map(|pending| lower::traces(&pending.change))
    }

    /// Judges by what was found at the paths of [`Group::traces`]. A nonce proves the whole multi, for it is of one
    /// decision only; a record only itself, for another may have written the same.
    pub fn judge(&mut self, found: &[Read]) -> Verdict {
        let mut found = found.iter();
        let mut is_written = Vec::with_capacity(self.members.len());
        let (mut is_unwritten, mut has_base) = (false, false);
        for pending in &self.members {
            let mut is_here = false;
            for trace in lower::traces(&pending.change) {
                let found = match found.next() {
                    Some(Ok(found)) => Some(found),
                    None | Some(Err(Error::NoNode)) => None,
                    // What cannot be read shows nothing.
                    Some(Err(_)) => {
                        has_base = true;
                        continue;
                    }
                };
                let hit = found.is_some_and(|(data, _)| trace.mark.is_in(data));
                if hit && matches!(trace.mark, Evidence::Nonce(_)) {
                    return Verdict::All;
                }
                is_here |= hit;
                let version = found.map(|(_, stat)| Version(stat.version));
                has_base |= trace.base.is_some();
                is_unwritten |= !hit && trace.base.is_some_and(|base| base.is_unwritten(version));
            }
            is_written.push(is_here);
        }
        if is_written.iter().all(|&written| written) {
            return Verdict::All;
        }
        let mut index = 0;
        let written = self.take(|_| {
            index += 1;
            is_written[index - 1]
        });
        match written.is_empty() {
            false => Verdict::Some(written),
            // All or nothing: what shows that one was not carried out shows it of all. An end leaves nothing to tell by, but
            // then another has settled the run.
            true if is_unwritten || !has_base => Verdict::None,
            true => Verdict::Untraceable,
        }
    }

    /// True where it is an end that failed, on something that an earlier try of it may have done.
    pub fn is_end_refused(&self, failed: &MultiError) -> bool {
        let first = usize::from(self.fence.is_some());
        let member = failed.index.and_then(|index| self.locate(index.checked_sub(first)?)).map(|(member, _)| member);
        let is_end = |member: usize| matches!(self.members[member].change, Change::End { .. });
        failed.error.is_of_state() && member.is_some_and(is_end)
    }

    /// Takes out the change that failed.
    pub fn drop_failed(&mut self, failed: &MultiError) -> Failed {
        let first = usize::from(self.fence.is_some());
        // Where the server does not say which, each is tried by itself: the first is as good as any.
        let Some(index) = failed.index else { return self.refuse(0, 0) };
        // A candidate that is closed to its own node guards nothing any more.
        if index < first && (failed.error.is_of_state() || failed.error == Error::NoAuth) {
            self.fence = None;
            return Failed::Fence(self.take(Pending::is_fenced));
        }
        match index.checked_sub(first).and_then(|index| self.locate(index)) {
            Some((member, op)) if failed.error.is_of_state() => self.drop_member(member, op, &failed.error),
            Some((member, op)) => self.refuse(member, op),
            None => self.refuse(0, 0),
        }
    }

    /// Takes out a change that the server refuses, with those of its job that come after it.
    fn refuse(&mut self, member: usize, op: usize) -> Failed {
        let path = self.members[member].ops.get(op).map(closed_by).unwrap_or_default();
        let job = self.members[member].change.job().clone();
        let after = self.members.split_off(member);
        let (pending, others): (Vec<_>, Vec<_>) = after.into_iter().partition(|pending| *pending.change.job() == job);
        self.members.extend(others);
        self.forget_fence();
        Failed::Refused { pending, path }
    }

    fn drop_member(&mut self, member: usize, op: usize, error: &Error) -> Failed {
        let index = op;
        let Pending { change, ops, .. } = &mut self.members[member];
        let op = &mut ops[index];
        match (&mut *op, error) {
            (Op::Create { path, .. }, Error::NoNode) if self.folders_made < MOST_FOLDERS_MADE => {
                self.folders_made += 1;
                return Failed::NoFolder(path.clone());
            }
            (Op::Create { .. }, Error::NoNode) => return self.refuse(member, index),
            // The folder has no more numbers to give: that is nobody's doing.
            (Op::Create { mode: Mode::PersistentSequential, .. }, Error::NodeExists) => {
                return self.refuse(member, index);
            }
            _ => {}
        }
        if keeps_history(change) && is_told_already(op, error) {
            return Failed::Rewritten;
        }
        if rewrite_history(op, error) {
            return Failed::Rewritten;
        }
        let superseded = self.take_chain(member);
        self.forget_fence();
        Failed::Superseded(superseded)
    }

    /// The change that failed, and those after it that rest on it.
    fn take_chain(&mut self, member: usize) -> Vec<Pending> {
        let (failed, after) = (self.members.remove(member), self.members.split_off(member));
        let rests_on_it = |pending: &Pending| {
            failed.change.moves_mark() && pending.change.moves_mark() && pending.change.job() == failed.change.job()
        };
        let (rest, others): (Vec<_>, Vec<_>) = after.into_iter().partition(rests_on_it);
        self.members.extend(others);
        std::iter::once(failed).chain(rest).collect()
    }

    fn locate(&self, mut index: usize) -> Option<(usize, usize)> {
        for (member, pending) in self.members.iter().enumerate() {
            if index < pending.ops.len() {
                return Some((member, index));
            }
            index -= pending.ops.len();
        }
        None
    }

    fn take(&mut self, mut which: impl FnMut(&Pending) -> bool) -> Vec<Pending> {
        let (taken, kept) = std::mem::take(&mut self.members).into_iter().partition(|pending| which(pending));
        self.members = kept;
        self.forget_fence();
        taken
    }

    fn forget_fence(&mut self) {
        if !self.members.iter().any(Pending::is_fenced) {
            self.fence = None;
        }
    }
}

/// Whose rights, or state, an operation needs: a node is made in a folder, and removed from it.
fn closed_by(op: &Op) -> String {
    match op {
        Op::Check { path, .. } | Op::Set { path, .. } => path.clone(),
        Op::Create { path, .. } | Op::Delete { path, .. } => {
            path.rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned())
        }
    }
}

/// What is given up in a chain may have been decided on before: then the history knows better.
fn keeps_history(change: &Change) -> bool {
    matches!(change, Change::DropLinks { .. })
}

/// Lets a record of the history be as it is.
fn is_told_already(op: &mut Op, error: &Error) -> bool {
    let told = match (&*op, error) {
        (Op::Create { path, .. }, Error::NodeExists) if is_history(path) => path.clone(),
        _ => return false,
    };
    *op = Op::Check { path: told, version: -1 };
    true
}

/// A record of the history rests on nothing: what guards it is the mark, or the run, in the same multi. One that was trimmed is
/// made again, one that is there already is written over.
fn rewrite_history(op: &mut Op, error: &Error) -> bool {
    let rewritten = match (&*op, error) {
        (Op::Create { path, data, .. }, Error::NodeExists) if is_history(path) => {
            Op::Set { path: path.clone(), data: data.clone(), version: -1 }
        }
        (Op::Set { path, data, .. }, Error::NoNode) if is_history(path) => {
            Op::Create { path: path.clone(), data: data.clone(), mode: Mode::Persistent }
        }
        (Op::Set { path, data, .. }, Error::BadVersion) if is_history(path) => {
            Op::Set { path: path.clone(), data: data.clone(), version: -1 }
        }
        _ => return false,
    };
    *op = rewritten;
    true
}

fn is_history(path: &str) -> bool {
    path.strip_prefix(paths::HISTORY).is_some_and(|rest| rest.starts_with('/'))
}

fn bytes(op: &Op) -> usize {
    match op {
        Op::Create { path, data, .. } | Op::Set { path, data, .. } => path.len() + data.len(),
        Op::Check { path, .. } | Op::Delete { path, .. } => path.len(),
    }
}
