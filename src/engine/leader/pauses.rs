//! Jobs that operators paused: what passes is recorded as such, until the leader itself ends the pause.
//!
//! A pause changes `jobs/<job>` too, so a begin that was decided on without knowing of it is rejected, and the job is read
//! again together with its pause. What comes by watches only makes it known sooner, and may be old: it adds a pause, it
//! never takes one away.

use std::collections::BTreeMap;

use jiff::Timestamp;
use uuid::Uuid;

use super::book::{Book, new_skip};
use crate::engine::commits::Pending;
use crate::engine::context::Context;
use crate::engine::misfire;
use crate::engine::report::Report;
use crate::job::{Job, JobName};
use crate::ledger::{Change, Commit, ControlEntry, Request};
use crate::run::{JobRecord, SkipReason};

/// The pauses that a leader knows of.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    paused: BTreeMap<JobName, ControlEntry>,
    /// The newest pause of a job that this leader ended: what comes of it later is old.
    lifted: BTreeMap<JobName, Uuid>,
}

impl Pauses {
    pub fn iter(&self) -> impl Iterator<Item = (&JobName, &ControlEntry)> {
        self.paused.iter()
    }

    pub fn has(&self, name: &JobName) -> bool {
        self.paused.contains_key(name)
    }

    /// Why occurrences of the job pass that nobody decided on.
    pub fn passing(&self, name: &JobName) -> SkipReason {
        if self.has(name) { SkipReason::Paused } else { SkipReason::Missed }
    }

    /// Adds a pause. False where it is known, or ended.
    pub fn add(&mut self, name: &JobName, entry: ControlEntry) -> bool {
        let is_lifted = self.lifted.get(name) == Some(&entry.record.id);
        let is_known = self
            .paused
            .get(name)
            .is_some_and(|known| known.record.id == entry.record.id && known.version >= entry.version);
        if is_lifted || is_known {
            return false;
        }
        self.paused.insert(name.clone(), entry);
        true
    }

    /// The job is not paused, as read after its record. True where it was.
    pub fn remove(&mut self, name: &JobName) -> bool {
        self.paused.remove(name).is_some()
    }

    /// Nothing is left of the job.
    pub fn forget(&mut self, name: &JobName) {
        self.paused.remove(name);
        self.lifted.remove(name);
    }

    /// A pause as read. True where it is news.
    pub fn on_read(&mut self, cx: &mut Context, book: &mut Book, name: &JobName, entry: ControlEntry) -> bool {
        let pause = entry.record.paused.clone();
        let was = self.paused.get(name).map(|known| known.record.paused.clone());
        if !self.add(name, entry) {
            return false;
        }
        if was.as_ref() != Some(&pause) {
            cx.report(Report::Paused { job: name.clone(), pause });
        }
        book.clear_backlog(name);
        true
    }

    /// A paused job's occurrences up to now pass.
    pub fn pass(&self, cx: &mut Context, book: &mut Book, name: &JobName) {
        let Some(timeline) = book.decidable(name) else { return };
        let (Some(job), mark) = (timeline.job.clone(), timeline.mark) else { return };
        if let Some(passed) = misfire::missed(&job, mark, cx.due_for(&job)) {
            book.advance(cx, name, passed.last, Some((SkipReason::Paused, passed)));
        }
        book.schedule(name);
    }

    /// Ends the pauses that operators want ended.
    pub fn lift_all(&mut self, cx: &mut Context, book: &mut Book) {
        let wanted = self.paused.iter().filter(|(_, entry)| entry.record.resume.is_some());
        let wanted: Vec<JobName> = wanted.map(|(name, _)| name.clone()).collect();
        for name in wanted {
            self.lift(cx, book, &name);
        }
    }

    /// The mark moves to now: what was due until then passed under the pause, also where nobody was there to record it.
    fn lift(&mut self, cx: &mut Context, book: &mut Book, name: &JobName) {
        let nonce = cx.nonce();
        if book.get(name).is_some_and(|timeline| timeline.is_in_conflict) {
            return;
        }
        let Some(entry) = self.paused.remove(name) else { return };
        self.lifted.insert(name.clone(), entry.record.id);
        let by = entry.record.resume.map(|resume| resume.by).unwrap_or_default();
        let control = entry.version;
        let Some(timeline) = book.get_mut(name) else {
            let change = Change::Resume { job: name.clone(), control, mark: None, skip: None };
            cx.commit(change, Pending::Resume { job: name.clone(), mark: None, skip: None, by });
            return;
        };
        let (job, at) = (timeline.job.clone(), timeline.version);
        let until = job.as_ref().map_or(cx.due, |job| cx.due_for(job));
        // What runs after others has no occurrence that passed: a chain that is under way goes on.
        let is_due_by_time = job.as_ref().is_none_or(|job| job.schedule().is_some());
        let mark = if is_due_by_time { timeline.mark.max(until) } else { timeline.mark };
        let passed = job.as_ref().and_then(|job| misfire::missed(job, timeline.mark, until));
        let skip = passed.and_then(|passed| new_skip(cx, name, SkipReason::Paused, passed));
        let (unreported, skip) = timeline.join_skip(skip, cx.jobs.dependents_of(name));
        timeline.skip = None;
        timeline.step(mark);
        let schedule = job.as_deref().map(Job::schedule_digest);
        let (last_scheduled, counted) = timeline.marks(mark);
        let record = JobRecord { v: 1, last_scheduled, counted, schedule, nonce };
        book.schedule(name);
        let change = Change::Resume { job: name.clone(), control, mark: Some((at, record)), skip };
        cx.commit(change, Pending::Resume { job: name.clone(), mark: Some(mark), skip: unreported, by });
    }

    /// The answer to the end of a pause. Rejected: the job's record is read, and the pause with it.
    pub fn on_resume_answer(
        &mut self,
        cx: &mut Context,
        book: &mut Book,
        name: &JobName,
        mark: Option<Timestamp>,
        answer: Commit,
    ) {
        if answer != Commit::Accepted {
            // What comes of the pause counts again.
            self.lifted.remove(name);
            if let Some(timeline) = book.get_mut(name) {
                // What was in the way is the pause and no occurrence's place: none is passed over for it.
                timeline.written.0 = None;
            }
        }
        match mark {
            Some(mark) => book.on_answer(cx, name, mark, answer),
            None if matches!(answer, Commit::Superseded | Commit::Unknown) => cx.ledger(Request::ReadJob(name.clone())),
            None => {}
        }
    }
}
