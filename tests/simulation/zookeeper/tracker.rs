//! The session tracker of the ensemble's leader.
//!
//! A session expires in the first tick after its timeout has passed since it was last active. A new leader restarts the
//! timeouts of all sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use cronkeeper_core::clock::Uptime;

use super::super::network::Conn;
use super::txn::Session;

/// The server, and its connection to the leader, through which a session's client is connected; no connection for the
/// leader's own clients.
pub type Owner = (usize, Option<Conn>);

pub struct Tracker {
    tick: Duration,
    timeout: Duration,
    /// The origin from which ticks are counted.
    origin: Uptime,
    sessions: BTreeMap<Session, Tracked>,
}

struct Tracked {
    expires: Uptime,
    owner: Option<Owner>,
}

/// The reason why the leader refuses a write before proposing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// The session is over, or about to be.
    Over,
    /// The session's client has connected to another server.
    Moved,
}

impl Tracker {
    pub fn new(tick: Duration, timeout: Duration, origin: Uptime) -> Self {
        Self { tick, timeout, origin, sessions: BTreeMap::new() }
    }

    pub fn open(&mut self, now: Uptime, session: Session, owner: Option<Owner>) {
        let expires = self.expiry(now);
        self.sessions.insert(session, Tracked { expires, owner });
    }

    /// Notes that the client was active. False if the session is over.
    pub fn touch(&mut self, now: Uptime, session: Session) -> bool {
        let expires = self.expiry(now);
        let tracked = self.sessions.get_mut(&session);
        tracked.map(|tracked| tracked.expires = tracked.expires.max(expires)).is_some()
    }

    /// Notes that the client connects through another server. False if the session is over.
    pub fn reopen(&mut self, now: Uptime, session: Session, owner: Owner) -> bool {
        if let Some(tracked) = self.sessions.get_mut(&session) {
            tracked.owner = Some(owner);
        }
        self.touch(now, session)
    }

    pub fn check(&mut self, session: Session, owner: Owner) -> Result<(), Stale> {
        let tracked = self.sessions.get_mut(&session).ok_or(Stale::Over)?;
        if *tracked.owner.get_or_insert(owner) == owner { Ok(()) } else { Err(Stale::Moved) }
    }

    /// The time at which a session ends if nothing more arrives from it.
    pub fn end(&self, session: Session) -> Option<Uptime> {
        self.sessions.get(&session).map(|tracked| tracked.expires)
    }

    /// The sessions to close now. Their writes are refused from here on.
    pub fn expire(&mut self, now: Uptime) -> Vec<Session> {
        let over: Vec<Session> =
            self.sessions.iter().filter(|(_, tracked)| tracked.expires <= now).map(|(session, _)| *session).collect();
        for session in &over {
            self.sessions.remove(session);
        }
        over
    }

    fn expiry(&self, now: Uptime) -> Uptime {
        self.next_tick(now + self.timeout)
    }

    /// The first tick after an instant.
    pub fn next_tick(&self, at: Uptime) -> Uptime {
        let tick = self.tick.as_nanos() as u64;
        // From a tick later, because the origin may still be in the future.
        let since = (at + self.tick).since(self.origin).as_nanos() as u64;
        self.origin + Duration::from_nanos(since / tick * tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(500);
    const T: Duration = Duration::from_secs(2);

    fn at(ms: u64) -> Uptime {
        Uptime::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_session_expires_at_the_tick_after_its_timeout() {
        let mut tracker = Tracker::new(TICK, T, at(0));
        tracker.open(at(100), 1, None);
        assert!(tracker.expire(at(2_499)).is_empty());
        assert_eq!(tracker.expire(at(2_500)), vec![1]);
        assert!(!tracker.touch(at(2_500), 1));
    }

    #[test]
    fn a_session_of_a_new_leader_expires_at_a_tick_too() {
        let mut tracker = Tracker::new(TICK, T, at(1_300));
        tracker.open(at(1_000), 1, None);
        assert_eq!((tracker.next_tick(at(1_000)), tracker.end(1)), (at(1_300), Some(at(3_300))));
    }

    #[test]
    fn a_touch_puts_the_end_off() {
        let mut tracker = Tracker::new(TICK, T, at(0));
        tracker.open(at(100), 1, None);
        assert!(tracker.touch(at(600), 1));
        assert!(tracker.expire(at(2_500)).is_empty());
        assert_eq!(tracker.expire(at(3_000)), vec![1]);
    }

    #[test]
    fn a_write_through_a_connection_that_the_client_left_is_refused() {
        let (here, there) = ((0, None), (1, Some(Conn(5))));
        let mut tracker = Tracker::new(TICK, T, at(0));
        tracker.open(at(0), 1, Some(here));
        assert_eq!(tracker.check(1, here), Ok(()));
        tracker.reopen(at(0), 1, there);
        assert_eq!(tracker.check(1, here), Err(Stale::Moved));
        assert_eq!(tracker.check(1, there), Ok(()));
        assert_eq!(tracker.check(2, there), Err(Stale::Over));
    }
}
