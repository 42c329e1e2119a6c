//! Runs that operators want: each trigger ends as a run, or as a record that says why not.
//!
//! A trigger's run answers to the same rules as any other, but moves no mark: it is begun in the trigger's place, so that a
//! trigger whose run is in the ledger is gone from it. What was heard of triggers may be old; the commit finds that out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::clock::later;
use crate::engine::misfire::{DEFAULT_WINDOW, LATE};
use crate::engine::{Engine, Pending, Report, Told, Turn};
use crate::job::Job;
use crate::ledger::{Change, Commit, TriggerEntry};
use crate::run::{Answer, Link, RunId, Skip, SkipReason, TriggerSeq};

/// Where the owner of a job names no window, a trigger is good for at least so long: a failover must not eat it.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A trigger says the second in which it was made.
const STAMP: Duration = Duration::from_secs(1);
/// Most triggers that are remembered once decided on. The ledger knows of the others.
const REMEMBERED: usize = 1_000;

/// The triggers that a leader has heard of.
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
enum Verdict {
    Begin(Arc<Job>),
    Skip(SkipReason),
    /// An earlier one of its uuid was decided on.
    Seen,
}

impl Triggers {
    pub fn hear(&mut self, told: BTreeMap<TriggerSeq, TriggerEntry>) {
        let news = told.into_iter().filter(|(seq, _)| !self.decided.contains_key(seq));
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

    fn decided(&mut self, seq: TriggerSeq, uuid: Uuid) {
        self.decided.insert(seq, uuid);
        if self.decided.len() > REMEMBERED {
            self.decided.pop_first();
        }
    }
}

impl Engine {
    /// Decides on the triggers heard of, oldest first.
    pub(in crate::engine) fn decide_triggers(&mut self, t: &mut Turn) {
        if let Some(leading) = &mut self.leading {
            leading.triggers.give_up_at = None;
        }
        let mut from = TriggerSeq(0);
        while let Some(seq) = self.leading.as_ref().and_then(|leading| leading.triggers.next(from)) {
            if !self.may_begin(t.now) {
                return;
            }
            self.decide_trigger(t, seq);
            from = TriggerSeq(seq.0.saturating_add(1));
        }
    }

    /// A trigger of a job whose run is being settled waits for the answer: only that tells whether it overlaps.
    fn decide_trigger(&mut self, t: &mut Turn, seq: TriggerSeq) {
        let Some(triggers) = self.leading.as_ref().map(|leading| &leading.triggers) else { return };
        let Some(entry) = triggers.waiting.get(&seq).cloned() else { return };
        if self.flights.is_refused(&entry.record.job) {
            return;
        }
        self.miss_overdue(t, &entry.record.job);
        if self.is_undecidable(&entry.record.job) {
            return;
        }
        let run = RunId::manual(entry.record.job.clone(), entry.record.at, seq);
        if self.flights.contains_key(&run) {
            // Old news: it is begun, or nobody knows yet whether it is.
            self.note_decided(seq, entry.record.uuid);
            return;
        }
        // This node's file may be about to have the job again.
        let give_up_at = later(entry.record.at, TIMEOUT);
        if !self.jobs.jobs.contains_key(&entry.record.job) && t.due < give_up_at {
            return self.look_at_triggers_at(give_up_at);
        }
        let verdict = self.judge(seq, &entry, t.due);
        self.note_decided(seq, entry.record.uuid);
        match verdict {
            Verdict::Begin(job) => self.begin_triggered(t, &job, seq, &entry),
            Verdict::Skip(reason) => self.drop_trigger(t, seq, &entry, Some(reason)),
            Verdict::Seen => self.drop_trigger(t, seq, &entry, None),
        }
    }

    fn look_at_triggers_at(&mut self, at: Timestamp) {
        if let Some(leading) = &mut self.leading {
            let triggers = &mut leading.triggers;
            triggers.give_up_at = Some(triggers.give_up_at.map_or(at, |before| before.min(at)));
        }
    }

    fn note_decided(&mut self, seq: TriggerSeq, uuid: Uuid) {
        if let Some(leading) = &mut self.leading {
            leading.triggers.waiting.remove(&seq);
            leading.triggers.decided(seq, uuid);
        }
    }

    fn judge(&self, seq: TriggerSeq, entry: &TriggerEntry, now: Timestamp) -> Verdict {
        let request = &entry.record;
        if entry.is_in_history || self.is_seen(seq, request.uuid) {
            return Verdict::Seen;
        }
        match self.jobs.jobs.get(&request.job) {
            Some(job) if !is_too_old(job, self.jobs.root_of(job).unwrap_or(job), later(request.at, STAMP), now) => {
                if self.overlaps(job) {
                    Verdict::Skip(SkipReason::Overlap)
                } else {
                    Verdict::Begin(job.clone())
                }
            }
            // The leader's file may lack a job that another node's has: to say so is all that can be done.
            Some(_) | None => Verdict::Skip(SkipReason::Missed),
        }
    }

    /// True where another trigger of the uuid was decided on, in this term or before.
    fn is_seen(&self, seq: TriggerSeq, uuid: Uuid) -> bool {
        let mut decided = self.leading.iter().flat_map(|leading| &leading.triggers.decided);
        decided.any(|(&other, &same)| other != seq && same == uuid) || self.flights.has_trigger(uuid, seq)
    }

    fn begin_triggered(&mut self, t: &mut Turn, job: &Arc<Job>, seq: TriggerSeq, entry: &TriggerEntry) {
        let nonce = self.nonce();
        let trigger = Some(entry.record.numbered(seq));
        let Some(run) = self.new_run(t, job, entry.record.at, trigger, nonce) else { return };
        let pending = Pending::BeginTriggered { run: run.id(), by: entry.record.by.clone() };
        let commit = self.commit(t, Change::BeginTriggered { run: run.clone() }, pending);
        self.enter(run, job, commit);
    }

    fn drop_trigger(&mut self, t: &mut Turn, seq: TriggerSeq, entry: &TriggerEntry, why: Option<SkipReason>) {
        let Some(token) = self.term().map(|term| term.token) else { return };
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
            node: self.node.clone(),
            decided_at: t.now.wall,
        });
        let behind = self.jobs.dependents_of(&request.job);
        let links = skip.iter().flat_map(|skip| Link::of_skip(skip, skip.first, 1, Answer::NotBegun, behind)).collect();
        let told = skip.clone().map(|skip| Told { first: skip.first, count: 1, skip });
        self.commit(
            t,
            Change::DropTrigger { job: request.job.clone(), seq, skip, links },
            Pending::DropTrigger { told },
        );
    }

    pub(in crate::engine) fn on_begin_triggered_answer(
        &mut self,
        t: &mut Turn,
        run: &RunId,
        by: String,
        answer: Commit,
    ) {
        match (answer, &mut self.leading, run.trigger()) {
            (Commit::Accepted, ..) => t.tell(Report::Triggered { run: run.clone(), by }),
            // The trigger is gone, or it is told again when the ledger is read next.
            (Commit::Superseded | Commit::Unknown, Some(leading), Some(seq)) => {
                leading.triggers.decided.remove(&seq);
            }
            _ => {}
        }
    }
}

/// The window is the owner's; where none is named, at most the time to the next occurrence (of `root`, with `after`), as for missed
/// ones.
pub(in crate::engine) fn is_too_old(job: &Job, root: &Job, made: Timestamp, now: Timestamp) -> bool {
    if now <= made {
        return false;
    }
    let age = now.duration_since(made).unsigned_abs();
    match job.misfire_window {
        Some(window) => age > window.max(LATE),
        None if age <= TIMEOUT => false,
        None => age > DEFAULT_WINDOW || root.next_after(made).is_some_and(|next| next <= now),
    }
}
