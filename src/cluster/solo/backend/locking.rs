//! The part of the backend's loop about locks of runs.

use tokio::time::Instant;

use super::Backend;
use crate::solo::job_locks::{WaitEnd, WaiterId};
use cronkeeper_core::coordination::{Event, Request};
use cronkeeper_core::run_lock;

impl Backend {
    /// Takes a request of the daemon. Locks do not wait behind the ledger: a full disk must not keep a lock from being
    /// released.
    pub(super) fn receive(&mut self, request: Request) {
        match request {
            // Nobody would learn that the locks are held.
            Request::Lock(run_lock::Request::Acquire { .. }) if self.failed => {}
            Request::Lock(request) => {
                let event = self.job_locks.take(request, &self.background);
                self.send_all(event);
            }
            request => self.pending.push_back(request),
        }
    }

    pub(super) fn on_locks_waited(&mut self, waiter: WaiterId, end: WaitEnd) {
        let event = self.job_locks.on_waited(waiter, end, &self.background);
        self.send_all(event);
    }

    pub(super) fn retry_locks(&mut self, now: Instant) {
        let events = self.job_locks.retry(now, &self.background);
        self.send_all(events);
    }

    fn send_all(&self, events: impl IntoIterator<Item = run_lock::Event>) {
        events.into_iter().for_each(|event| self.send(Event::Lock(event)));
    }
}
