//! How a job does: what its state says about each of its alarms, and when that will change by itself.

use std::time::Duration;

use jiff::Timestamp;

use super::{FirstStart, Timeline, Watched, limits};
use crate::clock::{earlier, later};
use crate::engine::misfire;
use crate::engine::runs::Runs;
use crate::job::{Alarm, Job};
use crate::run::{RaisedAlarm, RunId};

/// What a job's state says about one of its alarms.
#[derive(Debug)]
pub(super) enum Verdict {
    Well,
    /// As it is: nothing tells otherwise.
    Unchanged,
    Wrong {
        /// From when the alarm's limit counted.
        since: Timestamp,
        run: Option<RunId>,
    },
}

/// What a job is judged by.
pub(super) struct Judged<'a> {
    pub now: Timestamp,
    pub timeline: &'a Timeline,
    pub watched: &'a Watched,
    /// From when `stale_after` counts.
    pub stale_from: Option<Timestamp>,
    pub runs: &'a Runs,
    pub is_paused: bool,
}

impl Judged<'_> {
    /// How the job does, and when it will be in for the alarm unless something changes.
    pub fn verdict(&self, alarm: Alarm) -> (Verdict, Option<Timestamp>) {
        let limit = limits(self.timeline).of(alarm);
        let (Some(job), Some(limit)) = (self.timeline.job.as_deref(), limit) else { return (Verdict::Well, None) };
        match alarm {
            Alarm::Late => self.late(job, limit),
            Alarm::Long => {
                let running = self.runs.longest_running(&job.name).map(|(since, run)| (since, Some(run)));
                self.exceeds(limit, running, Verdict::Well)
            }
            Alarm::Stale => self.stale(limit),
        }
    }

    fn late(&self, job: &Job, limit: Duration) -> (Verdict, Option<Timestamp>) {
        let undecided = self.first_undecided(job).map(|at| {
            let run = RunId::scheduled(job.name.clone(), at);
            (later(at, job.splay.delay()), Some(run))
        });
        let to_start = self.runs.first_to_start(job).map(|(at, run)| (at, Some(run)));
        self.exceeds(limit, to_start.into_iter().chain(undecided).min(), self.last_start())
    }

    /// What the newest start says. That of the run for which the alarm was raised says nothing more: it was late.
    fn last_start(&self) -> Verdict {
        let stands_for = |run: &RunId| self.stood(Alarm::Late).is_some_and(|stood| stood.run.as_ref() == Some(run));
        match &self.watched.last_start {
            None => Verdict::Unchanged,
            Some(FirstStart { run, .. }) if stands_for(run) => Verdict::Unchanged,
            Some(FirstStart { was_late: false, .. }) => Verdict::Well,
            Some(FirstStart { run, due_at, .. }) => Verdict::Wrong { since: *due_at, run: Some(run.clone()) },
        }
    }

    /// The first occurrence that is not decided on yet, and that will have a run. What was missed may be skipped. If the
    /// job's mark is in the future, it is the first that the mark hides.
    fn first_undecided(&self, job: &Job) -> Option<Timestamp> {
        if self.is_paused {
            return None;
        }
        if let Some(&at) = self.timeline.backlog.front() {
            return Some(at);
        }
        if let Some(since) = self.watched.hidden_since {
            return job.next_after(since);
        }
        let now = earlier(self.now, job.splay.delay());
        let first = job.next_after(self.timeline.mark)?;
        let missed_until = earlier(now, misfire::LATE);
        if first >= missed_until {
            return Some(first);
        }
        let made_up = misfire::plan(job, self.timeline.cursor, now).run.first().copied();
        made_up.or_else(|| job.next_after(missed_until))
    }

    fn stale(&self, limit: Duration) -> (Verdict, Option<Timestamp>) {
        let success = self.watched.success;
        let succeeded = success.at(self.now);
        let counts = success.is_current && !self.is_paused;
        match self.stood(Alarm::Stale) {
            // It ends with a success, and not because its time starts again.
            Some(stood) if succeeded.is_some_and(|at| at > stood.since || stood.since > self.now) => {
                (Verdict::Well, None)
            }
            Some(_) => (Verdict::Unchanged, None),
            None if counts => self.exceeds(limit, self.stale_from.map(|from| (from, None)), Verdict::Well),
            None => (Verdict::Unchanged, None),
        }
    }

    fn stood(&self, alarm: Alarm) -> Option<&RaisedAlarm> {
        self.timeline.alarms.get(alarm)
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
