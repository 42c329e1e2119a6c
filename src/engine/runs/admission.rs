//! How many runs are begun at once: as many as can be started well within the lease.
//!
//! What is begun in the ledger is to be started before the lease ends, and the warden starts one process after the other. So a leader
//! begins no more than were started lately in a fraction of its lease; what else is due waits, not begun, in the order in which it
//! is due, and nothing but its misfire window keeps it from being begun later.
//!
//! The limit is measured, not configured: it grows while starts come back quickly, and shrinks in proportion when they take too long
//! (additive increase, multiplicative decrease, as TCP's congestion avoidance, RFC 5681).

use std::time::Duration;

use crate::clock::Uptime;

/// To begin with: a machine that starts no more than this in its budget is a slow one.
const FIRST: f64 = 64.0;
/// A machine that is slower than this still begins so many at once: the commits are worth sharing.
const FEWEST: f64 = 4.0;
/// More at once would not be quicker: the commits keep up.
const MOST: f64 = 1024.0;
/// How much of the session timeout the starts under way may take. Half of it, at least, is left of a lease when it is renewed.
const SHARE: u32 = 10;
/// Without a session, and with a long one.
const LONGEST: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Admission {
    limit: f64,
    budget: Duration,
    /// Starts ordered before this say nothing of the present limit.
    shrunk_at: Uptime,
    /// The limit was reached, and too few have started since.
    is_full: bool,
}

impl Default for Admission {
    fn default() -> Self {
        Self { limit: FIRST, budget: LONGEST, shrunk_at: Uptime::ZERO, is_full: false }
    }
}

impl Admission {
    /// A session that expires after this gives its starts a share of it.
    pub fn under(&mut self, session_timeout: Duration) {
        self.budget = (session_timeout / SHARE).min(LONGEST);
    }

    /// True where one more may be begun beside these. After the limit was reached some have to start first, so that what is begun
    /// next shares its commits.
    pub fn admits(&mut self, starting: usize) -> bool {
        self.is_full = !self.has_room(starting);
        !self.is_full
    }

    /// What [`Admission::admits`] would say.
    pub fn has_room(&self, starting: usize) -> bool {
        let limit = if self.is_full { self.limit * 0.75 } else { self.limit };
        (starting as f64) < limit.max(1.0)
    }

    /// A start that was ordered then has come back, with so many others still under way.
    pub fn started(&mut self, ordered: Uptime, now: Uptime, starting: usize) {
        let took = now.since(ordered);
        if took > self.budget {
            if ordered >= self.shrunk_at {
                let share = self.budget.as_secs_f64() / took.as_secs_f64();
                self.limit = (self.limit * share.max(0.25)).max(FEWEST);
                self.shrunk_at = now;
            }
        } else if took * 2 < self.budget && starting as f64 * 2.0 >= self.limit {
            self.limit = (self.limit + 1.0).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T: Duration = Duration::from_secs(4);

    fn at(micros: u64) -> Uptime {
        Uptime::ZERO + Duration::from_micros(micros)
    }

    /// A warden that starts one process after the other, and a leader with endless work: how long the slowest of the last 1000 starts
    /// took, and how many were under way at most.
    fn keeps_up(micros_a_start: u64, starts: usize) -> (Duration, usize) {
        let mut admission = Admission::default();
        admission.under(T);
        let mut queue = std::collections::VecDeque::new();
        let (mut now, mut took, mut most) = (1_000_000u64, Vec::new(), 0);
        while took.len() < starts {
            while admission.admits(queue.len()) {
                queue.push_back(now);
            }
            most = most.max(queue.len());
            now += micros_a_start;
            let ordered = queue.pop_front().expect("there is always work");
            took.push(at(now).since(at(ordered)));
            admission.started(at(ordered), at(now), queue.len());
        }
        (took.iter().rev().take(1_000).max().copied().unwrap_or_default(), most)
    }

    #[test]
    fn a_quick_machine_begins_hundreds_at_once_and_a_slow_one_few() {
        let (_, quick) = keeps_up(200, 5_000);
        assert!(quick > 400, "{quick}");
        let (took, _) = keeps_up(50_000, 2_000);
        assert!(took < T / 4, "{took:?}");
    }

    #[test]
    fn what_was_full_waits_until_a_quarter_has_started() {
        let mut admission = Admission::default();
        assert!(admission.admits(63));
        assert!(!admission.admits(64));
        assert!(!admission.admits(48));
        assert!(admission.admits(47));
        assert!(admission.admits(63));
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn starts_are_done_well_within_the_lease_however_slow_the_machine(micros_a_start in 100u64..100_000) {
            let (took, _) = keeps_up(micros_a_start, 3_000);
            // Half of the session timeout is what a renewed lease has left at least.
            prop_assert!(took < T / 4, "{took:?} at {micros_a_start} us a start");
        }

        #[test]
        fn one_is_always_admitted_where_none_is_under_way(took in prop::collection::vec(0u64..10_000_000, 0..50)) {
            let mut admission = Admission::default();
            for (number, took) in (0u64..).zip(took) {
                let ordered = at(number * 20_000_000);
                admission.started(ordered, ordered + Duration::from_micros(took), 0);
                prop_assert!(admission.admits(0));
            }
        }
    }
}
