//! How long before its time an occurrence is begun, so that its program begins at its time.
//!
//! A begin is a commit, and a start takes a fork and more; both are done before the time has come, and the process is
//! then held (see [`Launch::not_before`](crate::process::Launch)). What may happen in between can take it back, but a
//! node that dies in between leaves a run that may or may not have begun. So the horizon is little more than what
//! commits and starts have just taken, and never more than [`LONGEST`].

use std::time::Duration;

use crate::run::LONGEST_HOLD;

/// Longest horizon.
const LONGEST: Duration = Duration::from_millis(500);
/// A clock that is slewed meanwhile may lengthen the hold.
const _: () = assert!(LONGEST.as_nanos() * 2 <= LONGEST_HOLD.as_nanos(), "no start is held longer");
/// What the loop and the warden may be late, each on a busy machine.
const MARGIN: Duration = Duration::from_millis(5);
/// Assumed until the first commit was answered.
const FIRST_COMMIT: Duration = Duration::from_millis(10);
/// Assumed until the first start has returned.
const FIRST_START: Duration = Duration::from_micros(500);
/// The weight of a new sample in an average: one part in this many.
const SHARE: u32 = 8;

/// What commits and starts have taken of late.
#[derive(Debug)]
pub(super) struct Horizon {
    /// From the request of a begin to its answer: the longest of late.
    commit: Duration,
    /// The warden's time for one start: an average.
    start: Duration,
}

impl Default for Horizon {
    fn default() -> Self {
        Self { commit: FIRST_COMMIT, start: FIRST_START }
    }
}

impl Horizon {
    /// Takes the time from the request of a begin to its answer.
    pub fn accepted(&mut self, took: Duration) {
        self.commit = average(self.commit, took).max(took).min(LONGEST);
    }

    /// Takes the time from the order of a start to the warden's answer, with `before` other starts ahead of it.
    pub fn prepared(&mut self, took: Duration, before: usize) {
        let each = took / u32::try_from(before + 1).unwrap_or(u32::MAX);
        self.start = average(self.start, each).min(LONGEST);
    }

    /// How long before its time a begin must be requested that is the last of `count`.
    pub fn of(&self, count: usize) -> Duration {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let starts = self.start.saturating_mul(count).saturating_mul(3) / 2;
        (self.commit * 2).saturating_add(starts).saturating_add(MARGIN).min(LONGEST)
    }
}

fn average(before: Duration, new: Duration) -> Duration {
    before - before / SHARE + new / SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_horizon_follows_commits_and_starts_and_has_a_limit() {
        let mut horizon = Horizon::default();
        for _ in 0..100 {
            horizon.accepted(MS);
            horizon.prepared(MS, 9);
        }
        let (one, hundred) = (horizon.of(1), horizon.of(100));
        assert!(one < 10 * MS && hundred > one + 10 * MS && hundred < one + 30 * MS, "{one:?} {hundred:?}");
        horizon.accepted(80 * MS);
        assert!(horizon.of(1) > 160 * MS, "one slow commit counts at once");
        assert_eq!((horizon.of(100_000), horizon.of(usize::MAX)), (LONGEST, LONGEST));
    }
}
