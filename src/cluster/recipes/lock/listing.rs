//! Who holds which lock and who waits, for people; and requests to release.

use std::collections::{BTreeSet, VecDeque};

use jiff::Timestamp;
use serde::Serialize;

use super::entries::{self, Turn, turn};
use super::queue::{line, ordered};
use super::{LockClient, LockError, REVOKE};
use crate::queue::sequence;
use crate::recipes::context::{self, At as _, Found, SessionError};
use crate::tree::{AtVersion, Error, Op, Session};
use cronkeeper_core::lock::{LockPath, is_reserved};

/// Most records to visit in a search for locks.
const MOST_VISITED: usize = 10_000;
/// Most entries of one lock to show.
const MOST_ENTRIES: usize = 1_000;
/// The end of the name of the queue of a semaphore of kazoo.
const KAZOO_QUEUE: &str = "-__lock__";
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
    /// The name of its record.
    pub name: String,
    /// The path of its record; empty for a lock that has none.
    #[serde(skip)]
    pub path: String,
    /// It is known not to go with its session, so no client holds anything with it. It makes others wait all the same.
    #[serde(skip)]
    pub is_persistent: bool,
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
    /// It holds the lock together with other readers.
    Reads,
    /// It has a permit of the semaphore.
    HasPermit,
    Waits,
}

/// The locks that were found, and where the search ended early.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub locks: Vec<ListedLock>,
    /// There are more records than a search visits.
    pub cut: Option<Cut>,
}

/// What a request to release a lock has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Number of holders that were asked.
    pub holders: usize,
    /// Paths of entries that hold the lock and go with no session, so that nobody can be asked.
    pub foreign: Vec<String>,
}

/// The records that a search has seen and not visited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cut {
    pub left: usize,
    /// The path of the first one.
    pub first: String,
}

impl Cut {
    /// Both together; the first one names the first record.
    fn both(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(Self { left: one.left + other.left, first: one.first }),
            (one, other) => one.or(other),
        }
    }
}

/// A record to visit.
struct Place {
    path: String,
    /// Somebody names it as a lock, so whatever is in its queue is shown, whoever made it.
    is_named: bool,
    /// The queue of a semaphore of kazoo is beside it. Its children are then the permits in use.
    is_kazoo_semaphore: bool,
}

/// Lists the lock at `path` and those below it; all locks without a path.
///
/// # Errors
/// If the servers do not answer or refuse.
pub async fn list<C: Session>(client: &C, path: Option<&LockPath>) -> Result<Listing, SessionError> {
    let mut listing = Listing::default();
    let mut left = VecDeque::from([first(client, path).await?]);
    for visited in 0.. {
        let Some(place) = left.pop_front() else { break };
        if visited >= MOST_VISITED {
            let unvisited = Some(Cut { left: left.len() + 1, first: place.path });
            listing.cut = Cut::both(unvisited, listing.cut);
            break;
        }
        let names = context::names(line(client)?, &place.path).await;
        // A lock that may not be read is not free, so it must not look so.
        let names = if place.is_named { names? } else { context::or_none(names)? };
        let has = |child: &&str| names.iter().any(|name| name == child);
        let is_semaphore = SEMAPHORE.iter().all(has);
        // A client of the semaphore waits for what is in one of them, even if the other is not there.
        if is_semaphore || (place.is_named && SEMAPHORE.iter().any(has)) {
            listing.locks.extend(semaphore(client, &place.path).await?);
        } else if place.is_kazoo_semaphore {
            listing.locks.extend(kazoo_semaphore(client, &place.path, &names).await?);
        }
        listing.locks.extend(queue(client, &place, &names).await?);
        let (children, skipped) = below(client, &place, &names, is_semaphore).await?;
        left.extend(children);
        listing.cut = Cut::both(listing.cut, skipped);
    }
    Ok(listing)
}

async fn first<C: Session>(client: &C, path: Option<&LockPath>) -> Result<Place, SessionError> {
    let Some(path) = path else {
        return Ok(Place { path: "/".to_owned(), is_named: false, is_kazoo_semaphore: false });
    };
    let beside = queue_of_kazoo(path.as_str());
    let is_kazoo_semaphore = line(client)?.stat(&beside).await.at(&beside)?.is_some();
    Ok(Place { path: path.to_string(), is_named: true, is_kazoo_semaphore })
}

/// The queue of a semaphore of kazoo is not below its path but beside it.
fn queue_of_kazoo(path: &str) -> String {
    format!("{path}{KAZOO_QUEUE}")
}

/// The children to visit, and those that are too many to look at.
///
/// A name that ends in a sequence number can be a lock's own, such as `/locks/20261126`: whatever has had children of
/// its own is visited. Entries never have any.
async fn below<C: Session>(
    client: &C,
    place: &Place,
    names: &[String],
    is_semaphore: bool,
) -> Result<(Vec<Place>, Option<Cut>), SessionError> {
    let parent = place.path.as_str();
    let (numbered, plain): (Vec<&String>, Vec<&String>) = names.iter().partition(|name| sequence(name).is_some());
    let known: BTreeSet<&str> = plain.iter().map(|name| name.as_str()).collect();
    let is_queue = |name: &str| name.strip_suffix(KAZOO_QUEUE).is_some_and(|base| known.contains(base));
    // Permits are no locks; but locks may be in a folder of that name.
    let is_own = |name: &str| match is_semaphore {
        true => SEMAPHORE.contains(&name),
        false => place.is_named && name == SEMAPHORE[0],
    };
    let mut visited: Vec<&String> = plain.iter().copied().filter(|name| !is_queue(name) && !is_own(name)).collect();
    let mut numbered: Vec<String> = numbered.into_iter().filter(|name| !is_entry(name)).cloned().collect();
    numbered.sort_unstable();
    let skipped = numbered.split_off(numbered.len().min(MOST_ENTRIES));
    let skipped = skipped.first().map(|first| Cut { left: skipped.len(), first: child(parent, first) });
    let found = context::stats(line(client)?, parent, numbered).await?;
    let parents = found.iter().filter(|(_, stat)| stat.session.is_none() && stat.below > 0);
    visited.extend(parents.map(|(name, _)| name));
    let place = |name: &String| Place {
        path: child(parent, name),
        is_named: false,
        is_kazoo_semaphore: known.contains(queue_of_kazoo(name).as_str()),
    };
    let visited = visited.into_iter().map(place).filter(|place| !is_reserved(&place.path)).collect();
    Ok((visited, skipped.filter(|skipped| !is_reserved(&skipped.first))))
}

fn child(parent: &str, name: &str) -> String {
    if parent == "/" { format!("/{name}") } else { format!("{parent}/{name}") }
}

/// The entries with a sequence number: each of them makes those behind it wait, whatever its name is.
async fn queue<C: Session>(client: &C, place: &Place, names: &[String]) -> Result<Option<ListedLock>, SessionError> {
    let path = &place.path;
    if path == "/" || !names.iter().any(|name| sequence(name).is_some()) {
        return Ok(None);
    }
    let ordered = ordered(client, path).await?;
    if !place.is_named
        && !ordered.iter().any(|name| is_entry(name))
        && !begins_with_entry(client, path, &ordered).await?
    {
        return Ok(None);
    }
    let more = ordered.len().saturating_sub(MOST_ENTRIES);
    let role_of = |name: &String| match turn(&ordered, name) {
        Turn::Held if entries::is_shared(name) => EntryRole::Reads,
        Turn::Held => EntryRole::Holds,
        Turn::Behind(_) | Turn::Gone => EntryRole::Waits,
    };
    let roles: Vec<_> = ordered.iter().take(MOST_ENTRIES).map(|name| (name.clone(), role_of(name))).collect();
    Ok(listed(path, read(client, path, &roles).await?, more))
}

/// True if the first of the entries goes with its session: such as of a client that gives them names of its own. A queue
/// of messages is persistent, and no lock.
async fn begins_with_entry<C: Session>(client: &C, path: &str, ordered: &[String]) -> Result<bool, SessionError> {
    let first = ordered.iter().take(1).cloned().collect();
    let found = context::stats(line(client)?, path, first).await?;
    Ok(found.iter().any(|(_, stat)| stat.session.is_some()))
}

/// True for the names that the recipes give entries. Other appended records, such as a queue of messages, are no lock.
fn is_entry(name: &str) -> bool {
    const ENDS: [&str; 5] = ["-lock-", "__lock__", "__rlock__", "__READ__", "__WRIT__"];
    let Some(kind) = name.len().checked_sub(10).and_then(|end| name.get(..end)) else { return false };
    sequence(name).is_some() && (kind == "lock-" || ENDS.iter().any(|end| kind.ends_with(end)))
}

/// The users of one of Curator's semaphores. Every child counts as a permit in use.
async fn semaphore<C: Session>(client: &C, path: &str) -> Result<Option<ListedLock>, SessionError> {
    let [permits, queue] = SEMAPHORE.map(|name| format!("{path}/{name}"));
    let names = context::or_none(context::names(line(client)?, &permits).await)?;
    with_queue(client, path, (&permits, names), &queue).await
}

/// The users of one of kazoo's semaphores, whose children are these. Those with a sequence number are in a queue.
async fn kazoo_semaphore<C: Session>(
    client: &C,
    path: &str,
    names: &[String],
) -> Result<Option<ListedLock>, SessionError> {
    let permits = names.iter().filter(|name| sequence(name).is_none()).cloned().collect();
    with_queue(client, path, (path, permits), &queue_of_kazoo(path)).await
}

/// A semaphore: those of `permits`, names below a parent, then those in the queue.
async fn with_queue<C: Session>(
    client: &C,
    path: &str,
    permits: (&str, Vec<String>),
    queue: &str,
) -> Result<Option<ListedLock>, SessionError> {
    let (mut more, mut entries) = (0, Vec::new());
    let waiting = context::or_none(ordered(client, queue).await)?;
    for ((parent, mut names), role) in [(permits, EntryRole::HasPermit), ((queue, waiting), EntryRole::Waits)] {
        more += names.len().saturating_sub(MOST_ENTRIES);
        names.truncate(MOST_ENTRIES);
        let roles: Vec<(String, EntryRole)> = names.into_iter().map(|name| (name, role)).collect();
        entries.extend(read(client, parent, &roles).await?);
    }
    Ok(listed(path, entries, more))
}

fn listed(path: &str, entries: Vec<ListedEntry>, more: usize) -> Option<ListedLock> {
    (!entries.is_empty()).then(|| ListedLock { path: path.to_owned(), entries, more })
}

async fn read<C: Session>(
    client: &C,
    parent: &str,
    roles: &[(String, EntryRole)],
) -> Result<Vec<ListedEntry>, SessionError> {
    let names = roles.iter().map(|(name, _)| name.clone()).collect();
    let reads = context::get_small(line(client)?, parent, names).await?;
    let role_of = |name: &str| roles.iter().find(|(known, _)| known == name).map(|&(_, role)| role);
    let unread = reads.unread.into_iter().map(|(name, _)| name).collect();
    let unread = context::stats(line(client)?, parent, unread).await?;
    let all = reads.found.into_iter().chain(unread.into_iter().map(|(name, stat)| (name, Vec::new(), stat)));
    let listed = |found: Found| {
        let is_persistent = found.2.session.is_none();
        let role = role_of(&found.0)?;
        Some(ListedEntry { is_persistent, ..entry(parent, found, role) })
    };
    Ok(all.filter_map(listed).collect())
}

fn entry(parent: &str, (name, data, stat): Found, role: EntryRole) -> ListedEntry {
    let client = serde_json::from_slice::<LockClient>(&data).ok();
    let is_revoked = data == REVOKE || client.as_ref().is_some_and(|client| client.revoked_at_ms.is_some());
    let text = if client.is_some() || data == REVOKE { String::new() } else { String::from_utf8_lossy(&data).into() };
    let since = stat.created_at;
    let path = child(parent, &name);
    ListedEntry { name, path, is_persistent: false, role, since, client, data: text, is_revoked }
}

/// Asks the holders of a lock to release it, as Curator's `Revoker` does.
///
/// # Errors
/// If the servers do not answer or refuse.
pub async fn revoke<C: Session>(client: &C, path: &LockPath) -> Result<Asked, LockError> {
    let listing = list(client, Some(path)).await?;
    let own = listing.locks.into_iter().filter(|lock| lock.path == path.as_str());
    let holders = own.flat_map(|lock| lock.entries).filter(|entry| entry.role != EntryRole::Waits);
    let mut asked = Asked::default();
    for entry in holders {
        // What no client made as an entry, such as a message, keeps its data.
        if entry.is_persistent {
            asked.foreign.push(entry.path);
            continue;
        }
        let set = Op::Set { path: entry.path.clone(), data: REVOKE.to_vec(), at: AtVersion::Any };
        match line(client)?.commit(vec![set]).await {
            Ok(_) => asked.holders += 1,
            // It was released meanwhile.
            Err(failed) if failed.error == Error::Missing => {}
            Err(failed) => return Err(failed).at(&entry.path).map_err(LockError::from),
        }
    }
    Ok(asked)
}
