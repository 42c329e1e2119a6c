//! The watchdog: systemd kills a daemon whose loop no longer turns.
//!
//! The unit's WatchdogSec is the longest time allowed; the daemon lowers it to half of the session timeout as soon as
//! that is known, for the loop that feeds it is the loop that renews the lease. Where the unit sets none, none is
//! switched on: its owner did not want it.

use std::time::Duration;

use sd_notify::NotifyState;

use super::Notifier;
use crate::clock::Uptime;
use crate::lease;

/// When systemd is to hear from the loop.
#[derive(Debug)]
pub struct Watchdog {
    /// As the unit says.
    longest: Option<Duration>,
    /// As it is in force.
    limit: Option<Duration>,
    fed: Uptime,
}

impl Watchdog {
    /// As systemd's environment asks for.
    pub fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled())
    }

    fn new(longest: Option<Duration>) -> Self {
        let longest = longest.filter(|time| !time.is_zero());
        Self { longest, limit: longest, fed: Uptime::ZERO }
    }

    /// Puts it at the longest standstill that the session timeout allows, as asked for at the start, then as negotiated; never above
    /// the unit's.
    pub fn set(&mut self, session_timeout: Duration, notifier: &mut Notifier) {
        let limit = self.longest.map(|longest| longest.min(lease::longest_standstill(session_timeout)));
        if self.limit != limit
            && let Some(limit) = limit
        {
            // In the crate the number is a u32: 71 minutes, far above any half of a session timeout.
            let usec = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
            notifier.send(&[NotifyState::WatchdogUsec(usec), NotifyState::Watchdog]);
            self.limit = Some(limit);
        }
    }

    /// To be called at each turn of the loop, and at nothing else. It says so to systemd once in a quarter of its time.
    pub fn turned(&mut self, now: Uptime, notifier: &mut Notifier) {
        if self.next().is_some_and(|next| next <= now) {
            notifier.send(&[NotifyState::Watchdog]);
            self.fed = now;
        }
    }

    /// When the loop must have turned again, if it has no other reason to.
    pub fn next(&self) -> Option<Uptime> {
        self.limit.map(|limit| self.fed + limit / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{heard, pair};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_half_of_the_session_and_never_above_the_units() {
        let (mut notifier, systemd, _directory) = pair();
        let mut watchdog = Watchdog::new(Some(30 * SECOND));
        watchdog.set(10 * SECOND, &mut notifier);
        assert_eq!(heard(&systemd), "WATCHDOG_USEC=5000000\nWATCHDOG=1\n");
        watchdog.set(10 * SECOND, &mut notifier);
        watchdog.set(4 * SECOND, &mut notifier);
        assert_eq!(heard(&systemd), "WATCHDOG_USEC=2000000\nWATCHDOG=1\n");
        watchdog.set(100 * SECOND, &mut notifier);
        assert_eq!(heard(&systemd), "WATCHDOG_USEC=30000000\nWATCHDOG=1\n");
    }

    #[test]
    fn many_turns_are_said_once_in_a_quarter_of_its_time() {
        let (mut notifier, systemd, _directory) = pair();
        let mut watchdog = Watchdog::new(Some(4 * SECOND));
        let start = Uptime::ZERO + 100 * SECOND;
        for ms in (0..2_000).step_by(10) {
            watchdog.turned(start + Duration::from_millis(ms), &mut notifier);
        }
        assert_eq!(watchdog.next(), Some(start + 2 * SECOND));
        notifier.stopping();
        let all = [(); 3].map(|()| heard(&systemd)).concat();
        assert_eq!(all, "WATCHDOG=1\nWATCHDOG=1\nSTOPPING=1\n");
    }

    #[test]
    fn where_the_unit_wants_none_there_is_none() {
        let (mut notifier, systemd, _directory) = pair();
        for mut watchdog in [Watchdog::new(None), Watchdog::new(Some(Duration::ZERO))] {
            watchdog.set(10 * SECOND, &mut notifier);
            watchdog.turned(Uptime::ZERO + SECOND, &mut notifier);
            assert_eq!(watchdog.next(), None);
        }
        notifier.stopping();
        assert_eq!(heard(&systemd), "STOPPING=1\n");
    }
}
