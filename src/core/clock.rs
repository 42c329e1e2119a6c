//! The core's view of time: two clocks, passed in as a value.
//!
//! The daemon reads both clocks once per iteration. `wall` determines when a job is due; it may be set forwards and
//! backwards. `up` counts from boot, also while the machine is suspended (CLOCK_BOOTTIME), and never goes back; leases
//! and time limits use it. Only [`system`] reads the system's clocks. [`server`] handles a third clock, that of the
//! coordination service.

pub mod server;
pub mod system;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// No occurrence is decided on further ahead of the coordination service's clock than this.
pub const AHEAD: SignedDuration = SignedDuration::from_secs(60);

/// Time since boot, including suspended time. Comparable only between processes of the same boot.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uptime(u64);

impl Uptime {
    pub const ZERO: Self = Self(0);
    /// Later than every other instant, for a limit that never applies.
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Formats an instant for people: `2026-11-20 18:40:01`, in UTC.
pub fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// A scheduled time as people and jobs see it: without fractions of a second.
pub fn instant(at: Timestamp) -> impl std::fmt::Display {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// The instant `by` later, limited to the maximum timestamp.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The instant `by` earlier, limited to the minimum timestamp.
pub fn earlier(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

impl Add<Duration> for Uptime {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Uptime {
    type Output = Self;
    fn sub(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Uptime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NEVER => f.write_str("never"),
            Self(nanos) => write!(f, "up {:?}", Duration::from_nanos(nanos)),
        }
    }
}

/// Both clocks, read at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time of day, UTC.
    pub wall: Timestamp,
    pub up: Uptime,
}

impl Now {
    /// Converts a wall-clock instant to uptime. Valid as long as nobody sets the wall clock.
    pub fn up_at(&self, instant: Timestamp) -> Uptime {
        let ahead = instant.duration_since(self.wall);
        if ahead.is_negative() { self.up - ahead.unsigned_abs() } else { self.up + ahead.unsigned_abs() }
    }
}

/// The next instant to wake at, on either clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    pub wall: Option<Timestamp>,
    pub up: Option<Uptime>,
}

impl Wake {
    /// The earlier of the two on each clock.
    pub fn or(self, other: Self) -> Self {
        Self { wall: sooner(self.wall, other.wall), up: sooner(self.up, other.up) }
    }

    /// True if either clock has reached its instant.
    pub fn is_due(&self, now: Now) -> bool {
        self.wall.is_some_and(|at| at <= now.wall) || self.up.is_some_and(|at| at <= now.up)
    }
}

fn sooner<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Source of time: the system's clocks in the daemon, virtual clocks in the simulation.
pub trait Clock: Clone + Send + Sync + 'static {
    fn now(&self) -> Now;

    /// Returns when either clock has reached its instant or the wall clock was set. May return early, so the caller
    /// must check the clock again. Dropping the future cancels the wait.
    fn sleep_until(&self, wake: Wake) -> impl Future<Output = ()> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduled_instant_has_no_fractions() {
        let at: Timestamp = "2026-11-20T02:30:00.25Z".parse().unwrap();
        assert_eq!(instant(at).to_string(), "2026-11-20T02:30:00Z");
    }
}
