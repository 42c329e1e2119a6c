//! Which time it is: this node's time of day, watched for being set, and held against the clock of the coordination service.
//!
//! Whoever takes over next goes by another host's clock, and occurrences begun too early are not begun again. So a leader
//! whose clock is ahead of the service's by more than [`AHEAD`] waits: it decides as if it were only so much ahead. What is
//! due meanwhile by its own clock is not lost, and not missed: it comes due when the service's clock lets it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::context::Context;
use super::report::Report;
use crate::clock::server::ServerTime;
use crate::clock::{Now, Uptime};

/// No occurrence is begun further ahead of the service's clock.
pub(super) const AHEAD: SignedDuration = SignedDuration::from_secs(60);
/// Between two turns the two clocks of a node differ by so much only if one was set.
const STEP: SignedDuration = SignedDuration::from_secs(1);
/// A skew worth a warning.
const SKEW: SignedDuration = SignedDuration::from_secs(1);
/// A reading whose answer took longer does not replace a better one ...
const SLOW: Duration = Duration::from_secs(1);
/// ... unless that has become old.
const OLD: Duration = Duration::from_secs(300);

/// The clocks of the node and of the coordination service.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    before: Option<Now>,
    server: Option<ServerTime>,
    /// The skew that people know of.
    reported: SignedDuration,
}

impl Clocks {
    /// By how much the time of day was set since the turn before, if it was.
    fn step(&mut self, now: Now) -> Option<SignedDuration> {
        let before = self.before.replace(now)?;
        let by = now.wall.duration_since(before.wall) - signed(now.up.since(before.up));
        (by.abs() >= STEP).then_some(by)
    }

    /// The service's clock was read.
    pub fn read(&mut self, time: ServerTime, up: Uptime) {
        let is_better = |known: ServerTime| time.took() <= SLOW.max(known.took()) || known.age(up) > OLD;
        if self.server.is_none_or(is_better) {
            self.server = Some(time);
        }
    }

    /// The session is gone; the next reading counts, whatever it is like.
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

    /// How far this node's clock is ahead of the service's, as far as is sure. `None`: there is none, or it was not read yet.
    pub fn skew(&self, now: Now) -> Option<SignedDuration> {
        self.server.map(|time| time.skew(now))
    }

    /// The skew, where it is news: a second or more has come or gone, or it is half as large again, or occurrences begin to wait.
    fn news(&mut self, now: Now) -> Option<SignedDuration> {
        let (skew, reported) = (self.skew(now)?, self.reported);
        let (is_known, was_known) = (skew.abs() >= SKEW, reported.abs() >= SKEW);
        // Not each time that it passes the second.
        let is_over = was_known && skew.abs() < SKEW / 2;
        let is_other = is_known && ((skew - reported).abs() > SKEW.max(reported.abs() / 2) || !was_known);
        let is_rule = (skew > AHEAD) != (reported > AHEAD);
        (is_over || is_other || is_rule).then(|| std::mem::replace(&mut self.reported, skew)).map(|_| skew)
    }

    /// Reports a step of the clock, and a skew that is news.
    pub fn report(&mut self, cx: &mut Context) {
        if let Some(by) = self.step(cx.now) {
            cx.report(Report::ClockStepped { by });
        }
        if let Some(by) = self.news(cx.now) {
            cx.report(Report::ClockSkewed { by, holds: by > AHEAD });
        }
    }
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}
