//! Requests on the queue of one lock: list it, watch an entry, create its parents.

use std::future::ready;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};

use super::entries::Recipe;
use crate::recipes::context::{self, At as _, SessionError};
use crate::tree::{AtVersion, Error, Op, Session, Stat, State};
use cronkeeper_core::lock::{LockKind, LockPath};

/// Requests about many paths that are in flight at the same time: many paths must not take as many round trips, and not
/// more memory than this many answers.
pub const AT_ONCE: usize = 100;

/// The session if it is connected. A request given up while disconnected would still be carried out afterwards.
pub fn line<C: Session>(client: &C) -> Result<&C, SessionError> {
    match client.state() {
        State::Connected => Ok(client),
        State::Disconnected => Err(SessionError::Again("the connection is lost".into())),
        State::Expired => Err(SessionError::SessionOver),
        State::AuthFailed => Err(SessionError::NoAuth("authentication failed".into())),
    }
}

/// The names of a queue's entries, first to last; empty if it does not exist.
pub async fn ordered<C: Session>(client: &C, parent: &str) -> Result<Vec<String>, SessionError> {
    let names = context::names(line(client)?, parent).await?;
    sort(client, parent, names).await
}

/// Sorts the names of a queue's entries.
pub async fn sort<C: Session>(client: &C, parent: &str, names: Vec<String>) -> Result<Vec<String>, SessionError> {
    line(client)?.in_order(parent, names).await.at(parent)
}

/// A watch on an entry, and its metadata; `None` if it is gone.
pub async fn watch<C: Session>(client: &C, path: &str) -> Result<Option<(C::Watch, Stat)>, SessionError> {
    // A read of data leaves no watch behind if the entry does not exist; a check for existence would.
    match line(client)?.get_and_watch(path).await {
        Ok((_, stat, watch)) => return Ok(Some((watch, stat))),
        Err(Error::Missing) => return Ok(None),
        // A foreign entry that must not be read can still be watched.
        Err(error) if error.is_of_path() => {}
        Err(error) => return Err(error).at(path),
    }
    let (stat, watch) = line(client)?.stat_and_watch(path).await.at(path)?;
    Ok(stat.map(|stat| (watch, stat)))
}

/// An entry's metadata; `None` if it is gone.
pub async fn stat<C: Session>(client: &C, path: &str) -> Result<Option<Stat>, SessionError> {
    line(client)?.stat(path).await.at(path)
}

/// The metadata of entries in their order, [`AT_ONCE`] at a time; `None` of one that is gone.
///
/// All are read after this is called.
pub async fn stats<C: Session>(client: &C, entries: Vec<String>) -> Result<Vec<Option<Stat>>, SessionError> {
    let stats = stream::iter(entries).map(|entry| async move { stat(client, &entry).await });
    stats.buffered(AT_ONCE).try_collect().await
}

/// Makes sure that these queues exist. The service may remove each once it is unused.
pub async fn make_queues<C: Session>(client: &C, paths: Vec<String>) -> Result<(), SessionError> {
    line(client)?.make_folders(paths).await.map_err(|(path, error)| SessionError::of(&error, &path))
}

/// Commits a write: afterwards every earlier request of this session has been carried out, or never will be.
pub async fn settle<C: Session>(client: &C, path: &str) -> Result<(), SessionError> {
    let check = Op::Check { path: path.to_owned(), at: AtVersion::Any };
    match line(client)?.commit(vec![check]).await {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.is_of_path() => Ok(()),
        Err(failed) => Err(failed).at(path),
    }
}

/// Removes these records in one commit; those that are gone already do not matter.
pub async fn remove<C: Session>(client: &C, entries: Vec<String>) -> Result<(), SessionError> {
    send_removal(client, entries)?.await
}

/// Sends the request to remove these records; the future waits for the answer.
///
/// # Errors
/// If nothing was sent.
pub fn send_removal<C: Session>(
    client: &C,
    entries: Vec<String>,
) -> Result<impl Future<Output = Result<(), SessionError>> + Send + use<C>, SessionError> {
    let connected = line(client)?;
    let sent: BoxFuture<'static, Result<(), Error>> = match entries.as_slice() {
        [] => ready(Ok(())).boxed(),
        [one] => connected.delete(one, AtVersion::Any).boxed(),
        several => {
            let delete = |path: &String| Op::Delete { path: path.clone(), at: AtVersion::Any };
            let removed = connected.commit(several.iter().map(delete).collect());
            removed.map(|removed| removed.map(drop).map_err(|failed| failed.error)).boxed()
        }
    };
    let client = client.clone();
    Ok(async move {
        match sent.await {
            Ok(()) => return Ok(()),
            // One was gone already, so none was removed.
            Err(Error::Missing) if entries.len() > 1 => {}
            Err(Error::Missing) => return Ok(()),
            Err(error) => return Err(error).at(&entries[0]),
        }
        for path in &entries {
            match line(&client)?.delete(path, AtVersion::Any).await {
                Ok(()) | Err(Error::Missing) => {}
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
