//! Semaphores: the first clients in a queue take the permits.
//!
//! Curator's users create an entry for each permit and then wait until no more than the permitted number
//! exist. kazoo's wait first and then create. In both cases, only the first of the queue waits for permits, and wakes
//! when one is given back.

use uuid::Uuid;

use super::attempt::{Failures, fired_or_late};
use super::contender::Contender;
use super::entries::{self, Recipe};
use super::obstacles::Obstacles;
use super::queue::{Layout, line, make_queues, remove, settle};
use super::size::SizeWatch;
use super::{HeldLock, LockError, LockRequest};
use crate::recipes::context::{self, At as _, SessionError};
use crate::tree::{CommitError, Error, Life, Op, Revision, Session, Watch as _};
use cronkeeper_core::clock::Clock;
use cronkeeper_core::lock::{LockKind, LockPath};
use cronkeeper_core::run::Version;

/// Most permits in use to examine while there are too few free ones.
const MOST_EXAMINED: usize = 1_000;

/// Takes `count` of the `of` permits at the request's only path.
pub async fn acquire<C: Session, K: Clock>(
    contender: &Contender<C, K>,
    request: &LockRequest,
    of: u32,
    count: u32,
) -> Result<Vec<HeldLock>, LockError> {
    let path = request.paths[0].clone();
    let layout = Layout::of(&path, request.kind, request.recipe);
    let parent = layout.permits.unwrap_or_else(|| path.to_string());
    let (client, clock) = (contender.client.clone(), contender.clock.clone());
    let (sizes, obstacles) = (SizeWatch::default(), contender.obstacles.clone());
    let mut semaphore = Semaphore { client, clock, request, path, parent, of, count, sizes, obstacles };
    semaphore.check_permits().await?;
    let queue = LockPath::parse(&layout.queue).map_err(SessionError::Again)?;
    let mut turn = contender.attempt(LockRequest { paths: vec![queue], kind: LockKind::Mutex, ..request.clone() });
    turn.acquire().await.map_err(|error| match error {
        LockError::Busy { .. } => LockError::Busy { path: semaphore.path.clone() },
        error => error,
    })?;
    let held = semaphore.take().await?;
    semaphore.pass_on(contender, &turn.held()).await?;
    Ok(vec![held])
}

/// The paths of the entries below `parent` that this client has made.
pub async fn own<C: Session>(client: &C, parent: &str, uuid: Uuid) -> Result<Vec<String>, SessionError> {
    let names = context::names(line(client)?, parent).await?;
    let own = names.into_iter().filter(|name| entries::is_of(name, uuid));
    Ok(own.map(|name| format!("{parent}/{name}")).collect())
}

struct Semaphore<'a, C, K> {
    client: C,
    clock: K,
    request: &'a LockRequest,
    path: LockPath,
    /// Parent of the permits in use.
    parent: String,
    of: u32,
    count: u32,
    /// Whether the servers take a request for all permits.
    sizes: SizeWatch,
    obstacles: Obstacles,
}

impl<C: Session, K: Clock> Semaphore<'_, C, K> {
    /// Compares the number of permits with that in the data of the path, where kazoo keeps it. Writes it there if this
    /// client creates the path.
    async fn check_permits(&self) -> Result<(), LockError> {
        let (mut client, mut failures) = (self.client.clone(), Failures::default());
        loop {
            match self.try_check_permits().await {
                Err(error) if error.is_passing() => failures.wait_after(error, &mut client, &self.clock).await?,
                checked => return checked,
            }
        }
    }

    async fn try_check_permits(&self) -> Result<(), LockError> {
        let path = self.path.as_str();
        let (data, version) = match line(&self.client)?.get(path).await {
            Ok((data, stat)) => (data, stat.version),
            Err(Error::Missing) => {
                make_queues(&self.client, vec![path.to_owned()]).await?;
                make_queues(&self.client, vec![self.parent.clone()]).await?;
                (Vec::new(), Version::FIRST)
            }
            Err(error) => return Err(error).at(path)?,
        };
        if data.is_empty() {
            let set = Op::Set { path: path.to_owned(), data: self.of.to_string().into_bytes(), at: version.into() };
            return match line(&self.client)?.commit(vec![set]).await {
                Ok(_) => Ok(()),
                // Somebody else has written it meanwhile.
                Err(failed) if failed.error == Error::Changed => {
                    Err(SessionError::Again("the semaphore has changed".into()).into())
                }
                Err(failed) => Err(failed).at(path)?,
            };
        }
        match std::str::from_utf8(&data).ok().and_then(|text| text.trim().parse().ok()) {
            Some(permits) if permits != self.of => Err(LockError::OtherPermits { path: self.path.clone(), permits }),
            // Data that is not a number is not about permits: Curator writes an address there.
            _ => Ok(()),
        }
    }

    async fn take(&mut self) -> Result<HeldLock, LockError> {
        let (mut client, mut failures) = (self.client.clone(), Failures::default());
        loop {
            match self.try_take().await {
                Err(error) if error.is_passing() => {
                    failures.wait_after(error, &mut client, &self.clock).await?;
                    settle(&client, self.path.as_str()).await.or_else(passing)?;
                }
                taken => return taken,
            }
        }
    }

    async fn try_take(&mut self) -> Result<HeldLock, LockError> {
        let mut own = own(&self.client, &self.parent, self.request.uuid).await?;
        let count = self.count as usize;
        let surplus = own.split_off(own.len().min(count));
        remove(&self.client, surplus).await?;
        if self.request.recipe == Recipe::Curator && own.len() < count {
            self.create(count - own.len()).await?;
        }
        loop {
            let (names, watch) = line(&self.client)?.names_and_watch(&self.parent).await.at(&self.parent)?;
            let others = names.iter().filter(|name| !entries::is_of(name, self.request.uuid)).count();
            if others + count <= self.of as usize {
                break;
            }
            self.note_obstacle(names).await?;
            if !self.request.waits {
                return Err(LockError::Busy { path: self.path.clone() });
            }
            fired_or_late(watch.fired(), &self.clock).await;
        }
        if self.request.recipe == Recipe::Kazoo && own.len() < count {
            self.create(count - own.len()).await?;
        }
        self.held().await
    }

    /// Looks for a permit in use that nobody gives back: a persistent child.
    async fn note_obstacle(&self, names: Vec<String>) -> Result<(), SessionError> {
        self.obstacles.listed(&self.parent, &names);
        let some = names.into_iter().take(MOST_EXAMINED).collect();
        let found = context::stats(line(&self.client)?, &self.parent, some).await?;
        found.iter().for_each(|(name, stat)| self.obstacles.awaited(&self.parent, name, stat));
        Ok(())
    }

    /// Gives up the place in the queue, so that the next client can look for permits.
    async fn pass_on(&self, contender: &Contender<C, K>, turn: &[HeldLock]) -> Result<(), LockError> {
        let (mut client, mut failures) = (self.client.clone(), Failures::default());
        loop {
            match contender.release(turn).await {
                Err(error @ SessionError::Again(_)) => {
                    failures.wait_after(LockError::from(error), &mut client, &self.clock).await?;
                }
                done => return Ok(done?),
            }
        }
    }

    /// Creates entries for this many permits in one commit.
    async fn create(&mut self, permits: usize) -> Result<(), LockError> {
        let create = |_| {
            let (data, life) = (self.request.data.clone(), Life::OfSession);
            match self.request.recipe {
                Recipe::Curator => {
                    let prefix = format!("_c_{}-lease-", self.request.uuid);
                    Op::Append { folder: self.parent.clone(), prefix, data, life }
                }
                // kazoo's names have no number; only how many there are counts.
                Recipe::Kazoo => {
                    let name = format!("{}-{}", self.request.uuid.simple(), Uuid::new_v4().simple());
                    Op::Create { path: format!("{}/{name}", self.parent), data, life }
                }
            }
        };
        let ops: Vec<Op> = (0..permits).map(create).collect();
        self.sizes.expect(&ops);
        match line(&self.client)?.commit(ops).await {
            Ok(_) => Ok(()),
            Err(CommitError { error: Error::Unanswered(_), .. }) if self.sizes.is_too_large() => {
                Err(self.sizes.error())
            }
            Err(failed) if failed.error == Error::Missing => {
                make_queues(&self.client, vec![self.parent.clone()]).await?;
                Err(SessionError::Again("the semaphore was missing".into()).into())
            }
            Err(failed) => Err(failed).at(&self.parent)?,
        }
    }

    async fn held(&self) -> Result<HeldLock, LockError> {
        let entries = own(&self.client, &self.parent, self.request.uuid).await?;
        if entries.len() != self.count as usize {
            return Err(LockError::EntryGone { entry: self.parent.clone() });
        }
        let mut first = Revision(i64::MAX);
        for entry in &entries {
            let stat = line(&self.client)?.stat(entry).await.at(entry)?;
            let gone = || LockError::EntryGone { entry: entry.clone() };
            first = first.min(stat.ok_or_else(gone)?.created);
        }
        Ok(HeldLock { path: self.path.clone(), entries, token: first.token() })
    }
}

/// Lets a failure pass that the next attempt may not have.
fn passing(error: SessionError) -> Result<(), SessionError> {
    match error {
        SessionError::Again(_) => Ok(()),
        error => Err(error),
    }
}
