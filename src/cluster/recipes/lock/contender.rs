//! A client of a session for locks. A session has any number of them.

use std::future::ready;
use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::sync::watch;

use super::attempt::Attempt;
use super::local::LocalQueue;
use super::obstacles::{Known, Obstacles};
use super::queue::{Layout, remove, send_removal, settle};
use super::{HeldLock, LockError, LockRequest, permits};
use crate::recipes::context::SessionError;
use crate::tree::Session;
use cronkeeper_core::clock::Clock;
use cronkeeper_core::lock::LockKind;

/// Acquires and releases locks under a session, whose lease somebody else must watch.
#[derive(Clone)]
pub struct Contender<C, K> {
    pub(super) client: C,
    pub(super) clock: K,
    local: Arc<LocalQueue>,
    pub(super) obstacles: Obstacles,
}

impl<C: Session, K: Clock> Contender<C, K> {
    /// The first contender of a session. The others are its clones, so that they hand locks over to each other.
    pub fn new(client: C, clock: K) -> Self {
        Self { client, clock, local: Arc::default(), obstacles: Obstacles::default() }
    }

    /// Waits until the request is granted.
    ///
    /// Not cancellation safe: a caller that drops the future must call [`Contender::withdraw`].
    ///
    /// # Errors
    /// If the request does not wait and the lock is not free, if the session ends, or if the servers refuse.
    pub async fn acquire(&self, request: &LockRequest) -> Result<Vec<HeldLock>, LockError> {
        match request.kind {
            LockKind::Permits { of, count } => permits::acquire(self, request, of, count).await,
            _ => {
                let mut attempt = self.attempt(request.clone());
                attempt.acquire().await?;
                Ok(attempt.held())
            }
        }
    }

    pub(super) fn attempt(&self, request: LockRequest) -> Attempt<C, K> {
        Attempt::new(self.client.clone(), self.clock.clone(), self.local.clone(), self.obstacles.clone(), request)
    }

    /// The persistent entries that requests of this session have found ahead of them.
    pub fn obstacles(&self) -> watch::Receiver<Known> {
        self.obstacles.watch()
    }

    /// Releases what is held. The request is sent before this returns; the future waits for the answer.
    ///
    /// Requests of a session are carried out in order, so a client may acquire again without waiting for the answer.
    ///
    /// # Errors
    /// If the servers do not confirm it. Call [`Contender::withdraw`], or end the session.
    pub fn release(&self, held: &[HeldLock]) -> impl Future<Output = Result<(), SessionError>> + Send + use<C, K> {
        let entries: Vec<String> = held.iter().flat_map(|held| held.entries.clone()).collect();
        match send_removal(&self.client, entries.clone()) {
            Ok(removed) => {
                self.local.remove(&entries);
                removed.left_future()
            }
            Err(error) => ready(Err(error)).right_future(),
        }
    }

    /// Gives up a request that is not granted, or whose result is unknown.
    ///
    /// Entries whose creation was answered are removed by their names, so a path that may not be listed keeps none.
    ///
    /// # Errors
    /// If the servers do not confirm it. The entries then go with the session.
    pub async fn withdraw(&self, request: &LockRequest) -> Result<(), SessionError> {
        let known = self.local.leave(request.uuid);
        settle(&self.client, request.paths[0].as_str()).await?;
        let mut result = Ok(());
        for entry in &known {
            match remove(&self.client, vec![entry.clone()]).await {
                Ok(()) => self.local.remove(std::slice::from_ref(entry)),
                error => result = error,
            }
        }
        for path in &request.paths {
            let layout = Layout::of(path, request.kind, request.recipe);
            for parent in std::iter::once(layout.queue).chain(layout.permits) {
                match permits::own(&self.client, &parent, request.uuid).await {
                    Ok(entries) => result = remove(&self.client, entries).await.and(result),
                    // Whoever may not list this path was not granted anything there.
                    Err(SessionError::NoAuth(_)) => {}
                    Err(error) => result = Err(error),
                }
            }
        }
        result
    }
}
