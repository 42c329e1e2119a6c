//! Whether a schedule was edited: an edited schedule never fires for the past.
//!
//! A calendar is part of the schedule, and gets the dates of another year every year. If that were an edit, no job with
//! this calendar would make up for what it missed before. So dates count only where occurrences can be that are not
//! decided on: after the mark and up to now. At a reload both calendars are known. A new leader knows the other one by a
//! digest alone, which says what was near the mark, and which dates there were at all.

use std::time::Duration;

use jiff::Timestamp;

use super::{Digest, Job};
use crate::schedule::Schedule;

/// What a new definition changes in a job's schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    None,
    /// Only whether the job is due on days that are still to come.
    ToCome,
    /// Possibly occurrences that have passed.
    Past,
}

impl Edit {
    /// The change from one definition to another, of a job whose occurrences are decided on up to `mark`.
    pub fn of(old: Option<&Job>, new: Option<&Job>, mark: Timestamp, now: Timestamp) -> Self {
        let (old, new) = match (old, new) {
            (None, None) => return Self::None,
            (Some(old), Some(new)) if old.cause() == new.cause() => (old, new),
            _ => return Self::Past,
        };
        let digest = |schedule: &Schedule| schedule.calendar().map(|calendar| calendar.digest().to_owned());
        match (old.schedule(), new.schedule()) {
            (Some(old), Some(new)) if !old.has_calendar_like(new, mark, now) => Self::Past,
            (Some(old), Some(new)) if digest(old) != digest(new) => Self::ToCome,
            _ => Self::None,
        }
    }
}

/// Separates what is near the mark from the digest of the whole calendar.
const WHOLE: char = '-';

impl Job {
    /// Digest of everything that determines when the job starts: expressions, time zone, DST policy and splay, or its
    /// upstreams. With a calendar also of its days near `mark`, and beside it one of all its days.
    pub fn schedule_digest(&self, mark: Timestamp) -> Digest {
        let calendar = self.schedule().and_then(|schedule| Some((schedule.calendar()?, schedule.nearby(mark)?)));
        let Some((calendar, nearby)) = calendar else { return Digest::of(self.cause().as_bytes()) };
        let near = Digest::of(format!("{} | calendar {nearby}", self.cause()).as_bytes());
        Digest(format!("{near}{WHOLE}{}", calendar.digest()))
    }

    /// True if the schedule with the digest `recorded` at `mark` may have had other occurrences after `mark` and up to
    /// `now`.
    pub fn is_edited_since(&self, recorded: &Digest, mark: Timestamp, now: Timestamp) -> bool {
        let own = self.schedule_digest(mark);
        let reaches = || self.schedule().is_some_and(|schedule| schedule.reaches(mark, now));
        own != *recorded && (near(&own) != near(recorded) || !reaches())
    }

    /// A canonical text of what determines when the job starts, apart from the calendar.
    fn cause(&self) -> String {
        let canonical = self.due.canonical();
        match self.splay.within() {
            Duration::ZERO => canonical,
            within => format!("{canonical} | splay {}ms", within.as_millis()),
        }
    }
}

/// The part of a job's digest that says what was near the mark.
fn near(digest: &Digest) -> Option<&str> {
    digest.as_str().split(WHOLE).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_records::{self, without};

    /// A job with a calendar of these dates; without dates there is no calendar.
    fn job(schedule: &str, exclude: &str) -> Job {
        let job = test_records::job("a", schedule);
        if exclude.is_empty() { job } else { without(&job, exclude) }
    }

    fn at(text: &str) -> Timestamp {
        format!("{text}:00Z").parse().unwrap()
    }

    #[test]
    fn the_digest_of_a_schedule_without_a_calendar_is_the_same_at_any_mark() {
        let plain = job("0 3 * * *", "");
        let [one, other] = ["2026-11-20T03:00", "2031-01-01T00:00"].map(|mark| plain.schedule_digest(at(mark)));
        assert_eq!(one, other);
        // Changing this makes all jobs edited at an upgrade.
        assert_eq!(one, Digest::of(b"0 0 3 * * * * | UTC | once"));
    }

    #[test]
    fn dates_count_as_an_edit_only_where_occurrences_can_be_undecided() {
        let (mark, now) = (at("2026-11-20T03:00"), at("2026-11-22T10:00"));
        let old = job("0 3 * * *", "2026-12-25");
        let digest = old.schedule_digest(mark);
        for (exclude, reload, takeover) in [
            ("2026-12-25 Christmas Day", Edit::None, false),
            ("2026-12-25\n2031-01-02", Edit::ToCome, false),
            ("2026-11-10\n2026-12-25", Edit::ToCome, false),
            ("2026-11-23\n2026-12-25", Edit::ToCome, true),
            ("2026-11-21\n2026-12-25", Edit::Past, true),
            ("", Edit::ToCome, true),
        ] {
            let new = job("0 3 * * *", exclude);
            for (old, new) in [(&old, &new), (&new, &old)] {
                assert_eq!(Edit::of(Some(old), Some(new), mark, now), reload, "{exclude:?}");
            }
            assert_eq!(new.is_edited_since(&digest, mark, now), takeover, "{exclude:?}");
        }
        let otherwise = job("0 4 * * *", "2026-12-25");
        assert_eq!(Edit::of(Some(&old), Some(&otherwise), mark, now), Edit::Past);
        assert_eq!(Edit::of(Some(&old), None, mark, now), Edit::Past);
        assert!(otherwise.is_edited_since(&digest, mark, now));
    }

    #[test]
    fn a_date_before_the_next_occurrence_counts_as_an_edit_however_far_that_is() {
        let mark = at("2026-11-01T03:00");
        let old = job("0 3 1 * *", "2026-12-01");
        let digest = old.schedule_digest(mark);
        let new = job("0 3 1 * *", "2026-12-24");
        assert!(new.is_edited_since(&digest, mark, at("2026-12-01T03:05")), "its occurrence has passed");
        let new = job("0 3 1 * *", "2026-12-01\n2027-02-01");
        assert!(!new.is_edited_since(&digest, mark, at("2027-01-01T03:05")));
    }

    #[test]
    fn what_the_record_does_not_say_is_an_edit_if_any_date_differs() {
        let (mark, late) = (at("2026-11-20T03:00"), at("2026-12-20T03:05"));
        let old = job("0 3 * * *", "2026-12-20");
        let digest = old.schedule_digest(mark);
        let new = job("0 3 * * *", "2026-12-25");
        assert!(!new.is_edited_since(&digest, mark, at("2026-11-28T03:05")));
        assert!(new.is_edited_since(&digest, mark, late), "it would run at a time that was left out");
        assert!(!old.is_edited_since(&digest, mark, late));
    }
}
