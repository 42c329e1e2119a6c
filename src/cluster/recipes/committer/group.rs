//! A group of changes that share a multi. Pure: builds the multi and interprets its answer.

use std::collections::BTreeSet;

use crate::paths;
use crate::recipes::context;
use crate::recipes::lasts::LastWrites;
use crate::recipes::transaction::{self, Evidence, Planned, Rung, Trace};
use crate::recipes::trim::{RecordKind, WrittenRecord};
use crate::tree::{AtVersion, CommitError, Error, Life, Limits, Op, Read};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Change, Commit, CommitId, Existing, Write};
use cronkeeper_core::run::{RunEnd, RunId, RunRecord, Version};
use cronkeeper_core::term::FencingToken;

/// More than a record `last/<job>` takes.
const LAST_BYTES: usize = 1 << 10;

/// How often others may move the records `last/<job>` of a group before one of them is left out.
const MOST_MOVES: u32 = 5;

/// A change that waits for its answer.
pub struct PendingCommit {
    pub id: CommitId,
    /// Position among all requested changes.
    pub number: u64,
    pub change: Change,
    /// True once it can no longer be found out whether an earlier try was carried out.
    pub is_untraceable: bool,
    /// Of an acceptance that was found on record: the attempt's fencing token.
    pub token: Option<FencingToken>,
    fence: Option<String>,
    /// The member that must exist.
    member: Option<String>,
    ops: Vec<Op>,
    rung: Vec<Rung>,
}

/// Changes that share a multi.
#[derive(Default)]
pub struct Group {
    /// The candidate that guards those changes that only a leader may write.
    pub fence: Option<String>,
    /// The node's own member, which guards acceptances and refusals.
    pub member: Option<String>,
    /// In the order requested.
    pub members: Vec<PendingCommit>,
    /// What the ends among them write to `last/<job>`. As long as a try is in doubt, the same is sent again.
    pub lasts: LastWrites,
    /// How often others have moved those meanwhile.
    pub moved: u32,
    /// Bells that are rung by making their records, which were missing.
    made: BTreeSet<String>,
    /// Bells that cannot be rung.
    silent: BTreeSet<String>,
    /// Notifications that are there already, by their paths.
    noticed: BTreeSet<String>,
    /// Notifications cannot be written: no change waits for that.
    is_mute: bool,
    /// True while an earlier try has no answer.
    pub is_in_doubt: bool,
}

/// Interpretation of a multi that failed.
pub enum GroupFailure {
    /// The candidate is gone, and these changes needed it.
    Fence(Vec<PendingCommit>),
    /// The node's own member is gone, and these changes needed it.
    Member(Vec<PendingCommit>),
    /// Somebody else wrote what the first of these changes depends on; the others depend on the first.
    Superseded(Vec<PendingCommit>),
    /// The state of a history, or of a record in it, was not as assumed. The multi is adapted and can be sent again.
    Rewritten,
    /// Another node has written an end of the first of these jobs, and perhaps of the others.
    LastMoved(Vec<JobName>),
    /// The record `last/<job>` with this path, or their folder, cannot be written.
    LastClosed(String),
    /// The bell with this path cannot be rung. Nobody waits for that.
    BellClosed(String),
    /// Notifications cannot be written. No change waits for that.
    OutboxClosed,
    /// The server refuses an operation of a change for any other reason.
    Refused {
        /// The change, and those of its job that were requested after it.
        pending: Vec<PendingCommit>,
        /// The path whose rights or state prevent the commit.
        path: String,
    },
}

/// Conclusion from the traces of an earlier try.
pub enum TraceVerdict {
    /// It was carried out.
    All,
    /// These changes are on record, whoever wrote them; the others left no trace, because the try was not carried out, or
    /// because others have since written to the places of theirs.
    Some {
        written: Vec<PendingCommit>,
        /// True if it certainly was not carried out.
        is_unwritten: bool,
    },
    /// It was not carried out.
    None,
    /// Others have since written to the places of its traces, so it is unknown.
    Untraceable,
}

impl PendingCommit {
    pub fn new(id: CommitId, number: u64, change: Change, fence: Option<String>) -> Self {
        let Planned { ops, member, rung } = Planned::of(&change);
        Self { id, number, change, is_untraceable: false, token: None, fence, member, ops, rung }
    }

    /// True if only the holder of the candidate may write this change.
    pub fn is_fenced(&self) -> bool {
        self.fence.is_some()
    }

    /// The answer to report when `answer` is the reason why the change is not written now.
    ///
    /// For an end it only matters that another end is on record, so that answer holds even if the change is
    /// untraceable.
    pub fn refused_as(&self, answer: Commit) -> Commit {
        let change = match &self.change {
            Change::Noticed { change, .. } => change,
            change => change,
        };
        let is_end = matches!(change, Change::End { .. } | Change::SkipRun { .. });
        let is_known = !self.is_untraceable || (is_end && answer == Commit::Superseded);
        if is_known { answer } else { Commit::Unknown }
    }

    /// The attempt that this change begins, and the version of its record afterwards.
    pub fn begun(&self) -> Option<(RunRecord, Version)> {
        self.change.begun().map(|(run, version)| (run.clone(), version))
    }

    /// The history records that this change creates or extends.
    pub fn written(&self) -> impl Iterator<Item = WrittenRecord> {
        let is_end = matches!(self.change, Change::End { .. });
        let records = self.ops.iter().filter_map(|op| match op {
            Op::Create { path, .. } if is_history(path) && !checks_absence(op) => Some((path, Version::FIRST)),
            Op::Set { path, at, .. } if is_history(path) => Some((path, at.next())),
            _ => None,
        });
        records.filter_map(move |(path, version)| {
            Some(WrittenRecord {
                job: self.change.job().clone(),
                run: RunId::parse(paths::name(path)).ok()?,
                kind: if is_end { RecordKind::Run } else { RecordKind::Skip },
                version,
            })
        })
    }

    /// The end that this change writes.
    fn end(&self) -> Option<(CommitId, &RunEnd)> {
        match &self.change {
            Change::End { end, .. } => Some((self.id, end)),
            _ => None,
        }
    }

    /// True if the change is an acceptance, whose place among all writes is a fencing token.
    pub fn is_acceptance(&self) -> bool {
        matches!(self.change, Change::Accept { .. })
    }

    /// The operations of this change, with that on `last/<job>` and the notifications.
    fn operations(&self) -> usize {
        self.ops.len() + usize::from(self.end().is_some()) + self.change.most_notices().1
    }

    fn bytes(&self) -> usize {
        self.ops.iter().map(bytes).sum::<usize>() + self.end().map_or(0, |_| LAST_BYTES) + self.change.most_notices().0
    }
}

impl Group {
    /// True if the change may share this multi: there is room, and no different candidate guards it.
    pub fn fits(&self, pending: &PendingCommit, limits: Limits) -> bool {
        let bells = transaction::bells(self.rung().chain(&pending.rung));
        let guards = 1 + usize::from(self.member.is_some() || pending.member.is_some());
        let has_room = guards + self.operations() + pending.operations() + bells.len() <= limits.operations
            && self.bytes() + pending.bytes() + bells.iter().map(bytes).sum::<usize>() <= limits.bytes;
        let differ =
            |ours: &Option<String>, theirs: &Option<String>| ours.is_some() && theirs.is_some() && ours != theirs;
        let is_of_another = differ(&self.fence, &pending.fence) || differ(&self.member, &pending.member);
        let is_free = limits.repeats || !self.is_base_of(pending);
        self.members.is_empty() || (has_room && !is_of_another && is_free)
    }

    /// True if the change expects a version that one of the group makes.
    fn is_base_of(&self, pending: &PendingCommit) -> bool {
        let made: BTreeSet<&str> =
            self.members.iter().flat_map(|member| member.ops.iter().filter_map(changed)).collect();
        pending.ops.iter().any(|op| match op {
            Op::Set { path, at: AtVersion::Version(_), .. } | Op::Delete { path, at: AtVersion::Version(_) } => {
                made.contains(path.as_str())
            }
            _ => false,
        })
    }

    /// Adds a change. Call [`Group::fits`] first.
    pub fn add(&mut self, pending: PendingCommit) {
        self.fence = self.fence.take().or_else(|| pending.fence.clone());
        self.member = self.member.take().or_else(|| pending.member.clone());
        self.members.push(pending);
    }

    /// The job of each change.
    pub fn jobs(&self) -> Vec<JobName> {
        self.members.iter().map(|pending| pending.change.job().clone()).collect()
    }

    fn operations(&self) -> usize {
        self.members.iter().map(PendingCommit::operations).sum()
    }

    fn bytes(&self) -> usize {
        self.members.iter().map(PendingCommit::bytes).sum()
    }

    /// The ends among the changes, in the order requested.
    pub fn ends(&self) -> impl Iterator<Item = (CommitId, &RunEnd)> {
        self.members.iter().filter_map(PendingCommit::end)
    }

    /// The multi: the guards first, if any change needs them, and `last/<job>`, the notifications and the bells at the end:
    /// what an earlier try has done shows in the changes themselves.
    pub fn ops(&self) -> Vec<Op> {
        let fence = self.fence.as_deref().map(context::fence);
        let member = self.member.as_ref().map(|member| Op::Check { path: member.clone(), at: AtVersion::Any });
        let changes = self.members.iter().flat_map(|pending| pending.ops.iter().cloned());
        fence
            .into_iter()
            .chain(member)
            .chain(changes)
            .chain(self.lasts.ops())
            .chain(self.notices())
            .chain(self.bells())
            .collect()
    }

    /// The notifications, as far as they can be written.
    fn notices(&self) -> impl Iterator<Item = Op> {
        let members = self.members.iter().filter(|_| !self.is_mute);
        let notices = |pending: &PendingCommit| pending.change.notices(self.lasts.compared(pending.id));
        let all = members.flat_map(move |pending| transaction::notices(&notices(pending)).collect::<Vec<_>>());
        all.filter(|op| !changed(op).is_some_and(|path| self.noticed.contains(path)))
    }

    /// Number of the operations before those of the changes.
    fn guards(&self) -> usize {
        usize::from(self.fence.is_some()) + usize::from(self.member.is_some())
    }

    fn rung(&self) -> impl Iterator<Item = &Rung> {
        self.members.iter().flat_map(|pending| &pending.rung)
    }

    /// The bells, as far as they can be rung.
    fn bells(&self) -> impl Iterator<Item = Op> {
        let made = |op: Op| match op {
            Op::Set { path, data, .. } if self.made.contains(&path) => Op::Create { path, data, life: Life::Lasting },
            op => op,
        };
        let bells = transaction::bells(self.rung()).into_iter();
        bells.filter(|op| !changed(op).is_some_and(|path| self.silent.contains(path))).map(made)
    }

    /// The paths of the bells that are rung, and of the notifications' folder if there are any.
    pub fn bell_paths(&self) -> impl Iterator<Item = String> {
        let outbox = self.notices().next().map(|_| paths::OUTBOX.to_owned());
        self.bells().filter_map(|op| changed(&op).map(str::to_owned)).chain(outbox)
    }

    /// The places of the group's traces, change by change.
    pub fn traces(&self) -> impl Iterator<Item = Trace> {
        self.members.iter().flat_map(|pending| transaction::traces(&pending.change))
    }

    /// Decides from what was found at the paths of [`Group::traces`] whether an earlier try was carried out.
    ///
    /// A nonce proves the whole multi, because it belongs to one decision only. A record proves only itself, because
    /// somebody else may have written the same.
    pub fn judge(&mut self, found: &[Read]) -> TraceVerdict {
        self.note_tokens(found);
        let mut found = found.iter();
        let mut is_written = Vec::with_capacity(self.members.len());
        let (mut is_unwritten, mut has_base) = (false, false);
        for pending in &self.members {
            let mut is_here = false;
            for trace in transaction::traces(&pending.change) {
                let found = match found.next() {
                    Some(Ok(found)) => Some(found),
                    None | Some(Err(Error::Missing)) => None,
                    // A node that cannot be read proves nothing.
                    Some(Err(_)) => {
                        has_base = true;
                        continue;
                    }
                };
                let hit = found.is_some_and(|(data, _)| trace.mark.is_in(data));
                if hit && matches!(trace.mark, Evidence::Nonce(_)) {
                    return TraceVerdict::All;
                }
                is_here |= hit;
                let version = found.map(|(_, stat)| stat.version);
                has_base |= trace.base.is_some();
                is_unwritten |= !hit && trace.base.is_some_and(|base| base.is_unwritten(version));
            }
            is_written.push(is_here);
        }
        if is_written.iter().all(|&written| written) {
            return TraceVerdict::All;
        }
        let mut index = 0;
        let written = self.take(|_| {
            index += 1;
            is_written[index - 1]
        });
        match written.is_empty() {
            false => TraceVerdict::Some { written, is_unwritten },
            // A multi is all or nothing: proof that one change was not carried out is proof for all. An end leaves no
            // base to compare with, but then somebody else has settled the run.
            true if is_unwritten || !has_base => TraceVerdict::None,
            true => TraceVerdict::Untraceable,
        }
    }

    /// Notes the tokens of the acceptances that are on record as they were written.
    fn note_tokens(&mut self, found: &[Read]) {
        let mut found = found.iter();
        for pending in &mut self.members {
            for trace in transaction::traces(&pending.change) {
                let Some(Ok((data, stat))) = found.next() else { continue };
                let written = pending.change.begun().map(|(_, version)| version);
                // With another version, somebody has written the same again.
                if pending.is_acceptance() && trace.mark.is_in(data) && Some(stat.version) == written {
                    pending.token = Some(stat.changed.token());
                }
            }
        }
    }

    /// True if the multi failed at an end, and an earlier try of that end may be the cause.
    pub fn is_end_refused(&self, failed: &CommitError) -> bool {
        let first = self.guards();
        let member = failed.index.and_then(|index| self.locate(index.checked_sub(first)?)).map(|(member, _)| member);
        let is_end = |member: usize| matches!(self.members[member].change, Change::End { .. });
        failed.error.is_of_state() && member.is_some_and(is_end)
    }

    /// Removes the change that made the multi fail, and says what follows.
    pub fn drop_failed(&mut self, failed: &CommitError) -> GroupFailure {
        let (fences, first) = (usize::from(self.fence.is_some()), self.guards());
        // If the server does not name the operation, each change is tried alone: start with the first.
        let Some(index) = failed.index else { return self.refuse(0, 0) };
        // A candidate whose rights exclude its own node no longer guards anything.
        if index < first && (failed.error.is_of_state() || failed.error == Error::Denied) {
            return match index < fences {
                true => {
                    self.fence = None;
                    GroupFailure::Fence(self.take(PendingCommit::is_fenced))
                }
                false => {
                    self.member = None;
                    GroupFailure::Member(self.take(|pending| pending.member.is_some()))
                }
            };
        }
        let Some(index) = index.checked_sub(first) else { return self.refuse(0, 0) };
        match self.locate(index) {
            Some((member, op)) if failed.error.is_of_state() => self.drop_member(member, op, &failed.error),
            Some((member, op)) => self.refuse(member, op),
            None => self.drop_failed_last(index, &failed.error),
        }
    }

    /// Says what follows if this operation behind the changes failed.
    fn drop_failed_last(&mut self, index: usize, error: &Error) -> GroupFailure {
        let before: usize = self.members.iter().map(|pending| pending.ops.len()).sum();
        let Some(index) = index.checked_sub(before) else { return self.refuse(0, 0) };
        let Some(op) = self.lasts.ops().nth(index) else {
            return self.drop_failed_hint(index - self.lasts.jobs().count(), error);
        };
        // The service could not make what it lies below.
        let is_homeless = matches!((&op, error), (Op::Create { .. }, Error::Missing));
        if !error.is_of_state() || is_homeless {
            return GroupFailure::LastClosed(closed_by(&op));
        }
        self.moved += 1;
        match &op {
            // Whoever does that all the time must not hold up the others.
            Op::Create { path, .. } | Op::Set { path, .. } if self.moved > MOST_MOVES => {
                GroupFailure::LastClosed(path.clone())
            }
            // Those before were as they are known.
            _ => GroupFailure::LastMoved(self.lasts.jobs().skip(index).cloned().collect()),
        }
    }

    /// Says what follows if this notification or bell failed: no change waits for it.
    fn drop_failed_hint(&mut self, index: usize, error: &Error) -> GroupFailure {
        let notices: Vec<Op> = self.notices().collect();
        if let Some(notice) = notices.get(index) {
            // Whoever wrote the same fact before has left it, as after a commit that the service has lost.
            if *error == Error::Exists {
                self.noticed.extend(changed(notice).map(str::to_owned));
                return GroupFailure::Rewritten;
            }
            self.is_mute = true;
            return GroupFailure::OutboxClosed;
        }
        let Some(bell) = self.bells().nth(index - notices.len()) else { return self.refuse(0, 0) };
        let path = changed(&bell).unwrap_or_default().to_owned();
        if *error == Error::Missing && self.made.insert(path.clone()) {
            return GroupFailure::Rewritten;
        }
        self.silent.insert(path.clone());
        GroupFailure::BellClosed(path)
    }

    /// Removes a change that the server refuses, together with the later ones of its job.
    fn refuse(&mut self, member: usize, op: usize) -> GroupFailure {
        let path = self.members[member].ops.get(op).map(closed_by).unwrap_or_default();
        let job = self.members[member].change.job().clone();
        let after = self.members.split_off(member);
        let (pending, others): (Vec<_>, Vec<_>) = after.into_iter().partition(|pending| *pending.change.job() == job);
        self.members.extend(others);
        self.forget_fence();
        GroupFailure::Refused { pending, path }
    }

    fn drop_member(&mut self, member: usize, op: usize, error: &Error) -> GroupFailure {
        let index = op;
        let PendingCommit { change, ops, .. } = &mut self.members[member];
        if adapt_offer(ops, index, error) {
            return GroupFailure::Rewritten;
        }
        let op = &mut ops[index];
        match (&*op, error) {
            // The service could not make what it lies below.
            (Op::Create { .. } | Op::Append { .. }, Error::Missing)
            // The folder has used up its numbers; no other writer caused this.
            | (Op::Append { .. }, Error::Exists) => return self.refuse(member, index),
            _ => {}
        }
        if keeps_history(change) && keep_record(op, error) {
            return GroupFailure::Rewritten;
        }
        if rewrite_history(op, error) {
            return GroupFailure::Rewritten;
        }
        let superseded = self.take_chain(member);
        self.forget_fence();
        GroupFailure::Superseded(superseded)
    }

    /// Removes the change that failed and the later ones that depend on it.
    fn take_chain(&mut self, member: usize) -> Vec<PendingCommit> {
        let (failed, after) = (self.members.remove(member), self.members.split_off(member));
        let depends_on_it = |pending: &PendingCommit| {
            failed.change.moves_mark() && pending.change.moves_mark() && pending.change.job() == failed.change.job()
        };
        let (rest, others): (Vec<_>, Vec<_>) = after.into_iter().partition(depends_on_it);
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

    fn take(&mut self, mut which: impl FnMut(&PendingCommit) -> bool) -> Vec<PendingCommit> {
        let (taken, kept) = std::mem::take(&mut self.members).into_iter().partition(|pending| which(pending));
        self.members = kept;
        self.forget_fence();
        taken
    }

    fn forget_fence(&mut self) {
        if !self.members.iter().any(PendingCommit::is_fenced) {
            self.fence = None;
        }
        if !self.members.iter().any(|pending| pending.member.is_some()) {
            self.member = None;
        }
    }
}

/// The path of the record that an operation makes or changes.
fn changed(op: &Op) -> Option<&str> {
    match op {
        Op::Create { path, .. } | Op::Set { path, .. } => Some(path),
        Op::Check { .. } | Op::Append { .. } | Op::Delete { .. } => None,
    }
}

/// The path whose rights or state decide on an operation: creating and deleting a node depend on its parent.
fn closed_by(op: &Op) -> String {
    match op {
        Op::Check { path, .. } | Op::Set { path, .. } => path.clone(),
        Op::Create { path, .. } | Op::Delete { path, .. } => paths::parent(path).to_owned(),
        Op::Append { folder, .. } => folder.clone(),
    }
}

/// Adapts an operation on an offer to what is there: somebody has made or removed it by hand. The version of the run's
/// record, in the same multi, is what guards.
fn adapt_offer(ops: &mut Vec<Op>, index: usize, error: &Error) -> bool {
    let adapted = match (&ops[index], error) {
        (Op::Delete { path, .. }, _) if paths::is_offer(path) => None,
        (Op::Create { path, .. }, Error::Exists) if paths::is_offer(path) => None,
        (Op::Set { path, data, .. }, Error::Missing) if paths::is_offer(path) => {
            Some(Op::Create { path: path.clone(), data: data.clone(), life: Life::Lasting })
        }
        _ => return false,
    };
    ops.splice(index..=index, adapted);
    true
}

/// True if an existing history record wins.
fn keeps_history(change: &Change) -> bool {
    change.writes().iter().any(|write| matches!(write, Write::History { existing: Existing::Stays, .. }))
}

/// Replaces the creation of a history record by a check, if the record exists already.
fn keep_record(op: &mut Op, error: &Error) -> bool {
    let existing = match (&*op, error) {
        (Op::Create { path, .. }, Error::Exists) if is_history(path) && !checks_absence(op) => path.clone(),
        _ => return false,
    };
    *op = Op::Check { path: existing, at: AtVersion::Any };
    true
}

/// Adapts the write of a history record to the record's actual state: recreates a trimmed one, overwrites an existing
/// one.
///
/// No version protects a history record. The mark, or the run, in the same multi guards it.
fn rewrite_history(op: &mut Op, error: &Error) -> bool {
    let rewritten = match (&*op, error) {
        (Op::Create { path, data, .. }, Error::Exists) if is_history(path) && !checks_absence(op) => {
            Op::Set { path: path.clone(), data: data.clone(), at: AtVersion::Any }
        }
        (Op::Set { path, data, .. }, Error::Missing) if is_history(path) => {
            Op::Create { path: path.clone(), data: data.clone(), life: Life::Lasting }
        }
        (Op::Set { path, data, .. }, Error::Changed) if is_history(path) => {
            Op::Set { path: path.clone(), data: data.clone(), at: AtVersion::Any }
        }
        _ => return false,
    };
    *op = rewritten;
    true
}

/// True for the create of a record that the same commit removes: its only purpose is to fail.
fn checks_absence(op: &Op) -> bool {
    matches!(op, Op::Create { path, data, .. } if is_history(path) && data.is_empty())
}

/// True for the path of a history record.
fn is_history(path: &str) -> bool {
    path.strip_prefix(paths::HISTORY).is_some_and(|rest| rest.starts_with('/'))
}

fn bytes(op: &Op) -> usize {
    match op {
        Op::Create { path, data, .. } | Op::Set { path, data, .. } => path.len() + data.len(),
        Op::Append { folder, prefix, data, .. } => folder.len() + prefix.len() + data.len(),
        Op::Check { path, .. } | Op::Delete { path, .. } => path.len(),
    }
}
