//! Limit on attempts that are starting at once, so that each starts well within the lease.
//!
//! A begun attempt must be started before the lease ends, and the warden starts one process after the other. So a
//! leader begins no more attempts than were recently started in a fraction of its lease. Other due runs wait, not
//! begun, in the order in which they are due, and are begun later unless their misfire window is over.
//!
//! The limit is measured, not configured: it grows while starts return quickly, and shrinks in proportion when they
//! take too long (additive increase, multiplicative decrease, like TCP's congestion avoidance, RFC 5681).

use std::time::Duration;

use crate::clock::Uptime;

/// Initial limit. A machine that cannot start this many in its budget is slow.
const FIRST: f64 = 64.0;
/// Lowest limit, even on a slower machine, so that begins share commits.
const FEWEST: f64 = 4.0;
/// Highest limit. More at once would not be faster, because commits keep up with this.
const MOST: f64 = 1024.0;
/// Divisor of the session timeout that gives the budget for starts in flight. A renewed lease has at least half a
/// session timeout left.
const SHARE: u32 = 10;
/// Budget without a session, and upper limit of the budget.
const LONGEST: Duration = Duration::from_secs(1);

/// The current limit on starting attempts.
#[derive(Debug)]
pub(super) struct Admission {
    limit: f64,
    budget: Duration,
    /// Starts that were ordered before this show nothing about the current limit.
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
    /// Takes the session timeout that the budget is derived from.
    pub fn under(&mut self, session_timeout: Duration) {
        self.budget = (session_timeout / SHARE).min(LONGEST);
    }

    /// True if one more attempt may be begun while `starting` others are starting. Once the limit was reached, a
    /// quarter of them must start first, so that the next begins share commits.
    pub fn admits(&mut self, starting: usize) -> bool {
        self.is_full = !self.has_room(starting);
        !self.is_full
    }

    /// The result that [`Admission::admits`] would return.
    pub fn has_room(&self, starting: usize) -> bool {
        let limit = if self.is_full { self.limit * 0.75 } else { self.limit };
        (starting as f64) < limit.max(1.0)
    }

    /// Adapts the limit to a start that has returned, with `starting` others still in flight.
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

    /// Simulates a warden that starts one process after the other, and a leader with endless work. Returns the time of
    /// the slowest of the last 1000 starts, and the most starts that were in flight.
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
