//! One job's occurrences, as far as they are decided on, and the chain of commits that says so.
//!
//! A mark may lie ahead of the time: then occurrences before it may be hidden that nobody decided on, for years. Two things can be behind
//! that, and the record tells them apart, because leaders write beside the mark how far they counted.
//!
//! - The mark lies ahead of what was counted: no leader wrote it. Every begin moves both, so nothing later than what was counted was
//!   ever begun, and the job is counted on from there. The mark itself never goes back: it stays until it is passed.
//! - A leader wrote it: then time has gone back since, everywhere, because no leader decides further than a minute ahead of the coordination
//!   service's clock. What lies before the mark may have been run, and counting from now would run it twice, while a run that
//!   was skipped can be started by hand. So nothing is due before it, unless an operator removes the record.
//!
//! Both are errors that a human must see.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use crate::engine::commits::UnreportedSkip;
use crate::engine::report::MarkAhead;
use crate::job::{Job, JobName};
use crate::ledger::SkipWrite;
use crate::run::{Answer, JobRecord, Link, Skip, Version};

/// One job's occurrences, as far as they are decided on.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The definition; absent while the job is disabled or not defined.
    pub job: Option<Arc<Job>>,
    /// Of the job's record, once all commits asked for are accepted; absent: there is no record.
    pub version: Option<Version>,
    /// The mark, likewise.
    pub mark: Timestamp,
    /// The version and mark that are known to be written.
    pub written: (Option<Version>, Timestamp),
    /// The record's own mark, where it lies ahead of where the job is counted.
    pub ahead: Option<Timestamp>,
    /// The newest occurrence taken in: the mark, or the last of the backlog.
    pub cursor: Timestamp,
    /// Missed occurrences that wait to be made up, oldest first.
    pub backlog: VecDeque<Timestamp>,
    /// The newest skip record with its version, while neighbours may join it.
    pub skip: Option<(Version, Skip)>,
    /// Commits under way.
    pub open: usize,
    /// A commit was refused: the record is read once all others are answered, and nothing is decided until then.
    pub is_in_conflict: bool,
    /// Its place in the agenda.
    pub next: Option<Timestamp>,
    /// Its place among the backlogs to be looked at.
    pub looked_at: Option<Timestamp>,
    /// The job came to this node's file while its record was not read: what passed before is recorded as missed, and not run.
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
            cursor: mark,
            backlog: VecDeque::new(),
            skip: None,
            open: 0,
            is_in_conflict: false,
            next: None,
            looked_at: None,
            is_new,
        }
    }

    /// One more commit is asked for.
    pub fn step(&mut self, mark: Timestamp) {
        self.version = Some(self.version.map_or(Version::FIRST, Version::next));
        self.mark = mark;
        self.cursor = self.cursor.max(mark);
        self.open += 1;
    }

    /// Joins a skip to the newest record of the same reason, or makes a new one. The jobs that run after this one hear of what is new.
    pub fn join_skip(
        &mut self,
        skip: Option<UnreportedSkip>,
        dependents: &[JobName],
    ) -> (Option<UnreportedSkip>, Option<SkipWrite>) {
        let Some(mut unreported) = skip else { return (None, None) };
        let links = Link::of_skip(&unreported.skip, unreported.first, unreported.count, Answer::NotBegun, dependents);
        let before = self.skip.take().filter(|(_, skip)| skip.reason == unreported.skip.reason);
        let (at, now) = match before {
            Some((version, skip)) => {
                unreported.skip.first = skip.first;
                unreported.skip.count += skip.count;
                (Some(version), version.next())
            }
            None => (None, Version::FIRST),
        };
        self.skip = Some((now, unreported.skip.clone()));
        let skip = unreported.skip.clone();
        (Some(unreported), Some(SkipWrite { at, skip, links }))
    }

    /// What the job's record is to say at this mark: the mark, and how far is counted.
    pub fn marks(&self, mark: Timestamp) -> (Timestamp, Option<Timestamp>) {
        (self.ahead.map_or(mark, |ahead| ahead.max(mark)), Some(mark))
    }

    /// The mark, where it lies beyond `limit`.
    pub fn mark_ahead(&self, limit: Timestamp) -> Option<MarkAhead> {
        let (mark, is_ignored) = match self.ahead {
            Some(ahead) if ahead > self.mark => (ahead, true),
            _ => (self.mark, false),
        };
        (mark > limit).then_some(MarkAhead { mark, is_ignored })
    }
}

/// From where a job is counted, and its mark, where that lies further ahead.
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
}
