//! The clock of the coordination service, as far as this node can be sure of it.
//!
//! ```text
//!   here      sent ────────────────────────── received      (time since boot)
//!   service            read: it stamped our write then
//! ```
//!
//! An own write is stamped between its sending and its answer. Since then as much time has passed there as here, so where that
//! clock stands now is known to within the time the answer took, and setting this node's time of day changes nothing about it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Now, Uptime, later};

/// Stamps have this resolution, rounded down.
const MILLISECOND: Duration = Duration::from_millis(1);

/// One reading of the service's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTime {
    read: Timestamp,
    sent: Uptime,
    received: Uptime,
}

impl ServerTime {
    /// A stamp, in milliseconds since the epoch, on a write that was sent and answered then. `None`: no instant there is.
    pub fn new(stamp_ms: i64, sent: Uptime, received: Uptime) -> Option<Self> {
        Some(Self { read: Timestamp::from_millisecond(stamp_ms).ok()?, sent, received })
    }

    /// How long the answer took: the reading is no better than that.
    pub fn took(&self) -> Duration {
        self.received.since(self.sent)
    }

    /// How long ago it was.
    pub fn age(&self, up: Uptime) -> Duration {
        up.since(self.received)
    }

    /// That clock stands here or later.
    pub fn earliest(&self, up: Uptime) -> Timestamp {
        later(self.read, up.since(self.received))
    }

    /// That clock stands here or earlier.
    pub fn latest(&self, up: Uptime) -> Timestamp {
        later(self.read, up.since(self.sent) + MILLISECOND)
    }

    /// How far this node's time of day is ahead of that clock, or, negative, behind it: as much as is sure, so zero
    /// where they may agree.
    pub fn skew(&self, now: Now) -> SignedDuration {
        let ahead = now.wall.duration_since(self.latest(now.up));
        let behind = now.wall.duration_since(self.earliest(now.up));
        ahead.max(SignedDuration::ZERO) + behind.min(SignedDuration::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn up(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    fn wall(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    #[test]
    fn what_the_answer_took_is_not_taken_for_skew() {
        let read = ServerTime::new(1_000_000, up(500), up(900)).unwrap();
        let skew = |ms| read.skew(Now { wall: wall(ms), up: up(1_000) }).as_millis();
        assert_eq!([skew(1_000_100), skew(1_000_300), skew(1_000_501)], [0, 0, 0]);
        assert_eq!([skew(1_005_501), skew(995_100)], [5_000, -5_000]);
    }

    #[test]
    fn a_set_clock_shows_at_once() {
        let read = ServerTime::new(1_000_000, up(500), up(500)).unwrap();
        let now = Now { wall: wall(1_060_000), up: up(60_500) };
        assert_eq!(read.skew(now).as_millis(), 0);
        let hour = SignedDuration::from_hours(1);
        assert_eq!(read.skew(Now { wall: now.wall + hour, ..now }).as_secs(), 3_599);
        assert_eq!(read.skew(Now { wall: now.wall - hour, ..now }).as_secs(), -3_600);
    }

    proptest! {
        /// Wherever between sending and answer the stamp was made: the truth is within the bounds, and the skew told is not more.
        #[test]
        fn bounds_hold_whenever_the_stamp_was_made(
            sent in 0..10_000_u64, there in 0..5_000_u64, back in 0..5_000_u64, since in 0..100_000_u64,
            true_skew in -100_000..100_000_i64, nanos in 0..1_000_000_i32,
        ) {
            // The service's clock shows the time since boot; it stamps in whole milliseconds.
            let fraction = Duration::from_nanos(nanos.unsigned_abs().into());
            let stamp = i64::try_from(sent + there).unwrap();
            let read = ServerTime::new(stamp, up(sent), up(sent + there + back) + fraction).unwrap();
            let at = up(sent + there + back + since) + fraction;
            let truth = wall(0) + at.since(Uptime::ZERO);
            prop_assert!(read.earliest(at) <= truth && truth <= read.latest(at));
            let told = read.skew(Now { wall: truth + SignedDuration::from_millis(true_skew), up: at });
            prop_assert!(told.as_millis().abs() <= true_skew.abs().into());
            prop_assert!(told.is_zero() || told.is_positive() == (true_skew > 0));
        }
    }
}
