//! Group commit: guarded writes to the ledger, batched into multis.
//!
//! Requests that wait at the same time share a multi, a [`Group`], and several groups are in flight at once. When one
//! change of a group fails, the committer takes it out, answers it and sends the rest again. Changes of one job are
//! never in two groups at once: so a later change cannot overtake an earlier one, and any trace found of a job was left
//! by its one group.
//!
//! If no answer arrives, the committer sends the same multi again on the same session until one does. If that answer
//! says that some precondition no longer holds, the first try may have been carried out: the committer looks for its
//! traces before it decides anything. The future of a commit is dropped only together with its session.

mod group;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::bounded;
use super::context::{SessionContext, SessionError};
use super::damage::Damage;
use super::lasts::{self, KnownLasts, ReadLast};
use super::trim::WrittenRecord;
use crate::paths;
use crate::tree::{CommitError, Committed, Error, Read, Revision, Session};
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::job::JobName;
use cronkeeper_core::ledger::{Change, Commit, CommitId, Pipelines};
use cronkeeper_core::run::{Outcome, RunRecord, Version};
use cronkeeper_core::term::FencingToken;
use group::{Group, GroupFailure, PendingCommit, TraceVerdict};
use queue::CommitQueue;

/// First pause before a refused change is tried again. The pauses double up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Most changes of a job that may wait behind a refused one. Beyond that the refused change is given up, so that the
/// leader reads the job again and decides again.
const MOST_BEHIND: usize = 100;
/// Pause after a missing answer: shorter than a reconnect takes, long enough not to flood a connection that still
/// works.
const RESEND_PAUSE: Duration = Duration::from_millis(20);

/// A requested change and its result.
pub type CommitResult = (CommitId, Commit);

type PendingRequest = Pin<Box<dyn Future<Output = Completed> + Send>>;

/// The result of one of the committer's requests to the service.
pub enum Completed {
    /// The answer to a group's multi.
    Multi { group: u64, sent: Uptime, result: Result<Committed, CommitError> },
    /// The records of jobs whose ends a group writes, or whose runs have begun.
    Lasts { group: Option<u64>, read: Result<BTreeMap<JobName, ReadLast>, SessionError> },
    /// The nodes in which a group whose fate is unknown would have left its traces.
    Traces { group: u64, failed: CommitError, found: Result<Vec<Read>, Error> },
}

impl Completed {
    /// The group that the request was for.
    fn group(&self) -> Option<u64> {
        match self {
            Self::Multi { group, .. } | Self::Traces { group, .. } => Some(*group),
            Self::Lasts { group, .. } => *group,
        }
    }
}

/// Effects of a completed request that the session loop has to apply.
#[derive(Default)]
pub struct CommitEffects {
    /// Results to report to the daemon.
    pub answers: Vec<CommitResult>,
    /// Of ends that were accepted: the outcome of the end that was written before.
    pub before: BTreeMap<CommitId, Outcome>,
    /// Of acceptances that were accepted: the fencing tokens of their attempts, as far as they are known.
    pub tokens: BTreeMap<CommitId, FencingToken>,
    /// When the write was sent that a quorum has just acknowledged.
    pub acknowledged: Option<Uptime>,
    /// A group found that this node's candidate is gone.
    pub is_fenced: bool,
    /// A group found that this node's member is gone.
    pub is_member_gone: bool,
    /// The session is over.
    pub error: Option<SessionError>,
    /// Changes that the server refuses and that will be retried. Each is reported once.
    pub deferred: Vec<CommitId>,
    /// The paths that the server refuses to write.
    pub refused: Vec<Damage>,
    /// Paths refused before that accept writes again.
    pub mended: Vec<String>,
    /// Attempts that were begun, with the versions of their records.
    pub begun: Vec<(RunRecord, Version)>,
    /// History records that were written.
    pub grown: Vec<WrittenRecord>,
}

/// A refused change that is retried after a pause. None of its tries is in doubt.
struct DeferredCommit {
    pending: PendingCommit,
    until: Uptime,
}

struct RefusedChange {
    pause: Duration,
    damage: Damage,
    reported: CommitId,
}

/// The commits of one session.
pub struct Committer<C, K> {
    context: SessionContext<C, K>,
    waiting: CommitQueue,
    groups: BTreeMap<u64, Group>,
    /// Groups to send, with the earliest time for each.
    due: BTreeMap<u64, Uptime>,
    requests: FuturesUnordered<PendingRequest>,
    /// Changes that the server refuses, by job. Other changes of the job wait behind them.
    deferred: BTreeMap<JobName, DeferredCommit>,
    /// The last refusal of each job, until a change of that job is accepted.
    refusals: BTreeMap<JobName, RefusedChange>,
    /// The candidate of a term that is over: groups with this fence are not sent.
    held: Option<String>,
    lasts: KnownLasts,
    /// The paths of bells that could not be rung.
    silent: BTreeMap<String, Error>,
    pipelines: Pipelines,
    last_group: u64,
    last_sent: Uptime,
}

impl<C: Session, K: Clock> Committer<C, K> {
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            waiting: CommitQueue::default(),
            groups: BTreeMap::new(),
            due: BTreeMap::new(),
            requests: FuturesUnordered::new(),
            deferred: BTreeMap::new(),
            refusals: BTreeMap::new(),
            held: None,
            lasts: KnownLasts::default(),
            silent: BTreeMap::new(),
            pipelines: Pipelines::default(),
            last_group: 0,
            last_sent: Uptime::ZERO,
        }
    }

    /// Takes a change. `fence` is the path of the candidate that must exist for the change to be written.
    ///
    /// Answers at once if the change depends on one that was refused.
    #[must_use]
    pub fn request(&mut self, id: CommitId, change: Change, fence: Option<String>) -> Vec<CommitResult> {
        if self.pipelines.is_broken(&change) {
            return vec![(id, Commit::Superseded)];
        }
        let job = change.job().clone();
        let number = self.waiting.next_number();
        self.waiting.put(PendingCommit::new(id, number, change, fence));
        self.give_up_crowded(&job)
    }

    /// Gives up a refused change if too many others wait behind it.
    fn give_up_crowded(&mut self, job: &JobName) -> Vec<CommitResult> {
        if !self.deferred.contains_key(job) {
            return Vec::new();
        }
        if self.waiting.behind(job) <= MOST_BEHIND {
            return Vec::new();
        }
        let Some(DeferredCommit { pending, .. }) = self.deferred.remove(job) else { return Vec::new() };
        self.waiting.free(job);
        let mut outcome = CommitEffects::default();
        outcome.answers.push((pending.id, pending.refused_as(Commit::Superseded)));
        self.break_chain(&pending.change, &mut outcome);
        outcome.answers
    }

    /// Starts a new term. Its leader has read every job, so no pipeline is broken any more.
    pub fn start_term(&mut self) {
        self.pipelines = Pipelines::default();
        self.read_lasts_again();
    }

    /// Other nodes have written ends since, or the service may have lost some: what is known of `last/<job>` is old.
    pub fn read_lasts_again(&mut self) {
        self.lasts.forget_all();
    }

    /// The leader reads this job again, so its pipeline of writes starts afresh.
    pub fn read(&mut self, job: &JobName) {
        self.pipelines.read(job);
    }

    pub fn last_sent(&self) -> Uptime {
        self.last_sent
    }

    /// When the next group or deferred change is due.
    pub fn wake(&self) -> Option<Uptime> {
        let groups = self.due.iter().filter(|&(&group, _)| !self.is_held(group)).map(|(_, &at)| at);
        groups.chain(self.deferred.values().map(|deferred| deferred.until)).min()
    }

    /// True while a change guarded by this node's candidate may soon get an answer.
    ///
    /// Changes that the server refuses, and those that wait behind them, do not count.
    pub fn has_fenced(&self) -> bool {
        let mut sent = self.groups.values().flat_map(|group| &group.members);
        sent.any(PendingCommit::is_fenced) || self.waiting.has_fenced(|job| !self.deferred.contains_key(job))
    }

    /// The next result from a server; `None` at once if nothing is in flight. Cancel safe.
    pub async fn completed(&mut self) -> Option<Completed> {
        self.requests.next().await
    }

    /// Stops sending what this candidate guards until [`release`](Self::release): its term is over and it is being
    /// removed.
    ///
    /// Answers changes that were not sent yet, or were refused, at once.
    pub fn fence_off(&mut self, candidate: Option<String>) -> Vec<CommitResult> {
        self.held = candidate;
        self.requeue_all();
        let fenced = self.waiting.take(PendingCommit::is_fenced);
        let waiting: BTreeSet<&JobName> = self.waiting.iter().map(|pending| pending.change.job()).collect();
        self.refusals.retain(|job, _| waiting.contains(job));
        fenced.into_iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))).collect()
    }

    /// The paths whose refusal holds up changes that are still to be written.
    pub fn refusals(&self) -> impl Iterator<Item = Damage> {
        let lasts = self.lasts.closed().map(|path| Damage::unwritten(path, &Error::Denied));
        let silent = self.silent.iter().map(|(path, error)| Damage::unwritten(path, error));
        self.refusals.values().map(|refusal| refusal.damage.clone()).chain(lasts).chain(silent)
    }

    /// Puts deferred changes that are due by `now` back into the queue.
    fn requeue_due(&mut self, now: Uptime) {
        let due: Vec<JobName> =
            self.deferred.iter().filter(|(_, deferred)| deferred.until <= now).map(|(job, _)| job.clone()).collect();
        for job in due {
            if let Some(DeferredCommit { pending, .. }) = self.deferred.remove(&job) {
                self.waiting.put(pending);
                self.waiting.free(&job);
            }
        }
    }

    fn requeue_all(&mut self) {
        for (job, DeferredCommit { pending, .. }) in std::mem::take(&mut self.deferred) {
            self.waiting.put(pending);
            self.waiting.free(&job);
        }
    }

    /// Sends groups with the held fence again: the candidate is removed, so their multis now fail and get their
    /// answers.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Ends with the session: returns results for what was in flight, and the unfenced changes that were never sent.
    pub fn into_rest(mut self) -> (Vec<CommitResult>, Vec<(CommitId, Change)>) {
        self.requeue_all();
        let waiting = self.waiting.take(|_| true);
        let sent = self.groups.into_values().flat_map(|group| group.members);
        let mut answers: Vec<_> = sent.map(|pending| (pending.id, Commit::Unknown)).collect();
        let (fenced, rest): (Vec<PendingCommit>, Vec<PendingCommit>) =
            waiting.into_iter().partition(PendingCommit::is_fenced);
        answers.extend(fenced.into_iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))));
        (answers, rest.into_iter().map(|pending| (pending.id, pending.change)).collect())
    }

    /// Sends what is due, if the session is connected.
    pub fn start_next(&mut self) {
        if self.context.line().is_err() {
            return;
        }
        let now = self.context.clock.now().up;
        self.requeue_due(now);
        self.gather();
        let due: Vec<u64> = self.due.iter().filter(|&(_, &at)| at <= now).map(|(&group, _)| group).collect();
        for group in due {
            if !self.is_held(group) {
                self.due.remove(&group);
                self.send(group);
            }
        }
    }

    fn is_held(&self, group: u64) -> bool {
        self.groups.get(&group).is_some_and(|group| group.fence.is_some() && group.fence == self.held)
    }

    /// Forms groups from waiting changes, in order, until there are as many as the service takes at once. Skips changes
    /// whose job is held.
    fn gather(&mut self) {
        let limits = self.context.limits();
        while self.groups.len() < limits.in_flight
            && let Some(group) = self.waiting.next_group(limits)
        {
            self.open(group);
        }
    }

    fn open(&mut self, group: Group) {
        group.jobs().iter().for_each(|job| self.waiting.hold(job));
        self.last_group += 1;
        self.groups.insert(self.last_group, group);
        self.due.insert(self.last_group, Uptime::ZERO);
    }

    fn send(&mut self, id: u64) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let Ok(client) = self.context.line() else {
            self.due.insert(id, Uptime::ZERO);
            return;
        };
        let now = self.context.clock.now();
        if !group.is_in_doubt {
            let jobs = group.ends().map(|(_, end)| &end.run.job);
            let unknown: Vec<JobName> = jobs.filter(|job| !self.lasts.knows(job)).cloned().collect();
            if !unknown.is_empty() {
                return self.read_lasts(Some(id), unknown);
            }
            group.lasts = self.lasts.writes(group.ends(), now);
        }
        let multi = client.commit(group.ops());
        self.last_sent = now.up;
        self.requests.push(Box::pin(async move { Completed::Multi { group: id, sent: now.up, result: multi.await } }));
    }

    /// Reads `last/<job>` of these jobs, for a group that waits for it, or ahead of the jobs' ends.
    fn read_lasts(&mut self, group: Option<u64>, jobs: Vec<JobName>) {
        let Ok(client) = self.context.line() else { return };
        let client = client.clone();
        self.requests.push(Box::pin(async move { Completed::Lasts { group, read: lasts::read(&client, jobs).await } }));
    }

    fn lasts_read(
        &mut self,
        group: Option<u64>,
        read: Result<BTreeMap<JobName, ReadLast>, SessionError>,
        outcome: &mut CommitEffects,
    ) {
        let now = self.context.clock.now().up;
        let again_at = match read {
            Ok(mut read) => {
                // What was read ahead may be older than what was written since.
                read.retain(|job, _| group.is_some() || !self.lasts.knows(job));
                self.lasts.learn(read);
                Uptime::ZERO
            }
            Err(SessionError::SessionOver) => {
                let over = CommitError { index: None, error: Error::SessionOver };
                return group.into_iter().for_each(|group| self.refused(group, over.clone(), outcome));
            }
            Err(_) if self.context.line().is_err() => now + RESEND_PAUSE,
            Err(_) => now + PAUSE,
        };
        if let Some(group) = group.filter(|group| self.groups.contains_key(group)) {
            self.due.insert(group, again_at);
        }
    }

    /// Applies a completed request and returns its effects.
    pub fn complete(&mut self, completed: Completed) -> CommitEffects {
        let mut outcome = CommitEffects::default();
        let group = completed.group();
        let jobs = group.and_then(|group| self.groups.get(&group)).map(Group::jobs).unwrap_or_default();
        match completed {
            Completed::Multi { group, sent, result: Ok(done) } => {
                outcome.acknowledged = Some(sent);
                self.accept(group, done.revision, &mut outcome);
            }
            Completed::Multi { group, result: Err(failed), .. } => self.refused(group, failed, &mut outcome),
            Completed::Lasts { group, read } => self.lasts_read(group, read, &mut outcome),
            Completed::Traces { group, failed, found: Ok(found) } => self.judge(group, failed, &found, &mut outcome),
            Completed::Traces { group, found: Err(error), .. } => match error {
                Error::SessionOver => self.refused(group, CommitError { index: None, error }, &mut outcome),
                // Sending the multi again leads back here: it needs another answer anyway.
                _ => drop(self.due.insert(group, self.context.clock.now().up + RESEND_PAUSE)),
            },
        }
        let rest = group.and_then(|group| self.groups.get(&group)).map(Group::jobs).unwrap_or_default();
        rest.iter().for_each(|job| self.waiting.hold(job));
        jobs.iter().for_each(|job| self.waiting.free(job));
        outcome
    }

    /// `revision`: its place among all writes, if that is known.
    fn accept(&mut self, id: u64, revision: Option<Revision>, outcome: &mut CommitEffects) {
        let Some(group) = self.groups.remove(&id) else { return };
        if !self.silent.is_empty() {
            outcome.mended.extend(group.bell_paths().filter(|path| self.silent.remove(path).is_some()));
        }
        let token = revision.map(Revision::token);
        let acceptances = group.members.iter().filter(|pending| pending.is_acceptance());
        outcome.tokens.extend(acceptances.filter_map(|pending| Some((pending.id, token.or(pending.token)?))));
        if !self.refusals.is_empty() {
            let jobs = group.members.iter().map(|pending| pending.change.job());
            outcome.mended.extend(jobs.filter_map(|job| Some(self.refusals.remove(job)?.damage.path)));
        }
        outcome.grown.extend(group.members.iter().flat_map(PendingCommit::written));
        outcome.begun.extend(group.members.iter().filter_map(PendingCommit::begun));
        let before = group.ends().filter_map(|(id, _)| Some((id, group.lasts.before(id)?)));
        outcome.before.extend(before);
        let begun = group.members.iter().filter_map(PendingCommit::begun).map(|(run, _)| run.job);
        let unknown: Vec<JobName> = begun.filter(|job| !self.lasts.knows(job)).collect();
        outcome.answers.extend(group.members.into_iter().map(|pending| (pending.id, Commit::Accepted)));
        outcome.mended.extend(self.lasts.written(group.lasts));
        if !unknown.is_empty() {
            self.read_lasts(None, unknown);
        }
    }

    fn refused(&mut self, id: u64, failed: CommitError, outcome: &mut CommitEffects) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match failed.error {
            Error::Unanswered(_) => {
                group.is_in_doubt = true;
                self.due.insert(id, self.context.clock.now().up + RESEND_PAUSE);
            }
            Error::SessionOver => {
                let members = self.groups.remove(&id).map(|group| group.members).unwrap_or_default();
                outcome.answers.extend(members.into_iter().map(|pending| (pending.id, Commit::Unknown)));
                outcome.error = Some(SessionError::SessionOver);
            }
            _ if group.is_in_doubt || group.is_end_refused(&failed) => self.read_traces(id, failed),
            _ => self.settle(id, &failed, outcome),
        }
    }

    /// Reads the places where an earlier try would have left traces: this try may have failed because that one was
    /// carried out.
    ///
    /// An end may also have been sent by an earlier process that died before the answer.
    fn read_traces(&mut self, id: u64, failed: CommitError) {
        let (Some(group), Ok(client)) = (self.groups.get(&id), self.context.line()) else {
            self.due.insert(id, Uptime::ZERO);
            return;
        };
        let (client, paths) = (client.clone(), group.traces().map(|trace| trace.path).collect());
        self.requests.push(Box::pin(async move {
            let found = bounded::get(&client, paths, bounded::ANY).await;
            Completed::Traces { group: id, failed, found }
        }));
    }

    fn judge(&mut self, id: u64, failed: CommitError, found: &[Read], outcome: &mut CommitEffects) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let was_in_doubt = std::mem::take(&mut group.is_in_doubt);
        let moved: Vec<JobName> = group.lasts.jobs().cloned().collect();
        let verdict = group.judge(found);
        let is_unclear = matches!(verdict, TraceVerdict::Untraceable | TraceVerdict::Some { is_unwritten: false, .. });
        if was_in_doubt && is_unclear {
            group.members.iter_mut().for_each(|pending| pending.is_untraceable = true);
        }
        match verdict {
            TraceVerdict::All => {
                // Without a try in doubt another has written the ends, perhaps long ago.
                let before = group.ends().filter_map(|(id, _)| Some((id, group.lasts.before_as_read(id)?)));
                let before: BTreeMap<_, _> = before.collect();
                self.accept(id, None, outcome);
                if !was_in_doubt {
                    outcome.before = before;
                }
                moved.iter().for_each(|job| self.lasts.forget(job));
            }
            TraceVerdict::Some { written, .. } => {
                let before = |id| Some((id, group.lasts.before_as_read(id)?));
                outcome.before.extend(written.iter().filter_map(|pending| before(pending.id)));
                outcome.tokens.extend(written.iter().filter_map(|pending| Some((pending.id, pending.token?))));
                moved.iter().for_each(|job| self.lasts.forget(job));
                outcome.grown.extend(written.iter().flat_map(PendingCommit::written));
                outcome.begun.extend(written.iter().filter_map(PendingCommit::begun));
                outcome.answers.extend(written.into_iter().map(|pending| (pending.id, Commit::Accepted)));
                self.send_again(id);
            }
            TraceVerdict::Untraceable | TraceVerdict::None => self.settle(id, &failed, outcome),
        }
    }

    /// Handles a multi that was certainly not carried out: answers the change that failed and sends the others again.
    fn settle(&mut self, id: u64, failed: &CommitError, outcome: &mut CommitEffects) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match group.drop_failed(failed) {
            GroupFailure::Fence(fenced) => {
                outcome.is_fenced = true;
                outcome.answers.extend(fenced.iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))));
                self.send_again(id);
            }
            GroupFailure::Member(guarded) => {
                outcome.is_member_gone = true;
                let superseded = |pending: &PendingCommit| (pending.id, pending.refused_as(Commit::Superseded));
                outcome.answers.extend(guarded.iter().map(superseded));
                self.send_again(id);
            }
            GroupFailure::BellClosed(path) => {
                // Without a folder there is nobody to ring for.
                if !failed.error.is_of_state() {
                    outcome.refused.push(Damage::unwritten(&path, &failed.error));
                    self.silent.insert(path, failed.error.clone());
                }
                self.send_again(id);
            }
            GroupFailure::OutboxClosed => {
                let damage = Damage::unwritten(paths::OUTBOX, &failed.error);
                outcome.refused.push(damage);
                self.silent.insert(paths::OUTBOX.to_owned(), failed.error.clone());
                self.send_again(id);
            }
            GroupFailure::Superseded(refused) => {
                outcome
                    .answers
                    .extend(refused.iter().map(|pending| (pending.id, pending.refused_as(Commit::Superseded))));
                refused.iter().take(1).for_each(|pending| self.break_chain(&pending.change, outcome));
                self.send_again(id);
            }
            GroupFailure::Rewritten => self.send_again(id),
            GroupFailure::LastMoved(jobs) => {
                jobs.iter().for_each(|job| self.lasts.forget(job));
                self.send_again(id);
            }
            GroupFailure::LastClosed(path) => {
                outcome.refused.push(Damage::unwritten(&path, &failed.error));
                self.lasts.close(path, self.context.clock.now().up);
                self.send_again(id);
            }
            GroupFailure::Refused { pending, path } => {
                self.defer(id, pending, Damage::unwritten(path, &failed.error), outcome);
                self.send_again(id);
            }
        }
    }

    /// Rejects every waiting change that depends on a rejected one.
    fn break_chain(&mut self, refused: &Change, outcome: &mut CommitEffects) {
        self.pipelines.answered(refused, Commit::Superseded);
        let broken = self.waiting.take(|pending| self.pipelines.is_broken(&pending.change));
        outcome.answers.extend(broken.into_iter().map(|pending| (pending.id, Commit::Superseded)));
    }

    /// Sends a group again that was certainly not carried out, and may have changed since.
    fn send_again(&mut self, id: u64) {
        let Some(group) = self.groups.get(&id) else { return };
        if group.members.is_empty() {
            self.groups.remove(&id);
            return;
        }
        self.due.insert(id, Uptime::ZERO);
    }

    /// Retries a refused change after growing pauses. It holds up its own job only.
    ///
    /// `pending` is that change and those of the same job that follow it in the group.
    fn defer(&mut self, id: u64, mut pending: Vec<PendingCommit>, damage: Damage, outcome: &mut CommitEffects) {
        let behind = pending.split_off(1);
        behind.into_iter().for_each(|pending| self.waiting.put(pending));
        let Some(pending) = pending.pop() else { return };
        let job = pending.change.job().clone();
        let pause = self.note_refusal(&job, pending.id, damage, outcome);
        let is_behind_another =
            self.groups.get(&id).is_some_and(|group| group.members.iter().any(|pending| *pending.change.job() == job));
        if is_behind_another {
            // The server will refuse it again once the earlier one is written.
            self.waiting.put(pending);
        } else {
            self.waiting.hold(&job);
            self.deferred.insert(job, DeferredCommit { pending, until: self.context.clock.now().up + pause });
        }
    }

    fn note_refusal(&mut self, job: &JobName, id: CommitId, damage: Damage, outcome: &mut CommitEffects) -> Duration {
        let before = self.refusals.remove(job);
        let pause = before.as_ref().map_or(PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        if before.as_ref().is_none_or(|before| before.reported != id) {
            outcome.deferred.push(id);
        }
        if let Some(before) = before.filter(|before| before.damage.path != damage.path) {
            outcome.mended.push(before.damage.path);
        }
        self.refusals.insert(job.clone(), RefusedChange { pause, damage: damage.clone(), reported: id });
        outcome.refused.push(damage);
        pause
    }
}

#[cfg(test)]
mod tests;
