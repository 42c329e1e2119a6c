//! One job's occurrences, as far as they are decided on, and the chain of commits that says so.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;

use crate::engine::Told;
use crate::job::{Job, JobName};
use crate::ledger::SkipWrite;
use crate::run::{Answer, Link, Skip, Version};

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
    /// One more commit is asked for.
    pub fn step(&mut self, mark: Timestamp) {
        self.version = Some(self.version.map_or(Version::FIRST, Version::next));
        self.mark = mark;
        self.cursor = self.cursor.max(mark);
        self.open += 1;
    }

    /// Joins a skip to the newest record of the same reason, or makes a new one. The jobs that run after this one hear of what is new.
    pub fn join_skip(&mut self, told: Option<Told>, dependents: &[JobName]) -> (Option<Told>, Option<SkipWrite>) {
        let Some(mut told) = told else { return (None, None) };
        let links = Link::of_skip(&told.skip, told.first, told.count, Answer::NotBegun, dependents);
        let before = self.skip.take().filter(|(_, skip)| skip.reason == told.skip.reason);
        let (at, now) = match before {
            Some((version, skip)) => {
                told.skip.first = skip.first;
                told.skip.count += skip.count;
                (Some(version), version.next())
            }
            None => (None, Version::FIRST),
        };
        self.skip = Some((now, told.skip.clone()));
        let skip = told.skip.clone();
        (Some(told), Some(SkipWrite { at, skip, links }))
    }
}
