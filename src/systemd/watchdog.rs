//! The watchdog: systemd kills a daemon whose loop no longer runs.
//!
//! The unit's WatchdogSec is the upper limit. The daemon lowers it to half of the session timeout as soon as that is
//! known, because the loop that notifies systemd is the loop that renews the lease. If the unit sets no watchdog, the
//! daemon does not switch one on: the operator did not want it.

use std::time::Duration;

use sd_notify::NotifyState;

use super::Notifier;
use cronkeeper_core::clock::Uptime;
use cronkeeper_core::lease;

/// The deadline by which the loop must notify systemd.
#[derive(Debug)]
pub struct Watchdog {
    /// The limit of the unit.
    longest: Option<Duration>,
    /// The limit that is in force.
    limit: Option<Duration>,
    last_sent: Uptime,
}

impl Watchdog {
    /// Creates the watchdog from the environment variables of systemd.
    pub fn from_environment() -> Self {
        Self::new(sd_notify::watchdog_enabled())
    }

    fn new(longest: Option<Duration>) -> Self {
        let longest = longest.filter(|time| !time.is_zero());
        Self { longest, limit: longest, last_sent: Uptime::ZERO }
    }

    /// Sets the limit to the longest standstill that this session timeout allows, but never above the unit's.
    ///
    /// Called with the requested timeout at the start and with the negotiated one later.
    pub fn set(&mut self, session_timeout: Duration, notifier: &mut Notifier) {
        let limit = self.longest.map(|longest| longest.min(lease::longest_standstill(session_timeout)));
        if self.limit != limit
            && let Some(limit) = limit
        {
            // `sd-notify` has a u32 for it, which ends at 71 minutes; half of a session timeout is far below that.
            let usec = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
            notifier.send(&[NotifyState::WatchdogUsec(usec), NotifyState::Watchdog]);
            self.limit = Some(limit);
        }
    }

    /// Must be called in each turn of the loop, and nowhere else. Notifies systemd four times per limit.
    pub fn turned(&mut self, now: Uptime, notifier: &mut Notifier) {
        if self.next().is_some_and(|next| next <= now) {
            notifier.send(&[NotifyState::Watchdog]);
            self.last_sent = now;
        }
    }

    /// When the loop must turn again even if it has nothing else to do.
    pub fn next(&self) -> Option<Uptime> {
        self.limit.map(|limit| self.last_sent + limit / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{pair, receive};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_limit_is_half_of_the_session_timeout_and_never_above_the_units() {
        let (mut notifier, systemd, _directory) = pair();
        let mut watchdog = Watchdog::new(Some(30 * SECOND));
        watchdog.set(10 * SECOND, &mut notifier);
        assert_eq!(receive(&systemd), "WATCHDOG_USEC=5000000\nWATCHDOG=1\n");
        watchdog.set(10 * SECOND, &mut notifier);
        watchdog.set(4 * SECOND, &mut notifier);
        assert_eq!(receive(&systemd), "WATCHDOG_USEC=2000000\nWATCHDOG=1\n");
        watchdog.set(100 * SECOND, &mut notifier);
        assert_eq!(receive(&systemd), "WATCHDOG_USEC=30000000\nWATCHDOG=1\n");
    }

    #[test]
    fn systemd_is_notified_once_in_a_quarter_of_the_limit() {
        let (mut notifier, systemd, _directory) = pair();
        let mut watchdog = Watchdog::new(Some(4 * SECOND));
        let start = Uptime::ZERO + 100 * SECOND;
        for ms in (0..2_000).step_by(10) {
            watchdog.turned(start + Duration::from_millis(ms), &mut notifier);
        }
        assert_eq!(watchdog.next(), Some(start + 2 * SECOND));
        notifier.stopping();
        let all = [(); 3].map(|()| receive(&systemd)).concat();
        assert_eq!(all, "WATCHDOG=1\nWATCHDOG=1\nSTOPPING=1\n");
    }

    #[test]
    fn without_a_watchdog_in_the_unit_there_is_none() {
        let (mut notifier, systemd, _directory) = pair();
        for mut watchdog in [Watchdog::new(None), Watchdog::new(Some(Duration::ZERO))] {
            watchdog.set(10 * SECOND, &mut notifier);
            watchdog.turned(Uptime::ZERO + SECOND, &mut notifier);
            assert_eq!(watchdog.next(), None);
        }
        notifier.stopping();
        assert_eq!(receive(&systemd), "STOPPING=1\n");
    }
}
