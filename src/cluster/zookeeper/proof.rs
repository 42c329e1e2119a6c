//! What acknowledged writes prove of a session with ZooKeeper.
//!
//! A session expires when the ensemble's leader has not been notified of it for the session timeout T. The session's
//! writes do not notify the leader: a follower server forwards them without saying whose session is alive. It reports
//! live sessions only in its answer to the leader's next ping, at most half a tick later; two ticks are at most T. So a
//! single write, the first after a silence, may be acknowledged just before the session expires. It proves nothing.
//!
//! Two writes do prove something. Suppose that a write is acknowledged that was sent at least T/4 after the answer to
//! another write. Then the leader was notified of the session after the first write was sent, because the follower's
//! answer to the ping travelled ahead of the second write on the one connection between the two servers. (The T/4 count
//! from the answer, because a first write that the network lost and sent again may have arrived just before the
//! second.) The leader then keeps the session for at least T from the sending of the first write.

use std::time::Duration;

use cronkeeper_core::clock::Uptime;
use cronkeeper_core::lease::Proof;

/// Of two acknowledged writes a ping apart, the first is proven.
#[derive(Clone, Debug)]
pub struct PairedWrites {
    session_timeout: Duration,
    /// The ensemble's leader was notified of the session after this; `None` if nothing is proven.
    proven: Option<Uptime>,
    newest: Uptime,
    /// Acknowledged writes that a later one may prove, oldest first. Of writes close together, only the first is kept.
    unproven: Vec<AcknowledgedWrite>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AcknowledgedWrite {
    sent: Uptime,
    answered: Uptime,
}

impl PairedWrites {
    pub fn new(session_timeout: Duration) -> Self {
        Self { session_timeout, proven: None, newest: Uptime::ZERO, unproven: Vec::new() }
    }

    /// Keeps at most one write for each 1/40 of the session timeout, so that the list is bounded.
    fn remember(&mut self, write: AcknowledgedWrite) {
        if self.proven.is_some_and(|proven| write.sent <= proven) {
            return;
        }
        let step = (self.session_timeout / 40).as_nanos().max(1);
        let interval = |write: &AcknowledgedWrite| write.sent.since(Uptime::ZERO).as_nanos() / step;
        let at = self.unproven.partition_point(|earlier| interval(earlier) < interval(&write));
        match self.unproven.get_mut(at).filter(|same| interval(same) == interval(&write)) {
            Some(same) if write.sent < same.sent => *same = write,
            Some(_) => {}
            None => self.unproven.insert(at, write),
        }
    }
}

impl Proof for PairedWrites {
    fn acknowledged(&mut self, sent: Uptime, answered: Uptime) -> Option<Uptime> {
        self.newest = self.newest.max(sent);
        self.remember(AcknowledgedWrite { sent, answered });
        let (ping, newest) = (self.session_timeout / 4, self.newest);
        let last = self.unproven.iter().rposition(|write| write.answered + ping <= newest);
        let newly_proven = last.and_then(|last| self.unproven.drain(..=last).next_back());
        self.proven = newly_proven.map(|write| write.sent).max(self.proven);
        self.proven
    }

    fn clear(&mut self) {
        *self = Self::new(self.session_timeout);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use cronkeeper_core::lease::Lease;

    const T: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    fn lease() -> Lease<PairedWrites> {
        Lease::of_session(T, at(10_000), PairedWrites::new(T))
    }

    #[test]
    fn the_first_write_after_a_silence_proves_nothing() {
        let mut lease = lease();
        lease.renew(at(20_000), at(20_000));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(20_999), at(20_999));
        assert_eq!(lease.until(), at(13_400), "there may have been no ping between the two");
        lease.renew(at(21_000), at(21_000));
        assert_eq!(lease.until(), at(23_400));
    }

    #[test]
    fn two_writes_that_may_have_arrived_together_prove_nothing() {
        let mut lease = lease();
        // The first was lost and sent again: its answer arrived with the answer to the second.
        lease.renew(at(20_000), at(21_100));
        lease.renew(at(21_000), at(21_100));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(22_099), at(22_110));
        assert_eq!(lease.until(), at(13_400));
        lease.renew(at(22_100), at(22_110));
        assert_eq!(lease.until(), at(24_400), "a ping reported the session between the second write and this one");
    }

    #[test]
    fn an_ended_lease_needs_a_new_proof() {
        let mut lease = lease();
        lease.end();
        assert_eq!(lease.until(), Uptime::ZERO);
        lease.renew(at(12_000), at(12_000));
        assert_eq!(lease.until(), Uptime::ZERO);
        lease.renew(at(13_000), at(13_000));
        assert_eq!(lease.until(), at(15_400));
    }

    #[test]
    fn with_a_write_every_tenth_the_lease_reaches_half_a_session_beyond_the_newest() {
        let mut lease = lease();
        for sent in (10_000..60_000).step_by(400) {
            lease.renew(at(sent), at(sent));
            assert!(lease.until() >= at(sent) + T / 2, "at {sent}: {lease:?}");
        }
    }

    #[test]
    fn a_candidate_in_the_queue_always_holds_a_lease() {
        let mut lease = lease();
        for sent in (10_000..60_000).step_by(800) {
            assert!(lease.until() >= at(sent) + T / 5, "at {sent}: {lease:?}");
            lease.renew(at(sent), at(sent));
        }
    }

    proptest! {
        #![proptest_config(crate::fuzz::proptest_config())]
        #[test]
        fn the_lease_is_what_two_writes_a_ping_apart_prove_up_to_a_fortieth(
            writes in prop::collection::vec((0u64..60_000, 0u64..200), 1..300),
        ) {
            let mut proof = PairedWrites::new(T);
            let mut lease = Lease::of_session(T, Uptime::ZERO, proof.clone());
            let mut seen = vec![(0, 0)];
            for (sent, took) in writes {
                let before = lease.until();
                lease.renew(at(sent), at(sent + took));
                proof.acknowledged(at(sent), at(sent + took));
                seen.push((sent, sent + took));
                let newest = seen.iter().map(|&(sent, _)| sent).max().unwrap_or(0);
                let proven = |by: &dyn Fn(u64, u64) -> u64| {
                    let proven = seen.iter().filter(|&&(sent, answered)| sent == 0 || by(sent, answered) + 1_000 <= newest);
                    proven.map(|&(sent, _)| sent).max().unwrap_or(0)
                };
                prop_assert!(lease.until() >= before, "it never shortens");
                let most = proven(&|_, answered| answered);
                prop_assert!(lease.until() <= at(most + 3_400), "a single write proves nothing");
                // Only the first of several writes close together is kept, and its answer may be the latest.
                let least = proven(&|sent, _| sent + 100 + 200);
                prop_assert!(lease.until() + T / 40 >= at(least + 3_400), "{} is proven", least);
                prop_assert!(proof.unproven.len() <= 20, "{} are kept", proof.unproven.len());
            }
        }
    }
}
