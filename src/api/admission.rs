//! Admission control of a listener: limits for connections, history reads and answer bytes.
//!
//! Each limit also applies per caller, so that one caller who takes all it can get leaves enough for the others. When a
//! connection ends, everything that it held is released.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
    connections: Arc<Semaphore>,
    histories: Arc<Semaphore>,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    bytes: usize,
    streams: usize,
    callers: HashMap<Caller, CallerUsage>,
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

/// A permit of a semaphore, released on drop. The semaphores are never closed, so it is always present.
pub(super) type Permit = Option<OwnedSemaphorePermit>;

impl Admission {
    pub fn new(limits: ListenerLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            connections: Arc::new(Semaphore::new(limits.connections.total)),
            histories: Arc::new(Semaphore::new(limits.histories)),
            usage: Mutex::default(),
        })
    }

    /// Waits until the listener may accept one more connection.
    ///
    /// If the semaphore were ever closed, connections would be unlimited rather than refused.
    pub async fn permit(&self) -> Permit {
        Arc::clone(&self.connections).acquire_owned().await.ok()
    }

    /// Admits a connection; `None` if its caller already has as many as allowed.
    pub fn admit(self: &Arc<Self>, caller: Caller, permit: Permit) -> Option<Arc<Admitted>> {
        let mut usage = self.usage();
        let new = || CallerUsage { connections: 0, streams: 0, bytes: 0, history: Arc::new(Semaphore::new(1)) };
        let caller_usage = usage.callers.entry(caller).or_insert_with(new);
        // Returning here leaves no empty entry behind: a caller at its limit has connections.
        if caller_usage.connections >= self.limits.connections.per_caller {
            return None;
        }
        caller_usage.connections += 1;
        let history = Arc::clone(&caller_usage.history);
        let admission = Arc::clone(self);
        let held = Mutex::new(Held { bytes: 0, permit, is_stream: false });
        Some(Arc::new(Admitted { admission, caller, history, held }))
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An admitted connection. Dropping it releases what it held.
#[derive(Debug)]
pub(super) struct Admitted {
    admission: Arc<Admission>,
    caller: Caller,
    history: Arc<Semaphore>,
    held: Mutex<Held>,
}

/// What one connection holds.
#[derive(Debug)]
struct Held {
    bytes: usize,
    /// Of a connection; given back when it becomes a stream.
    permit: Permit,
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

    /// Makes the connection a stream of events, which counts against limits of its own. False if there are too many.
    pub fn become_stream(&self) -> bool {
        let quota = self.admission.limits.streams;
        let mut usage = self.admission.usage();
        let is_full = usage.streams >= quota.total;
        let Some(caller_usage) = usage.callers.get_mut(&self.caller) else { return false };
        if is_full || caller_usage.streams >= quota.per_caller {
            return false;
        }
        caller_usage.streams += 1;
        caller_usage.connections -= 1;
        usage.streams += 1;
        let mut held = self.held();
        held.is_stream = true;
        held.permit = None;
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
        if held.is_stream {
            usage.streams -= 1;
        }
        if let Entry::Occupied(mut entry) = usage.callers.entry(self.caller) {
            let caller_usage = entry.get_mut();
            caller_usage.bytes -= held.bytes;
            *if held.is_stream { &mut caller_usage.streams } else { &mut caller_usage.connections } -= 1;
            if caller_usage.connections + caller_usage.streams == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const LIMITS: ListenerLimits = ListenerLimits {
        connections: Quota { total: 8, per_caller: 2 },
        streams: Quota { total: 3, per_caller: 2 },
        bytes: Quota { total: 250, per_caller: 150 },
        histories: 2,
        history: 10,
    };

    fn admitted(admission: &Arc<Admission>, last: u8) -> Option<Arc<Admitted>> {
        let permit = admission.permit().now_or_never().expect("a connection is free");
        admission.admit(Caller::Remote([192, 0, 2, last].into()), permit)
    }

    #[test]
    fn one_caller_cannot_take_the_connections_of_the_others() {
        let admission = Admission::new(LIMITS);
        let (first, _second) = (admitted(&admission, 1).unwrap(), admitted(&admission, 1).unwrap());
        assert!(admitted(&admission, 1).is_none());
        let _other = admitted(&admission, 2).unwrap();
        drop(first);
        assert!(admitted(&admission, 1).is_some());
    }

    #[test]
    fn a_caller_without_connections_is_forgotten() {
        let admission = Admission::new(LIMITS);
        let first = admitted(&admission, 1).unwrap();
        first.reserve(100).unwrap();
        drop(first);
        let usage = admission.usage();
        assert_eq!((usage.bytes, usage.callers.len(), admission.connections.available_permits()), (0, 0, 8));
    }

    #[test]
    fn streams_take_no_connections_and_have_limits_of_their_own() {
        let admission = Admission::new(LIMITS);
        let mine: Vec<_> = (0..2).map(|_| admitted(&admission, 1).unwrap()).collect();
        assert!(mine.iter().all(|stream| stream.become_stream() && stream.is_stream()));
        assert_eq!(admission.connections.available_permits(), 8);
        let third = admitted(&admission, 1).expect("streams are no connections");
        assert!(!third.become_stream(), "a caller has at most two");
        let others = [2, 3].map(|last| admitted(&admission, last).unwrap().become_stream());
        assert_eq!(others, [true, true], "each has ended at once");
        let [one, two] = [2, 3].map(|last| admitted(&admission, last).unwrap());
        assert_eq!([one.become_stream(), two.become_stream()], [true, false], "there are at most three");
        drop((mine, third, one, two));
        let usage = admission.usage();
        assert_eq!((usage.streams, usage.callers.len()), (0, 0));
    }

    #[test]
    fn bytes_are_counted_per_caller_and_in_total() {
        let admission = Admission::new(LIMITS);
        let [a, b, c] = [1, 1, 2].map(|last| admitted(&admission, last).unwrap());
        assert_eq!(a.reserve(151), Err(NoMemory::TooLarge { limit: 150 }));
        assert_eq!((a.reserve(100), b.reserve(100), b.reserve(50)), (Ok(()), Err(NoMemory::Busy), Ok(())));
        assert_eq!((c.reserve(150), c.reserve(100)), (Err(NoMemory::Busy), Ok(())));
        drop(a);
        assert_eq!(b.reserve(101), Err(NoMemory::Busy), "the other caller has reserved the rest");
        assert_eq!(b.reserve(100), Ok(()));
    }

    #[test]
    fn one_caller_reads_one_history_at_a_time_and_does_not_block_others() {
        let admission = Admission::new(LIMITS);
        let [a, b, c] = [1, 1, 2].map(|last| admitted(&admission, last).unwrap());
        let first = a.history_permits().now_or_never().expect("it is free");
        assert!(b.history_permits().now_or_never().is_none());
        assert!(c.history_permits().now_or_never().is_some());
        drop(first);
        assert!(b.history_permits().now_or_never().is_some());
    }
}
