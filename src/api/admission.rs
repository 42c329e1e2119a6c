//! Admission control of a listener: limits for connections, history reads and answer bytes.
//!
//! Each limit also applies per caller, so that one caller who takes all it can get leaves enough for the others. When a
//! connection ends, everything that it held is released. Who finds all connections taken takes the place of the oldest
//! that has not sent a whole request: holding connections open shuts nobody out, however many addresses somebody has.

#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::caller::Caller;

/// The limits of one listener, in total and per caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerLimits {
    pub connections: Quota,
    /// Streams of events. They last for minutes, so they do not count as connections.
    pub streams: Quota,
    /// Bytes of answers that the clients have not read yet.
    pub bytes: Quota,
    /// Concurrent reads of histories. Each caller has one at a time.
    pub histories: usize,
    /// Most bytes of one history.
    pub history: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Quota {
    pub total: usize,
    pub per_caller: usize,
}

impl ListenerLimits {
    /// Limits of the Unix socket. Its users are trusted, but their slow programs must not exhaust the node's memory.
    pub const SOCKET: Self = Self {
        connections: Quota { total: 64, per_caller: 64 },
        streams: Quota { total: 128, per_caller: 128 },
        bytes: Quota { total: 96 << 20, per_caller: 64 << 20 },
        histories: 4,
        history: 32 << 20,
    };
    /// Limits of a TCP address.
    pub const NETWORK: Self = Self {
        connections: Quota { total: 256, per_caller: 16 },
        streams: Quota { total: 128, per_caller: 32 },
        bytes: Quota { total: 24 << 20, per_caller: 8 << 20 },
        histories: 2,
        history: 1 << 20,
    };
}

/// The admission control of one listener.
#[derive(Debug)]
pub(super) struct Admission {
    limits: ListenerLimits,
    histories: Arc<Semaphore>,
    usage: Mutex<Usage>,
    /// Notified when a connection ends, or becomes a stream.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Usage {
    bytes: usize,
    streams: usize,
    callers: HashMap<Caller, CallerUsage>,
    /// The connections that count, by their numbers, so the oldest first.
    connections: BTreeMap<u64, Connection>,
    /// The number of the newest connection.
    newest: u64,
}

#[derive(Debug)]
struct Connection {
    caller: Caller,
    /// Its client has not sent a whole request, or has to wait: it may be closed to make room.
    may_be_closed: bool,
    closing: Arc<Notify>,
}

/// What the connections of one caller hold together.
#[derive(Debug)]
struct CallerUsage {
    connections: usize,
    streams: usize,
    bytes: usize,
    /// One permit: a caller reads one history at a time.
    history: Arc<Semaphore>,
}

impl CallerUsage {
    fn new() -> Self {
        Self { connections: 0, streams: 0, bytes: 0, history: Arc::new(Semaphore::new(1)) }
    }

    fn is_idle(&self) -> bool {
        self.connections + self.streams + self.bytes == 0
    }
}

/// A permit of a semaphore, released on drop. The semaphores are never closed, so it is always present.
pub(super) type Permit = Option<OwnedSemaphorePermit>;

/// The result of a new connection.
enum Attempt {
    Admitted(Arc<Admitted>),
    /// Its caller has as many as allowed, and is being answered on all of them.
    Refused,
    /// All callers together have as many as allowed, and are being answered on all of them.
    Full,
}

impl Admission {
    pub fn new(limits: ListenerLimits) -> Arc<Self> {
        let (histories, usage) = (Arc::new(Semaphore::new(limits.histories)), Mutex::default());
        Arc::new(Self { limits, histories, usage, freed: Notify::new() })
    }

    /// Admits a connection; `None` if its caller is being answered on as many as allowed. If that is true of all callers
    /// together, this waits until one of those ends.
    ///
    /// Cancellation safety: if this future is dropped, the connection is not admitted.
    pub async fn admit(self: &Arc<Self>, caller: Caller) -> Option<Arc<Admitted>> {
        loop {
            match self.attempt(caller) {
                Attempt::Admitted(admitted) => return Some(admitted),
                Attempt::Refused => return None,
                // What is freed before this waits is not missed: the notification is kept.
                Attempt::Full => self.freed.notified().await,
            }
        }
    }

    fn attempt(self: &Arc<Self>, caller: Caller) -> Attempt {
        let limit = self.limits.connections;
        let mut usage = self.usage();
        let own = usage.callers.get(&caller).map_or(0, |own| own.connections);
        if own >= limit.per_caller {
            if !usage.close_oldest(|connection| connection.caller == caller) {
                return Attempt::Refused;
            }
        } else if usage.connections.len() >= limit.total && !usage.close_oldest(|_| true) {
            return Attempt::Full;
        }
        let caller_usage = usage.callers.entry(caller).or_insert_with(CallerUsage::new);
        caller_usage.connections += 1;
        let history = Arc::clone(&caller_usage.history);
        usage.newest += 1;
        let (number, closing) = (usage.newest, Arc::new(Notify::new()));
        let connection = Connection { caller, may_be_closed: true, closing: Arc::clone(&closing) };
        usage.connections.insert(number, connection);
        drop(usage);
        let (admission, held) = (Arc::clone(self), Mutex::default());
        Attempt::Admitted(Arc::new(Admitted { admission, caller, number, closing, history, held }))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    /// Closes the oldest of these connections that may be closed. Its place is free at once. False if there is none.
    fn close_oldest(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let mut all = self.connections.iter();
        let oldest = all.find(|&(_, connection)| connection.may_be_closed && is_meant(connection));
        let oldest = oldest.map(|(number, _)| *number);
        let Some(closed) = oldest.and_then(|number| self.connections.remove(&number)) else { return false };
        closed.closing.notify_one();
        self.release(closed.caller, |usage| usage.connections -= 1);
        true
    }

    /// Takes something off what a caller holds, and forgets the caller if that was all.
    fn release(&mut self, caller: Caller, take_off: impl FnOnce(&mut CallerUsage)) {
        if let Entry::Occupied(mut entry) = self.callers.entry(caller) {
            take_off(entry.get_mut());
            if entry.get().is_idle() {
                entry.remove();
            }
        }
    }
}

/// An admitted connection. Dropping it releases what it held.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    caller: Caller,
    number: u64,
    closing: Arc<Notify>,
    history: Arc<Semaphore>,
    held: Mutex<Held>,
}

/// What one connection holds.
#[derive(Debug, Default)]
struct Held {
    bytes: usize,
    is_stream: bool,
}

/// Why an answer is refused for lack of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMemory {
    /// The answer alone exceeds the limit of one caller.
    TooLarge { limit: usize },
    /// Other answers use the memory; it is free again once clients have read them.
    Busy,
}

impl Admitted {
    /// Reserves memory for an answer until the connection ends.
    pub fn reserve(&self, bytes: usize) -> Result<(), NoMemory> {
        let quota = self.admission.limits.bytes;
        if bytes > quota.per_caller {
            return Err(NoMemory::TooLarge { limit: quota.per_caller });
        }
        let mut usage = self.admission.usage();
        let total = usage.bytes + bytes;
        let Some(caller_usage) = usage.callers.get_mut(&self.caller) else { return Err(NoMemory::Busy) };
        if total > quota.total || caller_usage.bytes + bytes > quota.per_caller {
            return Err(NoMemory::Busy);
        }
        caller_usage.bytes += bytes;
        usage.bytes = total;
        self.held().bytes += bytes;
        Ok(())
    }

    /// Waits until the connection has to make room for another.
    pub async fn room_needed(&self) {
        self.closing.notified().await;
    }

    /// The client has sent a whole request, and will be answered: the connection makes room for no other.
    pub fn keep_place(&self) {
        self.set_may_be_closed(false);
    }

    /// The connection makes room for another if there are too many.
    pub fn offer_place(&self) {
        self.set_may_be_closed(true);
    }

    fn set_may_be_closed(&self, may_be_closed: bool) {
        if let Some(connection) = self.admission.usage().connections.get_mut(&self.number) {
            connection.may_be_closed = may_be_closed;
        }
    }

    /// Makes the connection a stream of events, which counts against limits of its own. False if there are too many.
    pub fn become_stream(&self) -> bool {
        let quota = self.admission.limits.streams;
        let mut usage = self.admission.usage();
        let is_full = usage.streams >= quota.total;
        let is_counted = usage.connections.contains_key(&self.number);
        let Some(caller_usage) = usage.callers.get_mut(&self.caller).filter(|_| is_counted) else { return false };
        if is_full || caller_usage.streams >= quota.per_caller {
            return false;
        }
        caller_usage.streams += 1;
        caller_usage.connections -= 1;
        usage.streams += 1;
        usage.connections.remove(&self.number);
        self.held().is_stream = true;
        self.admission.freed.notify_one();
        true
    }

    /// True for a stream of events.
    pub fn is_stream(&self) -> bool {
        self.held().is_stream
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this connection may read a history. The turn ends when the permits are dropped.
    pub async fn history_permits(&self) -> (Permit, Permit) {
        let own = Arc::clone(&self.history).acquire_owned().await.ok();
        (own, Arc::clone(&self.admission.histories).acquire_owned().await.ok())
    }

    /// Most bytes of one history.
    pub fn history_limit(&self) -> usize {
        self.admission.limits.history
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut usage = self.admission.usage();
        usage.bytes -= held.bytes;
        usage.streams -= usize::from(held.is_stream);
        // One that had to make room counts no longer.
        let is_counted = usage.connections.remove(&self.number).is_some();
        usage.release(self.caller, |caller_usage| {
            caller_usage.bytes -= held.bytes;
            caller_usage.streams -= usize::from(held.is_stream);
            caller_usage.connections -= usize::from(is_counted);
        });
        drop(usage);
        self.admission.freed.notify_one();
    }
}
