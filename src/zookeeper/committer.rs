//! Guarded writes: together where they come together, and each with one of four answers.
//!
//! Requests that wait together share a multi, a [`Group`]; several groups are under way at once. The change that fails is dropped from its
//! group and answered, the rest goes again. Changes of one job never are in two groups at once: so a later one
//! cannot overtake an earlier one, and what is found of a job can only be its one group's work.
//!
//! No answer: the same multi goes again on the same session until there is one. If that says that something is no longer as
//! it should be, the traces of the first try are looked for; only then is anything concluded. A future of a commit is
//! dropped only with its session.

mod group;
mod queue;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::client::{Client, Done, Error, Mode, MultiError, Op, Read};
use super::context::{SessionContext, SessionError};
use super::damage::Damage;
use super::paths;
use super::trim::Written;
use crate::clock::{Clock, Uptime};
use crate::job::JobName;
use crate::ledger::{Chains, Change, Commit, CommitId};
use crate::run::{RunRecord, Version};
use group::{Failed, Group, Pending, Verdict};
use queue::Queue;

/// Groups under way at once: enough to keep the servers busy, few enough that later requests gather.
const UNDER_WAY: usize = 8;
/// After a refusal that may pass, and the longest of the pauses that grow from it.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Changes of a job that may wait behind a refused one. Where there are more, that one is given up: its job is read, and decided on,
/// anew.
const MOST_BEHIND: usize = 100;
/// Where no answer came: shorter than a reconnect takes, and no storm if the connection stands.
const BREATH: Duration = Duration::from_millis(20);

/// An answer to give.
pub type Answer = (CommitId, Commit);

type Flight = Pin<Box<dyn Future<Output = Completed> + Send>>;

/// What came back.
pub enum Completed {
    /// The answer to a group's multi.
    Multi { group: u64, sent: Uptime, result: Result<Vec<Done>, MultiError> },
    /// What stands where a group of unknown fate would have left its traces.
    Traces { group: u64, failed: MultiError, found: Result<Vec<Read>, Error> },
    /// A folder was made, for a job's history or again.
    Folder { job: Option<JobName>, is_there: bool },
}

impl Completed {
    /// Of this group.
    fn group(&self) -> Option<u64> {
        match self {
            Self::Multi { group, .. } | Self::Traces { group, .. } => Some(*group),
            Self::Folder { .. } => None,
        }
    }
}

/// What follows for others.
#[derive(Default)]
pub struct Outcome {
    /// Answers to give.
    pub answers: Vec<Answer>,
    /// A quorum acknowledged a write that was sent then.
    pub acknowledged: Option<Uptime>,
    /// A group found the own candidate gone.
    pub is_fenced: bool,
    /// The session is over.
    pub error: Option<SessionError>,
    /// Changes that the server refuses, told once each: they are tried again.
    pub put_off: Vec<CommitId>,
    /// The paths that this is about.
    pub refused: Vec<Damage>,
    /// Paths that are written to again.
    pub mended: Vec<String>,
    /// The attempts that were begun, with the versions of their records.
    pub begun: Vec<(RunRecord, Version)>,
    /// The records of the history that were written.
    pub grown: Vec<Written>,
}

/// A change that is tried again after a pause. None of its tries is in doubt.
struct PutOff {
    pending: Pending,
    until: Uptime,
}

struct Refusal {
    pause: Duration,
    damage: Damage,
    told: CommitId,
}

/// The commits of one session.
pub struct Committer<C, K> {
    context: SessionContext<C, K>,
    waiting: Queue,
    groups: BTreeMap<u64, Group>,
    /// Groups to be sent, and not before when.
    due: BTreeMap<u64, Uptime>,
    flights: FuturesUnordered<Flight>,
    histories: BTreeSet<JobName>,
    /// Changes that the server refuses, by job: others of the job wait behind them.
    put_off: BTreeMap<JobName, PutOff>,
    /// What was refused last of each job since a change of it was accepted.
    refusals: BTreeMap<JobName, Refusal>,
    held: Option<String>,
    chains: Chains,
    last_group: u64,
    last_sent: Uptime,
}

impl<C: Client, K: Clock> Committer<C, K> {
    /// Nothing to commit yet.
    pub fn new(context: SessionContext<C, K>) -> Self {
        Self {
            context,
            waiting: Queue::default(),
            groups: BTreeMap::new(),
            due: BTreeMap::new(),
            flights: FuturesUnordered::new(),
            histories: BTreeSet::new(),
            put_off: BTreeMap::new(),
            refusals: BTreeMap::new(),
            held: None,
            chains: Chains::default(),
            last_group: 0,
            last_sent: Uptime::ZERO,
        }
    }

    /// Takes a change; with a fence, the path of the candidate that must be there. Answered at once where it rests on one that was
    /// refused.
    #[must_use]
    pub fn request(&mut self, id: CommitId, change: Change, fence: Option<String>) -> Vec<Answer> {
        if self.chains.is_broken(&change) {
            return vec![(id, Commit::Superseded)];
        }
        let job = change.job().clone();
        let number = self.waiting.next_number();
        self.waiting.put(Pending::new(id, number, change, fence));
        self.give_up_crowded(&job)
    }

    /// Gives a refused change up where too many wait behind it.
    fn give_up_crowded(&mut self, job: &JobName) -> Vec<Answer> {
        if !self.put_off.contains_key(job) {
            return Vec::new();
        }
        if self.waiting.behind(job) <= MOST_BEHIND {
            return Vec::new();
        }
        let Some(PutOff { pending, .. }) = self.put_off.remove(job) else { return Vec::new() };
        self.waiting.free(job);
        let mut outcome = Outcome::default();
        outcome.answers.push((pending.id, pending.refused_as(Commit::Superseded)));
        self.break_chain(&pending.change, &mut outcome);
        outcome.answers
    }

    /// A new term: its leader has read every job.
    pub fn start_term(&mut self) {
        self.chains = Chains::default();
    }

    /// The leader reads this job anew.
    pub fn read(&mut self, job: &JobName) {
        self.chains.read(job);
    }

    /// The folder of the job's history is gone.
    pub fn forget(&mut self, job: &JobName) {
        self.histories.remove(job);
    }

    /// When a write was sent last.
    pub fn last_sent(&self) -> Uptime {
        self.last_sent
    }

    /// When a group, or a change that was put off, is due.
    pub fn wake(&self) -> Option<Uptime> {
        let groups = self.due.iter().filter(|&(&group, _)| !self.is_held(group)).map(|(_, &at)| at);
        groups.chain(self.put_off.values().map(|put_off| put_off.until)).min()
    }

    /// True while a change that this candidate guards has no answer, and may soon have one: not one that the server refuses, nor what
    /// waits behind that.
    pub fn has_fenced(&self) -> bool {
        let waiting = self.waiting.iter().filter(|pending| !self.put_off.contains_key(pending.change.job()));
        waiting.chain(self.groups.values().flat_map(|group| &group.members)).any(Pending::is_fenced)
    }

    /// The next answer of a server; `None` at once where nothing is under way. Cancel safe.
    pub async fn completed(&mut self) -> Option<Completed> {
        self.flights.next().await
    }

    /// Nothing that this candidate guards is sent any more until it is released: its term is over and it is being removed.
    /// Changes not yet sent, or refused, are answered at once.
    pub fn fence_off(&mut self, candidate: Option<String>) -> Vec<Answer> {
        self.held = candidate;
        self.take_up_all();
        let fenced = self.waiting.take(Pending::is_fenced);
        let waiting: BTreeSet<&JobName> = self.waiting.iter().map(|pending| pending.change.job()).collect();
        self.refusals.retain(|job, _| waiting.contains(job));
        fenced.into_iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))).collect()
    }

    /// The paths that what is still to be written is refused for.
    pub fn refusals(&self) -> impl Iterator<Item = Damage> {
        self.refusals.values().map(|refusal| refusal.damage.clone())
    }

    /// Lets wait again what was put off until now.
    fn take_up(&mut self, now: Uptime) {
        let due: Vec<JobName> =
            self.put_off.iter().filter(|(_, put_off)| put_off.until <= now).map(|(job, _)| job.clone()).collect();
        for job in due {
            if let Some(PutOff { pending, .. }) = self.put_off.remove(&job) {
                self.waiting.put(pending);
                self.waiting.free(&job);
            }
        }
    }

    fn take_up_all(&mut self) {
        for (job, PutOff { pending, .. }) in std::mem::take(&mut self.put_off) {
            self.waiting.put(pending);
            self.waiting.free(&job);
        }
    }

    /// The candidate is removed: what it guards may be asked about.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// The session is over: the answers to what was under way, and the unfenced changes that were never sent.
    pub fn into_rest(mut self) -> (Vec<Answer>, Vec<(CommitId, Change)>) {
        self.take_up_all();
        let waiting = self.waiting.take(|_| true);
        let sent = self.groups.into_values().flat_map(|group| group.members);
        let mut answers: Vec<_> = sent.map(|pending| (pending.id, Commit::Unknown)).collect();
        let (fenced, rest): (Vec<Pending>, Vec<Pending>) = waiting.into_iter().partition(Pending::is_fenced);
        answers.extend(fenced.into_iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))));
        (answers, rest.into_iter().map(|pending| (pending.id, pending.change)).collect())
    }

    /// Sends what is due, if a server answers.
    pub fn start_next(&mut self) {
        if self.context.line().is_err() {
            return;
        }
        let now = self.context.clock.now().up;
        self.take_up(now);
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

    /// Puts waiting changes into groups, in order, as far as groups are free, leaving those whose job is held.
    fn gather(&mut self) {
        while self.groups.len() < UNDER_WAY
            && let Some(group) = self.waiting.next_group()
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
        let Some(group) = self.groups.get(&id) else { return };
        let Ok(client) = self.context.line() else {
            self.due.insert(id, Uptime::ZERO);
            return;
        };
        // Handed over before the multi, so carried out before it.
        for job in group.histories().filter(|job| !self.histories.contains(job)) {
            let create = client.create(&paths::job_history(&job), Vec::new(), Mode::Persistent);
            self.flights.push(Box::pin(async move {
                let is_there = matches!(create.await, Ok(_) | Err(Error::NodeExists));
                Completed::Folder { job: Some(job), is_there }
            }));
        }
        let sent = self.context.clock.now().up;
        let multi = client.multi(group.ops());
        self.last_sent = sent;
        self.flights.push(Box::pin(async move { Completed::Multi { group: id, sent, result: multi.await } }));
    }

    /// Takes what came back.
    pub fn complete(&mut self, completed: Completed) -> Outcome {
        let mut outcome = Outcome::default();
        let group = completed.group();
        let jobs = group.and_then(|group| self.groups.get(&group)).map(Group::jobs).unwrap_or_default();
        match completed {
            Completed::Folder { job, is_there } => {
                if is_there {
                    self.histories.extend(job);
                }
            }
            Completed::Multi { group, sent, result: Ok(_) } => {
                outcome.acknowledged = Some(sent);
                self.accept(group, &mut outcome);
            }
            Completed::Multi { group, result: Err(failed), .. } => self.refused(group, failed, &mut outcome),
            Completed::Traces { group, failed, found: Ok(found) } => self.judge(group, failed, &found, &mut outcome),
            Completed::Traces { group, found: Err(error), .. } => match error {
                Error::SessionOver => self.refused(group, MultiError { index: None, error }, &mut outcome),
                // Asked again by sending the multi again: it must be answered once more anyway.
                _ => drop(self.due.insert(group, self.context.clock.now().up + BREATH)),
            },
        }
        let rest = group.and_then(|group| self.groups.get(&group)).map(Group::jobs).unwrap_or_default();
        rest.iter().for_each(|job| self.waiting.hold(job));
        jobs.iter().for_each(|job| self.waiting.free(job));
        outcome
    }

    fn accept(&mut self, id: u64, outcome: &mut Outcome) {
        let Some(group) = self.groups.remove(&id) else { return };
        if !self.refusals.is_empty() {
            let jobs = group.members.iter().map(|pending| pending.change.job());
            outcome.mended.extend(jobs.filter_map(|job| Some(self.refusals.remove(job)?.damage.path)));
        }
        outcome.grown.extend(group.members.iter().filter_map(Pending::written));
        outcome.begun.extend(group.members.iter().filter_map(Pending::begun));
        outcome.answers.extend(group.members.into_iter().map(|pending| (pending.id, Commit::Accepted)));
    }

    fn refused(&mut self, id: u64, failed: MultiError, outcome: &mut Outcome) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match failed.error {
            Error::Unanswered(_) => {
                group.is_in_doubt = true;
                self.due.insert(id, self.context.clock.now().up + BREATH);
            }
            Error::SessionOver => {
                let members = self.groups.remove(&id).map(|group| group.members).unwrap_or_default();
                outcome.answers.extend(members.into_iter().map(|pending| (pending.id, Commit::Unknown)));
                outcome.error = Some(SessionError::SessionOver);
            }
            _ if group.is_in_doubt || group.is_end_refused(&failed) => self.look_for_traces(id, failed),
            _ => self.settle(id, &failed, outcome),
        }
    }

    /// An earlier try may have been carried out, and be what this one failed on. An end may also have been sent by an earlier
    /// process, which did not live to hear of it.
    fn look_for_traces(&mut self, id: u64, failed: MultiError) {
        let (Some(group), Ok(client)) = (self.groups.get(&id), self.context.line()) else {
            self.due.insert(id, Uptime::ZERO);
            return;
        };
        let read = client.get_many(group.traces().map(|trace| trace.path).collect());
        self.flights.push(Box::pin(async move { Completed::Traces { group: id, failed, found: read.await } }));
    }

    fn judge(&mut self, id: u64, failed: MultiError, found: &[Read], outcome: &mut Outcome) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let was_in_doubt = std::mem::take(&mut group.is_in_doubt);
        match group.judge(found) {
            Verdict::All => self.accept(id, outcome),
            Verdict::Some(written) => {
                outcome.grown.extend(written.iter().filter_map(Pending::written));
                outcome.begun.extend(written.iter().filter_map(Pending::begun));
                outcome.answers.extend(written.into_iter().map(|pending| (pending.id, Commit::Accepted)));
                self.send_again(id);
            }
            Verdict::Untraceable => {
                group.members.iter_mut().for_each(|pending| pending.is_untraceable |= was_in_doubt);
                self.settle(id, &failed, outcome);
            }
            Verdict::None => self.settle(id, &failed, outcome),
        }
    }

    /// A server's word on a multi that was not carried out now: who failed is answered, the others go again.
    fn settle(&mut self, id: u64, failed: &MultiError, outcome: &mut Outcome) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        match group.drop_failed(failed) {
            Failed::Fence(fenced) => {
                outcome.is_fenced = true;
                outcome.answers.extend(fenced.iter().map(|pending| (pending.id, pending.refused_as(Commit::Fenced))));
                self.send_again(id);
            }
            Failed::Superseded(refused) => {
                outcome
                    .answers
                    .extend(refused.iter().map(|pending| (pending.id, pending.refused_as(Commit::Superseded))));
                refused.iter().take(1).for_each(|pending| self.break_chain(&pending.change, outcome));
                self.send_again(id);
            }
            Failed::Rewritten => self.send_again(id),
            Failed::NoFolder(path) => {
                self.make_folders(&path);
                self.send_again(id);
            }
            Failed::Refused { pending, path } => {
                self.put_off(id, pending, Damage::unwritten(path, &failed.error), outcome);
                self.send_again(id);
            }
        }
    }

    /// What waits and rests on a refused change is refused too.
    fn break_chain(&mut self, refused: &Change, outcome: &mut Outcome) {
        self.chains.answered(refused, Commit::Superseded);
        let broken = self.waiting.take(|pending| self.chains.is_broken(&pending.change));
        outcome.answers.extend(broken.into_iter().map(|pending| (pending.id, Commit::Superseded)));
    }

    fn send_again(&mut self, id: u64) {
        if self.groups.get(&id).is_some_and(|group| group.members.is_empty()) {
            self.groups.remove(&id);
        } else {
            self.due.insert(id, Uptime::ZERO);
        }
    }

    /// A change that the server refuses is tried again, after pauses that grow, and holds up its own job alone: these are that change
    /// and those of its job that came after it in the same group.
    fn put_off(&mut self, id: u64, mut pending: Vec<Pending>, damage: Damage, outcome: &mut Outcome) {
        let behind = pending.split_off(1);
        behind.into_iter().for_each(|pending| self.waiting.put(pending));
        let Some(pending) = pending.pop() else { return };
        let job = pending.change.job().clone();
        let pause = self.note_refusal(&job, pending.id, damage, outcome);
        let is_behind_another =
            self.groups.get(&id).is_some_and(|group| group.members.iter().any(|pending| *pending.change.job() == job));
        if is_behind_another {
            // It is refused again once that one is written.
            self.waiting.put(pending);
        } else {
            self.waiting.hold(&job);
            self.put_off.insert(job, PutOff { pending, until: self.context.clock.now().up + pause });
        }
    }

    fn note_refusal(&mut self, job: &JobName, id: CommitId, damage: Damage, outcome: &mut Outcome) -> Duration {
        let before = self.refusals.remove(job);
        let pause = before.as_ref().map_or(PAUSE, |before| (before.pause * 2).min(LONGEST_PAUSE));
        if before.as_ref().is_none_or(|before| before.told != id) {
            outcome.put_off.push(id);
        }
        if let Some(before) = before.filter(|before| before.damage.path != damage.path) {
            outcome.mended.push(before.damage.path);
        }
        self.refusals.insert(job.clone(), Refusal { pause, damage: damage.clone(), told: id });
        outcome.refused.push(damage);
        pause
    }

    /// Makes the folders above a path again; handed over now, so there before what is sent next.
    fn make_folders(&mut self, path: &str) {
        let Ok(client) = self.context.line() else { return };
        for folder in paths::ancestors(path) {
            let create = client.create(folder, Vec::new(), Mode::Persistent);
            self.flights.push(Box::pin(async move {
                let _ = create.await;
                Completed::Folder { job: None, is_there: true }
            }));
        }
    }
}

/// The fence of a group: its candidate as it was made.
pub(super) fn check(candidate: &str) -> Op {
    Op::Check { path: candidate.to_owned(), version: 0 }
}

#[cfg(test)]
mod tests;
