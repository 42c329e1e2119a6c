//! The channels between the daemon and a backend.
//!
//! One pair of channels carries the requests and events of [`election`], [`ledger`] and [`run_lock`].
//!
//! The [`Lease`] travels apart from the events, because thousands of events may be queued and none of them may delay
//! it. An extended lease overtakes answers, reads and all other events that do not concern this node's identity. It
//! never overtakes the withdrawal of a lease, nor the beginning or end of a session or a term. This is safe: other
//! nodes do not start a run while the session that its record names is alive, and a lease proves exactly that this
//! session is alive. To start a process, a node needs more than a lease: an accepted begin, which arrives with the
//! events, in order.
//!
//! In the other direction the daemon reports when its loop last made progress, so that a backend can distinguish a
//! leader that works from one whose loop is stuck.
//!
//! Every backend keeps this order of events, and the daemon relies on it:
//! - `Wanted` comes before the first `Joined` of a session, and while it says that the node is drained, the node does not
//!   join.
//! - `Session` comes before the first `Joined`, `Joined` before `Elected`; another session only after the old one's
//!   `Expired`. The backend reports the same session again when the member was gone and has been recreated: another
//!   node may have settled this node's runs in the meantime.
//! - `Over` comes before the next `Joined`, before `Withdrawn` and before `Failed`.
//! - The answers to a leader's commits come before its `Over`; a commit that only a leader may write and that arrives
//!   later is `Fenced`. `Over` does not wait for them in three cases: when the lease ends, when the daemon's loop is
//!   stalled, and when the connection is lost too. A late answer reports what is on record; a run whose begin is
//!   `Accepted` after `Over` must not be started, only ended.
//! - When a session is lost: answers (`Unknown` for what was sent to the service, `Fenced` for a leader's commit that
//!   was not), `Lease` zero, `Over`, `Expired`. An owner's commit that was not sent waits for the next session.
//! - `Lease` zero comes when an own entry is removed although the session is alive, and when the session is lost. A
//!   lease that just runs out causes no event except the term's `Over`.
//! - When the daemon's loop is stalled, the term is `Over` too. A longer standstill is reported like an own entry that
//!   was removed.
//! - `Left` ends the session, and with it a term that the daemon has not resigned; its `Over` need not come.
//! - After `Left` and `Failed` no further event comes.
//! - The events of locks keep an order of their own: see [`run_lock`].

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::clock::Uptime;
use crate::election::{Defined, Queue};
use crate::job::JobName;
use crate::ledger::{Filter, Last, Newest, Operator, Outbox, Snapshot, Window};
use crate::run::{HistoryRecord, RunId, RunRecord};
use crate::{election, ledger, run_lock};

/// A request from the daemon. Requests are handled in order.
#[expect(clippy::large_enum_variant, reason = "nearly all requests are commits")]
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Election(election::Request),
    Ledger(ledger::Request),
    Lock(run_lock::Request),
}

/// An event from the backend. Events arrive in order.
#[expect(clippy::large_enum_variant, reason = "nearly all events are of the ledger")]
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Election(election::Event),
    Ledger(ledger::Event),
    Lock(run_lock::Event),
}

/// The lease at some point of the event sequence, on the sending or the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The end of the lease; zero if no event has extended it since the last boundary.
    pub until: Uptime,
    /// Number of boundaries so far: events that begin or end a session or a term, or withdraw a lease.
    bounds: u64,
}

impl Lease {
    pub const NONE: Self = Self { until: Uptime::ZERO, bounds: 0 };

    /// Applies an event.
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

    /// True if a boundary, which no lease may overtake, lies between the two.
    pub fn is_of_another_time(&self, other: &Self) -> bool {
        self.bounds != other.bounds
    }
}

/// The daemon's end. The number of queued messages is bounded by the daemon's requests in flight.
pub struct Coordination {
    /// Requests to the backend. Closed if the backend is gone.
    pub requests: UnboundedSender<Request>,
    /// Events from the backend.
    pub events: UnboundedReceiver<Event>,
    /// The lease as of the newest event.
    pub lease: watch::Receiver<Lease>,
    /// Time of the last iteration of the daemon's loop.
    pub turned: watch::Sender<Uptime>,
    /// Reads for display to operators.
    pub reader: Arc<dyn Reader>,
    /// Writes the requests of operators.
    pub operator: Arc<dyn Operator>,
    /// The notifications that are to be sent.
    pub outbox: Arc<dyn Outbox>,
}

/// The backend's end.
pub struct Service {
    /// Requests of the daemon. Closed if the daemon is gone.
    pub requests: UnboundedReceiver<Request>,
    pub events: UnboundedSender<Event>,
    /// The lease as of the newest event; bypasses queued events.
    pub lease: watch::Sender<Lease>,
    /// Time of the last iteration of the daemon's loop; zero if it has not started.
    pub turned: watch::Receiver<Uptime>,
}

impl Service {
    /// Sends an event, and updates the lease too. The result is ignored: the closed request channel shows that the
    /// daemon is gone.
    pub fn emit(&self, event: Event) {
        self.lease.send_modify(|lease| lease.follow(&event));
        let _ = self.events.send(event);
    }
}

/// Creates both ends. `ledger` serves the operators' reads and requests.
pub fn channels<L: Reader + Operator + Outbox + 'static>(ledger: Arc<L>) -> (Coordination, Service) {
    let (request_sender, requests) = unbounded_channel();
    let (event_sender, events) = unbounded_channel();
    let (lease_sender, lease) = watch::channel(Lease::NONE);
    let (turned, turns) = watch::channel(Uptime::ZERO);
    let (reader, operator, outbox) = (ledger.clone(), ledger.clone(), ledger);
    (
        Coordination { requests: request_sender, events, lease, turned, reader, operator, outbox },
        Service { requests, events: event_sender, lease: lease_sender, turned: turns },
    )
}

pub type ReadFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ReadError>> + Send + 'a>>;

/// Reads for display to operators. No decision depends on them.
pub trait Reader: Send + Sync {
    /// The queue, and the nodes that are alive.
    fn queue(&self) -> ReadFuture<'_, Queue>;
    fn snapshot(&self) -> ReadFuture<'_, Snapshot>;
    /// The record of a run in flight; `None` if it is not in flight.
    fn run(&self, run: RunId) -> ReadFuture<'_, Option<RunRecord>> {
        Box::pin(async move {
            let running = self.snapshot().await?.running.into_iter().map(|running| running.record);
            Ok(running.into_iter().find(|record| record.id() == run))
        })
    }
    /// The history's record of a run; `None` if there is none, or none any more.
    fn record(&self, run: RunId) -> ReadFuture<'_, Option<HistoryRecord>>;
    /// The newest history records that the filter wants.
    fn history(&self, filter: Filter, window: Window) -> ReadFuture<'_, Newest>;
    /// The same, with the time after which the history still has every record that the filter may want; `None` if it has
    /// all there ever were. `defined` says how many records are kept of each job.
    ///
    /// `None` is also the answer of a backend whose nodes share one archive: nothing older is elsewhere.
    fn history_since(
        &self,
        filter: Filter,
        window: Window,
        _defined: Arc<Defined>,
    ) -> ReadFuture<'_, (Newest, Option<Timestamp>)> {
        Box::pin(async move { Ok((self.history(filter, window).await?, None)) })
    }
    /// How the runs of each job ended last. A job is absent if none has ended, or its record cannot be read.
    fn lasts(&self) -> ReadFuture<'_, BTreeMap<JobName, Last>>;
}

/// The reason why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ledger cannot be read: {0}")]
pub struct ReadError(pub String);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::{CandidateName, FencingToken, SessionId, Term, TermEnd};

    fn at(seconds: u64) -> Uptime {
        Uptime::ZERO + std::time::Duration::from_secs(seconds)
    }

    #[test]
    fn only_boundary_events_separate_two_leases() {
        use election::Event as E;
        let received = Lease::NONE;
        let mut sent = received;
        sent.follow(&Event::Election(E::Lease { until: at(5) }));
        sent.follow(&Event::Election(E::Members(Vec::new())));
        assert!(!sent.is_of_another_time(&received) && sent.until == at(5));
        let session = SessionId("1".into());
        let term = Term { token: FencingToken(1), candidate: CandidateName("c".into()) };
        for bound in [
            E::Lease { until: Uptime::ZERO },
            E::Session { id: session.clone(), timeout: std::time::Duration::from_secs(4) },
            E::Expired { session },
            E::Over { term, why: TermEnd::LeaseOver },
        ] {
            let mut sent = sent;
            sent.follow(&Event::Election(bound));
            assert!(sent.is_of_another_time(&received) && sent.until == Uptime::ZERO);
        }
    }
}
