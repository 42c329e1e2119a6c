//! Runs of this node that the service has forgotten.
//!
//! A service can lose what it has acknowledged, and what it loses are its newest transactions. So after each change of
//! its servers the node looks for its own newest ones: for the runs that it has in flight, for the ends and releases
//! that it wrote last, and for the runs that others have settled since it had them. What is gone is written again, as
//! far as this node knows it.
//!
//! ```text
//!   in flight here, and not there ─┐                ┌─ absent ───► restored, and goes on
//!   ended here, and not there ─────┴─ looked up ────┼─ in flight ► as read; an end is written again
//!                                                   └─ ended ────► another node has settled it
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::Runs;
use super::active_run::{ActiveRun, ActiveRunState, Ended, News, Phase, Process, Release, StopCause};
use super::offers::FirstLook;
use crate::engine::commits::Purpose;
use crate::engine::context::Context;
use crate::engine::report::Report;
use crate::ledger::{Change, Commit, CommitId, JobEntry, Request, RunLookup};
use crate::run::journal::RecoveredRun;
use crate::run::{JobRecord, RunEnd, RunId, RunRecord, RunState, Traces, Version};

/// Most writes that are kept as a whole, to be written again.
const KEPT: usize = 256;
/// So many in a row that are there show that all older ones are: one alone may have been written again by another node.
const ENOUGH: usize = 4;

/// What this node knows of its own writes, should the service forget them.
#[derive(Debug, Default)]
pub(super) struct OwnWrites {
    /// The runs that are being looked up, each with the number of the next write when that was requested.
    sought: BTreeMap<RunId, u64>,
    /// What the ledger accepted last, by run, each with its number.
    written: BTreeMap<RunId, (u64, OwnWrite)>,
    /// The same runs by number, oldest first: each run that a takeover finds is looked for, so it must not be searched.
    order: BTreeMap<u64, RunId>,
    /// The number of the next write.
    next: u64,
    /// The number of the next write when the connection was lost.
    first_after_loss: Option<u64>,
    /// The write from before the loss that is being looked up, and its number.
    searching: Option<(u64, RunId)>,
    /// How many of those in a row are there.
    found: usize,
    /// The connection was lost since the last term began or ended.
    was_lost: bool,
}

/// The last that this node wrote about a run, or would have written.
#[derive(Debug)]
pub(super) enum OwnWrite {
    Ended(Box<RunEnd>),
    /// Released for another attempt.
    Released(Box<RunRecord>),
    /// Another node has settled it. This is how it ended here: it counts only if nothing else is on record.
    Settled(Box<RunEnd>),
}

impl OwnWrite {
    fn run(&self) -> &RunRecord {
        match self {
            Self::Ended(end) | Self::Settled(end) => &end.run,
            Self::Released(run) => run,
        }
    }

    /// The phase in which it is written again.
    fn phase(&self) -> Phase {
        match self {
            Self::Ended(end) | Self::Settled(end) => {
                Phase::Ended(Ended { was_written: true, ..Ended::new(RunEnd::clone(end), true) })
            }
            Self::Released(run) => Phase::Releasing(Release { state: run.state, report: None, refusal: None }),
        }
    }
}

impl OwnWrites {
    pub fn note(&mut self, write: OwnWrite) {
        let (run, number) = (write.run().id(), self.next);
        self.next += 1;
        if let Some((before, _)) = self.written.insert(run.clone(), (number, write)) {
            self.order.remove(&before);
        }
        self.order.insert(number, run);
        if self.order.len() > KEPT
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.written.remove(&oldest);
        }
    }

    /// The connection is lost: it may come back with other servers.
    pub fn suspend(&mut self) {
        self.first_after_loss.get_or_insert(self.next);
        self.was_lost = true;
    }

    /// True while runs are being looked up that may be gone: the answers may show that commits are lost.
    pub fn is_looking(&self) -> bool {
        !self.sought.is_empty()
    }

    /// The runs of the writes from this number on.
    fn runs_from(&self, number: u64) -> impl Iterator<Item = &RunId> {
        self.order.range(number..).map(|(_, run)| run)
    }

    /// Forgets how a run ended here: it continues elsewhere.
    fn drop_settled(&mut self, run: &RunId) {
        if let Some((number, OwnWrite::Settled(_))) = self.written.get(run) {
            self.order.remove(number);
            self.written.remove(run);
        }
    }

    /// What was written of a run.
    pub fn written_of(&self, run: &RunId) -> Option<&OwnWrite> {
        self.known_of(run).filter(|write| !matches!(write, OwnWrite::Settled(_)))
    }

    /// What is written of a run if the service has nothing of it any more.
    fn known_of(&self, run: &RunId) -> Option<&OwnWrite> {
        self.written.get(run).map(|(_, write)| write)
    }

    /// The writes before this number, newest first.
    fn before(&self, number: u64) -> impl Iterator<Item = (&u64, &RunId)> {
        self.order.range(..number).rev()
    }
}

impl Runs {
    /// Looks for what this node has written last: the service may have changed its servers.
    pub fn look_for_own_writes(&mut self, cx: &mut Context) {
        cx.ledger(Request::ReadInFlight);
        self.read_accepted(cx);
        self.first_look = FirstLook::Awaited;
        self.put_off_placed(cx);
        self.share_out_again(cx);
        self.own_writes.found = 0;
        let first_after_loss = self.own_writes.first_after_loss.take().unwrap_or(self.own_writes.next);
        // A write after the loss proves nothing: the old servers may have accepted it, or the new ones.
        let later = self.own_writes.runs_from(first_after_loss).filter(|run| !self.is_own(run)).cloned();
        later.collect::<Vec<_>>().iter().for_each(|run| self.look_up(cx, run));
        self.look_up_before(cx, first_after_loss);
    }

    /// The connection is back under the same session.
    pub fn resume(&mut self, cx: &Context) {
        self.resumed_at = Some(cx.now.up);
    }

    /// Reads the attempts that this node has accepted: the ledger may have them as placed, or as taken back. Those that are
    /// watched are read anyway.
    fn read_accepted(&mut self, cx: &mut Context) {
        let unwatched = self.trees.unwatched();
        let is_accepted = |run: &ActiveRun| {
            let is_unwatched = |process: &Process| process.started.is_none() || unwatched.contains(&process.tree_id);
            run.record.placement.is_some() && run.commit.is_none() && run.process().is_some_and(is_unwatched)
        };
        let accepted = self.active.iter().filter(|(_, run)| is_accepted(run));
        accepted.for_each(|(run, _)| cx.ledger(Request::ReadRun(run.clone())));
    }

    /// Looks up the newest write before this number. Those of runs that are in flight here are compared with what is in
    /// flight there.
    fn look_up_before(&mut self, cx: &mut Context, number: u64) {
        let before = self.own_writes.before(number).find(|(_, run)| !self.is_own(run));
        let at = before.map(|(&number, run)| (number, run.clone()));
        at.iter().for_each(|(_, run)| self.look_up(cx, run));
        self.own_writes.searching = at;
    }

    /// The connection is lost.
    pub fn suspend(&mut self) {
        self.own_writes.suspend();
    }

    /// Looks up a run that is in flight by this record, and whose attempt here is over: the record may be older than that.
    /// Until then a leader takes the run for one in flight.
    pub(super) fn look_up_over(&mut self, cx: &mut Context, run: &RunId, record: RunRecord, version: Version) {
        if cx.leads() {
            self.active.insert(run.clone(), ActiveRun::new(record, version, ActiveRunState::Remote));
            self.changed(cx, run.job());
        }
        self.look_up(cx, run);
    }

    /// Forgets a run that is another's now. What this node wrote of it before may be lost.
    pub(super) fn leave(&mut self, cx: &mut Context, run: &RunId) {
        self.forget(cx, run);
        if cx.session.is_some() && self.own_writes.written_of(run).is_some() {
            self.look_up(cx, run);
        }
    }

    /// Keeps these runs at the begin or the end of a term. Of the others, those that this node has released are looked
    /// up, if the service may have lost something in the meantime.
    pub(super) fn retain(&mut self, cx: &mut Context, keep: impl Fn(&ActiveRun) -> bool) {
        let was_lost = std::mem::take(&mut self.own_writes.was_lost);
        let others = self.active.iter().filter(|(_, run)| was_lost && !keep(run)).map(|(id, _)| id.clone());
        let others: Vec<RunId> = others.filter(|run| self.own_writes.written_of(run).is_some()).collect();
        self.active.retain(keep);
        if cx.session.is_some() {
            others.iter().for_each(|run| self.look_up(cx, run));
        }
    }

    /// Looks up a run that may be gone, or on record although this node does not know it.
    pub fn look_up(&mut self, cx: &mut Context, run: &RunId) {
        // Whoever asks again gets the answer that is on its way: it says nothing about what was written since.
        if let Entry::Vacant(sought) = self.own_writes.sought.entry(run.clone()) {
            sought.insert(self.own_writes.next);
            cx.ledger(Request::ReadAgain(run.clone()));
        }
    }

    /// True while it is being read what there is of the run.
    pub(super) fn is_looked_up(&self, run: &RunId) -> bool {
        self.own_writes.sought.contains_key(run)
    }

    /// Compares the runs that are in flight with what this node knows.
    pub fn on_in_flight(&mut self, cx: &mut Context, all: &[RunId], lost_until: Option<Timestamp>) {
        if lost_until > self.noted_loss {
            self.noted_loss = lost_until;
            self.placing.on_loss(cx);
        }
        self.on_service_answers(cx);
        let all: BTreeSet<&RunId> = all.iter().collect();
        let resumed_at = self.placing.resumed_at;
        let is_placed = |run: &ActiveRun| run.is_unanswered() && run.is_placed_by(resumed_at);
        let is_known_here =
            |run: &ActiveRun| run.is_local() && run.is_begun() || waits_for_leader(run) || is_placed(run);
        let is_answered = |run: &ActiveRun| run.commit.is_none() && is_known_here(run);
        let gone = self.active.iter().filter(|(id, run)| is_answered(run) && !all.contains(id));
        let gone: Vec<RunId> = gone.map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|run| self.look_up(cx, run));
        for run in all {
            if self.active.contains_key(run) {
                continue;
            }
            if self.over.mentions(run) || self.own_writes.written_of(run).is_some() {
                self.look_up(cx, run);
            } else if cx.leads() {
                // Its owner has restored it.
                cx.ledger(Request::ReadRun(run.clone()));
            }
        }
    }

    /// Handles what there is of a run: what was read before may be older than what this node has written since.
    pub fn on_looked_up(&mut self, cx: &mut Context, run: &RunId, found: RunLookup) {
        let asked = self.own_writes.sought.remove(run);
        let number = self.own_writes.searching.take_if(|(_, at)| at == run).map(|(number, _)| number);
        let is_there = match &found {
            RunLookup::Ended => true,
            RunLookup::InFlight(record, _) => !self.is_over_here(cx, record),
            RunLookup::Absent(_) => false,
        };
        let has_ended = matches!(found, RunLookup::Ended);
        // Another node wrote what became of it, at an unknown time.
        let is_proof = self.own_writes.written_of(run).is_some();
        match self.active.get(run) {
            // The answer to the commit is newer.
            Some(active) if active.commit.is_some() => {}
            Some(active) if active.is_local() => self.on_own_looked_up(cx, run, found),
            Some(_) => self.on_other_looked_up(cx, run, found, asked),
            None => self.on_over_looked_up(cx, run, found, asked),
        }
        self.on_share_looked_up(cx, run, has_ended);
        let Some(number) = number else { return };
        if !is_there {
            // Something is lost: it is written again before another node can begin it.
            let before = self.own_writes.before(number).map(|(_, run)| run.clone());
            return before.collect::<Vec<_>>().iter().for_each(|run| self.look_up(cx, run));
        }
        self.own_writes.found += usize::from(is_proof);
        if self.own_writes.found < ENOUGH {
            self.look_up_before(cx, number);
        }
    }

    fn on_own_looked_up(&mut self, cx: &mut Context, run: &RunId, found: RunLookup) {
        let Some(active) = self.active.get_mut(run) else { return };
        match found {
            RunLookup::InFlight(record, version) => {
                if active.record.owner != record.owner
                    && let Some(process) = active.process_mut()
                {
                    process.needs_change_owner = true;
                }
                self.on_own_read(cx, run, Some((*record, version)));
            }
            _ if !active.is_begun() => self.on_own_read(cx, run, None),
            // The unanswered write has ended it.
            RunLookup::Ended if active.ended().is_some_and(|ended| ended.may_be_written) => self.forget_own(cx, run),
            RunLookup::Ended => self.supersede(cx, run, StopCause::Settled),
            // The leader has it written again, or decides about it again.
            RunLookup::Absent(_) if active.is_offered() && !cx.leads() => self.drop_offer(cx, run),
            RunLookup::Absent(job) => {
                self.report_absent(cx, run, job.as_deref());
                self.restore(cx, run, job);
            }
        }
    }

    fn on_other_looked_up(&mut self, cx: &mut Context, run: &RunId, found: RunLookup, asked: Option<u64>) {
        let waits = self.active.get(run).is_some_and(|active| waits_for_leader(active) || active.is_unanswered());
        // If it is gone, all nodes have their shares; or it is lost.
        let is_shared_out = self.active.is_to_share(run) && self.is_shared_out(run);
        match found {
            RunLookup::InFlight(record, version) if self.is_over_here(cx, &record) => {
                self.forget(cx, run);
                self.settle_again(cx, *record, version, asked);
            }
            RunLookup::InFlight(record, version) => {
                self.on_news(cx, run, News::Changed(Some((*record, version))));
            }
            RunLookup::Absent(job) if waits && !is_shared_out => {
                self.report_absent(cx, run, job.as_deref());
                self.write_again(cx, run, None);
            }
            RunLookup::Absent(job) if self.own_writes.written_of(run).is_some() => {
                self.forget(cx, run);
                self.restore_over(cx, run, job);
            }
            // Its owner restores it, if it is gone.
            RunLookup::Ended | RunLookup::Absent(_) => self.forget(cx, run),
        }
    }

    /// The service has lost something about a job.
    pub fn on_loss(&mut self, cx: &Context) {
        self.placing.on_loss(cx);
    }

    /// Reports that the service has lost something about this run.
    pub(super) fn report_rewound(&mut self, cx: &mut Context, run: &RunId) {
        self.placing.on_loss(cx);
        let outcome = self.active.get(run).and_then(ActiveRun::ended).map(|ended| ended.end.outcome);
        cx.report(Report::Rewound { run: run.clone(), outcome });
    }

    /// Reports that a run is gone. Its job's mark shows whether somebody has removed it, or commits are lost.
    fn report_absent(&mut self, cx: &mut Context, run: &RunId, job: Option<&JobEntry>) {
        self.report_rewound(cx, run);
        let mark = job.and_then(|entry| entry.record.clone()).filter(|_| run.trigger().is_none());
        if mark.is_some_and(|record| passed(record, run).is_some()) {
            cx.ledger(Request::NoteLoss);
        }
    }

    fn on_over_looked_up(&mut self, cx: &mut Context, run: &RunId, found: RunLookup, asked: Option<u64>) {
        match found {
            RunLookup::InFlight(record, version) if self.is_over_here(cx, &record) => {
                self.settle_again(cx, *record, version, asked);
            }
            RunLookup::InFlight(record, version) => {
                self.own_writes.drop_settled(run);
                self.adopt_unknown(cx, run, Some((*record, version)));
            }
            RunLookup::Absent(job) => self.restore_over(cx, run, job),
            RunLookup::Ended => {}
        }
    }

    /// True if the run's attempt was this process' and is over, or a later one was: the ledger had that, and has forgotten
    /// it since.
    pub(super) fn is_over_here(&self, cx: &Context, run: &RunRecord) -> bool {
        if self.over.has_later(run) {
            return true;
        }
        if !run.state.waits()
            && self.own_writes.written_of(&run.id()).is_some_and(|write| write.run().attempt >= run.attempt)
        {
            return true;
        }
        if run.state == RunState::Placed {
            // What is offered for the first time is not over, however old it is.
            return run.owner.node == cx.node && self.over.reaches(run);
        }
        let (is_ours, is_known) = (run.owner.node == cx.node, self.over.has(run));
        let may_be = is_known || cx.is_own_session(&run.owner.session) && self.over.may_include(run);
        is_ours && !run.state.waits() && may_be
    }

    /// Writes once more how the newest attempt of this process ended, or has another begun if it did not end the run.
    ///
    /// `asked`: the number of the next write when the run was looked up.
    fn settle_again(&mut self, cx: &mut Context, record: RunRecord, version: Version, asked: Option<u64>) {
        let (run, is_placed) = (record.id(), record.state == RunState::Placed);
        match self.own_writes.written_of(&run).filter(|write| write.run().attempt >= record.attempt) {
            Some(write) => {
                let (record, phase) = (write.run().clone(), write.phase());
                let number = self.own_writes.written.get(&run).map(|(number, _)| *number);
                if number < asked {
                    // It was read after that write was accepted, and nobody else writes that it is in flight again.
                    cx.ledger(Request::NoteLoss);
                }
                self.insert_over(version, record, phase);
            }
            None => {
                let record = self.over.newest_of(record);
                let end = self.over.end_of(&record);
                self.on_recovered(
                    cx,
                    vec![RecoveredRun { record, version, pid: None, traces: Traces::default(), end }],
                );
            }
        }
        if let Some(active) = self.active.get_mut(&run) {
            active.is_placed_again = is_placed;
        }
        self.report_rewound(cx, &run);
        self.changed(cx, run.job());
        self.commit_next(cx, &run);
    }

    fn insert_over(&mut self, version: Version, record: RunRecord, phase: Phase) {
        self.active.insert(record.id(), ActiveRun::new(record, version, ActiveRunState::recovered(phase)));
    }

    /// Restores a run that is gone, begin and all, so that what became of it can be written again.
    fn restore_over(&mut self, cx: &mut Context, run: &RunId, job: Option<Box<JobEntry>>) {
        let Some(write) = self.own_writes.known_of(run) else { return };
        let (record, phase) = (write.run().clone(), write.phase());
        self.insert_over(Version::FIRST, record, phase);
        self.report_absent(cx, run, job.as_deref());
        self.changed(cx, run.job());
        self.restore(cx, run, job);
    }

    /// Writes a run that is gone again, as one that this node has. What else is to be written of it follows.
    ///
    /// The mark of its job moves with it: a leader that has read the older one must not begin the run.
    fn restore(&mut self, cx: &mut Context, run: &RunId, job: Option<Box<JobEntry>>) {
        let Some(owner) = cx.owner() else { return };
        let Some(active) = self.active.get_mut(run) else { return };
        active.record.owner = owner;
        active.record.state = if active.is_unaccepted() { RunState::Placed } else { RunState::Running };
        // A leader restores its marks by itself.
        let job = job.filter(|_| run.trigger().is_none() && !cx.leads());
        // One node's share says nothing about those of the others.
        let job = job.filter(|_| run.node().is_none());
        let mark = job.and_then(|entry| Some((entry.version, passed(entry.record?, run)?)));
        self.write_again(cx, run, mark);
    }

    fn write_again(&mut self, cx: &mut Context, run: &RunId, mark: Option<(Version, JobRecord)>) {
        let nonce = cx.nonce();
        let Some(active) = self.active.get_mut(run) else { return };
        active.record.nonce = nonce.clone();
        let mark = mark.map(|(at, record)| (at, JobRecord { nonce, ..record }));
        let change = Change::Restore { run: active.record.clone(), mark };
        active.commit = Some(cx.commit(change, Purpose::Restore { run: run.clone() }));
    }

    /// Handles the answer to restoring a run.
    pub fn on_restore_answer(&mut self, cx: &mut Context, run: &RunId, id: CommitId, answer: Commit) {
        let Some(active) = self.answered_run(run, id) else { return };
        match answer {
            Commit::Accepted => {
                (active.version, active.is_placed_again) = (Version::FIRST, false);
                let (is_waiting, is_placed) = (waits_for_leader(active), active.is_unanswered());
                if let Some(process) = active.process_mut() {
                    process.needs_change_owner = false;
                    cx.ledger(Request::WatchOwn(run.clone()));
                }
                if active.is_offered() {
                    self.consider(cx, run);
                }
                self.commit_next(cx, run);
                self.tie_to_lease(cx, run);
                if is_waiting && cx.leads() {
                    self.await_its_turn(cx, run);
                }
                if is_placed && cx.leads() {
                    self.await_answer_again(cx, run, cx.now.up);
                }
                self.take_up_news(cx, run);
            }
            // Somebody has begun the run or moved the mark meanwhile, or the session is another by now.
            Commit::Superseded | Commit::Fenced | Commit::Unknown => {
                if cx.session.is_some() {
                    self.look_up(cx, run);
                }
            }
        }
    }
}

/// The job's record with a mark that is not before the run; `None` if its own is not, or if it lists the run as one that
/// was decided on before a recount.
fn passed(record: JobRecord, run: &RunId) -> Option<JobRecord> {
    let at = run.scheduled_at();
    let counted = record.counted.map(|counted| counted.max(at));
    let is_listed = record.recount.as_ref().is_some_and(|recount| recount.lists(at));
    let is_passed = is_listed || record.counted.unwrap_or(record.last_scheduled) >= at;
    (!is_passed).then(|| JobRecord { last_scheduled: record.last_scheduled.max(at), counted, ..record })
}

/// True for a run that the leader begins, or begins again, at its time.
pub(super) fn waits_for_leader(run: &ActiveRun) -> bool {
    run.is_unowned() && run.record.state.waits()
}
