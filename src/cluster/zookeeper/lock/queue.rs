//! Requests on the queue of one lock: list it, watch an entry, create its parents.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::entries::Recipe;
use crate::zookeeper::client::{Client, Error, Mode, Op, Stat, State};
use crate::zookeeper::context::{self, At as _, SessionError};
use crate::zookeeper::paths;
use crate::zookeeper::queue::{self, QueueEntry};
use cronkeeper_core::lock::{LockKind, LockPath};

/// Requests about many paths that are in flight at the same time: many paths must not take as many round trips, and not
/// more memory than this many answers.
pub const AT_ONCE: usize = 100;

/// The session if it is connected. A request given up while disconnected would still be carried out afterwards.
pub fn line<C: Client>(client: &C) -> Result<&C, SessionError> {
    match client.state() {
        State::Connected => Ok(client),
        State::Disconnected => Err(SessionError::Again("the connection is lost".into())),
        State::Expired => Err(SessionError::SessionOver),
        State::AuthFailed => Err(SessionError::NoAuth("authentication failed".into())),
    }
}

/// The names of a queue's entries, first to last; empty if it does not exist.
pub async fn ordered<C: Client>(client: &C, parent: &str) -> Result<Vec<String>, SessionError> {
    let names = context::children(line(client)?, parent).await?;
    sort(client, parent, names).await
}

/// Sorts the names of a queue's entries. Where names alone do not give the order, reads when each was created.
pub async fn sort<C: Client>(client: &C, parent: &str, names: Vec<String>) -> Result<Vec<String>, SessionError> {
    let entries = if queue::needs_age(&names) {
        let found = context::stats(line(client)?, parent, names).await?;
        found.into_iter().map(|(name, stat)| QueueEntry { name, czxid: stat.czxid }).collect()
    } else {
        names.into_iter().map(|name| QueueEntry { name, czxid: 0 }).collect()
    };
    Ok(queue::order(entries))
}

/// A watch on an entry, and its metadata; `None` if it is gone.
pub async fn watch<C: Client>(client: &C, path: &str) -> Result<Option<(C::Watch, Stat)>, SessionError> {
    // A read of data leaves no watch behind if the entry does not exist; a check for existence would.
    match line(client)?.get_and_watch(path).await {
        Ok((_, stat, watch)) => return Ok(Some((watch, stat))),
        Err(Error::NoNode) => return Ok(None),
        // A foreign entry that must not be read can still be watched.
        Err(error) if error.is_of_path() => {}
        Err(error) => return Err(error).at(path),
    }
    let (stat, watch) = line(client)?.stat_and_watch(path).await.at(path)?;
    Ok(stat.map(|stat| (watch, stat)))
}

/// An entry's metadata; `None` if it is gone.
pub async fn stat<C: Client>(client: &C, path: &str) -> Result<Option<Stat>, SessionError> {
    line(client)?.stat(path).await.at(path)
}

/// The metadata of entries in their order, [`AT_ONCE`] at a time; `None` of one that is gone.
///
/// All are read after this is called.
pub async fn stats<C: Client>(client: &C, entries: Vec<String>) -> Result<Vec<Option<Stat>>, SessionError> {
    for_each(client, entries, |client, entry| async move { stat(&client, &entry).await }).await
}

/// Asks about paths, [`AT_ONCE`] at a time.
async fn for_each<C: Client, T, F: Future<Output = Result<T, SessionError>>>(
    client: &C,
    paths: Vec<String>,
    ask: impl Fn(C, String) -> F,
) -> Result<Vec<T>, SessionError> {
    stream::iter(paths).map(|path| ask(client.clone(), path)).buffered(AT_ONCE).try_collect().await
}

/// Creates a path with its ancestors. The last component is a container, which the server removes once it is unused.
///
/// A server before 3.5.3 knows no containers and gets a persistent znode.
pub async fn create_parents<C: Client>(client: &C, path: &str) -> Result<(), SessionError> {
    create_all_parents(client, &[path]).await
}

/// Creates several paths with their ancestors, as [`create_parents`] does: an ancestor before what is below it, and only
/// once.
pub async fn create_all_parents<C: Client>(client: &C, paths: &[impl AsRef<str>]) -> Result<(), SessionError> {
    let paths: BTreeSet<&str> = paths.iter().map(AsRef::as_ref).collect();
    let mut levels: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for path in &paths {
        for (level, ancestor) in paths::ancestors(path).enumerate() {
            levels.entry(level).or_default().insert(ancestor);
        }
    }
    for level in levels.into_values() {
        let level = level.into_iter().map(str::to_owned).collect();
        let create = |client, path: String| {
            // One that is itself among the paths is removed like them once it is unused.
            let is_path = paths.contains(path.as_str());
            async move {
                match is_path {
                    true => create_container(&client, &path).await,
                    false => create_parent(&client, &path, Mode::Persistent).await,
                }
            }
        };
        for_each(client, level, create).await?;
    }
    let paths = paths.into_iter().map(str::to_owned).collect();
    for_each(client, paths, |client, path| async move { create_container(&client, &path).await }).await?;
    Ok(())
}

async fn create_container<C: Client>(client: &C, path: &str) -> Result<(), SessionError> {
    match create_parent(client, path, Mode::Container).await {
        Err(SessionError::Again(_)) => create_parent(client, path, Mode::Persistent).await,
        made => made,
    }
}

async fn create_parent<C: Client>(client: &C, path: &str, mode: Mode) -> Result<(), SessionError> {
    match line(client)?.create(path, Vec::new(), mode).await {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        // Somebody else's, in which this client may still be allowed to queue.
        Err(Error::NoAuth) if line(client)?.stat(path).await.at(path)?.is_some() => Ok(()),
        // Only the chroot itself has no parent that was created just before.
        Err(Error::NoNode) if path.rfind('/') == Some(0) => Err(SessionError::NoChroot),
        Err(error) => Err(error).at(path),
    }
}

/// Commits a write: afterwards every earlier request of this session has been carried out, or never will be.
pub async fn settle<C: Client>(client: &C, path: &str) -> Result<(), SessionError> {
    let check = Op::Check { path: path.to_owned(), version: -1 };
    match line(client)?.multi(vec![check]).await {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.is_of_path() => Ok(()),
        Err(failed) => Err(failed).at(path),
    }
}

/// Removes these znodes in one transaction; those that are gone already do not matter.
pub async fn remove<C: Client>(client: &C, entries: Vec<String>) -> Result<(), SessionError> {
    send_removal(client, entries)?.await
}

/// Sends the request to remove these znodes; the future waits for the answer.
///
/// # Errors
/// If nothing was sent.
pub fn send_removal<C: Client>(
    client: &C,
    entries: Vec<String>,
) -> Result<impl Future<Output = Result<(), SessionError>> + Send + use<C>, SessionError> {
    let connected = line(client)?;
    let sent: BoxFuture<'static, Result<(), Error>> = match entries.as_slice() {
        [] => ready(Ok(())).boxed(),
        [one] => connected.delete(one, -1).boxed(),
        several => {
            let delete = |path: &String| Op::Delete { path: path.clone(), version: -1 };
            let removed = connected.multi(several.iter().map(delete).collect());
            removed.map(|removed| removed.map(drop).map_err(|failed| failed.error)).boxed()
        }
    };
    let client = client.clone();
    Ok(async move {
        match sent.await {
            Ok(()) => return Ok(()),
            // One was gone already, so none was removed.
            Err(Error::NoNode) if entries.len() > 1 => {}
            Err(Error::NoNode) => return Ok(()),
            Err(error) => return Err(error).at(&entries[0]),
        }
        for path in &entries {
            match line(&client)?.delete(path, -1).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => return Err(error).at(path),
            }
        }
        Ok(())
    })
}

/// Where the entries of a lock are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Parent of the queue.
    pub queue: String,
    /// Parent of the permits in use, of a semaphore.
    pub permits: Option<String>,
}

impl Layout {
    pub fn of(path: &LockPath, kind: LockKind, recipe: Recipe) -> Self {
        match (kind, recipe) {
            (LockKind::Permits { .. }, Recipe::Curator) => {
                Self { queue: path.child("locks"), permits: Some(path.child("leases")) }
            }
            (LockKind::Permits { .. }, Recipe::Kazoo) => {
                Self { queue: format!("{path}-__lock__"), permits: Some(path.to_string()) }
            }
            _ => Self { queue: path.to_string(), permits: None },
        }
    }
}
