//! Jobs that operators paused: their occurrences are recorded as skipped.
//!
//! A pause changes `jobs/<job>` too, so a begin that was decided on without knowing of the pause is rejected, and the
//! job is read again together with its pause. A watch only makes the leader know of a pause sooner, and its data may be
//! outdated: it can add a pause but never removes one. Only the leader ends a pause.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use uuid::Uuid;

use super::book::Book;
use crate::clock::earlier;
use crate::engine::commits::{Purpose, UnreportedSkip};
use crate::engine::context::Context;
use crate::engine::misfire;
use crate::engine::report::{END_OF_PAUSE, Report};
use crate::job::JobName;
use crate::ledger::{Change, Commit, ControlEntry, Request};
use crate::run::{ControlRecord, Pause, SkipReason};

/// The pauses that a leader knows of.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    paused: BTreeMap<JobName, ControlEntry>,
    /// Those of them that operators requested to end.
    to_lift: BTreeSet<JobName>,
    /// When those of them end that end by themselves.
    ends: BTreeSet<(Timestamp, JobName)>,
    /// The newest pause of each job that this leader ended, so that outdated reads do not add it again.
    lifted: BTreeMap<JobName, Uuid>,
    /// The pauses that were reported, or that the term began with: they are not reported when they are read again,
    /// because their end was rejected.
    reported: BTreeMap<JobName, Pause>,
}

impl Pauses {
    pub fn iter(&self) -> impl Iterator<Item = (&JobName, &ControlEntry)> {
        self.paused.iter()
    }

    pub fn has(&self, name: &JobName) -> bool {
        self.paused.contains_key(name)
    }

    /// The reason to record for occurrences of the job that passed undecided.
    pub fn passing(&self, name: &JobName) -> SkipReason {
        if self.has(name) { SkipReason::Paused } else { SkipReason::Missed }
    }

    /// Adds a pause. Returns false if it is known already or was ended.
    pub fn add(&mut self, name: &JobName, entry: ControlEntry) -> bool {
        let is_lifted = self.lifted.get(name) == Some(&entry.record.id);
        let is_known = self
            .paused
            .get(name)
            .is_some_and(|known| known.record.id == entry.record.id && known.version >= entry.version);
        if is_lifted || is_known {
            return false;
        }
        self.take(name);
        if entry.record.resume.is_some() {
            self.to_lift.insert(name.clone());
        }
        self.ends.extend(entry.record.paused.until.map(|until| (until, name.clone())));
        self.reported.insert(name.clone(), entry.record.paused.clone());
        self.paused.insert(name.clone(), entry);
        true
    }

    /// Removes the pause of a job that is no longer paused, as read after its record. Returns true if there was one.
    pub fn remove(&mut self, name: &JobName) -> bool {
        self.reported.remove(name);
        self.take(name).is_some()
    }

    fn take(&mut self, name: &JobName) -> Option<ControlEntry> {
        let entry = self.paused.remove(name)?;
        self.to_lift.remove(name);
        if let Some(until) = entry.record.paused.until {
            self.ends.remove(&(until, name.clone()));
        }
        Some(entry)
    }

    /// Removes everything about the job.
    pub fn forget(&mut self, name: &JobName) {
        self.take(name);
        self.lifted.remove(name);
        self.reported.remove(name);
    }

    /// When the next pause ends by itself after `due`. What ended before waits for the ledger.
    pub fn next_end(&self, due: Timestamp) -> Option<Timestamp> {
        self.ends.iter().map(|(at, _)| *at).find(|at| *at > due)
    }

    /// Handles a pause as read. Returns true if it is new.
    pub fn on_read(&mut self, cx: &mut Context, book: &mut Book, name: &JobName, entry: ControlEntry) -> bool {
        let pause = entry.record.paused.clone();
        let is_news = self.reported.get(name) != Some(&pause);
        if !self.add(name, entry) {
            return false;
        }
        if is_news {
            cx.report(Report::Paused { job: name.clone(), pause });
        }
        book.clear_backlog(name);
        true
    }

    /// Skips a paused job's occurrences up to now.
    pub fn pass(&self, cx: &mut Context, book: &mut Book, name: &JobName) {
        let Some(timeline) = book.decidable(name) else { return };
        let (Some(job), mark) = (timeline.job.clone(), timeline.mark) else { return };
        if let Some(passed) = misfire::missed(&job, mark, cx.due_for(&job)) {
            book.advance(cx, name, passed.last, Some((SkipReason::Paused, passed)));
        }
        book.schedule(name);
    }

    /// Ends the pauses that operators requested to end, and those whose time is over.
    pub fn lift_all(&mut self, cx: &mut Context, book: &mut Book) {
        let over = self.ends.iter().take_while(|(at, _)| *at <= cx.due).map(|(_, name)| name);
        let wanted: BTreeSet<JobName> = over.chain(&self.to_lift).cloned().collect();
        for name in wanted {
            self.lift(cx, book, &name);
        }
    }

    /// Ends a pause and moves the mark to its end: earlier occurrences passed during the pause, even if no leader
    /// recorded them. The end is now, or what the pause says: a leader may come later than that, and what was due after
    /// it was not paused.
    fn lift(&mut self, cx: &mut Context, book: &mut Book, name: &JobName) {
        let nonce = cx.nonce();
        let Some(token) = cx.token() else { return };
        if book.get(name).is_some_and(|timeline| timeline.is_in_conflict) {
            return;
        }
        let Some(entry) = self.take(name) else { return };
        self.lifted.insert(name.clone(), entry.record.id);
        let ControlRecord { paused, resume, .. } = entry.record;
        let by = resume.map_or_else(|| format!("{END_OF_PAUSE}{}", paused.by), |resume| resume.by);
        let control = entry.version;
        let Some(timeline) = book.get_mut(name) else {
            let change = Change::Resume { job: name.clone(), control, mark: None, skip: None };
            cx.commit(change, Purpose::Resume { job: name.clone(), mark: None, skip: None, by });
            return;
        };
        let (job, at) = (timeline.job.clone(), timeline.version);
        let ended_at = |splay| paused.until.map_or(Timestamp::MAX, |until| earlier(until, splay));
        let until = job.as_ref().map_or(cx.due, |job| cx.due_for(job).min(ended_at(job.splay.delay())));
        // A job that runs after others has no occurrences that could have passed; a chain in progress continues.
        let is_due_by_time = job.as_ref().is_none_or(|job| job.schedule().is_some());
        let mark = if is_due_by_time { timeline.mark.max(until) } else { timeline.mark };
        let passed = job.as_ref().and_then(|job| misfire::missed(job, timeline.mark, until));
        let passed = passed.and_then(|passed| timeline.undecided(passed));
        let skip = passed.map(|passed| UnreportedSkip::of(cx.new_skip(token, name, SkipReason::Paused, passed)));
        let (unreported, skip) = timeline.join_skip(skip, cx.jobs.dependents_of(name));
        timeline.skip = None;
        timeline.step(mark);
        // During the pause no success was to be expected.
        timeline.count_success_from(cx.due);
        let record = timeline.record(mark, nonce);
        book.schedule(name);
        let change = Change::Resume { job: name.clone(), control, mark: Some((at, record)), skip };
        cx.commit(change, Purpose::Resume { job: name.clone(), mark: Some(mark), skip: unreported, by });
    }

    /// Handles the answer to the end of a pause. If it was rejected, the job's record and pause are read again.
    pub fn on_resume_answer(
        &mut self,
        cx: &mut Context,
        book: &mut Book,
        name: &JobName,
        mark: Option<Timestamp>,
        answer: Commit,
    ) {
        if answer == Commit::Accepted {
            self.reported.remove(name);
        } else {
            // Reads of the pause count again.
            self.lifted.remove(name);
            if let Some(timeline) = book.get_mut(name) {
                timeline.is_pause_in_doubt = true;
            }
        }
        match mark {
            Some(mark) => book.on_answer(cx, name, mark, answer),
            None if matches!(answer, Commit::Superseded | Commit::Unknown) => cx.ledger(Request::ReadJob(name.clone())),
            None => {}
        }
    }
}
