//! The lease: the time during which a node may act.
//!
//! A service keeps a session for the session timeout T after each sign of life. What an acknowledged write proves of
//! that is the service's affair: its [`Proof`] knows. The node uses 0.85 T from the newest proven sign of life and
//! leaves the rest for killing. The creation of the session is a proof by itself: the service counts T from the
//! creation, which is after the node's request.
//!
//! With a write every T/10, the lease always reaches at least T/2 beyond the newest write, whatever the service. This
//! module uses neither a clock nor a service.

use std::fmt::Debug;
use std::time::Duration;

use crate::clock::Uptime;

/// What the acknowledged writes of a session prove.
pub trait Proof: Debug + Send + Sync + 'static {
    /// Records a write sent at `sent` that the service had acknowledged by `answered`. Returns the latest instant after
    /// which the service certainly had a sign of life of the session; `None` if the writes so far prove nothing.
    fn acknowledged(&mut self, sent: Uptime, answered: Uptime) -> Option<Uptime>;

    /// Forgets all writes: none of them counts any more.
    fn clear(&mut self);
}

/// Each acknowledged write proves that the session lived when it was sent: the service has compared that.
#[derive(Clone, Copy, Debug)]
pub struct EachWrite;

impl Proof for EachWrite {
    fn acknowledged(&mut self, sent: Uptime, _answered: Uptime) -> Option<Uptime> {
        Some(sent)
    }

    fn clear(&mut self) {}
}

/// The longest time a daemon's loop may be stuck. Beyond it the node stops taking part.
pub fn longest_standstill(session_timeout: Duration) -> Duration {
    session_timeout / 2
}

/// The time the warden gets to kill, from the end of the lease or from the order. After it the daemon itself kills all
/// processes that the warden has not reported dead.
///
/// It is a third of the session time that remains when the lease ends: the warden needs only milliseconds, and two
/// thirds are left for killing. It is at most 500 ms, half of the second by which kept runs end before their job's next
/// run.
pub fn kill_timeout(session_timeout: Duration) -> Duration {
    (session_timeout / 20).min(Duration::from_millis(500))
}

/// Permission to act until an instant.
#[derive(Clone, Debug)]
pub struct Lease<P> {
    session_timeout: Duration,
    /// The service had a sign of life of the session after this; `None` if nothing is proven.
    proven: Option<Uptime>,
    proof: P,
}

impl<P: Proof> Lease<P> {
    /// The lease of a new session that expires after `session_timeout` and was requested at `requested`.
    pub fn of_session(session_timeout: Duration, requested: Uptime, proof: P) -> Self {
        Self { session_timeout, proven: Some(requested), proof }
    }

    /// Records a write sent at `sent` that the service had acknowledged by `answered`. Never shortens the lease.
    pub fn renew(&mut self, sent: Uptime, answered: Uptime) {
        self.proven = self.proof.acknowledged(sent, answered).max(self.proven);
    }

    /// Ends the lease now. Only writes acknowledged from now on can renew it.
    pub fn end(&mut self) {
        self.proven = None;
        self.proof.clear();
    }

    /// When the right ends.
    pub fn until(&self) -> Uptime {
        self.proven.map_or(Uptime::ZERO, |proven| proven + self.session_timeout * 17 / 20)
    }

    /// True while the node may act.
    pub fn holds(&self, at: Uptime) -> bool {
        at < self.until()
    }

    /// Interval between writes while the node leads or runs anything: a tenth of the session timeout.
    pub fn write_every(&self) -> Duration {
        self.session_timeout / 10
    }

    /// Interval between writes while waiting in the queue, so that the lease holds as soon as the node leads.
    pub fn write_every_in_queue(&self) -> Duration {
        self.session_timeout / 5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(4);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    fn lease() -> Lease<EachWrite> {
        Lease::of_session(T, at(10_000), EachWrite)
    }

    #[test]
    fn the_lease_of_a_new_session_counts_from_the_request() {
        assert!(lease().holds(at(13_399)));
        assert!(!lease().holds(at(13_400)));
    }

    #[test]
    fn the_daemon_kills_well_before_the_session_can_end() {
        let left = T - lease().until().since(at(10_000));
        assert_eq!(kill_timeout(T), left / 3);
        assert_eq!(kill_timeout(Duration::MAX), Duration::from_millis(500));
    }

    #[test]
    fn a_late_answer_to_an_early_write_does_not_shorten_it() {
        let mut lease = lease();
        lease.renew(at(20_000), at(20_010));
        lease.renew(at(19_000), at(21_000));
        assert_eq!(lease.until(), at(23_400));
    }

    #[test]
    fn an_ended_lease_needs_a_new_proof() {
        let mut lease = lease();
        lease.end();
        assert_eq!(lease.until(), Uptime::ZERO);
        lease.renew(at(12_000), at(12_000));
        assert_eq!(lease.until(), at(15_400));
    }
}
