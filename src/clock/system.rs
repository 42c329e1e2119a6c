//! The system's clocks: the only reader of them in the program.

use rustix::time::{ClockId, clock_gettime};

use super::{Now, Uptime};

/// Reads both clocks.
pub fn now() -> Now {
    Now { wall: jiff::Timestamp::now(), up: uptime() }
}

/// Reads CLOCK_BOOTTIME.
pub fn uptime() -> Uptime {
    let t = clock_gettime(ClockId::Boottime);
    Uptime::from_nanos(t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs())
}
