//! One request on one session, from the first create to the last turn.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::entries::{Turn, turn};
use super::local::{HandOff, LocalQueue};
use super::obstacles::Obstacles;
use super::queue::{AT_ONCE, line, make_queues, ordered, remove, settle, sort, stat, stats, watch};
use super::size::SizeWatch;
use super::{HeldLock, LOOK_AGAIN, LockError, LockRequest, PAUSE};
use crate::paths;
use crate::recipes::context::{At as _, SessionError};
use crate::tree::{Error, Life, Op, Session, Stat, State, Watch as _};
use cronkeeper_core::clock::{Clock, Wake};
use cronkeeper_core::lock::LockPath;
use cronkeeper_core::term::FencingToken;

/// An attempt fails for good after this many failures in a row, with [`PAUSE`] between them.
const MOST_FAILURES: usize = 50;

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
    /// Whether the servers take a request for all of them.
    sizes: SizeWatch,
    /// The entries of all clients of the session.
    local: Arc<LocalQueue>,
    obstacles: Obstacles,
}

impl<C: Session, K: Clock> Attempt<C, K> {
    pub fn new(client: C, clock: K, local: Arc<LocalQueue>, obstacles: Obstacles, request: LockRequest) -> Self {
        let prefix = request.recipe.prefix(request.kind, request.uuid);
        let (entries, sizes) = (Vec::new(), SizeWatch::default());
        Self { client, clock, request, prefix, entries, is_unclear: false, sizes, local, obstacles }
    }

    pub async fn acquire(&mut self) -> Result<(), LockError> {
        let mut failures = Failures::default();
        loop {
            match self.try_acquire().await {
                Err(error) if error.is_passing() => failures.wait_after(error, &mut self.client, &self.clock).await?,
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
        let mut first = self.join().await?;
        for from in (0..self.entries.len()).step_by(AT_ONCE) {
            let listed = self.look(from, first.take()).await?;
            for (at, listed) in (from..).zip(listed) {
                self.await_turn(at, listed).await?;
            }
        }
        self.verify().await
    }

    /// Reads the queues of the entries from this index on, up to [`AT_ONCE`] of them, and when the entries were created.
    /// `first`: the queue of the first of them, if it was just read.
    ///
    /// Such a list may be old when it is used. Nobody gets in front of an entry, so one that was first still is unless it
    /// was deleted, which [`Self::verify`] finds out; and who was in front may have gone, which `await_turn` sees when it
    /// watches it.
    async fn look(&mut self, from: usize, first: Option<Vec<String>>) -> Result<Vec<Option<Vec<String>>>, LockError> {
        if self.entries.len() == 1 {
            return Ok(vec![first]);
        }
        let client = line(&self.client)?;
        let request = |OwnEntry { path, name, .. }: &OwnEntry| {
            let created: BoxFuture<'static, Result<Option<Stat>, Error>> = client.stat(&path.child(name)).boxed();
            let names: BoxFuture<'static, Result<Vec<String>, Error>> = client.names(path.as_str()).boxed();
            (created, names)
        };
        // All are handed over before the first answer is awaited.
        let requests: Vec<_> = self.entries.iter().skip(from).take(AT_ONCE).map(request).collect();
        let mut listed = Vec::with_capacity(requests.len());
        for (entry, (created, names)) in self.entries[from..].iter_mut().zip(requests) {
            let created = created.await.at(entry.path.as_str())?;
            entry.token = created.map(|stat| stat.created.token()).or(entry.token);
            // What cannot be read is read again, and named then.
            listed.push(names.await.ok());
        }
        Ok(listed)
    }

    /// Checks that of several entries none was deleted while the client waited for the others.
    async fn verify(&mut self) -> Result<(), LockError> {
        if self.entries.len() < 2 {
            return Ok(());
        }
        let entries = self.entries();
        let gone = stats(&self.client, entries.clone()).await?.iter().position(Option::is_none);
        match gone {
            Some(at) => self.give_up(entries[at].clone()).await,
            None => Ok(()),
        }
    }

    /// Removes all entries, because this one was deleted by somebody else.
    async fn give_up(&mut self, gone: String) -> Result<(), LockError> {
        let entries = self.entries();
        remove(&self.client, entries.clone()).await?;
        self.local.remove(&entries);
        self.entries.clear();
        Err(LockError::EntryGone { entry: gone })
    }

    /// Makes sure that there is an entry at every path. Returns the queue of the first path if it was read meanwhile.
    async fn join(&mut self) -> Result<Option<Vec<String>>, LockError> {
        if self.is_unclear {
            settle(&self.client, self.request.paths[0].as_str()).await?;
            self.entries = self.find().await?;
            self.is_unclear = false;
        }
        if !self.entries.is_empty() {
            return Ok(None);
        }
        let paths = self.request.paths.clone();
        let made = match paths.as_slice() {
            [path] => self.create_one(path).await,
            paths => self.create_all(paths).await,
        };
        match made {
            Err(Error::Missing) => {
                let paths = self.request.paths.iter().map(LockPath::to_string).collect();
                make_queues(&self.client, paths).await?;
                Err(SessionError::Again("the lock was missing".into()).into())
            }
            Err(Error::Unanswered(_)) if self.sizes.is_too_large() => Err(self.sizes.error()),
            made => {
                let listed = made.at(self.request.paths[0].as_str())?;
                self.local.add(&self.entries());
                Ok(listed)
            }
        }
    }

    /// Creates the entry of a single lock and lists the queue, in one round trip: a session's requests are carried out
    /// in order.
    async fn create_one(&mut self, path: &LockPath) -> Result<Option<Vec<String>>, Error> {
        let client = line(&self.client).map_err(not_sent)?;
        let created = client.append(path.as_str(), &self.prefix, self.request.data.clone(), Life::OfSession);
        let listed = client.names(path.as_str());
        self.is_unclear = true;
        let created = created.await;
        self.is_unclear = created.as_ref().is_err_and(|error| !error.is_of_path());
        let (created, stat) = created?;
        let (name, token) = (paths::name(&created).to_owned(), Some(stat.created.token()));
        self.entries = vec![OwnEntry { path: path.clone(), name, token }];
        Ok(listed.await.ok())
    }

    /// Creates the entries of several locks in one transaction. Lists the first queue.
    async fn create_all(&mut self, all: &[LockPath]) -> Result<Option<Vec<String>>, Error> {
        let client = line(&self.client).map_err(not_sent)?;
        let append = |path: &LockPath| Op::Append {
            folder: path.to_string(),
            prefix: self.prefix.clone(),
            data: self.request.data.clone(),
            life: Life::OfSession,
        };
        let ops: Vec<Op> = all.iter().map(append).collect();
        self.sizes.expect(&ops);
        let created = client.commit(ops);
        let listed = client.names(all[0].as_str());
        self.is_unclear = true;
        let created = created.await;
        self.is_unclear = created.as_ref().is_err_and(|failed| !failed.error.is_of_path());
        let created = created.map_err(|failed| failed.error)?;
        let names = created.created.iter().map(|path| paths::name(path).to_owned());
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
                && stat.session == Some(self.client.id())
            {
                found.push(OwnEntry { path: path.clone(), name, token: Some(stat.created.token()) });
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
            self.obstacles.listed(path.as_str(), &ordered);
            if let Some(created) = created {
                let stat = created.await.at(path.as_str())?;
                self.entries[at].token = stat.map(|stat| stat.created.token());
            }
            let awaited = match turn(&ordered, &name) {
                Turn::Held if self.entries[at].token.is_some() => {
                    self.local.grant(&path.child(&name));
                    return Ok(());
                }
                Turn::Held => continue,
                Turn::Gone => return self.give_up(path.child(&name)).await,
                Turn::Behind(awaited) if !self.request.waits && !self.local.is_leaving(&path.child(&awaited)) => {
                    if let Ok(Some(stat)) = stat(&self.client, &path.child(&awaited)).await {
                        self.obstacles.awaited(path.as_str(), &awaited, &stat);
                    }
                    return Err(LockError::Busy { path });
                }
                Turn::Behind(awaited) => awaited,
            };
            let (ahead, awaited) = (awaited.clone(), path.child(&awaited));
            if let Some(released) = self.local.wait_for(&awaited) {
                let mut handed = HandOff::LookAgain;
                fired_or_late(async { handed = released.await.unwrap_or(HandOff::LookAgain) }, &self.clock).await;
                if handed == HandOff::Granted && self.entries[at].token.is_some() {
                    self.local.grant(&path.child(&name));
                    return Ok(());
                }
            } else if let Some((watch, stat)) = watch(&self.client, &awaited).await? {
                self.obstacles.awaited(path.as_str(), &ahead, &stat);
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

/// Failures one after the other. What fails again and again under a connection does not pass.
#[derive(Debug, Default)]
pub(super) struct Failures(usize);

impl Failures {
    /// Waits until another attempt makes sense after this failure.
    ///
    /// # Errors
    /// The failure itself if it is one too many, or if the session is over.
    pub async fn wait_after<C: Session, K: Clock, E: From<SessionError>>(
        &mut self,
        error: E,
        client: &mut C,
        clock: &K,
    ) -> Result<(), E> {
        if self.0 >= MOST_FAILURES {
            return Err(error);
        }
        self.0 = if client.state() == State::Connected { self.0 + 1 } else { 0 };
        Ok(pause(client, clock).await?)
    }
}

/// The failure of a request that was not sent. What does not pass must not look like what does.
fn not_sent(error: SessionError) -> Error {
    match error {
        SessionError::NoAuth(_) => Error::Denied,
        SessionError::SessionOver => Error::SessionOver,
        error => Error::Unanswered(error.to_string()),
    }
}

/// Waits until another attempt makes sense: for the connection if it is lost, else for [`PAUSE`].
///
/// # Errors
/// If the session is over.
pub(super) async fn pause<C: Session, K: Clock>(client: &mut C, clock: &K) -> Result<(), SessionError> {
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
