//! Counting a job from now on again, after leaders whose clocks were ahead decided on what is yet to come.
//!
//! Such a job is silent until the time that its record says it is counted to. An operator may have it counted from now on
//! again. What was decided on while the clocks were ahead keeps its record: the new record of the job lists these
//! occurrences, and nobody decides on them a second time when they come. So all of them must be known. The history is
//! trimmed, the runs that ended first before the others; [`Decisions`] tells whether one of them may be missing.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{HistoryRecord, JobRecord, Nonce, RunId};
use crate::clock::{AHEAD, instant, later};

/// Most occurrences that a job's record lists.
pub const MOST_LISTED: usize = 100;
/// A job that would stay silent for longer than this after a recount is not recounted.
const LONGEST_SILENCE: SignedDuration = SignedDuration::from_hours(24);
/// Begins the nonce of a record that an operator had counted from another time, and that no leader has written since.
const NONCE: &str = "recount-";

/// What a recount left in the record of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recount {
    /// Who had the job recounted.
    pub by: String,
    /// How far the job was counted before: the ledger has no decision about an occurrence after this one. If there were
    /// several recounts, the furthest of them.
    pub until: Timestamp,
    /// The occurrences after the count that were decided on before the recount, oldest first; at most [`MOST_LISTED`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub listed: Vec<Timestamp>,
}

impl Recount {
    /// True if the occurrence was decided on before the recount.
    pub fn lists(&self, at: Timestamp) -> bool {
        self.listed.contains(&at)
    }

    /// The same once the job is counted to `count`.
    #[must_use]
    pub fn after(&self, count: Timestamp) -> Self {
        let listed = self.listed.iter().copied().filter(|&at| at > count).collect();
        Self { by: self.by.clone(), until: self.until, listed }
    }
}

/// An operator's request to count a job from now on again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecountRequest {
    /// Identifies the write.
    pub id: Uuid,
    /// Who asks.
    pub by: String,
    /// The time from which the job is to be counted, by the ledger's clock.
    pub at: Timestamp,
    /// The job's `history_limit`: with fewer runs in the history, none has been trimmed.
    pub history_limit: usize,
}

/// What a recount has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recounted {
    /// The time from which the job is counted.
    pub from: Timestamp,
    /// The later occurrences that are not decided on again, oldest first.
    pub listed: Vec<Timestamp>,
    /// Runs in flight that were begun for occurrences which are yet to come.
    pub in_flight: Vec<RunId>,
}

/// Why a job is not recounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRecounted {
    /// It has no record.
    #[error("no leader has counted it yet, so nothing keeps it silent")]
    Uncounted,
    /// Its record cannot be read.
    #[error("its record in the ledger cannot be read: {0}")]
    Unreadable(String),
    /// It is counted to a time that has come.
    #[error("it already counts correctly: its last-scheduled time ({}) is not in the future", instant(*.0))]
    NotAhead(Timestamp),
    /// Not all occurrences are known that were decided on.
    #[error(
        "its history does not reach back to before the clock was ahead, so it is not known which of its occurrences \
         until {} have already run; {}",
        instant(*.until), remedy(*.until, *.now)
    )]
    Trimmed {
        /// It is silent until then.
        until: Timestamp,
        now: Timestamp,
    },
    /// More occurrences were decided on than a record lists.
    #[error(
        "{known} of its occurrences until {} were decided on while the clock was ahead, more than can be noted; {}",
        instant(*.until), remedy(*.until, *.now)
    )]
    TooMany {
        known: usize,
        /// It is silent until then.
        until: Timestamp,
        now: Timestamp,
    },
}

/// What an operator can do about a job that is silent until this time.
fn remedy(until: Timestamp, now: Timestamp) -> &'static str {
    match until.duration_since(now) <= LONGEST_SILENCE {
        true => "it runs again by itself after that time",
        false => "to have it run before that time, give it another name",
    }
}

/// What the runs in flight and the history tell about the decisions on a job.
#[derive(Debug, Default)]
pub struct Decisions {
    /// The occurrences that have a record: those of runs, and the first of those that a skip record is about.
    occurrences: BTreeSet<Timestamp>,
    /// The latest occurrence that a record is about.
    latest: Option<Timestamp>,
    /// When the runs of the history were due, and when they ended.
    ends: Vec<(Timestamp, Timestamp)>,
    in_flight: Vec<RunId>,
    /// Number of runs in the history, triggered ones too.
    runs: usize,
}

impl Decisions {
    /// Adds a run in flight.
    pub fn add_in_flight(&mut self, run: RunId) {
        self.add_occurrence(&run, run.scheduled_at());
        self.in_flight.extend(run.trigger().is_none().then_some(run));
    }

    /// Adds a record of the history.
    pub fn add_record(&mut self, record: &HistoryRecord) {
        let run = record.id();
        match record {
            HistoryRecord::Run(end) => {
                self.runs += 1;
                self.add_occurrence(&run, run.scheduled_at());
                self.ends.extend(run.trigger().is_none().then_some((run.scheduled_at(), end.ended_at)));
            }
            HistoryRecord::Skip(skip) => self.add_occurrence(&run, skip.last),
        }
    }

    /// Adds a record of the history that cannot be read. It counts as that of a run.
    pub fn add_unreadable(&mut self, run: &RunId) {
        self.runs += 1;
        self.add_occurrence(run, run.scheduled_at());
    }

    fn add_occurrence(&mut self, run: &RunId, last: Timestamp) {
        if run.trigger().is_none() {
            self.occurrences.insert(run.scheduled_at());
            self.latest = self.latest.max(Some(last));
        }
    }

    /// True if no run of an occurrence after `now` can have been trimmed.
    ///
    /// That is so if the history is not full, or if it has two runs of occurrences before `now`, and one of them had
    /// ended when the other was due: that end was written before the clock was ahead, so whatever ended before it was
    /// begun before, too. The furthest occurrence that was decided on must have a record in any case, or records were
    /// removed.
    fn are_complete(&self, now: Timestamp, history_limit: usize) -> bool {
        if self.runs < history_limit {
            return true;
        }
        let past = || self.ends.iter().filter(|(due, ended)| *due <= now && *ended <= now);
        let has_older = past()
            .min_by_key(|(_, ended)| *ended)
            .is_some_and(|(first_due, first_ended)| past().any(|(due, _)| due > first_due && due >= first_ended));
        has_older && self.latest > Some(now)
    }
}

impl JobRecord {
    /// How far leaders have counted the job.
    pub fn count(&self) -> Timestamp {
        self.counted.unwrap_or(self.last_scheduled).min(self.last_scheduled)
    }

    /// The request of an operator that this record is the result of, if no leader has written it since.
    pub fn fresh_recount(&self) -> Option<&Recount> {
        self.recount.as_deref().filter(|_| self.nonce.0.starts_with(NONCE))
    }

    /// The count with which the digest of the schedule was computed.
    pub fn digested_at(&self) -> Timestamp {
        self.fresh_recount().map_or(self.counted.unwrap_or(self.last_scheduled), |recount| recount.until)
    }

    /// The record of the same job when an operator has it counted from now on again.
    ///
    /// # Errors
    /// If the job is not counted to a time in the future, or if an occurrence could be decided on a second time.
    pub fn recounted(self, decisions: &Decisions, request: &RecountRequest) -> Result<(Self, Recounted), NotRecounted> {
        let (now, until) = (request.at, self.count());
        if until <= later(now, AHEAD.unsigned_abs()) {
            return Err(NotRecounted::NotAhead(until));
        }
        if !decisions.are_complete(now, request.history_limit) {
            return Err(NotRecounted::Trimmed { until, now });
        }
        let before = self.recount.as_deref();
        // What an earlier recount listed, and the count has passed, is no longer known.
        let floor = before.map_or(now, |recount| recount.until.min(until)).max(now);
        let listed = before.into_iter().flat_map(|recount| &recount.listed);
        let known: BTreeSet<Timestamp> = decisions.occurrences.iter().chain(listed).copied().collect();
        let mut listed: Vec<Timestamp> = known.into_iter().filter(|&at| at > floor).collect();
        let surplus = listed.len().saturating_sub(MOST_LISTED);
        let from = surplus.checked_sub(1).map_or(floor, |last| listed[last]);
        if from >= until || from.duration_since(now) > LONGEST_SILENCE {
            let known = listed.len();
            return Err(match surplus {
                0 => NotRecounted::Trimmed { until, now },
                _ => NotRecounted::TooMany { known, until, now },
            });
        }
        listed.drain(..surplus);
        let recount = Recount {
            by: request.by.clone(),
            until: before.map_or(until, |recount| recount.until.max(until)),
            listed: listed.clone(),
        };
        let in_flight = decisions.in_flight.iter().filter(|run| run.scheduled_at() > now).cloned().collect();
        let nonce = Nonce(format!("{NONCE}{}", request.id));
        let record = Self { counted: Some(from), recount: Some(Box::new(recount)), nonce, ..self };
        Ok((record, Recounted { from, listed, in_flight }))
    }
}

#[cfg(test)]
mod tests;
