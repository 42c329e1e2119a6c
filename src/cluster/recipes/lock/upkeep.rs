//! What a session for locks does all the time: renew the lease, watch the entries of a held lock.

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::entry_watches::{EntryNews, EntryWatches};
use crate::tree::{AtVersion, Op, Session, State};
use cronkeeper_core::clock::{Clock, Uptime, Wake};
use cronkeeper_core::lease::Lease;
use cronkeeper_core::lock::LockPath;

/// The most renewals in flight at once: beyond that, the oldest is too old to extend the lease.
const RENEWALS: usize = 5;

/// What happened to a session for locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// The lease now ends at this instant.
    Lease { until: Uptime },
    /// No server answers.
    Disconnected,
    /// A server answers again.
    Connected,
    /// The session is over, and with it all its entries.
    SessionOver,
    /// The entry of a held lock was deleted by somebody else.
    EntryGone { entry: String },
    /// Somebody asks to release the lock of this entry.
    RevokeRequested { entry: String },
}

/// The lease of a session and the watches on its entries.
pub struct Upkeep<C: Session, K: Clock> {
    client: C,
    clock: K,
    lease: Lease<C::Proof>,
    /// Where to write: a check of this path needs a quorum and changes nothing.
    path: Option<String>,
    renewals: FuturesUnordered<BoxFuture<'static, Option<Renewal>>>,
    renewed_at: Uptime,
    is_holding: bool,
    entries: EntryWatches<C, K>,
    is_over: bool,
}

/// A write that a quorum has acknowledged.
struct Renewal {
    sent: Uptime,
}

impl<C: Session, K: Clock> Upkeep<C, K> {
    pub fn new(client: C, clock: K, requested: Uptime) -> Self {
        Self {
            entries: EntryWatches::new(client.clone(), clock.clone()),
            lease: Lease::of_session(client.timeout(), requested, client.proof()),
            renewed_at: clock.now().up,
            client,
            clock,
            path: None,
            renewals: FuturesUnordered::new(),
            is_holding: false,
            is_over: false,
        }
    }

    /// Sets the path at which the writes that renew the lease are done.
    pub fn write_at(&mut self, path: &LockPath) {
        self.path = Some(path.to_string());
    }

    /// True while the lease holds.
    pub fn holds(&self) -> bool {
        self.lease.holds(self.clock.now().up)
    }

    pub fn until(&self) -> Uptime {
        self.lease.until()
    }

    /// Watches these entries, whose data this client wrote as `data`, and renews the lease as a holder does.
    pub fn watch_entries<'a>(&mut self, entries: impl Iterator<Item = &'a String>, data: &[u8]) {
        self.is_holding = true;
        self.entries.add(entries, data);
    }

    /// Waits for the next event.
    ///
    /// Cancellation safe: renewals and watches are kept, and the client documents it for its state.
    pub async fn next(&mut self) -> LockEvent {
        if self.is_over {
            return std::future::pending().await;
        }
        loop {
            let wake = Wake { wall: None, up: self.renew_at() };
            // Cancellation safe: see above; the sleep is recreated.
            tokio::select! {
                biased;
                state = self.client.state_changed() => match state {
                    State::Connected => return LockEvent::Connected,
                    State::Disconnected => return LockEvent::Disconnected,
                    State::Expired | State::AuthFailed => {
                        self.is_over = true;
                        return LockEvent::SessionOver;
                    }
                },
                Some(renewal) = self.renewals.next() => if let Some(event) = self.renewed(renewal) {
                    return event;
                },
                Some(news) = self.entries.next() => return match news {
                    EntryNews::Gone { entry } => LockEvent::EntryGone { entry },
                    EntryNews::RevokeRequested { entry } => LockEvent::RevokeRequested { entry },
                },
                () = self.clock.sleep_until(wake), if wake.up.is_some() => self.renew(),
            }
        }
    }

    fn renew_at(&self) -> Option<Uptime> {
        let may = self.path.is_some() && self.renewals.len() < RENEWALS && self.client.state() == State::Connected;
        let every = if self.is_holding { self.lease.write_every() } else { self.lease.write_every_in_queue() };
        may.then(|| self.renewed_at + every)
    }

    fn renew(&mut self) {
        let now = self.clock.now().up;
        let due = self.renew_at().is_some_and(|at| at <= now);
        let Some(path) = self.path.clone().filter(|_| due) else { return };
        self.renewed_at = now;
        let write = self.client.commit(vec![Op::Check { path, at: AtVersion::Any }]);
        self.renewals.push(Box::pin(async move {
            match write.await {
                Ok(_) => Some(Renewal { sent: now }),
                // A refusal is an answer of the quorum too: the path may be gone while the client waits for a permit.
                Err(failed) => failed.error.is_of_state().then_some(Renewal { sent: now }),
            }
        }));
    }

    fn renewed(&mut self, renewal: Option<Renewal>) -> Option<LockEvent> {
        let before = self.lease.until();
        self.lease.renew(renewal?.sent, self.clock.now().up);
        let until = self.lease.until();
        (until > before).then_some(LockEvent::Lease { until })
    }
}
