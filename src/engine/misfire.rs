//! What to do with occurrences that nobody decided on in time (`misfire`, `misfire_window`, `misfire_limit`).
//!
//! A pure function of the job, its mark and the time of day. Its work is bounded however far the mark lies back.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::earlier;
use crate::job::{Job, Misfire};

/// An occurrence later than this is missed; less is lateness.
pub const LATE: Duration = Duration::from_secs(1);
/// The longest window where the job names none.
pub const DEFAULT_WINDOW: Duration = Duration::from_secs(12 * 3600);

/// Where the owner of a job names no window, a trigger is good for at least so long: a failover must not eat it.
pub(super) const LEAST_AGE: Duration = Duration::from_secs(60);

/// Instants have this resolution.
pub(super) const NANOSECOND: Duration = Duration::from_nanos(1);

/// Occurrences in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The first.
    pub first: Timestamp,
    /// The last.
    pub last: Timestamp,
    /// How many.
    pub count: u64,
}

/// What to do with the missed occurrences of a job. Those that are skipped come before those that are run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// To be recorded as missed.
    pub skipped: Option<Missed>,
    /// To be run, oldest first.
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
    // Mostly there is one.
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

/// True where a trigger, or a link, that was made then is too old to lead to a run. The window is the owner's; where none is named, at most
/// the time to the next occurrence (of `root`, with `after`), as for missed ones.
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

/// The latest instant that is missed at `now`.
fn newest_missed(now: Timestamp) -> Timestamp {
    earlier(now, LATE + NANOSECOND)
}

/// Walks back from the newest, so that the work is bounded by `misfire_limit` and not by the gap.
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
