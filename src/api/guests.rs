//! Who holds how much of a listener: connections, reads of histories, and bytes of answers that are on their way.
//!
//! All of it is counted by caller too, so that one of them, who takes what he can and lets nothing go, leaves enough to the
//! others. What a connection holds is given back when it ends.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;

/// How much there is of a listener, and how much of it one caller may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections.
    pub connections: Share,
    /// Bytes of answers that were not read yet.
    pub bytes: Share,
    /// Reads of histories at once. One caller has one at a time.
    pub histories: usize,
    /// Bytes of one history.
    pub history: usize,
}

/// So much in all, and so much for one caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub all: usize,
    pub one: usize,
}

impl Limits {
    /// Of the Unix socket. Whoever may use it may do worse; but slow programs of his may not cost the node its memory.
    pub const SOCKET: Self = Self {
        connections: Share { all: 64, one: 64 },
        bytes: Share { all: 96 << 20, one: 64 << 20 },
        histories: 4,
        history: 32 << 20,
    };
    /// Of an address on the network.
    pub const NETWORK: Self = Self {
        connections: Share { all: 256, one: 16 },
        bytes: Share { all: 24 << 20, one: 8 << 20 },
        histories: 2,
        history: 1 << 20,
    };
}

/// All callers of a listener.
#[derive(Debug)]
pub(super) struct Guests {
    limits: Limits,
    places: Arc<Semaphore>,
    histories: Arc<Semaphore>,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    callers: HashMap<Caller, Party>,
}

/// What one caller's connections hold.
#[derive(Debug)]
struct Party {
    connections: usize,
    bytes: usize,
    history: Arc<Semaphore>,
}

/// A place for a connection.
pub(super) type Place = Option<OwnedSemaphorePermit>;

impl Guests {
    /// Nobody yet.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            places: Arc::new(Semaphore::new(limits.connections.all)),
            histories: Arc::new(Semaphore::new(limits.histories)),
            held: Mutex::default(),
        })
    }

    /// Waits until there is a place for one more connection. The semaphore is never closed; were it, connections would go unbounded
    /// rather than unserved.
    pub async fn place(&self) -> Place {
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Lets a connection in; `None` where its caller has as many as one may have.
    pub fn admit(self: &Arc<Self>, caller: Caller, place: Place) -> Option<Arc<Guest>> {
        let mut held = self.held();
        let one = || Party { connections: 0, bytes: 0, history: Arc::new(Semaphore::new(1)) };
        let party = held.callers.entry(caller).or_insert_with(one);
        // A caller that is known has a connection, so that none is left behind here who has none.
        if party.connections >= self.limits.connections.one {
            return None;
        }
        party.connections += 1;
        let history = Arc::clone(&party.history);
        Some(Arc::new(Guest { guests: Arc::clone(self), caller, history, bytes: Mutex::new(0), _place: place }))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that was let in.
#[derive(Debug)]
pub(super) struct Guest {
    guests: Arc<Guests>,
    caller: Caller,
    history: Arc<Semaphore>,
    bytes: Mutex<usize>,
    _place: Place,
}

/// Why a request gets no room in memory for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// It is longer than all that one caller may have.
    ForAny {
        /// What that is.
        most: usize,
    },
    /// Others are on their way.
    Now,
}

impl Guest {
    /// Takes room for an answer of so many bytes, for as long as the connection lasts.
    pub fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        let limit = self.guests.limits.bytes;
        if bytes > limit.one {
            return Err(NoRoom::ForAny { most: limit.one });
        }
        let mut held = self.guests.held();
        let all = held.bytes + bytes;
        let Some(party) = held.callers.get_mut(&self.caller) else { return Err(NoRoom::Now) };
        if all > limit.all || party.bytes + bytes > limit.one {
            return Err(NoRoom::Now);
        }
        party.bytes += bytes;
        held.bytes = all;
        *self.bytes.lock().unwrap_or_else(PoisonError::into_inner) += bytes;
        Ok(())
    }

    /// Waits for the turn to read a history; it lasts for as long as what is returned is kept.
    pub async fn history(&self) -> (Place, Place) {
        let own = Arc::clone(&self.history).acquire_owned().await.ok();
        (own, Arc::clone(&self.guests.histories).acquire_owned().await.ok())
    }

    /// Most bytes of a history.
    pub fn most_of_history(&self) -> usize {
        self.guests.limits.history
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.guests.held();
        held.bytes -= bytes;
        if let Entry::Occupied(mut party) = held.callers.entry(self.caller) {
            party.get_mut().bytes -= bytes;
            party.get_mut().connections -= 1;
            if party.get().connections == 0 {
                party.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LIMITS: Limits = Limits {
        connections: Share { all: 8, one: 2 },
        bytes: Share { all: 250, one: 150 },
        histories: 2,
        history: 10,
    };

    fn guest(guests: &Arc<Guests>, last: u8) -> Option<Arc<Guest>> {
        let place = guests.place().now_or_never().expect("there is a place");
        guests.admit(Caller::Remote([192, 0, 2, last].into()), place)
    }

    #[test]
    fn one_caller_has_his_share_of_connections_and_leaves_the_others_theirs() {
        let guests = Guests::new(LIMITS);
        let (first, _second) = (guest(&guests, 1).unwrap(), guest(&guests, 1).unwrap());
        assert!(guest(&guests, 1).is_none());
        let _other = guest(&guests, 2).unwrap();
        drop(first);
        assert!(guest(&guests, 1).is_some());
    }

    #[test]
    fn nothing_is_kept_of_who_is_gone() {
        let guests = Guests::new(LIMITS);
        let first = guest(&guests, 1).unwrap();
        first.take(100).unwrap();
        drop(first);
        let held = guests.held();
        assert_eq!((held.bytes, held.callers.len(), guests.places.available_permits()), (0, 0, 8));
    }

    #[test]
    fn bytes_are_counted_by_caller_and_in_all() {
        let guests = Guests::new(LIMITS);
        let [a, b, c] = [1, 1, 2].map(|last| guest(&guests, last).unwrap());
        assert_eq!(a.take(151), Err(NoRoom::ForAny { most: 150 }));
        assert_eq!((a.take(100), b.take(100), b.take(50)), (Ok(()), Err(NoRoom::Now), Ok(())));
        assert_eq!((c.take(150), c.take(100)), (Err(NoRoom::Now), Ok(())));
        drop(a);
        assert_eq!(b.take(101), Err(NoRoom::Now), "the other caller has the rest");
        assert_eq!(b.take(100), Ok(()));
    }

    #[test]
    fn one_caller_reads_one_history_at_a_time_and_does_not_keep_others_from_theirs() {
        let guests = Guests::new(LIMITS);
        let [a, b, c] = [1, 1, 2].map(|last| guest(&guests, last).unwrap());
        let first = a.history().now_or_never().expect("it is free");
        assert!(b.history().now_or_never().is_none());
        assert!(c.history().now_or_never().is_some());
        drop(first);
        assert!(b.history().now_or_never().is_some());
    }
}
