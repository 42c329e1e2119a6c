//! Both ports as one pair of channels, as the daemon holds it and a backend serves it.
//!
//! Beside the events goes the [`Lease`], for thousands of events may wait and nothing that waits may delay it. A longer lease
//! overtakes answers, reads and all that says nothing about who this node is; it never overtakes the word that a lease was taken
//! away, nor the beginning and the end of a session or a term. That is sound: what keeps others from starting a run is that its
//! owner lives, by the session that its record names, and a lease is the proof that this session lives. What is started needs more
//! than a lease: an accepted begin, which comes with the events, in their order.
//!
//! The other way goes when the daemon's loop turned last, so that a backend can tell a node that leads from one whose loop stands
//! still.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::clock::Uptime;
use crate::ledger::{Operator, Reader};
use crate::{election, ledger};

/// What the daemon asks, in order.
#[expect(clippy::large_enum_variant, reason = "nearly all requests are commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Of the election.
    Election(election::Request),
    /// Of the ledger.
    Ledger(ledger::Request),
}

/// What a backend tells, in order.
#[expect(clippy::large_enum_variant, reason = "nearly all events are of the ledger")]
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Of the election.
    Election(election::Event),
    /// Of the ledger.
    Ledger(ledger::Event),
}

/// The lease as of some point in the events: what was told last, or heard last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// It ends then; zero: nothing was said of it since.
    pub until: Uptime,
    /// How many events there were that end or begin what a lease is about.
    bounds: u64,
}

impl Lease {
    /// Before the first event.
    pub const NONE: Self = Self { until: Uptime::ZERO, bounds: 0 };

    /// Takes note of an event.
    pub fn follow(&mut self, event: &Event) {
        use election::Event as E;
        match event {
            Event::Election(E::Lease { until }) if *until > Uptime::ZERO => self.until = *until,
            Event::Election(
                E::Lease { .. } | E::Session { .. } | E::Expired { .. } | E::Elected { .. } | E::Over { .. },
            ) => *self = Self { until: Uptime::ZERO, bounds: self.bounds + 1 },
            _ => {}
        }
    }

    /// True where an event lies between the two that none may overtake.
    pub fn is_of_another_time(&self, other: &Self) -> bool {
        self.bounds != other.bounds
    }
}

/// The daemon's end. What waits in the channels is bounded by what the daemon has under way.
pub struct Coordination {
    /// Requests to the backend. Closed: the backend is gone.
    pub requests: UnboundedSender<Request>,
    /// Events from the backend.
    pub events: UnboundedReceiver<Event>,
    /// The lease as of the newest event.
    pub lease: watch::Receiver<Lease>,
    /// When the daemon's loop turned last.
    pub turned: watch::Sender<Uptime>,
    /// Reads for the operator's eyes.
    pub reader: Arc<dyn Reader>,
    /// What operators want, written down.
    pub operator: Arc<dyn Operator>,
}

/// The backend's end.
pub struct Service {
    /// Requests of the daemon. Closed: the daemon is gone.
    pub requests: UnboundedReceiver<Request>,
    /// Events to the daemon.
    pub events: UnboundedSender<Event>,
    /// The lease, past all events that wait.
    pub lease: watch::Sender<Lease>,
    /// When the daemon's loop turned last; zero: it has not begun.
    pub turned: watch::Receiver<Uptime>,
}

impl Service {
    /// Tells an event, and the lease beside it. A daemon that is gone is noticed by its closed channel.
    pub fn tell(&self, event: Event) {
        self.lease.send_modify(|lease| lease.follow(&event));
        let _ = self.events.send(event);
    }
}

/// Both ends; `ledger` is for the operator's eyes and requests.
pub fn channels<L: Reader + Operator + 'static>(ledger: Arc<L>) -> (Coordination, Service) {
    let (request_sender, requests) = unbounded_channel();
    let (event_sender, events) = unbounded_channel();
    let (lease_sender, lease) = watch::channel(Lease::NONE);
    let (turned, turns) = watch::channel(Uptime::ZERO);
    let (reader, operator) = (ledger.clone(), ledger);
    (
        Coordination { requests: request_sender, events, lease, turned, reader, operator },
        Service { requests, events: event_sender, lease: lease_sender, turned: turns },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::{CandidateName, FencingToken, SessionId, Term, TermEnd};

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + std::time::Duration::from_secs(seconds)
    }

    #[test]
    fn a_longer_lease_is_of_the_same_time_and_nothing_that_ends_one_is() {
        use election::Event as E;
        let heard = Lease::NONE;
        let mut told = heard;
        told.follow(&Event::Election(E::Lease { until: at(5) }));
        told.follow(&Event::Election(E::Members(Vec::new())));
        assert!(!told.is_of_another_time(&heard) && told.until == at(5));
        let session = SessionId("1".into());
        let term = Term { token: FencingToken(1), candidate: CandidateName("c".into()) };
        for bound in [
            E::Lease { until: Uptime::ZERO },
            E::Session { id: session.clone(), timeout: std::time::Duration::from_secs(4) },
            E::Expired { session },
            E::Over { term, why: TermEnd::LeaseOver },
        ] {
            let mut told = told;
            told.follow(&Event::Election(bound));
            assert!(told.is_of_another_time(&heard) && told.until == Uptime::ZERO);
        }
    }
}
