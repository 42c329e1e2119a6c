//! Runs that operators request: each trigger ends as a run, or as a record that says why not.
//!
//! A trigger's run answers to the same rules as any other, but moves no mark: it is begun in the trigger's place, so that a
//! trigger whose run is in the ledger is gone from it. What is known of triggers may be old; the commit finds that out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::later;
use crate::engine::commits::{Pending, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire::{LEAST_AGE, is_too_old};
use crate::engine::runs::Runs;
use crate::job::Job;
use crate::ledger::{Change, Commit, TriggerEntry};
use crate::run::{Answer, Link, RunId, Skip, SkipReason, TriggerSeq};

/// A trigger says the second in which it was made.
const STAMP: Duration = Duration::from_secs(1);
/// Most triggers that are remembered once decided on. The ledger knows of the others.
const REMEMBERED: usize = 1_000;

/// The triggers that a leader knows of.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    /// Not decided on.
    waiting: BTreeMap<TriggerSeq, TriggerEntry>,
    /// Decided on in this term.
    decided: BTreeMap<TriggerSeq, Uuid>,
    /// When one is given up whose job this node's file lacks.
    give_up_at: Option<Timestamp>,
}

/// What to make of a trigger.
enum TriggerVerdict {
    Begin(Arc<Job>),
    Skip(SkipReason),
    /// An earlier one of its uuid was decided on.
    Seen,
}

impl Triggers {
    /// Takes what the ledger has, as far as it is not decided on.
    pub fn add(&mut self, read: BTreeMap<TriggerSeq, TriggerEntry>) {
        let news = read.into_iter().filter(|(seq, _)| !self.decided.contains_key(seq));
        self.waiting.extend(news.collect::<Vec<_>>());
    }

    /// When a trigger is given up.
    pub fn give_up_at(&self) -> Option<Timestamp> {
        self.give_up_at
    }

    /// The oldest that is not decided on, from this one on.
    fn next(&self, from: TriggerSeq) -> Option<TriggerSeq> {
        self.waiting.range(from..).next().map(|(&seq, _)| seq)
    }

    fn note_decided(&mut self, seq: TriggerSeq, uuid: Uuid) {
        self.waiting.remove(&seq);
        self.decided.insert(seq, uuid);
        if self.decided.len() > REMEMBERED {
            self.decided.pop_first();
        }
    }

    /// Decides on the triggers, oldest first.
    pub fn decide(&mut self, cx: &mut Context, runs: &mut Runs) {
        self.give_up_at = None;
        let mut from = TriggerSeq(0);
        while let Some(seq) = self.next(from) {
            if !runs.may_begin(cx) {
                return;
            }
            self.decide_one(cx, runs, seq);
            from = TriggerSeq(seq.0.saturating_add(1));
        }
    }

    /// A trigger of a job whose run is being settled waits for the answer: only that tells whether it overlaps.
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
        let run = RunId::manual(job.clone(), entry.record.at, seq);
        if runs.contains(&run) {
            // Old news: it is begun, or nobody knows yet whether it is.
            return self.note_decided(seq, entry.record.uuid);
        }
        // This node's file may be about to have the job again.
        let give_up_at = later(entry.record.at, LEAST_AGE);
        if cx.job(job).is_none() && cx.due < give_up_at {
            self.give_up_at = Some(self.give_up_at.map_or(give_up_at, |before| before.min(give_up_at)));
            return;
        }
        let verdict = self.judge(cx, runs, seq, &entry);
        self.note_decided(seq, entry.record.uuid);
        match verdict {
            TriggerVerdict::Begin(job) => begin(cx, runs, &job, seq, &entry),
            TriggerVerdict::Skip(reason) => drop_trigger(cx, seq, &entry, Some(reason)),
            TriggerVerdict::Seen => drop_trigger(cx, seq, &entry, None),
        }
    }

    fn judge(&self, cx: &Context, runs: &Runs, seq: TriggerSeq, entry: &TriggerEntry) -> TriggerVerdict {
        let request = &entry.record;
        if entry.is_in_history || self.is_seen(seq, request.uuid) || runs.has_trigger(request.uuid, seq) {
            return TriggerVerdict::Seen;
        }
        match cx.job(&request.job) {
            Some(job) if !is_too_old(job, cx.root_of(job), later(request.at, STAMP), cx.due) => {
                if runs.overlaps(job) {
                    TriggerVerdict::Skip(SkipReason::Overlap)
                } else {
                    TriggerVerdict::Begin(job.clone())
                }
            }
            // The leader's file may lack a job that another node's has: to record it is all that can be done.
            Some(_) | None => TriggerVerdict::Skip(SkipReason::Missed),
        }
    }

    /// True where another trigger of the uuid was decided on in this term.
    fn is_seen(&self, seq: TriggerSeq, uuid: Uuid) -> bool {
        self.decided.iter().any(|(&other, &same)| other != seq && same == uuid)
    }

    /// The answer to the begin of a trigger's run. Rejected: the trigger is gone, or comes again when the ledger is read next.
    pub fn on_begin_answer(&mut self, run: &RunId, answer: Commit) {
        if let (Commit::Superseded | Commit::Unknown, Some(seq)) = (answer, run.trigger()) {
            self.decided.remove(&seq);
        }
    }
}

fn begin(cx: &mut Context, runs: &mut Runs, job: &Arc<Job>, seq: TriggerSeq, entry: &TriggerEntry) {
    let nonce = cx.nonce();
    let trigger = Some(entry.record.numbered(seq));
    let Some(run) = runs.new_record(cx, job, entry.record.at, trigger, nonce) else { return };
    let pending = Pending::BeginTriggered { run: run.id(), by: entry.record.by.clone() };
    let commit = cx.commit(Change::BeginTriggered { run: run.clone() }, pending);
    runs.begin(run, job, commit);
}

fn drop_trigger(cx: &mut Context, seq: TriggerSeq, entry: &TriggerEntry, why: Option<SkipReason>) {
    let Some(token) = cx.token() else { return };
    let request = &entry.record;
    let skip = why.map(|reason| Skip {
        v: 1,
        job: request.job.clone(),
        reason,
        first: request.at,
        last: request.at,
        count: 1,
        trigger: Some(request.numbered(seq)),
        token,
        node: cx.node.clone(),
        decided_at: cx.now.wall,
    });
    let dependents = cx.jobs.dependents_of(&request.job);
    let links = skip.iter().flat_map(|skip| Link::of_skip(skip, skip.first, 1, Answer::NotBegun, dependents)).collect();
    let unreported = skip.clone().map(UnreportedSkip::of);
    let change = Change::DropTrigger { job: request.job.clone(), seq, skip, links };
    cx.commit(change, Pending::DropTrigger { skip: unreported });
}
