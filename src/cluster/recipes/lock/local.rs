//! Hand-offs between the clients of one session.
//!
//! If an entry that holds its lock alone is released, the entry just behind it holds the lock from then on: everything
//! ahead of it was gone when the released one was granted. Where both belong to one session, the client of the second
//! learns of the release at once, and neither waits for the servers. All others see the entries in the same order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::entries::{is_of, is_shared};
use crate::paths;

/// The entries of one session.
#[derive(Debug, Default)]
pub struct LocalQueue(Mutex<BTreeMap<String, LocalEntry>>);

#[derive(Debug, Default)]
struct LocalEntry {
    /// It holds its lock.
    is_granted: bool,
    /// Its client is removing it.
    is_leaving: bool,
    /// The clients that wait for its end.
    waiting: Vec<oneshot::Sender<HandOff>>,
}

/// What the end of an entry means for those who wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOff {
    /// They hold the lock.
    Granted,
    /// They must read the queue: it had not held the lock, or readers may still hold it.
    LookAgain,
}

impl LocalQueue {
    /// Adds new entries, by their paths.
    pub fn add(&self, entries: &[String]) {
        self.entries().extend(entries.iter().map(|entry| (entry.clone(), LocalEntry::default())));
    }

    /// Records that an entry holds its lock.
    pub fn grant(&self, entry: &str) {
        if let Some(entry) = self.entries().get_mut(entry) {
            entry.is_granted = true;
        }
    }

    /// Records that a client is removing its entries, whose names contain this uuid. Returns them.
    pub fn leave(&self, uuid: Uuid) -> Vec<String> {
        let mut entries = self.entries();
        let own = entries.iter_mut().filter(|(path, _)| is_of(paths::name(path), uuid));
        own.map(|(path, entry)| {
            entry.is_leaving = true;
            path.clone()
        })
        .collect()
    }

    /// True if a client of this session is removing the entry.
    pub fn is_leaving(&self, entry: &str) -> bool {
        self.entries().get(entry).is_some_and(|entry| entry.is_leaving)
    }

    /// Waits for the end of an entry; `None` if it is not of this session.
    pub fn wait_for(&self, entry: &str) -> Option<oneshot::Receiver<HandOff>> {
        let mut entries = self.entries();
        let (sender, receiver) = oneshot::channel();
        let entry = entries.get_mut(entry)?;
        // Those that gave up waiting.
        entry.waiting.retain(|waiting| !waiting.is_closed());
        entry.waiting.push(sender);
        Some(receiver)
    }

    /// Records that the removal of these entries was sent, and notifies those who wait for them.
    pub fn remove(&self, removed: &[String]) {
        let mut entries = self.entries();
        for path in removed {
            let Some(entry) = entries.remove(path) else { continue };
            let is_alone = !is_shared(paths::name(path));
            let hand_off = if entry.is_granted && is_alone { HandOff::Granted } else { HandOff::LookAgain };
            for waiting in entry.waiting {
                // It may have given up meanwhile.
                let _ = waiting.send(hand_off);
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, LocalEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_the_end_of_a_sole_holder_grants() {
        let local = LocalQueue::default();
        let [holder, waiting, reader] = ["/a/x-lock-0000000001", "/a/x-lock-0000000002", "/a/x-__READ__0000000003"];
        local.add(&paths(&[holder, waiting, reader]));
        local.grant(holder);
        local.grant(reader);
        let mut ends = [holder, waiting, reader].map(|entry| local.wait_for(entry).unwrap());
        assert!(local.wait_for("/a/foreign-lock-0000000000").is_none());
        local.remove(&paths(&[holder, waiting, reader, "/a/foreign-lock-0000000000"]));
        let expected = [HandOff::Granted, HandOff::LookAgain, HandOff::LookAgain];
        assert_eq!(ends.each_mut().map(|end| end.try_recv().unwrap()), expected);
        assert!(local.entries().is_empty());
    }

    #[test]
    fn those_who_gave_up_are_forgotten() {
        let local = LocalQueue::default();
        local.add(&paths(&["/a/x-lock-0000000001"]));
        for _ in 0..1_000 {
            drop(local.wait_for("/a/x-lock-0000000001"));
        }
        assert!(local.entries().values().all(|entry| entry.waiting.len() <= 1));
    }
}
