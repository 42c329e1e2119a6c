//! How long a node may act without hearing from the quorum.
//!
//! A session expires when the leader of the ensemble has not heard of it for the session timeout T. It does not hear of it by
//! the session's writes: a follower server forwards those without a word on who lives, and says so only in its answer to the
//! next ping, at most half a tick later; and two ticks are at most T. So a lone write, the first after a silence, may be
//! acknowledged just before the session expires: it proves nothing.
//!
//! Two writes do. When a write sent at least T/4 after the answer to another is acknowledged, the leader had heard of the session
//! after the first was sent, for on the one line between the servers the answer to the ping went before the second. (After the
//! answer: what the network lost and sent again may have come just before the second.) From the first one on it gives the session
//! T. The node takes 0.85 T of that; what is left is for killing. The creation of the session is such a proof by itself: the
//! leader counts T from then, and that was after the node asked for it.
//!
//! With a write every T/10 this is half a session timeout and more from the newest write on. Knows no clock and no ZooKeeper.

use std::time::Duration;

use crate::clock::Uptime;

/// How long a loop that decides may stand still: a node whose loop does for longer takes no part.
pub fn longest_standstill(session_timeout: Duration) -> Duration {
    session_timeout / 2
}

/// The right to act, until an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    session_timeout: Duration,
    /// The leader had heard of the session after this; absent: nothing is proven.
    heard_of: Option<Uptime>,
    newest: Uptime,
    /// Acknowledged writes that a later one may prove, the oldest first; of those close together only the first.
    unproven: Vec<Acknowledged>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Acknowledged {
    sent: Uptime,
    answered: Uptime,
}

impl Lease {
    /// Under a new session that expires after `session_timeout`, and was asked for at `asked`.
    pub fn of_session(session_timeout: Duration, asked: Uptime) -> Self {
        Self { session_timeout, heard_of: Some(asked), newest: asked, unproven: Vec::new() }
    }

    /// Takes note that a quorum acknowledged, by `answered`, a write sent at `sent`. It never shortens the lease.
    pub fn renew(&mut self, sent: Uptime, answered: Uptime) {
        self.newest = self.newest.max(sent);
        self.remember(Acknowledged { sent, answered });
        let (ping, newest) = (self.session_timeout / 4, self.newest);
        let proven = self.unproven.iter().rposition(|write| write.answered + ping <= newest);
        let proven = proven.and_then(|last| self.unproven.drain(..=last).next_back());
        self.heard_of = proven.map(|write| write.sent).max(self.heard_of);
    }

    /// At most one to each fortieth of the session timeout: so what waits for a proof is bounded.
    fn remember(&mut self, write: Acknowledged) {
        if self.heard_of.is_some_and(|heard_of| write.sent <= heard_of) {
            return;
        }
        let step = (self.session_timeout / 40).as_nanos().max(1);
        let tree_id = |write: &Acknowledged| write.sent.since(Uptime::ZERO).as_nanos() / step;
        let at = self.unproven.partition_point(|earlier| tree_id(earlier) < tree_id(&write));
        match self.unproven.get_mut(at).filter(|same| tree_id(same) == tree_id(&write)) {
            Some(same) if write.sent < same.sent => *same = write,
            Some(_) => {}
            None => self.unproven.insert(at, write),
        }
    }

    /// Takes the right away. Writes acknowledged from now on may give it back.
    pub fn end(&mut self) {
        (self.heard_of, self.newest) = (None, Uptime::ZERO);
        self.unproven.clear();
    }

    /// When the right ends.
    pub fn until(&self) -> Uptime {
        self.heard_of.map_or(Uptime::ZERO, |heard_of| heard_of + self.session_timeout * 17 / 20)
    }

    /// True while the node may act.
    pub fn holds(&self, at: Uptime) -> bool {
        at < self.until()
    }

    /// From the end of the lease, or from the order to kill, until the daemon kills by itself what the warden has not said is dead.
    /// A third of what is left of the session when the lease ends: the warden needs milliseconds of it, and two thirds are for
    /// killing. At most half of the second that kept runs end before the next of their job.
    pub fn timeout(session_timeout: Duration) -> Duration {
        (session_timeout / 20).min(Duration::from_millis(500))
    }

    /// How often to write while leading or running anything: a tenth of the session timeout.
    pub fn write_every(&self) -> Duration {
        self.session_timeout / 10
    }

    /// How often to write while waiting in the queue, so that the lease holds as soon as the node leads.
    pub fn write_every_in_queue(&self) -> Duration {
        self.session_timeout / 5
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    fn lease() -> Lease {
        Lease::of_session(T, at(10_000))
    }

    #[test]
    fn a_new_session_lets_act_from_when_it_was_asked_for() {
        assert!(lease().holds(at(13_399)));
        assert!(!lease().holds(at(13_400)));
    }

    #[test]
    fn the_second_line_kills_well_before_the_session_can_end() {
        let left = T - lease().until().since(at(10_000));
        assert_eq!(Lease::timeout(T), left / 3);
        assert_eq!(Lease::timeout(Duration::MAX), Duration::from_millis(500));
    }

    #[test]
    fn the_first_write_after_a_silence_gives_nothing() {
        let mut lease = lease();
        lease.renew(at(20_000), at(20_000));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(20_999), at(20_999));
        assert_eq!(lease.until(), at(13_400), "the leader may not have been asked between the two");
        lease.renew(at(21_000), at(21_000));
        assert_eq!(lease.until(), at(23_400));
    }

    #[test]
    fn two_writes_that_may_have_come_together_prove_nothing() {
        let mut lease = lease();
        // The first was lost and sent again: its answer came with that to the second.
        lease.renew(at(20_000), at(21_100));
        lease.renew(at(21_000), at(21_100));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(22_099), at(22_110));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(22_100), at(22_110));
        assert_eq!(lease.until(), at(24_400), "the second was heard of before this one");
    }

    #[test]
    fn a_lease_taken_away_is_earned_anew() {
        let mut lease = lease();
        lease.end();
        assert_eq!(lease.until(), Uptime::ZERO);
        lease.renew(at(12_000), at(12_000));
        assert_eq!(lease.until(), Uptime::ZERO);
        lease.renew(at(13_000), at(13_000));
        assert_eq!(lease.until(), at(15_400));
    }

    #[test]
    fn written_to_every_tenth_it_always_reaches_half_a_session_beyond_the_newest_write() {
        let mut lease = lease();
        for sent in (10_000..60_000).step_by(400) {
            lease.renew(at(sent), at(sent));
            assert!(lease.until() >= at(sent) + T / 2, "at {sent}: {lease:?}");
        }
    }

    #[test]
    fn a_candidate_in_the_queue_always_has_a_lease_to_lead_by() {
        let mut lease = lease();
        for sent in (10_000..60_000).step_by(800) {
            assert!(lease.until() >= at(sent) + T / 5, "at {sent}: {lease:?}");
            lease.renew(at(sent), at(sent));
        }
    }

    proptest! {
        #[test]
        fn it_is_what_two_writes_a_ping_apart_prove_but_for_a_fortieth(
            writes in prop::collection::vec((0u64..60_000, 0u64..200), 1..300),
        ) {
            let mut lease = Lease::of_session(T, Uptime::ZERO);
            let mut seen = vec![(0, 0)];
            for (sent, took) in writes {
                let before = lease.until();
                lease.renew(at(sent), at(sent + took));
                seen.push((sent, sent + took));
                let newest = seen.iter().map(|&(sent, _)| sent).max().unwrap_or(0);
                let proven = |by: &dyn Fn(u64, u64) -> u64| {
                    let proven = seen.iter().filter(|&&(sent, answered)| sent == 0 || by(sent, answered) + 1_000 <= newest);
                    proven.map(|&(sent, _)| sent).max().unwrap_or(0)
                };
                prop_assert!(lease.until() >= before, "it never shortens");
                let most = proven(&|_, answered| answered);
                prop_assert!(lease.until() <= at(most + 3_400), "one write alone counts for nothing");
                // Of those close together the first is kept, whose answer may have come latest.
                let least = proven(&|sent, _| sent + 100 + 200);
                prop_assert!(lease.until() + T / 40 >= at(least + 3_400), "{} is proven", least);
                prop_assert!(lease.unproven.len() <= 20, "{} are kept", lease.unproven.len());
            }
        }
    }
}
