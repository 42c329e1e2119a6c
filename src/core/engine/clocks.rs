//! The node's clock, compared with the clock of the coordination service.
//!
//! The next leader decides by another host's clock, and occurrences that were begun too early are not begun again. So a
//! leader whose clock is ahead of the service's by more than [`AHEAD`] decides as if it were only that much ahead.
//! Occurrences that are due by its own clock are neither lost nor missed meanwhile: they come due when the service's
//! clock allows it. A clock that was set is reported.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::context::Context;
use super::report::Report;
pub(super) use crate::clock::AHEAD;
use crate::clock::server::ServerTime;
use crate::clock::{Now, Uptime};

/// If wall clock and uptime differ by this much between two turns, the wall clock was set.
pub(super) const STEP: SignedDuration = SignedDuration::from_secs(1);
/// Smallest skew that is worth a warning.
const SKEW: SignedDuration = SignedDuration::from_secs(1);
/// A reading that took longer than this does not replace a better one ...
const SLOW: Duration = Duration::from_secs(1);
/// ... unless the better one is older than this.
const OLD: Duration = Duration::from_secs(300);

/// The clocks of the node and of the coordination service.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    before: Option<Now>,
    server: Option<ServerTime>,
    /// The skew that was last reported.
    reported: SignedDuration,
}

impl Clocks {
    /// By how much more than the uptime the wall clock has moved since the last turn.
    pub fn step(&mut self, now: Now) -> SignedDuration {
        let before = self.before.replace(now).unwrap_or(now);
        now.wall.duration_since(before.wall) - signed(now.up.since(before.up))
    }

    /// Takes a reading of the service's clock.
    pub fn read(&mut self, time: ServerTime, up: Uptime) {
        let is_better = |known: ServerTime| time.took() <= SLOW.max(known.took()) || known.age(up) > OLD;
        if self.server.is_none_or(is_better) {
            self.server = Some(time);
        }
    }

    /// Forgets the reading of an expired session, so that the next one counts even if it was slow.
    pub fn forget(&mut self) {
        self.server = None;
    }

    /// The time of day by which occurrences are due.
    pub fn due(&self, now: Now) -> Timestamp {
        let limit = self.server.and_then(|time| time.earliest(now.up).checked_add(AHEAD).ok());
        limit.map_or(now.wall, |limit| limit.min(now.wall))
    }

    /// The later of both clocks.
    pub fn latest(&self, now: Now) -> Timestamp {
        self.server.map_or(now.wall, |time| time.latest(now.up).max(now.wall))
    }

    /// How far this node's clock is at least ahead of the service's; negative: behind. `None`: not read yet, or the
    /// service has none.
    pub fn skew(&self, now: Now) -> Option<SignedDuration> {
        self.server.map(|time| time.skew(now))
    }

    /// The skew, if it is worth a report: it has passed a second, has grown or shrunk by half, or occurrences begin or
    /// cease to wait.
    fn news(&mut self, now: Now) -> Option<SignedDuration> {
        let (skew, reported) = (self.skew(now)?, self.reported);
        let (is_known, was_known) = (skew.abs() >= SKEW, reported.abs() >= SKEW);
        // With hysteresis, so that a skew around one second is not reported over and over.
        let is_over = was_known && skew.abs() < SKEW / 2;
        let is_other = is_known && ((skew - reported).abs() > SKEW.max(reported.abs() / 2) || !was_known);
        let is_rule = (skew > AHEAD) != (reported > AHEAD);
        (is_over || is_other || is_rule).then(|| std::mem::replace(&mut self.reported, skew)).map(|_| skew)
    }

    /// Reports a step of the clock, and a skew that is worth a report.
    pub fn report(&mut self, cx: &mut Context) {
        if cx.clock_step.abs() >= STEP {
            cx.report(Report::ClockStepped { by: cx.clock_step });
        }
        if let Some(by) = self.news(cx.now) {
            cx.report(Report::ClockSkewed { by, holds: by > AHEAD });
        }
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
