//! How long a node may act without hearing from the quorum.
//!
//! Only an acknowledged quorum write renews it, counted from before the request was handed over.
//! Why half of the session timeout, and how often to write: design, "The lease". Knows no clock and no ZooKeeper.

use std::time::Duration;

use crate::clock::Uptime;

/// The right to act, until an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    session_timeout: Duration,
    until: Uptime,
}

impl Lease {
    /// No right yet, under a session that expires after `session_timeout`.
    pub fn none(session_timeout: Duration) -> Self {
        Self { session_timeout, until: Uptime::ZERO }
    }

    /// The right that a write, acknowledged by a quorum and sent at `sent`, gives. It never shortens the lease.
    pub fn renew(&mut self, sent: Uptime) {
        self.until = self.until.max(sent + self.session_timeout / 2);
    }

    /// Takes the right away: the session is over.
    pub fn end(&mut self) {
        self.until = Uptime::ZERO;
    }

    /// When the right ends.
    pub fn until(&self) -> Uptime {
        self.until
    }

    /// True while the node may act.
    pub fn holds(&self, at: Uptime) -> bool {
        at < self.until
    }

    /// How often to write while leading or running anything: a tenth of the session timeout.
    pub fn write_every(&self) -> Duration {
        self.session_timeout / 10
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const T: Duration = Duration::from_secs(4);

    #[test]
    fn a_write_sent_at_one_second_lets_act_until_half_a_session_later() {
        let mut lease = Lease::none(T);
        lease.renew(Uptime::ZERO + Duration::from_secs(1));
        assert!(lease.holds(Uptime::ZERO + Duration::from_millis(2_999)));
        assert!(!lease.holds(Uptime::ZERO + Duration::from_secs(3)));
    }

    proptest! {
        #[test]
        fn acknowledgements_in_any_order_give_the_newest_ones_lease(mut sent in prop::collection::vec(0u64..1 << 40, 1..20)) {
            let mut lease = Lease::none(T);
            for &at in &sent {
                lease.renew(Uptime::from_nanos(at));
            }
            sent.sort_unstable();
            let newest = Uptime::from_nanos(*sent.last().unwrap_or(&0));
            prop_assert_eq!(lease.until(), newest + T / 2);
        }
    }
}
