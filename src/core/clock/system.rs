//! The system's clocks and timers; nothing else reads them.
//!
//! Waiting uses the kernel's timers, because the runtime's timers neither count suspended time nor notice that the wall
//! clock was set. See timerfd_create(2).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use super::{Clock, Now, Uptime, Wake};

/// Reads both clocks. If the process was delayed between the two reads, reads them again, so that the delay does not
/// look like a wall clock that was set.
pub fn now() -> Now {
    let mut before = uptime();
    for _ in 0..READS {
        let (wall, up) = (Timestamp::now(), uptime());
        if up.since(before) < TOGETHER {
            return Now { wall, up };
        }
        before = up;
    }
    Now { wall: Timestamp::now(), up: before }
}

/// Maximum time between the two reads ...
const TOGETHER: std::time::Duration = std::time::Duration::from_millis(1);
/// ... unless this many in a row took longer.
const READS: usize = 100;

/// Reads CLOCK_BOOTTIME.
#[inline]
pub fn uptime() -> Uptime {
    let t = clock_gettime(ClockId::Boottime);
    Uptime::from_nanos(t.tv_sec.unsigned_abs() * NANOS_PER_SECOND + t.tv_nsec.unsigned_abs())
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// The year 2200, for a timer that only waits for the clock to be set.
const FAR: i64 = 7_258_118_400;

/// The system's clocks. Waiting needs a tokio runtime.
#[derive(Clone, Debug, Default)]
pub struct SystemClock {
    /// Timers not in use. They are reused because creating a pair for every wait would cost four system calls.
    idle: Arc<Mutex<Vec<Timers>>>,
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        now()
    }

    async fn sleep_until(&self, wake: Wake) {
        if wake.is_due(now()) {
            return;
        }
        let timers = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let armed = timers.map_or_else(Timers::new, Ok).and_then(|timers| timers.arm(wake).map(|()| timers));
        match armed {
            Ok(timers) => BorrowedTimers { timers: Some(timers), idle: self.idle.clone() }.elapsed().await,
            // The wall clock was set while nobody was waiting.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error()) => {}
            // No file descriptor is left; the runtime's timer is better than none.
            Err(_) => tokio::time::sleep(FALLBACK).await,
        }
    }
}

/// How long to wait if there is no kernel timer. The caller then checks the clock again.
const FALLBACK: std::time::Duration = std::time::Duration::from_millis(10);

/// A timer on each clock.
#[derive(Debug)]
struct Timers {
    wall: AsyncFd<OwnedFd>,
    up: AsyncFd<OwnedFd>,
}

impl Timers {
    fn new() -> io::Result<Self> {
        #[expect(
            deprecated,
            reason = "the successor is unsafe because it accepts descriptors that others could close; this one is owned"
        )]
        let make = |clock| -> io::Result<_> {
            AsyncFd::new(timerfd_create(clock, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?)
        };
        Ok(Self { wall: make(TimerfdClockId::Realtime)?, up: make(TimerfdClockId::Boottime)? })
    }

    /// Without an instant, the wall timer still waits for the clock to be set.
    fn arm(&self, wake: Wake) -> io::Result<()> {
        let wall = wake.wall.map_or(Timespec { tv_sec: FAR, tv_nsec: 0 }, |at| {
            let nanos = at.as_nanosecond().max(1);
            Timespec { tv_sec: clamp(nanos.div_euclid(1_000_000_000)), tv_nsec: clamp(nanos.rem_euclid(1_000_000_000)) }
        });
        let up = match wake.up {
            // All zero disarms the timer.
            None | Some(Uptime::NEVER) => Timespec { tv_sec: 0, tv_nsec: 0 },
            Some(at) => {
                let nanos = i128::from(at.as_nanos().max(1));
                Timespec { tv_sec: clamp(nanos / 1_000_000_000), tv_nsec: clamp(nanos % 1_000_000_000) }
            }
        };
        set(&self.wall, wall, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET)?;
        set(&self.up, up, TimerfdTimerFlags::ABSTIME)
    }
}

fn clamp(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn set(timer: &AsyncFd<OwnedFd>, at: Timespec, flags: TimerfdTimerFlags) -> io::Result<()> {
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
    timerfd_settime(timer, flags, &once)?;
    Ok(())
}

/// A pair of timers in use. Dropping it, also when the wait is cancelled, returns them to the idle ones.
struct BorrowedTimers {
    timers: Option<Timers>,
    idle: Arc<Mutex<Vec<Timers>>>,
}

impl BorrowedTimers {
    async fn elapsed(self) {
        if let Some(timers) = &self.timers {
            // Cancellation safety: a timer that expired but was not read is armed again before the next wait.
            tokio::select! {
                biased;
                () = fired(&timers.wall) => {}
                () = fired(&timers.up) => {}
            }
        }
    }
}

impl Drop for BorrowedTimers {
    fn drop(&mut self) {
        if let Some(timers) = self.timers.take() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(timers);
        }
    }
}

/// Returns when the timer has expired or the clock was set; in the latter case the read fails with ECANCELED.
async fn fired(timer: &AsyncFd<OwnedFd>) {
    loop {
        let Ok(mut ready) = timer.readable().await else { return };
        let mut count = [0; 8];
        if ready.try_io(|fd| Ok(rustix::io::read(fd, &mut count)?)).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn wait(clock: &SystemClock, wake: Wake) -> Duration {
        let before = now();
        clock.sleep_until(wake).await;
        now().up.since(before.up)
    }

    #[tokio::test]
    async fn either_clock_wakes_and_the_timers_are_reused() {
        let clock = SystemClock::default();
        for _ in 0..3 {
            let soon = Duration::from_millis(20);
            let waited = wait(&clock, Wake { wall: Some(now().wall + soon), up: None }).await;
            assert!(waited >= Duration::from_millis(15), "{waited:?}");
            let waited = wait(&clock, Wake { wall: None, up: Some(now().up + soon) }).await;
            assert!(waited >= soon, "{waited:?}");
        }
        assert_eq!(clock.idle.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_past_instant_does_not_wait() {
        let clock = SystemClock::default();
        let long_ago = Wake { wall: Some(Timestamp::UNIX_EPOCH), up: None };
        clock.sleep_until(long_ago).await;
        clock.sleep_until(Wake { wall: None, up: Some(Uptime::ZERO) }).await;
    }

    #[tokio::test]
    async fn a_cancelled_wait_does_not_end_the_next_one() {
        let clock = SystemClock::default();
        let soon = Duration::from_millis(10);
        let cancelled = clock.sleep_until(Wake { wall: None, up: Some(now().up + soon) });
        let _ = tokio::time::timeout(Duration::from_millis(1), cancelled).await;
        tokio::time::sleep(soon).await;
        let later = Duration::from_millis(50);
        let waited = wait(&clock, Wake { wall: None, up: Some(now().up + later) }).await;
        assert!(waited >= later, "{waited:?}");
    }
}
