//! Whether the warden lives: it is asked every now and then, and one that says nothing any more counts as dead.
//!
//! A warden that is stopped or stuck starts nothing and kills nothing, and closes no socket. Any word of it is a sign of life, so
//! that one with much to do is slow and not silent. Its silence is counted in looks that found nothing to read, and not by the
//! clock alone: a daemon that stood still itself, or has much else to do, has not listened.

use std::time::Duration;

use super::{Daemon, Processes, Stopped, log};
use crate::clock::{Clock, Now, Uptime};
use crate::run::journal::Journal;
use crate::warden::wire::Order;

/// How long to leave a warden alone that has answered. It is asked when the loop turns anyway.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Between two looks for an answer.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// So many looks in vain are the end of it: no machine is so busy that a process does nothing at all for so long, and a leader
/// that can start nothing has waited long enough.
const LOOKS: u32 = 5;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LivenessCheck {
    /// It was asked or looked for last then; absent: never.
    at: Option<Uptime>,
    awaits: bool,
    looks: u32,
}

impl LivenessCheck {
    /// Something was heard of it.
    pub fn heard(&mut self) {
        (self.awaits, self.looks) = (false, 0);
    }

    /// True where it is to be asked now.
    pub fn asks(&mut self, now: Uptime) -> bool {
        let asks = !self.awaits && self.at.is_none_or(|at| now >= at + ASK_EVERY);
        if asks {
            (self.awaits, self.at) = (true, Some(now));
        }
        asks
    }

    /// The loop turned for want of anything to hear. True where the warden counts as dead.
    pub fn looked(&mut self, now: Uptime) -> bool {
        if self.next_look().is_some_and(|at| at <= now) {
            self.at = Some(now);
            self.looks += 1;
        }
        self.looks >= LOOKS
    }

    /// When to look for its answer next.
    pub fn next_look(&self) -> Option<Uptime> {
        self.at.filter(|_| self.awaits).map(|at| at + LOOK_EVERY)
    }
}

impl<K: Clock, P: Processes, J: Journal> Daemon<K, P, J> {
    /// Asks the warden for a sign of life, if it is time.
    pub(super) fn ask_warden(&mut self, now: Now) {
        if self.liveness.asks(now.up) {
            self.order(&Order::Ping);
        }
    }

    /// A warden that says nothing is as good as dead, and is made so: what it was told to start last can then never start. Its trees
    /// are killed at once, for the rest of the end may take longer than the lease.
    pub(super) fn give_warden_up(&mut self) -> Stopped {
        log::warden_silent(self.engine.own_runs());
        self.processes.kill_warden();
        let trees = self.trees.attempts();
        self.processes.kill_trees(trees, &self.settings.launcher.node);
        Stopped::WardenGone(self.left())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    /// Looks whenever it wants to; the second of its death.
    fn dies_at(liveness: &mut LivenessCheck) -> Uptime {
        loop {
            let now = liveness.next_look().expect("it was asked");
            if liveness.looked(now) {
                return now;
            }
        }
    }

    #[test]
    fn who_says_nothing_any_more_is_dead_after_some_seconds() {
        let mut liveness = LivenessCheck::default();
        assert!(liveness.asks(at(1_000)));
        assert!(!liveness.asks(at(9_000)), "it was asked");
        assert_eq!(dies_at(&mut liveness), at(6_000));
    }

    #[test]
    fn any_word_is_a_sign_of_life_and_it_is_asked_again_later() {
        let mut liveness = LivenessCheck::default();
        liveness.asks(at(0));
        for second in 1..=4 {
            assert!(!liveness.looked(at(second * 1_000)));
        }
        liveness.heard();
        assert_eq!(liveness.next_look(), None);
        assert!(!liveness.looked(at(5_000)) && !liveness.asks(at(5_000)) && liveness.asks(at(6_000)));
        assert_eq!(dies_at(&mut liveness), at(11_000));
    }

    #[test]
    fn the_time_in_which_the_daemon_did_not_listen_does_not_count() {
        let mut liveness = LivenessCheck::default();
        liveness.asks(at(0));
        assert!(!liveness.looked(at(60_000)), "it stood still for a minute, and may have the answer unread");
        assert!(
            (0..100).all(|ms| !liveness.looked(at(60_000 + ms))),
            "one look a second counts, however often it turns"
        );
        assert_eq!(dies_at(&mut liveness), at(64_000));
    }
}
