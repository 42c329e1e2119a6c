//! Time as the core sees it: two clocks, read once a turn, passed in as a value.
//!
//! `wall` says when a job is due; it may be set forwards and backwards. `up` counts from boot,
//! also while the machine is suspended (CLOCK_BOOTTIME), and never goes back: leases and
//! time limits are measured on it. Nothing here reads a clock; [`system`] alone does.
//! [`server`] is about a third, that of the coordination service.

pub mod server;
pub mod system;

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Time since boot, suspended time included. Comparable between processes of one boot only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uptime(u64);

impl Uptime {
    /// The moment of boot.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens: a limit that never comes.
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

/// The instant `by` later; the last there is where that lies beyond all instants.
pub fn later(at: Timestamp, by: Duration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The instant `by` earlier; the first there is where that lies before all instants.
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

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The time of day, UTC.
    pub wall: Timestamp,
    /// Time since boot.
    pub up: Uptime,
}

impl Now {
    /// When `instant` comes, on the clock that cannot be set, as far as is known now.
    pub fn up_at(&self, instant: Timestamp) -> Uptime {
        let ahead = instant.duration_since(self.wall);
        if ahead.is_negative() { self.up - ahead.unsigned_abs() } else { self.up + ahead.unsigned_abs() }
    }
}

/// When something will next happen by itself, on either clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wake {
    /// The time of day to wake at, if any.
    pub wall: Option<Timestamp>,
    /// The time since boot to wake at, if any.
    pub up: Option<Uptime>,
}

impl Wake {
    /// The earlier of both, clock by clock.
    pub fn or(self, other: Self) -> Self {
        Self { wall: sooner(self.wall, other.wall), up: sooner(self.up, other.up) }
    }

    /// True when either clock has come to its instant.
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

/// Who can be asked for the time, and be waited on. The system's clocks in the daemon, virtual ones in the simulation.
pub trait Clock: Clone + Send + Sync + 'static {
    /// Both clocks, now.
    fn now(&self) -> Now;

    /// Returns when either instant has come, or when the wall clock was set. It may return early:
    /// whoever waits looks at the clock again. Dropping the future forgets the wait.
    fn sleep_until(&self, wake: Wake) -> impl Future<Output = ()> + Send;
}
