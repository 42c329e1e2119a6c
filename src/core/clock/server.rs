//! The clock of the coordination service, with bounds on its error.
//!
//! ```text
//!   here      sent ────────────────────────── received      (time since boot)
//!   service            read: it stamped our write then
//! ```
//!
//! The service stamps a write of this node between its sending and its answer. Since then, as much time has passed
//! there as here. So the current time there is known to within the time that the answer took, and setting this node's
//! wall clock does not affect it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Now, Uptime, later};

/// Resolution of the service's timestamps, which are rounded down.
const MILLISECOND: Duration = Duration::from_millis(1);

/// One reading of the service's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTime {
    read: Timestamp,
    sent: Uptime,
    received: Uptime,
}

impl ServerTime {
    /// Creates a reading from the timestamp of a write, in milliseconds since the epoch, and the times of sending and
    /// answer. `None` if the timestamp is out of range.
    pub fn new(stamp_ms: i64, sent: Uptime, received: Uptime) -> Option<Self> {
        Some(Self { read: Timestamp::from_millisecond(stamp_ms).ok()?, sent, received })
    }

    /// How long the answer took, which is the reading's uncertainty.
    pub fn took(&self) -> Duration {
        self.received.since(self.sent)
    }

    /// The age of the reading.
    pub fn age(&self, up: Uptime) -> Duration {
        up.since(self.received)
    }

    /// Lower bound of the service's current time.
    pub fn earliest(&self, up: Uptime) -> Timestamp {
        later(self.read, up.since(self.received))
    }

    /// Upper bound of the service's current time.
    pub fn latest(&self, up: Uptime) -> Timestamp {
        later(self.read, up.since(self.sent) + MILLISECOND)
    }

    /// How far this node's wall clock is ahead of the service's clock (negative: behind). Only the certain part counts,
    /// so the result is zero if the clocks may agree.
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
    fn the_delay_of_an_answer_does_not_count_as_skew() {
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
        #![proptest_config(crate::fuzz::proptest_config())]
        /// Wherever between sending and answer the timestamp was taken, the truth is within the bounds, and the skew is
        /// not exaggerated.
        #[test]
        fn bounds_hold_whenever_the_timestamp_was_taken(
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
            let skew = read.skew(Now { wall: truth + SignedDuration::from_millis(true_skew), up: at });
            prop_assert!(skew.as_millis().abs() <= true_skew.abs().into());
            prop_assert!(skew.is_zero() || skew.is_positive() == (true_skew > 0));
        }
    }
}
