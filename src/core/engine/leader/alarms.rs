//! Alarms: jobs that start late, run long, or have not succeeded for long.
//!
//! ```text
//!   clock, runs, successes ─► judged ─► jobs/<job> ─► accepted ─► event and hook
//! ```
//!
//! An alarm is raised once. It is in the job's record until the job is well again, so that a new leader neither
//! raises it again nor forgets it. Its event and its hook follow once the ledger has it, as those of runs do.
//!
//! - `late` is raised while a run waits to start, or when one has started too late. It ends when another starts in
//!   time.
//! - `long` ends with the attempt.
//! - `stale` ends with a success. A paused job does not become stale, and the time without success starts again when
//!   the pause ends, or when a disabled job is enabled.
//!
//! An alarm ends too when its key is removed, or its job disabled.

mod verdict;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use self::verdict::{Judged, Verdict};
use super::book::Book;
use super::pauses::Pauses;
use super::timeline::Timeline;
use crate::clock::later;
use crate::engine::clocks::AHEAD;
use crate::engine::context::Context;
use crate::engine::report::{AlarmChange, AlarmNews};
use crate::engine::runs::Runs;
use crate::job::{Alarm, AlarmLimits, JobName};
use crate::ledger::{LastSuccess, Request};
use crate::run::{LONGEST_HOLD, Outcome, RaisedAlarm, RunEnd, RunId, StandingAlarms};

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
    /// Jobs whose alarms are being written.
    open: BTreeSet<JobName>,
    /// Jobs whose last success is to be read.
    unread: BTreeSet<JobName>,
    /// Jobs whose last success is being read, in one request. The next one follows its answer.
    reading: BTreeSet<JobName>,
}

/// What is known of a job beyond its record and its runs in flight.
#[derive(Debug, Default)]
struct Watched {
    /// Its key in the agenda.
    next: Option<Timestamp>,
    /// The newest first start of a run that this leader saw.
    last_start: Option<FirstStart>,
    success: KnownSuccess,
    /// Since when the job's mark has been in the future, because the clock was set back: what is due before the mark has
    /// no run.
    hidden_since: Option<Timestamp>,
}

impl Watched {
    /// Takes the job's mark, which may hide what is due from now on. It is a moment ahead of what was begun ahead.
    fn note_mark(&mut self, mark: Timestamp, now: Timestamp) {
        let is_hiding = mark > later(now, LONGEST_HOLD);
        self.hidden_since = is_hiding.then(|| self.hidden_since.map_or(now, |since| since.min(now)));
    }
}

/// The start of a run that had not had a process before.
#[derive(Debug)]
pub(super) struct FirstStart {
    run: RunId,
    due_at: Timestamp,
    /// By the limit that held then.
    was_late: bool,
}

impl FirstStart {
    pub fn of(run: RunId, due_at: Timestamp, was_late: bool) -> Self {
        Self { run, due_at, was_late }
    }
}

/// When the job last succeeded, as far as is known.
#[derive(Clone, Copy, Debug, Default)]
struct KnownSuccess {
    at: Option<Timestamp>,
    /// It was read, and no other node has ended a run of the job since.
    is_current: bool,
}

impl Alarms {
    /// Watches a job as it is in the book now, if it has alarms.
    pub fn watch(&mut self, name: &JobName, book: &Book) {
        let Some(timeline) = book.get(name) else { return self.forget(name) };
        let limits = limits(timeline);
        if limits.is_empty() && timeline.alarms.is_empty() {
            return self.forget(name);
        }
        let watched = self.watched.entry(name.clone()).or_default();
        if limits.stale_after.is_some() && !watched.success.is_current {
            self.unread.insert(name.clone());
        }
        self.changed.insert(name.clone());
    }

    pub fn forget(&mut self, name: &JobName) {
        if let Some(Watched { next: Some(at), .. }) = self.watched.remove(name) {
            self.agenda.remove(&(at, name.clone()));
        }
        self.unread.remove(name);
        self.changed.remove(name);
    }

    /// Has the job judged: its runs, its record or its pause may have changed.
    pub fn mark_changed(&mut self, name: &JobName) {
        if self.watched.contains_key(name) {
            self.changed.insert(name.clone());
        }
    }

    /// Has all jobs judged: the clock was set back.
    pub fn mark_all_changed(&mut self) {
        self.changed.extend(self.watched.keys().cloned());
    }

    /// Handles the start of an attempt; `first`: no attempt of its run had a process before.
    pub fn on_started(&mut self, name: &JobName, first: Option<FirstStart>) {
        if let Some(watched) = self.watched.get_mut(name) {
            watched.last_start = first.or(watched.last_start.take());
            self.changed.insert(name.clone());
        }
    }

    pub fn on_ended(&mut self, cx: &Context, end: &RunEnd) {
        let Some(watched) = self.watched.get_mut(&end.run.job) else { return };
        self.changed.insert(end.run.job.clone());
        if end.outcome == Outcome::Success {
            watched.success.learn(end.ended_at, cx.due);
        }
    }

    /// Another node has ended a run of the job: its last success is read again, if an alarm depends on it.
    pub fn read_again(&mut self, name: &JobName, book: &Book) {
        let Some(watched) = self.watched.get_mut(name) else { return };
        watched.success.is_current = false;
        if book.get(name).is_some_and(|timeline| limits(timeline).stale_after.is_some()) {
            self.unread.insert(name.clone());
        }
    }

    /// Takes when jobs last succeeded, as read.
    pub fn on_successes_read(&mut self, cx: &Context, found: BTreeMap<JobName, LastSuccess>) {
        self.reading.clear();
        for (name, found) in found {
            let Some(watched) = self.watched.get_mut(&name) else { continue };
            match found {
                // Further ahead than any node's clock may be, it says nothing: the clocks have gone back since.
                LastSuccess::At(at) if at <= later(cx.due, AHEAD.unsigned_abs()) => watched.success.learn(at, cx.due),
                LastSuccess::At(_) | LastSuccess::Never => {}
                // Then nothing says that the job is stale.
                LastSuccess::Unreadable => continue,
            }
            watched.success.is_current = !self.unread.contains(&name);
            self.changed.insert(name);
        }
    }

    /// Handles the answer to a write of the job's alarms, or that the service refuses it for now.
    pub fn on_answer(&mut self, name: &JobName) {
        self.open.remove(name);
    }

    /// When a job is judged next if no job changes before.
    pub fn next_at(&self) -> Option<Timestamp> {
        let is_behind = !self.changed.is_empty() && self.open.len() < MOST_OPEN;
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
            if self.open.len() >= MOST_OPEN {
                return;
            }
            let Some(name) = self.changed.pop_first() else { return };
            self.judge(cx, runs, book, pauses, &name);
        }
    }

    fn read_next(&mut self, cx: &mut Context) {
        if self.reading.is_empty() && !self.unread.is_empty() {
            self.reading = std::mem::take(&mut self.unread);
            cx.ledger(Request::ReadLastSuccesses(self.reading.clone()));
        }
    }

    /// Finds out how the job does, and writes what has changed.
    fn judge(&mut self, cx: &mut Context, runs: &Runs, book: &mut Book, pauses: &Pauses, name: &JobName) {
        // Judged again when the write in its way is answered.
        let is_in_the_way = book.has_too_many_open(name) || runs.is_refused(name);
        let Some(timeline) = book.decidable(name).filter(|_| !is_in_the_way) else { return };
        let Some(watched) = self.watched.get_mut(name) else { return };
        watched.note_mark(timeline.mark, cx.due);
        let mut alarms = timeline.alarms.clone();
        alarms.stale_from = stale_from(timeline, watched.success, cx.due);
        let is_paused = pauses.has(name);
        let judged = Judged { now: cx.due, timeline, watched, stale_from: alarms.stale_from, runs, is_paused };
        let (mut news, mut next) = (Vec::new(), None);
        for alarm in Alarm::ALL {
            let (verdict, at) = judged.verdict(alarm);
            next = next.into_iter().chain(at).min();
            news.extend(change(name, alarm, verdict, &mut alarms, cx.now.wall));
        }
        let is_first = timeline.alarms.stale_from.is_none() && alarms.stale_from.is_some();
        if is_first || !news.is_empty() {
            self.open.insert(name.clone());
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

impl KnownSuccess {
    /// Takes a success. The clock of the node that recorded it may be ahead: then it was now.
    fn learn(&mut self, at: Timestamp, now: Timestamp) {
        self.at = self.at(now).max(Some(at.min(now)));
    }

    /// When it was. One in the future counts as none: the clock was set back since.
    fn at(&self, now: Timestamp) -> Option<Timestamp> {
        self.at.filter(|&at| at <= now)
    }
}

/// Applies a verdict. Returns what it changes.
fn change(
    name: &JobName,
    alarm: Alarm,
    verdict: Verdict,
    alarms: &mut StandingAlarms,
    now: Timestamp,
) -> Option<AlarmNews> {
    let (raised, change) = match (verdict, alarms.get(alarm)) {
        (Verdict::Wrong { since, run }, None) => (RaisedAlarm { raised_at: now, since, run }, AlarmChange::Raised),
        (Verdict::Well, Some(stood)) => (stood.clone(), AlarmChange::Ended),
        (Verdict::Wrong { .. }, Some(_)) | (Verdict::Well, None) | (Verdict::Unchanged, _) => return None,
    };
    alarms.set(alarm, (change == AlarmChange::Raised).then(|| raised.clone()));
    Some(AlarmNews { job: name.clone(), alarm, raised, change })
}

/// From when `stale_after` counts: the last success or, if none is known once it was read, now.
fn stale_from(timeline: &Timeline, success: KnownSuccess, now: Timestamp) -> Option<Timestamp> {
    limits(timeline).stale_after?;
    let known = timeline.alarms.stale_from.map(|from| from.min(now)).max(success.at(now));
    if success.is_current { known.or(Some(now)) } else { known }
}

/// The limits of a job. One that is disabled or not defined any more has none.
fn limits(timeline: &Timeline) -> AlarmLimits {
    timeline.job.as_deref().map(|job| job.alarms).unwrap_or_default()
}
