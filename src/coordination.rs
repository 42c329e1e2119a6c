//! Both ports as one pair of channels, as the daemon holds it and a backend serves it.

use std::sync::Arc;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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

/// The daemon's end. What waits in the channels is bounded by what the daemon has under way.
pub struct Coordination {
    /// Requests to the backend. Closed: the backend is gone.
    pub requests: UnboundedSender<Request>,
    /// Events from the backend.
    pub events: UnboundedReceiver<Event>,
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
}

/// Both ends; `ledger` is for the operator's eyes and wishes.
pub fn channels<L: Reader + Operator + 'static>(ledger: Arc<L>) -> (Coordination, Service) {
    let (request_sender, requests) = unbounded_channel();
    let (event_sender, events) = unbounded_channel();
    let (reader, operator) = (ledger.clone(), ledger);
    (Coordination { requests: request_sender, events, reader, operator }, Service { requests, events: event_sender })
}
