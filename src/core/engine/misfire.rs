//! Policy for occurrences that no leader decided on in time (`misfire`, `misfire_window`, `misfire_limit`).
//!
//! A pure function of the job, its mark and the time of day. Its cost is bounded however old the mark is.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{earlier, later};
use crate::job::{Job, Misfire};

/// An occurrence that is later than this is missed.
pub const LATE: Duration = Duration::from_secs(1);
/// The longest misfire window of a job that does not set one.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(12 * 3600);

/// Minimum validity of a trigger of a job without `misfire_window`, so that a failover does not lose it.
pub(super) const LEAST_AGE: Duration = Duration::from_secs(60);

/// Resolution of a trigger's time of creation.
pub(super) const STAMP: Duration = Duration::from_secs(1);

/// Resolution of instants.
pub(super) const NANOSECOND: Duration = Duration::from_nanos(1);

/// A sequence of missed occurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    pub first: Timestamp,
    pub last: Timestamp,
    pub count: u64,
}

impl Missed {
    /// A single occurrence.
    pub fn one(at: Timestamp) -> Self {
        Self { first: at, last: at, count: 1 }
    }
}

/// Decision on the missed occurrences of a job. All skipped ones come before those that are run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Occurrences to record as missed.
    pub skipped: Option<Missed>,
    /// Occurrences to run, oldest first.
    pub run: Vec<Timestamp>,
}

/// Decides on the occurrences of `job` after `mark` that are more than [`LATE`] late at `now`.
pub fn plan(job: &Job, mark: Timestamp, now: Timestamp) -> Plan {
    let missed_until = newest_missed(now);
    if missed_until <= mark {
        return Plan::default();
    }
    let run = match job.misfire {
        Misfire::Skip => Vec::new(),
        Misfire::RunOnce => {
            job.last_before_or_at(missed_until, mark).filter(|&at| is_in_window(job, at, now)).into_iter().collect()
        }
        Misfire::RunAll => newest_in_window(job, mark, missed_until, now),
    };
    let skipped = match run.first() {
        Some(&first) => missed(job, mark, earlier(first, NANOSECOND)),
        None => missed(job, mark, missed_until),
    };
    Plan { skipped, run }
}

/// The occurrences in (`after`, `until`].
pub fn missed(job: &Job, after: Timestamp, until: Timestamp) -> Option<Missed> {
    let first = job.next_after(after).filter(|&first| first <= until)?;
    let last = job.last_before_or_at(until, after)?;
    // Mostly there is only one; counting is not needed then.
    let count = if first == last { 1 } else { job.schedule()?.count(after, until) };
    Some(Missed { first, last, count })
}

/// True while a missed occurrence may still be run.
pub fn is_in_window(job: &Job, at: Timestamp, now: Timestamp) -> bool {
    let age = now.duration_since(at).unsigned_abs();
    match job.misfire_window {
        Some(window) => age <= window,
        None => age <= DEFAULT_WINDOW && job.next_after(at).is_none_or(|next| now < next),
    }
}

/// The instant from which an occurrence is missed for good: it is late, and may not be run any more.
pub(super) fn missed_from(job: &Job, at: Timestamp) -> Timestamp {
    let late = later(at, LATE + NANOSECOND);
    let over = match (job.misfire, job.misfire_window) {
        (Misfire::Skip, _) => return late,
        (_, Some(window)) => later(at, window + NANOSECOND),
        (_, None) => {
            let longest = later(at, DEFAULT_WINDOW + NANOSECOND);
            job.next_after(at).map_or(longest, |next| next.min(longest))
        }
    };
    over.max(late)
}

/// True if a trigger or a link that was created at `made` is too old to lead to a run.
///
/// The limit is the job's `misfire_window`. Without one it is at most the time to the next occurrence (of `root`, with
/// `after`), as for missed occurrences.
pub(super) fn is_too_old(job: &Job, root: &Job, made: Timestamp, now: Timestamp) -> bool {
    if now <= made {
        return false;
    }
    let age = now.duration_since(made).unsigned_abs();
    match job.misfire_window {
        Some(window) => age > window.max(LATE),
        None if age <= LEAST_AGE => false,
        None => age > DEFAULT_WINDOW || root.next_after(made).is_some_and(|next| next <= now),
    }
}

/// The instant from which a trigger or a link that was created at `made` is too old to lead to a run.
pub fn too_old_from(job: &Job, root: &Job, made: Timestamp) -> Timestamp {
    let after = |by: Duration| later(made, by + NANOSECOND);
    match job.misfire_window {
        Some(window) => after(window.max(LATE)),
        None => {
            let next = root.next_after(made).unwrap_or(Timestamp::MAX);
            after(DEFAULT_WINDOW).min(next).max(after(LEAST_AGE))
        }
    }
}

/// The latest instant at which an occurrence counts as missed at `now`.
fn newest_missed(now: Timestamp) -> Timestamp {
    earlier(now, LATE + NANOSECOND)
}

/// The newest occurrences in the misfire window. Walks back from the newest, so that the cost depends on
/// `misfire_limit` and not on the length of the gap.
fn newest_in_window(job: &Job, mark: Timestamp, until: Timestamp, now: Timestamp) -> Vec<Timestamp> {
    let mut found = Vec::new();
    let mut until = until;
    while found.len() < job.misfire_limit {
        let Some(at) = job.last_before_or_at(until, mark).filter(|&at| is_in_window(job, at, now)) else {
            break;
        };
        found.push(at);
        until = earlier(at, NANOSECOND);
    }
    found.reverse();
    found
}
