//! Triggers of operators: each becomes a run, or a skip record with the reason.
//!
//! A trigger's run obeys the same rules as any other run, but moves no mark. The write that begins it removes the
//! trigger, so a trigger whose run is in the ledger is gone. The leader's list of triggers may be outdated; the commit
//! detects that. A service that has lost the write may list a trigger again whose run is restored, over, or shared out:
//! the leader remembers that it was begun, and only removes it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use uuid::Uuid;

use super::MOST_PASSED_OVER;
use crate::clock::later;
use crate::engine::commits::{Purpose, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire::{LEAST_AGE, Missed, STAMP, is_too_old};
use crate::engine::runs::Runs;
use crate::job::Job;
use crate::ledger::{Change, Commit, RunLookup, TriggerEntry};
use crate::run::{Link, RunId, Skip, SkipReason, TriggerRecord, TriggerSeq, UpstreamResult};

/// Most decided triggers that are remembered. For older ones the ledger is checked by the commit.
const REMEMBERED: usize = 1_000;

/// The triggers that a leader knows of.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    /// Not decided on yet.
    waiting: BTreeMap<TriggerSeq, TriggerEntry>,
    /// Decided on in this term.
    decided: BTreeMap<TriggerSeq, Decided>,
    /// The runs of those whose begin was rejected, which are looked up.
    rejected: BTreeMap<RunId, Uuid>,
    /// When the next trigger is given up that this node's file does not allow: it lacks the job, or the parameters.
    give_up_at: Option<Timestamp>,
}

/// A trigger that was decided on.
#[derive(Debug)]
struct Decided {
    uuid: Uuid,
    at: Timestamp,
    /// Its run was on record, or that of another trigger with its uuid.
    is_begun: bool,
    /// The service may have lost the decision: it may have the same trigger again.
    is_doubtful: bool,
}

/// Decision on a trigger.
enum TriggerVerdict {
    Begin(Arc<Job>),
    Skip(SkipReason),
    /// A trigger with the same uuid was decided on before.
    Seen,
}

impl Triggers {
    /// Adds the triggers in the ledger that are not decided on yet.
    pub fn add(&mut self, read: BTreeMap<TriggerSeq, TriggerEntry>) {
        self.rejected.retain(|run, uuid| {
            let listed = run.trigger().and_then(|seq| read.get(&seq));
            listed.is_some_and(|entry| entry.record.uuid == *uuid)
        });
        for (seq, entry) in read {
            if self.decision_on(seq, &entry.record).is_none_or(|known| known.is_doubtful) {
                self.waiting.insert(seq, entry);
            }
        }
    }

    /// Has triggers that are listed decided on again: the service may have lost that they were.
    pub fn doubt_decided(&mut self) {
        self.decided.values_mut().for_each(|known| known.is_doubtful = true);
    }

    /// When the next trigger is given up.
    pub fn give_up_at(&self) -> Option<Timestamp> {
        self.give_up_at
    }

    /// The oldest undecided trigger after this one.
    fn next(&self, after: Option<TriggerSeq>) -> Option<TriggerSeq> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().map(|(&seq, _)| seq)
    }

    /// The decision on this trigger. A service that has lost triggers gives their numbers to others.
    fn decision_on(&self, seq: TriggerSeq, request: &TriggerRecord) -> Option<&Decided> {
        self.decided.get(&seq).filter(|known| (known.uuid, known.at) == (request.uuid, request.at))
    }

    /// Notes that the run of a trigger was on record, and is not known any more.
    pub fn on_closed(&mut self, run: &RunId, uuid: Option<Uuid>) {
        let (Some(seq), Some(uuid)) = (run.trigger(), uuid) else { return };
        match self.decided.get_mut(&seq).filter(|known| known.uuid == uuid) {
            Some(known) => known.is_begun = true,
            None => {
                let at = run.scheduled_at();
                self.remember(seq, Decided { uuid, at, is_begun: true, is_doubtful: true });
            }
        }
    }

    fn note_decided(&mut self, seq: TriggerSeq, request: &TriggerRecord, is_begun: bool) {
        self.waiting.remove(&seq);
        self.remember(seq, Decided { uuid: request.uuid, at: request.at, is_begun, is_doubtful: false });
    }

    fn remember(&mut self, seq: TriggerSeq, decided: Decided) {
        self.decided.insert(seq, decided);
        if self.decided.len() > REMEMBERED {
            self.decided.pop_first();
        }
    }

    /// Decides on the triggers, oldest first.
    pub fn decide(&mut self, cx: &mut Context, runs: &mut Runs) {
        self.give_up_at = None;
        let (mut last, mut passed_over) = (None, 0);
        while let Some(seq) = self.next(last).filter(|_| !runs.is_quiet() && passed_over < MOST_PASSED_OVER) {
            let job = self.waiting.get(&seq).map(|entry| &entry.record.job);
            match job.is_some_and(|job| runs.may_begin_of(cx, job)) {
                true => self.decide_one(cx, runs, seq),
                false => passed_over += 1,
            }
            last = Some(seq);
        }
    }

    /// Decides on one trigger. While a run of its job is being settled it waits, because only that answer shows if it
    /// would overlap.
    fn decide_one(&mut self, cx: &mut Context, runs: &mut Runs, seq: TriggerSeq) {
        let Some(entry) = self.waiting.get(&seq).cloned() else { return };
        let job = &entry.record.job;
        if runs.is_refused(job) {
            return;
        }
        runs.miss_overdue(cx, job);
        if runs.is_undecidable(cx, job) {
            return;
        }
        // What runs on other nodes may be over.
        if runs.must_ask(cx, job) {
            return;
        }
        let run = RunId::manual(job.clone(), entry.record.at, seq);
        if runs.contains(&run) && !runs.is_on_record(&run) {
            // The list is outdated: its begin is not answered yet.
            return self.note_decided(seq, &entry.record, false);
        }
        // This node's file may lack the job or the parameters only for a moment.
        let give_up_at = later(entry.record.at, LEAST_AGE);
        if cx.job(job).is_none_or(|job| entry.record.parameters.fit(job).is_err()) && cx.due < give_up_at {
            self.give_up_at = Some(self.give_up_at.map_or(give_up_at, |before| before.min(give_up_at)));
            return;
        }
        if cx.job(job).is_some_and(|job| cx.shares(job) && !runs.knows_roster()) {
            return;
        }
        let verdict = self.judge(cx, runs, seq, &entry);
        self.note_decided(seq, &entry.record, matches!(verdict, TriggerVerdict::Seen));
        match verdict {
            TriggerVerdict::Begin(job) => begin(cx, runs, &job, seq, &entry),
            TriggerVerdict::Skip(reason) => drop_trigger(cx, seq, &entry, Some(reason)),
            TriggerVerdict::Seen => drop_trigger(cx, seq, &entry, None),
        }
    }

    fn judge(&self, cx: &Context, runs: &Runs, seq: TriggerSeq, entry: &TriggerEntry) -> TriggerVerdict {
        let request = &entry.record;
        let run = RunId::manual(request.job.clone(), request.at, seq);
        if runs.is_on_record(&run)
            || runs.is_over(&run)
            || entry.is_in_history
            || self.decision_on(seq, request).is_some_and(|known| known.is_begun)
            || self.is_seen(seq, request.uuid)
            || runs.has_trigger(request.uuid, seq)
        {
            return TriggerVerdict::Seen;
        }
        if runs.may_be_lost(request.at) {
            return TriggerVerdict::Skip(SkipReason::Rewound);
        }
        match cx.job(&request.job) {
            // Only the file of the node that was asked says that it is placed.
            Some(job) if !request.on.is_empty() && cx.place.is_some() && !job.run_on.is_placed() => {
                TriggerVerdict::Skip(SkipReason::NoNode)
            }
            Some(job) if request.parameters.fit(job).is_err() => TriggerVerdict::Skip(SkipReason::Parameters),
            Some(job) if !is_too_old(job, cx.root_of(job), later(request.at, STAMP), cx.due) => {
                if entry.record.on.is_empty() && runs.overlaps(cx, job) {
                    TriggerVerdict::Skip(SkipReason::Overlap)
                } else {
                    TriggerVerdict::Begin(job.clone())
                }
            }
            Some(_) => TriggerVerdict::Skip(SkipReason::Missed),
            // Another node's file may define the job, but only the leader can run it.
            None => TriggerVerdict::Skip(SkipReason::NotDefined),
        }
    }

    /// True if another trigger with this uuid was decided on in this term.
    fn is_seen(&self, seq: TriggerSeq, uuid: Uuid) -> bool {
        self.decided.iter().any(|(&other, known)| other != seq && known.uuid == uuid)
    }

    /// Handles the answer to the begin of a trigger's run. If it was rejected, the trigger is gone; or its run is on record,
    /// because another node has restored it after the service had lost both that and the removal of the trigger.
    pub fn on_begin_answer(&mut self, run: &RunId, answer: Commit) {
        let Some(seq) = run.trigger() else { return };
        match answer {
            Commit::Accepted => self.decided.get_mut(&seq).into_iter().for_each(|known| known.is_begun = true),
            Commit::Superseded | Commit::Unknown => {
                let known = self.decided.remove(&seq);
                let rejected = known.filter(|_| answer == Commit::Superseded);
                self.rejected.extend(rejected.map(|known| (run.clone(), known.uuid)));
            }
            Commit::Fenced => {}
        }
    }

    /// Handles what there is of a run. Removes its trigger if that was not begun because the run is on record.
    pub fn on_looked_up(&mut self, cx: &mut Context, run: &RunId, found: &RunLookup) {
        let was_rejected = self.rejected.remove(run).is_some();
        if let (true, Some(seq), RunLookup::InFlight(..) | RunLookup::Ended) = (was_rejected, run.trigger(), found) {
            let change = Change::DropTrigger { job: run.job().clone(), seq, skip: None, links: Vec::new() };
            cx.commit(change, Purpose::DropTrigger { skip: None });
        }
    }
}

fn begin(cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, seq: TriggerSeq, entry: &TriggerEntry) {
    let nonce = cx.nonce();
    let trigger = (Some(entry.record.numbered(seq)), entry.record.on.clone());
    let Some(run) = runs.new_record(cx, job, entry.record.at, trigger, nonce) else { return };
    let run = run.with(entry.record.parameters.clone());
    let (by, parameters) = (entry.record.by.clone(), entry.record.parameters.names());
    let purpose = Purpose::BeginTriggered { run: run.id(), by, parameters };
    let commit = cx.commit(Change::BeginTriggered { run: run.clone() }, purpose);
    runs.begin(run, job, commit);
}

fn drop_trigger(cx: &mut Context, seq: TriggerSeq, entry: &TriggerEntry, why: Option<SkipReason>) {
    let Some(token) = cx.token() else { return };
    let request = &entry.record;
    let skip = why.map(|reason| Skip {
        trigger: Some(request.numbered(seq)),
        ..cx.new_skip(token, &request.job, reason, Missed::one(request.at))
    });
    let dependents = cx.jobs.dependents_of(&request.job);
    let links =
        skip.iter().flat_map(|skip| Link::of_skip(skip, skip.first, 1, UpstreamResult::NotBegun, dependents)).collect();
    let unreported = skip.clone().map(UnreportedSkip::of);
    let change = Change::DropTrigger { job: request.job.clone(), seq, skip, links };
    cx.commit(change, Purpose::DropTrigger { skip: unreported });
}
