//! A session for locks: its contenders, its lease, and the watches on what it holds.

use tokio::sync::watch;

use super::contender::Contender;
use super::upkeep::{LockEvent, Upkeep};
use super::{HeldLock, KnownObstacles, LockError, LockRequest};
use crate::recipes::context::SessionError;
use crate::tree::Session;
use cronkeeper_core::clock::{Clock, Uptime};
use cronkeeper_core::lock::LockPath;

/// A session that acquires locks. Dropping it releases nothing: the server removes its entries with the session.
pub struct LockSession<C: Session, K: Clock> {
    contender: Contender<C, K>,
    upkeep: Upkeep<C, K>,
}

impl<C: Session, K: Clock> LockSession<C, K> {
    /// Takes over a session whose connection was requested at `requested`.
    pub fn new(client: C, clock: K, requested: Uptime) -> Self {
        let upkeep = Upkeep::new(client.clone(), clock.clone(), requested);
        Self { contender: Contender::new(client, clock), upkeep }
    }

    /// A contender, to acquire several locks at once. Its locks are safe only while the lease of this session holds,
    /// which needs somebody to await [`LockSession::event`] all the time.
    pub fn contender(&self) -> Contender<C, K> {
        self.contender.clone()
    }

    /// The persistent entries that requests of this session have found ahead of them.
    pub fn obstacles(&self) -> watch::Receiver<KnownObstacles> {
        self.contender.obstacles()
    }

    /// Sets the path at which the lease is renewed, before the first [`LockSession::acquire`].
    pub fn renew_at(&mut self, path: &LockPath) {
        self.upkeep.write_at(path);
    }

    /// The client behind it, without the lock.
    pub fn into_client(self) -> C {
        self.contender.client
    }

    /// The client behind it, for reads.
    pub fn client(&self) -> &C {
        &self.contender.client
    }

    /// Waits until the request is granted and the lease holds.
    ///
    /// Not cancellation safe: a caller that drops the future must call [`LockSession::withdraw`].
    ///
    /// # Errors
    /// If the request does not wait and the lock is not free, if the session ends, or if the servers refuse.
    pub async fn acquire(&mut self, request: &LockRequest) -> Result<Vec<HeldLock>, LockError> {
        self.upkeep.write_at(&request.paths[0]);
        let acquired = self.contender.acquire(request);
        tokio::pin!(acquired);
        let held = loop {
            // Cancellation safe: the attempt is kept, and `next` documents it.
            tokio::select! {
                biased;
                acquired = &mut acquired => break acquired?,
                event = self.upkeep.next() => if event == LockEvent::SessionOver {
                    return Err(SessionError::SessionOver.into());
                },
            }
        };
        while !self.upkeep.holds() {
            if self.upkeep.next().await == LockEvent::SessionOver {
                return Err(SessionError::SessionOver.into());
            }
        }
        Ok(held)
    }

    /// Begins to watch the entries of a held lock. From now on [`LockSession::event`] reports that one is gone, or that
    /// somebody asks to release it. `data` is the data of the entries.
    pub fn watch_entries(&mut self, held: &[HeldLock], data: &[u8]) {
        self.upkeep.watch_entries(held.iter().flat_map(|held| &held.entries), data);
    }

    /// Waits for the next event of the session. Cancellation safe.
    pub async fn event(&mut self) -> LockEvent {
        self.upkeep.next().await
    }

    /// The end of the lease.
    pub fn lease_until(&self) -> Uptime {
        self.upkeep.until()
    }

    /// Releases what is held: see [`Contender::release`].
    pub fn release(&self, held: &[HeldLock]) -> impl Future<Output = Result<(), SessionError>> + Send + use<C, K> {
        self.contender.release(held)
    }

    /// Gives up a request that is not granted, or whose result is unknown.
    ///
    /// # Errors
    /// If the servers do not confirm it. The entries then go with the session.
    pub async fn withdraw(&mut self, request: &LockRequest) -> Result<(), SessionError> {
        self.contender.withdraw(request).await
    }
}
