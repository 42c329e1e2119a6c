//! Count-down latches: clients wait until a number of counts have arrived.
//!
//! ```text
//!  PATH          {"count":3,"remaining":1}     changed with each count, at its version
//!  PATH/closed   a barrier                     exists until the last count; waiting clients watch only this
//!  PATH/down-…   one for each count            so that a count whose answer was lost is not counted twice
//! ```
//!
//! The latch is open once `remaining` is zero, and stays open until it is removed. `PATH/closed` is a barrier as Curator
//! and kazoo know it, so their clients can wait for the latch too.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::attempt::{Failures, fired_or_late, pause};
use super::queue::{line, make_queues, remove, settle};
use crate::recipes::context::{self, At as _, SessionError, json};
use crate::tree::{AtVersion, Error, Life, Op, Session, Watch as _};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::run::Version;

/// Records of one request: a multi with more would exceed the protocol's limit.
const CHUNK: usize = 1_000;

/// The data of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latch {
    /// Counts that open it.
    pub count: u32,
    /// Counts that are still missing.
    pub remaining: u32,
}

/// Why a latch cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LatchError {
    /// The users of the latch name different numbers.
    #[error("the latch `{path}` has the count {count}")]
    OtherCount { path: LockPath, count: u32 },
    #[error("`{path}` exists and is not a latch")]
    NoLatch { path: LockPath },
    /// Another client came first, however often this one tried.
    #[error("the latch `{path}` has changed in the meantime")]
    Changed { path: LockPath },
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Counts once. `id` identifies this count, however often it is tried. Creates the latch if it does not exist.
///
/// # Errors
/// If the path is not such a latch, if the session ends, or if the servers refuse.
pub async fn down<C: Session, K: Clock>(
    mut client: C,
    clock: &K,
    path: &LockPath,
    count: u32,
    id: Uuid,
) -> Result<Latch, LatchError> {
    let mut failures = Failures::default();
    loop {
        match try_down(&client, path, count, id).await {
            Err(error) => failures.pass(error, &mut client, clock).await?,
            done => return done,
        }
    }
}

async fn try_down<C: Session>(client: &C, path: &LockPath, count: u32, id: Uuid) -> Result<Latch, LatchError> {
    settle(client, path.as_str()).await?;
    let (latch, version) = open(client, path, count).await?;
    let own = path.child(&format!("down-{id}"));
    if latch.remaining == 0 || line(client)?.stat(&own).await.at(&own)?.is_some() {
        return Ok(latch);
    }
    let counted = Latch { remaining: latch.remaining - 1, ..latch };
    let mut ops = vec![
        Op::Set { path: path.to_string(), data: json(&counted), at: version.into() },
        Op::Create { path: own, data: Vec::new(), life: Life::Lasting },
    ];
    if counted.remaining == 0 {
        ops.push(Op::Delete { path: path.child(CLOSED), at: AtVersion::Any });
    }
    match line(client)?.commit(ops).await {
        Ok(_) => Ok(counted),
        // Another count came first.
        Err(failed) if failed.error.is_of_state() => Err(LatchError::Changed { path: path.clone() }),
        Err(failed) => Err(SessionError::of(&failed.error, path.as_str()).into()),
    }
}

impl Failures {
    /// Waits until another attempt makes sense after this failure, if there is any sense in it.
    async fn pass<C: Session, K: Clock>(
        &mut self,
        error: LatchError,
        client: &mut C,
        clock: &K,
    ) -> Result<(), LatchError> {
        match error {
            // With many clients that may be often.
            LatchError::Changed { .. } => Ok(pause(client, clock).await?),
            LatchError::Session(SessionError::Again(_)) => self.wait_after(error, client, clock).await,
            error => Err(error),
        }
    }
}

/// Waits until the latch is open. Creates it if it does not exist.
///
/// # Errors
/// If the path is not such a latch, if the session ends, or if the servers refuse.
pub async fn wait<C: Session, K: Clock>(
    mut client: C,
    clock: &K,
    path: &LockPath,
    count: u32,
) -> Result<(), LatchError> {
    let mut failures = Failures::default();
    loop {
        match try_wait(&client, clock, path, count).await {
            Err(error) => failures.pass(error, &mut client, clock).await?,
            done => return done,
        }
    }
}

async fn try_wait<C: Session, K: Clock>(client: &C, clock: &K, path: &LockPath, count: u32) -> Result<(), LatchError> {
    let closed = path.child(CLOSED);
    loop {
        let (latch, _) = open(client, path, count).await?;
        if latch.remaining == 0 {
            return Ok(());
        }
        match line(client)?.get_and_watch(&closed).await {
            Ok((_, _, watch)) => fired_or_late(watch.fired(), clock).await,
            // It was opened, or removed, since it was read.
            Err(Error::Missing) => {}
            Err(error) => return Err(SessionError::of(&error, &closed).into()),
        }
    }
}

/// Removes a latch, so that the path can be used again. Those who wait continue to wait, for a new latch.
///
/// # Errors
/// If the path is not a latch, if the session ends, or if the servers refuse.
pub async fn reset<C: Session, K: Clock>(mut client: C, clock: &K, path: &LockPath) -> Result<(), LatchError> {
    let mut failures = Failures::default();
    loop {
        match try_reset(&client, path).await {
            Err(error) => failures.pass(error, &mut client, clock).await?,
            done => return done,
        }
    }
}

async fn try_reset<C: Session>(client: &C, path: &LockPath) -> Result<(), LatchError> {
    if read(client, path).await?.is_none() {
        return Ok(());
    }
    let names = context::names(line(client)?, path.as_str()).await?;
    for names in names.chunks(CHUNK) {
        let children: Vec<String> = names.iter().map(|name| path.child(name)).collect();
        remove(client, children).await?;
    }
    match line(client)?.delete(path.as_str(), AtVersion::Any).await {
        Ok(()) | Err(Error::Missing) => Ok(()),
        Err(error) => Err(SessionError::of(&error, path.as_str()).into()),
    }
}

/// Name of the barrier.
const CLOSED: &str = "closed";

/// The latch with the version of its data. Creates it if it does not exist.
async fn open<C: Session>(client: &C, path: &LockPath, count: u32) -> Result<(Latch, Version), LatchError> {
    if let Some((latch, version)) = read(client, path).await? {
        return match latch.count == count {
            true => Ok((latch, version)),
            false => Err(LatchError::OtherCount { path: path.clone(), count: latch.count }),
        };
    }
    let latch = Latch { count, remaining: count };
    if let Some((parent, _)) = path.as_str().rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
        make_queues(client, vec![parent.to_owned()]).await?;
    }
    let ops = vec![
        Op::Create { path: path.to_string(), data: json(&latch), life: Life::Lasting },
        Op::Create { path: path.child(CLOSED), data: Vec::new(), life: Life::Lasting },
    ];
    match line(client)?.commit(ops).await {
        Ok(_) => Ok((latch, Version::FIRST)),
        // The parents of all others were created just before.
        Err(failed) if failed.error == Error::Missing && path.as_str().rfind('/') == Some(0) => {
            Err(SessionError::NoRoot.into())
        }
        Err(failed) if failed.error.is_of_state() => Err(LatchError::Changed { path: path.clone() }),
        Err(failed) => Err(SessionError::of(&failed.error, path.as_str()).into()),
    }
}

async fn read<C: Session>(client: &C, path: &LockPath) -> Result<Option<(Latch, Version)>, LatchError> {
    match line(client)?.get(path.as_str()).await {
        Ok((data, stat)) => match serde_json::from_slice::<Latch>(&data) {
            Ok(latch) => Ok(Some((latch, stat.version))),
            Err(_) => Err(LatchError::NoLatch { path: path.clone() }),
        },
        Err(Error::Missing) => Ok(None),
        Err(error) => Err(SessionError::of(&error, path.as_str()).into()),
    }
}
