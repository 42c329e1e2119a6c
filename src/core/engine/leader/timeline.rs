//! One job's timeline: its mark, its backlog, and its unanswered writes.
//!
//! A mark may be in the future. It may then hide occurrences that nobody decided on, for years. There are two possible
//! causes, and the record distinguishes them, because leaders write beside the mark how far they have counted.
//!
//! - The mark is later than the count: no leader wrote it. Every begin moves both, so no occurrence after the count was
//!   ever begun, and the job is counted on from there. The mark itself never moves back: it stays until it is passed.
//! - A leader wrote it, so time has gone back since, everywhere: no leader decides further than a minute ahead of the
//!   coordination service's clock. Occurrences before the mark may have been run, and counting from now would run them
//!   twice, while a run that was skipped can be started by hand. So no occurrence before the mark is due, unless an
//!   operator has the job recounted: then it is counted from that time on, and the record lists the later occurrences that
//!   were decided on before. The mark moves over these without a decision.
//!
//! Both are errors that a human must see, until the job is recounted.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::engine::clocks::AHEAD;
use crate::engine::commits::UnreportedSkip;
use crate::engine::misfire::{Missed, NANOSECOND};
use crate::engine::report::MarkAhead;
use crate::job::{Job, JobName};
use crate::ledger::SkipWrite;
use crate::run::{JobRecord, Link, Nonce, Recount, Skip, StandingAlarms, UpstreamResult, Version};

/// One job's occurrences, as far as they are decided on.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The definition; absent while the job is disabled or not defined.
    pub job: Option<Arc<Job>>,
    /// Version of the job's record once all requested commits are accepted; absent: there is no record.
    pub version: Option<Version>,
    /// The mark once all requested commits are accepted.
    pub mark: Timestamp,
    /// The version that is known to be in the ledger, and the newest mark that is known to have been there: until then
    /// all is decided, also if the service has lost that.
    pub written: (Option<Version>, Timestamp),
    /// The mark in the record, if it is later than the count.
    pub ahead: Option<Timestamp>,
    /// What operators' recounts have left. Lists all occurrences after the mark that is known to be in the ledger: if later
    /// writes are rejected, the job is counted from there again.
    pub recount: Option<Box<Recount>>,
    /// The record of the last recount that was read, by its nonce: it counts once.
    pub recounted: Option<Nonce>,
    /// The newest occurrence taken in: the mark, or the last one of the backlog.
    pub cursor: Timestamp,
    /// Missed occurrences that wait to be made up, oldest first.
    pub backlog: VecDeque<Timestamp>,
    /// The alarms that the next write of the record states.
    pub alarms: StandingAlarms,
    /// The alarms that are known to be in the ledger.
    pub written_alarms: StandingAlarms,
    /// The newest skip record with its version, while neighbouring occurrences may join it.
    pub skip: Option<Box<(Version, Skip)>>,
    /// Its attempts were placed once: its record says so.
    pub was_placed: bool,
    /// Its attempts are placed, so it is in the agenda of those jobs.
    pub is_placed: bool,
    /// Number of unanswered writes.
    pub open: usize,
    /// A write was rejected. Once all others are answered the record is read; until then nothing is decided.
    pub is_in_conflict: bool,
    /// The definitions that were replaced since the record was written, oldest first: the first one wrote it. Each has the
    /// number of writes that were made by it and are unanswered.
    pub replaced: VecDeque<(usize, Option<Arc<Job>>)>,
    /// The end of a pause was rejected, so nothing is known to be in the way of the next occurrence's run.
    pub is_pause_in_doubt: bool,
    /// The job's key in the agenda.
    pub next: Option<Timestamp>,
    /// The job's key among the backlogs to check.
    pub check_at: Option<Timestamp>,
    /// The job was added to this node's file and its record has not been written since: earlier occurrences are
    /// recorded as missed.
    pub is_new: bool,
}

impl Timeline {
    /// A timeline that is counted from the mark of a record, or from now.
    pub fn new(job: Option<Arc<Job>>, version: Option<Version>, counted: Counted, is_new: bool) -> Self {
        let Counted { from: mark, ahead } = counted;
        Self {
            job,
            version,
            mark,
            written: (version, mark),
            ahead,
            recount: None,
            recounted: None,
            cursor: mark,
            backlog: VecDeque::new(),
            alarms: StandingAlarms::default(),
            written_alarms: StandingAlarms::default(),
            skip: None,
            was_placed: false,
            is_placed: false,
            open: 0,
            is_in_conflict: false,
            replaced: VecDeque::new(),
            is_pause_in_doubt: false,
            next: None,
            check_at: None,
            is_new,
        }
    }

    /// True if all that was decided is in the ledger, and nothing waits to be decided on.
    pub fn is_settled(&self) -> bool {
        self.open == 0 && self.backlog.is_empty() && self.cursor == self.mark
    }

    /// True if a record of this version, as read, was written by somebody else after all writes of the leader.
    pub fn was_replaced(&self, version: Version) -> bool {
        self.open == 0 && self.written.0.is_none_or(|written| written < version)
    }

    /// True if an operator had the job recounted by this record, and the leader has not read that before.
    pub fn is_recounted_by(&self, record: &JobRecord) -> bool {
        record.fresh_recount().is_some() && self.recounted.as_ref() != Some(&record.nonce)
    }

    /// Records that one more write is requested.
    pub fn step(&mut self, mark: Timestamp) {
        self.version = Some(self.version.map_or(Version::FIRST, Version::next));
        self.mark = mark;
        self.cursor = self.cursor.max(mark);
        self.open += 1;
    }

    /// Records that the ledger has a mark, in the next version of the record.
    pub fn on_written(&mut self, mark: Timestamp) {
        self.written = (Some(self.written.0.map_or(Version::FIRST, Version::next)), mark);
        while let Some((writes, _)) = self.replaced.front_mut() {
            if *writes > 0 {
                *writes -= 1;
                break;
            }
            self.replaced.pop_front();
        }
        self.recount = self.recount_after(mark);
        self.is_new = false;
    }

    /// Takes another definition, and returns the one before.
    pub fn redefine(&mut self, new: Option<Arc<Job>>) -> Option<Arc<Job>> {
        let old = std::mem::replace(&mut self.job, new);
        let earlier: usize = self.replaced.iter().map(|(writes, _)| writes).sum();
        let writes = self.open.saturating_sub(earlier);
        // A definition that wrote nothing is not needed.
        if writes > 0 || self.replaced.is_empty() {
            self.replaced.push_back((writes, old.clone()));
        }
        old
    }

    /// The definition by which the record was written that is known to be in the ledger.
    pub fn written_by(&self) -> Option<&Job> {
        self.replaced.front().map_or(&self.job, |(_, job)| job).as_deref()
    }

    fn recount_after(&self, mark: Timestamp) -> Option<Box<Recount>> {
        self.recount.as_ref().map(|recount| Box::new(recount.after(mark)))
    }

    /// True if the occurrence was decided on before an operator had the job recounted.
    pub fn was_decided(&self, at: Timestamp) -> bool {
        self.recount.as_ref().is_some_and(|recount| recount.lists(at))
    }

    /// These occurrences without those that were decided on before a recount, which have records of their own.
    pub fn undecided(&self, missed: Missed) -> Option<Missed> {
        let Some(recount) = &self.recount else { return Some(missed) };
        let Missed { mut first, mut last, count } = missed;
        let decided = recount.listed.iter().filter(|at| (first..=last).contains(*at)).count();
        if decided == 0 {
            return Some(missed);
        }
        let job = self.job.as_ref()?;
        while recount.lists(first) {
            first = job.next_after(first).filter(|&next| next <= last)?;
        }
        while recount.lists(last) {
            last = job.last_before_or_at(earlier(last, NANOSECOND), earlier(first, NANOSECOND))?;
        }
        let count = count.saturating_sub(u64::try_from(decided).unwrap_or(u64::MAX)).max(1);
        Some(Missed { first, last, count })
    }

    /// The mark as it counts at `now`: nothing is due before it. Occurrences right after it that were decided on before a
    /// recount belong to what has passed.
    pub fn idle_until(&self, now: Timestamp) -> Timestamp {
        let recount = self.recount.as_ref().filter(|recount| !recount.listed.is_empty());
        let (Some(recount), Some(job)) = (recount, &self.job) else { return self.mark };
        let (mut mark, mut from) = (self.mark, self.mark.max(now));
        while let Some(next) = job.next_after(from).filter(|&next| recount.lists(next)) {
            (mark, from) = (next, next);
        }
        mark
    }

    /// Joins a skip to the newest record of the same reason, or creates a record. The job's dependents receive links
    /// for the new occurrences.
    pub fn join_skip(
        &mut self,
        skip: Option<UnreportedSkip>,
        dependents: &[JobName],
    ) -> (Option<UnreportedSkip>, Option<SkipWrite>) {
        let Some(mut unreported) = skip else { return (None, None) };
        let links =
            Link::of_skip(&unreported.skip, unreported.first, unreported.count, UpstreamResult::NotBegun, dependents);
        let before = self.skip.take().map(|before| *before).filter(|(_, skip)| skip.reason == unreported.skip.reason);
        let at = unreported.join(before);
        self.skip = Some(Box::new((at.map_or(Version::FIRST, Version::next), unreported.skip.clone())));
        let skip = unreported.skip.clone();
        (Some(unreported), Some(SkipWrite { at, skip, links }))
    }

    /// Counts the time without success from now on, at the earliest: until now none was to be expected.
    pub fn count_success_from(&mut self, now: Timestamp) {
        if self.job.as_ref().is_some_and(|job| job.alarms.stale_after.is_some()) {
            self.alarms.stale_from = self.alarms.stale_from.max(Some(now));
        }
    }

    /// The job's record at this mark.
    pub fn record(&self, mark: Timestamp, nonce: Nonce) -> JobRecord {
        JobRecord {
            v: 1,
            last_scheduled: self.ahead.map_or(mark, |ahead| ahead.max(mark)),
            counted: Some(mark),
            recount: self.recount_after(mark),
            schedule: self.job.as_deref().map(|job| job.schedule_digest(mark)),
            alarms: self.alarms.clone(),
            placed: self.was_placed,
            nonce,
        }
    }

    /// The mark, if it is later than `limit`.
    pub fn mark_ahead(&self, limit: Timestamp) -> Option<MarkAhead> {
        Counted { from: self.mark, ahead: self.ahead }.mark_ahead(self.recount.is_some(), limit)
    }
}

impl MarkAhead {
    /// The mark of a record that is in the future at `latest`, for one who does not lead.
    pub fn of(record: &JobRecord, latest: Timestamp) -> Option<Self> {
        Counted::of(record).mark_ahead(record.recount.is_some(), later(latest, AHEAD.unsigned_abs()))
    }
}

/// The instant from which a job is counted, and its mark if that is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub from: Timestamp,
    pub ahead: Option<Timestamp>,
}

impl Counted {
    pub fn of(record: &JobRecord) -> Self {
        let mark = record.last_scheduled;
        match record.counted.filter(|&counted| counted < mark) {
            Some(from) => Self { from, ahead: Some(mark) },
            None => Self { from: mark, ahead: None },
        }
    }

    /// The mark, if it is later than `limit`. After a recount only how far the job is counted tells something.
    pub fn mark_ahead(self, is_recounted: bool, limit: Timestamp) -> Option<MarkAhead> {
        let (mark, is_ignored) = match self.ahead {
            Some(ahead) if ahead > self.from && !is_recounted => (ahead, true),
            _ => (self.from, false),
        };
        (mark > limit).then_some(MarkAhead { mark, is_ignored })
    }
}
