//! Who holds which lock and who waits, for people; and requests to release.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::Serialize;

use super::entries::{self, Turn, turn};
use super::queue::{line, ordered};
use super::{LockClient, LockError, REVOKE};
use crate::zookeeper::client::{Client, Error, Op, Stat};
use crate::zookeeper::context::{self, At as _, Found, SessionError};
use crate::zookeeper::queue::sequence;
use cronkeeper_core::lock::{LockPath, is_reserved};

/// Most znodes to visit in a search for locks.
const MOST_ZNODES: usize = 10_000;
/// Most entries of one lock to show.
const MOST_ENTRIES: usize = 1_000;
/// Names of the children of a semaphore.
const SEMAPHORE: [&str; 2] = ["leases", "locks"];

/// A lock that somebody holds or waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedLock {
    pub path: String,
    /// First to last; permits in use first.
    pub entries: Vec<ListedEntry>,
    /// Entries that are not listed, because there are too many.
    pub more: usize,
}

/// An entry of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedEntry {
    /// The name of its znode.
    pub name: String,
    pub role: EntryRole,
    /// When it was created, by the servers' clock.
    pub since: Timestamp,
    /// Who made it, if a cronkeeper did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<LockClient>,
    /// The data of a foreign entry, as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub data: String,
    /// Somebody asks to release it.
    pub is_revoked: bool,
}

/// Whether an entry holds or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryRole {
    /// It holds the lock alone.
    Holds,
    /// It holds the lock beside other readers.
    Reads,
    /// It has a permit of the semaphore.
    HasPermit,
    Waits,
}

/// The locks that were found, and whether the search was complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub locks: Vec<ListedLock>,
    /// There are more znodes than a search visits: name a path.
    pub is_cut: bool,
}

/// Lists the lock at `path` and those below it; all locks without a path.
///
/// # Errors
/// If the servers do not answer or refuse.
pub async fn list<C: Client>(client: &C, path: Option<&LockPath>) -> Result<Listing, SessionError> {
    let mut listing = Listing::default();
    let root = path.map_or_else(|| "/".to_owned(), ToString::to_string);
    let mut left = VecDeque::from([root]);
    let mut visited = 0;
    while let Some(path) = left.pop_front() {
        visited += 1;
        if visited > MOST_ZNODES {
            listing.is_cut = true;
            break;
        }
        let names = context::or_none(context::children(line(client)?, &path).await)?;
        let is_semaphore = SEMAPHORE.iter().all(|child| names.iter().any(|name| name == child));
        let lock = if is_semaphore { semaphore(client, &path).await? } else { queue(client, &path, &names).await? };
        listing.locks.extend(lock);
        if is_semaphore {
            continue;
        }
        let below = names.iter().filter(|name| sequence(name).is_none()).map(|name| child(&path, name));
        left.extend(below.filter(|path| !is_reserved(path)).take(MOST_ZNODES));
    }
    Ok(listing)
}

fn child(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

async fn queue<C: Client>(client: &C, path: &str, names: &[String]) -> Result<Option<ListedLock>, SessionError> {
    if path == "/" || !names.iter().any(|name| is_entry(name)) {
        return Ok(None);
    }
    let mut ordered = ordered(client, path).await?;
    let more = ordered.len().saturating_sub(MOST_ENTRIES);
    let roles: Vec<(String, EntryRole)> = ordered
        .iter()
        .take(MOST_ENTRIES)
        .map(|name| {
            let role = match turn(&ordered, name) {
                Turn::Held if entries::is_shared(name) => EntryRole::Reads,
                Turn::Held => EntryRole::Holds,
                Turn::Behind(_) | Turn::Gone => EntryRole::Waits,
            };
            (name.clone(), role)
        })
        .collect();
    ordered.truncate(MOST_ENTRIES);
    let entries = read(client, path, &roles).await?;
    Ok((!entries.is_empty()).then(|| ListedLock { path: path.to_owned(), entries, more }))
}

/// True for the names that the recipes give entries. Other sequential znodes, such as a queue of messages, are no lock.
fn is_entry(name: &str) -> bool {
    const ENDS: [&str; 5] = ["-lock-", "__lock__", "__rlock__", "__READ__", "__WRIT__"];
    let Some(kind) = name.len().checked_sub(10).and_then(|end| name.get(..end)) else { return false };
    sequence(name).is_some() && (kind == "lock-" || ENDS.iter().any(|end| kind.ends_with(end)))
}

/// The users of one of Curator's semaphores.
async fn semaphore<C: Client>(client: &C, path: &str) -> Result<Option<ListedLock>, SessionError> {
    let mut more = 0;
    let mut entries = Vec::new();
    for (parent, role) in SEMAPHORE.iter().zip([EntryRole::HasPermit, EntryRole::Waits]) {
        let parent = format!("{path}/{parent}");
        let mut names = ordered(client, &parent).await?;
        more += names.len().saturating_sub(MOST_ENTRIES);
        names.truncate(MOST_ENTRIES);
        let roles: Vec<(String, EntryRole)> = names.into_iter().map(|name| (name, role)).collect();
        entries.extend(read(client, &parent, &roles).await?);
    }
    Ok((!entries.is_empty()).then(|| ListedLock { path: path.to_owned(), entries, more }))
}

async fn read<C: Client>(
    client: &C,
    parent: &str,
    roles: &[(String, EntryRole)],
) -> Result<Vec<ListedEntry>, SessionError> {
    let names = roles.iter().map(|(name, _)| name.clone()).collect();
    let reads = context::get_small(line(client)?, parent, names).await?;
    let role_of = |name: &str| roles.iter().find(|(known, _)| known == name).map(|&(_, role)| role);
    let unread = reads.unread.into_iter().map(|(name, _)| (name, Vec::new(), Stat::default()));
    let all = reads.found.into_iter().chain(unread);
    Ok(all.filter_map(|found| role_of(&found.0).map(|role| entry(found, role))).collect())
}

fn entry((name, data, stat): Found, role: EntryRole) -> ListedEntry {
    let client = serde_json::from_slice::<LockClient>(&data).ok();
    let is_revoked = data == REVOKE || client.as_ref().is_some_and(|client| client.revoked_at_ms.is_some());
    let text = if client.is_some() || data == REVOKE { String::new() } else { String::from_utf8_lossy(&data).into() };
    let since = Timestamp::from_millisecond(stat.ctime_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    ListedEntry { name, role, since, client, data: text, is_revoked }
}

/// Asks the holders of a lock to release it, as Curator's `Revoker` does. Returns their number.
///
/// # Errors
/// If the servers do not answer or refuse.
pub async fn revoke<C: Client>(client: &C, path: &LockPath) -> Result<usize, LockError> {
    let listing = list(client, Some(path)).await?;
    let own = listing.locks.into_iter().filter(|lock| lock.path == path.as_str());
    let mut asked = 0;
    for entry in own.flat_map(|lock| lock.entries).filter(|entry| entry.role != EntryRole::Waits) {
        let parent = match entry.role {
            EntryRole::HasPermit => path.child(SEMAPHORE[0]),
            _ => path.to_string(),
        };
        let entry = child(&parent, &entry.name);
        let set = Op::Set { path: entry.clone(), data: REVOKE.to_vec(), version: -1 };
        match line(client)?.multi(vec![set]).await {
            Ok(_) => asked += 1,
            // It was released meanwhile.
            Err(failed) if failed.error == Error::NoNode => {}
            Err(failed) => return Err(failed).at(&entry).map_err(LockError::from),
        }
    }
    Ok(asked)
}
