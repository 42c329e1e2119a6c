//! Folders for entries: containers, which the servers remove once they are unused.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use super::chroot;
use super::client::{Client, Error, Mode, State};
use crate::paths;
use crate::tree::{self, Failed};

/// Creates that are in flight at the same time: many paths must not take as many round trips.
const AT_ONCE: usize = 100;

/// Creates several paths with their ancestors: an ancestor before what is below it, and only once.
///
/// A server before 3.5.3 knows no containers and gets a persistent znode.
pub async fn make<C: Client>(client: C, folders: Vec<String>) -> Result<(), Failed> {
    let folders: BTreeSet<&str> = folders.iter().map(String::as_str).collect();
    let mut levels: BTreeMap<usize, BTreeSet<&str>> = BTreeMap::new();
    for path in &folders {
        for (level, ancestor) in paths::ancestors(path).enumerate() {
            levels.entry(level).or_default().insert(ancestor);
        }
    }
    for level in levels.into_values().chain([folders.clone()]) {
        let create = |path: &str| {
            let (client, path, is_folder) = (client.clone(), path.to_owned(), folders.contains(path));
            async move {
                let made = match is_folder {
                    true => create_container(&client, &path).await,
                    false => create(&client, &path, Mode::Persistent).await,
                };
                made.map_err(|error| (path, error))
            }
        };
        let created: Vec<_> = level.into_iter().map(create).collect();
        stream::iter(created).buffered(AT_ONCE).try_collect::<()>().await?;
    }
    Ok(())
}

async fn create_container<C: Client>(client: &C, path: &str) -> Result<(), tree::Error> {
    match create(client, path, Mode::Container).await {
        Err(tree::Error::Unanswered(_) | tree::Error::Missing | tree::Error::Refused(_)) => {
            create(client, path, Mode::Persistent).await
        }
        made => made,
    }
}

async fn create<C: Client>(client: &C, path: &str, mode: Mode) -> Result<(), tree::Error> {
    match line(client)?.create(path, Vec::new(), mode).await {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        // Somebody else's, in which this client may still be allowed to queue.
        Err(Error::NoAuth) if line(client)?.stat(path).await?.is_some() => Ok(()),
        Err(error) => Err(chroot::of_create(path, error)),
    }
}

/// The client if it is connected. A request given up while disconnected would still be carried out afterwards.
pub fn line<C: Client>(client: &C) -> Result<&C, tree::Error> {
    match client.state() {
        State::Connected => Ok(client),
        State::Disconnected => Err(tree::Error::Unanswered("the connection is lost".to_owned())),
        State::Expired => Err(tree::Error::SessionOver),
        State::AuthFailed => Err(tree::Error::Denied),
    }
}
