//! The watches on the entries of held locks: an entry that is gone, and a request to release.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;

use super::{LockClient, PAUSE, REVOKE};
use crate::recipes::context::json;
use crate::tree::{AtVersion, Error, Op, Session, State, Watch as _};
use cronkeeper_core::clock::{Clock, Wake};

/// News of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryNews {
    /// It was deleted. It is not watched any more.
    Gone { entry: String },
    /// Somebody asks to release its lock.
    RevokeRequested { entry: String },
}

/// Watches entries of one session. An entry that was released is reported as gone once more.
pub struct EntryWatches<C, K> {
    client: C,
    clock: K,
    looks: FuturesUnordered<BoxFuture<'static, EntryState>>,
}

/// What was found out about an entry, whose watch must be set again unless it is gone.
struct EntryState {
    entry: String,
    /// Its data as the client wrote it.
    data: Vec<u8>,
    found: Found,
}

enum Found {
    /// It may have changed.
    Unknown,
    Gone,
    Revoked,
}

impl<C: Session, K: Clock> EntryWatches<C, K> {
    pub fn new(client: C, clock: K) -> Self {
        Self { client, clock, looks: FuturesUnordered::new() }
    }

    /// Begins to watch entries, whose data this client wrote as `data`.
    pub fn add<'a>(&mut self, entries: impl Iterator<Item = &'a String>, data: &[u8]) {
        for entry in entries {
            self.looks.push(Box::pin(look(self.client.clone(), entry.clone(), data.to_vec())));
        }
    }

    /// Waits for news. `None` while nothing is watched, at once. Cancellation safe: the watches are kept.
    pub async fn next(&mut self) -> Option<EntryNews> {
        loop {
            let state = self.looks.next().await?;
            if let Some(news) = self.changed(state) {
                return Some(news);
            }
        }
    }

    fn changed(&mut self, EntryState { entry, data, found }: EntryState) -> Option<EntryNews> {
        match found {
            Found::Gone => Some(EntryNews::Gone { entry }),
            Found::Unknown => {
                let (client, clock) = (self.client.clone(), self.clock.clone());
                self.looks.push(Box::pin(look_later(client, clock, entry, data)));
                None
            }
            Found::Revoked => {
                let set = Op::Set { path: entry.clone(), data: self.revoked(&data), at: AtVersion::Any };
                // Restores who holds the lock, and shows that it has noticed. If that fails, the request stays visible.
                let restored = self.client.commit(vec![set]);
                let (client, watched) = (self.client.clone(), entry.clone());
                self.looks.push(Box::pin(async move {
                    let _ = restored.await;
                    look(client, watched, data).await
                }));
                Some(EntryNews::RevokeRequested { entry })
            }
        }
    }

    fn revoked(&self, data: &[u8]) -> Vec<u8> {
        match serde_json::from_slice::<LockClient>(data) {
            Ok(client) => {
                let now = self.clock.now().wall.as_millisecond();
                json(&LockClient { revoked_at_ms: Some(now), ..client })
            }
            Err(_) => data.to_vec(),
        }
    }
}

/// Reads an entry until something is to be reported.
async fn look<C: Session>(client: C, entry: String, written: Vec<u8>) -> EntryState {
    loop {
        let found = match client.get_and_watch(&entry).await {
            Ok((data, _, _)) if data == REVOKE => Found::Revoked,
            Ok((_, _, watch)) => {
                watch.fired().await;
                continue;
            }
            Err(Error::Missing) => Found::Gone,
            Err(_) => Found::Unknown,
        };
        return EntryState { entry, data: written, found };
    }
}

/// Reads an entry again after a failure, once the connection may be back.
async fn look_later<C: Session, K: Clock>(client: C, clock: K, entry: String, written: Vec<u8>) -> EntryState {
    let until = clock.now().up + PAUSE.max(Duration::from_millis(1));
    while clock.now().up < until || client.state() == State::Disconnected {
        clock.sleep_until(Wake { wall: None, up: Some(clock.now().up + PAUSE) }).await;
    }
    look(client, entry, written).await
}
