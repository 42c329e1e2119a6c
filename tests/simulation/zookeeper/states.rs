//! The state of a connection, as the clones of a client see it.
//!
//! A channel of tokio would wake those who wait in an order that it draws at random, which no seed determines. Here
//! they are woken in the order in which they began to wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cronkeeper_cluster::zookeeper::client::State;
use tokio::sync::Notify;

/// The state, with how often it has changed.
#[derive(Debug)]
struct Shared {
    current: Mutex<(State, u64)>,
    changed: Notify,
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, (State, u64)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the state.
pub struct StateSetter(Arc<Shared>);

/// Sees the state. Each clone waits for changes since it last looked.
#[derive(Clone)]
pub struct States {
    shared: Arc<Shared>,
    seen: u64,
}

/// A state, and the first view of it.
pub fn states(first: State) -> (StateSetter, States) {
    let shared = Arc::new(Shared { current: Mutex::new((first, 0)), changed: Notify::new() });
    (StateSetter(Arc::clone(&shared)), States { shared, seen: 0 })
}

impl StateSetter {
    /// Sets the state. Returns true if it was another one.
    pub fn set(&self, state: State) -> bool {
        let mut current = self.0.current();
        if current.0 == state {
            return false;
        }
        *current = (state, current.1 + 1);
        drop(current);
        self.0.changed.notify_waiters();
        true
    }
}

impl States {
    pub fn state(&self) -> State {
        self.shared.current().0
    }

    /// Waits for a change since the last call, and returns the state after it; forever if there will be none.
    pub async fn changed(&mut self) -> State {
        loop {
            let changed = self.shared.changed.notified();
            let (state, count) = *self.shared.current();
            if count != self.seen {
                self.seen = count;
                return state;
            }
            changed.await;
        }
    }
}
