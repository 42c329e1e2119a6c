//! Barriers: a number of clients wait for each other. Curator's DistributedDoubleBarrier and kazoo's DoubleBarrier.
//!
//! ```text
//!  PATH/<uuid>   one for each client, ephemeral
//!  PATH/ready    created by the last one to arrive; all others watch only this
//! ```
//!
//! Whoever arrives while `ready` exists belongs to the next round and first waits until it is gone. The last client to
//! leave removes it, or else the next one to arrive.

use uuid::Uuid;

use super::attempt::{Failures, fired_or_late};
use super::queue::{line, make_queues};
use crate::recipes::context::{self, At as _, SessionError};
use crate::tree::{AtVersion, Error, Life, Session, Watch as _};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::lock::LockPath;

/// Name of the record that opens the barrier.
const READY: &str = "ready";

/// A client's visit to a barrier.
pub struct Visit<C, K> {
    client: C,
    clock: K,
    path: LockPath,
    parties: usize,
    /// The path of its own entry.
    own: String,
    data: Vec<u8>,
}

impl<C: Session, K: Clock> Visit<C, K> {
    /// A visit that has not begun. `data`: who it is.
    pub fn new(client: C, clock: K, path: LockPath, parties: u32, data: Vec<u8>) -> Self {
        let own = path.child(&Uuid::new_v4().simple().to_string());
        Self { client, clock, path, parties: parties as usize, own, data }
    }

    /// Waits until all parties have arrived.
    ///
    /// # Errors
    /// If the session ends, or if the servers refuse.
    pub async fn enter(&mut self) -> Result<(), SessionError> {
        let (mut is_in, mut failures) = (false, Failures::default());
        loop {
            match self.try_enter(&mut is_in).await {
                Err(error @ SessionError::Again(_)) => {
                    failures.wait_after(error, &mut self.client, &self.clock).await?;
                }
                done => return done,
            }
        }
    }

    async fn try_enter(&self, is_in: &mut bool) -> Result<(), SessionError> {
        let ready = self.path.child(READY);
        while !*is_in {
            match line(&self.client)?.get_and_watch(&ready).await {
                // The last one of the round before died before it could remove it.
                Ok(_) if self.others().await?.is_empty() => self.remove(&ready).await?,
                // The round before is not over.
                Ok((_, _, watch)) => {
                    fired_or_late(watch.fired(), &self.clock).await;
                    continue;
                }
                Err(Error::Missing) => {}
                Err(error) => return Err(error).at(&ready),
            }
            match line(&self.client)?.create(&self.own, self.data.clone(), Life::OfSession).await {
                // An earlier attempt without an answer has created it.
                Ok(_) | Err(Error::Exists) => *is_in = true,
                Err(Error::Missing) => make_queues(&self.client, vec![self.path.to_string()]).await?,
                Err(error) => return Err(error).at(&self.own),
            }
        }
        loop {
            let (stat, watch) = line(&self.client)?.stat_and_watch(&ready).await.at(&ready)?;
            if stat.is_some() || self.others().await?.len() + 1 >= self.parties {
                break;
            }
            fired_or_late(watch.fired(), &self.clock).await;
        }
        match line(&self.client)?.create(&ready, Vec::new(), Life::Lasting).await {
            Ok(_) | Err(Error::Exists) => Ok(()),
            Err(error) => Err(error).at(&ready),
        }
    }

    /// Leaves, without waiting for the others. The last one to leave removes `ready`.
    ///
    /// # Errors
    /// If the session ends, or if the servers refuse. The own entry then goes with the session.
    pub async fn leave(&mut self) -> Result<(), SessionError> {
        let mut failures = Failures::default();
        loop {
            match self.try_leave().await {
                Err(error @ SessionError::Again(_)) => {
                    failures.wait_after(error, &mut self.client, &self.clock).await?;
                }
                done => return done,
            }
        }
    }

    async fn try_leave(&self) -> Result<(), SessionError> {
        self.remove(&self.own).await?;
        if self.others().await?.is_empty() { self.remove(&self.path.child(READY)).await } else { Ok(()) }
    }

    async fn remove(&self, path: &str) -> Result<(), SessionError> {
        match line(&self.client)?.delete(path, AtVersion::Any).await {
            Ok(()) | Err(Error::Missing) => Ok(()),
            Err(error) => Err(error).at(path),
        }
    }

    /// The names of the other clients inside.
    async fn others(&self) -> Result<Vec<String>, SessionError> {
        let mut names = context::names(line(&self.client)?, self.path.as_str()).await?;
        names.retain(|name| name != READY && !self.own.ends_with(name.as_str()));
        Ok(names)
    }
}
