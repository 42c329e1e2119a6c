//! Liveness check of the warden: ping it, and declare it dead after several unanswered checks.
//!
//! A warden that is stopped or stuck starts nothing and kills nothing, but its socket stays open. Any notice shows
//! that it works, so a busy warden is merely slow. The check counts turns of the loop that had nothing to read, and
//! does not rely on the clock alone: a daemon that was stopped itself, or was busy, may have notices it has not read.

use std::time::Duration;

use super::{EventLoop, Ports, Stopped, log};
use crate::clock::{Now, Uptime};
use crate::process::{Order, Processes as _};

/// Minimum time between a ping and the next. It is sent when the loop turns anyway.
const PING_EVERY: Duration = Duration::from_secs(2);
/// Time between two checks for an answer.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// The warden is dead after this many checks without an answer.
///
/// No machine is so busy that a process does nothing at all for this long, and a leader that cannot start anything must
/// not wait longer.
const MISSED_CHECKS: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct LivenessCheck {
    /// When the warden was last pinged or checked; absent before the first ping.
    at: Option<Uptime>,
    awaits_answer: bool,
    missed: u32,
}

impl LivenessCheck {
    /// Records that the warden works.
    pub fn on_notice(&mut self) {
        (self.awaits_answer, self.missed) = (false, 0);
    }

    /// Returns true when a ping is due now, and assumes that the caller sends it.
    pub fn starts_ping(&mut self, now: Uptime) -> bool {
        let is_due = !self.awaits_answer && self.at.is_none_or(|at| now >= at + PING_EVERY);
        if is_due {
            (self.awaits_answer, self.at) = (true, Some(now));
        }
        is_due
    }

    /// Records a turn of the loop that had nothing to read. Returns true once the warden counts as dead.
    pub fn is_dead_after_check(&mut self, now: Uptime) -> bool {
        if self.next_check().is_some_and(|at| at <= now) {
            self.at = Some(now);
            self.missed += 1;
        }
        self.missed >= MISSED_CHECKS
    }

    /// When to check for an answer next; absent while none is outstanding.
    pub fn next_check(&self) -> Option<Uptime> {
        self.at.filter(|_| self.awaits_answer).map(|at| at + CHECK_EVERY)
    }
}

impl<P: Ports> EventLoop<P> {
    pub(super) fn ping_warden(&mut self, now: Now) {
        if self.liveness.starts_ping(now.up) {
            self.order(Order::Ping);
        }
    }

    /// Kills a warden that does not respond, and all runs at once.
    ///
    /// Killing the warden makes sure that it cannot start what it was last ordered to. The runs are killed here because
    /// the rest of the shutdown may take longer than the lease lasts.
    pub(super) fn give_up_on_warden(&mut self) -> Stopped {
        log::warden_silent(self.engine.own_runs());
        self.processes.kill_warden();
        let trees = self.trees.attempts();
        self.processes.kill_trees(trees, self.engine.node());
        Stopped::WardenGone(self.leftovers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    /// Checks whenever a check is due, and returns the time at which the warden counts as dead.
    fn dies_at(liveness: &mut LivenessCheck) -> Uptime {
        loop {
            let now = liveness.next_check().expect("it was pinged");
            if liveness.is_dead_after_check(now) {
                return now;
            }
        }
    }

    #[test]
    fn a_silent_warden_is_dead_after_five_checks() {
        let mut liveness = LivenessCheck::default();
        assert!(liveness.starts_ping(at(1_000)));
        assert!(!liveness.starts_ping(at(9_000)), "a ping is outstanding");
        assert_eq!(dies_at(&mut liveness), at(6_000));
    }

    #[test]
    fn any_notice_shows_that_the_warden_works_and_the_next_ping_comes_later() {
        let mut liveness = LivenessCheck::default();
        liveness.starts_ping(at(0));
        for second in 1..=4 {
            assert!(!liveness.is_dead_after_check(at(second * 1_000)));
        }
        liveness.on_notice();
        assert_eq!(liveness.next_check(), None);
        assert!(
            !liveness.is_dead_after_check(at(5_000))
                && !liveness.starts_ping(at(5_000))
                && liveness.starts_ping(at(6_000))
        );
        assert_eq!(dies_at(&mut liveness), at(11_000));
    }

    #[test]
    fn time_in_which_the_daemon_did_not_read_does_not_count() {
        let mut liveness = LivenessCheck::default();
        liveness.starts_ping(at(0));
        assert!(
            !liveness.is_dead_after_check(at(60_000)),
            "the daemon was stopped for a minute, and may not have read the answer"
        );
        assert!(
            (0..100).all(|ms| !liveness.is_dead_after_check(at(60_000 + ms))),
            "one check a second counts, however often the loop turns"
        );
        assert_eq!(dies_at(&mut liveness), at(64_000));
    }
}
