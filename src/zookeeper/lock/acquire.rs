//! One client's session for locks: acquire, release, withdraw.

use tokio::pin;

use super::entries::{Turn, turn};
use super::queue::{Layout, create_parents, line, ordered, remove, settle, sort, stat, watch};
use super::upkeep::{LockEvent, Upkeep};
use super::{HeldLock, LOOK_AGAIN, LockError, LockRequest, PAUSE, permits};
use crate::clock::{Clock, Uptime, Wake};
use crate::lock::{LockKind, LockPath};
use crate::term::FencingToken;
use crate::zookeeper::client::{Client, Done, Error, Mode, Op, State, Watch as _};
use crate::zookeeper::context::{At as _, SessionError};
use crate::zookeeper::paths;

/// A session that acquires locks. Dropping it releases nothing: the server removes its entries with the session.
pub struct LockSession<C: Client, K: Clock> {
    client: C,
    clock: K,
    upkeep: Upkeep<C, K>,
}

impl<C: Client, K: Clock> LockSession<C, K> {
    /// Takes over a session whose connection was requested at `requested`.
    pub fn new(client: C, clock: K, requested: Uptime) -> Self {
        let upkeep = Upkeep::new(client.clone(), clock.clone(), requested);
        Self { client, clock, upkeep }
    }

    /// The client behind it, without the lock.
    pub fn into_client(self) -> C {
        self.client
    }

    /// The client behind it, for reads.
    pub fn client(&self) -> &C {
        &self.client
    }

    /// Waits until the request is granted and the lease holds.
    ///
    /// Not cancellation safe: a caller that drops the future must call [`LockSession::withdraw`].
    ///
    /// # Errors
    /// If the request does not wait and the lock is not free, if the session ends, or if the servers refuse.
    pub async fn acquire(&mut self, request: &LockRequest) -> Result<Vec<HeldLock>, LockError> {
        self.acquire_instead(&[], request).await
    }

    /// Releases `held`, queues anew and waits until the request is granted, as [`LockSession::acquire`] does.
    ///
    /// Release and new entries are one transaction, except for semaphores.
    ///
    /// # Errors
    /// As for [`LockSession::acquire`].
    pub async fn acquire_again(
        &mut self,
        held: &[HeldLock],
        request: &LockRequest,
    ) -> Result<Vec<HeldLock>, LockError> {
        self.acquire_instead(held, request).await
    }

    async fn acquire_instead(&mut self, held: &[HeldLock], request: &LockRequest) -> Result<Vec<HeldLock>, LockError> {
        self.upkeep.write_at(&request.paths[0]);
        let replaced = held.iter().flat_map(|held| held.entries.clone()).collect();
        let acquired = acquire(self.client.clone(), self.clock.clone(), request, replaced);
        pin!(acquired);
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

    /// Releases what is held. The request is sent before this returns; the future waits for the answer.
    ///
    /// Requests of a session are carried out in order, so a client may acquire again without waiting for the answer.
    ///
    /// # Errors
    /// If the servers do not confirm it. The entries then go with the session.
    pub fn release(&self, held: &[HeldLock]) -> impl Future<Output = Result<(), SessionError>> + Send + use<C, K> {
        let entries: Vec<String> = held.iter().flat_map(|held| held.entries.clone()).collect();
        remove(&self.client, entries)
    }

    /// Gives up a request that is not granted, or whose result is unknown.
    ///
    /// # Errors
    /// If the servers do not confirm it. The entries then go with the session.
    pub async fn withdraw(&mut self, request: &LockRequest) -> Result<(), SessionError> {
        settle(&self.client, request.paths[0].as_str()).await?;
        let mut entries = Vec::new();
        for path in &request.paths {
            let layout = Layout::of(path, request.kind, request.recipe);
            for parent in std::iter::once(layout.queue).chain(layout.permits) {
                entries.extend(permits::own(&self.client, &parent, request.uuid).await?);
            }
        }
        remove(&self.client, entries).await
    }
}

async fn acquire<C: Client, K: Clock>(
    client: C,
    clock: K,
    request: &LockRequest,
    replaced: Vec<String>,
) -> Result<Vec<HeldLock>, LockError> {
    match request.kind {
        LockKind::Permits { of, count } => {
            remove(&client, replaced).await?;
            permits::acquire(client, clock, request, of, count).await
        }
        _ => {
            let mut attempt = Attempt { replaced, ..Attempt::new(client, clock, request.clone()) };
            attempt.acquire().await?;
            Ok(attempt.held())
        }
    }
}

/// An entry of this client.
#[derive(Clone, Debug)]
struct OwnEntry {
    path: LockPath,
    name: String,
    /// The transaction that created it; `None` while it is not known.
    token: Option<FencingToken>,
}

/// An attempt to hold mutexes or read-write locks, from the first request to the last turn.
pub(super) struct Attempt<C, K> {
    client: C,
    clock: K,
    request: LockRequest,
    /// The prefix of its entries' names.
    prefix: String,
    /// One for each path; empty if there are none yet.
    entries: Vec<OwnEntry>,
    /// A create has had no answer, so there may be entries.
    is_unclear: bool,
    /// Older entries, to be removed in the transaction that creates new ones.
    replaced: Vec<String>,
}

impl<C: Client, K: Clock> Attempt<C, K> {
    pub fn new(client: C, clock: K, request: LockRequest) -> Self {
        let prefix = request.recipe.prefix(request.kind, request.uuid);
        let (entries, replaced) = (Vec::new(), Vec::new());
        Self { client, clock, request, prefix, entries, is_unclear: false, replaced }
    }

    pub async fn acquire(&mut self) -> Result<(), LockError> {
        loop {
            match self.try_acquire().await {
                Err(error) if error.is_passing() => pause(&mut self.client, &self.clock).await?,
                result => return result,
            }
        }
    }

    pub fn held(self) -> Vec<HeldLock> {
        let held = |OwnEntry { path, name, token }: OwnEntry| {
            let entries = vec![path.child(&name)];
            // Nothing holds its lock before its token is known.
            token.map(|token| HeldLock { path, entries, token })
        };
        self.entries.into_iter().filter_map(held).collect()
    }

    /// The paths of the entries.
    pub fn entries(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.path.child(&entry.name)).collect()
    }

    async fn try_acquire(&mut self) -> Result<(), LockError> {
        let listed = self.join().await?;
        let mut listed = listed;
        for at in 0..self.entries.len() {
            self.await_turn(at, listed.take()).await?;
        }
        Ok(())
    }

    /// Makes sure that there is an entry at every path. Returns the queue of the first path if it was read meanwhile.
    async fn join(&mut self) -> Result<Option<Vec<String>>, LockError> {
        if self.is_unclear {
            settle(&self.client, self.request.paths[0].as_str()).await?;
            remove(&self.client, std::mem::take(&mut self.replaced)).await?;
            self.entries = self.find().await?;
            self.is_unclear = false;
        }
        if !self.entries.is_empty() {
            return Ok(None);
        }
        let paths = self.request.paths.clone();
        let made = match paths.as_slice() {
            [path] if self.replaced.is_empty() => self.create_one(path).await,
            paths => self.create_all(paths).await,
        };
        match made {
            // Somebody has removed an entry that was to be replaced.
            Err(Error::NoNode) if !self.replaced.is_empty() => {
                remove(&self.client, std::mem::take(&mut self.replaced)).await?;
                Err(SessionError::Again("an entry was gone".into()).into())
            }
            Err(Error::NoNode) => {
                for path in &self.request.paths {
                    create_parents(&self.client, path.as_str()).await?;
                }
                Err(SessionError::Again("the lock was missing".into()).into())
            }
            made => Ok(made.at(self.request.paths[0].as_str())?),
        }
    }

    /// Creates the entry of a single lock and lists the queue, in one round trip: a session's requests are carried out
    /// in order.
    async fn create_one(&mut self, path: &LockPath) -> Result<Option<Vec<String>>, Error> {
        let client = line(&self.client).map_err(|error| Error::Unanswered(error.to_string()))?;
        let created = client.create(&path.child(&self.prefix), self.request.data.clone(), Mode::EphemeralSequential);
        let listed = client.children(path.as_str());
        self.is_unclear = true;
        let created = created.await;
        self.is_unclear = created.as_ref().is_err_and(|error| !error.is_of_path());
        let (created, stat) = created?;
        let (name, token) = (paths::name(&created).to_owned(), Some(FencingToken(stat.czxid)));
        self.entries = vec![OwnEntry { path: path.clone(), name, token }];
        Ok(listed.await.ok())
    }

    /// Creates the entries of several locks, or instead of older ones, in one transaction. Lists the first queue.
    async fn create_all(&mut self, all: &[LockPath]) -> Result<Option<Vec<String>>, Error> {
        let client = line(&self.client).map_err(|error| Error::Unanswered(error.to_string()))?;
        let delete = |path: &String| Op::Delete { path: path.clone(), version: -1 };
        let create = |path: &LockPath| Op::Create {
            path: path.child(&self.prefix),
            data: self.request.data.clone(),
            mode: Mode::EphemeralSequential,
        };
        let created = client.multi(self.replaced.iter().map(delete).chain(all.iter().map(create)).collect());
        let listed = client.children(all[0].as_str());
        self.is_unclear = true;
        let created = created.await;
        self.is_unclear = created.as_ref().is_err_and(|failed| !failed.error.is_of_path());
        let created = created.map_err(|failed| failed.error)?;
        self.replaced.clear();
        let names = created.iter().filter_map(|done| match done {
            Done::Created(path) => Some(paths::name(path).to_owned()),
            Done::Nothing | Done::Set(_) => None,
        });
        // Their transaction is read from their metadata, because the answer of a multi does not state it reliably.
        let entry = |(path, name): (&LockPath, String)| OwnEntry { path: path.clone(), name, token: None };
        self.entries = all.iter().zip(names).map(entry).collect();
        Ok(listed.await.ok())
    }

    /// The entries that a create without an answer has made; empty if any path has none.
    async fn find(&self) -> Result<Vec<OwnEntry>, LockError> {
        let (mut found, mut surplus) = (Vec::new(), Vec::new());
        for path in &self.request.paths {
            let mut own = ordered(&self.client, path.as_str()).await?;
            own.retain(|name| name.starts_with(&self.prefix));
            let mut own = own.into_iter();
            if let Some(name) = own.next()
                && let Some(stat) = stat(&self.client, &path.child(&name)).await?
                // The entry of an earlier session does not last as long as this one.
                && stat.ephemeral_owner == self.client.owner_id()
            {
                found.push(OwnEntry { path: path.clone(), name, token: Some(FencingToken(stat.czxid)) });
            }
            surplus.extend(own.map(|name| path.child(&name)));
        }
        if found.len() < self.request.paths.len() {
            surplus.extend(found.drain(..).map(|entry| entry.path.child(&entry.name)));
        }
        remove(&self.client, surplus).await?;
        Ok(found)
    }

    /// Waits until the entry at this index holds its lock. `listed`: the queue, if it was just read.
    async fn await_turn(&mut self, at: usize, listed: Option<Vec<String>>) -> Result<(), LockError> {
        let OwnEntry { path, name, .. } = self.entries[at].clone();
        let mut listed = listed;
        loop {
            // Sent together with the listing, because both are needed when the entry holds the lock.
            let created = match (&self.entries[at].token, &listed) {
                (None, None) => Some(line(&self.client)?.stat(&path.child(&name))),
                _ => None,
            };
            let ordered = match listed.take() {
                Some(names) => sort(&self.client, path.as_str(), names).await?,
                None => ordered(&self.client, path.as_str()).await?,
            };
            if let Some(created) = created {
                let stat = created.await.at(path.as_str())?;
                self.entries[at].token = stat.map(|stat| FencingToken(stat.czxid));
            }
            let awaited = match turn(&ordered, &name) {
                Turn::Held if self.entries[at].token.is_some() => return Ok(()),
                Turn::Held => continue,
                Turn::Gone => {
                    remove(&self.client, self.entries()).await?;
                    self.entries.clear();
                    return Err(LockError::EntryGone { entry: path.child(&name) });
                }
                Turn::Behind(_) if !self.request.waits => return Err(LockError::Busy { path }),
                Turn::Behind(awaited) => awaited,
            };
            if let Some(watch) = watch(&self.client, &path.child(&awaited)).await? {
                fired_or_late(watch.fired(), &self.clock).await;
            }
        }
    }
}

/// Waits for a watch, at most for [`LOOK_AGAIN`]: the caller reads again in both cases.
pub(super) async fn fired_or_late<K: Clock>(fired: impl Future<Output = ()>, clock: &K) {
    let late = Wake { wall: None, up: Some(clock.now().up + LOOK_AGAIN) };
    // Cancellation safe: both are dropped here, and the caller reads again.
    tokio::select! {
        biased;
        () = fired => {}
        () = clock.sleep_until(late) => {}
    }
}

/// Waits until another attempt makes sense: for the connection if it is lost, else for [`PAUSE`].
///
/// # Errors
/// If the session is over.
pub(super) async fn pause<C: Client, K: Clock>(client: &mut C, clock: &K) -> Result<(), SessionError> {
    if client.state() == State::Connected {
        let until = clock.now().up + PAUSE;
        while clock.now().up < until {
            clock.sleep_until(Wake { wall: None, up: Some(until) }).await;
        }
        return Ok(());
    }
    loop {
        match client.state() {
            State::Connected => return Ok(()),
            State::Expired => return Err(SessionError::SessionOver),
            State::AuthFailed => return Err(SessionError::NoAuth("authentication failed".into())),
            // Bounded: the client gives the session up by its own clock.
            State::Disconnected => client.state_changed().await,
        };
    }
}
