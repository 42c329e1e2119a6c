//! When the node reads the queue and the members, without a watch.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;

/// Interval at which a node reads the queue and the members without a watch.
const EVERY: Duration = Duration::from_secs(15);
/// The first interval after the node's position has changed, and the shortest after the members have. It doubles up to
/// the usual one: what changes the position of one often changes that of others.
const FIRST: Duration = Duration::from_secs(1);

/// When the queue and the members are read.
pub(super) struct Surveys {
    /// When they are read next.
    at: Uptime,
    /// When they were read last.
    done_at: Uptime,
    /// From the next time until the one after it.
    pause: Duration,
}

impl Surveys {
    pub fn new(now: Uptime) -> Self {
        Self { at: now + EVERY, done_at: Uptime::ZERO, pause: EVERY }
    }

    /// When the next one is due.
    pub fn at(&self) -> Uptime {
        self.at
    }

    /// The next one is due now.
    pub fn now(&mut self, now: Uptime) {
        self.at = now;
    }

    /// Reads soon, and then less and less often.
    pub fn soon(&mut self, now: Uptime) {
        self.pause = FIRST;
        self.at = self.at.min(now + FIRST);
    }

    /// A member has come or gone: reads at once, but not more often than once a second.
    pub fn members_changed(&mut self, now: Uptime) {
        let soonest = (self.done_at + FIRST).max(now);
        self.at = self.at.min(soonest);
    }

    /// The queue and the members were read.
    pub fn done(&mut self, now: Uptime) {
        (self.done_at, self.at) = (now, now + self.pause);
        self.pause = (self.pause * 2).min(EVERY);
    }
}
