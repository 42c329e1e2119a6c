//! Persistent entries in the queues of locks.
//!
//! An entry of a client goes with its session. A persistent one, which somebody has created by hand or by mistake, stays:
//! whoever queues behind it waits forever, or finds the lock held each time. So it must be named.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

use crate::tree::Stat;

/// Most queues whose obstacles are remembered.
const MOST: usize = 1_000;

/// What an operator must know about such an entry.
pub const STAYS: &str = "it is ahead in the queue of a lock and is not ephemeral: everybody behind it waits until \
    somebody deletes it";

/// The path of the first such entry that was found, for each queue.
pub type Known = BTreeMap<String, String>;

/// What all contenders of a session know.
#[derive(Clone, Debug)]
pub(super) struct Obstacles(Arc<watch::Sender<Known>>);

impl Default for Obstacles {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Known::new())))
    }
}

impl Obstacles {
    pub fn watch(&self) -> watch::Receiver<Known> {
        self.0.subscribe()
    }

    /// Forgets the obstacle of a queue that has only these entries now.
    pub fn listed(&self, queue: &str, names: &[String]) {
        self.0.send_if_modified(|known| {
            let is_gone = known.get(queue).is_some_and(|entry| !names.iter().any(|name| *entry == path(queue, name)));
            is_gone && known.remove(queue).is_some()
        });
    }

    /// Remembers an entry that others wait for, if it is persistent.
    pub fn awaited(&self, queue: &str, name: &str, stat: &Stat) {
        if stat.session.is_some() {
            return;
        }
        self.0.send_if_modified(|known| {
            let is_new = !known.contains_key(queue) && known.len() < MOST;
            if is_new {
                known.insert(queue.to_owned(), path(queue, name));
            }
            is_new
        });
    }
}

fn path(queue: &str, name: &str) -> String {
    format!("{queue}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cronkeeper_core::term::SessionId;

    #[test]
    fn a_persistent_entry_is_known_until_it_is_gone_from_its_queue() {
        let obstacles = Obstacles::default();
        let mut seen = obstacles.watch();
        let persistent = Stat::default();
        let own = Stat { session: Some(SessionId("0x7".into())), ..Stat::default() };
        obstacles.awaited("/a", "x-1", &own);
        assert!(!seen.has_changed().unwrap(), "a client's own");
        obstacles.awaited("/a", "x-1", &persistent);
        obstacles.awaited("/a", "x-2", &persistent);
        obstacles.awaited("/b", "x-1", &persistent);
        let known = seen.borrow_and_update().clone();
        assert_eq!(known.into_values().collect::<Vec<_>>(), ["/a/x-1", "/b/x-1"]);
        obstacles.listed("/a", &["x-1".into(), "y-3".into()]);
        obstacles.listed("/c", &[]);
        assert!(!seen.has_changed().unwrap());
        obstacles.listed("/a", &["x-2".into()]);
        assert_eq!(seen.borrow_and_update().len(), 1);
        obstacles.awaited("/a", "x-2", &persistent);
        assert!(seen.has_changed().unwrap(), "the next one");
    }

    #[test]
    fn no_number_of_queues_fills_the_memory() {
        let obstacles = Obstacles::default();
        (0..3 * MOST).for_each(|n| obstacles.awaited(&format!("/{n}"), "x-1", &Stat::default()));
        assert_eq!(obstacles.watch().borrow().len(), MOST);
    }
}
