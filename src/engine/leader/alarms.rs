//! Alarms: jobs that start late, run long, or have not succeeded for long.
//!
//! ```text
//!   clock, runs, successes ─► judged ─► jobs/<job> ─► accepted ─► event and hook
//! ```
//!
//! An alarm is raised once. It stands in the job's record until the job is well again, so that a new leader neither
//! raises it again nor forgets it. Its event and its hook follow once the ledger has it, as those of runs do.
//!
//! - `late` is raised while a run waits to start, or when one has started too late. It ends when one starts in time.
//! - `long` ends with the attempt.
//! - `stale` ends with a success. A paused job does not become stale, and its time counts anew when the pause ends.
//!
//! An alarm ends too when its key is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::book::Book;
use super::pauses::Pauses;
use super::timeline::Timeline;
use crate::clock::later;
use crate::engine::commits::AlarmNews;
use crate::engine::context::Context;
use crate::engine::runs::Runs;
use crate::job::{Alarm, AlarmLimits, Job, JobName};
use crate::ledger::Request;
use crate::run::{Outcome, RaisedAlarm, RunEnd, RunId};

/// Most jobs that are judged in one turn.
const JUDGED_A_TURN: usize = 200;
/// Most unanswered writes of alarms, so that a thousand alarms at once delay no begin.
const MOST_OPEN: usize = 50;

/// The jobs that have alarms, and when each is judged.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    watched: BTreeMap<JobName, Watched>,
    /// When each job is judged, unless it changes before.
    agenda: BTreeSet<(Timestamp, JobName)>,
    /// Jobs to judge as soon as possible.
    changed: BTreeSet<JobName>,
    /// Number of unanswered writes.
    open: usize,
    /// Jobs whose last success is to be read.
    unread: BTreeSet<JobName>,
    /// The job whose last success is being read: one at a time, so that a new leader does not flood the ledger.
    reading: Option<JobName>,
}

/// What is known of a job beyond its record and its runs in flight.
#[derive(Debug, Default)]
struct Watched {
    /// Its key in the agenda.
    next: Option<Timestamp>,
    /// The newest first start of a run that this leader saw.
    last_start: Option<FirstStart>,
    success: LastSuccess,
}

/// The start of a run that had not had a process before.
#[derive(Debug)]
struct FirstStart {
    run: RunId,
    due_at: Timestamp,
    lateness: Duration,
}

/// When the job last succeeded.
#[derive(Clone, Copy, Debug, Default)]
enum LastSuccess {
    /// It was not read yet.
    #[default]
    Unread,
    /// The end of the last run that succeeded; `None` if there is none.
    Read(Option<Timestamp>),
}

/// What a job's state says about one of its alarms.
#[derive(Debug)]
enum Verdict {
    Well,
    /// As it is: nothing tells otherwise.
    Unchanged,
    Wrong {
        /// From when the alarm's limit counted.
        since: Timestamp,
        run: Option<RunId>,
    },
}

impl LastSuccess {
    fn at(self) -> Option<Timestamp> {
        match self {
            Self::Unread => None,
            Self::Read(at) => at,
        }
    }
}

impl Alarms {
    /// Watches a job as it is in the book now, if it has alarms.
    pub fn watch(&mut self, name: &JobName, book: &Book) {
        let Some(timeline) = book.get(name) else { return self.forget(name) };
        let limits = limits(timeline);
        if limits.is_empty() && timeline.alarms.is_empty() {
            return self.forget(name);
        }
        self.watched.entry(name.clone()).or_default();
        self.changed.insert(name.clone());
        if limits.stale_after.is_some() {
            self.read_again(name);
        }
    }

    pub fn forget(&mut self, name: &JobName) {
        if let Some(Watched { next: Some(at), .. }) = self.watched.remove(name) {
            self.agenda.remove(&(at, name.clone()));
        }
        self.changed.remove(name);
        self.unread.remove(name);
    }

    /// Has the job judged: its runs, its record or its pause may have changed.
    pub fn mark_changed(&mut self, name: &JobName) {
        if self.watched.contains_key(name) {
            self.changed.insert(name.clone());
        }
    }

    pub fn on_started(&mut self, run: &RunId, due_at: Timestamp, lateness: Duration) {
        if let Some(watched) = self.watched.get_mut(run.job()) {
            watched.last_start = Some(FirstStart { run: run.clone(), due_at, lateness });
            self.changed.insert(run.job().clone());
        }
    }

    pub fn on_ended(&mut self, end: &RunEnd) {
        let Some(watched) = self.watched.get_mut(&end.run.job) else { return };
        self.changed.insert(end.run.job.clone());
        if end.outcome == Outcome::Success {
            watched.success = LastSuccess::Read(watched.success.at().max(Some(end.ended_at)));
        }
    }

    /// Has the job's last success read: this leader has not read it yet, or another node has ended a run since.
    pub fn read_again(&mut self, name: &JobName) {
        if self.watched.contains_key(name) {
            self.unread.insert(name.clone());
        }
    }

    /// Takes the end of the job's last run that succeeded, as read.
    pub fn on_success_read(&mut self, name: &JobName, at: Option<Timestamp>) {
        self.reading.take_if(|reading| reading == name);
        if let Some(watched) = self.watched.get_mut(name) {
            watched.success = LastSuccess::Read(watched.success.at().max(at));
            self.changed.insert(name.clone());
        }
    }

    /// Handles the answer to a write of alarms.
    pub fn on_answer(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// When a job is judged next if no job changes before.
    pub fn next_at(&self) -> Option<Timestamp> {
        let is_behind = !self.changed.is_empty() && self.open < MOST_OPEN;
        let next = self.agenda.first().map(|&(at, _)| at);
        if is_behind { Some(Timestamp::UNIX_EPOCH) } else { next }
    }

    /// Judges the jobs that have changed, and those whose time has come.
    pub fn act(&mut self, cx: &mut Context, runs: &Runs, book: &mut Book, pauses: &Pauses) {
        self.read_next(cx);
        while self.agenda.first().is_some_and(|&(at, _)| at <= cx.due)
            && let Some((_, name)) = self.agenda.pop_first()
        {
            if let Some(watched) = self.watched.get_mut(&name) {
                watched.next = None;
            }
            self.changed.insert(name);
        }
        for _ in 0..JUDGED_A_TURN {
            if self.open >= MOST_OPEN {
                return;
            }
            let Some(name) = self.changed.pop_first() else { return };
            self.judge(cx, runs, book, pauses, &name);
        }
    }

    fn read_next(&mut self, cx: &mut Context) {
        if self.reading.is_none()
            && let Some(name) = self.unread.pop_first()
        {
            cx.ledger(Request::ReadLastSuccess(name.clone()));
            self.reading = Some(name);
        }
    }

    /// Finds out how the job does, and writes what has changed.
    fn judge(&mut self, cx: &mut Context, runs: &Runs, book: &mut Book, pauses: &Pauses, name: &JobName) {
        // Judged again when the write in its way is answered.
        let is_in_the_way = book.has_too_many_open(name) || runs.is_refused(name);
        let Some(timeline) = book.decidable(name).filter(|_| !is_in_the_way) else { return };
        let Some(watched) = self.watched.get_mut(name) else { return };
        let limits = limits(timeline);
        let mut alarms = timeline.alarms.clone();
        let known = watched.success.at().max(alarms.stale_from);
        alarms.stale_from = limits.stale_after.map(|_| known.unwrap_or(cx.due));
        let judged = Judged { now: cx.due, timeline, watched, runs, is_paused: pauses.has(name) };
        let mut news = Vec::new();
        let mut next = None;
        for alarm in Alarm::ALL {
            let (verdict, at) = match limits.of(alarm) {
                Some(limit) => judged.verdict(alarm, limit, alarms.stale_from),
                None => (Verdict::Well, None),
            };
            next = next.into_iter().chain(at).min();
            let changed = match (verdict, alarms.get(alarm)) {
                (Verdict::Wrong { since, run }, None) => (RaisedAlarm { raised_at: cx.now.wall, since, run }, true),
                (Verdict::Well, Some(stood)) => (stood.clone(), false),
                (Verdict::Wrong { .. }, Some(_)) | (Verdict::Well, None) | (Verdict::Unchanged, _) => continue,
            };
            let (raised, stands) = changed;
            alarms.set(alarm, stands.then(|| raised.clone()));
            news.push(AlarmNews { job: name.clone(), alarm, raised, stands });
        }
        let is_first = timeline.alarms.stale_from.is_none() && alarms.stale_from.is_some();
        if is_first || !news.is_empty() {
            self.open += 1;
            book.write_alarms(cx, name, alarms, news);
        } else {
            // A later success alone is not worth a write. The next one of the job has it.
            timeline.alarms = alarms;
        }
        self.schedule(name, next);
    }

    fn schedule(&mut self, name: &JobName, at: Option<Timestamp>) {
        let Some(watched) = self.watched.get_mut(name) else { return };
        if let Some(old) = std::mem::replace(&mut watched.next, at) {
            self.agenda.remove(&(old, name.clone()));
        }
        self.agenda.extend(at.map(|at| (at, name.clone())));
    }
}

/// What a job is judged by.
struct Judged<'a> {
    now: Timestamp,
    timeline: &'a Timeline,
    watched: &'a Watched,
    runs: &'a Runs,
    is_paused: bool,
}

impl Judged<'_> {
    /// How the job does, and when it will be in for the alarm unless something changes.
    fn verdict(&self, alarm: Alarm, limit: Duration, stale_from: Option<Timestamp>) -> (Verdict, Option<Timestamp>) {
        let Some(job) = self.timeline.job.as_deref() else { return (Verdict::Well, None) };
        match alarm {
            Alarm::Late => self.late(job, limit),
            Alarm::Long => {
                let running = self.runs.longest_running(&job.name).map(|(since, run)| (since, Some(run)));
                self.exceeds(limit, running, Verdict::Well)
            }
            Alarm::Stale => match (self.watched.success, self.is_paused) {
                (LastSuccess::Unread, _) | (_, true) => (Verdict::Unchanged, None),
                (LastSuccess::Read(_), false) => {
                    self.exceeds(limit, stale_from.map(|from| (from, None)), Verdict::Well)
                }
            },
        }
    }

    fn late(&self, job: &Job, limit: Duration) -> (Verdict, Option<Timestamp>) {
        let undecided = if self.is_paused { None } else { job.next_after(self.timeline.mark) };
        let undecided =
            undecided.map(|at| (later(at, job.splay.delay()), Some(RunId::scheduled(job.name.clone(), at))));
        let to_start = self.runs.first_to_start(job).map(|(at, run)| (at, Some(run)));
        let otherwise = match &self.watched.last_start {
            None => Verdict::Unchanged,
            Some(FirstStart { lateness, .. }) if *lateness <= limit => Verdict::Well,
            Some(FirstStart { run, due_at, .. }) => Verdict::Wrong { since: *due_at, run: Some(run.clone()) },
        };
        self.exceeds(limit, to_start.into_iter().chain(undecided).min(), otherwise)
    }

    /// If the limit is over, counted from the first instant, that is wrong. If not, the verdict is `otherwise`.
    fn exceeds(
        &self,
        limit: Duration,
        from: Option<(Timestamp, Option<RunId>)>,
        otherwise: Verdict,
    ) -> (Verdict, Option<Timestamp>) {
        match from {
            None => (otherwise, None),
            Some((since, run)) if later(since, limit) <= self.now => (Verdict::Wrong { since, run }, None),
            Some((since, _)) => (otherwise, Some(later(since, limit))),
        }
    }
}

/// The limits of a job. One that is disabled or not defined any more has none.
fn limits(timeline: &Timeline) -> AlarmLimits {
    timeline.job.as_deref().map(|job| job.alarms).unwrap_or_default()
}
