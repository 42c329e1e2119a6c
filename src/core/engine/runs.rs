//! The runs in flight that this node knows of: its own and, while it leads, those of all other nodes.
//!
//! ```text
//!   runs ─┬─ active_run    one run: its record, its state, and the steps that the state allows
//!         ├─ active_runs   all runs, with an index for counts
//!         ├─ own           protocol of a run that this node has: begin, start, end, write the end
//!         ├─ ending        the outcome of an attempt, from its exit status and the reason for its stop
//!         ├─ unowned       a leader's work on runs that no node has, and on other nodes' runs
//!         ├─ waiting       overlap and concurrency groups: skip, begin beside others, or queue
//!         ├─ places        the nodes that can run something, and which gets the next attempt
//!         ├─ placing       a leader's placing of attempts on nodes, and those that are not accepted
//!         ├─ shares        runs on every node: one run for each node that fits
//!         ├─ offers        attempts that are placed on this node: accept them, or refuse
//!         ├─ locking       locks: hold them before an attempt begins, release them after it
//!         ├─ locks         which runs hold or wait for which locks
//!         ├─ retry         delays and records of further attempts
//!         ├─ window        the misfire window of runs that were begun and never started
//!         ├─ agenda        when unowned runs are due, and which of them a change concerns
//!         ├─ horizon       how long before its time an occurrence is begun
//!         ├─ held          starts before their time, and what cancels them
//!         ├─ trees         process trees and their timers
//!         ├─ overdue       kills that the warden should have done
//!         └─ admission     how many attempts may be starting at once
//! ```
//!
//! Knows nothing of occurrences, triggers or hooks: it records news for those parts as a
//! [`Fact`](super::context::Fact).

pub(super) mod active_run;
mod active_runs;
mod admission;
mod agenda;
mod crowd;
mod ending;
mod held;
mod horizon;
mod locking;
mod locks;
mod offers;
mod overdue;
mod own;
mod places;
mod placing;
pub(super) mod retry;
mod rewound;
mod shares;
mod trees;
mod unowned;
mod waiting;
mod window;

pub use self::places::unplaceable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use self::active_run::{ActiveRun, ActiveRunState, RunStep};
pub(super) use self::active_run::{News, StopCause};
use self::active_runs::ActiveRuns;
use self::agenda::{Agenda, Times};
use self::horizon::Horizon;
use self::locks::Locks;
use self::offers::FirstLook;
use self::places::{Choice, Places};
use self::placing::Placing;
use self::rewound::OwnWrites;
use self::shares::Sharing;
use self::trees::Trees;
pub(super) use self::waiting::keep_until;
use super::context::{Context, Fact};
use super::report::Report;
use crate::clock::{Now, Uptime, later};
use crate::job::{Job, JobName, JobSet};
use crate::ledger::{CommitId, Request};
use crate::process::TreeId;
use crate::run::{
    KillRequest, Nonce, OnLoss, Outcome, OverAttempts, Parameters, Past, RunId, RunRecord, RunState, Trigger,
    TriggerSeq, Version,
};
use crate::term::NodeName;

/// The runs in flight.
#[derive(Debug, Default)]
pub(super) struct Runs {
    active: ActiveRuns,
    trees: Trees,
    agenda: Agenda,
    locks: Locks,
    horizon: Horizon,
    /// This node's attempts that are over.
    over: OverAttempts,
    own_writes: OwnWrites,
    /// When the attempts that are placed on this node are answered.
    offers: Times,
    /// When the connection was last back under the same session.
    resumed_at: Option<Uptime>,
    first_look: FirstLook,
    /// Until when commits may have begun something that is lost, as last read.
    noted_loss: Option<Timestamp>,
    places: Places,
    placing: Placing,
    sharing: Sharing,
    /// The timeout of the session.
    session_timeout: Duration,
    /// What waits since before then may have been begun by a commit that the store has lost.
    lost_until: Option<Timestamp>,
}

/// True for the run of a whole occurrence: neither one node's share of it, nor triggered.
fn is_whole(run: &RunId) -> bool {
    run.trigger().is_none() && run.node().is_none()
}

impl Runs {
    /// Takes the jobs' groups as they are now.
    pub fn define(&mut self, jobs: &JobSet) {
        self.active.define(jobs);
    }

    /// Takes the negotiated timeout of a new session.
    pub fn under(&mut self, session_timeout: Duration) {
        self.trees.under(session_timeout);
        self.session_timeout = session_timeout;
    }

    pub fn records(&self) -> impl Iterator<Item = &RunRecord> {
        self.active.values().map(|run| &run.record)
    }

    /// The runs whose attempt here is over, and whose release the ledger does not have yet, each with how it ended; `None`
    /// if it was never started.
    pub fn unwritten_ends(&self) -> impl Iterator<Item = (RunId, Option<Outcome>)> {
        self.active.values().filter_map(|run| Some((run.record.id(), run.unwritten_end()?)))
    }

    /// The runs whose begin, or whose next attempt's, the ledger is not known to have.
    pub fn unconfirmed(&self) -> impl Iterator<Item = RunId> {
        self.active.values().filter(|run| !run.is_begun()).map(|run| run.record.id())
    }

    pub fn contains(&self, run: &RunId) -> bool {
        self.active.contains_key(run)
    }

    /// Takes what the journal knows of attempts that are over.
    pub fn remember(&mut self, over: OverAttempts) {
        self.over = over;
    }

    /// True if an attempt of the run is over that this node had.
    pub fn is_over(&self, run: &RunId) -> bool {
        self.over.mentions(run)
    }

    /// The occurrences of the job whose runs this node knows, although no record may show them.
    pub fn known_occurrences(&self, job: &JobName) -> BTreeSet<Timestamp> {
        let begun = self.active.of_job(job).filter(|(_, active)| active.is_begun()).map(|(run, _)| run);
        let known = begun.chain(self.over.runs_of(job)).filter(|run| is_whole(run));
        known.map(RunId::scheduled_at).collect()
    }

    /// The newest occurrence of the job that has a run as far as this node knows, or that may have one: whether it was
    /// begun is still looked up.
    pub fn newest_occurrence(&self, job: &JobName) -> Option<Timestamp> {
        let runs = self.active.of_job(job).map(|(run, _)| run).chain(self.over.runs_of(job));
        runs.filter(|run| is_whole(run)).map(RunId::scheduled_at).max()
    }

    /// True if this node has the run.
    pub fn is_own(&self, run: &RunId) -> bool {
        self.active.get(run).is_some_and(ActiveRun::is_local)
    }

    /// The job as it was when this node's attempt of the run began, and the run's record.
    pub fn own_attempt(&self, run: &RunId) -> Option<(&Arc<Job>, &RunRecord)> {
        let active = self.active.get(run)?;
        Some((active.job()?, &active.record))
    }

    /// True if the ledger is known to have the run in flight.
    pub fn is_begun(&self, run: &RunId) -> bool {
        self.active.get(run).is_some_and(ActiveRun::is_begun)
    }

    /// True if the ledger is known to have the run in flight, even if its next attempt is just being begun.
    pub fn is_on_record(&self, run: &RunId) -> bool {
        self.active.get(run).is_some_and(ActiveRun::is_on_record)
    }

    /// Number of runs that this node has, without those that it was offered and has not accepted.
    pub fn own_count(&self) -> usize {
        self.active.own() - self.active.offered()
    }

    /// True while this node has runs, or must answer an offer.
    pub fn is_busy(&self) -> bool {
        self.active.own() > 0
    }

    /// The first runs that this node has, at most `limit`.
    pub fn first_own(&self, limit: usize) -> Vec<RunId> {
        let own = self.active.iter().filter(|(_, run)| run.is_local() && !run.is_offered());
        own.take(limit).map(|(id, _)| id.clone()).collect()
    }

    /// True while a run has a process here, or is about to.
    pub fn has_trees(&self) -> bool {
        self.active.trees() > 0
    }

    pub fn overlaps(&self, cx: &Context, job: &Job) -> bool {
        self.active.overlaps(job, cx.shares(job))
    }

    /// True if a run of the job that is begun now waits for others. What is shared out does not: its shares do.
    pub fn must_wait(&self, cx: &Context, job: &Job) -> bool {
        !cx.shares(job) && self.active.must_wait(job, cx.places(job))
    }

    pub fn is_undecidable(&self, cx: &Context, job: &JobName) -> bool {
        self.active.is_undecidable(cx, job)
    }

    /// True while the service refuses a write about this job.
    pub fn is_refused(&self, job: &JobName) -> bool {
        self.active.is_refused(job)
    }

    pub fn has_trigger(&self, uuid: uuid::Uuid, seq: TriggerSeq) -> bool {
        self.active.has_trigger(uuid, seq)
    }

    pub fn group_of(&self, job: &JobName) -> Option<Arc<str>> {
        self.active.group_of(job).cloned()
    }

    /// The run of the job that is due first among those that have not had a process, and when it was due.
    pub fn first_to_start(&self, job: &Job) -> Option<(Timestamp, RunId)> {
        let to_start = self.active.of_job(&job.name).filter(|(_, run)| run.has_not_run());
        to_start.map(|(id, run)| (run.due_at(Some(job)), id.clone())).min()
    }

    /// The run of the job whose attempt has been running for longest, and since when.
    pub fn longest_running(&self, job: &JobName) -> Option<(Timestamp, RunId)> {
        self.active.of_job(job).filter_map(|(id, run)| Some((run.running_since()?, id.clone()))).min()
    }

    /// The run that a process tree belongs to; `None` for a hook's.
    pub fn of_tree(&self, tree_id: TreeId) -> Option<RunId> {
        self.trees.run(tree_id).cloned()
    }

    /// True while the leader may begin one more run and start it soon.
    pub fn may_begin(&mut self, cx: &Context) -> bool {
        cx.may_decide() && self.trees.admission.admits(self.active.starting())
    }

    /// True while the leader may place attempts, and some node has room.
    pub fn may_place(&self, cx: &Context) -> bool {
        cx.place.is_some() && self.knows_places(cx) && self.has_any_room(cx)
    }

    /// True while the leader may begin one more run of this job.
    pub fn may_begin_job(&mut self, cx: &Context, job: &Job) -> bool {
        if cx.places(job) { cx.may_decide() && self.has_place(cx, job) } else { self.may_begin(cx) }
    }

    /// True while the leader may begin a run of this job, or place it, even if it waits for room on a node. Starts on this
    /// node do not delay those on others.
    pub fn may_begin_of(&mut self, cx: &Context, job: &JobName) -> bool {
        cx.job(job).is_some_and(|job| cx.places(job)) && cx.may_decide() || self.may_begin(cx)
    }

    /// True while one more run could be started soon.
    pub fn has_room(&self) -> bool {
        self.trees.admission.has_room(self.active.starting())
    }

    /// When a process next needs an action.
    pub fn process_due_at(&self) -> Option<Uptime> {
        self.trees.next_at()
    }

    /// When an unowned or cut-off run next needs an action of the leader.
    pub fn next_at(&self) -> Option<Timestamp> {
        [self.agenda.next_keep(), self.agenda.next_retry()].into_iter().flatten().map(|&(at, _)| at).min()
    }

    /// The next run that must be begun again, and when.
    pub fn next_retry(&self) -> Option<(Timestamp, &RunId)> {
        self.agenda.next_retry().map(|(at, run)| (*at, run))
    }

    /// When the next run must be placed again, if that is the next one that must be begun again.
    pub fn next_placed_retry(&self, cx: &Context) -> Option<Timestamp> {
        let (at, run) = self.next_retry()?;
        cx.job(run.job()).filter(|job| self.may_place(cx) && cx.places(job)).map(|_| at)
    }

    /// When the next cut-off run is given up.
    pub fn give_up_at(&self) -> Option<Timestamp> {
        self.agenda.next_keep().map(|&(at, _)| at)
    }

    /// True while nothing is begun again, because the service may have lost that it was begun.
    pub fn is_quiet(&self) -> bool {
        self.agenda.is_quiet()
    }

    /// The record of a run that this node is about to begin, or to queue behind others. `None` without a session or a
    /// term.
    pub fn new_record(
        &mut self,
        cx: &Context,
        job: &Job,
        at: Timestamp,
        (trigger, on): (Option<Trigger>, BTreeSet<NodeName>),
        nonce: Nonce,
    ) -> Option<RunRecord> {
        let is_occurrence = trigger.is_none() && job.schedule().is_some();
        let its_time = is_occurrence.then(|| later(at, job.splay.delay()));
        let own = cx.owner()?;
        let token = cx.token()?;
        let is_placed = cx.places(job);
        let share_among = if on.is_empty() || cx.place.is_none() { self.share_among(cx, job) } else { Some(on) };
        // What follows a run follows one end.
        let has_one_end = share_among.as_ref().is_none_or(|nodes| nodes.len() == 1);
        let dependents = if has_one_end { cx.jobs.dependents_of(&job.name).to_vec() } else { Vec::new() };
        let must_wait = share_among.is_some() || self.active.must_wait(job, is_placed);
        let (state, owner, no_node_since) = match is_placed && !must_wait {
            true => match self.choose(cx, job, None) {
                Choice::On(owner) => (RunState::Placed, owner, None),
                Choice::Full | Choice::Nobody => (RunState::Queued, own, Some(its_time.unwrap_or(cx.due))),
            },
            false if must_wait => (RunState::Queued, own, None),
            false => (RunState::Running, own, None),
        };
        let record = RunRecord {
            v: 1,
            job: job.name.clone(),
            scheduled_at: at,
            trigger,
            on: None,
            share_among: share_among.map(Box::new),
            parameters: Parameters::default(),
            state,
            owner,
            token,
            attempt: u32::from(state != RunState::Queued),
            nonce,
            begun_at: cx.now.wall,
            on_loss: OnLoss::of(job),
            keep_until: keep_until(job, cx.root_of(job), at, cx.due),
            ready_at: None,
            no_node_since,
            retry_at: None,
            past: Past::default(),
            dependents,
            notify: cx.jobs.notices_of_runs(job),
            placement: (state == RunState::Placed).then(|| Self::placement(cx, job, its_time)),
            kill: None,
        };
        Some(record.in_its_format())
    }

    /// Adds a run whose begin was just requested from the ledger.
    pub fn begin(&mut self, record: RunRecord, job: &Arc<Job>, commit: CommitId) {
        let state = match record.state {
            RunState::Queued => ActiveRunState::Unowned,
            RunState::Placed => ActiveRunState::Placed,
            _ => ActiveRunState::beginning(Arc::clone(job)),
        };
        let mut run = ActiveRun::new(record, Version::FIRST, state);
        (run.is_new, run.commit) = (true, Some(commit));
        self.active.insert(run.record.id(), run);
    }

    /// Handles a write about the job that the service refuses. The first one frees the positions of its beginning runs
    /// in a group.
    pub fn refused(&mut self, cx: &mut Context, job: &JobName, id: CommitId) {
        if self.active.refuse(job, id) {
            self.release_locks_of_beginning(cx, job);
            self.changed(cx, job);
        }
    }

    /// Handles an answered write. If it was the refused one, the job's runs that wait for another attempt are checked
    /// again.
    pub fn answered(&mut self, cx: &Context, job: &JobName, id: CommitId) {
        if self.active.answer(job, id) {
            self.retry_all_of(cx, job);
        }
    }

    /// Has all queued runs checked again.
    pub fn mark_all_changed(&mut self) {
        // Of both kinds.
        self.agenda.changed_placed.all = true;
    }

    /// Has the runs checked that may have waited for this job: one of its runs ended or started to wait.
    pub fn changed(&mut self, cx: &mut Context, job: &JobName) {
        if cx.leads() {
            self.has_changed(cx, job);
            cx.facts.push_back(Fact::JobChanged(job.clone()));
        }
    }

    /// Has the job's waiting runs checked once they may begin.
    fn has_changed(&mut self, cx: &Context, job: &JobName) {
        let group = self.group_of(job);
        let is_placed = cx.job(job).is_some_and(|job| cx.places(job));
        let Agenda { changed, changed_placed, .. } = &mut self.agenda;
        let changed = if is_placed { changed_placed } else { changed };
        changed.jobs.insert(job.clone());
        changed.groups.extend(group);
    }

    /// The run of an answered commit, if it still waits for that commit and not for a later one.
    fn answered_run(&mut self, run: &RunId, id: CommitId) -> Option<&mut ActiveRun> {
        let active = self.active.get_mut(run).filter(|active| active.commit == Some(id))?;
        active.commit = None;
        Some(active)
    }

    /// Takes the step. Returns false if the state does not allow it, which is a bug; the caller must then do nothing.
    fn step(&mut self, cx: &mut Context, run: &RunId, step: RunStep) -> bool {
        let Some(active) = self.active.get_mut(run) else { return false };
        match active.step(step) {
            Ok(()) => {
                self.release_unneeded_locks(cx, run);
                true
            }
            Err(why) => {
                cx.report(Report::IllegalStep { run: run.clone(), why });
                false
            }
        }
    }

    /// Removes a run that is over or that another node handles, and whose outcome this node has not seen.
    fn forget(&mut self, cx: &mut Context, run: &RunId) {
        cx.facts.push_back(Fact::OutcomeUnknown(run.job().clone()));
        self.close(cx, run);
    }

    /// Removes a run whose end this node has written. Runs that wait for it may begin.
    fn close(&mut self, cx: &mut Context, run: &RunId) -> Option<ActiveRun> {
        let closed = self.active.remove(run);
        self.placing.forget(run);
        self.sharing.forget(run);
        if closed.as_ref().is_some_and(|closed| closed.record.placement.is_some()) {
            // An occurrence that was due meanwhile may have waited for news of it.
            cx.facts.push_back(Fact::JobReleased(run.job().clone()));
        }
        let on_record = closed.as_ref().filter(|closed| run.node().is_none() && closed.is_on_record());
        cx.facts.extend(on_record.map(|closed| {
            let trigger = closed.record.trigger.as_ref().map(|trigger| trigger.uuid);
            Fact::Closed { run: run.clone(), trigger }
        }));
        self.release_unneeded_locks(cx, run);
        self.changed(cx, run.job());
        closed
    }

    /// Requests that a run end, whichever node has it. The first request counts.
    pub fn request_to_end(&mut self, cx: &mut Context, run: &RunId, kill: KillRequest) {
        let Some(active) = self.active.get_mut(run) else { return };
        if !active.record.request_to_end(kill) {
            return;
        }
        if matches!(active.state(), ActiveRunState::Remote) {
            self.write_kill(cx, run)
        } else {
            self.apply_kill(cx, run)
        }
    }

    /// Handles the record of an own run, or of one that this leader watches.
    pub fn on_read(&mut self, cx: &mut Context, run: &RunId, found: Option<(RunRecord, Version)>) {
        if let Some(active) = self.active.get_mut(run).filter(|active| active.record.placement.is_some()) {
            (active.read_at, active.asked_at) = (Some(cx.now.up), None);
            // An occurrence that was due meanwhile may have waited for the news.
            cx.facts.push_back(Fact::JobReleased(run.job().clone()));
        }
        match self.active.get_mut(run) {
            // Read before this node's last write, and received after it; or the service has lost that write.
            Some(active) if found.as_ref().is_some_and(|(_, version)| *version < active.version) => {
                self.look_up(cx, run);
            }
            // Read before the write that makes it, which the same connection carries later.
            Some(active) if active.is_new && found.is_none() => {}
            Some(active) if active.commit.is_some() => active.note_news(News::Changed(found)),
            Some(active) if active.is_local() => self.on_own_read(cx, run, found),
            Some(_) => self.on_news(cx, run, News::Changed(found)),
            None => self.adopt_unknown(cx, run, found),
        }
    }

    /// Handles news that arrived while a commit about the run was in flight, and that are newer than the commit.
    fn take_up_news(&mut self, cx: &mut Context, run: &RunId) {
        let Some(active) = self.active.get_mut(run).filter(|active| active.commit.is_none()) else { return };
        match active.news.take() {
            Some(News::Changed(found)) => self.on_read(cx, run, found),
            Some(news) => self.on_news(cx, run, news),
            None => {}
        }
    }

    /// Kills processes that are overdue, and stops those that have timed out.
    pub fn act_on_processes(&mut self, cx: &mut Context) {
        self.kill_overdue(cx);
        while let Some(run) = self.trees.pop_timeout(cx.now.up) {
            self.stop(cx, &run, StopCause::Timeout);
        }
    }

    /// Watches the records of attempts that have lasted for a while.
    pub fn watch_due(&mut self, cx: &mut Context) {
        while let Some(run) = self.trees.pop_watch(cx.now.up) {
            cx.ledger(Request::WatchOwn(run));
        }
    }
}

fn at_due(cx: &Context) -> Now {
    Now { wall: cx.due, ..cx.now }
}
